/* See kernels.cc. */
#include "kernels/cuda/attention_backward.cu"
