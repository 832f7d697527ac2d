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

work=$(mktemp -d "${TMPDIR:-/tmp}/fsdpd-gpu-check.XXXXXX") daemon='' worker=''
# shellcheck disable=SC2317 # called by the trap
stop() {
  [ -z "$worker" ] || kill "$worker" 2>/dev/null
  [ -z "$daemon" ] || kill "$daemon" 2>/dev/null
  [ -z "$worker$daemon" ] || wait
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

for name in kernels kernels_sequence kernels_attention kernels_bfloat16; do
  check "ops against the reference: $name" 120 run "$tests/gpu_$name"
done
job() {
  "$bin/fsdpd-digits" --seed 1 --train 20000 --test 2000 -o "$work/digits" || return 1
  "$bin/fsdpd" coordinator --runtime-dir "$work/run" --state-dir "$work/state" \
    --data-root "$work" >"$work/daemon.log" 2>&1 &
  daemon=$!
  export FSDPD_ADDRESS=unix:$work/run/fsdpd.sock
  for _ in $(seq 100); do
    "$bin/fsdpctl" status >/dev/null 2>&1 && break
    sleep 0.1
  done
  "$bin/fsdpd" worker --device "cuda:$device" --coordinator "$FSDPD_ADDRESS" --data-root "$work" \
    >"$work/worker.log" 2>&1 &
  worker=$!
  timeout 180 "$bin/fsdpctl" submit "$examples/mnist/job.yaml" --set data.dir="$work/digits" \
    --set train.epochs=3 --set workers=1 --wait || { tail -n 20 "$work/worker.log"; return 1; }
  "$bin/fsdpctl" pull mnist-1 -o "$work/weights.safetensors" || return 1
  [ -s "$work/weights.safetensors" ]
}
begin=$SECONDS
if job >"$work/log" 2>&1; then
  grep -i accuracy "$work/log" >"$work/accuracy"
  row "the MNIST network through the daemon" passed $((SECONDS - begin)) "$(last_line "$work/accuracy")"
else
  row "the MNIST network through the daemon" FAILED $((SECONDS - begin)) "$(last_line "$work/log")"
  tail -n 30 "$work/log" >&2
fi
if command -v compute-sanitizer >/dev/null; then
  # many times slower: what limits a test is multiplied, and the last of them may find no time left
  for name in kernels_sequence kernels_attention kernels_bfloat16 kernels; do
    CK_TIMEOUT_MULTIPLIER=20 check "compute-sanitizer: $name" 90 run compute-sanitizer \
      --error-exitcode 9 --target-processes all "$tests/gpu_$name"
  done
else
  row "compute-sanitizer" "not run" 0 "it is not installed"
fi
for what in "GPT-2 124M against PyTorch" "speed and MFU against torch.compile" \
  "steps captured as graphs" "offload" "a worker killed in the middle of a step"; do
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
