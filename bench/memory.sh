#!/usr/bin/env bash
# Memory of training GPT-2 124M with full_shard and a unit per block: planned at worlds 1, 2, 8 and 64,
# and run, one step each, at 1 and 2; then longer and longer contexts of a smaller model, to 4,096 tokens.
# Prints the tables of docs/memory.md; exits with 1 if a run needed anything but what its plan says.
# Needs about 6 GB of memory and some minutes. usage: bench/memory.sh [--quick]
set -euo pipefail
exec "$(dirname "$0")/run.sh" memory.py "$@"
