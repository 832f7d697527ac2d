noinst_LIBRARIES += libspec.a
libspec_a_SOURCES = \
  %D%/file.c \
  %D%/internal.h \
  %D%/keys.c \
  %D%/message.c \
  %D%/print.c \
  %D%/queue.c %D%/queue.h \
  %D%/spec.h \
  %D%/time.c %D%/time.h
$(libspec_a_OBJECTS): $(PROTO_H)
EXTRA_DIST += docs/job-file.md

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_spec tests/unit/test_spec_message
TESTS += tests/unit/test_spec tests/unit/test_spec_message
spec_fixture = tests/unit/spec_fixture.c tests/unit/spec_fixture.h
tests_unit_test_spec_SOURCES = tests/unit/test_spec.c $(spec_fixture)
tests_unit_test_spec_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_spec_LDADD = libspec.a libyamldoc.a libproto.a libbase.a $(YAML_LIBS) \
  $(PROTOBUF_C_LIBS) $(CHECK_LIBS)
tests_unit_test_spec_message_SOURCES = tests/unit/test_spec_message.c $(spec_fixture)
tests_unit_test_spec_message_CPPFLAGS = $(tests_unit_test_spec_CPPFLAGS)
tests_unit_test_spec_message_LDADD = $(tests_unit_test_spec_LDADD)
$(tests_unit_test_spec_OBJECTS) $(tests_unit_test_spec_message_OBJECTS): proto/generated.stamp
endif
