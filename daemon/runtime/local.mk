noinst_LIBRARIES += libruntime.a
libruntime_a_SOURCES = \
  %D%/backend.c %D%/backend.h \
  %D%/backend_join.c \
  %D%/comm.c %D%/comm.h \
  %D%/comm_gloo.c \
  %D%/comm_local.c \
  %D%/comm_memory.c \
  %D%/comm_table.h \
  %D%/device.c %D%/device.h \
  %D%/device_cpu.c \
  %D%/device_null.c \
  %D%/device_table.h \
  %D%/executor.c %D%/executor.h %D%/executor_internal.h %D%/executor_prepare.c \
  %D%/executor_state.c \
  %D%/gloo_link.cc %D%/gloo_link.h \
  %D%/host_memory.c \
  %D%/lane_cpu.c \
  %D%/recorder.c %D%/recorder.h \
  %D%/relayout.c %D%/relayout.h \
  %D%/rendezvous.h \
  %D%/step_args.h \
  %D%/step_cpu.c \
  %D%/trace.c %D%/trace.h

libruntime_a_CPPFLAGS = $(AM_CPPFLAGS) -DPKGLIBDIR='"$(pkglibdir)"'
EXTRA_DIST += %D%/backend.syms
include %D%/cuda/local.mk

# What a program that uses libruntime.a links after it.
RUNTIME_LIBS = libruntime.a libkernels.a libfsdp.a libmodel.a libops.a libyamldoc.a libbase.a \
  $(YAML_LIBS) $(DNNL_LIBS) $(OPENMP_CFLAGS) $(GLOO_LIBS) -lstdc++ -lm

if HAVE_CHECK
RUNTIME_TESTS = tests/unit/test_device tests/unit/test_comm tests/engine/test_engine \
  tests/engine/test_engine_failures tests/engine/test_checkpointing \
  tests/engine/test_transformers \
  tests/engine/test_precision tests/engine/test_trace tests/engine/test_matrix
check_PROGRAMS += $(RUNTIME_TESTS)
TESTS += $(RUNTIME_TESTS)

tests_unit_test_device_SOURCES = tests/unit/test_device.c
tests_unit_test_device_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_device_LDADD = $(RUNTIME_LIBS) $(CHECK_LIBS)

tests_unit_test_comm_SOURCES = tests/unit/test_comm.c tests/engine/group.c tests/engine/group.h
tests_unit_test_comm_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_comm_LDADD = $(RUNTIME_LIBS) $(CHECK_LIBS)

ENGINE_TEST_SOURCES = tests/engine/engine.c tests/engine/engine.h tests/engine/group.c \
  tests/engine/group.h
tests_engine_test_engine_SOURCES = tests/engine/test_engine.c $(ENGINE_TEST_SOURCES)
tests_engine_test_engine_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_engine_LDADD = $(RUNTIME_LIBS) $(CHECK_LIBS)
tests_engine_test_engine_failures_SOURCES = tests/engine/test_engine_failures.c \
  $(ENGINE_TEST_SOURCES)
tests_engine_test_engine_failures_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_engine_failures_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=kernel_run
tests_engine_test_engine_failures_LDADD = $(RUNTIME_LIBS) $(CHECK_LIBS)
check_PROGRAMS += tests/parity/train_transformer
tests_parity_train_transformer_SOURCES = tests/parity/train_transformer.c \
  tests/parity/parameters.c tests/parity/parameters.h $(ENGINE_TEST_SOURCES)
tests_parity_train_transformer_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_parity_train_transformer_LDADD = libhf.a $(RUNTIME_LIBS) $(JANSSON_LIBS) $(CHECK_LIBS)
TESTS += tests/parity/test_transformers.py
EXTRA_DIST += tests/parity/test_transformers.py tests/parity/transformer_reference.py
tests_engine_test_transformers_SOURCES = tests/engine/test_transformers.c \
  tests/unit/tiny_models.c tests/unit/tiny_models.h $(ENGINE_TEST_SOURCES)
tests_engine_test_transformers_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_transformers_LDADD = $(RUNTIME_LIBS) $(CHECK_LIBS)
tests_engine_test_checkpointing_SOURCES = tests/engine/test_checkpointing.c $(ENGINE_TEST_SOURCES)
tests_engine_test_checkpointing_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_checkpointing_LDADD = $(RUNTIME_LIBS) $(CHECK_LIBS)
tests_engine_test_trace_SOURCES = tests/engine/test_trace.c $(ENGINE_TEST_SOURCES)
tests_engine_test_trace_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_trace_LDADD = $(RUNTIME_LIBS) $(CHECK_LIBS)
tests_engine_test_matrix_SOURCES = tests/engine/test_matrix.c $(ENGINE_TEST_SOURCES)
tests_engine_test_matrix_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_matrix_LDADD = $(RUNTIME_LIBS) $(CHECK_LIBS)
tests_engine_test_precision_SOURCES = tests/engine/test_precision.c $(ENGINE_TEST_SOURCES)
tests_engine_test_precision_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_precision_LDADD = $(RUNTIME_LIBS) $(CHECK_LIBS)
endif
