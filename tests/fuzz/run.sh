#!/usr/bin/env bash
# Runs fuzz targets, as many at a time as there are processors; one line each: PASS, or FAIL with the
# input that shows it. What is found stays in BUILD_DIRECTORY/found/NAME.
#
# usage: run.sh SOURCE_DIRECTORY BUILD_DIRECTORY SECONDS NAME...
set -u
source=$1 build=$2 seconds=$3
shift 3

fuzz() { # NAME
  local name=$1 found=$build/found/$1 arguments=()
  mkdir -p "$found/corpus" || return 1
  [ -f "$source/dict/$name" ] && arguments+=("-dict=$source/dict/$name")
  # One input may take 20 seconds of a clock, which on a busy machine are less than a second of a
  # processor, and 1 GiB; leaks are findings too.
  if "$build/fuzz_$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=1024 -max_len=16384 \
    -print_final_stats=1 -artifact_prefix="$found/" "${arguments[@]}" \
    "$found/corpus" "$source/corpus/$name" >"$found/log" 2>&1; then
    echo "PASS: fuzz_$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$found/log") inputs"
    return 0
  fi
  tail -n 60 "$found/log"
  echo "FAIL: fuzz_$name: $(sed -n 's/.*Test unit written to //p' "$found/log" | tail -n 1)"
  return 1
}

status=0 running=0
for name in "$@"; do
  if [ "$running" -ge "$(nproc)" ]; then
    wait -n || status=1
    running=$((running - 1))
  fi
  # in one piece, whatever runs beside it
  (
    output=$(fuzz "$name")
    result=$?
    printf '%s\n' "$output"
    exit $result
  ) &
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
  wait -n || status=1
  running=$((running - 1))
done
exit $status
