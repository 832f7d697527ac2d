# daemon/train, and the program that draws digits to train on
noinst_LIBRARIES += libtrain.a
libtrain_a_SOURCES = \
  %D%/compare.c \
  %D%/dataset.h \
  %D%/feed.c %D%/feed.h \
  %D%/generator.c %D%/generator.h \
  %D%/idx.c %D%/idx.h \
  %D%/image_rows.c %D%/image_rows.h \
  %D%/init.c %D%/init.h \
  %D%/job.h \
  %D%/loader.c %D%/loader.h \
  %D%/masking.c %D%/masking.h \
  %D%/rewrap.c %D%/rewrap.h \
  %D%/resume.c %D%/resume.h \
  %D%/rows.h \
  %D%/run.c %D%/run.h %D%/run_state.h \
  %D%/sampler.c %D%/sampler.h \
  %D%/schedule.c %D%/schedule.h \
  %D%/session.c %D%/session.h \
  %D%/token_data.c %D%/token_data.h \
  %D%/token_file.c %D%/token_file.h \
  %D%/token_rows.c %D%/token_rows.h \
  %D%/windows.c %D%/windows.h
libtrain_a_CPPFLAGS = $(AM_CPPFLAGS) $(ZLIB_CFLAGS)

noinst_PROGRAMS += fsdpd-digits
fsdpd_digits_SOURCES = examples/digits/draw.c
fsdpd_digits_LDADD = libbase.a -lm

EXTRA_DIST += tests/parity/make_numbers.py tests/parity/numbers.txt

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_train_numbers tests/unit/test_train_data tests/unit/test_train_tokens
TESTS += tests/unit/test_train_numbers tests/unit/test_train_data tests/unit/test_train_tokens

tests_unit_test_train_numbers_SOURCES = tests/unit/test_train_numbers.c
tests_unit_test_train_numbers_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) $(ZLIB_CFLAGS)
tests_unit_test_train_numbers_LDADD = libtrain.a $(RUNTIME_LIBS) $(ZLIB_LIBS) $(CHECK_LIBS) -lm

tests_unit_test_train_data_SOURCES = tests/unit/test_train_data.c
tests_unit_test_train_data_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) $(ZLIB_CFLAGS)
tests_unit_test_train_data_LDADD = libtrain.a libops.a libbase.a $(ZLIB_LIBS) $(CHECK_LIBS) -lm

tests_unit_test_train_tokens_SOURCES = tests/unit/test_train_tokens.c
tests_unit_test_train_tokens_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_train_tokens_LDADD = libtrain.a libbase.a $(CHECK_LIBS) -lm
endif

# Initial parameters against PyTorch's; skips itself where PyTorch is not installed.
check_PROGRAMS += tests/parity/dump_init
tests_parity_dump_init_SOURCES = tests/parity/dump_init.c
tests_parity_dump_init_LDADD = libtrain.a libmodel.a libops.a libyamldoc.a libbase.a $(YAML_LIBS) -lm
TESTS += tests/parity/test_init.py
EXTRA_DIST += tests/parity/test_init.py

if HAVE_CHECK
check_PROGRAMS += tests/engine/test_session tests/engine/test_step tests/engine/test_pull tests/engine/test_rewrap \
  tests/engine/test_checkpoint tests/engine/test_export tests/engine/test_tokens
TESTS += tests/engine/test_session tests/engine/test_step tests/engine/test_pull tests/engine/test_rewrap \
  tests/engine/test_checkpoint tests/engine/test_export tests/engine/test_tokens
TRAIN_TEST_LIBS = libtrain.a libcheckpoint.a libhf.a $(RUNTIME_LIBS) $(JANSSON_LIBS) $(ZLIB_LIBS) \
  $(CHECK_LIBS)

tests_engine_test_session_SOURCES = tests/engine/test_session.c tests/engine/session_group.c \
  tests/engine/session_group.h
tests_engine_test_session_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_session_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=kernel_run
tests_engine_test_session_LDADD = $(TRAIN_TEST_LIBS)
EXTRA_tests_engine_test_session_DEPENDENCIES = fsdpd-digits$(EXEEXT)

tests_engine_test_step_SOURCES = tests/engine/test_step.c tests/engine/session_group.c \
  tests/engine/session_group.h
tests_engine_test_step_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_step_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=lane_launch
tests_engine_test_step_LDADD = $(TRAIN_TEST_LIBS)
EXTRA_tests_engine_test_step_DEPENDENCIES = fsdpd-digits$(EXEEXT)

tests_engine_test_pull_SOURCES = tests/engine/test_pull.c tests/engine/session_group.c \
  tests/engine/session_group.h
tests_engine_test_pull_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_pull_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=snapshot_take -Wl,--wrap=malloc
tests_engine_test_pull_LDADD = $(TRAIN_TEST_LIBS)
EXTRA_tests_engine_test_pull_DEPENDENCIES = fsdpd-digits$(EXEEXT)

tests_engine_test_tokens_SOURCES = tests/engine/test_tokens.c tests/engine/session_group.c \
  tests/engine/session_group.h
tests_engine_test_tokens_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_tokens_LDADD = $(TRAIN_TEST_LIBS)

tests_engine_test_checkpoint_SOURCES = tests/engine/test_checkpoint.c \
  tests/engine/session_group.c tests/engine/session_group.h
tests_engine_test_checkpoint_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_checkpoint_LDADD = $(TRAIN_TEST_LIBS)
EXTRA_tests_engine_test_checkpoint_DEPENDENCIES = fsdpd-digits$(EXEEXT)

tests_engine_test_export_SOURCES = tests/engine/test_export.c \
  tests/engine/session_group.c tests/engine/session_group.h
tests_engine_test_export_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_export_LDADD = $(TRAIN_TEST_LIBS)
EXTRA_tests_engine_test_export_DEPENDENCIES = fsdpd-digits$(EXEEXT)

tests_engine_test_rewrap_SOURCES = tests/engine/test_rewrap.c tests/engine/session_group.c \
  tests/engine/session_group.h
tests_engine_test_rewrap_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_engine_test_rewrap_LDADD = $(TRAIN_TEST_LIBS)
EXTRA_tests_engine_test_rewrap_DEPENDENCIES = fsdpd-digits$(EXEEXT)
endif
