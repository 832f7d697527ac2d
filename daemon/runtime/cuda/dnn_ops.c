/*
 * Ops that cuDNN computes, attention and convolutions: a device's handle, created when the first op
 * needs it, and the device's plans. A plan is made when an op is prepared, once for all ops of the
 * same description: making one compiles a kernel.
 */
#include "runtime/cuda/device_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#ifdef FSDPD_HAVE_CUDNN

#include "runtime/cuda/dnn_graph.h"

enum { LEAST_VERSION = 90800 };

/* ---- the handle ---- */

static status_t open_handle(struct cuda_device *device)
{
    if (device->dnn != NULL) return NULL;
    cudnnHandle_t made = NULL;
    pthread_rwlock_wrlock(&cuda_captures);
    cudnnStatus_t status = cudnnCreate(&made);
    pthread_rwlock_unlock(&cuda_captures);
    if (status == CUDNN_STATUS_SUCCESS) device->dnn = made;
    return dnn_status(status, "cudnnCreate");
}

/* The same, but a plan, which runs nothing, may be made where the running job has left no memory. */
static status_t expect_handle(struct cuda_device *device)
{
    status_t status = open_handle(device);
    if (device->base.may_time || status_code(status) != STATUS_RESOURCE_EXHAUSTED) return status;
    status_free(status);
    return NULL;
}

/* ---- plans ---- */

static status_t make_plan(struct dnn_planned *made, const struct cuda_device *device,
                          const struct dnn_kind *kind, const struct op_desc *desc)
{
    made->graph.exact = desc->inputs[0].dtype == DTYPE_F32 && !device->tf32;
    const int64_t most_workspace = kind->make_graph(&made->graph, desc);
    TRY(dnn_properties_new(device->number, NULL, &made->properties));
    return dnn_graph_finish(&made->graph, made->properties, most_workspace, &made->plan);
}

static status_t find_plan(struct cuda_device *device, const struct dnn_kind *kind,
                          const struct op_desc *desc, struct dnn_planned **found)
{
    struct op_desc key = *desc;
    if (kind == &dnn_attention) key.attrs.attention.stream = 0; /* layers differ in it */
    struct cuda_planned *planned = device->planned;
    while (planned != NULL && memcmp(&planned->desc, &key, sizeof key) != 0)
        planned = planned->next;
    if (planned == NULL) {
        struct dnn_planned *made = mem_alloc(sizeof *made);
        planned = &made->base;
        memcpy(&planned->desc, &key, sizeof key);
        planned->next = device->planned;
        device->planned = planned;
        status_t status = make_plan(made, device, kind, desc);
        if (status != NULL) planned->refusal = mem_strdup(status_message(status));
        planned->refused = status_code(status);
        status_free(status);
    }
    *found = (struct dnn_planned *)planned;
    if (planned->refusal == NULL) return NULL;
    if (planned->refused == STATUS_UNIMPLEMENTED)
        return status_new(STATUS_UNIMPLEMENTED, "%s", planned->refusal);
    return status_new(planned->refused, "cuDNN made no plan (%s=own does without it): %s",
                      kind->variable, planned->refusal);
}

void cuda_planned_forget(struct cuda_device *device)
{
    while (device->planned != NULL) {
        struct dnn_planned *planned = (struct dnn_planned *)device->planned;
        device->planned = planned->base.next;
        dnn_graph_free(&planned->graph);
        if (planned->properties != NULL) cudnnBackendDestroyDescriptor(planned->properties);
        free(planned->base.refusal);
        free(planned);
    }
}

/* ---- ops ---- */

status_t cuda_dnn_prepare(struct cuda_device *device, const struct op_desc *desc,
                          struct cuda_prepared **prepared)
{
    const bool attention = desc->kind == OP_ATTENTION || desc->kind == OP_ATTENTION_BACKWARD;
    const struct dnn_kind *kind = attention ? &dnn_attention : &dnn_conv;
    struct dnn_planned *planned = NULL;
    if (cuda_is_switched(kind->variable, "own"))
        return status_new(STATUS_UNIMPLEMENTED, "%s is \"own\"", kind->variable);
    if (cudnnGetVersion() < LEAST_VERSION)
        return status_new(STATUS_UNIMPLEMENTED, "cuDNN is older than 9.8");
    const char *reason = kind->refuses(desc);
    if (reason != NULL) return status_new(STATUS_UNIMPLEMENTED, "%s", reason);
    TRY(expect_handle(device));
    TRY(find_plan(device, kind, desc, &planned));
    struct dnn_op *op = mem_alloc(kind->bytes);
    op->base.op.desc = *desc;
    op->device = device;
    op->planned = planned;
    *prepared = &op->base;
    TRY(kind->prepare(op));
    return cuda_first_use(device, &planned->base, &op->base);
}

static status_t run(cudnnHandle_t handle, const struct dnn_plan *plan,
                    cudnnBackendDescriptor_t pack, int count, const int64_t *ids,
                    void *const *addresses, void *workspace)
{
    TRY_DNN(cudnnBackendSetAttribute, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
            count, ids);
    TRY_DNN(cudnnBackendSetAttribute, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
            CUDNN_TYPE_VOID_PTR, count, addresses);
    TRY_DNN(cudnnBackendSetAttribute, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
            1, &workspace);
    TRY_DNN(cudnnBackendFinalize, pack);
    TRY_DNN(cudnnBackendExecute, handle, plan->descriptor, pack);
    return NULL;
}

status_t dnn_op_run(const struct dnn_op *op, struct cuda_lane *lane, int count, const int64_t *ids,
                    void *const *addresses, void *workspace)
{
    cudnnBackendDescriptor_t pack = NULL;
    TRY(open_handle(op->device));
    TRY_DNN(cudnnSetStream, op->device->dnn, lane->stream);
    TRY_DNN(cudnnBackendCreateDescriptor, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    status_t status =
        run(op->device->dnn, &op->planned->plan, pack, count, ids, addresses, workspace);
    cudnnBackendDestroyDescriptor(pack);
    return status;
}

#else

status_t cuda_dnn_prepare(struct cuda_device *device, const struct op_desc *desc,
                          struct cuda_prepared **prepared)
{
    (void)device, (void)desc, (void)prepared;
    return status_new(STATUS_UNIMPLEMENTED,
                      "this backend was built without cuDNN 9.8 or later");
}

/* Nothing was planned. */
void cuda_planned_forget(struct cuda_device *device)
{
    (void)device;
}

#endif
