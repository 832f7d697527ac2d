#!/usr/bin/env bash
# From a clean clone to trained weights: installs missing packages, builds, starts fsdpd with two CPU
# workers in a temporary directory, trains the MNIST network with FSDP, pulls the weights, and stops
# everything that it started.
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
  cat <<'EOF'
usage: scripts/quickstart.sh [--data DIR] [--epochs N] [--build DIR] [--no-install]

  --data DIR     the four MNIST idx files, gzipped or not (default: download them once; without a
                 network, digits drawn by a program of this project)
  --epochs N     epochs to train (default 1)
  --build DIR    take the programs from this directory instead of building them in build/
  --no-install   say which packages are missing instead of installing them

Writes mnist_cnn.safetensors to the current directory.
EOF
}

data='' epochs=1 build='' install=yes
while [ $# -gt 0 ]; do
  case $1 in
    --data) data=${2:?--data needs a directory} && shift 2 ;;
    --data=*) data=${1#*=} && shift ;;
    --epochs) epochs=${2:?--epochs needs a number} && shift 2 ;;
    --epochs=*) epochs=${1#*=} && shift ;;
    --build) build=${2:?--build needs a directory} && shift 2 ;;
    --build=*) build=${1#*=} && shift ;;
    --no-install) install=no && shift ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
done
[[ $epochs =~ ^[1-9][0-9]*$ ]] || { say "--epochs: expected a positive number, found '$epochs'"; exit 2; }
if [ -n "$data" ]; then
  data=$(cd "$caller" && realpath -e "$data") || die "--data: there is no such directory"
fi
if [ -n "$build" ]; then
  build=$(cd "$caller" && realpath -e "$build") || die "--build: there is no such directory"
fi

daemon='' work=$(mktemp -d "${TMPDIR:-/tmp}/fsdpd-quickstart.XXXXXX")
# shellcheck disable=SC2317 # called by the trap
stop() {
  local status=$?
  trap - EXIT INT TERM HUP
  if [ -n "$daemon" ] && kill -0 "$daemon" 2>/dev/null; then
    kill "$daemon" 2>/dev/null || true
    for _ in $(seq 100); do
      kill -0 "$daemon" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
  fi
  rm -rf "$work"
  exit "$status"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# shellcheck disable=SC2086
need_packages "$install" $QUICKSTART_PACKAGES
if [ -z "$build" ]; then
  say "building in build/ ..."
  build_tree build
  build=build
fi

files="train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/fsdpd/mnist
sums=$PWD/examples/mnist/SHA256SUMS

# The checksums are those of the uncompressed files: mirrors compress them differently.
download() {
  local file
  mkdir -p "$work/download"
  for file in $files; do
    curl --fail --silent --show-error --location --connect-timeout 10 --max-time 120 \
      "https://storage.googleapis.com/cvdf-datasets/mnist/$file.gz" |
      gunzip >"$work/download/$file" || return 1
  done
  (cd "$work/download" && sha256sum --check --quiet "$sums") ||
    die "what was downloaded is not MNIST: its SHA-256 sums differ from examples/mnist/SHA256SUMS"
  mkdir -p "$cache"
  mv "$work/download"/* "$cache"/
}

if [ -z "$data" ]; then
  if [ -d "$cache" ] && (cd "$cache" && sha256sum --check --quiet "$sums" >/dev/null 2>&1); then
    say "MNIST: downloaded before, in $cache"
    data=$cache
  else
    say "MNIST: downloading ..."
    if download; then
      data=$cache
    else
      say "MNIST: no network, or its host is not reachable. Training on drawn digits instead"
      say "       (10,000 and 2,000 of them; use --data DIR for the real ones)."
      data=$work/digits
      "$build"/fsdpd-digits --seed 1 --train 10000 --test 2000 -o "$data"
    fi
  fi
fi

"$build"/fsdpd --workers cpu:2 --runtime-dir "$work/run" --state-dir "$work/state" \
  --data-root "$data" 2>"$work/fsdpd.log" &
daemon=$!
export FSDPD_ADDRESS=unix:$work/run/fsdpd.sock
for _ in $(seq 100); do
  "$build"/fsdpctl status >/dev/null 2>&1 && break
  kill -0 "$daemon" 2>/dev/null || { cat "$work/fsdpd.log" >&2; die "fsdpd did not start"; }
  sleep 0.1
done

"$build"/fsdpctl submit examples/mnist/job.yaml --set data.dir="$data" --set train.epochs="$epochs" \
  --wait || { status=$?; tail -n 20 "$work/fsdpd.log" >&2; exit "$status"; }
"$build"/fsdpctl pull mnist-1 -o "$caller/mnist_cnn.safetensors"

kept=$data
case $data in "$work"/*) kept=DIR ;; esac
cat <<EOF

The weights are in mnist_cnn.safetensors: safetensors.torch.load_file() gives the tutorial network's
state_dict. What to try next, with a daemon of your own (DIR: the directory with the idx files):

  $build/fsdpd --workers cpu:2 --runtime-dir ./run --state-dir ./state --data-root $kept &
  export FSDPD_ADDRESS=unix:run/fsdpd.sock
  $build/fsdpctl plan examples/mnist/job.yaml --set data.dir=$kept
  $build/fsdpctl submit examples/mnist/job.yaml --set data.dir=$kept --set fsdp.strategy=no_shard
  $build/fsdpctl list
  $build/fsdpctl watch mnist-1

The job file is examples/mnist/job.yaml (docs/job-file.md), the network examples/mnist/net.yaml
(docs/model-file.md).
EOF
