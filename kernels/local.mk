# Programs that link libkernels.a also need, after it:
#   libops.a libbase.a $(DNNL_LIBS) $(OPENMP_CFLAGS) -lm
noinst_LIBRARIES += libkernels.a
libkernels_a_SOURCES = \
  %D%/attention.h \
  %D%/bfloat16.h \
  %D%/kernel.h \
  %D%/kernels.c %D%/kernels.h \
  %D%/mixed.c \
  %D%/philox.h \
  %D%/rope.c %D%/rope.h \
  %D%/vector.c \
  %D%/reference/activation.c \
  %D%/reference/attention.c \
  %D%/reference/conv.c \
  %D%/reference/element.c \
  %D%/reference/embedding.c \
  %D%/reference/head.c \
  %D%/reference/linear.c \
  %D%/reference/loss.c \
  %D%/reference/norm.c \
  %D%/reference/pool.c \
  %D%/reference/reference.c %D%/reference/reference.h \
  %D%/cpu/attention.c \
  %D%/cpu/cast.c \
  %D%/cpu/conv.c \
  %D%/cpu/cpu.c %D%/cpu/cpu.h \
  %D%/cpu/dropout.c \
  %D%/cpu/element.c \
  %D%/cpu/embedding.c \
  %D%/cpu/head.c \
  %D%/cpu/linear.c \
  %D%/cpu/loops.c %D%/cpu/loops.h \
  %D%/cpu/loops_activation.h \
  %D%/cpu/loops_attention.h \
  %D%/cpu/loops_avx2.c \
  %D%/cpu/loops_avx512.c \
  %D%/cpu/loops_base.c \
  %D%/cpu/loops_bfloat16.h \
  %D%/cpu/loops_body.h \
  %D%/cpu/loops_dropout.h \
  %D%/cpu/loops_element.h \
  %D%/cpu/loops_norm.h \
  %D%/cpu/loops_optimizer.h \
  %D%/cpu/loops_pool.h \
  %D%/cpu/loops_product.h \
  %D%/cpu/loops_softmax.h \
  %D%/cpu/loops_transpose.h \
  %D%/cpu/loops_winograd.h \
  %D%/cpu/loss.c \
  %D%/cpu/norm.c \
  %D%/cpu/parallel.c %D%/cpu/parallel.h \
  %D%/cpu/pool.c \
  %D%/cpu/program.c %D%/cpu/program.h \
  %D%/cpu/reshape.c \
  %D%/cpu/rope.c \
  %D%/cpu/softmax.c \
  %D%/cpu/winograd.c %D%/cpu/winograd.h
# Loops with square roots and comparisons only become vector code without errno and traps; neither
# changes a result.
libkernels_a_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS) -fno-math-errno -fno-trapping-math

if HAVE_CHECK
kernel_test_libs = libkernels.a libops.a libbase.a $(DNNL_LIBS) $(OPENMP_CFLAGS) $(CHECK_LIBS) -lm

check_PROGRAMS += tests/unit/test_kernels
TESTS += tests/unit/test_kernels
tests_unit_test_kernels_SOURCES = tests/unit/test_kernels.c tests/unit/kernel_fixture.h
tests_unit_test_kernels_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_kernels_LDADD = $(kernel_test_libs)

check_PROGRAMS += tests/unit/test_kernels_attention
TESTS += tests/unit/test_kernels_attention
tests_unit_test_kernels_attention_SOURCES = tests/unit/test_kernels_attention.c \
  tests/unit/attention_fixture.h tests/unit/kernel_fixture.h
tests_unit_test_kernels_attention_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_kernels_attention_LDADD = $(kernel_test_libs)

EXTRA_DIST += tests/parity/attention.txt tests/parity/make_attention_numbers.py \
  tests/parity/make_sequence_numbers.py tests/parity/sequence.txt
check_PROGRAMS += tests/unit/test_attention_numbers
TESTS += tests/unit/test_attention_numbers
tests_unit_test_attention_numbers_SOURCES = tests/unit/test_attention_numbers.c \
  tests/unit/attention_fixture.h tests/unit/kernel_fixture.h
tests_unit_test_attention_numbers_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_attention_numbers_LDADD = $(kernel_test_libs)

check_PROGRAMS += tests/unit/test_kernels_gradients
TESTS += tests/unit/test_kernels_gradients
tests_unit_test_kernels_gradients_SOURCES = tests/unit/test_kernels_gradients.c
tests_unit_test_kernels_gradients_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_kernels_gradients_LDADD = $(kernel_test_libs)

check_PROGRAMS += tests/unit/test_kernels_sequence
TESTS += tests/unit/test_kernels_sequence
tests_unit_test_kernels_sequence_SOURCES = tests/unit/test_kernels_sequence.c
tests_unit_test_kernels_sequence_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_kernels_sequence_LDADD = $(kernel_test_libs)

check_PROGRAMS += tests/unit/test_sequence_numbers
TESTS += tests/unit/test_sequence_numbers
tests_unit_test_sequence_numbers_SOURCES = tests/unit/test_sequence_numbers.c
tests_unit_test_sequence_numbers_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_sequence_numbers_LDADD = $(kernel_test_libs)

check_PROGRAMS += tests/unit/test_sequence_gradients
TESTS += tests/unit/test_sequence_gradients
tests_unit_test_sequence_gradients_SOURCES = tests/unit/test_sequence_gradients.c
tests_unit_test_sequence_gradients_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_sequence_gradients_LDADD = $(kernel_test_libs)

check_PROGRAMS += tests/unit/test_kernels_bfloat16
TESTS += tests/unit/test_kernels_bfloat16
tests_unit_test_kernels_bfloat16_SOURCES = tests/unit/test_kernels_bfloat16.c \
  tests/unit/kernel_fixture.h
tests_unit_test_kernels_bfloat16_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_kernels_bfloat16_LDADD = $(kernel_test_libs)

check_PROGRAMS += tests/unit/test_kernels_loops
TESTS += tests/unit/test_kernels_loops
tests_unit_test_kernels_loops_SOURCES = tests/unit/test_kernels_loops.c
tests_unit_test_kernels_loops_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_kernels_loops_LDADD = $(kernel_test_libs)

check_PROGRAMS += tests/unit/test_winograd
TESTS += tests/unit/test_winograd
tests_unit_test_winograd_SOURCES = tests/unit/test_winograd.c tests/unit/kernel_fixture.h
tests_unit_test_winograd_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_winograd_LDADD = $(kernel_test_libs)

check_PROGRAMS += tests/unit/test_ops
TESTS += tests/unit/test_ops
tests_unit_test_ops_SOURCES = tests/unit/test_ops.c
tests_unit_test_ops_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_ops_LDADD = $(kernel_test_libs)
endif

include kernels/cuda/local.mk

noinst_PROGRAMS += bench/attention bench/kernels bench/sequence
time_op = bench/time_op.c bench/time_op.h
bench_attention_SOURCES = bench/attention.c $(time_op)
bench_attention_LDADD = libkernels.a libops.a libbase.a $(DNNL_LIBS) $(OPENMP_CFLAGS) -lm
bench_kernels_SOURCES = bench/kernels.c $(time_op)
bench_kernels_LDADD = libkernels.a libops.a libbase.a $(DNNL_LIBS) $(OPENMP_CFLAGS) -lm
bench_sequence_SOURCES = bench/sequence.c $(time_op)
bench_sequence_LDADD = libkernels.a libops.a libbase.a $(DNNL_LIBS) $(OPENMP_CFLAGS) -lm
