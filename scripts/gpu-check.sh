#!/usr/bin/env bash
# What is to be seen on a host with an NVIDIA GPU, in at most 8 minutes: what there is, every op and
# gradient against the CPU reference, and a job through the daemon. Run it in a build directory, or from
# what `make bundle` made. Ends with a table, and writes gpu-check.json and gpu-check.md to the current
# directory: what was seen is to be committed to docs/gpu-results.md, nothing else is.
#
#   gpu-check.sh [--build DIR] [--device N]
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build='' device=0
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=${2:?--build needs a directory} && shift 2 ;;
    --device) device=${2:?--device needs a number} && shift 2 ;;
    *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
  esac
done
if [ -z "$build" ] && [ -x "$here/../bin/fsdpd" ]; then
  bin=$here/../bin tests=$here/../libexec examples=$here/../examples # a bundle
  run() { "$here/../bin/with-libraries" "$@"; }
else
  build=$(cd "${build:-.}" && pwd)
  bin=$build tests=$build/tests/gpu examples=$here/../examples
  export FSDPD_BACKEND_DIR=$build
  run() { "$@"; }
fi
[ -x "$bin/fsdpd" ] || { echo "gpu-check: no fsdpd in $bin; say --build DIR" >&2; exit 2; }
export FSDPD_CONFIG=

work=$(mktemp -d "${TMPDIR:-/tmp}/fsdpd-gpu-check.XXXXXX") daemon='' workers=()
# shellcheck disable=SC2317 # called by the trap
stop() {
  stop_workers
  [ -z "$daemon" ] || kill "$daemon" 2>/dev/null
  [ -z "$daemon" ] || wait "$daemon"
  rm -rf "$work"
}
trap stop EXIT
started=$SECONDS
rows=()
row() { # WHAT RESULT SECONDS NOTE: a line of the table
  rows+=("$1	$2	$3	$4")
  printf '%-44s %-8s %4s s  %s\n' "$1" "$2" "$3" "$4"
}
# shellcheck disable=SC1003
last_line() { tail -n 1 "$1" | tr -d '\t"\\' | cut -c1-160; }
check() { # WHAT SECONDS COMMAND...
  local what=$1 limit=$2 begin=$SECONDS log=$work/log
  shift 2
  if [ $((SECONDS - started)) -gt 450 ]; then
    row "$what" "not run" 0 "no time left"
    return 1
  fi
  timeout "$limit" "$@" >"$log" 2>&1
  case $? in
    0) row "$what" passed $((SECONDS - begin)) "$(last_line "$log")" ;;
    124) row "$what" FAILED $((SECONDS - begin)) "not done within $limit s" && return 1 ;;
    *)
      row "$what" FAILED $((SECONDS - begin)) "$(last_line "$log")"
      tail -n 20 "$log" >&2
      return 1
      ;;
  esac
}

"$bin/fsdpd" devices | tee "$work/devices"
"$bin/fsdpd" devices -o json >"$work/devices.json"
if ! grep -q "^cuda:$device " "$work/devices"; then
  echo "SKIP: there is no cuda:$device here"
  exit 77
fi

for name in kernels kernels_sequence kernels_attention kernels_bfloat16 attention; do
  check "ops against the reference: $name" 120 run "$tests/gpu_$name"
done
# ---- jobs through the daemon ----

serve() {
  "$bin/fsdpd-digits" --seed 1 --train 20000 --test 2000 -o "$work/digits" || return 1
  "$bin/fsdpd" coordinator --runtime-dir "$work/run" --state-dir "$work/state" \
    --data-root "$work" >"$work/daemon.log" 2>&1 &
  daemon=$!
  export FSDPD_ADDRESS=unix:$work/run/fsdpd.sock
  until_true 20 "$bin/fsdpctl" status
}
until_true() { # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.1
  done
}
start_worker() { # DEVICE FLAG...
  "$bin/fsdpd" worker --device "$1" --coordinator "$FSDPD_ADDRESS" --data-root "$work" "${@:2}" \
    >>"$work/worker.log" 2>&1 &
  workers+=($!)
}
stop_workers() {
  [ ${#workers[@]} -gt 0 ] || return 0
  kill "${workers[@]}" 2>/dev/null
  wait "${workers[@]}" 2>/dev/null
  workers=()
}
is() { "$bin/fsdpctl" list | grep "$1" | grep -q "$2"; } # JOB WORDS
attached() { [ "$("$bin/fsdpctl" workers -o json | grep -c '"pid"')" = "$1" ]; }
mnist() { # DEVICE WORKERS: trains, and leaves the accuracy in $work/accuracy
  local name=mnist-$1-$2
  timeout 150 "$bin/fsdpctl" submit "$examples/mnist/job.yaml" --set data.dir="$work/digits" \
    --set name="$name" --set train.epochs=3 --set workers="$2" --set device="$1" --wait || return 1
  "$bin/fsdpctl" pull "$name-1" -o "$work/$name.safetensors" && [ -s "$work/$name.safetensors" ] || return 1
  "$bin/fsdpctl" watch "$name-1" | sed -n 's/.*Accuracy: .*(\([0-9.]*\)%).*/\1/p' | tail -n 1 >"$work/accuracy"
  [ -s "$work/accuracy" ]
}
# The same job on the device and on CPU workers: of the same accuracy, within a point.
as_on_the_cpu() { # WORKERS FLAG...: of the device's workers
  local count=$1 cpu gpu i
  shift
  for ((i = 0; i < count; i++)); do start_worker "cuda:$device" "$@"; done
  for ((i = 0; i < count; i++)); do start_worker cpu --id "here/cpu:$i" --threads 4; done
  until_true 60 attached $((2 * count)) || return 1
  mnist cuda "$count" || return 1
  gpu=$(cat "$work/accuracy")
  mnist cpu "$count" || return 1
  cpu=$(cat "$work/accuracy")
  stop_workers
  echo "accuracy $gpu %, on CPU workers $cpu %"
  awk -v a="$gpu" -v b="$cpu" 'BEGIN { exit !(a >= b - 1 && a > 50) }'
}
# One of two that share the device dies in the middle of a job: the job's reason names its rank, and the
# next job runs on the other one and on one that takes its place.
one_is_killed() {
  local i
  for i in 1 2; do start_worker "cuda:$device" --share-device; done
  until_true 60 attached 2 || return 1
  "$bin/fsdpctl" submit "$examples/mnist/job.yaml" --set data.dir="$work/digits" --set name=killed \
    --set train.epochs=1000 --set retry.machine_failures=0 --set workers=2 --set device=cuda || return 1
  until_true 60 is killed-1 RUNNING || return 1
  sleep 2 # somewhere in its steps
  kill -9 "${workers[1]}"
  wait "${workers[1]}" 2>/dev/null
  until_true 60 is killed-1 FAILED || return 1
  is killed-1 'rank [01]' || return 1
  start_worker "cuda:$device" --share-device
  until_true 60 attached 2 && timeout 120 "$bin/fsdpctl" submit "$examples/mnist/job.yaml" \
    --set data.dir="$work/digits" --set name=next --set train.epochs=1 --set workers=2 --set device=cuda --wait &&
    "$bin/fsdpctl" list | grep killed-1
}
# The same job with and without graphs: the weights' bits, and that each worker did what it says.
trained() { # NAME
  timeout 120 "$bin/fsdpctl" submit "$examples/mnist/job.yaml" --set data.dir="$work/digits" --set name="$1" \
    --set train.epochs=1 --set workers=1 --set device=cuda --wait || return 1
  "$bin/fsdpctl" pull "$1-1" -o "$work/$1.safetensors" && [ -s "$work/$1.safetensors" ]
}
plain_runs() { grep -c steps_not_recorded "$work/worker.log"; }
captured_and_not() {
  local before plain
  before=$(plain_runs)
  start_worker "cuda:$device"
  until_true 60 attached 1 && trained captured || return 1
  stop_workers
  plain=$(plain_runs)
  if [ "$plain" != "$before" ]; then
    grep steps_not_recorded "$work/worker.log" | tail -n 1
    return 1
  fi
  FSDPD_CUDA_GRAPHS=off start_worker "cuda:$device"
  until_true 60 attached 1 && trained plain || return 1
  [ "$(plain_runs)" -gt "$before" ] || { echo "FSDPD_CUDA_GRAPHS=off was not noticed"; return 1; }
  cmp "$work/captured.safetensors" "$work/plain.safetensors" && echo "the same weights, to the bit"
}
point() { # WHAT COMMAND...: of this script
  local what=$1 begin=$SECONDS
  shift
  if [ $((SECONDS - started)) -gt 420 ]; then
    row "$what" "not run" 0 "no time left"
  elif "$@" >"$work/log" 2>&1; then
    row "$what" passed $((SECONDS - begin)) "$(last_line "$work/log")"
  else
    row "$what" FAILED $((SECONDS - begin)) "$(last_line "$work/log")"
    tail -n 30 "$work/log" "$work/worker.log" >&2
  fi
  stop_workers
}
if serve >"$work/log" 2>&1; then
  point "MNIST through the daemon" as_on_the_cpu 1
  point "steps captured as graphs, and not" captured_and_not
  point "MNIST, two workers sharing the device" as_on_the_cpu 2 --share-device
  point "a worker killed in the middle of a job" one_is_killed
else
  row "the daemon" FAILED 0 "$(last_line "$work/log")"
fi
if command -v compute-sanitizer >/dev/null; then
  # many times slower: what limits a test is multiplied, and the last of them may find no time left
  for name in kernels_sequence kernels_attention kernels_bfloat16 kernels attention; do
    CK_TIMEOUT_MULTIPLIER=20 check "compute-sanitizer: $name" 90 run compute-sanitizer \
      --error-exitcode 9 --target-processes all "$tests/gpu_$name"
  done
else
  row "compute-sanitizer" "not run" 0 "it is not installed"
fi
for what in "GPT-2 124M against PyTorch" "speed and MFU against torch.compile" \
  "offload"; do
  row "$what" "not run" 0 "this script does not have it yet"
done

{
  printf '{"devices": %s, "seconds": %d, "checks": [' "$(cat "$work/devices.json")" $((SECONDS - started))
  separator=
  for line in "${rows[@]}"; do
    IFS=$'\t' read -r what result seconds note <<<"$line"
    printf '%s\n  {"check": "%s", "result": "%s", "seconds": %s, "note": "%s"}' "$separator" "$what" "$result" \
      "$seconds" "$note"
    separator=,
  done
  printf '\n]}\n'
} >gpu-check.json
{
  sed 's/^/    /' "$work/devices"
  printf '\n| check | result | seconds | |\n| --- | --- | --- | --- |\n'
  for line in "${rows[@]}"; do
    IFS=$'\t' read -r what result seconds note <<<"$line"
    printf '| %s | %s | %s | %s |\n' "$what" "$result" "$seconds" "$note"
  done
} >gpu-check.md
! printf '%s\n' "${rows[@]}" | grep -q "	FAILED	"
