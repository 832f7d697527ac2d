bin_PROGRAMS += fsdpd
fsdpd_SOURCES = %D%/fsdpd.c %D%/options.c %D%/options.h
fsdpd_CPPFLAGS = $(AM_CPPFLAGS) $(UV_CFLAGS)
fsdpd_LDADD = libworker.a libtrain.a libcheckpoint.a $(RUNTIME_LIBS) $(COORDINATOR_LIBS) \
  $(JANSSON_LIBS) $(ZLIB_LIBS)
