#!/usr/bin/env bash
# Measures time per step and peak memory per rank of the MNIST network under each strategy, with two and
# four workers, and of PyTorch DDP for comparison, in alternating rounds; prints a table in Markdown.
# usage: bench/strategies.sh [--rounds N] [--steps N] [--worlds 2,4]
set -euo pipefail
exec "$(dirname "$0")/run.sh" strategies.py "$@"
