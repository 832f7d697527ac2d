# Certificates. Programs that link it also link libbase.a and CRYPTO_LIBS.
noinst_LIBRARIES += libx509.a
libx509_a_CPPFLAGS = $(AM_CPPFLAGS) $(CRYPTO_CFLAGS)
libx509_a_SOURCES = \
  %D%/check.c \
  %D%/internal.h \
  %D%/issue.c \
  %D%/x509.h

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_x509
TESTS += tests/unit/test_x509
tests_unit_test_x509_LDADD = libx509.a libbase.a $(CRYPTO_LIBS) $(TEST_LIBS)
endif
