bin_PROGRAMS += fsdpd
OPTION_SOURCES = %D%/cert_role.c %D%/config_file.c %D%/config_role.c %D%/notify_option.c %D%/notify_option.h %D%/option_table.c \
  %D%/option_table.h %D%/options.c %D%/options.h %D%/roles.h %D%/token_role.c
fsdpd_SOURCES = %D%/fsdpd.c %D%/reload.c %D%/reload.h %D%/calibrate_role.c %D%/devices_role.c $(OPTION_SOURCES) \
  %D%/plan_role.c %D%/store_role.c
fsdpd_CPPFLAGS = $(AM_CPPFLAGS) $(UV_CFLAGS) $(JANSSON_CFLAGS)
# Symbols that the backend's module imports from the program that opens it.
fsdpd_LDFLAGS = $(AM_LDFLAGS) -Wl,--dynamic-list=$(srcdir)/%D%/runtime/backend.syms
EXTRA_fsdpd_DEPENDENCIES = $(srcdir)/%D%/runtime/backend.syms
fsdpd_LDADD = libworker.a libprocess.a libplanning.a libprint.a libtrain.a libcheckpoint.a libdigest.a libhf.a $(RUNTIME_LIBS) $(COORDINATOR_LIBS) \
  $(JANSSON_LIBS) $(ZLIB_LIBS)

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_options
TESTS += tests/unit/test_options
tests_unit_test_options_SOURCES = tests/unit/test_options.c $(OPTION_SOURCES)
tests_unit_test_options_LDADD = libprint.a $(COORDINATOR_LIBS) $(JANSSON_LIBS) $(TEST_LIBS)
endif
