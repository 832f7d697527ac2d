#!/usr/bin/env bash
# Measures the cost of a checkpoint for concurrent training: the step after it is taken and the next
# two, during which it is written, against steps without, and the bytes of a rank's state that had to
# be copied, which is its extra memory; a GPT of bench/gpt.sh on two workers.
# usage: bench/checkpoint.sh [--rounds N] [--steps N] [--every N] [--size small|medium]
set -euo pipefail
exec "$(dirname "$0")/run.sh" checkpoint.py "$@"
