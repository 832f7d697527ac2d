/*
 * cuBLASLt for tests: products are plain loops, summed in double. Shapes that do not fit and
 * addresses that are less aligned than was said are refused.
 */
#include "cuda_stub.h"
#include "stub_streams.h"

#include <cublasLt.h>

#include <stdlib.h>
#include <string.h>
#include <string>

namespace
{

struct stub_matmul {
    int32_t transposed[2] = {0, 0}, epilogue = CUBLASLT_EPILOGUE_DEFAULT, bias_type = CUDA_R_32F;
    void *bias = nullptr;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
};

struct stub_preference {
    uint64_t most = 0;
    uint32_t alignment = 256; /* as cuBLASLt has it if nothing is said */
};

struct stub_layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t stride;
};

float read(const void *memory, cudaDataType type, int64_t i)
{
    if (type == CUDA_R_32F) return ((const float *)memory)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)memory)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void write(void *memory, cudaDataType type, int64_t i, double value)
{
    float rounded = (float)value;
    if (type == CUDA_R_32F) {
        ((float *)memory)[i] = rounded;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    bool nan = rounded != rounded;
    ((uint16_t *)memory)[i] =
        (uint16_t)(nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct product {
    stub_matmul operation;
    stub_layout a, b, d;
    const void *a_memory, *b_memory;
    void *d_memory;
    float beta;

    float of_a(int64_t i, int64_t k) const
    {
        int64_t at = operation.transposed[0] ? k + i * a.stride : i + k * a.stride;
        return read(a_memory, a.type, at);
    }
    float of_b(int64_t k, int64_t j) const
    {
        int64_t at = operation.transposed[1] ? j + k * b.stride : k + j * b.stride;
        return read(b_memory, b.type, at);
    }
    int run() const
    {
        int64_t m = (int64_t)d.rows, n = (int64_t)d.columns;
        int64_t depth = (int64_t)(operation.transposed[0] ? a.rows : a.columns);
        cudaDataType bias_type = (cudaDataType)operation.bias_type;
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < m; i++) {
                double sum = 0;
                for (int64_t k = 0; k < depth; k++) sum += (double)of_a(i, k) * of_b(k, j);
                if (operation.epilogue == CUBLASLT_EPILOGUE_BIAS)
                    sum += read(operation.bias, bias_type, i);
                int64_t at = i + j * d.stride;
                if (beta != 0) sum += beta * read(d_memory, d.type, at);
                write(d_memory, d.type, at, sum);
            }
        bool of_first = operation.epilogue == CUBLASLT_EPILOGUE_BGRADA;
        if (!of_first && operation.epilogue != CUBLASLT_EPILOGUE_BGRADB) return 0;
        for (int64_t i = 0; i < (of_first ? m : n); i++) {
            double sum = 0;
            for (int64_t k = 0; k < depth; k++) sum += of_first ? of_a(i, k) : of_b(k, i);
            write(operation.bias, bias_type, i, sum);
        }
        return 0;
    }
};

/* The shapes must fit, as cuBLASLt wants them. */
bool fits(const stub_matmul *desc, const stub_layout *a, const stub_layout *b,
          const stub_layout *d)
{
    uint64_t m = desc->transposed[0] ? a->columns : a->rows;
    uint64_t k = desc->transposed[0] ? a->rows : a->columns;
    uint64_t depth = desc->transposed[1] ? b->columns : b->rows;
    uint64_t n = desc->transposed[1] ? b->rows : b->columns;
    return m == d->rows && n == d->columns && k == depth && a->type == b->type;
}

} // namespace

extern "C" {

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "execution failed";
}

size_t cublasLtGetVersion(void)
{
    return 130000;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = (cublasLtHandle_t)malloc(1);
    return (cublasStatus_t)stub_note_text("cublasLtCreate", "");
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t)
{
    stub_matmul *made = new stub_matmul;
    made->compute = compute;
    *desc = (cublasLtMatmulDesc_t)made;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete (stub_matmul *)desc;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size)
{
    stub_matmul *matmul = (stub_matmul *)desc;
    void *to = attribute == CUBLASLT_MATMUL_DESC_TRANSA           ? &matmul->transposed[0]
               : attribute == CUBLASLT_MATMUL_DESC_TRANSB         ? &matmul->transposed[1]
               : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE       ? &matmul->epilogue
               : attribute == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE ? &matmul->bias_type
               : attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER   ? (void *)&matmul->bias
                                                                  : nullptr;
    size_t wanted = attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? sizeof(void *) : 4;
    if (to == nullptr || size != wanted) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride)
{
    *layout = (cublasLtMatrixLayout_t) new stub_layout{type, rows, columns, stride};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete (stub_layout *)layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = (cublasLtMatmulPreference_t) new stub_preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete (stub_preference *)preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size)
{
    stub_preference *wanted = (stub_preference *)preference;
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) memcpy(&wanted->most, value, size);
    if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
        memcpy(&wanted->alignment, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int,
                                              cublasLtMatmulHeuristicResult_t *results, int *count)
{
    int error = stub_note_text("cublasLtMatmulAlgoGetHeuristic", "");
    if (error != 0) return (cublasStatus_t)error;
    const stub_matmul *desc = (const stub_matmul *)operation;
    if (!fits(desc, (stub_layout *)a, (stub_layout *)b, (stub_layout *)d))
        return CUBLAS_STATUS_INVALID_VALUE;
    memset(results, 0, sizeof *results);
    results->state = CUBLAS_STATUS_SUCCESS;
    const stub_preference *wanted = (const stub_preference *)preference;
    results->workspaceSize = wanted->most < 1000 ? wanted->most : 1000;
    memcpy(&results->algo, &wanted->alignment, sizeof wanted->alignment);
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void *alpha,
                              const void *a_memory, cublasLtMatrixLayout_t a, const void *b_memory,
                              cublasLtMatrixLayout_t b, const void *beta, const void *,
                              cublasLtMatrixLayout_t, void *d_memory, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    cublasComputeType_t compute = ((const stub_matmul *)operation)->compute;
    const char *in = compute == CUBLAS_COMPUTE_32F             ? "f32"
                     : compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? "tf32"
                                                               : "?";
    int error = stub_note_text("matmul", stub_name(stream) + " " + in);
    if (error != 0) return (cublasStatus_t)error;
    product p = {*(stub_matmul *)operation,
                 *(stub_layout *)a,
                 *(stub_layout *)b,
                 *(stub_layout *)d,
                 a_memory,
                 b_memory,
                 d_memory,
                 *(const float *)beta};
    uint32_t alignment;
    memcpy(&alignment, algorithm, sizeof alignment);
    if (((uintptr_t)a_memory | (uintptr_t)b_memory | (uintptr_t)d_memory) % alignment != 0)
        return CUBLAS_STATUS_INVALID_VALUE; /* a real one would read elsewhere, or fail later */
    if (*(const float *)alpha != 1 || (workspace == nullptr && workspace_bytes > 0))
        return CUBLAS_STATUS_INVALID_VALUE;
    auto work = [=] {
        memset(workspace, 0xff, workspace_bytes);
        return p.run();
    };
    error = stub_enqueue(stream, [=] { return work; }, nullptr);
    return error == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

} /* extern "C" */
