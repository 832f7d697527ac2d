#!/usr/bin/env bash
# Trains the Shakespeare example with optimizer state and parameters of fewer bytes, and prints the
# validation losses as docs/memory.md has them. usage: bench/state_loss.sh [--steps N] [--seeds S ...]
set -euo pipefail
exec "$(dirname "$0")/run.sh" state_loss.py "$@"
