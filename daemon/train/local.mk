# daemon/train, and the program that draws digits to train on
noinst_LIBRARIES += libtrain.a
libtrain_a_SOURCES = \
  %D%/dataset.h \
  %D%/generator.c %D%/generator.h \
  %D%/idx.c %D%/idx.h \
  %D%/init.c %D%/init.h \
  %D%/job.h \
  %D%/loader.c %D%/loader.h \
  %D%/run.c %D%/run.h \
  %D%/sampler.c %D%/sampler.h \
  %D%/schedule.c %D%/schedule.h \
  %D%/session.c %D%/session.h
libtrain_a_CPPFLAGS = $(AM_CPPFLAGS) $(ZLIB_CFLAGS)

noinst_PROGRAMS += fsdpd-digits
fsdpd_digits_SOURCES = examples/digits/draw.c
fsdpd_digits_LDADD = libbase.a -lm
