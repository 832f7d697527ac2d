#!/usr/bin/env bash
# Measures the cost of a checkpoint for concurrent training: the step that waits for the copy of the
# state, and the steps during the write, against steps without; a GPT of bench/gpt.sh on two workers.
# usage: bench/checkpoint.sh [--rounds N] [--steps N] [--every N] [--size small|medium]
set -euo pipefail
exec "$(dirname "$0")/run.sh" checkpoint.py "$@"
