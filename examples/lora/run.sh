#!/bin/sh
# Trains a small Llama and then an adapter on it, for peft: run.sh DATA_ROOT, a data root of the fsdpd that FSDPD_ADDRESS
# names. PYTHON names a Python with clients/python[prepare].
set -e
root=${1:?usage: run.sh DATA_ROOT}
here=$(dirname "$0")
PYTHON=${PYTHON:-python3}
PYTHONPATH=$here/../../clients/python${PYTHONPATH:+:$PYTHONPATH}
export PYTHON PYTHONPATH
"$here/base.sh" "$root"
"$PYTHON" -m fsdpd_prepare chat "$root/polite.jsonl" --tokenizer "$root/tokenizer" --template chatml -o "$root/polite" --force
fsdpctl plan "$here/job.yaml"
job=$(fsdpctl submit "$here/job.yaml")
fsdpctl watch "$job"
fsdpctl pull "$job" --format peft -o "$root/$job-adapter"
cat "$root/$job-adapter/adapter_config.json"
