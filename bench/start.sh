#!/usr/bin/env bash
# Measures the time from the submission of a job to the end of its first step, on an idle fsdpd with two
# workers: the MNIST network on drawn digits and the small GPT of bench/gpt.sh, jobs of one step. Subtracts
# the step's own time, taken from a longer job. Also times each stage, and fsdpd's start until READY.
# usage: bench/start.sh [--jobs N] [--starts N]
set -euo pipefail
exec "$(dirname "$0")/run.sh" start.py "$@"
