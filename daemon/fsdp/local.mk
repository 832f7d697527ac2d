noinst_LIBRARIES += libfsdp.a
libfsdp_a_SOURCES = \
  %D%/factors.h \
  %D%/matrices.h \
  %D%/plan.h %D%/plan_internal.h \
  %D%/plan_build.c \
  %D%/plan_dump.c \
  %D%/plan_factors.c \
  %D%/plan_hash.c \
  %D%/plan_matrices.c \
  %D%/plan_memory.c \
  %D%/plan_names.c \
  %D%/plan_order.c \
  %D%/plan_place.c \
  %D%/plan_query.c \
  %D%/plan_ranges.c \
  %D%/plan_schedule.c \
  %D%/plan_validate.c %D%/plan_validate.h \
  %D%/plan_validate_factors.c \
  %D%/plan_validate_gathers.c \
  %D%/plan_validate_matrices.c \
  %D%/plan_validate_memory.c \
  %D%/plan_validate_places.c \
  %D%/plan_validate_step.c \
  %D%/print_tree.c \
  %D%/slots.c %D%/slots.h \
  %D%/units.c %D%/units.h \
  %D%/wrap_names.c %D%/wrap_names.h \
  %D%/wrap_size.c

if HAVE_CHECK
check_LIBRARIES += libfsdpfixture.a
libfsdpfixture_a_SOURCES = tests/unit/fsdp_fixture.c tests/unit/fsdp_fixture.h

FSDP_TESTS = tests/unit/test_units tests/unit/test_plan \
  tests/unit/test_plan_random tests/unit/test_plan_mutations tests/unit/test_plan_tokens \
  tests/unit/test_plan_golden
check_PROGRAMS += $(FSDP_TESTS)
TESTS += $(FSDP_TESTS)
$(FSDP_TESTS): private LDADD = libfsdpfixture.a libfsdp.a libmodel.a libops.a libyamldoc.a libbase.a $(YAML_LIBS) $(TEST_LIBS) -lm
$(FSDP_TESTS): $(filter %.a,libfsdpfixture.a libfsdp.a libmodel.a libops.a libyamldoc.a libbase.a $(YAML_LIBS) $(TEST_LIBS) -lm)

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
