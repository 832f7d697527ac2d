noinst_LIBRARIES += libspec.a
libspec_a_SOURCES = \
  %D%/arguments.c \
  %D%/array.c \
  %D%/defaults.c \
  %D%/file.c \
  %D%/held_out.c \
  %D%/hints.c \
  %D%/internal.h \
  %D%/keys.c \
  %D%/message.c \
  %D%/metric_curves.c %D%/metric_curves.h \
  %D%/metric_list.h \
  %D%/metric_table.c %D%/metric_table.h \
  %D%/pack.c \
  %D%/paths.c \
  %D%/print.c \
  %D%/queue.c %D%/queue.h \
  %D%/phases.c %D%/rules.c \
  %D%/sent.c %D%/settings.c \
  %D%/sources.c \
  %D%/spec.h \
  %D%/sweep.c \
  %D%/time.c \
  %D%/together.c \
  %D%/tokens.c \
  %D%/words.c
$(libspec_a_OBJECTS): $(PROTO_H)
EXTRA_DIST += docs/job-file.md

if HAVE_CHECK
SPEC_TESTS = tests/unit/test_spec tests/unit/test_spec_array tests/unit/test_spec_message \
  tests/unit/test_spec_paths tests/unit/test_metric_table
check_PROGRAMS += $(SPEC_TESTS)
TESTS += $(SPEC_TESTS)
$(SPEC_TESTS): private LDADD = libspec.a libyamldoc.a libproto.a libbase.a $(YAML_LIBS) $(PROTOBUF_C_LIBS) $(TEST_LIBS)
$(SPEC_TESTS): $(filter %.a,libspec.a libyamldoc.a libproto.a libbase.a $(YAML_LIBS) $(PROTOBUF_C_LIBS) $(TEST_LIBS))
spec_fixture = tests/unit/spec_fixture.c tests/unit/spec_fixture.h
tests_unit_test_spec_SOURCES = tests/unit/test_spec.c $(spec_fixture)
tests_unit_test_spec_array_SOURCES = tests/unit/test_spec_array.c $(spec_fixture)
tests_unit_test_spec_message_SOURCES = tests/unit/test_spec_message.c $(spec_fixture)
tests_unit_test_spec_paths_SOURCES = tests/unit/test_spec_paths.c $(spec_fixture)
endif
