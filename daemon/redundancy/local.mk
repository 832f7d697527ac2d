# daemon/redundancy, a part of libtrain.a: it and the loop call each other
libtrain_a_SOURCES += \
  %D%/kept.c %D%/kept.h \
  %D%/protect.c %D%/protect.h \
  %D%/recover.c %D%/recover.h

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_kept tests/unit/test_kept_hosts
TESTS += tests/unit/test_kept tests/unit/test_kept_hosts
tests_unit_test_kept_LDADD = libtrain.a libcheckpoint.a libdigest.a libhf.a $(RUNTIME_LIBS) $(JANSSON_LIBS) $(CRYPTO_LIBS) $(TEST_LIBS)
tests_unit_test_kept_hosts_LDADD = $(tests_unit_test_kept_LDADD)
endif
