#!/bin/sh
# Draws reviews, prepares them and trains a BERT to tell the verdict: run.sh DATA_ROOT, a data root of the fsdpd that
# FSDPD_ADDRESS names. PYTHON names a Python with clients/python[prepare].
set -e
root=${1:?usage: run.sh DATA_ROOT}
here=$(dirname "$0")
PYTHON=${PYTHON:-python3}
PYTHONPATH=$here/../../clients/python${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
"$PYTHON" "$here/draw.py" "$root"
"$PYTHON" -m fsdpd_prepare classify "$root/reviews.jsonl" --tokenizer "$root/reviewer" -o "$root/reviews" \
  --validation 0.1 --force
"$PYTHON" -m fsdpd_prepare show "$root/reviews" -n 1
fsdpctl plan "$here/job.yaml"
fsdpctl submit "$here/job.yaml" --wait
