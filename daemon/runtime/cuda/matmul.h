/*
 * Matrix products by cuBLASLt, prepared for fixed sizes: D = A B (+ D), all matrices in column
 * order, as in cuBLAS: our tensor (rows, columns) is its (columns, rows). The algorithm is selected
 * once per size and device.
 */
#ifndef FSDPD_RUNTIME_CUDA_MATMUL_H
#define FSDPD_RUNTIME_CUDA_MATMUL_H

#include "runtime/cuda/device_cuda.h"

enum matmul_epilogue {
    EPILOGUE_NONE,
    EPILOGUE_BIAS,           /* + bias (m), in the type of A */
    EPILOGUE_BIAS_OF_A,      /* also writes the sums of A over k, (m), f32 */
    EPILOGUE_BIAS_OF_B,      /* of B over k, (n), f32 */
    EPILOGUE_GELU,           /* D = gelu of the product, by tanh */
    EPILOGUE_GELU_BIAS,      /* of the product + bias */
    EPILOGUE_GELU_KEPT,      /* also writes the input of gelu, in D's type */
    EPILOGUE_GELU_BIAS_KEPT, /* both */
    EPILOGUE_GELU_GRADIENT,  /* D = the product times gelu's derivative at such a matrix, read */
};

/* The epilogue's operands beside D; NULL if unused. */
struct matmul_extras {
    void *bias, *kept; /* `kept`: m must be a multiple of 8 */
};

struct matmul_shape {
    int64_t m, n, k;   /* D (m, n), A (m, k), B (k, n), after the transpositions */
    bool a_transposed; /* A is stored as (k, m) */
    bool b_transposed;
    /* Elements from one column to the next in memory; 0: the size of a column. */
    int64_t a_stride, b_stride, d_stride;
    enum dtype in, out; /* f32 or bf16 */
    enum matmul_epilogue epilogue;
    bool accumulate; /* D is added to */
};

struct cuda_matmul {
    struct matmul_shape shape;
    struct cuda_device *device;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm; /* for operands at multiples of 16 bytes */
    uint64_t workspace_bytes;
};

/* UNIMPLEMENTED if cuBLASLt has nothing for the shape. */
status_t cuda_matmul_init(struct cuda_matmul *matmul, struct cuda_device *device,
                          const struct matmul_shape *shape) FSDPD_MUST_USE;
void cuda_matmul_deinit(struct cuda_matmul *matmul); /* of zeros: nothing */

/* `extras` may be NULL. bf16 parameters may be aligned to only 8 bytes: then another algorithm is
 * selected that needs no more workspace. */
status_t cuda_matmul_run(struct cuda_matmul *matmul, struct cuda_lane *lane, const void *a,
                         const void *b, void *d, const struct matmul_extras *extras,
                         void *workspace) FSDPD_MUST_USE;

/* Discards a device's algorithms. */
void cuda_matmul_forget(struct cuda_device *device);

#endif
