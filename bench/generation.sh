#!/usr/bin/env bash
# Compares drawing tokens with transformers' generate on the CPU, one thread each, in alternating rounds: the most
# probable token each time, after prompts of --prompt tokens, alone and in a batch, by models of bench/table_models.py
# with random weights. fsdpd's calls are those of train.sample: a decoder is planned in each of them. Prints medians of
# the seconds of a call, their ratio, and the tokens per second of both halves of fsdpd's. The interpreter of --python
# needs torch and transformers. With --cost: what calls of `fsdpctl sample` cost a job that trains, besides their own
# time, in alternating windows without and with calls. Nothing else should run meanwhile.
# usage: bench/generation.sh --python INTERPRETER | --cost [--models NAME,...] [--dtypes f32,bf16] [--sequences 1,8]
#                            [--prompt N] [--tokens N] [--rounds N] [--calls N] [--limit SECONDS]
set -euo pipefail
exec "$(dirname "$0")/run.sh" generation.py "$@"
