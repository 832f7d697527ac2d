/*
 * Prepares and launches ops: matrix products by cuBLASLt, convolutions and attention by cuDNN if it
 * is available and supports them, everything else by our own kernels.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "runtime/cuda/device_cuda.h"

static status_t run_own(struct cuda_prepared *prepared, struct cuda_lane *lane,
                        const struct kernel_call *call)
{
    struct cuda_launch launch = cuda_launch_of(lane);
    launch.live = cuda_take_live(lane, call);
    int error = prepared->op.run(&prepared->op, call, &launch);
    return cuda_status((cudaError_t)error, "a kernel's launch");
}

status_t cuda_prepare_own(const struct op_desc *desc, struct cuda_prepared **prepared)
{
    struct cuda_prepared *own = mem_alloc(sizeof *own);
    status_t status = cuda_op_prepare(desc, &own->op);
    if (status != NULL) {
        free(own);
        return status;
    }
    own->run = run_own;
    own->workspace_bytes = own->op.workspace_bytes;
    *prepared = own;
    return NULL;
}

/* By cuDNN, or by our kernel if it refuses. */
static status_t prepare_by_cudnn(struct cuda_device *device, const struct op_desc *desc,
                                 struct cuda_prepared **prepared)
{
    status_t refused = cuda_dnn_prepare(device, desc, prepared);
    if (status_code(refused) != STATUS_UNIMPLEMENTED) return refused;
    cuda_unprepare(*prepared);
    *prepared = NULL;
    status_t status = cuda_prepare_own(desc, prepared);
    if (status == NULL)
        cuda_note(device, "%s is computed by fsdpd's own kernel: %s", op_info_get(desc->kind)->name,
                  status_message(refused));
    status_free(refused);
    return status;
}

static status_t prepare(struct cuda_device *device, const struct op_desc *desc,
                        struct cuda_prepared **prepared)
{
    switch (desc->kind) {
    case OP_LINEAR:
    case OP_LINEAR_BACKWARD_DATA:
    case OP_LINEAR_BACKWARD_WEIGHTS: return cuda_linear_prepare(device, desc, prepared);
    case OP_LINEAR_CROSS_ENTROPY:
    case OP_LINEAR_CROSS_ENTROPY_BACKWARD: return cuda_head_prepare(device, desc, prepared);
    case OP_CONV2D:
    case OP_CONV2D_BACKWARD_DATA:
    case OP_CONV2D_BACKWARD_WEIGHTS:
    case OP_ATTENTION_BACKWARD: return prepare_by_cudnn(device, desc, prepared);
    case OP_ATTENTION:
        if (desc->output_present[2]) return cuda_prepare_own(desc, prepared); /* over a cache */
        return prepare_by_cudnn(device, desc, prepared);
    default: return cuda_prepare_own(desc, prepared);
    }
}

status_t cuda_prepare(struct device *base, const struct op_desc *desc, void **result,
                      uint64_t *workspace_bytes)
{
    struct cuda_prepared *prepared = NULL;
    TRY(op_desc_check(desc));
    TRY(cuda_use(cuda_device(base)));
    status_t status = prepare(cuda_device(base), desc, &prepared);
    if (status != NULL) {
        cuda_unprepare(prepared);
        return status;
    }
    *result = prepared;
    *workspace_bytes = prepared->workspace_bytes;
    return NULL;
}

void cuda_unprepare(void *memory)
{
    struct cuda_prepared *prepared = memory;
    if (prepared == NULL) return;
    if (prepared->release != NULL) prepared->release(prepared);
    free(prepared);
}

/*
 * The gradients of a linear layer's weights need not wait for those of its data, nor these for
 * them. Both are products; the last blocks of one leave multiprocessors idle that the other can
 * use.
 */
bool cuda_runs_beside(const struct device *device, const struct op_desc *desc,
                      const struct op_desc *next)
{
    return cuda_device(device)->branches && desc->kind == OP_LINEAR_BACKWARD_WEIGHTS &&
           next->kind == OP_LINEAR_BACKWARD_DATA;
}

/* On the lane's other stream, after what the lane has so far. */
static status_t run_beside(struct cuda_prepared *prepared, struct cuda_lane *lane, int op,
                           const struct kernel_call *call)
{
    cudaStream_t own = lane->stream;
    TRY_CUDA(cudaEventRecord(lane->forked, own));
    TRY_CUDA(cudaStreamWaitEvent(lane->side, lane->forked, 0));
    lane->stream = lane->side;
    status_t status = prepared->run(prepared, lane, call);
    lane->stream = own;
    status_t recorded = cuda_status(cudaEventRecord(lane->joined, lane->side), "cudaEventRecord");
    if (recorded == NULL) lane->beside = op;
    return status_first(status, recorded);
}

static status_t run_next(struct cuda_prepared *prepared, struct cuda_lane *lane,
                         struct device_graph *graph, int op, const struct kernel_call *call)
{
    int beside = lane->beside;
    bool follows = beside >= 0 && op == beside + 1;
    if (follows) lane->beside = -1; /* not yet */
    status_t status = cuda_enqueue(lane);
    if (status == NULL && !follows && lane->side != NULL && graph->lowering.beside != NULL &&
        graph->lowering.beside[op])
        return run_beside(prepared, lane, op, call);
    if (status == NULL) status = prepared->run(prepared, lane, call);
    if (!follows) return status;
    lane->beside = beside;
    return status_first(status, cuda_lane_join(lane));
}

status_t cuda_lane_launch(struct lane_queue *base, struct device_graph *graph, int op,
                          const struct kernel_call *call)
{
    struct cuda_lane *lane = cuda_lane(base);
    struct cuda_prepared *prepared = graph->prepared[op];
    if (prepared == NULL) return NULL; /* a view */
    cuda_take_live(lane, call);
    if (!cuda_does_enqueue(lane)) return NULL;
    status_t status = run_next(prepared, lane, graph, op, call);
    if (status != NULL) return cuda_named(lane, status);
    return cuda_enqueued(lane, cudaSuccess, op_info_get(prepared->op.desc.kind)->name);
}
