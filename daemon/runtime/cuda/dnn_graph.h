/*
 * Graphs of cuDNN's operations, made through its backend C API (cudnn_graph.h): tensors, the
 * operations between them, and the execution plan of the first engine in cuDNN's own ranking that
 * supports the graph, is deterministic, sums in full precision, and stays within the limit on
 * scratch memory.
 *
 * The first error is kept, and later calls do nothing, so a graph can be written like a formula. A
 * graph is finished for a device by its properties, not by a handle: so it can be for a device that
 * is not present (tests/unit/test_cudnn_graphs.c).
 */
#ifndef FSDPD_RUNTIME_CUDA_DNN_GRAPH_H
#define FSDPD_RUNTIME_CUDA_DNN_GRAPH_H

#include <cudnn.h>

#include "runtime/cuda/device_cuda.h"

/* A status of cuDNN's as one of ours: UNIMPLEMENTED for what it does not support. */
status_t dnn_status(cudnnStatus_t status, const char *call) FSDPD_MUST_USE;
#define TRY_DNN(function, ...) TRY(dnn_status(function(__VA_ARGS__), #function))

/* Operands begin at multiples of DNN_ALIGNMENT, for cuDNN's 16-byte vectors. */
enum { DNN_DIMS = 4, DNN_OPERATIONS_MAX = 40, DNN_ALIGNMENT = 16 };

enum dnn_place {
    DNN_OPERAND, /* the caller's memory, of the device */
    DNN_INSIDE,  /* not stored: one operation's result, another's operand */
    DNN_VALUE,   /* a number in host memory, the same for all elements */
};

struct dnn_shape {
    int64_t dims[DNN_DIMS], strides[DNN_DIMS]; /* in elements */
};

typedef cudnnBackendDescriptor_t dnn_tensor; /* NULL after an error */

/* Which of a convolution's tensors an operation computes from the other two. */
enum dnn_convolution { DNN_CONVOLUTION, DNN_CONVOLUTION_DATA, DNN_CONVOLUTION_WEIGHTS };

/* By rows and columns. */
struct dnn_window {
    int64_t padding[2], stride[2], dilation[2];
};

struct dnn_graph {
    bool exact; /* set by the caller: on no tensor cores, which round f32 to tf32 */
    cudnnBackendDescriptor_t *owned;
    int owned_count, owned_capacity;
    cudnnBackendDescriptor_t operations[DNN_OPERATIONS_MAX];
    int operation_count;
    int64_t next_id; /* of tensors inside */
    status_t error;  /* NULL, or the first */
};

struct dnn_plan {
    cudnnBackendDescriptor_t descriptor;
    int64_t engine, workspace_bytes;
};

/* Starts zeroed. Its plan lives as long as the graph. */
void dnn_graph_free(struct dnn_graph *graph);

/* Operands and values have ids chosen by the caller, below 1000. */
dnn_tensor dnn_operand(struct dnn_graph *graph, int64_t id, cudnnDataType_t type,
                       const struct dnn_shape *shape);
dnn_tensor dnn_value(struct dnn_graph *graph, int64_t id);
dnn_tensor dnn_inside(struct dnn_graph *graph, cudnnDataType_t type, const struct dnn_shape *shape);

/* Each creates and returns its last argument. `b` and `select` may be NULL; an operation computes
 * in f32 unless `type` says otherwise. */
dnn_tensor dnn_pointwise(struct dnn_graph *graph, cudnnPointwiseMode_t mode, cudnnDataType_t type,
                         dnn_tensor a, dnn_tensor b, dnn_tensor select, dnn_tensor result);
/* The number of an element along a dimension; `like` has the size. */
dnn_tensor dnn_index(struct dnn_graph *graph, int64_t axis, dnn_tensor like, dnn_tensor result);
dnn_tensor dnn_matmul(struct dnn_graph *graph, dnn_tensor a, dnn_tensor b, dnn_tensor result);
/* Along the dimensions that are 1 in `result`. */
dnn_tensor dnn_reduction(struct dnn_graph *graph, cudnnReduceTensorOp_t operation, dnn_tensor a,
                         dnn_tensor result);
/* Computes the output y (samples, channels, rows, columns), or the gradient x or weight, and with
 * `add` adds it to the values there; in f32. The number of groups follows from the shapes. */
void dnn_convolution(struct dnn_graph *graph, enum dnn_convolution kind,
                     const struct dnn_window *window, bool add, dnn_tensor x, dnn_tensor weight,
                     dnn_tensor y);
/* The same elements as another shape. */
dnn_tensor dnn_reshape(struct dnn_graph *graph, dnn_tensor a, dnn_tensor result);

/* A device's properties, by its number, or from `json`, cuDNN's own description of a device, if not
 * NULL. The caller destroys it after the graphs that use it. */
status_t dnn_properties_new(int number, const char *json,
                            cudnnBackendDescriptor_t *properties) FSDPD_MUST_USE;

/* UNIMPLEMENTED, with cuDNN's reason, if no engine supports it; another error of cuDNN's, if that is
 * why there is none. */
status_t dnn_graph_finish(struct dnn_graph *graph, cudnnBackendDescriptor_t properties,
                          int64_t most_workspace, struct dnn_plan *plan) FSDPD_MUST_USE;

/* ---- ops; see dnn_ops.c ---- */

struct dnn_planned {
    struct cuda_planned base;
    cudnnBackendDescriptor_t properties;
    struct dnn_graph graph;
    struct dnn_plan plan;
};

/* A prepared op. Larger structs begin with it. */
struct dnn_op {
    struct cuda_prepared base;
    struct cuda_device *device;
    const struct dnn_planned *planned;
};

/* Attention or convolutions. */
struct dnn_kind {
    const char *variable;                               /* of the environment; "own": our kernel */
    const char *(*refuses)(const struct op_desc *desc); /* the reason; NULL: it does not */
    /* Returns the most scratch memory that an engine may have. The graph keeps errors. */
    int64_t (*make_graph)(struct dnn_graph *graph, const struct op_desc *desc);
    size_t bytes; /* of its struct dnn_op, which is zero but for the description, device and plan */
    status_t (*prepare)(struct dnn_op *op);
};
extern const struct dnn_kind dnn_attention, dnn_conv; /* attention_cudnn.c, conv_cudnn.c */

/* Enqueues on the lane. Operands are addresses of the device, values of host memory. */
status_t dnn_op_run(const struct dnn_op *op, struct cuda_lane *lane, int count, const int64_t *ids,
                    void *const *addresses, void *workspace) FSDPD_MUST_USE;

#endif
