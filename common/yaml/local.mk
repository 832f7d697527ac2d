noinst_LIBRARIES += libyamldoc.a
libyamldoc_a_SOURCES = \
  %D%/parse.c \
  %D%/yaml.c %D%/yaml.h
libyamldoc_a_CPPFLAGS = $(AM_CPPFLAGS) $(YAML_CFLAGS)


if HAVE_CHECK
check_PROGRAMS += tests/unit/test_yaml
TESTS += tests/unit/test_yaml
tests_unit_test_yaml_SOURCES = tests/unit/test_yaml.c
tests_unit_test_yaml_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_unit_test_yaml_LDADD = libyamldoc.a libbase.a $(YAML_LIBS) $(CHECK_LIBS)
endif
