#!/usr/bin/env bash
# Compares training on the CPU with PyTorch 2.x: the MNIST network, ResNet-18, a BERT of MiniLM's size,
# ViT-S, GPT-2 124M and a Llama of 0.5 billion parameters, in f32 and bf16, with one process (eager and
# compiled) and with two (DDP and FSDP2), one thread each, in alternating rounds. The interpreter of
# --python needs torch, transformers and numpy; data and weights are random. Prints the table of
# docs/benchmarks.md, which --update replaces. Takes hours as a whole, and 24 GB of memory for the largest
# models; nothing else should run meanwhile.
# usage: bench/table.sh --python INTERPRETER [--model NAME ...] [--dtype f32|bf16 ...]
#                       [--processes N ...] [--rounds N] [--steps N] [--update]
set -euo pipefail
exec "$(dirname "$0")/run.sh" table.py "$@"
