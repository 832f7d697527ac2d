#!/usr/bin/env bash
# Installs a benchmark's dependencies, builds in build/ (or $builddir), and runs bench/$1 with the other
# arguments.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
# shellcheck disable=SC2086
need_packages yes $BENCH_PACKAGES
build=$(realpath "${builddir:-build}")
build_tree "$build"
program=$1
shift
exec env builddir="$build" srcdir="$PWD" PYTHONDONTWRITEBYTECODE=1 \
  /usr/bin/python3 "bench/$program" "$@"
