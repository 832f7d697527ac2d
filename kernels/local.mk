# Programs that link libkernels.a also need, after it:
#   libops.a libbase.a $(DNNL_LIBS) $(OPENMP_CFLAGS) -lm
noinst_LIBRARIES += libkernels.a
libkernels_a_SOURCES = \
  %D%/kernel.h \
  %D%/kernels.c %D%/kernels.h \
  %D%/philox.h \
  %D%/vector.c \
  %D%/reference/conv.c \
  %D%/reference/element.c \
  %D%/reference/linear.c \
  %D%/reference/loss.c \
  %D%/reference/pool.c \
  %D%/reference/reference.c %D%/reference/reference.h \
  %D%/cpu/cpu.c \
  %D%/cpu/loops.c %D%/cpu/loops.h \
  %D%/cpu/loops_avx2.c \
  %D%/cpu/loops_avx512.c \
  %D%/cpu/loops_base.c \
  %D%/cpu/loops_body.h \
  %D%/cpu/loops_element.h \
  %D%/cpu/loops_optimizer.h \
  %D%/cpu/parallel.c %D%/cpu/parallel.h
# Loops with square roots and comparisons only become vector code without errno and traps; neither
# changes a result.
libkernels_a_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS) -fno-math-errno -fno-trapping-math
