noinst_LIBRARIES += libbase.a
libbase_a_SOURCES = \
  %D%/array.h \
  %D%/beneath.c %D%/beneath.h \
  %D%/buf.c %D%/buf.h \
  %D%/cgroup.c %D%/cgroup.h \
  %D%/clock.c %D%/clock.h \
  %D%/condition.c %D%/condition.h \
  %D%/connections.c %D%/connections.h \
  %D%/file.c %D%/file.h \
  %D%/host.c %D%/host.h \
  %D%/host_limits.c %D%/host_limits.h \
  %D%/interrupt.c %D%/interrupt.h \
  %D%/journal.c %D%/journal.h \
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
  %D%/tree.c %D%/tree.h \
  %D%/resident.c %D%/resident.h \
  %D%/unfinished.c %D%/unfinished.h \
  %D%/utf8.c %D%/utf8.h

if HAVE_CHECK
BASE_TESTS = tests/unit/test_beneath tests/unit/test_host_limits tests/unit/test_list \
  tests/unit/test_log tests/unit/test_must \
  tests/unit/test_shared_memory tests/unit/test_switches tests/unit/test_threads
check_PROGRAMS += $(BASE_TESTS)
TESTS += $(BASE_TESTS)
$(BASE_TESTS): private LDADD = libbase.a $(TEST_LIBS)
$(BASE_TESTS): $(filter %.a,libbase.a $(TEST_LIBS))
endif
