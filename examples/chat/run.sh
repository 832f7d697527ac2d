#!/bin/sh
# Draws conversations, prepares them and trains on what the assistant says: run.sh DATA_ROOT, a data root of the fsdpd
# that FSDPD_ADDRESS names. PYTHON names a Python with clients/python[prepare].
set -e
root=${1:?usage: run.sh DATA_ROOT}
here=$(dirname "$0")
PYTHON=${PYTHON:-python3}
PYTHONPATH=$here/../../clients/python${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
"$PYTHON" "$here/draw.py" "$root"
"$PYTHON" -m fsdpd_prepare chat "$root/sums.jsonl" --tokenizer "$root/tokenizer" --template chatml -o "$root/sums" --force
"$PYTHON" -m fsdpd_prepare show "$root/sums" -n 1
fsdpctl plan "$here/job.yaml"
fsdpctl submit "$here/job.yaml" --wait
