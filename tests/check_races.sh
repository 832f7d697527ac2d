#!/bin/sh
# Runs every CUDA kernel of ours under ThreadSanitizer, each CUDA thread a fiber of it (tests/emulation/emulation.h):
# no race may be reported, and races that are planted must be. `make check-races` builds the program and runs this.
program=${builddir:-.}/tests/unit/test_cuda_races
log=${builddir:-.}/tests/unit/test_cuda_races.log
if [ ! -x "$program" ]; then
  echo "SKIP: $program was not built"
  exit 77
fi
export CK_FORK=no TSAN_OPTIONS='halt_on_error=1 exitcode=66'
# ThreadSanitizer may not start where addresses are random.
fixed='setarch -R'
$fixed true 2>/dev/null || fixed=
export fixed
run() { $fixed "$program" "$@" >"$log" 2>&1; }
for clean in 0 2; do
  run planted $clean || { cat "$log"; echo "a kernel without a race: exit status $?"; exit 1; }
done
for planted in 1 3; do
  run planted $planted
  [ $? = 66 ] && grep -q 'data race' "$log" && continue
  cat "$log"
  echo "planted race $planted was not found"
  exit 1
done
# The tests on all processors.
"$program" --list | cut -d ' ' -f 1 | sort -u >"$log.tests"
# shellcheck disable=SC2016 # the inner shell expands it
xargs -P "$(nproc)" -n 4 sh -c '
  $fixed "$0" "$@" >"$0.$1.log" 2>&1 ||
    { echo "$*:"; tail -n 60 "$0.$1.log"; exit 1; }
  rm "$0.$1.log"' "$program" <"$log.tests" || exit 1
echo "no races in $(wc -l <"$log.tests") tests; the planted ones were found"
