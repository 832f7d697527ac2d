/* See matmul.h. */
#include "runtime/cuda/matmul.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Alignment of every operand in an arena except parameters, in bytes. */
enum { ALIGNMENT = 16 };

/* The choice for a shape; compared byte by byte, so it must be zeroed first. */
struct cuda_matmul_choice {
    struct matmul_shape shape;
    uint32_t alignment;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;
    struct cuda_matmul_choice *next;
};

static status_t blas_status(cublasStatus_t status, const char *call)
{
    if (status == CUBLAS_STATUS_SUCCESS) return NULL;
    enum status_code code = status == CUBLAS_STATUS_NOT_SUPPORTED  ? STATUS_UNIMPLEMENTED
                            : status == CUBLAS_STATUS_ALLOC_FAILED ? STATUS_RESOURCE_EXHAUSTED
                                                                   : STATUS_INTERNAL;
    return status_new(code, "%s: %s", call, cublasLtGetStatusString(status));
}

/* The name of the call, without its arguments. */
#define TRY_BLAS(function, ...) TRY(blas_status(function(__VA_ARGS__), #function))

static cudaDataType_t data_type(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static cublasComputeType_t compute_type(const struct cuda_matmul *matmul)
{
    bool rounds = matmul->device->tf32 && matmul->shape.in == DTYPE_F32;
    return rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

static status_t set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                    const void *value, size_t size)
{
    TRY_BLAS(cublasLtMatmulDescSetAttribute, operation, attribute, value, size);
    return NULL;
}

static bool has_bias(enum matmul_epilogue epilogue)
{
    switch (epilogue) {
    case EPILOGUE_BIAS:
    case EPILOGUE_BIAS_OF_A:
    case EPILOGUE_BIAS_OF_B:
    case EPILOGUE_GELU_BIAS:
    case EPILOGUE_GELU_BIAS_KEPT: return true;
    default: return false;
    }
}

static bool has_kept(enum matmul_epilogue epilogue)
{
    return epilogue == EPILOGUE_GELU_KEPT || epilogue == EPILOGUE_GELU_BIAS_KEPT ||
           epilogue == EPILOGUE_GELU_GRADIENT;
}

static status_t set_epilogue(cublasLtMatmulDesc_t operation, const struct matmul_shape *shape)
{
    static const cublasLtEpilogue_t epilogues[] = {
        [EPILOGUE_NONE] = CUBLASLT_EPILOGUE_DEFAULT,
        [EPILOGUE_BIAS] = CUBLASLT_EPILOGUE_BIAS,
        [EPILOGUE_BIAS_OF_A] = CUBLASLT_EPILOGUE_BGRADA,
        [EPILOGUE_BIAS_OF_B] = CUBLASLT_EPILOGUE_BGRADB,
        [EPILOGUE_GELU] = CUBLASLT_EPILOGUE_GELU,
        [EPILOGUE_GELU_BIAS] = CUBLASLT_EPILOGUE_GELU_BIAS,
        [EPILOGUE_GELU_KEPT] = CUBLASLT_EPILOGUE_GELU_AUX,
        [EPILOGUE_GELU_BIAS_KEPT] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        [EPILOGUE_GELU_GRADIENT] = CUBLASLT_EPILOGUE_DGELU,
    };
    cublasLtEpilogue_t epilogue = epilogues[shape->epilogue];
    TRY(set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (has_kept(shape->epilogue))
        TRY(set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &shape->m, sizeof shape->m));
    if (!has_bias(shape->epilogue)) return NULL;
    bool written = shape->epilogue == EPILOGUE_BIAS_OF_A || shape->epilogue == EPILOGUE_BIAS_OF_B;
    int32_t type = data_type(written ? DTYPE_F32 : shape->in);
    return set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
}

status_t cuda_matmul_set_extras(const struct cuda_matmul *matmul,
                                const struct matmul_extras *extras)
{
    if (has_bias(matmul->shape.epilogue))
        TRY(set(matmul->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &extras->bias,
                sizeof extras->bias));
    if (has_kept(matmul->shape.epilogue))
        TRY(set(matmul->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &extras->kept,
                sizeof extras->kept));
    return NULL;
}

static status_t make_layout(cublasLtMatrixLayout_t *layout, enum dtype dtype, int64_t rows,
                            int64_t columns, bool transposed, int64_t stride)
{
    int64_t high = transposed ? columns : rows, wide = transposed ? rows : columns;
    TRY_BLAS(cublasLtMatrixLayoutCreate, layout, data_type(dtype), (uint64_t)high, (uint64_t)wide,
             stride > 0 ? stride : high);
    return NULL;
}

static status_t describe(struct cuda_matmul *matmul)
{
    const struct matmul_shape *s = &matmul->shape;
    TRY_BLAS(cublasLtMatmulDescCreate, &matmul->operation, compute_type(matmul), CUDA_R_32F);
    cublasOperation_t a = s->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = s->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    TRY(set(matmul->operation, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a));
    TRY(set(matmul->operation, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b));
    TRY(set_epilogue(matmul->operation, s));
    TRY(make_layout(&matmul->a, s->in, s->m, s->k, s->a_transposed, s->a_stride));
    TRY(make_layout(&matmul->b, s->in, s->k, s->n, s->b_transposed, s->b_stride));
    return make_layout(&matmul->d, s->out, s->m, s->n, false, s->d_stride);
}

/* Split sums are added by a separate pass, in one order, never by atomic additions; unless any
 * algorithm is allowed, to compare times. */
static status_t set_preference(cublasLtMatmulPreference_t preference, size_t bytes,
                               uint32_t alignment)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4; i++)
        TRY_BLAS(cublasLtMatmulPreferenceSetAttribute, preference, alignments[i], &alignment,
                 sizeof alignment);
    uint32_t reductions = cuda_is_switched("FSDPD_CUDA_REDUCTIONS", "all")
                              ? CUBLASLT_REDUCTION_SCHEME_MASK
                              : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    TRY_BLAS(cublasLtMatmulPreferenceSetAttribute, preference,
             CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    TRY_BLAS(cublasLtMatmulPreferenceSetAttribute, preference,
             CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
    return NULL;
}

/* The algorithms that cuBLASLt proposes, at most `most`, which is set to their number. */
static status_t request_algorithms(struct cuda_matmul *matmul,
                                   cublasLtMatmulPreference_t preference, uint32_t alignment,
                                   size_t bytes, cublasLtMatmulHeuristicResult_t *results,
                                   int *most)
{
    int count = 0, usable = 0;
    memset(results, 0, (size_t)*most * sizeof *results);
    TRY(set_preference(preference, bytes, alignment));
    /* Of the epilogue's operands only the addresses matter; they are not read. */
    void *aligned = (void *)(uintptr_t)alignment;
    TRY(cuda_matmul_set_extras(matmul, &(struct matmul_extras){.bias = aligned, .kept = aligned}));
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(matmul->device->blas, matmul->operation, matmul->a,
                                       matmul->b, matmul->d, matmul->d, preference, *most, results,
                                       &count);
    for (int i = 0; i < count && status == CUBLAS_STATUS_SUCCESS; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS) results[usable++] = results[i];
    if (status == CUBLAS_STATUS_SUCCESS && usable < 1) status = CUBLAS_STATUS_NOT_SUPPORTED;
    /* Types that are unsupported only with an epilogue may be reported as invalid, too. */
    if (status == CUBLAS_STATUS_INVALID_VALUE && matmul->shape.epilogue != EPILOGUE_NONE)
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    *most = usable;
    return blas_status(status, "cublasLtMatmulAlgoGetHeuristic");
}

/* By their times only where operands have the alignment that almost all have: others are met in the
 * middle of a step. */
static status_t request_algorithm(struct cuda_matmul *matmul, cublasLtMatmulPreference_t preference,
                                  struct cuda_matmul_choice *choice, size_t most)
{
    cublasLtMatmulHeuristicResult_t results[CUDA_CANDIDATES_MAX];
    bool timed = choice->alignment == ALIGNMENT;
    int count = timed ? cuda_matmul_candidates() : 1;
    TRY(request_algorithms(matmul, preference, choice->alignment, most, results, &count));
    for (int i = 0; i < count; i++)
        if (results[i].workspaceSize > choice->workspace_bytes)
            choice->workspace_bytes = results[i].workspaceSize;
    cuda_matmul_choose(matmul, results, count, choice->workspace_bytes, &choice->algorithm);
    return NULL;
}

static int32_t property(const cublasLtMatmulAlgo_t *algorithm,
                        cublasLtMatmulAlgoConfigAttributes_t attribute)
{
    int32_t value = -1;
    size_t written = 0;
    cublasLtMatmulAlgoConfigGetAttribute(algorithm, attribute, &value, sizeof value, &written);
    return value;
}

char *cuda_matmul_describe_algorithm(const cublasLtMatmulAlgo_t *algorithm,
                                     char text[static CUDA_ALGORITHM_BYTES])
{
    snprintf(text, CUDA_ALGORITHM_BYTES,
             "algorithm %d, tile %d, stages %d, split-K %d, reduction %d",
             property(algorithm, CUBLASLT_ALGO_CONFIG_ID),
             property(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
             property(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
             property(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
             property(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME));
    return text;
}

/* What was chosen, for those who compare it. */
static void note_choice(struct cuda_device *device, const struct cuda_matmul_choice *choice)
{
    const struct matmul_shape *s = &choice->shape;
    char text[CUDA_ALGORITHM_BYTES];
    if (!cuda_is_switched("FSDPD_CUDA_PRODUCTS", "note")) return;
    cuda_note(device, "product (%lld, %lld) (%lld, %lld) of %s, epilogue %d: %s, %zu bytes",
              (long long)s->n, (long long)s->k, (long long)s->k, (long long)s->m, dtype_name(s->in),
              (int)s->epilogue, cuda_matmul_describe_algorithm(&choice->algorithm, text),
              choice->workspace_bytes);
}

/* For this shape and alignment, with a workspace of at most that many bytes. */
static status_t choose(struct cuda_matmul *matmul, uint32_t alignment, size_t most,
                       const struct cuda_matmul_choice **found)
{
    struct cuda_matmul_choice *choice = matmul->device->choices;
    while (choice != NULL && (choice->alignment != alignment || choice->workspace_bytes > most ||
                              memcmp(&choice->shape, &matmul->shape, sizeof matmul->shape) != 0))
        choice = choice->next;
    if (choice != NULL) {
        *found = choice;
        return NULL;
    }
    cublasLtMatmulPreference_t preference;
    TRY_BLAS(cublasLtMatmulPreferenceCreate, &preference);
    choice = mem_alloc(sizeof *choice);
    memcpy(&choice->shape, &matmul->shape, sizeof choice->shape);
    choice->alignment = alignment;
    status_t status = request_algorithm(matmul, preference, choice, most);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != NULL) {
        free(choice);
        return status;
    }
    choice->next = matmul->device->choices;
    matmul->device->choices = choice;
    note_choice(matmul->device, choice);
    *found = choice;
    return NULL;
}

status_t cuda_matmul_init(struct cuda_matmul *matmul, struct cuda_device *device,
                          const struct matmul_shape *shape)
{
    memset(matmul, 0, sizeof *matmul);
    matmul->device = device;
    matmul->shape.m = shape->m, matmul->shape.n = shape->n, matmul->shape.k = shape->k;
    matmul->shape.a_transposed = shape->a_transposed;
    matmul->shape.b_transposed = shape->b_transposed;
    matmul->shape.a_stride = shape->a_stride, matmul->shape.b_stride = shape->b_stride;
    matmul->shape.d_stride = shape->d_stride;
    matmul->shape.in = shape->in, matmul->shape.out = shape->out;
    matmul->shape.epilogue = shape->epilogue;
    matmul->shape.accumulate = shape->accumulate;
    const struct cuda_matmul_choice *choice = NULL;
    status_t status = describe(matmul);
    if (status == NULL) status = choose(matmul, ALIGNMENT, CUDA_MATMUL_WORKSPACE, &choice);
    if (status == NULL) {
        matmul->algorithm = choice->algorithm;
        matmul->workspace_bytes = choice->workspace_bytes;
        return NULL;
    }
    cuda_matmul_deinit(matmul);
    return status_wrap(status, "cuda: a product (%lld, %lld) (%lld, %lld) of %s to %s",
                       (long long)shape->m, (long long)shape->k, (long long)shape->k,
                       (long long)shape->n, dtype_name(shape->in), dtype_name(shape->out));
}

void cuda_matmul_deinit(struct cuda_matmul *matmul)
{
    if (matmul->a != NULL) cublasLtMatrixLayoutDestroy(matmul->a);
    if (matmul->b != NULL) cublasLtMatrixLayoutDestroy(matmul->b);
    if (matmul->d != NULL) cublasLtMatrixLayoutDestroy(matmul->d);
    if (matmul->operation != NULL) cublasLtMatmulDescDestroy(matmul->operation);
    memset(matmul, 0, sizeof *matmul);
}

/* The common alignment of all operands' addresses. */
static uint32_t alignment_of(const void *a, const void *b, const void *c, const void *d,
                             const struct matmul_extras *extras)
{
    uintptr_t bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | ALIGNMENT;
    if (extras != NULL) bits |= (uintptr_t)extras->bias | (uintptr_t)extras->kept;
    return (uint32_t)(bits & -bits);
}

static cublasStatus_t enqueue(const struct cuda_matmul *matmul,
                              const cublasLtMatmulAlgo_t *algorithm, const void *a, const void *b,
                              const struct matmul_sum *sum, void *d, void *workspace,
                              uint64_t workspace_bytes, cudaStream_t stream)
{
    return cublasLtMatmul(matmul->device->blas, matmul->operation, &sum->alpha, a, matmul->a, b,
                          matmul->b, &sum->beta, sum->c, matmul->d, d, matmul->d, algorithm,
                          workspace, workspace_bytes, stream);
}

/* The product alone, or added to D. */
static struct matmul_sum sum_of(const struct cuda_matmul *matmul, const void *d)
{
    return (struct matmul_sum){1, matmul->shape.accumulate ? 1 : 0, d};
}

cublasStatus_t cuda_matmul_enqueue(const struct cuda_matmul *matmul,
                                   const cublasLtMatmulAlgo_t *algorithm, const void *a,
                                   const void *b, void *d, void *workspace,
                                   uint64_t workspace_bytes, cudaStream_t stream)
{
    const struct matmul_sum sum = sum_of(matmul, d);
    return enqueue(matmul, algorithm, a, b, &sum, d, workspace, workspace_bytes, stream);
}

static status_t run(struct cuda_matmul *matmul, struct cuda_lane *lane, const void *a,
                    const void *b, const struct matmul_sum *sum, void *d,
                    const struct matmul_extras *extras, void *workspace)
{
    const cublasLtMatmulAlgo_t *algorithm = &matmul->algorithm;
    uint32_t alignment = alignment_of(a, b, sum->c, d, extras);
    if (alignment < ALIGNMENT) {
        const struct cuda_matmul_choice *choice = NULL;
        TRY(status_wrap(choose(matmul, alignment, matmul->workspace_bytes, &choice),
                        "a product of operands at multiples of %u bytes", alignment));
        algorithm = &choice->algorithm;
    }
    if (extras != NULL) TRY(cuda_matmul_set_extras(matmul, extras));
    return blas_status(enqueue(matmul, algorithm, a, b, sum, d, workspace, matmul->workspace_bytes,
                               lane->stream),
                       "cublasLtMatmul");
}

status_t cuda_matmul_run(struct cuda_matmul *matmul, struct cuda_lane *lane, const void *a,
                         const void *b, void *d, const struct matmul_extras *extras,
                         void *workspace)
{
    const struct matmul_sum sum = sum_of(matmul, d);
    return run(matmul, lane, a, b, &sum, d, extras, workspace);
}

status_t cuda_matmul_run_sum(struct cuda_matmul *matmul, struct cuda_lane *lane, const void *a,
                             const void *b, const struct matmul_sum *sum, void *d, void *workspace)
{
    return run(matmul, lane, a, b, sum, d, NULL, workspace);
}

void cuda_matmul_forget(struct cuda_device *device)
{
    for (struct cuda_matmul_choice *choice = device->choices, *next; choice != NULL;
         choice = next) {
        next = choice->next;
        free(choice);
    }
    device->choices = NULL;
}
