/*
 * cuDNN's backend for tests: descriptors keep their attributes, and an execution plan evaluates its
 * graph of operations element by element, in float, with bf16 values rounded. So the results test
 * the graph. It offers three engines, the first of which has other bits in every run; only the last
 * uses no tensor cores. Scratch memory is poisoned. Graphs and calls are recorded and can be made
 * to fail, like those of the runtime (cuda_stub.h).
 *
 * The stub accepts any graph; tests/unit/test_cudnn_graphs.c tests which graphs cuDNN accepts.
 */
#ifdef FSDPD_HAVE_CUDNN

#include "cuda_stub.h"

#include <map>
#include <math.h>
#include <memory>
#include <string.h>
#include <string>
#include <vector>

#include <cudnn.h>

namespace
{

struct node {
    cudnnBackendDescriptorType_t type;
    std::map<int, std::vector<char>> attributes;
    bool finalized = false;

    template <typename T> T get(int name, T otherwise = T()) const
    {
        auto found = attributes.find(name);
        if (found == attributes.end()) return otherwise;
        memcpy(&otherwise, found->second.data(), sizeof otherwise);
        return otherwise;
    }
    const node *linked(int name) const
    {
        return get<const node *>(name, nullptr);
    }
    const int64_t *numbers(int name) const
    {
        return (const int64_t *)attributes.at(name).data();
    }
};

struct handle {
    void *stream = nullptr;
};

enum { ENGINE_UNSTEADY = 7, ENGINE_STEADY = 6, ENGINE_EXACT = 5, ENGINES = 3 };
enum { DIMS = 4, WORKSPACE_FIXED = 320 };

const float LOW = -1e20f; /* lower than any score of what is seen */

std::string last_error;

cudnnStatus_t fail(cudnnStatus_t status, const char *why)
{
    last_error = why;
    return status;
}

/* ---- tensors ---- */

struct values {
    const node *tensor = nullptr;
    std::vector<float> memory; /* by offset, in the order of the strides */

    int64_t dim(int d) const
    {
        return tensor->numbers(CUDNN_ATTR_TENSOR_DIMENSIONS)[d];
    }
    /* Several indices share the element of a smaller dimension. */
    int64_t offset(const int64_t *at, const int64_t *sizes) const
    {
        int64_t offset = 0;
        for (int d = 0; d < DIMS; d++)
            offset += at[d] / (sizes[d] / dim(d)) * tensor->numbers(CUDNN_ATTR_TENSOR_STRIDES)[d];
        return offset;
    }
    float &of(const int64_t *at, const int64_t *sizes)
    {
        return memory[(size_t)offset(at, sizes)];
    }
};

template <typename F> void each(const int64_t *dims, F visit)
{
    int64_t at[DIMS];
    for (at[0] = 0; at[0] < dims[0]; at[0]++)
        for (at[1] = 0; at[1] < dims[1]; at[1]++)
            for (at[2] = 0; at[2] < dims[2]; at[2]++)
                for (at[3] = 0; at[3] < dims[3]; at[3]++) visit(at);
}

float widened(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t rounded(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

bool is_bf16(const node *tensor)
{
    return tensor->get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_BFLOAT16;
}

struct binding {
    void *address = nullptr; /* of an operand */
    float value = 0;         /* of a number in host memory */
};

/* The names of a convolution's attributes, by its kind, and which of its operands it computes. */
struct conv_names {
    cudnnBackendDescriptorType_t type;
    const char *name;
    cudnnBackendAttributeName_t window, beta, operands[3];
    int result;
};

const conv_names conv_kinds[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
     "conv",
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
     2},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     "conv_data",
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
     0},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     "conv_weights",
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
     1},
};

const conv_names &conv_names_of(const node *operation)
{
    const conv_names *names = conv_kinds;
    while (names->type != operation->type) names++;
    return *names;
}

/* ---- evaluating a graph ---- */

class machine
{
  public:
    machine(const std::map<int64_t, binding> &bindings) : bindings_(bindings)
    {
    }

    void run(const node *operation)
    {
        switch (operation->type) {
        case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: matmul(operation); break;
        case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: reduce(operation); break;
        case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: reshape(operation); break;
        case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
            convolve(operation);
            break;
        default: pointwise(operation); break;
        }
    }

  private:
    std::map<int64_t, binding> bindings_;
    std::map<const node *, values> known_;

    values &made(const node *tensor)
    {
        values &v = known_[tensor];
        v.tensor = tensor;
        int64_t last = 0;
        for (int d = 0; d < DIMS; d++)
            last += (v.dim(d) - 1) * tensor->numbers(CUDNN_ATTR_TENSOR_STRIDES)[d];
        v.memory.assign((size_t)last + 1, NAN);
        return v;
    }

    values &read(const node *tensor)
    {
        auto found = known_.find(tensor);
        if (found != known_.end()) return found->second;
        values &v = made(tensor);
        const binding &from = bindings_.at(tensor->get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID));
        if (tensor->get<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE)) {
            v.memory[0] = from.value;
            return v;
        }
        const int64_t *dims = tensor->numbers(CUDNN_ATTR_TENSOR_DIMENSIONS);
        each(dims, [&](const int64_t *at) {
            int64_t i = v.offset(at, dims);
            v.memory[(size_t)i] = is_bf16(tensor) ? widened(((const uint16_t *)from.address)[i])
                                                  : ((const float *)from.address)[i];
        });
        return v;
    }

    void write(values &v)
    {
        const node *tensor = v.tensor;
        const int64_t *dims = tensor->numbers(CUDNN_ATTR_TENSOR_DIMENSIONS);
        bool inside = tensor->get<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
        void *to = inside ? nullptr
                          : bindings_.at(tensor->get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)).address;
        each(dims, [&](const int64_t *at) {
            int64_t i = v.offset(at, dims);
            float &value = v.memory[(size_t)i];
            if (is_bf16(tensor)) value = widened(rounded(value));
            if (to == nullptr) return;
            if (stub_is_wrong() && (at[2] % 2 == 1 || dims[2] == 1)) value *= 0.5F;
            if (is_bf16(tensor)) ((uint16_t *)to)[i] = rounded(value);
            else ((float *)to)[i] = value;
        });
    }

    void matmul(const node *operation)
    {
        values &a = read(operation->linked(CUDNN_ATTR_OPERATION_MATMUL_ADESC));
        values &b = read(operation->linked(CUDNN_ATTR_OPERATION_MATMUL_BDESC));
        values &c = made(operation->linked(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
        const int64_t *dims = c.tensor->numbers(CUDNN_ATTR_TENSOR_DIMENSIONS);
        int64_t depth = a.dim(3);
        each(dims, [&](const int64_t *at) {
            const int64_t a_sizes[] = {dims[0], dims[1], dims[2], depth};
            const int64_t b_sizes[] = {dims[0], dims[1], depth, dims[3]};
            double sum = 0;
            for (int64_t k = 0; k < depth; k++) {
                const int64_t of_a[] = {at[0], at[1], at[2], k}, of_b[] = {at[0], at[1], k, at[3]};
                sum += (double)a.of(of_a, a_sizes) * b.of(of_b, b_sizes);
            }
            c.of(at, dims) = (float)sum;
        });
        write(c);
    }

    void reduce(const node *operation)
    {
        const node *kind = operation->linked(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
        bool largest = kind->get<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR) ==
                       CUDNN_REDUCE_TENSOR_MAX;
        values &x = read(operation->linked(CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
        values &y = made(operation->linked(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
        const int64_t *dims = x.tensor->numbers(CUDNN_ATTR_TENSOR_DIMENSIONS);
        each(dims, [&](const int64_t *at) {
            float &to = y.of(at, dims), value = x.of(at, dims);
            to = isnan(to) ? value : largest ? fmaxf(to, value) : to + value;
        });
        for (float &value : y.memory)
            if (largest && value < LOW) value = NAN; /* a row without a key has no softmax */
        write(y);
    }

    void reshape(const node *operation)
    {
        values &x = read(operation->linked(CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
        values &y = made(operation->linked(CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
        y.memory = x.memory;
        write(y);
    }

    /* Sums in double; groups follow from the channels of x and of the weight. */
    void convolve(const node *operation)
    {
        const conv_names &names = conv_names_of(operation);
        const node *window = operation->linked(names.window), *tensors[3];
        values *operands[3]; /* x, the weight and y */
        for (int i = 0; i < 3; i++) tensors[i] = operation->linked(names.operands[i]);
        float beta = operation->get<float>(names.beta);
        for (int i = 0; i < 3; i++)
            operands[i] = i == names.result && beta == 0 ? &made(tensors[i]) : &read(tensors[i]);
        values &x = *operands[0], &w = *operands[1], &y = *operands[2],
               &made = *operands[names.result];
        std::vector<double> sums(made.memory.size(), 0);
        const int64_t *padding = window->numbers(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
        const int64_t *stride = window->numbers(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
        const int64_t *dilation = window->numbers(CUDNN_ATTR_CONVOLUTION_DILATIONS);
        const int64_t *kernel = tensors[1]->numbers(CUDNN_ATTR_TENSOR_DIMENSIONS);
        const int64_t *out = tensors[2]->numbers(CUDNN_ATTR_TENSOR_DIMENSIONS);
        const int64_t *in = tensors[0]->numbers(CUDNN_ATTR_TENSOR_DIMENSIONS);
        int64_t outputs = kernel[0] / (in[1] / kernel[1]); /* of a group */
        each(out, [&](const int64_t *at) {
            const int64_t taps[] = {1, kernel[1], kernel[2], kernel[3]};
            each(taps, [&](const int64_t *k) {
                const int64_t from[] = {at[0], at[1] / outputs * kernel[1] + k[1],
                                        at[2] * stride[0] - padding[0] + k[2] * dilation[0],
                                        at[3] * stride[1] - padding[1] + k[3] * dilation[1]};
                if (from[2] < 0 || from[2] >= in[2] || from[3] < 0 || from[3] >= in[3]) return;
                const int64_t tap[] = {at[1], k[1], k[2], k[3]};
                int64_t i[] = {x.offset(from, in), w.offset(tap, kernel), y.offset(at, out)};
                double product = 1;
                for (int o = 0; o < 3; o++)
                    if (o != names.result) product *= operands[o]->memory[(size_t)i[o]];
                sums[(size_t)i[names.result]] += product;
            });
        });
        for (size_t i = 0; i < sums.size(); i++)
            made.memory[i] = (float)(beta != 0 ? sums[i] + beta * (double)made.memory[i] : sums[i]);
        write(made);
    }

    void pointwise(const node *operation)
    {
        const node *kind = operation->linked(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        const node *b_tensor = operation->linked(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
        const node *t_tensor = operation->linked(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
        cudnnPointwiseMode_t mode = kind->get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
        int64_t axis = kind->get<int64_t>(CUDNN_ATTR_POINTWISE_AXIS, -1);
        values &x = read(operation->linked(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
        values *b = b_tensor != nullptr ? &read(b_tensor) : nullptr;
        values *t = t_tensor != nullptr ? &read(t_tensor) : nullptr;
        values &y = made(operation->linked(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
        const int64_t *dims = y.tensor->numbers(CUDNN_ATTR_TENSOR_DIMENSIONS);
        each(dims, [&](const int64_t *at) {
            float first = x.of(at, dims), other = b != nullptr ? b->of(at, dims) : NAN;
            float &to = y.of(at, dims);
            switch (mode) {
            case CUDNN_POINTWISE_ADD: to = first + other; break;
            case CUDNN_POINTWISE_SUB: to = first - other; break;
            case CUDNN_POINTWISE_MUL: to = first * other; break;
            case CUDNN_POINTWISE_DIV: to = first / other; break;
            case CUDNN_POINTWISE_EXP: to = expf(first); break;
            case CUDNN_POINTWISE_LOG: to = logf(first); break;
            case CUDNN_POINTWISE_CMP_GE: to = first >= other; break;
            case CUDNN_POINTWISE_GEN_INDEX: to = (float)at[axis]; break;
            case CUDNN_POINTWISE_BINARY_SELECT: to = t->of(at, dims) != 0 ? first : other; break;
            default: to = NAN; break;
            }
        });
        write(y);
    }
};

/* ---- the record ---- */

std::string name_of(const node *operation)
{
    switch (operation->type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: return "matmul";
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: return "reshape";
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        return conv_names_of(operation).name;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return operation->linked(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
                           ->get<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR) ==
                       CUDNN_REDUCE_TENSOR_MAX
                   ? "max"
                   : "sum";
    default: break;
    }
    switch (operation->linked(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
                ->get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE)) {
    case CUDNN_POINTWISE_ADD: return "+";
    case CUDNN_POINTWISE_SUB: return "-";
    case CUDNN_POINTWISE_MUL: return "*";
    case CUDNN_POINTWISE_DIV: return "/";
    case CUDNN_POINTWISE_EXP: return "exp";
    case CUDNN_POINTWISE_LOG: return "log";
    case CUDNN_POINTWISE_CMP_GE: return ">=";
    case CUDNN_POINTWISE_GEN_INDEX: return "index";
    case CUDNN_POINTWISE_BINARY_SELECT: return "select";
    default: return "?";
    }
}

std::vector<const node *> operations_of(const node *graph)
{
    const std::vector<char> &bytes = graph->attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    std::vector<const node *> operations(bytes.size() / sizeof(const node *));
    memcpy((void *)operations.data(), bytes.data(), bytes.size());
    return operations;
}

/* ---- plans ---- */

const node *graph_of(const node *plan)
{
    return plan->linked(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
        ->linked(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
}

/* The need of an engine that keeps the first operation's result in 16 bits. */
int64_t workspace_of(const node *plan)
{
    const node *first = operations_of(graph_of(plan)).front();
    int64_t bytes = WORKSPACE_FIXED;
    if (first->type != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
        for (const node *operation : operations_of(graph_of(plan)))
            if (operation->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
                const node *scores = operation->linked(CUDNN_ATTR_OPERATION_MATMUL_CDESC);
                const int64_t *dims = scores->numbers(CUDNN_ATTR_TENSOR_DIMENSIONS);
                return bytes + 2 * dims[0] * dims[1] * dims[2] * dims[3];
            }
    }
    return bytes;
}

template <typename T>
cudnnStatus_t give(const std::vector<T> &from, int64_t most, int64_t *count, void *to)
{
    int64_t n = (int64_t)from.size() < most ? (int64_t)from.size() : most;
    if (count != nullptr) *count = n;
    memcpy(to, from.data(), (size_t)n * sizeof(T));
    return CUDNN_STATUS_SUCCESS;
}

} // namespace

extern "C" {

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_NOT_SUPPORTED_SHAPE ? "CUDNN_STATUS_NOT_SUPPORTED_SHAPE"
           : status == CUDNN_STATUS_EXECUTION_FAILED  ? "CUDNN_STATUS_EXECUTION_FAILED"
           : status == CUDNN_STATUS_BAD_PARAM         ? "CUDNN_STATUS_BAD_PARAM"
           : status == CUDNN_STATUS_SUCCESS           ? "CUDNN_STATUS_SUCCESS"
                                                      : "another status";
}

void cudnnGetLastErrorString(char *message, size_t size)
{
    snprintf(message, size, "%s", last_error.c_str());
    last_error.clear();
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *made)
{
    *made = (cudnnHandle_t) new handle;
    return (cudnnStatus_t)stub_note("cudnnCreate", nullptr);
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t which)
{
    stub_synchronize_device();
    delete (handle *)which;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t which, cudaStream_t stream)
{
    ((handle *)which)->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *made)
{
    node *n = new node;
    n->type = type;
    *made = n;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t which)
{
    delete (node *)which;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t which,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    node *n = (node *)which;
    if (n->finalized) return fail(CUDNN_STATUS_BAD_PARAM, "an attribute of what is final");
    size_t size = type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_BACKEND_DESCRIPTOR ||
                          type == CUDNN_TYPE_VOID_PTR
                      ? 8
                  : type == CUDNN_TYPE_BOOLEAN || type == CUDNN_TYPE_CHAR ? 1
                                                                          : 4;
    const char *bytes = (const char *)values;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < count; i++)
            if (!((node *const *)values)[i]->finalized)
                return fail(CUDNN_STATUS_BAD_PARAM, "a descriptor that is not final");
    n->attributes[name].assign(bytes, bytes + (size_t)count * size);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t which)
{
    node *n = (node *)which;
    int error = stub_note("cudnnBackendFinalize", nullptr);
    if (error != 0) return fail((cudnnStatus_t)error, "as the test said");
    if (n->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
        std::string text = "graph:";
        for (const node *operation : operations_of(n)) text += " " + name_of(operation);
        stub_note(text.c_str(), nullptr);
    }
    n->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t which,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t most, int64_t *count,
                                       void *values)
{
    const node *n = (const node *)which;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
        int64_t engine = ENGINE_UNSTEADY;
        for (int64_t i = 0; i < ENGINES && i < most; i++, engine--) {
            node *config = ((node **)values)[i];
            const node *graph = n->linked(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
            config->attributes[CUDNN_ATTR_ENGINE_GLOBAL_INDEX].assign((const char *)&engine,
                                                                      (const char *)(&engine + 1));
            config->attributes[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH].assign((const char *)&graph,
                                                                             (const char *)(&graph +
                                                                                            1));
            config->finalized = true;
        }
        *count = ENGINES;
        return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE: /* is written to the given descriptor */
        ((node **)values)[0]->attributes = n->attributes;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
        return give(std::vector<int64_t>{n->get<int64_t>(name)}, most, count, values);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: {
        std::vector<cudnnBackendNumericalNote_t> notes;
        int64_t engine = n->get<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
        if (engine != ENGINE_EXACT) notes.push_back(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
        if (engine == ENGINE_UNSTEADY) notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
        return give(notes, most, count, values);
    }
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        return give(std::vector<int64_t>{workspace_of(n)}, most, count, values);
    default: return fail(CUDNN_STATUS_BAD_PARAM, "an attribute that the stub does not have");
    }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t which, cudnnBackendDescriptor_t plan_descriptor,
                                  cudnnBackendDescriptor_t pack_descriptor)
{
    const node *plan = (const node *)plan_descriptor, *pack = (const node *)pack_descriptor;
    void *stream = ((handle *)which)->stream;
    stub_count_launch("(cudnn)");
    int error = stub_note("cudnnBackendExecute", stream);
    if (error != 0) return (cudnnStatus_t)error;
    const node *config = plan->linked(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (config->get<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX) == ENGINE_EXACT)
        stub_note("cudnn without tensor cores", stream);
    const int64_t *ids = pack->numbers(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const std::vector<char> &bytes = pack->attributes.at(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    void *const *addresses = (void *const *)bytes.data();
    std::map<int64_t, binding> bindings;
    for (size_t i = 0; i < bytes.size() / sizeof(void *); i++) {
        binding &b = bindings[ids[i]];
        b.address = addresses[i];
        if (!stub_is_of_device(addresses[i])) b.value = *(const float *)addresses[i];
        else if ((uintptr_t)addresses[i] % 16 != 0) return CUDNN_STATUS_BAD_PARAM;
    }
    void *workspace = pack->get<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    if (!stub_is_of_device(workspace)) return CUDNN_STATUS_BAD_PARAM;
    size_t size = (size_t)workspace_of(plan);
    std::vector<const node *> operations = operations_of(graph_of(plan));
    auto work = [=] {
        memset(workspace, 0xff, size);
        machine m(bindings);
        for (const node *operation : operations) m.run(operation);
        return 0;
    };
    error = stub_enqueue(
        stream, [=] { return work; }, nullptr);
    return error == 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

} /* extern "C" */

#endif
