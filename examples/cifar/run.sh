#!/bin/sh
# Draws images and trains a small network on them: run.sh DATA_ROOT, a data root of the fsdpd that FSDPD_ADDRESS names.
set -e
root=${1:?usage: run.sh DATA_ROOT}
here=$(dirname "$0")
"${PYTHON:-python3}" "$here/draw.py" "$root/cifar"
fsdpctl plan "$here/job.yaml"
fsdpctl submit "$here/job.yaml" --wait
