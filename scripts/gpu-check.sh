#!/usr/bin/env bash
# Checks fsdpd on a host with an NVIDIA GPU, in four parts that each stand alone and end within 8 minutes:
#   1  every op and gradient against the CPU reference, and the products of GPT-2
#   2  the MNIST network, GPT-2's losses, the times of a step, and each uncertain choice with its switch
#   3  GPT-2's speed against PyTorch, eager and compiled
#   4  two NCCL ranks on one device, a killed worker, a lost device, shared devices, offload, memory, a profile
# Run it in a build directory, or from the bundle of `make bundle`. Each check has a time limit; one that is cut
# off, or has no device, was "not run". After every check it writes gpu-check-PART.md and gpu-check-PART.json, so
# that being cut off loses nothing: what was seen is to be committed to docs/gpu-results.md, nothing else is.
# Exits with 1 if a check failed, 77 if there is no such device.
#
#   gpu-check.sh [--build DIR] [--part 1|2|3|4] [--device N] [--seconds N] [--out DIR] [--only REGEX]
#   gpu-check.sh --budget [--seconds N]    fails if the limits of a part add up to more than it is given
#
# Without --part all parts run, one after the other; --seconds (470) is for each.
set -uo pipefail
usage() { sed -n '/^# What/,/^#   gpu-check/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
build='' device=0 seconds=470 out=. only='' parts='1 2 3 4' budget=no
while [ $# -gt 0 ]; do
  if [ "$1" = --budget ]; then
    budget=yes
    shift
    continue
  fi
  [ $# -ge 2 ] || usage
  case $1 in
    --part) parts=$2 ;;
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
case $parts in [1-4] | '1 2 3 4') ;; *) usage ;; esac

# ---- the table ----

# The checks, in the order of docs/gpu-results.md: part, limit in seconds, name, function and arguments.
checks=()
for name in kernels kernels_sequence kernels_attention kernels_bfloat16 attention; do
  checks+=("1|45|ops against the reference: $name|ops $name")
done
checks+=(
  '1|45|ops against the reference, tf32: kernels|ops kernels 1'
  '1|90|products and attention of GPT-2: algorithms and rates|products'
  '1|100|compute-sanitizer over ops|sanitized'
  '2|70|MNIST, 10 epochs|as_on_the_cpu 1'
  '2|40|steps captured as graphs, and not|captured_and_not'
  '2|70|GPT-2 124M, losses of 50 steps, f32|gpt2_losses f32 1e-3'
  '2|60|GPT-2 124M, losses of 50 steps, bf16|gpt2_losses bf16 2e-2'
  '2|40|GPT-2 124M, bf16: tokens drawn with graphs, and without|tokens_drawn'
  '2|35|GPT-2 124M, bf16, batch 16: where the time of a step goes|gpt2_times 16'
  '2|35|GPT-2 124M, bf16, batch 64: where the time of a step goes|gpt2_times 64'
  '2|110|GPT-2 124M, bf16: each choice and its switch|choices'
  '3|200|GPT-2 124M, bf16, batch 16: speed|gpt2_speed 16'
  '3|260|GPT-2 124M, bf16, batch 64: speed|gpt2_speed 64'
  '4|60|two NCCL ranks on one device|two_nccl_ranks'
  '4|60|a worker killed in the middle of a job by NCCL|one_is_killed'
  '4|40|an illegal access, then another job|device_is_lost'
  '4|70|MNIST, 10 epochs, two workers sharing the device|as_on_the_cpu 2 --share-device'
  '4|50|offload of a model larger than a limit of the device|offloaded'
  '4|30|adapters of the MNIST network, the rest in nf4|frozen_in_nf4'
  "4|50|the plan's memory against the device's|memory_as_planned"
  '4|60|memory to the brim: the largest batch that is planned|brim'
  '4|40|a profile of the kernels of a step|profiled'
)
field() { # NUMBER FIELD
  local fields
  IFS='|' read -r -a fields <<<"${checks[$1]}"
  printf '%s' "${fields[$2 - 1]-}"
}
part_of() { field "$1" 1; }
limit_of() { field "$1" 2; }
name_of() { field "$1" 3; }

# What a part takes at most: its checks, and what the daemon needs to start and to end.
AROUND=10
if [ $budget = yes ]; then
  over=0
  for part in $parts; do
    total=$AROUND
    for i in "${!checks[@]}"; do [ "$(part_of "$i")" != "$part" ] || total=$((total + $(limit_of "$i"))); done
    echo "part $part: at most $total s of $seconds s"
    [ "$total" -le "$seconds" ] || over=1
  done
  exit $over
fi
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
if [ -z "$build" ] && [ -x "$here/../bin/fsdpd" ]; then
  root=$(cd "$here/.." && pwd) # a bundle
  bin=$root/bin tests=$root/libexec examples=$root/examples
  run() { "$bin/with-libraries" "$@"; }
  # Searched for once, not by every program.
  FSDPD_WHEELS=$("$bin/with-libraries" printenv FSDPD_WHEELS)
  export FSDPD_WHEELS
else
  build=$(cd "${build:-.}" && pwd) || exit 2
  bin=$build tests=$build/tests/gpu examples=$here/../examples
  export FSDPD_BACKEND_DIR=${FSDPD_BACKEND_DIR:-$build}
  run() { "$@"; }
fi
[ -x "$bin/fsdpd" ] || { echo "gpu-check: no fsdpd in $bin; say --build DIR" >&2; exit 2; }
export FSDPD_CONFIG=
started=$SECONDS
# Which algorithms cuBLASLt's products take, by their times: kept, and read by people.
export FSDPD_CUDA_CHOICES=$out/gpu-check-algorithms.txt
# What PyTorch compiled in one run it need not compile in the next.
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$out/compiled}

results=() notes=() times=()
for i in "${!checks[@]}"; do results[i]='not run' notes[i]='cut off before it' times[i]=0; done

plain() { tr -c '[:print:]' ' ' | tr -d '\\"|' | sed 's/  *$//' | cut -c1-400; }
in_short() { # FILE: its last line with content
  grep -v '^[[:space:]]*$' "$1" | tail -n 1 | plain
}
# The part's rows, as JSON and as a table.
save_part() { # PART
  local i separator='' to=$out/gpu-check-$1
  {
    printf '{"devices": %s, "seconds": %d, "checks": [' "$(cat "$work/devices.json")" $((SECONDS - started))
    for i in "${!checks[@]}"; do
      [ "$(part_of "$i")" = "$1" ] || continue
      printf '%s\n  {"check": "%s", "result": "%s", "seconds": %s, "note": "%s"}' "$separator" \
        "$(name_of "$i")" "${results[i]}" "${times[i]}" "${notes[i]}"
      separator=,
    done
    printf '\n]}\n'
  } >"$to.json.new" && mv "$to.json.new" "$to.json"
  {
    sed 's/^/    /' "$work/devices"
    printf '\n| check | result | seconds | |\n| --- | --- | --- | --- |\n'
    for i in "${!checks[@]}"; do
      [ "$(part_of "$i")" = "$1" ] || continue
      printf '| %s | %s | %s | %s |\n' "$(name_of "$i")" "${results[i]}" "${times[i]}" "${notes[i]}"
    done
  } >"$to.md.new" && mv "$to.md.new" "$to.md"
}
save() {
  local part
  for part in $parts; do save_part "$part"; done
}
note() { # NUMBER RESULT SECONDS NOTE: a row of the table
  results[$1]=$2 times[$1]=$3 notes[$1]=$4
  printf '%-58s %-8s %4s s  %s\n' "$(name_of "$1")" "$2" "$3" "$4"
  save_part "$(part_of "$1")"
}
is_wanted() { # NUMBER: of one of the parts
  case " $parts " in *" $(part_of "$1") "*) return 0 ;; esac
  return 1
}
all_not_run() { # WHY
  local i
  for i in "${!checks[@]}"; do ! is_wanted "$i" || note "$i" 'not run' 0 "$1" >/dev/null; done
  for i in $parts; do sed -n '/^| /p' "$out/gpu-check-$i.md"; done
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
  what=$(name_of "$1") limit=$(($(limit_of "$1") * ${GPU_CHECK_SLOW:-1})) command=$(field "$1" 4)
  if [ -n "$only" ] && ! grep -Eq -- "$only" <<<"$what"; then
    note "$1" 'not run' 0 'not asked for'
    return
  fi
  left=$((seconds - (SECONDS - begun)))
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
    note "$1" 'not run' $((SECONDS - begin)) "cut off after $limit s; at the end: $(in_short "$log")"
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

# Random inputs differ in every run; the seed reproduces them. All tests of a program run in one process, with one
# context of the device. Where one ends it (128 and a signal) they run again, each in a process of its own, to find it.
# Algorithms of products of random sizes are not timed.
ops() { # NAME [TF32]
  local seed=$RANDOM$RANDOM code
  export FSDPD_TEST_SEED=$seed FSDPD_CUDA_TF32=${2:-0} FSDPD_CUDA_CANDIDATES=1
  CK_FORK=no run "$tests/gpu_$1"
  code=$?
  if [ $code -ge 128 ]; then
    run "$tests/gpu_$1"
    code=$?
  fi
  echo "$(in_short "$work/log") (FSDPD_TEST_SEED=$seed)"
  return $code
}
# Only our own kernels, all of the namespace fsdpd: NVIDIA's are theirs to check, and many times slower.
sanitized() {
  local name code said
  command -v compute-sanitizer >/dev/null || { echo 'compute-sanitizer is not installed'; return $LACKS; }
  export FSDPD_CUDA_CANDIDATES=1
  for name in kernels kernels_bfloat16 kernels_attention; do
    CK_FORK=no run compute-sanitizer --error-exitcode 9 --kernel-regex kns=fsdpd "$tests/gpu_$name" \
      >"$work/sanitizer" 2>&1
    code=$?
    cat "$work/sanitizer"
    if grep -q 'Device not supported' "$work/sanitizer"; then
      echo 'compute-sanitizer does not support this device here'
      return $LACKS
    fi
    [ $code -eq 0 ] || return $code
    said="${said:-}$name: $(grep 'ERROR SUMMARY' "$work/sanitizer" | tail -n 1 | sed 's/=* *//') "
  done
  echo "$said"
}
# The products of GPT-2's layers, its attention (also with dropout, and with a mask of keys) and its head, as they are
# and with each switch, for the next round of work: gpu-check-products.txt.
products() {
  run "$tests/gpu_products" >"$out/gpu-check-products.txt" || { cat "$out/gpu-check-products.txt"; return 1; }
  tail -n 1 "$out/gpu-check-products.txt"
}

# ---- jobs through the daemon ----

serve() {
  timeout 60 "$bin/fsdpd-digits" --seed 1 --train 10000 --test "${GPU_CHECK_TEST:-2000}" -o "$work/digits" || return 1
  "$bin/fsdpd" coordinator --runtime-dir "$work/run" --state-dir "$work/state" \
    --data-root "$work" >"$work/daemon.log" 2>&1 &
  daemon=$!
  export FSDPD_ADDRESS=unix:$work/run/fsdpd.sock
  until_true 20 "$bin/fsdpctl" status
}
until_true() { # SECONDS COMMAND...
  local end=$((SECONDS + $1 * ${GPU_CHECK_SLOW:-1})) # times slower, as with a stub of CUDA
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
# Frozen parameters are unpacked on the device whenever they are used. Both have the same ones, drawn from the seed.
frozen_in_nf4() {
  local device_kind found='' cpu gpu
  start_worker "cuda:$device"
  start_worker cpu --threads 4
  until_true 60 attached 2 || return 1
  for device_kind in cuda cpu; do
    submit "frozen-$device_kind" train.epochs=1 workers=1 device=$device_kind model.base_dtype=nf4 \
      'model.lora={rank: 8, alpha: 16, targets: [fc1, fc2]}' && wait_for "frozen-$device_kind-1" &&
      pull "frozen-$device_kind-1" || return 1
    found="$found $(sed -n 's/.*Accuracy: .*(\([0-9.]*\)%).*/\1/p' "$work/watched" | tail -n 1)"
  done
  read -r gpu cpu <<<"$found"
  gpt2 tensors "$work/frozen-cuda-1.safetensors" "$work/frozen-cpu-1.safetensors" >/dev/null || return 1
  echo "accuracy $gpu %, on a CPU worker $cpu %"
  awk -v a="$gpu" -v b="$cpu" 'BEGIN { exit !(a >= b - 1 && a > 50) }'
}
# NCCL takes a device twice if its ranks say that they are on different hosts. Then it must not take InfiniBand between
# them, nor multicast of a device with itself.
start_nccl_worker() { # RANK
  FSDPD_CUDA_SHARED=nccl NCCL_HOSTID=rank-$1 NCCL_SOCKET_IFNAME=lo NCCL_NVLS_ENABLE=0 NCCL_IB_DISABLE=1 \
    start_worker "cuda:$device" --share-device
}
# Trains without and with registered buffers, enqueued and replayed as graphs, by real collectives.
two_nccl_ranks() {
  local i
  for i in 1 2; do start_nccl_worker "$i"; done
  until_true 60 attached 2 && trained plain-nccl 2 && trained registered 2 fsdp.register_buffers=true || return 1
  stop_workers
  if grep group_joined "$work/worker.log" | grep -q through_host_memory=1; then
    echo 'the ranks did not use NCCL'
    return 1
  fi
  grep steps_not_recorded "$work/worker.log" | tail -n 1
  cmp "$work/plain-nccl-1.safetensors" "$work/registered-1.safetensors" &&
    echo 'the same weights without and with registered buffers'
}
# Kills one of two NCCL ranks in the middle of a job, which the other aborts: the job's reason must name a
# rank, and the next job must run on the other worker and a replacement.
one_is_killed() {
  local i
  for i in 1 2; do start_nccl_worker "$i"; done
  until_true 60 attached 2 &&
    submit killed train.epochs=1000 retry.machine_failures=0 workers=2 device=cuda &&
    until_true 60 is killed-1 RUNNING || return 1
  sleep 2 # at any of its steps
  kill -9 "${workers[1]}"
  wait "${workers[1]}" 2>/dev/null
  until_true 60 is killed-1 FAILED && is killed-1 'rank [01]' || return 1
  start_nccl_worker 3
  until_true 60 attached 2 && submit next train.epochs=1 workers=2 device=cuda && wait_for next-1 &&
    "$bin/fsdpctl" list | grep killed-1
}
# A kernel of a worker writes where no memory is: the job must fail by its machine, the worker end, and the next
# worker train. A stub of CUDA needs no library for that.
device_is_lost() {
  local fault=${GPU_CHECK_FAULT-$tests/gpu_fault.so} code
  echo 'cudaGraphLaunch 2 700' >"$work/fault"
  FSDPD_STUB_FAIL=$work/fault LD_PRELOAD=$fault start_worker "cuda:$device"
  until_true 20 attached 1 && submit lost retry.machine_failures=0 workers=1 device=cuda train.batch_size=1 &&
    until_true 25 is lost-1 FAILED || return 1
  [ ! -e "$work/fault" ] || { echo 'nothing was written'; return 1; }
  wait "${workers[0]}"
  code=$?
  workers=()
  [ $code = 1 ] || { echo "the worker ended with $code; expected 1"; return 1; }
  "$bin/fsdpctl" show lost-1 | grep -q 'lost its device' || { "$bin/fsdpctl" list | grep lost-1; return 1; }
  start_worker "cuda:$device"
  until_true 20 attached 1 && trained after-lost 1 train.batch_size=1 train.max_steps=4 && "$bin/fsdpctl" list | grep lost-1
}
# Runs the same job with and without graphs: compares the weights bit by bit, and checks that each worker
# ran in its mode.
trained() { # NAME [WORKERS SETTING...]
  submit "$1" train.epochs=1 workers="${2:-1}" device=cuda "${@:3}" && wait_for "$1-1" && pull "$1-1"
}
plain_runs() { touch "$work/worker.log" && grep -c steps_not_recorded "$work/worker.log"; }
captured_and_not() {
  local before
  before=$(plain_runs)
  start_worker "cuda:$device"
  until_true 60 attached 1 || return 1
  while planned_bytes; do :; done >"$work/planned" 2>&1 & # which opens and closes the device's libraries meanwhile
  local planner=$! code
  trained captured
  code=$?
  kill $planner
  wait $planner 2>/dev/null
  [ $code -eq 0 ] && [ -s "$work/planned" ] || return 1
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
rate_steps=${GPU_CHECK_STEPS:-60} choice_batch=${GPU_CHECK_BATCH:-16}
gpt2() { "$python" "$here/gpu-gpt2.py" "$@"; }
# Asked for once; what it said is kept for the other checks.
need_torch() {
  if [ ! -e "$work/torch" ]; then
    "$python" -c "import torch; torch.zeros(1, device='$torch_device')" >"$work/torch.new" 2>&1 &&
      : >"$work/torch.new"
    mv "$work/torch.new" "$work/torch"
  fi
  [ -s "$work/torch" ] || return 0
  echo "$python has no PyTorch that sees the device: $(tail -n 1 "$work/torch")"
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
# Fails if a worker computed attention by our own kernel, many times slower, since there were COUNT such notes.
own_attention() { grep -c "attention.* is computed by fsdpd's own kernel" "$work/worker.log"; }
by_cudnn() { # COUNT
  [ "$(own_attention)" = "$1" ] || {
    grep -o "attention.* is computed by fsdpd's own kernel[^\"]*" "$work/worker.log" | tail -n 1
    return 1
  }
}
gpt2_losses() { # DTYPE BOUND: relative
  local before
  before=$(own_attention)
  need_torch || return
  gpt2 prepare "$work/gpt2" --size "$size" || return 1
  train_gpt2 "losses-$1" train.max_steps=50 precision.param_dtype="$1" || return 1
  stop_workers
  [ "$1" = f32 ] || by_cudnn "$before" || return 1
  gpt2 train "$work/gpt2" --dtype "$1" --device "$torch_device" --steps 50 >"$work/torch.csv" || return 1
  gpt2 compare "$work/losses-$1.csv" "$work/torch.csv" --bound "$2"
}
# Alternates runs of fsdpd and of PyTorch, whose single process compiles once.
gpt2_speed() { # BATCH
  local batch=$1 round kind said before
  before=$(own_attention)
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
    by_cudnn "$before" || return 1
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
# Times each instruction of a few steps: they are enqueued one by one, each between two events.
gpt2_times() { # BATCH
  local to=$out/gpu-check-times-$1.txt before
  before=$(own_attention)
  gpt2 prepare "$work/gpt2" --size "$size" || return 1
  start_worker "cuda:$device"
  until_true 60 attached 1 && "$bin/fsdpctl" submit "$work/gpt2/job.yaml" --set name="times-$1" --set device=cuda \
    --set train.max_steps=100000 --set train.batch_size="$1" --set precision.param_dtype=bf16 &&
    until_true 60 is "times-$1-1" RUNNING &&
    "$bin/fsdpctl" trace "times-$1-1" --steps 5 -o "$work/trace.json" >"$to" &&
    "$bin/fsdpctl" cancel "times-$1-1" >/dev/null && by_cudnn "$before" || return 1
  awk 'NR > 3 && $2 == "compute" && shown++ < 8 { printf "%s %s, ", $1, $NF }' "$to"
  echo "all in $(basename "$to")"
}
# The same 30 steps with every choice that is not certain to be the best made the other way, by its switch: the losses
# stay within the bound of bf16, and the times say which choice is better here.
choices() {
  local name variable text='' said
  gpt2 prepare "$work/gpt2" --size "$size" || return 1
  : >"$out/gpu-check-choices.txt"
  for variable in FSDPD_CUDA= FSDPD_CUDA_CANDIDATES=1 FSDPD_CUDA_BRANCHES=on FSDPD_CUDA_GELU=own \
    FSDPD_CUDA_BIAS=own FSDPD_CUDA_REDUCTIONS=all FSDPD_CUDA_GRAPHS=off FSDPD_CUDA_AHEAD=off FSDPD_CUDA_ATTENTION=own \
    FSDPD_CUDA_HEAD=f32; do
    name=$(tr 'A-Z_=' 'a-z--' <<<"${variable#FSDPD_}") name=${name%-}
    export "${variable?}"
    start_worker "cuda:$device"
    unset "${variable%%=*}"
    train_gpt2 "$name" train.max_steps=30 train.batch_size="$choice_batch" precision.param_dtype=bf16 || return 1
    stop_workers
    said=$(gpt2 compare "$work/$name.csv" "$work/cuda.csv" --bound 1e-2 --times) || { echo "$variable: $said"; return 1; }
    echo "$variable: $said" | tee -a "$out/gpu-check-choices.txt"
    text="$text${variable#FSDPD_CUDA_} ${said##*steps }; "
  done
  echo "medians with each switch and without: $text"
}
# Sequences that a job continues between its steps.
drawn() { # NAME: leaves them in $work/NAME.tokens, and prints how fast the last ones were
  train_gpt2 "$1" train.max_steps=4 train.batch_size="$choice_batch" precision.param_dtype=bf16 \
    train.sample="{prompts: ['5,17,3', '1'], every_steps: 2, max_tokens: 24}" >"$work/drawn.log" ||
    { cat "$work/drawn.log"; return 1; }
  "$bin/fsdpctl" watch "$1-1" | sed -n 's/.* sample: //p' >"$work/$1.tokens"
  [ "$(wc -l <"$work/$1.tokens")" = 4 ] || { echo "no 4 sequences: $(cat "$work/$1.tokens")"; return 1; }
  awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "sample_tokens_per_second") at = i }
    at && $at > 0 { rate = $at } END { printf "%.0f tokens per second\n", rate }' "$work/$1.csv"
}
tokens_drawn() {
  local captured plain
  gpt2 prepare "$work/gpt2" --size "$size" || return 1
  start_worker "cuda:$device"
  captured=$(drawn captured_tokens) || { echo "$captured"; return 1; }
  stop_workers
  FSDPD_CUDA_GRAPHS=off start_worker "cuda:$device"
  plain=$(drawn plain_tokens) || { echo "$plain"; return 1; }
  cmp "$work/captured_tokens.tokens" "$work/plain_tokens.tokens" &&
    echo "the same tokens; $captured with graphs, $plain without"
}

# The arenas match the plan to the byte; the driver's figure includes what the libraries, graphs and modules take.
used() { nvidia-smi -i "$device" --query-gpu=memory.used --format=csv,noheader,nounits; }
memory_as_planned() {
  local before most=0 now planned
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

# The largest batch whose plan fits leaves less of the device than one more sample takes: what CUDA, cuDNN and NCCL take
# beside the arenas must have been left to them.
fits() { # BATCH
  "$bin/fsdpctl" plan "$work/gpt2/job.yaml" --set device=cuda --set precision.param_dtype=bf16 \
    --set train.batch_size="$1" >/dev/null 2>&1
}
brim() {
  local low=0 high=1 middle
  gpt2 prepare "$work/gpt2" --size "$size" || return 1
  start_worker "cuda:$device"
  until_true 60 attached 1 || return 1
  while fits "$high"; do low=$high high=$((2 * high)); done
  while [ $((high - low)) -gt 1 ]; do
    middle=$(((low + high) / 2))
    if fits "$middle"; then low=$middle; else high=$middle; fi
  done
  [ "$low" -gt 0 ] || { echo 'not even a batch of 1 fits'; return 1; }
  train_gpt2 brim train.max_steps=3 train.batch_size="$low" precision.param_dtype=bf16 &&
    echo "a batch of $low samples runs, $high do not fit"
}

# Where the kernels of a step spend their time, by name: gpu-check-kernels.txt.
profiled() {
  command -v nsys >/dev/null || { echo 'nsys is not installed'; return $LACKS; }
  gpt2 prepare "$work/gpt2" --size "$size" || return 1
  nsys profile --trace=cuda --cuda-graph-trace=node --sample=none --cpuctxsw=none -o "$work/profile" \
    "$bin/fsdpd" worker --device "cuda:$device" --coordinator "$FSDPD_ADDRESS" --data-root "$work" \
    >>"$work/worker.log" 2>&1 &
  workers+=($!)
  train_gpt2 profile train.max_steps=30 train.batch_size="$choice_batch" precision.param_dtype=bf16 || return 1
  stop_workers
  nsys stats --report cuda_gpu_kern_sum --format column "$work/profile.nsys-rep" >"$out/gpu-check-kernels.txt" || return 1
  echo "$(grep -c '[0-9]' "$out/gpu-check-kernels.txt") kernels, all in gpu-check-kernels.txt"
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
needs_daemon() { # NUMBER
  case $(field "$1" 4) in ops* | sanitized | products) return 1 ;; esac
}
start_daemon() { # once
  [ $served = no ] || return 0
  if serve >"$work/log" 2>&1; then served=yes; else served=failed; fi
  tail -n 3 "$work/log" "$work/daemon.log" >"$work/served" 2>/dev/null
}
for part in $parts; do
  begun=$SECONDS
  for i in "${!checks[@]}"; do
    [ "$(part_of "$i")" = "$part" ] || continue
    ! needs_daemon "$i" || start_daemon
    if needs_daemon "$i" && [ $served = failed ]; then
      note "$i" FAILED 0 "the daemon did not start: $(in_short "$work/served")"
      continue
    fi
    check "$i"
  done
done
for result in "${results[@]}"; do [ "$result" != FAILED ] || exit 1; done
