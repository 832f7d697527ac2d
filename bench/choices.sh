#!/usr/bin/env bash
# Measures whether the planner's choice is the fastest: twelve small jobs on 1, 2 and 4 workers of the
# CPU, some with a budget of memory. For each, it asks for the choice (fsdpd plan --auto on a
# measured profile), and runs it and its alternatives: the planner's own next choices, and policies,
# strategies, recomputation, and micro-batch x accumulation that fit. Rounds eliminate the slower
# ones; then the choice and the fastest other alternate in fresh runs, and the ratios of these pairs
# are what counts. Standard error has every plan that ran, standard output the table; the second to
# last line is the summary. Takes about --minutes (12) and one more for the profile on two idle
# cores. Nothing else should run meanwhile: --update, which writes docs/notebook.md, insists on it.
# usage: bench/choices.sh [--rounds N] [--seconds S] [--minutes M] [--most N] [--profile FILE]
#                         [--case N ...] [--update]
set -euo pipefail
exec "$(dirname "$0")/run.sh" choices.py "$@"
