# daemon/checkpoint
noinst_LIBRARIES += libcheckpoint.a
libcheckpoint_a_SOURCES = \
  %D%/agreement.c %D%/agreement.h \
  %D%/block_sums.c %D%/block_sums.h \
  %D%/capture.c %D%/capture.h %D%/capture_internal.h \
  %D%/derived.c %D%/derived.h \
  %D%/export.c %D%/export.h \
  %D%/folder.c %D%/folder.h \
  %D%/manifest.c %D%/manifest.h \
  %D%/save.c \
  %D%/saved.c %D%/saved.h %D%/saved_internal.h %D%/saved_match.c \
  %D%/state_dict.c %D%/state_dict.h \
  %D%/state_header.c %D%/state_header.h \
  %D%/state_sums.c %D%/state_sums.h \
  %D%/unlisted.c %D%/unlisted.h \
  %D%/weights.c %D%/weights.h %D%/weights_internal.h \
  %D%/weights_match.c
libcheckpoint_a_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS)


if HAVE_CHECK
CHECKPOINT_TESTS = tests/unit/test_folder tests/unit/test_weights tests/unit/test_lying_checkpoints
check_PROGRAMS += $(CHECKPOINT_TESTS)
TESTS += $(CHECKPOINT_TESTS)
weights_test_libs = libcheckpoint.a libhf.a libmodel.a libops.a libyamldoc.a libbase.a \
  $(JANSSON_LIBS) $(YAML_LIBS) $(TEST_LIBS) -lm
tests_unit_test_folder_LDADD = libcheckpoint.a libdigest.a $(CRYPTO_LIBS) $(weights_test_libs)
tests_unit_test_weights_SOURCES = tests/unit/test_weights.c tests/unit/family_files.c tests/unit/family_files.h
tests_unit_test_weights_LDADD = $(weights_test_libs)
tests_unit_test_lying_checkpoints_LDADD = $(weights_test_libs)
endif
