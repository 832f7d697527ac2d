#!/usr/bin/env bash
# Prints the goals of speed on the CPU, what this machine measures, and whether they are reached. Runs
# bench/mnist.sh, bench/gpt.sh, bench/start.sh and bench/checkpoint.sh, or those of --runs; what depends on
# bench/table.sh comes from docs/benchmarks.json, if it has this machine. --quick takes fewer runs.
# usage: bench/goals.sh --python INTERPRETER [--runs mnist,gpt,start,checkpoint] [--quick]
set -euo pipefail
exec "$(dirname "$0")/run.sh" goals.py "$@"
