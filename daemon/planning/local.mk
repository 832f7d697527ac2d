# Plans as a contract: profiles of devices, advice, the plan's message.
noinst_LIBRARIES += libplanning.a
libplanning_a_SOURCES = \
  %D%/advice.c %D%/advice.h \
  %D%/calibrate.c %D%/calibrate.h %D%/calibrate_internal.h \
  %D%/calibrate_links.c \
  %D%/calibrate_models.c %D%/calibrate_models.h \
  %D%/calibrate_steps.c \
  %D%/choose.c \
  %D%/cluster.c %D%/cluster.h \
  %D%/explore.c \
  %D%/simulate.c \
  %D%/local_store.c \
  %D%/message.c %D%/message.h \
  %D%/own.c %D%/own.h \
  %D%/plan_estimate.c %D%/plan_estimate.h \
  %D%/plan_simulate.c \
  %D%/plan_tables.c %D%/plan_tables.h \
  %D%/planning.c %D%/planning.h \
  %D%/profile.c %D%/profile.h \
  %D%/profile_tables.c \
  %D%/search.c %D%/search.h %D%/search_internal.h \
  %D%/space.c %D%/space.h \
  %D%/trials.c
$(libplanning_a_OBJECTS): $(PROTO_H)
EXTRA_DIST += docs/planner.md docs/profiles.md tests/golden/plan-mnist-h200x8.json
# bench/planner.sh --update draws it
EXTRA_DIST += $(patsubst $(srcdir)/%,%,$(wildcard $(srcdir)/docs/planner.svg))

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_profile
TESTS += tests/unit/test_profile
tests_unit_test_profile_LDADD = libplanning.a libfsdp.a libmodel.a libops.a libyamldoc.a libbase.a $(YAML_LIBS) $(TEST_LIBS) -lm

check_PROGRAMS += tests/unit/test_plan_estimate
TESTS += tests/unit/test_plan_estimate
tests_unit_test_plan_estimate_LDADD = libfsdpfixture.a libplanning.a libfsdp.a libmodel.a libops.a libyamldoc.a libbase.a \
  $(YAML_LIBS) $(TEST_LIBS) -lm

check_PROGRAMS += tests/unit/test_calibrate
TESTS += tests/unit/test_calibrate
tests_unit_test_calibrate_LDADD = libplanning.a libtrain.a libcheckpoint.a libdigest.a libhf.a libproto.a $(RUNTIME_LIBS) \
  $(PROTOBUF_C_LIBS) $(JANSSON_LIBS) $(ZLIB_LIBS) $(CRYPTO_LIBS) $(TEST_LIBS)

check_PROGRAMS += tests/unit/test_planning
TESTS += tests/unit/test_planning
tests_unit_test_planning_LDADD = libworker.a libplanning.a libprint.a libtrain.a libcheckpoint.a libdigest.a libhf.a \
  libspec.a libproto.a $(RUNTIME_LIBS) $(PROTOBUF_C_LIBS) $(JANSSON_LIBS) $(ZLIB_LIBS) $(CRYPTO_LIBS) \
  $(TEST_LIBS)

check_PROGRAMS += tests/unit/test_simulate
TESTS += tests/unit/test_simulate
tests_unit_test_simulate_LDADD = libworker.a libplanning.a libprint.a libtrain.a libcheckpoint.a libdigest.a libhf.a \
  libspec.a libproto.a $(RUNTIME_LIBS) $(PROTOBUF_C_LIBS) $(JANSSON_LIBS) $(ZLIB_LIBS) $(CRYPTO_LIBS) \
  $(TEST_LIBS)

check_PROGRAMS += tests/unit/test_search
TESTS += tests/unit/test_search
tests_unit_test_search_LDADD = libworker.a libplanning.a libprint.a libtrain.a libcheckpoint.a libdigest.a libhf.a \
  libspec.a libproto.a $(RUNTIME_LIBS) $(PROTOBUF_C_LIBS) $(JANSSON_LIBS) $(ZLIB_LIBS) $(CRYPTO_LIBS) \
  $(TEST_LIBS)
endif
