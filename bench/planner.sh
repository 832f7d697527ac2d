#!/usr/bin/env bash
# Compares predicted with measured times of a step, and planned with measured peak memory, over
# configurations that are drawn: networks, strategies, policies, precision, recomputation,
# accumulation, optimizers, 1, 2 and 4 workers on the CPU. The profile is measured first
# (fsdpd calibrate). The beginning says how long the runs take if the predictions hold; progress
# follows. Runs alternate; the measured time is the median of the rounds' medians. The second to
# last line is the summary. Nothing else should run meanwhile: --update, which writes
# docs/notebook.md and docs/planner.svg, insists on it.
# usage: bench/planner.sh [--count N] [--seed N] [--rounds N] [--seconds S] [--profile FILE]
#                         [--network NAME ...] [--update]
set -euo pipefail
exec "$(dirname "$0")/run.sh" planner.py "$@"
