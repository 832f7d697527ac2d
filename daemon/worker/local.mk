noinst_LIBRARIES += libworker.a
libworker_a_SOURCES = \
  %D%/attempt.c %D%/attempt.h \
  %D%/job_message.c %D%/job_message.h \
  %D%/link.c %D%/link.h %D%/link_internal.h \
  %D%/mailbox.c %D%/mailbox.h \
  %D%/methods.c %D%/methods.h \
  %D%/pull.c %D%/pull.h \
  %D%/upload.c \
  %D%/worker.c %D%/worker.h
