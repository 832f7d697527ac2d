/* The kernels of kernels/cuda as C++, for the emulation. */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" /* packs that are read only where filled */
#include "kernels/cuda/attention.cu"
#include "kernels/cuda/conv.cu"
#include "kernels/cuda/element.cu"
#include "kernels/cuda/embedding.cu"
#include "kernels/cuda/head.cu"
#include "kernels/cuda/norm.cu"
#include "kernels/cuda/pool.cu"
#include "kernels/cuda/reduce.cu"
#include "kernels/cuda/rope.cu"
#include "kernels/cuda/softmax.cu"
#include "kernels/cuda/step.cu"
