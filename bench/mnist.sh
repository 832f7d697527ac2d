#!/usr/bin/env bash
# Times training steps of the MNIST network: fsdpd with two workers against PyTorch DDP with two Gloo
# processes, one thread each, the same batch, in alternating runs. The last line is "ratio R": our
# median step over PyTorch's. usage: bench/mnist.sh [--rounds N] [--steps N] [--set key=value ...]
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
. scripts/common.sh
# shellcheck disable=SC2086
need_packages yes $BUILD_PACKAGES python3 python3-torch python3-numpy
build_tree build
cd "$caller"
exec env OMP_NUM_THREADS=1 builddir="$OLDPWD/build" srcdir="$OLDPWD" PYTHONDONTWRITEBYTECODE=1 \
  /usr/bin/python3 "$OLDPWD/bench/mnist.py" "$@"
