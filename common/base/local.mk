noinst_LIBRARIES += libbase.a
libbase_a_SOURCES = \
  %D%/buf.c %D%/buf.h \
  %D%/clock.c %D%/clock.h \
  %D%/file.c %D%/file.h \
  %D%/log.c %D%/log.h \
  %D%/mem.c %D%/mem.h \
  %D%/status.c %D%/status.h \
  %D%/text.c %D%/text.h
