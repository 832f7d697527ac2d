#!/usr/bin/env bash
# Measures what redundancy in memory costs a step of an elastic job, renewed after every step: none, mirror and parity in
# alternating rounds; a GPT of bench/gpt.sh on two and on four workers.
# usage: bench/elastic.sh [--rounds N] [--steps N] [--size small|medium] [--workers N...]
set -euo pipefail
exec "$(dirname "$0")/run.sh" elastic.py "$@"
