#!/usr/bin/env bash
# Builds fsdpd with warnings as errors and runs every unit, engine, parity and system test once.
#
#   --all         does so in the release tarball (make distcheck), with the CUDA kernels' tests under
#                 ThreadSanitizer, then builds, installs and uses the Debian packages
#                 (scripts/check-package.sh), runs the unit and engine tests under
#                 AddressSanitizer and UndefinedBehaviorSanitizer, and fuzzes every parser for
#                 FSDPD_FUZZ_SECONDS (10). FSDPD_SANITIZE_CUDA=1 adds the CUDA backend's tests to those
#                 under sanitizers. Continuous integration runs this form.
#   --no-install  installs nothing, and lists missing packages, also those of Python (tests/requirements.txt).
#
# The last line is "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh

install=yes all=no
for argument; do
  case $argument in
    --all) all=yes ;;
    --no-install) install=no ;;
    *) say "usage: scripts/check.sh [--all] [--no-install]" && exit 2 ;;
  esac
done

# Tests wait for half of their time: with two more of them than processors, none idles.
tests_at_once=$(($(nproc) + 2))
# The trees are built with different flags, but from the same sources as in the last run: a compiler cache, where there is
# one, needs paths that do not depend on the directory.
if [ -d /usr/lib/ccache ]; then
  export PATH=/usr/lib/ccache:$PATH CCACHE_BASEDIR="${CCACHE_BASEDIR:-$PWD}" CCACHE_NOHASHDIR=1
fi

passed=0 failed=0 skipped=0 beside='' failures='' python=''
finish() {
  [ -z "$beside" ] || packages_end
  [ -z "$python" ] || wait "$python" # not half an environment
  [ -z "$failures" ] || echo "== what failed$failures"
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
  exit
}
step() { # NAME COMMAND...: counts as one test; a failure ends the run
  local name=$1
  shift
  echo "== $name"
  if "$@"; then
    passed=$((passed + 1))
  else
    echo "FAIL: $name"
    failed=$((failed + 1))
    finish
  fi
}
result_of() { # FILE.trs
  sed -n 's/^:test-result: \([A-Z]*\).*/\1/p' "$1"
}
show_failure() { # FILE.trs LINES: prints the end of its log; the failures in the whole log come again at the end
  local log=${1%.trs}.log found
  echo "---- $log"
  tail -n "$2" "$log"
  # unittest's headings, lines and exceptions; Check's "file:line:F:..." (or E); messages of sanitizers, scripts
  found=$(grep -aE '^(FAIL|ERROR|FAILED)\b|^[A-Za-z_.]*(Error|Exception|Expired): |^  File .*/tests/|:[0-9]+:[FE]:|Sanitizer|runtime error:' "$log" |
    cut -c 1-300 | tail -n 20)
  echo "---- what failed in ${log##*/}:"
  echo "$found"
  failures+=$'\n'"---- ${log##*/}"$'\n'"$found"
}
slowest() { # DIRECTORY: the seconds from the first line of a program's log to its result
  local trs
  echo "== slowest programs of $1"
  while read -r trs; do
    echo "$(($(stat -c %Y "$trs") - $(stat -c %W "${trs%.trs}.log"))) s  ${trs%.trs}"
  done < <(find "$1" -name '*.trs') | sort -rn | head -n 20
}
run_tests() { # DIRECTORY MAKE_ARGUMENT...: adds the results of `make check`
  local dir=$1 trs result made before=$failed
  shift
  find "$dir" -name '*.trs' -exec sh -c 'for trs; do rm -f "$trs" "${trs%.trs}.log"; done' sh {} +
  make -C "$dir" --quiet -j"$tests_at_once" -k check "$@"
  made=$?
  [ -n "$(find "$dir" -name '*.trs' -print -quit)" ] || { failed=$((failed + 1)); return; }
  while read -r trs; do
    result=$(result_of "$trs")
    case $result in
      PASS) passed=$((passed + 1)) ;;
      SKIP)
        skipped=$((skipped + 1))
        echo "SKIP: $trs: $(tail -n 1 "${trs%.trs}.log")"
        ;;
      *)
        failed=$((failed + 1))
        show_failure "$trs" 80
        ;;
    esac
  done < <(find "$dir" -name '*.trs' | sort)
  slowest "$dir"
  # whatever else made it fail is a failure too
  [ "$made" = 0 ] || [ "$failed" -gt "$before" ] || failed=$((failed + 1))
}

# shellcheck disable=SC2317 # called through step
build_fuzzers() ( # with clang, whatever compiler the other builds use
  unset CC CXX
  configure_tree build-fuzz --enable-fuzzers &&
    make -C build-fuzz --quiet -j"$(nproc)" fuzz-build
)
fuzz() { # counts every target; needs clang, which may be missing on another system
  local result before=$((passed + failed))
  if ! command -v clang >/dev/null; then
    echo "SKIP: fuzzing: clang was not found: apt-get install clang libclang-rt-14-dev"
    skipped=$((skipped + 1))
    return
  fi
  step "build of the fuzz targets" build_fuzzers
  while read -r result; do
    printf '%s\n' "$result"
    case $result in
      PASS:*) passed=$((passed + 1)) ;;
      FAIL:*) failed=$((failed + 1)) ;;
    esac
  done < <(make -C build-fuzz --quiet --no-print-directory fuzz \
    FUZZ_SECONDS="${FSDPD_FUZZ_SECONDS:-10}" 2>&1)
  [ $((passed + failed)) -gt $((before + 1)) ] || failed=$((failed + 1))
}

# check-package.sh waits for apt, a boot and jobs: something else is built meanwhile.
packages_begin() {
  scripts/check-package.sh >build/check-package.log 2>&1 &
  beside=$!
}
packages_end() { # adds what check-package.sh counts
  local ok bad missing log=build/check-package.log
  wait "$beside"
  beside=''
  echo "== Debian packages"
  cat "$log"
  read -r ok _ bad _ missing _ < <(tail -n 1 "$log" | grep '^[0-9]* passed, ' || echo 0 passed, 1 failed, 0 skipped)
  passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + missing))
}

# Builds and tests the tarball from read-only sources; its directory stays if a test fails there. How small the tarball
# is does not matter.
release_tarball() {
  local trs log=build/distcheck.log before=$failed
  step "configure" configure_tree build --enable-werror
  python_end
  XZ_OPT=-1 make -C build --quiet -j"$tests_at_once" distcheck DISTCHECK_CONFIGURE_FLAGS=--enable-werror \
    CHECK_RACES=yes 2>&1 | tee "$log"
  local made=${PIPESTATUS[0]}
  # the summary of `make check`; missing if make failed earlier
  passed=$((passed + $(sed -n 's/^# PASS: *//p' "$log" | tail -n 1 | grep . || echo 0)))
  skipped=$((skipped + $(sed -n 's/^# SKIP: *//p' "$log" | tail -n 1 | grep . || echo 0)))
  while read -r trs; do
    case $(result_of "$trs") in
      PASS | SKIP) ;;
      *)
        failed=$((failed + 1))
        show_failure "$trs" 80
        ;;
    esac
  done < <(find build/fsdpd-*/_build -name '*.trs' 2>/dev/null | sort)
  echo "== CUDA kernels under ThreadSanitizer"
  if grep '^no races in [0-9]* tests' "$log"; then
    passed=$((passed + 1))
  else
    echo "FAIL: tests/check_races.sh"
    failed=$((failed + 1))
  fi
  # whatever else made it fail is a failure too
  [ "$made" = 0 ] || [ "$failed" -gt "$before" ] || failed=$((failed + 1))
}

# A network may be slow: something is configured or built meanwhile.
python_begin() {
  [ "$install" = yes ] || { need_python no build && return; }
  (need_python yes build) &
  python=$!
}
python_end() { # exports FSDPD_PYTHON
  [ -z "$python" ] || wait "$python" || exit 1
  need_python no build
}

export PYTHONDONTWRITEBYTECODE=1
# shellcheck disable=SC2086
(need_packages "$install" $CHECK_PACKAGES)
lacking=$?
[ "$lacking" = 0 ] || [ "$install" = no ] || exit 1
# shellcheck disable=SC2086
want_packages "$install" $WANTED_PACKAGES
python_begin
# shellcheck disable=SC2086
[ "$all" = no ] || want_packages "$install" $PACKAGE_PACKAGES
[ "$lacking" = 0 ] || exit 1
# Tests expect data beside the sources; the tarball's sources are elsewhere.
for data in FSDPD_MNIST=mnist FSDPD_SHAKESPEARE=text/tinyshakespeare.txt; do
  name=${data%%=*} path=$PWD/../shared/data/${data#*=}
  [ -n "${!name:-}" ] || [ ! -e "$path" ] || export "$name=$path"
done

if [ "$all" = no ]; then
  step "build" build_tree build --enable-werror
  python_end
  echo "== tests"
  run_tests build
  finish
fi

echo "== release tarball and its tests"
release_tarball

# The CUDA device's tests on the stub runtime take much longer than all others together.
# Other optimizations warn of other things: the release is what has no warnings.
sanitizer_options=(--enable-sanitizers)
[ -z "${FSDPD_SANITIZE_CUDA:-}" ] || sanitizer_options+=(--with-cuda)
packages_begin
step "build with sanitizers" build_tree build-sanitizers "${sanitizer_options[@]}"
packages_end
echo "== unit and engine tests with sanitizers"
run_tests build-sanitizers \
  TESTS="$(make -C build-sanitizers --silent --no-print-directory print-sanitizer-tests)"

echo "== fuzzing"
fuzz
finish
