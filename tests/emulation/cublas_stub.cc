/*
 * cuBLASLt for tests: products are plain loops, summed in double. The stub refuses shapes that do
 * not fit and addresses that are less aligned than declared.
 */
#include "cuda_stub.h"
#include "stub_streams.h"

#include <cublasLt.h>

#include <chrono>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <thread>

namespace
{

struct stub_matmul {
    int32_t transposed[2] = {0, 0}, epilogue = CUBLASLT_EPILOGUE_DEFAULT, bias_type = CUDA_R_32F;
    void *bias = nullptr, *kept = nullptr;
    int64_t kept_stride = 0;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
};

struct stub_preference {
    uint64_t most = 0;
    uint32_t alignment = 256; /* cuBLASLt's default */
};

/* An algorithm is the alignments of its operands, 0 for those of the epilogue at 16, and a number. */
struct stub_algorithm {
    uint32_t alignment, bias, kept;
    int32_t number;
};

stub_algorithm algorithm_of(const cublasLtMatmulAlgo_t *algorithm)
{
    stub_algorithm of;
    memcpy(&of, algorithm, sizeof of);
    return of;
}

uint64_t workspace_of(int number)
{
    return 1000 + 100 * (uint64_t)number;
}

/* Of several candidates each is faster than those before it. */
void take_time(int number)
{
    int slower = stub_candidates() - 1 - number;
    if (slower > 0) std::this_thread::sleep_for(std::chrono::milliseconds(2 * slower));
}

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

const double GELU_ROOT = 0.7978845608028654, GELU_CUBE = 0.044715;

double gelu(double x)
{
    return 0.5 * x * (1 + tanh(GELU_ROOT * (x + GELU_CUBE * x * x * x)));
}

double gelu_slope(double x)
{
    double t = tanh(GELU_ROOT * (x + GELU_CUBE * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * GELU_ROOT * (1 + 3 * GELU_CUBE * x * x);
}

bool adds_bias(int32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

bool passes_gelu(int32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_GELU || epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

bool has_kept(int32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_DGELU;
}

/* The epilogue's name after a space; empty for none. */
const char *name_of(int32_t epilogue)
{
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT: return "";
    case CUBLASLT_EPILOGUE_BIAS: return " bias";
    case CUBLASLT_EPILOGUE_BGRADA: return " bgrada";
    case CUBLASLT_EPILOGUE_BGRADB: return " bgradb";
    case CUBLASLT_EPILOGUE_GELU: return " gelu";
    case CUBLASLT_EPILOGUE_GELU_BIAS: return " gelu_bias";
    case CUBLASLT_EPILOGUE_GELU_AUX: return " gelu_aux";
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: return " gelu_aux_bias";
    case CUBLASLT_EPILOGUE_DGELU: return " dgelu";
    default: return " ?";
    }
}

struct product {
    stub_matmul operation;
    stub_layout a, b, d;
    const void *a_memory, *b_memory, *c_memory;
    void *d_memory;
    float alpha, beta;

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
    double finished(double sum, int64_t i, int64_t j) const
    {
        int32_t epilogue = operation.epilogue;
        int64_t at = i + j * operation.kept_stride;
        if (adds_bias(epilogue)) sum += read(operation.bias, (cudaDataType)operation.bias_type, i);
        if (epilogue == CUBLASLT_EPILOGUE_DGELU)
            return sum * gelu_slope(read(operation.kept, d.type, at));
        if (has_kept(epilogue)) write(operation.kept, d.type, at, sum);
        return passes_gelu(epilogue) ? gelu(sum) : sum;
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
                sum = finished(alpha * sum, i, j);
                int64_t at = i + j * d.stride;
                if (beta != 0) sum += beta * read(c_memory, d.type, at);
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

/* The shapes must fit, as cuBLASLt requires. */
bool fits(const stub_matmul *desc, const stub_layout *a, const stub_layout *b, const stub_layout *d)
{
    uint64_t m = desc->transposed[0] ? a->columns : a->rows;
    uint64_t k = desc->transposed[0] ? a->rows : a->columns;
    uint64_t depth = desc->transposed[1] ? b->columns : b->rows;
    uint64_t n = desc->transposed[1] ? b->rows : b->columns;
    if (has_kept(desc->epilogue) &&
        (desc->kept_stride % 8 != 0 || desc->kept_stride < (int64_t)d->rows))
        return false;
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
    stub_synchronize_device();
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
    void *to = nullptr;
    size_t wanted = 4;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: to = &matmul->transposed[0]; break;
    case CUBLASLT_MATMUL_DESC_TRANSB: to = &matmul->transposed[1]; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: to = &matmul->epilogue; break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: to = &matmul->bias_type; break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: to = &matmul->bias, wanted = 8; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: to = &matmul->kept, wanted = 8; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: to = &matmul->kept_stride, wanted = 8; break;
    default: break;
    }
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
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t *results, int *count)
{
    int error = stub_note_text("cublasLtMatmulAlgoGetHeuristic", "");
    if (error != 0) return (cublasStatus_t)error;
    const stub_matmul *desc = (const stub_matmul *)operation;
    if (!fits(desc, (stub_layout *)a, (stub_layout *)b, (stub_layout *)d))
        return CUBLAS_STATUS_INVALID_VALUE;
    const stub_preference *wanted = (const stub_preference *)preference;
    *count = most < stub_candidates() ? most : stub_candidates();
    for (int i = 0; i < *count; i++) {
        memset(&results[i], 0, sizeof results[i]);
        results[i].state = CUBLAS_STATUS_SUCCESS;
        results[i].workspaceSize = workspace_of(i) < wanted->most ? workspace_of(i) : wanted->most;
        /* Operands of the epilogue have the alignment of their present addresses. */
        const stub_algorithm made = {wanted->alignment, (uint32_t)((uintptr_t)desc->bias % 16),
                                     (uint32_t)((uintptr_t)desc->kept % 16), i};
        memcpy(&results[i].algo, &made, sizeof made);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    int number = algorithm_of(algorithm).number;
    if (!fits((const stub_matmul *)operation, (stub_layout *)a, (stub_layout *)b, (stub_layout *)d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (number < 0 || number >= stub_candidates()) return CUBLAS_STATUS_NOT_SUPPORTED;
    result->workspaceSize = workspace_of(number);
    return CUBLAS_STATUS_SUCCESS;
}

/* The algorithm's number; each other property is the alignment. */
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void *value, size_t size, size_t *written)
{
    const stub_algorithm of = algorithm_of(algorithm);
    if (size != 4) return CUBLAS_STATUS_INVALID_VALUE;
    if (attribute == CUBLASLT_ALGO_CONFIG_ID) memcpy(value, &of.number, size);
    else memcpy(value, &of.alignment, size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void *alpha,
                              const void *a_memory, cublasLtMatrixLayout_t a, const void *b_memory,
                              cublasLtMatrixLayout_t b, const void *beta, const void *c_memory,
                              cublasLtMatrixLayout_t c, void *d_memory, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    cublasComputeType_t compute = ((const stub_matmul *)operation)->compute;
    const char *in = compute == CUBLAS_COMPUTE_32F             ? "f32"
                     : compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? "tf32"
                                                               : "?";
    const std::string epilogue = name_of(((const stub_matmul *)operation)->epilogue);
    stub_count_launch("(product)" + epilogue);
    int error = stub_note_text("matmul", stub_name(stream) + " " + in + epilogue);
    if (error != 0) return (cublasStatus_t)error;
    product p = {*(stub_matmul *)operation,
                 *(stub_layout *)a,
                 *(stub_layout *)b,
                 *(stub_layout *)d,
                 a_memory,
                 b_memory,
                 c_memory,
                 d_memory,
                 *(const float *)alpha,
                 *(const float *)beta};
    const stub_algorithm by = algorithm_of(algorithm);
    if ((by.bias == 0 && (uintptr_t)p.operation.bias % 16 != 0) ||
        (by.kept == 0 && (uintptr_t)p.operation.kept % 16 != 0) ||
        workspace_bytes < (by.number > 0 ? workspace_of(by.number) : 0))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (has_kept(p.operation.epilogue) && p.beta != 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (((uintptr_t)a_memory | (uintptr_t)b_memory | (uintptr_t)c_memory | (uintptr_t)d_memory) %
            by.alignment !=
        0)
        return CUBLAS_STATUS_INVALID_VALUE; /* a real one would read elsewhere, or fail later */
    const stub_layout *of_c = (const stub_layout *)c;
    if (of_c->type != p.d.type || of_c->rows != p.d.rows || of_c->columns != p.d.columns ||
        (c_memory == d_memory && of_c->stride != p.d.stride))
        return CUBLAS_STATUS_INVALID_VALUE;
    /* What the result overwrites must not be read, except C in place; scratch memory starts at a
     * multiple of 256 bytes. */
    if (d_memory == a_memory || d_memory == b_memory || (uintptr_t)workspace % 256 != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((p.alpha != 1 && p.operation.epilogue != CUBLASLT_EPILOGUE_DEFAULT) ||
        (workspace == nullptr && workspace_bytes > 0))
        return CUBLAS_STATUS_INVALID_VALUE;
    auto work = [=] {
        memset(workspace, 0xff, workspace_bytes);
        take_time(by.number);
        return p.run();
    };
    error = stub_enqueue(
        stream, [=] { return work; }, nullptr);
    return error == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

} /* extern "C" */
