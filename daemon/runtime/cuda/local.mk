# The CUDA backend: a separate module, loaded when a worker uses such a device.
CUDA_MODULE = \
  %D%/base_cuda.c \
  %D%/comm_nccl.c %D%/comm_nccl.h \
  %D%/comm_staged.c \
  %D%/device_cuda.c %D%/device_cuda.h \
  %D%/dnn_ops.c \
  %D%/factor_cuda.c \
  %D%/first_use.c \
  %D%/head_cuda.c \
  %D%/lane_cuda.c \
  %D%/linear_cuda.c \
  %D%/matmul.c %D%/matmul.h %D%/matmul_times.c \
  %D%/matrix_cuda.c \
  %D%/module.c \
  %D%/ops_cuda.c \
  %D%/progress.c \
  %D%/recording.c \
  %D%/group_nccl.c %D%/registration_nccl.c %D%/regroup_nccl.c \
  %D%/step_cuda.c
# And what is built with cuDNN only.
CUDNN_MODULE = \
  %D%/attention_cudnn.c \
  %D%/attention_graph.c %D%/attention_graph.h \
  %D%/conv_cudnn.c \
  %D%/conv_graph.c %D%/conv_graph.h \
  %D%/dnn_graph.c %D%/dnn_graph.h
EXTRA_DIST += $(CUDA_MODULE) $(CUDNN_MODULE) tests/golden/cudnn-convolutions.txt tests/golden/cudnn-plans.txt

if HAVE_CUDA
backenddir = $(pkglibdir)
backend_PROGRAMS = fsdpd-cuda.so
fsdpd_cuda_so_SOURCES = $(CUDA_MODULE) kernels/cuda/table.c
if HAVE_CUDNN
fsdpd_cuda_so_SOURCES += $(CUDNN_MODULE)
endif
fsdpd_cuda_so_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS) $(CUDNN_CPPFLAGS) $(NCCL_CPPFLAGS)
# Our warnings require prototypes that NVIDIA's headers lack.
fsdpd_cuda_so_CFLAGS = $(AM_CFLAGS) -fPIC -Wno-strict-prototypes
fsdpd_cuda_so_LDFLAGS = $(AM_LDFLAGS) -shared -Wl,-z,now $(CUDA_RPATH)
fsdpd_cuda_so_LDADD = $(CUDA_OBJECTS) $(CUDA_LIBS) $(CUDNN_LIBS) $(NCCL_LIBS) -lstdc++ -lm
fsdpd_cuda_so_DEPENDENCIES = $(CUDA_OBJECTS)
# Symbols of fsdpd itself are resolved when it loads the module; see backend.syms.

if HAVE_CHECK
if HAVE_NCCL
# The same sources with a stub of the runtime in place of NVIDIA's libraries.
check_PROGRAMS += tests/engine/test_cuda_deadlines tests/engine/test_cuda_device tests/engine/test_cuda_failures \
  tests/engine/test_cuda_offload \
  tests/engine/test_cuda_graphs tests/engine/test_cuda_registration tests/engine/test_cuda_regroup tests/engine/test_cuda_rules tests/engine/test_cuda_staged
TESTS += tests/engine/test_cuda_deadlines tests/engine/test_cuda_device tests/engine/test_cuda_failures \
  tests/engine/test_cuda_offload \
  tests/engine/test_cuda_graphs tests/engine/test_cuda_registration tests/engine/test_cuda_regroup tests/engine/test_cuda_rules tests/engine/test_cuda_staged
stub_flags = $(AM_CPPFLAGS) -I$(srcdir)/tests/emulation $(CUDA_CPPFLAGS) $(NCCL_CPPFLAGS) $(CHECK_CFLAGS)
check_LIBRARIES += tests/emulation/libcuda_stub.a
cuda_stub_sources = \
  tests/emulation/cuda_stub.cc tests/emulation/cuda_stub.h tests/emulation/graph_stub.cc \
  tests/emulation/cublas_stub.cc tests/emulation/memory_stub.cc tests/emulation/memory_stub.h \
  tests/emulation/nccl_memory_stub.cc \
  tests/emulation/nccl_memory_stub.h tests/emulation/nccl_stub.cc tests/emulation/stub_streams.h \
  %D%/base_cuda.c %D%/comm_nccl.c %D%/comm_staged.c %D%/device_cuda.c %D%/factor_cuda.c %D%/first_use.c %D%/head_cuda.c %D%/lane_cuda.c \
  %D%/linear_cuda.c %D%/matmul.c %D%/matmul_times.c %D%/matrix_cuda.c %D%/module.c %D%/ops_cuda.c %D%/progress.c \
  %D%/recording.c %D%/group_nccl.c %D%/registration_nccl.c %D%/regroup_nccl.c %D%/step_cuda.c
tests_emulation_libcuda_stub_a_SOURCES = $(cuda_stub_sources)
tests_emulation_libcuda_stub_a_CPPFLAGS = $(stub_flags)
tests_emulation_libcuda_stub_a_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_emulation_libcuda_stub_a_CXXFLAGS = $(AM_CXXFLAGS) -O2 -ffp-contract=off
# And one of cuDNN: its backend for attention, and convolutions.
check_LIBRARIES += tests/emulation/libcudnn_stub.a
tests_emulation_libcudnn_stub_a_SOURCES = tests/emulation/cudnn_stub.cc %D%/dnn_ops.c
if HAVE_CUDNN
tests_emulation_libcudnn_stub_a_SOURCES += $(CUDNN_MODULE)
endif
tests_emulation_libcudnn_stub_a_CPPFLAGS = $(stub_flags) $(CUDNN_CPPFLAGS)
tests_emulation_libcudnn_stub_a_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_emulation_libcudnn_stub_a_CXXFLAGS = $(AM_CXXFLAGS) -O2 -ffp-contract=off
stub_libs = tests/emulation/libcuda_stub.a tests/emulation/libcudnn_stub.a tests/emulation/libcuda_stub.a \
  tests/emulation/libcuda_emulated.a $(RUNTIME_LIBS) $(TEST_LIBS)

cuda_fixture = tests/emulation/linked.c tests/engine/cuda_fixture.c tests/engine/cuda_fixture.h \
  tests/unit/tiny_models.c tests/unit/tiny_models.h $(ENGINE_TEST_SOURCES)
tests_engine_test_cuda_deadlines_SOURCES = tests/engine/test_cuda_deadlines.c $(cuda_fixture)
tests_engine_test_cuda_deadlines_CPPFLAGS = $(stub_flags)
tests_engine_test_cuda_deadlines_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_deadlines_LDADD = $(stub_libs)
tests_engine_test_cuda_regroup_SOURCES = tests/engine/test_cuda_regroup.c $(cuda_fixture)
tests_engine_test_cuda_regroup_CPPFLAGS = $(stub_flags)
tests_engine_test_cuda_regroup_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_regroup_LDADD = $(stub_libs)
tests_engine_test_cuda_device_SOURCES = tests/engine/test_cuda_device.c $(cuda_fixture)
tests_engine_test_cuda_device_CPPFLAGS = $(stub_flags) $(CUDNN_CPPFLAGS)
tests_engine_test_cuda_device_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_device_LDADD = $(stub_libs)
tests_engine_test_cuda_offload_SOURCES = tests/engine/test_cuda_offload.c $(cuda_fixture)
tests_engine_test_cuda_offload_CPPFLAGS = $(stub_flags)
tests_engine_test_cuda_offload_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_offload_LDADD = $(stub_libs)

tests_engine_test_cuda_failures_SOURCES = tests/engine/test_cuda_failures.c $(cuda_fixture)
tests_engine_test_cuda_failures_CPPFLAGS = $(stub_flags)
tests_engine_test_cuda_failures_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_failures_LDADD = $(stub_libs)
tests_engine_test_cuda_staged_SOURCES = tests/engine/test_cuda_staged.c $(cuda_fixture)
tests_engine_test_cuda_staged_CPPFLAGS = $(stub_flags)
tests_engine_test_cuda_staged_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_staged_LDADD = $(stub_libs)
tests_engine_test_cuda_graphs_SOURCES = tests/engine/test_cuda_graphs.c $(cuda_fixture)
tests_engine_test_cuda_graphs_CPPFLAGS = $(stub_flags)
tests_engine_test_cuda_graphs_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_graphs_LDADD = $(stub_libs)
tests_engine_test_cuda_registration_SOURCES = tests/engine/test_cuda_registration.c $(cuda_fixture)
tests_engine_test_cuda_registration_CPPFLAGS = $(stub_flags)
tests_engine_test_cuda_registration_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_registration_LDADD = $(stub_libs)
tests_engine_test_cuda_rules_SOURCES = tests/engine/test_cuda_rules.c $(cuda_fixture)
tests_engine_test_cuda_rules_CPPFLAGS = $(stub_flags)
tests_engine_test_cuda_rules_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_rules_LDADD = $(stub_libs)

# All of it as a module that fsdpd loads instead of the real one, for tests of workers.
check_PROGRAMS += tests/emulation/fsdpd-cuda.so
tests_emulation_fsdpd_cuda_so_SOURCES = $(cuda_stub_sources) %D%/dnn_ops.c $(EMULATED) \
  tests/emulation/module.c
tests_emulation_fsdpd_cuda_so_CPPFLAGS = $(stub_flags)
tests_emulation_fsdpd_cuda_so_CFLAGS = $(AM_CFLAGS) -fPIC -Wno-strict-prototypes
tests_emulation_fsdpd_cuda_so_CXXFLAGS = $(AM_CXXFLAGS) -fPIC -O2 -ffp-contract=off
tests_emulation_fsdpd_cuda_so_LDFLAGS = $(AM_LDFLAGS) -shared -Wl,-z,now
tests_emulation_fsdpd_cuda_so_LDADD = -lstdc++ -lm

check_PROGRAMS += tests/emulation/libnvidia-ml.so.1
tests_emulation_libnvidia_ml_so_1_SOURCES = tests/emulation/nvml_stub.c
tests_emulation_libnvidia_ml_so_1_CFLAGS = $(AM_CFLAGS) -fPIC
tests_emulation_libnvidia_ml_so_1_LDFLAGS = $(AM_LDFLAGS) -shared

# Attention by cuDNN, over the stub of its backend.
check_PROGRAMS += tests/engine/test_cuda_attention
TESTS += tests/engine/test_cuda_attention
tests_engine_test_cuda_attention_SOURCES = tests/engine/test_cuda_attention.c tests/emulation/linked.c \
  tests/unit/attention_fixture.h tests/unit/kernel_fixture.h
tests_engine_test_cuda_attention_CPPFLAGS = $(stub_flags) $(CUDNN_CPPFLAGS)
tests_engine_test_cuda_attention_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_attention_LDADD = $(stub_libs)

# Convolutions by cuDNN, over the same stub.
check_PROGRAMS += tests/engine/test_cuda_conv
TESTS += tests/engine/test_cuda_conv
tests_engine_test_cuda_conv_SOURCES = tests/engine/test_cuda_conv.c tests/emulation/linked.c \
  tests/unit/attention_fixture.h tests/unit/kernel_fixture.h
tests_engine_test_cuda_conv_CPPFLAGS = $(stub_flags) $(CUDNN_CPPFLAGS)
tests_engine_test_cuda_conv_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_conv_LDADD = $(stub_libs)

# Linear layers by cuBLASLt, over its stub.
check_PROGRAMS += tests/engine/test_cuda_linear
TESTS += tests/engine/test_cuda_linear
tests_engine_test_cuda_linear_SOURCES = tests/engine/test_cuda_linear.c tests/emulation/linked.c \
  tests/unit/attention_fixture.h tests/unit/kernel_fixture.h
tests_engine_test_cuda_linear_CPPFLAGS = $(stub_flags)
tests_engine_test_cuda_linear_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_linear_LDADD = $(stub_libs)

# Whole runs: what ranks agree on, checkpoints, changes of the policy; and planning.
check_PROGRAMS += tests/engine/test_cuda_session tests/engine/test_cuda_registered_runs
TESTS += tests/engine/test_cuda_session tests/engine/test_cuda_registered_runs
cuda_run_sources = tests/emulation/linked.c tests/engine/memory_store.c tests/engine/memory_store.h \
  tests/engine/session_group.c tests/engine/session_group.h tests/engine/comm_local.c tests/engine/comm_local.h
cuda_runs = tests/engine/cuda_runs.c tests/engine/cuda_runs.h $(cuda_run_sources)
cuda_run_flags = $(stub_flags) $(CUDNN_CPPFLAGS) $(PROTOBUF_C_CFLAGS)
cuda_run_libs = libplanning.a libtrain.a libcheckpoint.a libdigest.a libhf.a libprint.a libspec.a \
  libproto.a $(stub_libs) $(PROTOBUF_C_LIBS) $(JANSSON_LIBS) $(ZLIB_LIBS) $(CRYPTO_LIBS)
tests_engine_test_cuda_session_SOURCES = tests/engine/test_cuda_session.c $(cuda_runs)
tests_engine_test_cuda_session_CPPFLAGS = $(cuda_run_flags)
tests_engine_test_cuda_session_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_session_LDADD = $(cuda_run_libs)
EXTRA_tests_engine_test_cuda_session_DEPENDENCIES = fsdpd-digits$(EXEEXT)
tests/engine/test_cuda_session-test_cuda_session.$(OBJEXT): $(PROTO_H)
tests_engine_test_cuda_registered_runs_SOURCES = tests/engine/test_cuda_registered_runs.c $(cuda_runs)
tests_engine_test_cuda_registered_runs_CPPFLAGS = $(cuda_run_flags)
tests_engine_test_cuda_registered_runs_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_registered_runs_LDADD = $(cuda_run_libs)
EXTRA_tests_engine_test_cuda_registered_runs_DEPENDENCIES = fsdpd-digits$(EXEEXT)
tests/engine/test_cuda_registered_runs-test_cuda_registered_runs.$(OBJEXT): $(PROTO_H)

# Frozen parameters in fewer bits.
check_PROGRAMS += tests/engine/test_cuda_base
TESTS += tests/engine/test_cuda_base
tests_engine_test_cuda_base_SOURCES = tests/engine/test_cuda_base.c $(cuda_runs)
tests_engine_test_cuda_base_CPPFLAGS = $(cuda_run_flags)
tests_engine_test_cuda_base_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_base_LDADD = $(cuda_run_libs)
EXTRA_tests_engine_test_cuda_base_DEPENDENCIES = fsdpd-digits$(EXEEXT)

# Global batches, whose dropout is keyed by sample: the CPU's curves.
check_PROGRAMS += tests/engine/test_cuda_global_batch
TESTS += tests/engine/test_cuda_global_batch
tests_engine_test_cuda_global_batch_SOURCES = tests/engine/test_global_batch.c $(cuda_run_sources)
tests_engine_test_cuda_global_batch_CPPFLAGS = $(cuda_run_flags) -DTEST_CUDA
tests_engine_test_cuda_global_batch_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_global_batch_LDADD = $(cuda_run_libs)
EXTRA_tests_engine_test_cuda_global_batch_DEPENDENCIES = fsdpd-digits$(EXEEXT)

# Sequences that are continued between steps.
check_PROGRAMS += tests/engine/test_cuda_generation
TESTS += tests/engine/test_cuda_generation
tests_engine_test_cuda_generation_SOURCES = tests/engine/test_generation.c tests/engine/generated.c \
  tests/engine/generated.h tests/unit/machine.c tests/unit/machine.h $(cuda_fixture)
tests_engine_test_cuda_generation_CPPFLAGS = $(stub_flags) -DTEST_CUDA
tests_engine_test_cuda_generation_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_generation_LDADD = libtrain.a libcheckpoint.a libdigest.a libhf.a $(stub_libs) \
  $(JANSSON_LIBS) $(ZLIB_LIBS) $(CRYPTO_LIBS)

check_PROGRAMS += tests/engine/test_cuda_samples
TESTS += tests/engine/test_cuda_samples
tests_engine_test_cuda_samples_SOURCES = tests/engine/test_cuda_samples.c $(cuda_run_sources)
tests_engine_test_cuda_samples_CPPFLAGS = $(cuda_run_flags)
tests_engine_test_cuda_samples_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_samples_LDADD = $(cuda_run_libs)
tests/engine/test_cuda_samples-test_cuda_samples.$(OBJEXT): $(PROTO_H)

# The launches of a step of GPT-2, counted.
check_PROGRAMS += tests/engine/test_cuda_launches
TESTS += tests/engine/test_cuda_launches
tests_engine_test_cuda_launches_SOURCES = tests/engine/test_cuda_launches.c tests/emulation/linked.c \
  tests/engine/memory_store.c tests/engine/memory_store.h tests/unit/family_files.c \
  tests/unit/family_files.h
tests_engine_test_cuda_launches_CPPFLAGS = $(cuda_run_flags)
tests_engine_test_cuda_launches_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_engine_test_cuda_launches_LDADD = $(cuda_run_libs)
EXTRA_DIST += tests/golden/launches-gpt2-16.txt tests/golden/launches-gpt2-64.txt \
  tests/golden/launches-gpt2-16-world-2.txt

# Op by op, products of matrices among them, through the device.
check_PROGRAMS += tests/unit/test_cuda_ops tests/unit/test_cuda_ops_attention \
  tests/unit/test_cuda_ops_bfloat16 tests/unit/test_cuda_ops_sequence
TESTS += tests/unit/test_cuda_ops tests/unit/test_cuda_ops_attention tests/unit/test_cuda_ops_bfloat16 \
  tests/unit/test_cuda_ops_sequence
tests_unit_test_cuda_ops_SOURCES = tests/emulation/linked.c tests/unit/test_kernels.c tests/unit/kernel_fixture.h
tests_unit_test_cuda_ops_CPPFLAGS = $(stub_flags) -DTEST_DEVICE
tests_unit_test_cuda_ops_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_unit_test_cuda_ops_LDADD = $(stub_libs)
tests_unit_test_cuda_ops_attention_SOURCES = tests/emulation/linked.c tests/unit/test_kernels_attention.c \
  tests/unit/test_kernels_cached.c tests/unit/attention_fixture.h tests/unit/kernel_fixture.h
tests_unit_test_cuda_ops_attention_CPPFLAGS = $(stub_flags) -DTEST_DEVICE
tests_unit_test_cuda_ops_attention_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_unit_test_cuda_ops_attention_LDADD = $(stub_libs)
tests_unit_test_cuda_ops_bfloat16_SOURCES = tests/emulation/linked.c tests/unit/test_kernels_bfloat16.c \
  tests/unit/kernel_fixture.h
tests_unit_test_cuda_ops_bfloat16_CPPFLAGS = $(stub_flags) -DTEST_DEVICE
tests_unit_test_cuda_ops_bfloat16_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_unit_test_cuda_ops_bfloat16_LDADD = $(stub_libs)
tests_unit_test_cuda_ops_sequence_SOURCES = tests/emulation/linked.c tests/unit/test_kernels_sequence.c
tests_unit_test_cuda_ops_sequence_CPPFLAGS = $(stub_flags) -DTEST_DEVICE
tests_unit_test_cuda_ops_sequence_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_unit_test_cuda_ops_sequence_LDADD = $(stub_libs)
endif
endif

if HAVE_CHECK
if HAVE_CUDNN
# The graphs for cuDNN, tested with cuDNN itself and a driver without a device.
check_PROGRAMS += tests/emulation/libcuda.so.1 tests/unit/test_cudnn_graphs
TESTS += tests/unit/test_cudnn_graphs
tests_emulation_libcuda_so_1_SOURCES = tests/emulation/driver_stub.c
tests_emulation_libcuda_so_1_CFLAGS = $(AM_CFLAGS) -fPIC
tests_emulation_libcuda_so_1_LDFLAGS = $(AM_LDFLAGS) -shared -Wl,-soname,libcuda.so.1
tests_unit_test_cudnn_graphs_SOURCES = tests/unit/test_cudnn_graphs.c \
  %D%/attention_graph.c %D%/conv_graph.c %D%/dnn_graph.c
tests_unit_test_cudnn_graphs_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS) $(CUDNN_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_cudnn_graphs_CFLAGS = $(AM_CFLAGS) -Wno-strict-prototypes
tests_unit_test_cudnn_graphs_LDFLAGS = $(AM_LDFLAGS) $(CUDA_RPATH)
tests_unit_test_cudnn_graphs_LDADD = libops.a libbase.a $(CUDNN_LIBS) $(TEST_LIBS)
endif

# The kernels' tests on the device, for scripts/gpu-check.sh: always built, run on hosts with a GPU.
GPU_TESTS = tests/gpu/gpu_kernels tests/gpu/gpu_kernels_attention tests/gpu/gpu_kernels_bfloat16 \
  tests/gpu/gpu_kernels_sequence tests/gpu/gpu_attention tests/gpu/gpu_products
check_PROGRAMS += $(GPU_TESTS)
# And what makes a worker's kernel fail there.
check_PROGRAMS += tests/gpu/gpu_fault.so
tests_gpu_gpu_fault_so_SOURCES = tests/engine/gpu_fault.c
tests_gpu_gpu_fault_so_CFLAGS = $(AM_CFLAGS) -fPIC -Wno-pedantic
tests_gpu_gpu_fault_so_LDFLAGS = $(AM_LDFLAGS) -shared
gpu-tests: $(GPU_TESTS) tests/gpu/gpu_fault.so
.PHONY: gpu-tests
gpu_flags = $(AM_LDFLAGS) -Wl,--dynamic-list=$(srcdir)/daemon/runtime/backend.syms -Wl,-u,comm_init \
  -Wl,-u,op_desc_flops
gpu_libs = $(RUNTIME_LIBS) $(TEST_LIBS)
gpu_defines = $(AM_CPPFLAGS) $(CHECK_CFLAGS) -DTEST_DEVICE -DTEST_GPU
tests_gpu_gpu_attention_SOURCES = tests/engine/test_cuda_attention.c tests/unit/attention_fixture.h \
  tests/unit/kernel_fixture.h
tests_gpu_gpu_attention_CPPFLAGS = $(gpu_defines)
tests_gpu_gpu_attention_LDFLAGS = $(gpu_flags)
tests_gpu_gpu_attention_LDADD = $(gpu_libs)
tests_gpu_gpu_kernels_SOURCES = tests/unit/test_kernels.c tests/unit/kernel_fixture.h
tests_gpu_gpu_kernels_CPPFLAGS = $(gpu_defines)
tests_gpu_gpu_kernels_LDFLAGS = $(gpu_flags)
tests_gpu_gpu_kernels_LDADD = $(gpu_libs)
tests_gpu_gpu_kernels_attention_SOURCES = tests/unit/test_kernels_attention.c \
  tests/unit/test_kernels_cached.c \
  tests/unit/attention_fixture.h tests/unit/kernel_fixture.h
tests_gpu_gpu_kernels_attention_CPPFLAGS = $(gpu_defines)
tests_gpu_gpu_kernels_attention_LDFLAGS = $(gpu_flags)
tests_gpu_gpu_kernels_attention_LDADD = $(gpu_libs)
tests_gpu_gpu_kernels_bfloat16_SOURCES = tests/unit/test_kernels_bfloat16.c \
  tests/unit/kernel_fixture.h
tests_gpu_gpu_kernels_bfloat16_CPPFLAGS = $(gpu_defines)
tests_gpu_gpu_kernels_bfloat16_LDFLAGS = $(gpu_flags)
tests_gpu_gpu_kernels_bfloat16_LDADD = $(gpu_libs)
tests_gpu_gpu_kernels_sequence_SOURCES = tests/unit/test_kernels_sequence.c
tests_gpu_gpu_kernels_sequence_CPPFLAGS = $(gpu_defines)
tests_gpu_gpu_kernels_sequence_LDFLAGS = $(gpu_flags)
tests_gpu_gpu_kernels_sequence_LDADD = $(gpu_libs)
tests_gpu_gpu_products_SOURCES = tests/engine/gpu_products.c
tests_gpu_gpu_products_CPPFLAGS = $(gpu_defines)
tests_gpu_gpu_products_LDFLAGS = $(gpu_flags)
tests_gpu_gpu_products_LDADD = $(RUNTIME_LIBS)

# A tarball for hosts with a GPU; see scripts/bundle.sh.
bundle: all gpu-tests
	$(srcdir)/scripts/bundle.sh . fsdpd-$(PACKAGE_VERSION)-linux-x86_64
.PHONY: bundle
endif
endif
