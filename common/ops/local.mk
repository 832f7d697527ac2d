noinst_LIBRARIES += libops.a
libops_a_SOURCES = \
  %D%/op.c %D%/op.h \
  %D%/tensor.c %D%/tensor.h
