noinst_LIBRARIES += libspec.a
libspec_a_SOURCES = \
  %D%/internal.h \
  %D%/keys.c \
  %D%/message.c \
  %D%/spec.h
$(libspec_a_OBJECTS): $(PROTO_H)
