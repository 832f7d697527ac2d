/* The ops of graphs that continue sequences (model/generation.h), as ops.h: what they give for a
 * row does not depend on the other rows and sequences of the call. Internal to kernels/cuda. */
#ifndef FSDPD_KERNELS_CUDA_GENERATION_H
#define FSDPD_KERNELS_CUDA_GENERATION_H

#include "kernels/cuda/ops.h"

#ifdef __cplusplus
#include "kernels/cuda/platform.h"

namespace fsdpd {
enum { WARPS = BLOCK / WARP };

extern "C" {
#endif

cuda_run cuda_run_attention_cached; /* attention_cached.cu */
cuda_run cuda_run_linear_rows;      /* linear_rows.cu; for linear_keeps_rows_apart */

#ifdef __cplusplus
}
}
#endif

#endif
