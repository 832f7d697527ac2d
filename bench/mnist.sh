#!/usr/bin/env bash
# Times training steps of the MNIST network: fsdpd with two workers against PyTorch DDP with two Gloo
# processes, one thread each, the same batch, in alternating runs. The last line is "ratio R": our
# median step over PyTorch's. usage: bench/mnist.sh [--rounds N] [--steps N] [--set key=value ...]
set -euo pipefail
exec "$(dirname "$0")/run.sh" mnist.py "$@"
