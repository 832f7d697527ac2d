#!/usr/bin/env bash
# Compares training steps of two processes on one host through shared memory and over Gloo
# (fsdp.transport), in alternating rounds: the GPTs of bench/gpt.sh. Fails if the losses differ.
# usage: bench/transport.sh [--rounds N] [--steps N] [--size small|medium]
set -euo pipefail
exec "$(dirname "$0")/run.sh" transport.py "$@"
