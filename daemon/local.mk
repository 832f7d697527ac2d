bin_PROGRAMS += fsdpd
fsdpd_SOURCES = %D%/fsdpd.c %D%/options.c %D%/options.h %D%/plan_role.c %D%/plan_role.h
fsdpd_CPPFLAGS = $(AM_CPPFLAGS) $(UV_CFLAGS)
fsdpd_LDADD = libworker.a libplanning.a libprint.a libtrain.a libcheckpoint.a libhf.a $(RUNTIME_LIBS) $(COORDINATOR_LIBS) \
  $(JANSSON_LIBS) $(ZLIB_LIBS)

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_options
TESTS += tests/unit/test_options
tests_unit_test_options_SOURCES = tests/unit/test_options.c %D%/options.c %D%/options.h
tests_unit_test_options_CPPFLAGS = $(AM_CPPFLAGS) $(UV_CFLAGS) $(CHECK_CFLAGS)
tests_unit_test_options_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)
endif
