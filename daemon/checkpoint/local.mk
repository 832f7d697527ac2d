# daemon/checkpoint
noinst_LIBRARIES += libcheckpoint.a
libcheckpoint_a_SOURCES = \
  %D%/safetensors.c %D%/safetensors.h \
  %D%/state_dict.c %D%/state_dict.h
libcheckpoint_a_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)


if HAVE_CHECK
check_PROGRAMS += tests/unit/test_safetensors
TESTS += tests/unit/test_safetensors
tests_unit_test_safetensors_SOURCES = tests/unit/test_safetensors.c
tests_unit_test_safetensors_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) $(JANSSON_CFLAGS)
tests_unit_test_safetensors_LDADD = libcheckpoint.a libops.a libbase.a $(JANSSON_LIBS) $(CHECK_LIBS)
endif
