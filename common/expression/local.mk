# Part of the library of YAML documents: a program that links one links both.
libyamldoc_a_SOURCES += \
  %D%/constant.c %D%/constant.h \
  %D%/expression.c %D%/expression.h \
  %D%/tokens.c %D%/tokens.h

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_expression
TESTS += tests/unit/test_expression
tests_unit_test_expression_LDADD = libyamldoc.a libbase.a $(YAML_LIBS) $(TEST_LIBS) -lm
endif
