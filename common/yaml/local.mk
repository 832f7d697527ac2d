noinst_LIBRARIES += libyamldoc.a
libyamldoc_a_SOURCES = \
  %D%/parse.c \
  %D%/yaml.c %D%/yaml.h
libyamldoc_a_CPPFLAGS = $(AM_CPPFLAGS) $(YAML_CFLAGS)

