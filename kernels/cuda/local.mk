# The CUDA kernels: for the GPU if nvcc is available (kernels/cuda/configure.m4), and always as C++, for
# their emulation in tests.
CUDA_KERNELS = \
  %D%/adafactor.cu \
  %D%/attention.cu \
  %D%/attention_backward.cu \
  %D%/attention_cached.cu \
  %D%/average.cu \
  %D%/base.cu \
  %D%/batch_norm.cu \
  %D%/conv.cu \
  %D%/element.cu \
  %D%/contrast.cu \
  %D%/preference.cu \
  %D%/element_loss.cu \
  %D%/embedding.cu \
  %D%/head.cu \
  %D%/linear_rows.cu \
  %D%/norm.cu \
  %D%/norm_backward.cu \
  %D%/packed.cu \
  %D%/pool.cu \
  %D%/reduce.cu \
  %D%/recurrent.cu \
  %D%/rope.cu \
  %D%/shape.cu \
  %D%/softmax.cu \
  %D%/step.cu \
  %D%/tally.cu
CUDA_KERNEL_INCLUDES = %D%/attention.h %D%/cuda.h %D%/draw.h %D%/generation.h %D%/norm.h %D%/ops.h %D%/optimizer.h %D%/platform.h %D%/reduce.h %D%/window.h
EXTRA_DIST += $(CUDA_KERNELS) $(CUDA_KERNEL_INCLUDES)

if HAVE_CHECK
EMULATED = \
  tests/emulation/emulation.cc tests/emulation/emulation.h \
  tests/emulation/kernels.cc \
  tests/emulation/kernels_attention.cc \
  tests/emulation/kernels_generation.cc \
  %D%/table.c
check_LIBRARIES += tests/emulation/libcuda_emulated.a
tests_emulation_libcuda_emulated_a_SOURCES = $(EMULATED)
tests_emulation_libcuda_emulated_a_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/tests/emulation
tests_emulation_libcuda_emulated_a_CXXFLAGS = $(AM_CXXFLAGS) -O2 -ffp-contract=off

cuda_test_libs = tests/emulation/libcuda_emulated.a $(kernel_test_libs) -lstdc++

# The tests of the CPU's kernels, run on ours.
check_PROGRAMS += tests/unit/test_cuda_kernels tests/unit/test_cuda_kernels_attention \
  tests/unit/test_cuda_kernels_bfloat16 tests/unit/test_cuda_kernels_sequence \
  tests/unit/test_cuda_kernels_vision tests/unit/test_cuda_head tests/unit/test_cuda_step
TESTS += tests/unit/test_cuda_kernels tests/unit/test_cuda_kernels_attention \
  tests/unit/test_cuda_kernels_bfloat16 tests/unit/test_cuda_kernels_sequence \
  tests/unit/test_cuda_kernels_vision tests/unit/test_cuda_head tests/unit/test_cuda_step
tests_unit_test_cuda_kernels_SOURCES = tests/unit/test_kernels.c tests/unit/kernel_fixture.h
tests_unit_test_cuda_kernels_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) -DTEST_CUDA
tests_unit_test_cuda_kernels_LDADD = $(cuda_test_libs)
tests_unit_test_cuda_kernels_attention_SOURCES = tests/unit/test_kernels_attention.c \
  tests/unit/test_kernels_cached.c tests/unit/attention_fixture.h tests/unit/kernel_fixture.h
tests_unit_test_cuda_kernels_attention_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) -DTEST_CUDA
tests_unit_test_cuda_kernels_attention_LDADD = $(cuda_test_libs)
tests_unit_test_cuda_kernels_bfloat16_SOURCES = tests/unit/test_kernels_bfloat16.c \
  tests/unit/kernel_fixture.h
tests_unit_test_cuda_kernels_bfloat16_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) -DTEST_CUDA
tests_unit_test_cuda_kernels_bfloat16_LDADD = $(cuda_test_libs)
tests_unit_test_cuda_kernels_sequence_SOURCES = tests/unit/test_kernels_sequence.c
tests_unit_test_cuda_kernels_sequence_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) -DTEST_CUDA
tests_unit_test_cuda_kernels_sequence_LDADD = $(cuda_test_libs)
tests_unit_test_cuda_kernels_vision_SOURCES = tests/unit/test_kernels_vision.c
tests_unit_test_cuda_kernels_vision_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) -DTEST_CUDA
tests_unit_test_cuda_kernels_vision_LDADD = $(cuda_test_libs)
tests_unit_test_cuda_head_SOURCES = tests/unit/test_cuda_head.c tests/unit/kernel_fixture.h
tests_unit_test_cuda_head_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) -DTEST_CUDA
tests_unit_test_cuda_head_LDADD = $(cuda_test_libs)
tests_unit_test_cuda_step_SOURCES = tests/unit/test_cuda_step.c tests/unit/kernel_fixture.h
tests_unit_test_cuda_step_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) -DTEST_CUDA
tests_unit_test_cuda_step_LDADD = $(cuda_test_libs)

# All of them in one program, with the kernels compiled for ThreadSanitizer: `make check-races`, or
# `make check CHECK_RACES=yes` with all tests.
EXTRA_LIBRARIES = tests/emulation/libcuda_races.a tests/emulation/libcuda_fibers.a
tests_emulation_libcuda_races_a_SOURCES = tests/emulation/kernels.cc tests/emulation/kernels_attention.cc \
  tests/emulation/kernels_generation.cc tests/emulation/planted.cc tests/emulation/planted.h
tests_emulation_libcuda_races_a_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/tests/emulation
tests_emulation_libcuda_races_a_CXXFLAGS = $(AM_CXXFLAGS) -O2 -g -ffp-contract=off -fsanitize=thread
tests_emulation_libcuda_fibers_a_SOURCES = tests/emulation/emulation.cc tests/emulation/emulation.h %D%/table.c
tests_emulation_libcuda_fibers_a_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/tests/emulation -DEMULATION_RACES
EXTRA_PROGRAMS = tests/unit/test_cuda_races
tests_unit_test_cuda_races_SOURCES = tests/unit/test_cuda_races.c tests/unit/test_cuda_head.c tests/unit/test_cuda_step.c \
  tests/unit/test_kernels.c tests/unit/test_kernels_attention.c tests/unit/test_kernels_cached.c \
  tests/unit/test_kernels_bfloat16.c \
  tests/unit/test_kernels_sequence.c tests/unit/test_kernels_vision.c
tests_unit_test_cuda_races_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) -DTEST_CUDA -DTEST_RACES
tests_unit_test_cuda_races_LDFLAGS = $(AM_LDFLAGS) -fsanitize=thread
tests_unit_test_cuda_races_LDADD = tests/emulation/libcuda_races.a tests/emulation/libcuda_fibers.a \
  tests/emulation/libcuda_races.a $(kernel_test_libs) -lstdc++
check-races: tests/unit/test_cuda_races
	srcdir=$(srcdir) builddir=. $(srcdir)/tests/check_races.sh
check-local:
	test '$(CHECK_RACES)' != yes || $(MAKE) $(AM_MAKEFLAGS) check-races
.PHONY: check-races
CLEANFILES += tests/unit/test_cuda_races tests/unit/test_cuda_races*.log tests/unit/test_cuda_races.log.tests \
  tests/emulation/libcuda_races.a tests/emulation/libcuda_fibers.a
endif
EXTRA_DIST += tests/check_races.sh

if HAVE_CUDA
CUDA_OBJECTS = $(CUDA_KERNELS:.cu=.o)
# No contraction, as everywhere: a fused multiply-add is written as fmaf. The compiler's report on
# registers and spills is stored next to the object.
NVCC_FLAGS = -std=c++17 -O3 -fmad=false $(CUDA_ARCH_FLAGS) -Xcompiler -fPIC -I$(srcdir)/common -I$(srcdir) \
  -Xptxas -v
%D%/%.o: $(srcdir)/%D%/%.cu $(addprefix $(srcdir)/,$(CUDA_KERNEL_INCLUDES)) $(wildcard $(srcdir)/kernels/*.h $(srcdir)/common/ops/*.h)
	$(AM_V_GEN)$(MKDIR_P) $(@D) && { $(NVCC) $(NVCC_FLAGS) -c -o $@ $< >%D%/$*.report 2>&1 || \
	  { cat %D%/$*.report >&2; rm -f $@; exit 1; }; }
mostlyclean-local:
	rm -f kernels/cuda/*.o kernels/cuda/*.report
endif
