# SHA-256. Who links it also links libbase.a and CRYPTO_LIBS.
noinst_LIBRARIES += libdigest.a
libdigest_a_CPPFLAGS = $(AM_CPPFLAGS) $(CRYPTO_CFLAGS)
libdigest_a_SOURCES = %D%/digest.c %D%/digest.h
