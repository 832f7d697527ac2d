noinst_LIBRARIES += libmodel.a
libmodel_a_SOURCES = \
  %D%/arguments.c %D%/arguments.h \
  %D%/checkpointing.c \
  %D%/constant.c \
  %D%/construct.c \
  %D%/definition.c \
  %D%/dump.c \
  %D%/expression.c %D%/expression.h \
  %D%/fuse.c \
  %D%/gradients.c \
  %D%/graph.c %D%/graph.h \
  %D%/graph_build.c %D%/graph_builder.h \
  %D%/initial.c \
  %D%/layers.c %D%/layers.h \
  %D%/layers_sequence.c %D%/layers_sequence.h \
  %D%/layout.c \
  %D%/model.c %D%/model.h \
  %D%/model_file.c %D%/reader.h \
  %D%/precision.c \
  %D%/program.h \
  %D%/shapes.c \
  %D%/sharing.c \
  %D%/tokens.c %D%/tokens.h \
  %D%/trace.c

if HAVE_CHECK
MODEL_TESTS = tests/unit/test_model tests/unit/test_model_limits tests/unit/test_model_tokens
check_PROGRAMS += $(MODEL_TESTS)
TESTS += $(MODEL_TESTS)
MODEL_TEST_SOURCES = tests/unit/model_files.c tests/unit/model_files.h tests/unit/tiny_models.c \
  tests/unit/tiny_models.h
tests_unit_test_model_SOURCES = tests/unit/test_model.c $(MODEL_TEST_SOURCES)
tests_unit_test_model_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_model_LDADD = libmodel.a libops.a libyamldoc.a libbase.a $(YAML_LIBS) \
  $(CHECK_LIBS) -lm

tests_unit_test_model_limits_SOURCES = tests/unit/test_model_limits.c $(MODEL_TEST_SOURCES)
tests_unit_test_model_limits_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_model_limits_LDADD = $(tests_unit_test_model_LDADD)

tests_unit_test_model_tokens_SOURCES = tests/unit/test_model_tokens.c $(MODEL_TEST_SOURCES)
tests_unit_test_model_tokens_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_model_tokens_LDADD = $(tests_unit_test_model_LDADD)

GRAPH_TESTS = tests/unit/test_graph tests/unit/test_graph_tokens
check_PROGRAMS += $(GRAPH_TESTS)
TESTS += $(GRAPH_TESTS)
GRAPH_TEST_SOURCES = tests/unit/graph_checks.c tests/unit/graph_checks.h $(MODEL_TEST_SOURCES)
tests_unit_test_graph_SOURCES = tests/unit/test_graph.c $(GRAPH_TEST_SOURCES)
tests_unit_test_graph_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_graph_LDADD = $(tests_unit_test_model_LDADD)

tests_unit_test_graph_tokens_SOURCES = tests/unit/test_graph_tokens.c $(GRAPH_TEST_SOURCES)
tests_unit_test_graph_tokens_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_graph_tokens_LDADD = $(tests_unit_test_model_LDADD)

check_PROGRAMS += tests/unit/test_gradients
TESTS += tests/unit/test_gradients
tests_unit_test_gradients_SOURCES = tests/unit/test_gradients.c tests/unit/machine.c \
  tests/unit/machine.h tests/unit/tiny_models.c tests/unit/tiny_models.h
tests_unit_test_gradients_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_gradients_LDADD = libmodel.a libkernels.a libops.a libyamldoc.a libbase.a \
  $(YAML_LIBS) $(DNNL_LIBS) $(OPENMP_CFLAGS) $(CHECK_LIBS) -lm
endif

# Logits, gradients and losses of transformers against PyTorch's; skips itself where it is missing.
check_PROGRAMS += tests/parity/dump_transformer
tests_parity_dump_transformer_SOURCES = tests/parity/dump_transformer.c tests/parity/parameters.c \
  tests/parity/parameters.h tests/unit/machine.c tests/unit/machine.h
tests_parity_dump_transformer_LDADD = libhf.a libmodel.a libkernels.a libops.a libyamldoc.a \
  libbase.a $(JANSSON_LIBS) $(YAML_LIBS) $(DNNL_LIBS) $(OPENMP_CFLAGS) -lm
EXTRA_DIST += \
  docs/model-file.md \
  tests/golden/graph-bert-evaluate.txt \
  tests/golden/graph-bert-train.txt \
  tests/golden/graph-gpt2-evaluate.txt \
  tests/golden/graph-gpt2-train.txt \
  tests/golden/graph-llama-evaluate.txt \
  tests/golden/graph-llama-train.txt \
  tests/golden/graph-mnist-evaluate.txt \
  tests/golden/graph-mnist-train-channels-last.txt \
  tests/golden/graph-mnist-train.txt
