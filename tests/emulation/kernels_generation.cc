/* See kernels.cc. */
#include "kernels/cuda/attention_cached.cu"
#include "kernels/cuda/linear_rows.cu"
