noinst_LIBRARIES += libyamldoc.a
libyamldoc_a_SOURCES = \
  %D%/parse.c \
  %D%/yaml.c %D%/yaml.h
libyamldoc_a_CPPFLAGS = $(AM_CPPFLAGS) $(YAML_CFLAGS)


if HAVE_CHECK
check_PROGRAMS += tests/unit/test_yaml
TESTS += tests/unit/test_yaml
tests_unit_test_yaml_LDADD = libyamldoc.a libbase.a $(YAML_LIBS) $(TEST_LIBS)
endif
