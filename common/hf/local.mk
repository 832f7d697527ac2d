# Hugging Face's file formats: safetensors, and config.json as a model file.
noinst_LIBRARIES += libhf.a
libhf_a_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)
libhf_a_SOURCES = \
  %D%/bert.c \
  %D%/config.c %D%/config.h \
  %D%/gpt2.c \
  %D%/hf.h \
  %D%/index.c %D%/index.h \
  %D%/llama.c \
  %D%/names.c \
  %D%/safetensors.c %D%/safetensors.h
HF_LIBS = libhf.a libops.a libbase.a $(JANSSON_LIBS)

EXTRA_DIST += tests/golden/hf-bert.yaml tests/golden/hf-gpt2.yaml tests/golden/hf-llama.yaml

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_safetensors tests/unit/test_hf_config
TESTS += tests/unit/test_safetensors tests/unit/test_hf_config
tests_unit_test_safetensors_SOURCES = tests/unit/test_safetensors.c
tests_unit_test_safetensors_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) $(JANSSON_CFLAGS)
tests_unit_test_safetensors_LDADD = $(HF_LIBS) $(CHECK_LIBS)

tests_unit_test_hf_config_SOURCES = tests/unit/test_hf_config.c
tests_unit_test_hf_config_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) $(JANSSON_CFLAGS)
tests_unit_test_hf_config_LDADD = libmodel.a libyamldoc.a $(HF_LIBS) $(YAML_LIBS) $(CHECK_LIBS) -lm
endif
