/*
 * Matrix products by cuBLASLt, prepared for fixed sizes: D = A B (+ D), all matrices in column
 * order, as in cuBLAS: our tensor (rows, columns) is its (columns, rows). The algorithm is selected
 * once per size and device: the fastest of those that cuBLASLt proposes (matmul_times.c).
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
    uint64_t workspace_bytes;       /* for any candidate: plans do not depend on times */
};

/* UNIMPLEMENTED if cuBLASLt has nothing for the shape. */
status_t cuda_matmul_init(struct cuda_matmul *matmul, struct cuda_device *device,
                          const struct matmul_shape *shape) FSDPD_MUST_USE;
void cuda_matmul_deinit(struct cuda_matmul *matmul); /* of zeros: nothing */

/* `extras` may be NULL. Operands may be aligned to less than 16 bytes, such as a bias in an odd place:
 * then another algorithm is selected that needs no more workspace. */
status_t cuda_matmul_run(struct cuda_matmul *matmul, struct cuda_lane *lane, const void *a,
                         const void *b, void *d, const struct matmul_extras *extras,
                         void *workspace) FSDPD_MUST_USE;

/* D = alpha A B + beta C, of a product without an epilogue; C may be an operand, or D. */
struct matmul_sum {
    float alpha, beta;
    const void *c;
};
status_t cuda_matmul_run_sum(struct cuda_matmul *matmul, struct cuda_lane *lane, const void *a,
                             const void *b, const struct matmul_sum *sum, void *d,
                             void *workspace) FSDPD_MUST_USE;

/* Scratch memory of any product, at most. */
#define CUDA_MATMUL_WORKSPACE ((size_t)32 << 20)

/* Discards a device's algorithms. */
void cuda_matmul_forget(struct cuda_device *device);

/* ---- matmul.c and matmul_times.c among themselves ---- */

enum { CUDA_CANDIDATES_MAX = 8, CUDA_ALGORITHM_BYTES = 128 };

/* How many algorithms cuBLASLt is asked for: FSDPD_CUDA_CANDIDATES. */
int cuda_matmul_candidates(void);
/* One of `count` candidates, in the order of cuBLASLt's estimates, which need at most `workspace`
 * bytes. See device_allow_timing. */
void cuda_matmul_choose(struct cuda_matmul *matmul,
                        const cublasLtMatmulHeuristicResult_t *candidates, int count,
                        uint64_t workspace, cublasLtMatmulAlgo_t *algorithm);
/* cuBLASLt's numbers; returns `text`. */
char *cuda_matmul_describe_algorithm(const cublasLtMatmulAlgo_t *algorithm,
                                     char text[static CUDA_ALGORITHM_BYTES]);
status_t cuda_matmul_set_extras(const struct cuda_matmul *matmul,
                                const struct matmul_extras *extras) FSDPD_MUST_USE;
/* Of the extras that were set. */
cublasStatus_t cuda_matmul_enqueue(const struct cuda_matmul *matmul,
                                   const cublasLtMatmulAlgo_t *algorithm, const void *a,
                                   const void *b, void *d, void *workspace,
                                   uint64_t workspace_bytes, cudaStream_t stream);

#endif
