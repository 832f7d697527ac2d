#!/usr/bin/env bash
# Measures the memory of training adapters (rank 16) on a Llama of 134M parameters with the base in each type of
# model.base_dtype, beside training all of it, on one worker and on two, and beside peft with PyTorch on the CPU: one
# process, and FSDP2 with two. Prints a table of docs/memory.md: what fsdpd plans, and the resident sets of the processes.
# With PEFT_PYTHON, a Python that has torch, transformers and peft, also theirs, of the steps, less what is resident after
# the imports.
# Needs about 6 GB of memory and some minutes. usage: bench/lora.sh
set -euo pipefail
exec "$(dirname "$0")/run.sh" lora.py "$@"
