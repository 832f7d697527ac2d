#!/usr/bin/env bash
# Runs test programs again and again on two cores that busy loops share, to find those that depend on how
# fast the machine is. Prints a table, which is also table.md of the output directory, with the log of
# every failure beside it. Interrupted, it continues where it was: results.tsv has a row per run.
#
#   scripts/flakes.sh [OPTION...] [PROGRAM...]     such as tests/unit/test_rpc or tests/system/test_queue.py
#
# Without programs: every program with a wait or a bound, by the words of `waits_or_bounds` below.
#
#   --all          every program of `make check`
#   --list         prints the programs, and runs nothing
#   --runs N       runs of each program, 20 by default, in rounds over all programs
#   --load N       busy loops beside them, 3 by default
#   --nice         runs the programs at nice 19
#   --build DIR    the build directory, build by default; nothing else may run tests there
#   --out DIR      the output directory, flakes of the build directory by default
#   --limit S      seconds that one run may take, 3600 by default; then it has failed
#
# Runs with other settings of --load and --nice are other rows of the table.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/common.sh

# What waits for something, and what compares numbers with a bound.
waits_or_bounds='import harness|wait|sleep|timeout|deadline|monotonic|clock_|PATIENCE|assertLess|assertAlmostEqual|[^a-z]delta=|[0-9]e-[0-9]|fabs'

runs=20 load=3 nice=no build=build out='' limit=3600 list=no all=no
programs=()
while [ $# -gt 0 ]; do
  case $1 in
    --runs | --load | --build | --out | --limit)
      [ $# -gt 1 ] || die "$1 needs a value"
      declare "${1#--}=$2"
      shift
      ;;
    --nice) nice=yes ;;
    --list) list=yes ;;
    --all) all=yes ;;
    -*) say "usage: $(sed -n '5p' "$0" | sed 's/^# *//')" && exit 2 ;;
    *) programs+=("$1") ;;
  esac
  shift
done
for number in "$runs" "$load" "$limit"; do
  [[ $number =~ ^[0-9]+$ ]] || die "not a number: $number"
done
[ -f "$build/Makefile" ] || die "$build is not a build directory: scripts/check.sh makes one"
out=${out:-$build/flakes}

source_of() { # PROGRAM: some test_cuda_ are the sources of others, built for CUDA
  local name=${1/test_cuda_ops/test_kernels} path
  for path in "$1" "$1.c" "$name.c" "${name/test_cuda_/test_}.c"; do
    [ ! -f "$path" ] || { printf '%s\n' "$path" && return; }
  done
  return 1
}
if [ ${#programs[@]} = 0 ]; then
  read -ra programs < <(make -C "$build" --silent --no-print-directory print-tests)
  [ ${#programs[@]} -gt 0 ] || die "make print-tests names no tests"
  if [ "$all" = no ]; then
    found=()
    for program in "${programs[@]}"; do
      path=$(source_of "$program") || die "no source of $program"
      ! grep -qE "$waits_or_bounds" "$path" || found+=("$program")
    done
    programs=("${found[@]}")
  fi
fi
for program in "${programs[@]}"; do
  source_of "$program" >/dev/null || die "no such test: $program"
done
[ "$list" = no ] || { printf '%s\n' "${programs[@]}" && exit; }

mkdir -p "$out" || exit 1
results=$out/results.tsv # program, load, result, seconds, commit
way="$load loops" prefix=()
[ "$nice" = no ] || { way="$way, nice 19" && prefix=(nice -n 19); }
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
touch "$results"

started=() # the loops, and the run
end_all() {
  [ ${#started[@]} = 0 ] || kill "${started[@]}" 2>/dev/null
  started=()
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
busy() { # PID: as long as that process is there
  local i
  trap - EXIT INT TERM HUP
  while kill -0 "$1" 2>/dev/null; do
    for ((i = 0; i < 100000; i++)); do :; done
  done
}

table() {
  echo "| program | load | runs | failures | skipped | longest |"
  echo "| --- | --- | --- | --- | --- | --- |"
  sort "$results" | awk -F '\t' '
    { key = $1 " | " $2; if (!(key in runs)) order[++count] = key
      runs[key]++; failures[key] += $3 == "FAIL"; skips[key] += $3 == "SKIP"
      if ($4 > longest[key]) longest[key] = $4 }
    END { for (i = 1; i <= count; i++) { key = order[i]
      printf "| %s | %d | %d | %d | %d s |\n", key, runs[key], failures[key], skips[key], longest[key] } }'
}

runs_of() { # PROGRAM
  awk -F '\t' -v program="$1" -v way="$way" '$1 == program && $2 == way { n++ } END { print n + 0 }' "$results"
}
run() { # PROGRAM: one run, and its row
  local base=$build/${1%.*} began=$SECONDS result log
  rm -f "$base.trs" "$base.log"
  timeout --kill-after=60 "$limit" "${prefix[@]}" make -C "$build" --quiet check-TESTS TESTS="$1" >"$out/make.log" 2>&1 &
  started[load]=$!
  wait $! # which a signal to this script ends
  unset 'started[load]'
  result=$(sed -n 's/^:test-result: \([A-Z]*\).*/\1/p' "$base.trs" 2>/dev/null)
  case $result in
    PASS | SKIP) ;;
    *)
      result=FAIL
      log=$out/$(printf '%s' "$1" | tr / _).$(($(runs_of "$1") + 1)).$(date +%s).log
      cat "$base.log" "$out/make.log" >"$log" 2>/dev/null
      ;;
  esac
  printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$way" "$result" $((SECONDS - began)) "$commit" >>"$results"
  echo "$result $1, $((SECONDS - began)) s${log:+: $log}"
}

make -C "$build" --quiet -j"$(nproc)" check TESTS= >"$out/build.log" 2>&1 || die "the tests do not build: $out/build.log"
# Tests expect data beside the sources, as scripts/check.sh does.
for data in FSDPD_MNIST=mnist FSDPD_SHAKESPEARE=text/tinyshakespeare.txt; do
  name=${data%%=*} path=$PWD/../shared/data/${data#*=}
  [ -n "${!name:-}" ] || [ ! -e "$path" ] || export "$name=$path"
done
two=$(taskset -cp $$ | sed 's/.*: //' | tr , '\n' | awk -F - '{ for (i = $1; i <= (NF > 1 ? $2 : $1); i++) print i }' |
  head -n 2 | paste -sd ,)
taskset -cp "$two" $$ >/dev/null || exit 1
for ((i = 0; i < load; i++)); do
  busy $$ &
  started+=($!)
done
for ((round = 1; round <= runs; round++)); do
  for program in "${programs[@]}"; do
    [ "$(runs_of "$program")" -ge "$round" ] || run "$program"
  done
done
end_all
table | tee "$out/table.md"
! cut -f 3 "$results" | grep -qx FAIL
