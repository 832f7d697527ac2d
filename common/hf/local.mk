# Hugging Face's file formats: safetensors, and config.json as a model file.
noinst_LIBRARIES += libhf.a
libhf_a_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS) -DFAMILIES_DIR='"$(pkgdatadir)/families"'
libhf_a_SOURCES = \
  %D%/beside.c %D%/beside.h \
  %D%/config.c \
  %D%/export.c \
  %D%/families.c \
  %D%/family.c %D%/family.h \
  %D%/hf.h \
  %D%/index.c %D%/index.h \
  %D%/json.c %D%/json.h \
  %D%/known.c %D%/known.h \
  %D%/like.c %D%/like.h \
  %D%/names.c \
  %D%/peft.c %D%/peft.h \
  %D%/peft_read.c \
  %D%/safetensors.c %D%/safetensors.h
HF_LIBS = libhf.a libops.a libyamldoc.a libbase.a $(JANSSON_LIBS) $(YAML_LIBS) -lm

EXTRA_DIST += tests/golden/hf-bert.yaml tests/golden/hf-gpt2.yaml tests/golden/hf-llama.yaml

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_safetensors tests/unit/test_hf_families
TESTS += tests/unit/test_safetensors tests/unit/test_hf_families
tests_unit_test_hf_families_LDADD = $(HF_LIBS) $(TEST_LIBS)
tests_unit_test_safetensors_LDADD = $(HF_LIBS) $(TEST_LIBS)

config_tests = tests/unit/test_hf_config tests/unit/test_hf_export
check_PROGRAMS += $(config_tests)
TESTS += $(config_tests)
tiny_configs = tests/unit/tiny_configs.h tests/unit/family_files.c tests/unit/family_files.h
tests_unit_test_hf_config_SOURCES = tests/unit/test_hf_config.c tests/unit/graph_dump.c tests/unit/graph_dump.h \
  $(tiny_configs)
tests_unit_test_hf_config_LDADD = libmodel.a $(HF_LIBS) $(TEST_LIBS)
tests_unit_test_hf_export_SOURCES = tests/unit/test_hf_export.c $(tiny_configs)
tests_unit_test_hf_export_LDADD = $(HF_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/test_hf_models
TESTS += tests/unit/test_hf_models
tests_unit_test_hf_models_SOURCES = tests/unit/test_hf_models.c tests/unit/graph_dump.c tests/unit/graph_dump.h tests/unit/family_files.c tests/unit/family_files.h
tests_unit_test_hf_models_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
tests_unit_test_hf_models_LDADD = libmodel.a $(HF_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/test_family_texts
TESTS += tests/unit/test_family_texts
tests_unit_test_family_texts_SOURCES = tests/unit/test_family_texts.c tests/unit/family_files.c tests/unit/family_files.h
tests_unit_test_family_texts_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
tests_unit_test_family_texts_LDADD = libmodel.a libdigest.a $(HF_LIBS) $(CRYPTO_LIBS) $(TEST_LIBS)
EXTRA_DIST += tests/golden/family-texts.txt

# Losses of many configurations, as transformers has them.
check_PROGRAMS += tests/unit/test_hf_numbers tests/parity/dump_config_losses
TESTS += tests/unit/test_hf_numbers
CONFIG_LOSS = tests/unit/config_loss.c tests/unit/config_loss.h tests/unit/family_files.c tests/unit/family_files.h \
  tests/unit/machine.c tests/unit/machine.h
CONFIG_LOSS_LIBS = libhf.a libmodel.a libkernels.a libops.a libyamldoc.a libbase.a $(JANSSON_LIBS) $(YAML_LIBS) \
  $(DNNL_LIBS) $(OPENMP_CFLAGS)
tests_unit_test_hf_numbers_SOURCES = tests/unit/test_hf_numbers.c $(CONFIG_LOSS)
tests_unit_test_hf_numbers_LDADD = $(CONFIG_LOSS_LIBS) $(TEST_LIBS) -lm
tests_parity_dump_config_losses_SOURCES = tests/parity/dump_config_losses.c $(CONFIG_LOSS)
tests_parity_dump_config_losses_LDADD = $(CONFIG_LOSS_LIBS) -lm
EXTRA_DIST += tests/parity/make_config_numbers.py tests/parity/configs.txt
endif
