#!/bin/sh
# What the compiler says of the CUDA kernels: none may spill registers to memory, but for the plain
# convolutions, which stand in where cuDNN does not take one; and all are in the namespace by which
# compute-sanitizer's row of scripts/gpu-check.sh finds them. Reads the reports that building leaves.
if ! grep -q -e '--kernel-regex kns=fsdpd ' "${srcdir:-.}/scripts/gpu-check.sh"; then
  echo "scripts/gpu-check.sh: compute-sanitizer has no filter kns=fsdpd"
  exit 1
fi
cd "${builddir:-.}" || exit 1
set -- kernels/cuda/*.report
if [ ! -f "$1" ]; then
  echo "SKIP: the CUDA backend was not built: nvcc was not found, or was not wanted"
  exit 77
fi
awk '
  /Compiling entry function/ { split($0, words, "\047"); kernel = words[2]; kernels++
    if (kernel !~ /^_ZN5fsdpd/) { print kernel ": not in the namespace fsdpd"; bad++ } }
  /bytes spill stores/ {
    if (($0 !~ / 0 bytes spill stores, 0 bytes spill loads/) && kernel !~ /conv_(data|weights)?_?kernel/) {
      print kernel ":" $0
      bad++
    }
  }
  /Used [0-9]+ registers/ {
    for (i = 1; i <= NF; i++) if ($i == "Used" && $(i + 1) > most) most = $(i + 1)
  }
  END {
    if (kernels < 100) { print "only " kernels + 0 " kernels were reported"; exit 1 }
    if (bad) exit 1
    print kernels " kernels, at most " most " registers, no spills"
  }' "$@"
