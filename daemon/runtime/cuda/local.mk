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

if HAVE_CHECK
if HAVE_NCCL
# The same sources with a stub of the runtime in place of NVIDIA's libraries, and without cuDNN.
check_PROGRAMS += tests/engine/test_cuda_device
TESTS += tests/engine/test_cuda_device
tests_engine_test_cuda_device_SOURCES = tests/engine/test_cuda_device.c \
  tests/emulation/cuda_stub.cc tests/emulation/cuda_stub.h tests/emulation/nccl_stub.cc \
  tests/unit/tiny_models.c tests/unit/tiny_models.h $(ENGINE_TEST_SOURCES) \
  %D%/comm_nccl.c %D%/conv_cudnn.c %D%/device_cuda.c %D%/head_cuda.c %D%/lane_cuda.c \
  %D%/linear_cuda.c %D%/matmul.c %D%/ops_cuda.c %D%/step_cuda.c
tests_engine_test_cuda_device_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/tests/emulation $(CUDA_CPPFLAGS) \
  $(NCCL_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_cuda_device_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_device_CXXFLAGS = $(AM_CXXFLAGS) -O2 -ffp-contract=off
tests_engine_test_cuda_device_LDADD = tests/emulation/libcuda_emulated.a $(RUNTIME_LIBS) $(CHECK_LIBS)
endif
endif
endif
