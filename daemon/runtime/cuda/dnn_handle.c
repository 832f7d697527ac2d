/* A device's cuDNN handle, created when the first op needs it. */
#include "runtime/cuda/device_cuda.h"

#ifdef FSDPD_HAVE_CUDNN

#include "runtime/cuda/dnn_graph.h"

#if CUDNN_MAJOR < 9
#error "cuDNN 9 or later is needed: statuses and their ranges are numbered as it does"
#endif

status_t dnn_status(cudnnStatus_t status, const char *call)
{
    if (status == CUDNN_STATUS_SUCCESS) return NULL;
    enum status_code code =
        status >= CUDNN_STATUS_NOT_SUPPORTED && status < CUDNN_STATUS_INTERNAL_ERROR
            ? STATUS_UNIMPLEMENTED
            : STATUS_INTERNAL;
    return status_new(code, "%s: %s", call, cudnnGetErrorString(status));
}

status_t cuda_dnn_open(struct cuda_device *device)
{
    if (device->dnn == NULL) TRY_DNN(cudnnCreate, (cudnnHandle_t *)&device->dnn);
    return NULL;
}

void cuda_dnn_close(void *dnn)
{
    if (dnn != NULL) cudnnDestroy(dnn);
}

#else

status_t cuda_dnn_open(struct cuda_device *device)
{
    (void)device;
    return status_new(STATUS_UNIMPLEMENTED, "this backend was built without cuDNN");
}

void cuda_dnn_close(void *dnn)
{
    (void)dnn;
}

#endif
