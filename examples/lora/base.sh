#!/bin/sh
# Draws conversations about sums and trains the model that adapters start from, unless it is there: base.sh DATA_ROOT.
set -e
root=${1:?usage: base.sh DATA_ROOT}
here=$(dirname "$0")
PYTHON=${PYTHON:-python3}
[ ! -e "$root/base" ] || exit 0
"$PYTHON" "$here/../chat/draw.py" "$root"
"$PYTHON" "$here/draw.py" "$root"
"$PYTHON" -m fsdpd_prepare text "$root/mixed.jsonl" --tokenizer "$root/tokenizer" -o "$root/mixed" --force
job=$(fsdpctl submit "$here/base.yaml")
fsdpctl watch "$job"
fsdpctl pull "$job" --format hf -o "$root/base"
