# Hugging Face's file formats: safetensors, and config.json as a model file.
noinst_LIBRARIES += libhf.a
libhf_a_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS) -DFAMILIES_DIR='"$(pkgdatadir)/families"'
libhf_a_SOURCES = \
  %D%/config.c \
  %D%/families.c \
  %D%/family.c %D%/family.h \
  %D%/hf.h \
  %D%/index.c %D%/index.h \
  %D%/names.c \
  %D%/safetensors.c %D%/safetensors.h
HF_LIBS = libhf.a libops.a libyamldoc.a libbase.a $(JANSSON_LIBS) $(YAML_LIBS) -lm

EXTRA_DIST += tests/golden/hf-bert.yaml tests/golden/hf-gpt2.yaml tests/golden/hf-llama.yaml

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_safetensors tests/unit/test_hf_config tests/unit/test_hf_families
TESTS += tests/unit/test_safetensors tests/unit/test_hf_config tests/unit/test_hf_families
tests_unit_test_hf_families_LDADD = $(HF_LIBS) $(TEST_LIBS)
tests_unit_test_safetensors_LDADD = $(HF_LIBS) $(TEST_LIBS)

tests_unit_test_hf_config_SOURCES = tests/unit/test_hf_config.c tests/unit/family_files.c tests/unit/family_files.h
tests_unit_test_hf_config_LDADD = libmodel.a $(HF_LIBS) $(TEST_LIBS)
endif
