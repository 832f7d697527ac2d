#!/usr/bin/env bash
# Measures the time from the submission of a job to the end of its first step, on an idle fsdpd with two
# workers: the MNIST network on drawn digits and the small GPT of bench/gpt.sh, jobs of one step. Subtracts
# the step's own time, taken from a longer job. Also times each stage, fsdpd's start until READY, and the
# start of a job on a Hugging Face model of 2 GB in bf16, beside reading its file with cat (needs 2 GB of
# disk and 10 GB of memory). 0 leaves a part out.
# usage: bench/start.sh [--jobs N] [--starts N] [--models N]
set -euo pipefail
exec "$(dirname "$0")/run.sh" start.py "$@"
