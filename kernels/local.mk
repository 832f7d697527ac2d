# Programs that link libkernels.a also need, after it:
#   libops.a libbase.a $(DNNL_LIBS) $(OPENMP_CFLAGS) -lm
noinst_LIBRARIES += libkernels.a
libkernels_a_SOURCES = \
  %D%/attention.h \
  %D%/batch_norm.h \
  %D%/bfloat16.h \
  %D%/distance.h \
  %D%/halves.c \
  %D%/kernel.h \
  %D%/kernels.c %D%/kernels.h \
  %D%/mixed.c \
  %D%/adafactor.c \
  %D%/muon.c %D%/muon.h \
  %D%/nf4.c \
  %D%/packed.c \
  %D%/philox.h \
  %D%/recurrent.h \
  %D%/linear_rows.h %D%/rope.c %D%/rope.h \
  %D%/vector.c \
  %D%/reference/activation.c \
  %D%/reference/arithmetic.c \
  %D%/reference/attention.c \
  %D%/reference/conv.c \
  %D%/reference/element.c \
  %D%/reference/contrast.c \
  %D%/reference/preference.c \
  %D%/reference/element_loss.c \
  %D%/reference/tally.c \
  %D%/reference/embedding.c \
  %D%/reference/batch_norm.c \
  %D%/reference/group_norm.c \
  %D%/reference/head.c \
  %D%/reference/linear.c \
  %D%/reference/loss.c \
  %D%/reference/norm.c \
  %D%/reference/pool.c \
  %D%/reference/recurrent.c \
  %D%/reference/reference.c %D%/reference/reference.h \
  %D%/reference/shape.c \
  %D%/cpu/attention.c \
  %D%/cpu/attention_cached.c \
  %D%/cpu/avg_pool.c \
  %D%/cpu/cast.c \
  %D%/cpu/slice.c \
  %D%/cpu/conv.c %D%/cpu/conv_columns.c \
  %D%/cpu/cpu.c %D%/cpu/cpu.h \
  %D%/cpu/dropout.c \
  %D%/cpu/element.c \
  %D%/cpu/contrast.c \
  %D%/cpu/preference.c \
  %D%/cpu/element_loss.c \
  %D%/cpu/tally.c \
  %D%/cpu/embedding.c \
  %D%/cpu/batch_norm.c \
  %D%/cpu/group_norm.c \
  %D%/cpu/head.c \
  %D%/cpu/linear.c \
  %D%/cpu/linear_rows.c \
  %D%/cpu/matmul.c \
  %D%/cpu/recurrent.c \
  %D%/cpu/loops.c %D%/cpu/loops.h \
  %D%/cpu/loops_activation.h \
  %D%/cpu/loops_attention.h \
  %D%/cpu/loops_avx2.c \
  %D%/cpu/loops_avx512.c \
  %D%/cpu/loops_base.c \
  %D%/cpu/loops_batch.h \
  %D%/cpu/loops_bfloat16.h \
  %D%/cpu/loops_body.h \
  %D%/cpu/loops_dots.h \
  %D%/cpu/loops_dropout.h \
  %D%/cpu/loops_element.h \
  %D%/cpu/loops_list.h \
  %D%/cpu/loops_loss.h \
  %D%/cpu/loops_norm.h \
  %D%/cpu/loops_optimizer.h \
  %D%/cpu/loops_pool.h \
  %D%/cpu/loops_product.h \
  %D%/cpu/loops_random.h \
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
  %D%/cpu/shape.c \
  %D%/cpu/softmax.c \
  %D%/cpu/winograd.c %D%/cpu/winograd.h
# The compiler vectorises loops with square roots and comparisons only without errno and traps; neither
# changes a result. -O2 counts in builds with sanitizers, where the tests' time is spent here; else CFLAGS do.
libkernels_a_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS) -fno-math-errno -fno-trapping-math -O2

if HAVE_CHECK
kernel_test_libs = libkernels.a libops.a libbase.a $(DNNL_LIBS) $(OPENMP_CFLAGS) $(TEST_LIBS) -lm

KERNEL_TESTS = tests/unit/test_kernels tests/unit/test_kernels_attention tests/unit/test_kernels_cached tests/unit/test_attention_numbers \
  tests/unit/test_attention_gradients \
  tests/unit/test_kernels_gradients tests/unit/test_kernels_sequence tests/unit/test_sequence_numbers \
  tests/unit/test_sequence_gradients tests/unit/test_vision_gradients tests/unit/test_kernels_vision \
  tests/unit/test_kernels_bfloat16 tests/unit/test_kernels_loops \
  tests/unit/test_optimizer_loops tests/unit/test_winograd tests/unit/test_ops \
  tests/unit/test_ops_losses tests/unit/test_ops_sequence
check_PROGRAMS += $(KERNEL_TESTS)
TESTS += $(KERNEL_TESTS)
$(KERNEL_TESTS): private LDADD = $(kernel_test_libs)
$(KERNEL_TESTS): $(filter %.a,$(kernel_test_libs))
op_fixture = tests/unit/op_fixture.h tests/unit/kernel_fixture.h
tests_unit_test_ops_SOURCES = tests/unit/test_ops.c $(op_fixture)
tests_unit_test_ops_losses_SOURCES = tests/unit/test_ops_losses.c $(op_fixture)
tests_unit_test_ops_sequence_SOURCES = tests/unit/test_ops_sequence.c $(op_fixture)
loops_fixture = tests/unit/loops_fixture.h tests/unit/kernel_fixture.h
tests_unit_test_kernels_loops_SOURCES = tests/unit/test_kernels_loops.c $(loops_fixture)
tests_unit_test_optimizer_loops_SOURCES = tests/unit/test_optimizer_loops.c $(loops_fixture)

EXTRA_DIST += tests/parity/attention.txt tests/parity/make_attention_numbers.py \
  tests/parity/make_sequence_numbers.py tests/parity/sequence.txt

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
