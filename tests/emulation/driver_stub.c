/*
 * An NVIDIA driver without a device, for cuDNN, which compiles and loads a plan's kernels when it
 * creates the plan: the stub accepts what cuDNN loads and discards it. With it cuDNN reports what
 * it supports, for a described device, on a host that has none.
 */
#include <stddef.h>

enum { OKAY = 0, NO_DEVICE = 100 };

static char something[64];

#define TAKES(name)                                                                                \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return OKAY;                                                                               \
    }
#define REFUSES(name)                                                                              \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return NO_DEVICE;                                                                          \
    }
/* Its first argument points to the wanted handle. */
#define GIVES(name)                                                                                \
    int name(void **made);                                                                         \
    int name(void **made)                                                                          \
    {                                                                                              \
        *made = something;                                                                         \
        return OKAY;                                                                               \
    }

GIVES(cuLibraryLoadData)
GIVES(cuLibraryLoadFromFile)
GIVES(cuLibraryGetKernel)
GIVES(cuLibraryGetModule)
GIVES(cuKernelGetFunction)
GIVES(cuModuleLoadData)
GIVES(cuModuleLoadDataEx)
GIVES(cuModuleLoadFatBinary)
GIVES(cuModuleGetFunction)
TAKES(cuLibraryUnload)
TAKES(cuKernelSetAttribute)
TAKES(cuKernelGetAttribute)
TAKES(cuFuncSetAttribute)
TAKES(cuFuncGetAttribute)
TAKES(cuModuleUnload)
TAKES(cuModuleGetGlobal_v2)
TAKES(cuTensorMapEncodeTiled)
TAKES(cuTensorMapEncodeIm2col)
REFUSES(cuInit)
REFUSES(cuDriverGetVersion)
REFUSES(cuGetErrorName)
REFUSES(cuGetErrorString)
REFUSES(cuGetProcAddress)
REFUSES(cuGetProcAddress_v2)
REFUSES(cuDeviceGet)
REFUSES(cuDeviceGetCount)
REFUSES(cuDeviceGetAttribute)
REFUSES(cuCtxGetCurrent)
REFUSES(cuCtxGetLimit)
REFUSES(cuCtxPushCurrent)
REFUSES(cuCtxPopCurrent)
REFUSES(cuStreamGetCtx)
REFUSES(cuStreamSynchronize)
REFUSES(cuMemcpyDtoH_v2)
REFUSES(cuLaunchKernel)
REFUSES(cuLaunchKernelEx)
REFUSES(cuLaunchCooperativeKernel)
REFUSES(cuLinkCreate)
REFUSES(cuLinkCreate_v2)
REFUSES(cuLinkAddData)
REFUSES(cuLinkAddData_v2)
REFUSES(cuLinkAddFile_v2)
REFUSES(cuLinkComplete)
REFUSES(cuLinkDestroy)
REFUSES(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSES(cuOccupancyMaxPotentialClusterSize)
