# daemon/setup, a part of libtrain.a
libtrain_a_SOURCES += \
  %D%/build.c \
  %D%/decoder.c %D%/decoder.h \
  %D%/describe.c \
  %D%/groups.c %D%/groups.h \
  %D%/init.c %D%/init.h \
  %D%/job.h \
  %D%/outside.c %D%/outside.h \
  %D%/schedules.h \
  %D%/session.c %D%/session.h \
  %D%/session_state.h \
  %D%/tune_schedule.c %D%/tune_schedule.h
