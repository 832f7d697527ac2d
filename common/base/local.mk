noinst_LIBRARIES += libbase.a
libbase_a_SOURCES = \
  %D%/array.h \
  %D%/beneath.c %D%/beneath.h \
  %D%/buf.c %D%/buf.h \
  %D%/clock.c %D%/clock.h \
  %D%/connections.c %D%/connections.h \
  %D%/file.c %D%/file.h \
  %D%/host.c %D%/host.h \
  %D%/interrupt.c %D%/interrupt.h \
  %D%/list.h \
  %D%/log.c %D%/log.h \
  %D%/mem.c %D%/mem.h \
  %D%/must.c %D%/must.h \
  %D%/shared_memory.c %D%/shared_memory.h \
  %D%/signals.h \
  %D%/stacks.c %D%/stacks.h \
  %D%/status.c %D%/status.h \
  %D%/switches.c %D%/switches.h \
  %D%/text.c %D%/text.h \
  %D%/threads.c %D%/threads.h \
  %D%/tree.c %D%/tree.h

if HAVE_CHECK
BASE_TESTS = tests/unit/test_beneath tests/unit/test_host_limits tests/unit/test_list \
  tests/unit/test_log tests/unit/test_must \
  tests/unit/test_shared_memory tests/unit/test_switches tests/unit/test_text tests/unit/test_threads
check_PROGRAMS += $(BASE_TESTS)
TESTS += $(BASE_TESTS)
$(BASE_TESTS): private LDADD = libbase.a $(TEST_LIBS)
$(BASE_TESTS): $(filter %.a,libbase.a $(TEST_LIBS))
endif
