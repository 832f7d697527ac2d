#!/usr/bin/env bash
# Compares training on the CPU with PyTorch 2.x: the MNIST network, ResNet-18, a BERT of MiniLM's size,
# ViT-S, GPT-2 124M and a Llama of 0.5 billion parameters, in f32 and bf16, with one process (eager and
# compiled) and with two (DDP and FSDP2), one thread each, in alternating rounds. The interpreter of
# --python needs torch, transformers and numpy; data and weights are random. Prints how long it will take,
# and then the tables of all cases that were measured, with the longest ops of those that fsdpd loses.
# Nothing else should run meanwhile.
#
# A run has as many steps as fit in --seconds, at least 3, at most --steps. A run that takes longer than
# --limit, or that would leave the host less than 1 GiB of memory, is ended, and its row says so.
# --compile only fills the cache of torch.compile, on a machine that may be busy. --update adds the cases
# to docs/benchmarks.json, as soon as each is measured, and makes docs/benchmarks.md of it.
# usage: bench/table.sh --python INTERPRETER [--models NAME,...] [--dtypes f32,bf16] [--processes 1,2]
#                       [--rounds N] [--seconds N] [--steps N] [--limit SECONDS] [--compile | --update]
set -euo pipefail
exec "$(dirname "$0")/run.sh" table.py "$@"
