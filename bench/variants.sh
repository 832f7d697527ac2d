#!/usr/bin/env bash
# Compares ways to train a model of bench/table.sh on the CPU, one thread per process, in alternating rounds: AdamW,
# AdamW with 8-bit state, Muon (with AdamW for what is no matrix) and adapters of rank 16, with one process and with
# two, and in PyTorch 2.x (with two processes FSDP2) the same, as far as --python has it: 8-bit AdamW needs
# bitsandbytes, adapters need peft. Of our step with Muon, the products of its iteration are measured by its trace.
# Nothing else should run meanwhile.
# usage: bench/variants.sh --python INTERPRETER [--model NAME] [--context N] [--processes 1,2] [--rounds N]
#                            [--variants NAME,...] [--type f32|bf16] [--steps N] [--limit SECONDS]
set -euo pipefail
exec "$(dirname "$0")/run.sh" variants.py "$@"
