noinst_LIBRARIES += libfsdp.a
libfsdp_a_SOURCES = \
  %D%/flat_parameter.c %D%/flat_parameter.h \
  %D%/plan.h %D%/plan_internal.h \
  %D%/plan_build.c \
  %D%/plan_dump.c \
  %D%/plan_estimate.c %D%/plan_estimate.h \
  %D%/plan_hash.c \
  %D%/plan_memory.c \
  %D%/plan_order.c \
  %D%/plan_place.c \
  %D%/plan_ranges.c \
  %D%/plan_schedule.c \
  %D%/plan_simulate.c \
  %D%/plan_validate.c %D%/plan_validate.h \
  %D%/plan_validate_memory.c \
  %D%/plan_validate_step.c \
  %D%/print_tree.c \
  %D%/units.c %D%/units.h \
  %D%/wrap_names.c %D%/wrap_names.h \
  %D%/wrap_size.c %D%/wrap_size.h

if HAVE_CHECK
check_LIBRARIES += libfsdpfixture.a
libfsdpfixture_a_SOURCES = tests/unit/fsdp_fixture.c tests/unit/fsdp_fixture.h

check_PROGRAMS += tests/unit/test_units
TESTS += tests/unit/test_units
tests_unit_test_units_SOURCES = tests/unit/test_units.c
tests_unit_test_units_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_units_LDADD = libfsdpfixture.a libfsdp.a libops.a libbase.a $(CHECK_LIBS) -lm

check_PROGRAMS += tests/unit/test_plan
TESTS += tests/unit/test_plan
tests_unit_test_plan_SOURCES = tests/unit/test_plan.c
tests_unit_test_plan_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_plan_LDADD = libfsdpfixture.a libfsdp.a libops.a libbase.a $(CHECK_LIBS) -lm

check_PROGRAMS += tests/unit/test_plan_estimate
TESTS += tests/unit/test_plan_estimate
tests_unit_test_plan_estimate_SOURCES = tests/unit/test_plan_estimate.c
tests_unit_test_plan_estimate_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_plan_estimate_LDADD = libfsdpfixture.a libfsdp.a libmodel.a libops.a \
  libyamldoc.a libbase.a $(YAML_LIBS) $(CHECK_LIBS) -lm

check_PROGRAMS += tests/unit/test_plan_random
TESTS += tests/unit/test_plan_random
tests_unit_test_plan_random_SOURCES = tests/unit/test_plan_random.c
tests_unit_test_plan_random_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_plan_random_LDADD = libfsdpfixture.a libfsdp.a libops.a libbase.a $(CHECK_LIBS) -lm

check_PROGRAMS += tests/unit/test_plan_mutations
TESTS += tests/unit/test_plan_mutations
tests_unit_test_plan_mutations_SOURCES = tests/unit/test_plan_mutations.c
tests_unit_test_plan_mutations_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_plan_mutations_LDADD = libfsdpfixture.a libfsdp.a libops.a libbase.a $(CHECK_LIBS) \
  -lm

check_PROGRAMS += tests/unit/test_plan_golden tests/unit/test_plan_tokens
TESTS += tests/unit/test_plan_golden tests/unit/test_plan_tokens
tests_unit_test_plan_tokens_SOURCES = tests/unit/test_plan_tokens.c
tests_unit_test_plan_tokens_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_plan_tokens_LDADD = $(tests_unit_test_plan_golden_LDADD)
tests_unit_test_plan_golden_SOURCES = tests/unit/test_plan_golden.c
tests_unit_test_plan_golden_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_plan_golden_LDADD = libfsdp.a libmodel.a libops.a libyamldoc.a libbase.a \
  $(YAML_LIBS) $(CHECK_LIBS) -lm
endif

check_PROGRAMS += tests/parity/dump_units
tests_parity_dump_units_SOURCES = tests/parity/dump_units.c
tests_parity_dump_units_LDADD = libfsdp.a libmodel.a libops.a libyamldoc.a libbase.a $(YAML_LIBS) \
  -lm
TESTS += tests/parity/test_wrap.py
EXTRA_DIST += tests/parity/test_wrap.py tests/parity/wrap_reference.py
EXTRA_DIST += \
  docs/plan.md \
  tests/golden/plan-mnist-100.txt \
  tests/golden/plan-mnist-1000.txt \
  tests/golden/plan-mnist-20000.txt \
  tests/golden/plan-mnist-no-shard.txt \
  tests/golden/plan-mnist-none.txt \
  tests/golden/units-mnist-20000.txt
