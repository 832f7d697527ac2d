#!/usr/bin/env bash
# Measures tokens per second of training a GPT on bytes: fsdpd against PyTorch (DDP over Gloo for more
# than one process), with the same sizes, batch and threads, in alternating runs: nanoGPT's small CPU
# setting, and 6 layers of 384 channels with a context of 256; with one process and with two. Ratios
# are our median step over PyTorch's; the last line is "ratio R", the worst of them.
# usage: bench/gpt.sh [--rounds N] [--steps N] [--size small|medium] [--python INTERPRETER]
set -euo pipefail
exec "$(dirname "$0")/run.sh" gpt.py "$@"
