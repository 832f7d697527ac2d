noinst_LIBRARIES += libbase.a
libbase_a_SOURCES = \
  %D%/beneath.c %D%/beneath.h \
  %D%/buf.c %D%/buf.h \
  %D%/clock.c %D%/clock.h \
  %D%/file.c %D%/file.h \
  %D%/host.c %D%/host.h \
  %D%/journal.c %D%/journal.h \
  %D%/log.c %D%/log.h \
  %D%/mem.c %D%/mem.h \
  %D%/status.c %D%/status.h \
  %D%/text.c %D%/text.h \
  %D%/tree.c %D%/tree.h \
  %D%/unfinished.c %D%/unfinished.h \
  %D%/utf8.c %D%/utf8.h

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_beneath tests/unit/test_log
TESTS += tests/unit/test_beneath tests/unit/test_log
tests_unit_test_beneath_SOURCES = tests/unit/test_beneath.c
tests_unit_test_beneath_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_beneath_LDADD = libbase.a $(CHECK_LIBS)
tests_unit_test_log_SOURCES = tests/unit/test_log.c
tests_unit_test_log_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_log_LDADD = libbase.a $(CHECK_LIBS)
endif
