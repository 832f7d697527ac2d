/* See dnn_graph.h. */
#include "runtime/cuda/dnn_graph.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"

#if CUDNN_VERSION < 90800
#error "cuDNN 9.8 or later is needed: graphs are finished for the properties of a device"
#endif

status_t dnn_status(cudnnStatus_t status, const char *call)
{
    if (status == CUDNN_STATUS_SUCCESS) return NULL;
    enum status_code code =
        status >= CUDNN_STATUS_NOT_SUPPORTED && status < CUDNN_STATUS_INTERNAL_ERROR
            ? STATUS_UNIMPLEMENTED
        : status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
            ? STATUS_RESOURCE_EXHAUSTED
            : STATUS_INTERNAL;
    return status_new(code, "%s: %s", call, cudnnGetErrorString(status));
}

enum { FIRST_INSIDE = 1000, ENGINES_MAX = 16, NOTES_MAX = 16 };

/* ---- descriptors ---- */

static void keep_error(struct dnn_graph *graph, cudnnStatus_t result, const char *call)
{
    if (result == CUDNN_STATUS_SUCCESS || graph->error != NULL) return;
    char more[512] = "";
    cudnnGetLastErrorString(more, sizeof more);
    graph->error = dnn_status(result, call);
    if (more[0] != '\0') graph->error = status_wrap(graph->error, "%s", more);
}

static cudnnBackendDescriptor_t create(struct dnn_graph *graph, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t made = NULL;
    if (graph->error != NULL) return NULL;
    keep_error(graph, cudnnBackendCreateDescriptor(type, &made), "cudnnBackendCreateDescriptor");
    if (graph->error != NULL) return NULL;
    if (graph->owned_count == graph->owned_capacity) {
        graph->owned_capacity = 2 * graph->owned_capacity + 64;
        graph->owned =
            mem_resize_array(graph->owned, (size_t)graph->owned_capacity, sizeof *graph->owned);
    }
    graph->owned[graph->owned_count++] = made;
    return made;
}

static void set(struct dnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                const void *values)
{
    if (graph->error != NULL) return;
    keep_error(graph, cudnnBackendSetAttribute(descriptor, name, type, count, values),
               "cudnnBackendSetAttribute");
}

static void link_to(struct dnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                    cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t other)
{
    if (other != NULL) set(graph, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other);
}

static void finalize(struct dnn_graph *graph, cudnnBackendDescriptor_t descriptor)
{
    if (graph->error == NULL)
        keep_error(graph, cudnnBackendFinalize(descriptor), "cudnnBackendFinalize");
}

void dnn_graph_free(struct dnn_graph *graph)
{
    for (int i = graph->owned_count - 1; i >= 0; i--)
        cudnnBackendDestroyDescriptor(graph->owned[i]);
    free(graph->owned);
    status_free(graph->error);
    *graph = (struct dnn_graph){0};
}

/* ---- tensors ---- */

static dnn_tensor add_tensor(struct dnn_graph *graph, int64_t id, cudnnDataType_t type,
                             enum dnn_place place, const struct dnn_shape *shape)
{
    dnn_tensor tensor = create(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = DNN_ALIGNMENT;
    bool inside = place == DNN_INSIDE, value = place == DNN_VALUE;
    set(graph, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(graph, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(graph, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(graph, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, DNN_DIMS, shape->dims);
    set(graph, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, DNN_DIMS, shape->strides);
    set(graph, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inside);
    set(graph, tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &value);
    finalize(graph, tensor);
    return tensor;
}

dnn_tensor dnn_operand(struct dnn_graph *graph, int64_t id, cudnnDataType_t type,
                       const struct dnn_shape *shape)
{
    return add_tensor(graph, id, type, DNN_OPERAND, shape);
}

dnn_tensor dnn_value(struct dnn_graph *graph, int64_t id)
{
    static const struct dnn_shape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    return add_tensor(graph, id, CUDNN_DATA_FLOAT, DNN_VALUE, &one);
}

dnn_tensor dnn_inside(struct dnn_graph *graph, cudnnDataType_t type, const struct dnn_shape *shape)
{
    return add_tensor(graph, FIRST_INSIDE + graph->next_id++, type, DNN_INSIDE, shape);
}

/* ---- operations ---- */

static void add_operation(struct dnn_graph *graph, cudnnBackendDescriptor_t operation)
{
    finalize(graph, operation);
    if (graph->error != NULL) return;
    if (graph->operation_count == DNN_OPERATIONS_MAX)
        graph->error =
            status_new(STATUS_INTERNAL, "a graph of more than %d operations", DNN_OPERATIONS_MAX);
    else graph->operations[graph->operation_count++] = operation;
}

static dnn_tensor add_pointwise(struct dnn_graph *graph, cudnnPointwiseMode_t mode,
                                cudnnDataType_t type, const int64_t *axis, dnn_tensor a,
                                dnn_tensor b, dnn_tensor select, dnn_tensor result)
{
    cudnnBackendDescriptor_t kind = create(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(graph, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(graph, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (axis != NULL) set(graph, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, axis);
    finalize(graph, kind);
    cudnnBackendDescriptor_t made = create(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    link_to(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
    link_to(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a);
    link_to(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    link_to(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, select);
    link_to(graph, made, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, result);
    add_operation(graph, made);
    return result;
}

dnn_tensor dnn_pointwise(struct dnn_graph *graph, cudnnPointwiseMode_t mode, cudnnDataType_t type,
                         dnn_tensor a, dnn_tensor b, dnn_tensor select, dnn_tensor result)
{
    return add_pointwise(graph, mode, type, NULL, a, b, select, result);
}

dnn_tensor dnn_index(struct dnn_graph *graph, int64_t axis, dnn_tensor like, dnn_tensor result)
{
    return add_pointwise(graph, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, &axis, like, NULL,
                         NULL, result);
}

dnn_tensor dnn_matmul(struct dnn_graph *graph, dnn_tensor a, dnn_tensor b, dnn_tensor result)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t kind = create(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(graph, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    finalize(graph, kind);
    cudnnBackendDescriptor_t made = create(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    link_to(graph, made, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    link_to(graph, made, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    link_to(graph, made, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    link_to(graph, made, CUDNN_ATTR_OPERATION_MATMUL_CDESC, result);
    add_operation(graph, made);
    return result;
}

dnn_tensor dnn_reduction(struct dnn_graph *graph, cudnnReduceTensorOp_t operation, dnn_tensor a,
                         dnn_tensor result)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t kind = create(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(graph, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(graph, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
        &operation);
    finalize(graph, kind);
    cudnnBackendDescriptor_t made = create(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    link_to(graph, made, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    link_to(graph, made, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, a);
    link_to(graph, made, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, result);
    add_operation(graph, made);
    return result;
}

#define CONVOLUTION(type, prefix, first, second, third)                                            \
    {                                                                                              \
        CUDNN_BACKEND_OPERATION_CONVOLUTION_##type##_DESCRIPTOR,                                   \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_CONV_DESC,                                 \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_ALPHA,                                     \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_BETA,                                      \
        {                                                                                          \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_##first,                                   \
                CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_##second,                              \
                CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_##third                                \
        }                                                                                          \
    }

/* The names that each kind has for the same attributes; operands are x, the weight and y. */
static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t window, alpha, beta, operands[3];
} convolutions[] = {
    [DNN_CONVOLUTION] = CONVOLUTION(FORWARD, FORWARD, X, W, Y),
    [DNN_CONVOLUTION_DATA] = CONVOLUTION(BACKWARD_DATA, BWD_DATA, DX, W, DY),
    [DNN_CONVOLUTION_WEIGHTS] = CONVOLUTION(BACKWARD_FILTER, BWD_FILTER, X, DW, DY),
};

static cudnnBackendDescriptor_t describe_window(struct dnn_graph *graph,
                                                const struct dnn_window *window)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t dims = 2;
    cudnnBackendDescriptor_t made = create(graph, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set(graph, made, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(graph, made, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(graph, made, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
    set(graph, made, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, window->padding);
    set(graph, made, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, window->padding);
    set(graph, made, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, window->stride);
    set(graph, made, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, window->dilation);
    finalize(graph, made);
    return made;
}

void dnn_convolution(struct dnn_graph *graph, enum dnn_convolution kind,
                     const struct dnn_window *window, bool add, dnn_tensor x, dnn_tensor weight,
                     dnn_tensor y)
{
    const float alpha = 1, beta = add ? 1 : 0;
    const dnn_tensor operands[3] = {x, weight, y};
    cudnnBackendDescriptor_t described = describe_window(graph, window);
    cudnnBackendDescriptor_t made = create(graph, convolutions[kind].type);
    link_to(graph, made, convolutions[kind].window, described);
    for (int i = 0; i < 3; i++) link_to(graph, made, convolutions[kind].operands[i], operands[i]);
    set(graph, made, convolutions[kind].alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    set(graph, made, convolutions[kind].beta, CUDNN_TYPE_FLOAT, 1, &beta);
    add_operation(graph, made);
}

dnn_tensor dnn_reshape(struct dnn_graph *graph, dnn_tensor a, dnn_tensor result)
{
    cudnnBackendDescriptor_t made = create(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    link_to(graph, made, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, a);
    link_to(graph, made, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, result);
    add_operation(graph, made);
    return result;
}

/* ---- plans ---- */

static status_t set_properties(cudnnBackendDescriptor_t properties, int number, const char *json)
{
    int32_t device = number;
    if (json == NULL)
        TRY_DNN(cudnnBackendSetAttribute, properties, CUDNN_ATTR_DEVICEPROP_DEVICE_ID,
                CUDNN_TYPE_INT32, 1, &device);
    else
        TRY_DNN(cudnnBackendSetAttribute, properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                CUDNN_TYPE_CHAR, (int64_t)strlen(json), json);
    TRY_DNN(cudnnBackendFinalize, properties);
    return NULL;
}

status_t dnn_properties_new(int number, const char *json, cudnnBackendDescriptor_t *properties)
{
    cudnnBackendDescriptor_t made = NULL;
    TRY_DNN(cudnnBackendCreateDescriptor, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &made);
    status_t status = set_properties(made, number, json);
    if (status != NULL) cudnnBackendDestroyDescriptor(made);
    else *properties = made;
    return status;
}

static void get(struct dnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most,
                int64_t *count, void *values)
{
    if (graph->error != NULL) return;
    keep_error(graph, cudnnBackendGetAttribute(descriptor, name, type, most, count, values),
               "cudnnBackendGetAttribute");
}

/* What an engine may note about its results for which it is refused. One that adds by atomic
 * operations produces other bits in every run: cuDNN 9.19 notes that of convolutions' engines; of
 * attention's it notes nothing, and the form of the graph decides (attention_graph.c). Tests on a
 * GPU run the gradient twice and compare the bits. The others lose digits of sums or operands. */
static const struct {
    cudnnBackendNumericalNote_t note;
    const char *what;
    bool if_exact; /* only refused for an exact graph */
} unwanted[] = {
    {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, "is not deterministic", false},
    {CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, "sums in less than f32", false},
    {CUDNN_NUMERICAL_NOTE_FFT, "sums by Fourier transforms", false},
    {CUDNN_NUMERICAL_NOTE_WINOGRAD, "sums by Winograd's transform", false},
    {CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, "rounds its operands", false},
    {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, "uses tensor cores", true},
};

/* Why an engine is refused; NULL if it is not, or after an error. */
static const char *refusal_of(struct dnn_graph *graph, cudnnBackendDescriptor_t config,
                              int64_t *number)
{
    cudnnBackendDescriptor_t engine = create(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendNumericalNote_t notes[NOTES_MAX];
    int64_t count = 0;
    get(graph, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
        &engine);
    get(graph, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, number);
    get(graph, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, NOTES_MAX,
        &count, notes);
    if (graph->error != NULL) return NULL;
    for (int64_t i = 0; i < count && i < NOTES_MAX; i++)
        for (size_t u = 0; u < COUNT_OF(unwanted); u++)
            if (notes[i] == unwanted[u].note && (graph->exact || !unwanted[u].if_exact))
                return unwanted[u].what;
    return NULL;
}

/* For one configuration; refusing it is not an error of the graph. */
static status_t try_plan(struct dnn_graph *graph, cudnnBackendDescriptor_t properties,
                         cudnnBackendDescriptor_t config, int64_t most_workspace,
                         struct dnn_plan *plan)
{
    int64_t count = 0;
    const char *unwanted_for = refusal_of(graph, config, &plan->engine);
    plan->descriptor = create(graph, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (unwanted_for == NULL) {
        link_to(graph, plan->descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
        link_to(graph, plan->descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, properties);
        finalize(graph, plan->descriptor);
        get(graph, plan->descriptor, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
            &count, &plan->workspace_bytes);
    }
    status_t refused = graph->error;
    graph->error = NULL;
    if (refused != NULL) return refused;
    if (unwanted_for != NULL)
        return status_new(STATUS_UNIMPLEMENTED, "engine %lld %s", (long long)plan->engine,
                          unwanted_for);
    if (plan->workspace_bytes <= most_workspace) return NULL;
    return status_new(STATUS_UNIMPLEMENTED, "engine %lld needs %lld bytes of scratch memory",
                      (long long)plan->engine, (long long)plan->workspace_bytes);
}

static int64_t ask_heuristics(struct dnn_graph *graph, cudnnBackendDescriptor_t operations,
                              cudnnBackendDescriptor_t properties, cudnnBackendHeurMode_t mode,
                              cudnnBackendDescriptor_t *configs)
{
    int64_t count = 0;
    cudnnBackendDescriptor_t heuristics = create(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    link_to(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations);
    link_to(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, properties);
    set(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(graph, heuristics);
    for (int i = 0; i < ENGINES_MAX; i++)
        configs[i] = create(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    get(graph, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
        ENGINES_MAX, &count, configs);
    return graph->error != NULL ? 0 : count < ENGINES_MAX ? count : ENGINES_MAX;
}

/* Of two refusals the first, but rather one that is not "not supported": a fault that a person must
 * see, such as a part of cuDNN that does not load. */
static status_t louder(status_t first, status_t second)
{
    if (first == NULL || second == NULL || status_code(first) != STATUS_UNIMPLEMENTED ||
        status_code(second) == STATUS_UNIMPLEMENTED)
        return status_first(first, second);
    status_free(first);
    return second;
}

status_t dnn_graph_finish(struct dnn_graph *graph, cudnnBackendDescriptor_t properties,
                          int64_t most_workspace, struct dnn_plan *plan)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    cudnnBackendDescriptor_t operations = create(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(graph, operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
        graph->operation_count, graph->operations);
    finalize(graph, operations);
    status_t refused = graph->error;
    bool made = refused == NULL;
    graph->error = NULL;
    for (int m = 0; m < 2 && made; m++) {
        cudnnBackendDescriptor_t configs[ENGINES_MAX];
        int64_t count = ask_heuristics(graph, operations, properties, modes[m], configs);
        for (int64_t i = 0; i < count; i++) {
            status_t status = try_plan(graph, properties, configs[i], most_workspace, plan);
            if (status == NULL) {
                status_free(refused);
                return NULL;
            }
            refused = louder(refused, status);
        }
        refused = louder(refused, graph->error);
        graph->error = NULL;
    }
    if (refused != NULL) return refused;
    return status_new(STATUS_UNIMPLEMENTED, "no engine supports it");
}
