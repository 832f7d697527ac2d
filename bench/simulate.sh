#!/usr/bin/env bash
# Compares simulated with measured times of a step (fsdpd plan --simulate) of three networks and three
# strategies, on 2, 4 and 8 workers of the CPU. The profile is measured first (fsdpd calibrate). With
# fewer processors than workers the simulation shares the processors among them. Takes about four
# minutes. Nothing else should run meanwhile: --update, which writes docs/notebook.md, insists on it.
# usage: bench/simulate.sh [--rounds N] [--seconds S] [--profile FILE] [--update]
set -euo pipefail
exec "$(dirname "$0")/run.sh" simulate.py "$@"
