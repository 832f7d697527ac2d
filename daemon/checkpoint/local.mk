# daemon/checkpoint
noinst_LIBRARIES += libcheckpoint.a
libcheckpoint_a_SOURCES = \
  %D%/state_dict.c %D%/state_dict.h
libcheckpoint_a_CPPFLAGS = $(AM_CPPFLAGS)

