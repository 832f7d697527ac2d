/* A device's cuDNN handle, created when the first op needs it. */
#include "runtime/cuda/device_cuda.h"

#ifdef FSDPD_HAVE_CUDNN

#include "runtime/cuda/dnn_graph.h"

status_t cuda_dnn_open(struct cuda_device *device)
{
    if (device->dnn != NULL) return NULL;
    cudnnHandle_t made = NULL;
    pthread_rwlock_wrlock(&cuda_captures);
    cudnnStatus_t status = cudnnCreate(&made);
    pthread_rwlock_unlock(&cuda_captures);
    if (status == CUDNN_STATUS_SUCCESS) device->dnn = made;
    return dnn_status(status, "cudnnCreate");
}

status_t cuda_dnn_expect(struct cuda_device *device)
{
    status_t status = cuda_dnn_open(device);
    if (device->base.may_time || status_code(status) != STATUS_RESOURCE_EXHAUSTED) return status;
    status_free(status);
    return NULL;
}

#else

status_t cuda_dnn_open(struct cuda_device *device)
{
    (void)device;
    return status_new(STATUS_UNIMPLEMENTED, "this backend was built without cuDNN");
}

#endif
