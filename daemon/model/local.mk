noinst_LIBRARIES += libmodel.a
libmodel_a_SOURCES = \
  %D%/arguments.c %D%/arguments.h \
  %D%/constant.c \
  %D%/construct.c \
  %D%/definition.c \
  %D%/dump.c \
  %D%/expression.c %D%/expression.h \
  %D%/fuse.c \
  %D%/gradients.c \
  %D%/graph.c %D%/graph.h \
  %D%/graph_build.c %D%/graph_builder.h \
  %D%/layers.c %D%/layers.h \
  %D%/layout.c \
  %D%/model.c %D%/model.h \
  %D%/model_file.c %D%/reader.h \
  %D%/program.h \
  %D%/sharing.c \
  %D%/tokens.c %D%/tokens.h \
  %D%/trace.c
