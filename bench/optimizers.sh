#!/usr/bin/env bash
# Trains the Shakespeare example with several optimizers, each at the better of two rates, and
# rewrites the table of docs/optimizers.md and docs/optimizers.svg.
# usage: bench/optimizers.sh [--steps N] [--interval N] [--only NAME ...] [--print]
set -euo pipefail
exec "$(dirname "$0")/run.sh" optimizers.py "$@"
