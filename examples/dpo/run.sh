#!/bin/sh
# Trains an adapter on pairs of answers with DPO, for peft: run.sh DATA_ROOT, a data root of the fsdpd that FSDPD_ADDRESS
# names. PYTHON names a Python with clients/python[prepare].
set -e
root=${1:?usage: run.sh DATA_ROOT}
here=$(dirname "$0")
PYTHON=${PYTHON:-python3}
PYTHONPATH=$here/../../clients/python${PYTHONPATH:+:$PYTHONPATH}
export PYTHON PYTHONPATH
"$here/../lora/base.sh" "$root"
"$PYTHON" "$here/draw.py" "$root"
"$PYTHON" -m fsdpd_prepare preference "$root/pairs.jsonl" --tokenizer "$root/tokenizer" --template chatml -o "$root/pairs" \
  --force
"$PYTHON" -m fsdpd_prepare show "$root/pairs" -n 1
fsdpctl plan "$here/job.yaml"
job=$(fsdpctl submit "$here/job.yaml")
fsdpctl watch "$job"
fsdpctl metrics "$job" --csv | cut -d, -f4,6,9-12
fsdpctl pull "$job" --format peft -o "$root/$job-adapter"
