# What fsdpctl and `fsdpd plan` print: messages as JSON, tables, plans.
noinst_LIBRARIES += libprint.a
libprint_a_SOURCES = \
  %D%/fold.c %D%/fold.h \
  %D%/json.c %D%/json.h \
  %D%/plan_report.c %D%/plan_report.h \
  %D%/schedule_report.c \
  %D%/scores.c %D%/scores.h \
  %D%/table.c %D%/table.h \
  %D%/worlds.c %D%/worlds.h
$(libprint_a_OBJECTS): $(PROTO_H)
