#!/usr/bin/env bash
# Measures whether the planner's choice is the fastest: ten small jobs on 1, 2 and 4 workers of the
# CPU, some with a budget of memory. For each, it asks for the choice (fsdpd plan --auto on a
# measured profile), and runs it and its alternatives: policies, strategies, recomputation, and
# micro-batch x accumulation that fit. Rounds eliminate the slower ones; then the choice and the
# fastest other alternate in fresh runs, whose medians are compared. The second to last line is the
# summary. Takes at most 12 minutes on two idle cores. Nothing else should run meanwhile.
# usage: bench/choices.sh [--rounds N] [--seconds S] [--most N] [--profile FILE] [--case N ...]
#                         [--update]
set -euo pipefail
exec "$(dirname "$0")/run.sh" choices.py "$@"
