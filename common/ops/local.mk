noinst_LIBRARIES += libops.a
libops_a_SOURCES = \
  %D%/op_table.c %D%/op.h \
  %D%/op_attributes.c %D%/op_attributes.h \
  %D%/op_check.c %D%/op_check.h \
  %D%/op_check_contrast.c \
  %D%/op_check_layers.c \
  %D%/op_check_preference.c \
  %D%/op_check_recurrent.c \
  %D%/op_check_sequence.c %D%/op_check_shapes.c \
  %D%/op_cost.c \
  %D%/optimizers.h \
  %D%/tensor.c %D%/tensor.h
