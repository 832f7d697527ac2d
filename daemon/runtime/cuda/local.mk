# The CUDA backend: a module of its own, opened when a worker asks for such a device.
CUDA_MODULE = \
  %D%/comm_nccl.c \
  %D%/conv_cudnn.c \
  %D%/device_cuda.c %D%/device_cuda.h \
  %D%/head_cuda.c \
  %D%/lane_cuda.c \
  %D%/linear_cuda.c \
  %D%/matmul.c %D%/matmul.h \
  %D%/module.c \
  %D%/ops_cuda.c \
  %D%/step_cuda.c
EXTRA_DIST += $(CUDA_MODULE)

if HAVE_CUDA
backenddir = $(pkglibdir)
backend_PROGRAMS = fsdpd-cuda.so
fsdpd_cuda_so_SOURCES = $(CUDA_MODULE) kernels/cuda/table.c
fsdpd_cuda_so_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS) $(CUDNN_CPPFLAGS) $(NCCL_CPPFLAGS)
# NVIDIA's headers have no prototypes as our warnings want them.
fsdpd_cuda_so_CFLAGS = $(AM_CFLAGS) -fPIC -Wno-strict-prototypes
fsdpd_cuda_so_LDFLAGS = $(AM_LDFLAGS) -shared -Wl,-z,now $(CUDA_RPATH)
fsdpd_cuda_so_LDADD = $(CUDA_OBJECTS) $(CUDA_LIBS) $(CUDNN_LIBS) $(NCCL_LIBS) -lstdc++ -lm
fsdpd_cuda_so_DEPENDENCIES = $(CUDA_OBJECTS)
# Symbols that are fsdpd's own stay open until it opens the module; see backend.syms.
endif
