#!/usr/bin/env bash
# Measures the memory of training GPT-2 124M with full_shard and a unit per block: plans it at worlds 1,
# 2, 8 and 64, and runs one step at 1 and at 2; then increases the context of a smaller model up to 4,096
# tokens; the MNIST network; and GPT-2 sampling as it trains. Prints the figures of docs/memory.md, with the
# resident sets of the workers' processes; exits with 1 if a run's memory differs from its plan.
# --drawn N runs N drawn jobs instead. Needs about 6 GB of memory and some minutes.
# usage: bench/memory.sh [--quick | --drawn N]
set -euo pipefail
exec "$(dirname "$0")/run.sh" memory.py "$@"
