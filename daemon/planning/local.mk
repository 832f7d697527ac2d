# Plans as a contract: profiles of devices, advice, the plan's message.
noinst_LIBRARIES += libplanning.a
libplanning_a_SOURCES = \
  %D%/advice.c %D%/advice.h \
  %D%/message.c %D%/message.h \
  %D%/planning.c %D%/planning.h \
  %D%/profile.c %D%/profile.h \
  %D%/profile_device.c
$(libplanning_a_OBJECTS): $(PROTO_H)
EXTRA_DIST += docs/profiles.md tests/golden/plan-mnist-h200x8.json

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_profile
TESTS += tests/unit/test_profile
tests_unit_test_profile_SOURCES = tests/unit/test_profile.c
tests_unit_test_profile_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_profile_LDADD = libplanning.a libyamldoc.a libbase.a $(YAML_LIBS) $(CHECK_LIBS) -lm

check_PROGRAMS += tests/unit/test_planning
TESTS += tests/unit/test_planning
tests_unit_test_planning_SOURCES = tests/unit/test_planning.c
tests_unit_test_planning_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_planning_LDADD = libworker.a libplanning.a libprint.a libtrain.a libcheckpoint.a libhf.a \
  libspec.a libproto.a $(RUNTIME_LIBS) $(PROTOBUF_C_LIBS) $(JANSSON_LIBS) $(ZLIB_LIBS) $(CHECK_LIBS)
tests/unit/test_planning-test_planning.$(OBJEXT): $(PROTO_H)
endif
