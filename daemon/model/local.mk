noinst_LIBRARIES += libmodel.a
libmodel_a_SOURCES = \
  %D%/arguments.c %D%/arguments.h \
  %D%/backward.c %D%/backward.h \
  %D%/checkpointing.c \
  %D%/construct.c \
  %D%/contrast.c \
  %D%/definition.c \
  %D%/factors.c %D%/factors.h \
  %D%/fuse.c \
  %D%/generation.c %D%/generation.h \
  %D%/gradients.c %D%/gradients.h %D%/gradients_contrast.c %D%/gradients_loss.c %D%/gradients_norm.c \
  %D%/graph.c %D%/graph.h \
  %D%/forward.h %D%/graph_build.c %D%/graph_builder.h %D%/graph_losses.c \
  %D%/initial.c \
  %D%/layer.h %D%/layers.c %D%/layers.h \
  %D%/layers_element.c %D%/layers_image.c %D%/layers_loss.c %D%/layers_recurrent.c %D%/layers_internal.h %D%/layers_shape.c %D%/layers_sequence.c \
  %D%/layout.c \
  %D%/lora.c %D%/lora.h %D%/lora_choose.c %D%/lora_choose.h \
  %D%/model.c %D%/model.h \
  %D%/model_file.c %D%/reader.h \
  %D%/model_free.c \
  %D%/precision.c \
  %D%/preference.c %D%/preference.h \
  %D%/program.h \
  %D%/shapes.c \
  %D%/sharing.c \
  %D%/teach.c %D%/teach.h \
  %D%/trace.c %D%/trace.h %D%/trace_leaf.c %D%/trace_shapes.c \
  %D%/values.c

if HAVE_CHECK
check_LIBRARIES += tests/unit/libmodeltest.a
tests_unit_libmodeltest_a_SOURCES = tests/unit/graph_checks.c tests/unit/graph_checks.h tests/unit/graph_dump.c tests/unit/graph_dump.h \
  tests/unit/model_files.c tests/unit/model_files.h tests/unit/tiny_models.c tests/unit/tiny_models.h
MODEL_TEST_LIBS = tests/unit/libmodeltest.a libmodel.a libops.a libyamldoc.a libbase.a $(YAML_LIBS) $(TEST_LIBS) -lm
MODEL_TESTS = tests/unit/test_model tests/unit/test_model_arguments tests/unit/test_model_limits \
  tests/unit/test_model_tokens tests/unit/test_graph tests/unit/test_graph_tokens tests/unit/test_lora
check_PROGRAMS += $(MODEL_TESTS)
TESTS += $(MODEL_TESTS)
$(MODEL_TESTS): private LDADD = $(MODEL_TEST_LIBS)
$(MODEL_TESTS): $(filter %.a,$(MODEL_TEST_LIBS))

check_PROGRAMS += tests/unit/test_gradients
TESTS += tests/unit/test_gradients
tests_unit_test_gradients_SOURCES = tests/unit/test_gradients.c tests/unit/machine.c \
  tests/unit/machine.h tests/unit/tiny_models.c tests/unit/tiny_models.h
tests_unit_test_gradients_LDADD = libmodel.a libkernels.a libops.a libyamldoc.a libbase.a \
  $(YAML_LIBS) $(DNNL_LIBS) $(OPENMP_CFLAGS) $(TEST_LIBS) -lm
endif

# Logits, gradients and losses of transformers against PyTorch's; skips itself where it is missing.
check_PROGRAMS += tests/parity/dump_transformer
tests_parity_dump_transformer_SOURCES = tests/parity/dump_transformer.c tests/parity/parameters.c \
  tests/parity/directory.c tests/parity/directory.h tests/parity/parameters.h tests/unit/family_files.c tests/unit/family_files.h tests/unit/machine.c \
  tests/unit/machine.h
tests_parity_dump_transformer_LDADD = libcheckpoint.a libhf.a libmodel.a libkernels.a libops.a \
  libyamldoc.a libbase.a $(JANSSON_LIBS) $(YAML_LIBS) $(DNNL_LIBS) $(OPENMP_CFLAGS) -lm
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
