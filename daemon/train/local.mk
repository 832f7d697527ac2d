# daemon/train, and the program that draws digits to train on
noinst_LIBRARIES += libtrain.a
libtrain_a_SOURCES = \
  %D%/dataset.h \
  %D%/generator.c %D%/generator.h \
  %D%/idx.c %D%/idx.h \
  %D%/init.c %D%/init.h \
  %D%/job.h \
  %D%/loader.c %D%/loader.h \
  %D%/run.c %D%/run.h \
  %D%/sampler.c %D%/sampler.h \
  %D%/schedule.c %D%/schedule.h \
  %D%/session.c %D%/session.h
libtrain_a_CPPFLAGS = $(AM_CPPFLAGS) $(ZLIB_CFLAGS)

noinst_PROGRAMS += fsdpd-digits
fsdpd_digits_SOURCES = examples/digits/draw.c
fsdpd_digits_LDADD = libbase.a -lm

EXTRA_DIST += tests/parity/make_numbers.py tests/parity/numbers.txt

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_train_numbers tests/unit/test_train_data
TESTS += tests/unit/test_train_numbers tests/unit/test_train_data

tests_unit_test_train_numbers_SOURCES = tests/unit/test_train_numbers.c
tests_unit_test_train_numbers_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) $(ZLIB_CFLAGS)
tests_unit_test_train_numbers_LDADD = libtrain.a libops.a libbase.a $(ZLIB_LIBS) $(CHECK_LIBS) -lm

tests_unit_test_train_data_SOURCES = tests/unit/test_train_data.c
tests_unit_test_train_data_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS) $(ZLIB_CFLAGS)
tests_unit_test_train_data_LDADD = libtrain.a libops.a libbase.a $(ZLIB_LIBS) $(CHECK_LIBS) -lm
endif
