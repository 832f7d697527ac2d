#!/usr/bin/env bash
# Checks fsdpd on a host with an NVIDIA GPU, in at most 8 minutes: every op and gradient against the CPU
# reference, jobs through the daemon, GPT-2 against PyTorch. Run it in a build directory, or from the bundle
# of `make bundle`. Each check has a time limit; a check without time or without a device is reported as such.
# After every check it writes gpu-check.md and gpu-check.json, so that being cut off loses nothing: what was
# seen is to be committed to docs/gpu-results.md, nothing else is. Exits with 1 if a check failed, 77 if
# there is no such device.
#
#   gpu-check.sh [--build DIR] [--device N] [--seconds N] [--out DIR] [--only REGEX]
set -uo pipefail
usage() { sed -n '/^# What/,/^#   gpu-check/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
build='' device=0 seconds=470 out=. only=
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case $1 in
    --build) build=$2 ;;
    --device) device=$2 ;;
    --seconds) seconds=$2 ;;
    --out) out=$2 ;;
    --only) only=$2 ;;
    *) usage ;;
  esac
  shift 2
done
case $device$seconds in *[!0-9]*) usage ;; esac
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
if [ -z "$build" ] && [ -x "$here/../bin/fsdpd" ]; then
  root=$(cd "$here/.." && pwd) # a bundle
  bin=$root/bin tests=$root/libexec examples=$root/examples
  run() { "$bin/with-libraries" "$@"; }
else
  build=$(cd "${build:-.}" && pwd) || exit 2
  bin=$build tests=$build/tests/gpu examples=$here/../examples
  export FSDPD_BACKEND_DIR=${FSDPD_BACKEND_DIR:-$build}
  run() { "$@"; }
fi
[ -x "$bin/fsdpd" ] || { echo "gpu-check: no fsdpd in $bin; say --build DIR" >&2; exit 2; }
export FSDPD_CONFIG=
started=$SECONDS

# ---- the table ----

# The checks, in the order of docs/gpu-results.md: name, limit in seconds, function and arguments.
kernels='kernels kernels_sequence kernels_attention kernels_bfloat16 attention'
checks=()
for name in $kernels; do checks+=("ops against the reference: $name|90|ops $name"); done
checks+=(
  'ops against the reference, tf32: kernels|60|ops kernels 1'
  'MNIST, 10 epochs, NCCL at world 1|80|as_on_the_cpu 1'
  'GPT-2 124M, losses of 50 steps, f32|100|gpt2_losses f32 1e-3'
  'GPT-2 124M, losses of 50 steps, bf16|80|gpt2_losses bf16 2e-2'
  'GPT-2 124M, bf16, batch 16: speed|110|gpt2_speed 16'
  'GPT-2 124M, bf16, batch 64: speed|110|gpt2_speed 64'
  "the plan's memory against the device's|60|memory_as_planned"
  'attention by cuDNN against our own|80|attention_both'
  'GELU in products by cuBLASLt against our own|80|gelu_both'
  'steps captured as graphs, and not|60|captured_and_not'
  'MNIST, 10 epochs, two workers sharing the device|90|as_on_the_cpu 2 --share-device'
  'a worker killed in the middle of a job|90|one_is_killed'
  'offload of a model larger than a limit of the device|60|offloaded'
  'GPT-2 124M, bf16: where the time of a step goes|60|gpt2_times'
  'GPT-2 124M, bf16, batch 32: speed|110|gpt2_speed 32'
)
for name in $kernels; do checks+=("compute-sanitizer: $name|90|sanitized $name"); done
results=() notes=() times=()
for i in "${!checks[@]}"; do results[i]='not run' notes[i]='cut off before it' times[i]=0; done

field() { # NUMBER FIELD
  local parts
  IFS='|' read -r -a parts <<<"${checks[$1]}"
  printf '%s' "${parts[$2 - 1]-}"
}
plain() { tr -c '[:print:]' ' ' | tr -d '\\"|' | sed 's/  *$//' | cut -c1-400; }
in_short() { # FILE: its last line with content
  grep -v '^[[:space:]]*$' "$1" | tail -n 1 | plain
}
save() {
  local i separator=
  {
    printf '{"devices": %s, "seconds": %d, "checks": [' "$(cat "$work/devices.json")" $((SECONDS - started))
    for i in "${!checks[@]}"; do
      printf '%s\n  {"check": "%s", "result": "%s", "seconds": %s, "note": "%s"}' "$separator" \
        "$(field "$i" 1)" "${results[i]}" "${times[i]}" "${notes[i]}"
      separator=,
    done
    printf '\n]}\n'
  } >"$out/gpu-check.json.new" && mv "$out/gpu-check.json.new" "$out/gpu-check.json"
  {
    sed 's/^/    /' "$work/devices"
    printf '\n| check | result | seconds | |\n| --- | --- | --- | --- |\n'
    for i in "${!checks[@]}"; do
      printf '| %s | %s | %s | %s |\n' "$(field "$i" 1)" "${results[i]}" "${times[i]}" "${notes[i]}"
    done
  } >"$out/gpu-check.md.new" && mv "$out/gpu-check.md.new" "$out/gpu-check.md"
}
note() { # NUMBER RESULT SECONDS NOTE: a row of the table
  results[$1]=$2 times[$1]=$3 notes[$1]=$4
  printf '%-48s %-8s %4s s  %s\n' "$(field "$1" 1)" "$2" "$3" "$4"
  save
}
all_not_run() { # WHY
  local i
  for i in "${!checks[@]}"; do note "$i" 'not run' 0 "$1" >/dev/null; done
  sed -n '/^| /p' "$out/gpu-check.md"
}

# ---- one check at a time, in its own process group, which is killed at the limit ----

work=$(mktemp -d "${TMPDIR:-/tmp}/fsdpd-gpu-check.XXXXXX") daemon='' group=''
end_group() {
  local i
  [ -n "$group" ] || return 0
  kill -TERM -- "-$group" 2>/dev/null
  for ((i = 0; i < 50; i++)); do
    kill -0 -- "-$group" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL -- "-$group" 2>/dev/null
  wait "$group" 2>/dev/null
  group=
}
# shellcheck disable=SC2317 # called by the trap
stop() {
  end_group
  if [ -n "$daemon" ]; then
    kill "$daemon" 2>/dev/null
    wait "$daemon" 2>/dev/null
  fi
  [ ! -e "$work/devices.json" ] || save
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 143' TERM
trap 'exit 130' INT HUP

# Exit status of a check whose requirements the host lacks, besides 0 and errors.
LACKS=77
check() { # NUMBER
  local what limit command begin=$SECONDS left log=$work/log code
  what=$(field "$1" 1) limit=$(field "$1" 2) command=$(field "$1" 3)
  if [ -n "$only" ] && ! grep -Eq -- "$only" <<<"$what"; then
    note "$1" 'not run' 0 'not asked for'
    return
  fi
  if [ -z "$command" ]; then
    note "$1" 'not run' 0 'this script does not have it yet'
    return
  fi
  left=$((seconds - (SECONDS - started)))
  if [ "$left" -lt 10 ]; then
    note "$1" 'not run' 0 "no time left of $seconds s"
    return
  fi
  [ "$limit" -lt "$left" ] || limit=$left
  : >"$log"
  notes[$1]='cut off before its end'
  save
  set -m # a process group for it and its children
  # shellcheck disable=SC2086 # a function and its arguments
  (set +m && trap stop_workers EXIT && trap 'exit 143' TERM && $command) >"$log" 2>&1 </dev/null &
  group=$!
  set +m
  while kill -0 "$group" 2>/dev/null && [ $((SECONDS - begin)) -lt "$limit" ]; do sleep 0.2; done
  if kill -0 "$group" 2>/dev/null; then
    end_group
    note "$1" FAILED $((SECONDS - begin)) "not done within $limit s; at the end: $(in_short "$log")"
    tail -n 20 "$log" >&2
    return
  fi
  wait "$group"
  code=$?
  end_group
  case $code in
    0) note "$1" passed $((SECONDS - begin)) "$(in_short "$log")" ;;
    "$LACKS") note "$1" 'not run' $((SECONDS - begin)) "$(in_short "$log")" ;;
    *)
      note "$1" FAILED $((SECONDS - begin)) "$(in_short "$log")"
      tail -n 20 "$log" "$work/worker.log" >&2
      ;;
  esac
}

# ---- kernels ----

# Random inputs differ in every run; the seed reproduces them.
ops() { # NAME [TF32]
  local seed=$RANDOM$RANDOM code
  FSDPD_TEST_SEED=$seed FSDPD_CUDA_TF32=${2:-0} run "$tests/gpu_$1"
  code=$?
  echo "$(in_short "$work/log") (FSDPD_TEST_SEED=$seed)"
  return $code
}
sanitized() { # many times slower: multiplies the limits of tests
  local log=$work/sanitizer
  command -v compute-sanitizer >/dev/null || { echo 'compute-sanitizer is not installed'; return $LACKS; }
  CK_TIMEOUT_MULTIPLIER=20 run compute-sanitizer --error-exitcode 9 --target-processes all "$tests/gpu_$1" \
    >"$log" 2>&1
  local code=$?
  if grep -q 'Device not supported' "$log"; then
    echo 'compute-sanitizer does not support this device here'
    return $LACKS
  fi
  cat "$log"
  return "$code"
}

# ---- jobs through the daemon ----

serve() {
  timeout 60 "$bin/fsdpd-digits" --seed 1 --train 10000 --test 2000 -o "$work/digits" || return 1
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
    [ "$SECONDS" -lt "$end" ] || { echo "timed out waiting for: $*"; return 1; }
    sleep 0.1
  done
}
workers=()
start_worker() { # DEVICE FLAG...
  "$bin/fsdpd" worker --device "$1" --coordinator "$FSDPD_ADDRESS" --data-root "$work" "${@:2}" \
    >>"$work/worker.log" 2>&1 &
  workers+=($!)
}
# shellcheck disable=SC2317 # called by the trap, too
stop_workers() {
  [ ${#workers[@]} -gt 0 ] || return 0
  kill "${workers[@]}" 2>/dev/null
  wait "${workers[@]}" 2>/dev/null
  workers=()
  until_true 20 attached 0
}
is() { "$bin/fsdpctl" list | grep "$1" | grep -q "$2"; } # JOB WORDS
attached() { [ "$("$bin/fsdpctl" workers -o json | grep -c '"pid"')" = "$1" ]; }
submit() { # NAME SETTING...: to train the MNIST network
  local settings=() setting
  for setting in "name=$1" "data.dir=$work/digits" "${@:2}"; do settings+=(--set "$setting"); done
  "$bin/fsdpctl" submit "$examples/mnist/job.yaml" "${settings[@]}"
}
wait_for() { # JOB: waits until it has succeeded
  local code
  timeout 150 "$bin/fsdpctl" watch "$1" >"$work/watched"
  code=$?
  [ $code -eq 0 ] || tail -n 3 "$work/watched"
  return $code
}
pull() { # JOB
  "$bin/fsdpctl" pull "$1" -o "$work/$1.safetensors" && [ -s "$work/$1.safetensors" ]
}
mnist() { # DEVICE WORKERS: trains, leaves the accuracy in $work/accuracy, the time in $work/seconds
  local begin=$SECONDS
  submit "mnist-$1-$2" train.epochs=10 workers="$2" device="$1" && wait_for "mnist-$1-$2-1" || return 1
  echo $((SECONDS - begin)) >"$work/seconds"
  pull "mnist-$1-$2-1" || return 1
  sed -n 's/.*Accuracy: .*(\([0-9.]*\)%).*/\1/p' "$work/watched" | tail -n 1 >"$work/accuracy"
  [ -s "$work/accuracy" ]
}
# Runs the same job on the device and on CPU workers. The accuracy must be within a point of the CPU's,
# and both files must have the same tensors.
as_on_the_cpu() { # WORKERS FLAG...: of the device's workers
  local count=$1 cpu gpu seconds held i
  for ((i = 0; i < count; i++)); do start_worker "cuda:$device" "${@:2}"; done
  for ((i = 0; i < count; i++)); do start_worker cpu --id "here/cpu:$i" --threads 4; done
  until_true 60 attached $((2 * count)) && mnist cuda "$count" || return 1
  gpu=$(cat "$work/accuracy") seconds=$(cat "$work/seconds")
  mnist cpu "$count" || return 1
  cpu=$(cat "$work/accuracy")
  held=$(gpt2 tensors "$work/mnist-cuda-$count-1.safetensors" "$work/mnist-cpu-$count-1.safetensors") ||
    { echo "what was pulled: $held"; return 1; }
  echo "accuracy $gpu % after $seconds s, on CPU workers $cpu % after $(cat "$work/seconds") s; pulled: $held"
  awk -v a="$gpu" -v b="$cpu" 'BEGIN { exit !(a >= b - 1 && a > 50) }'
}
# Kills one of two workers that share the device in the middle of a job: the job's reason must name its
# rank, and the next job must run on the other worker and a replacement.
one_is_killed() {
  local i
  for i in 1 2; do start_worker "cuda:$device" --share-device; done
  until_true 60 attached 2 &&
    submit killed train.epochs=1000 retry.machine_failures=0 workers=2 device=cuda &&
    until_true 60 is killed-1 RUNNING || return 1
  sleep 2 # at any of its steps
  kill -9 "${workers[1]}"
  wait "${workers[1]}" 2>/dev/null
  until_true 60 is killed-1 FAILED && is killed-1 'rank [01]' || return 1
  start_worker "cuda:$device" --share-device
  until_true 60 attached 2 && submit next train.epochs=1 workers=2 device=cuda && wait_for next-1 &&
    "$bin/fsdpctl" list | grep killed-1
}
# Runs the same job with and without graphs: compares the weights bit by bit, and checks that each worker
# ran in its mode.
trained() { # NAME
  submit "$1" train.epochs=1 workers=1 device=cuda && wait_for "$1-1" && pull "$1-1"
}
plain_runs() { touch "$work/worker.log" && grep -c steps_not_recorded "$work/worker.log"; }
captured_and_not() {
  local before
  before=$(plain_runs)
  start_worker "cuda:$device"
  until_true 60 attached 1 && trained captured || return 1
  stop_workers
  if [ "$(plain_runs)" != "$before" ]; then
    grep steps_not_recorded "$work/worker.log" | tail -n 1
    return 1
  fi
  FSDPD_CUDA_GRAPHS=off start_worker "cuda:$device"
  until_true 60 attached 1 && trained plain || return 1
  [ "$(plain_runs)" -gt "$before" ] || { echo "FSDPD_CUDA_GRAPHS=off was not noticed"; return 1; }
  cmp "$work/captured-1.safetensors" "$work/plain-1.safetensors" && echo "the same weights, to the bit"
}

# Limits the device's memory to a value between a job's needs with and without offload: the job without
# it must be refused, the job with it must train to the same weights.
planned_bytes() { # SETTING...
  local settings=() setting
  for setting in data.dir="$work/digits" device=cuda workers=1 "$@"; do settings+=(--set "$setting"); done
  "$bin/fsdpctl" plan "$examples/mnist/job.yaml" "${settings[@]}" -o json |
    sed -n 's/^ *"peak_bytes": *"\{0,1\}\([0-9]*\).*/\1/p' | head -n 1
}
offloaded() {
  local whole less code
  start_worker "cuda:$device"
  until_true 60 attached 1 && trained whole && whole=$(planned_bytes) &&
    less=$(planned_bytes fsdp.cpu_offload=true) || return 1
  stop_workers
  FSDPD_CUDA_MEMORY=$(((whole + less) / 2)) start_worker "cuda:$device"
  until_true 60 attached 1 || return 1
  "$bin/fsdpctl" submit "$examples/mnist/job.yaml" --set data.dir="$work/digits" --set device=cuda \
    --set workers=1 >/dev/null 2>&1
  code=$?
  [ $code = 10 ] || { echo "a job that does not fit was not refused: $code"; return 1; }
  submit offloaded train.epochs=1 workers=1 device=cuda fsdp.cpu_offload=true &&
    wait_for offloaded-1 && pull offloaded-1 || return 1
  cmp "$work/whole-1.safetensors" "$work/offloaded-1.safetensors" &&
    echo "$whole bytes do not fit, $less do; the same weights, to the bit"
}

# ---- GPT-2 ----

python=${PYTHON:-python3}
# To try this script without a GPU, with a stub as the CUDA module:
size=${GPU_CHECK_SIZE:-124m} torch_device=${GPU_CHECK_TORCH_DEVICE:-cuda:$device}
rate_steps=${GPU_CHECK_STEPS:-60} times_batch=16
gpt2() { "$python" "$here/gpu-gpt2.py" "$@"; }
need_torch() {
  local why
  why=$("$python" -c "import torch; torch.zeros(1, device='$torch_device')" 2>&1) && return
  echo "$python has no PyTorch that sees the device: $(tail -n 1 <<<"$why")"
  return $LACKS
}
# Trains GPT-2 on a new worker and writes the metrics to $work/NAME.csv.
train_gpt2() { # NAME SETTING...
  local name=$1 settings=() setting
  for setting in "name=$1" device=cuda "${@:2}"; do settings+=(--set "$setting"); done
  [ ${#workers[@]} -gt 0 ] || start_worker "cuda:$device"
  until_true 60 attached 1 && "$bin/fsdpctl" submit "$work/gpt2/job.yaml" "${settings[@]}" &&
    wait_for "$name-1" && "$bin/fsdpctl" metrics "$name-1" --csv >"$work/$name.csv"
}
gpt2_losses() { # DTYPE BOUND: relative
  need_torch || return
  gpt2 prepare "$work/gpt2" --size "$size" || return 1
  train_gpt2 "losses-$1" train.max_steps=50 precision.param_dtype="$1" || return 1
  stop_workers
  gpt2 train "$work/gpt2" --dtype "$1" --device "$torch_device" --steps 50 >"$work/torch.csv" || return 1
  gpt2 compare "$work/losses-$1.csv" "$work/torch.csv" --bound "$2"
}
# Alternates runs of fsdpd and of PyTorch, whose single process compiles once.
gpt2_speed() { # BATCH
  local batch=$1 round kind said
  need_torch || return
  gpt2 prepare "$work/gpt2" --size "$size" || return 1
  start_worker "cuda:$device"
  until_true 60 attached 1 || return 1
  rm -f "$work"/rate-* "$work/ask" "$work/served"
  mkfifo "$work/ask" && exec 4<>"$work/ask" || return 1
  gpt2 serve "$work/gpt2" --dtype bf16 --device "$torch_device" --batch "$batch" --output "$work/rate-torch" \
    <&4 >"$work/served" 2>"$work/served.log" &
  local server=$!
  until_true 100 test -s "$work/served" || { in_short "$work/served.log"; return 1; }
  for round in 1 2 3; do
    train_gpt2 "speed-$batch-$round" train.max_steps="$rate_steps" train.log_interval=$((rate_steps / 6)) \
      train.batch_size="$batch" precision.param_dtype=bf16 || return 1
    mv "$work/speed-$batch-$round.csv" "$work/rate-ours-$round.csv"
    for kind in eager compiled; do
      echo "$kind $rate_steps" >&4
      until [ -e "$work/rate-torch-$kind-$round.csv" ]; do
        kill -0 "$server" 2>/dev/null || { in_short "$work/served.log"; return 1; }
        sleep 0.1
      done
    done
  done
  exec 4>&-
  kill "$server" && wait "$server" 2>/dev/null
  said=$(cat "$work/served")
  gpt2 rates "$work"/rate-ours-*.csv "$work"/rate-torch-*.csv --size "$size" --batch "$batch" --said "$said"
}
# Times each instruction of a few steps: they are enqueued one by one, each between two host timestamps.
gpt2_times() {
  need_torch || return
  gpt2 prepare "$work/gpt2" --size "$size" || return 1
  start_worker "cuda:$device"
  until_true 60 attached 1 && "$bin/fsdpctl" submit "$work/gpt2/job.yaml" --set name=times --set device=cuda \
    --set train.max_steps=100000 --set train.batch_size="$times_batch" --set precision.param_dtype=bf16 &&
    until_true 60 is times-1 RUNNING &&
    "$bin/fsdpctl" trace times-1 --steps 5 -o "$work/trace.json" >"$out/gpu-check-times.txt" &&
    "$bin/fsdpctl" cancel times-1 >/dev/null || return 1
  awk 'NR > 3 && $2 == "compute" && shown++ < 8 { printf "%s %s, ", $1, $NF }' "$out/gpu-check-times.txt"
  echo 'all in gpu-check-times.txt'
}
attention_both() {
  need_torch || return
  gpt2 prepare "$work/gpt2" --size "$size" || return 1
  local before why
  before=$(wc -l <"$work/worker.log")
  train_gpt2 cudnn train.max_steps=30 precision.param_dtype=bf16 || return 1
  stop_workers
  if why=$(tail -n "+$((before + 1))" "$work/worker.log" | grep -o "attention is computed by fsdpd's own .*"); then
    echo "not by cuDNN: ${why%\"}"
    return $LACKS
  fi
  FSDPD_CUDA_ATTENTION=own start_worker "cuda:$device"
  train_gpt2 own train.max_steps=30 precision.param_dtype=bf16 || return 1
  gpt2 compare "$work/cudnn.csv" "$work/own.csv" --bound 1e-2 --times
}
gelu_both() {
  need_torch || return
  gpt2 prepare "$work/gpt2" --size "$size" || return 1
  train_gpt2 fused train.max_steps=30 precision.param_dtype=bf16 || return 1
  stop_workers
  FSDPD_CUDA_GELU=own start_worker "cuda:$device"
  train_gpt2 passes train.max_steps=30 precision.param_dtype=bf16 || return 1
  gpt2 compare "$work/fused.csv" "$work/passes.csv" --bound 1e-2 --times
}
# The arenas match the plan to the byte; the driver's figure includes the libraries' memory, too.
used() { nvidia-smi -i "$device" --query-gpu=memory.used --format=csv,noheader,nounits; }
memory_as_planned() {
  local before most=0 now planned
  need_torch || return
  command -v nvidia-smi >/dev/null || { echo 'nvidia-smi is not installed'; return $LACKS; }
  gpt2 prepare "$work/gpt2" --size "$size" || return 1
  start_worker "cuda:$device"
  until_true 60 attached 1 || return 1
  before=$(used) || return 1
  train_gpt2 memory train.max_steps=60 &
  while kill -0 $! 2>/dev/null; do
    now=$(used) && [ "$now" -gt "$most" ] && most=$now
    sleep 0.2
  done
  wait $! || return 1
  planned=$("$bin/fsdpctl" plan "$work/gpt2/job.yaml" --set device=cuda -o json |
    sed -n 's/^ *"peak_bytes": *"\{0,1\}\([0-9]*\).*/\1/p' | head -n 1)
  gpt2 memory "$work/memory.csv" --planned "$planned" --used $(((most - before) * 1048576))
}

# ---- all checks ----

: >"$work/worker.log"
echo '{}' >"$work/devices.json"
timeout 60 "$bin/fsdpd" devices >"$work/devices" 2>&1
timeout 60 "$bin/fsdpd" devices -o json >"$work/devices.json.new" 2>/dev/null &&
  mv "$work/devices.json.new" "$work/devices.json"
cat "$work/devices"
save || exit 2
if ! grep -q "^cuda:$device " "$work/devices"; then
  why=$(sed -n 's/^No cuda devices: //p' "$work/devices" | plain)
  all_not_run "there is no cuda:$device here${why:+: $why}"
  echo "SKIP: there is no cuda:$device here"
  exit "$LACKS"
fi
served=no
for i in "${!checks[@]}"; do
  case $(field "$i" 3) in
    '' | ops* | sanitized*) ;;
    *)
      if [ $served = no ]; then
        if serve >"$work/log" 2>&1; then served=yes; else served=failed; fi
        tail -n 3 "$work/log" "$work/daemon.log" >"$work/served" 2>/dev/null
      fi
      if [ $served = failed ]; then
        note "$i" FAILED 0 "the daemon did not start: $(in_short "$work/served")"
        continue
      fi
      ;;
  esac
  check "$i"
done
for result in "${results[@]}"; do [ "$result" != FAILED ] || exit 1; done
