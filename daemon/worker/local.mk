noinst_LIBRARIES += libworker.a
libworker_a_SOURCES = \
  %D%/attempt.c %D%/attempt.h %D%/attempt_internal.h \
  %D%/attempt_orders.c %D%/attempt_reports.c \
  %D%/checkpointer.c %D%/checkpointer.h \
  %D%/measuring.c \
  %D%/probe.c %D%/probe.h \
  %D%/diagnosis.c \
  %D%/fetch.c \
  %D%/job_files.c \
  %D%/job_from.c \
  %D%/job_choices.c %D%/job_internal.h \
  %D%/job_lora.c %D%/job_lora.h \
  %D%/job_message.c %D%/job_message.h %D%/job_prompts.c \
  %D%/job_model.c %D%/job_paths.c \
  %D%/link.c %D%/link.h %D%/link_internal.h %D%/link_store.c \
  %D%/logs.c %D%/logs.h \
  %D%/op_times.c %D%/op_times.h \
  %D%/outbox.c %D%/outbox.h \
  %D%/pull.c %D%/pull.h \
  %D%/side_group.c %D%/side_group.h \
  %D%/spare.c %D%/spare.h \
  %D%/trace.c %D%/trace.h \
  %D%/unlisted_reports.c \
  %D%/upload.c \
  %D%/worker.c %D%/settings.h
$(libworker_a_OBJECTS): $(PROTO_H)

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_worker tests/unit/test_worker_away tests/unit/test_outbox tests/unit/test_schedules
TESTS += tests/unit/test_worker tests/unit/test_worker_away tests/unit/test_outbox tests/unit/test_schedules
tests_unit_test_outbox_LDADD = libworker.a libspec.a libproto.a libbase.a $(PROTOBUF_C_LIBS) $(TEST_LIBS) -lm
worker_world = tests/unit/test_worker_world.c tests/unit/test_worker_world.h
tests_unit_test_worker_SOURCES = tests/unit/test_worker.c $(worker_world)
tests_unit_test_worker_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=malloc
tests_unit_test_worker_LDADD = libworker.a libprocess.a libplanning.a libprint.a libtrain.a libcheckpoint.a libdigest.a libhf.a \
  $(RUNTIME_LIBS) libspec.a libyamldoc.a librpc.a libx509.a libproto.a libbase.a $(YAML_LIBS) $(GRPC_LIBS) $(CRYPTO_LIBS) \
  $(PROTOBUF_C_LIBS) $(UV_LIBS) $(JANSSON_LIBS) $(ZLIB_LIBS) $(TEST_LIBS) -lm
EXTRA_tests_unit_test_worker_DEPENDENCIES = fsdpd-digits$(EXEEXT)
tests_unit_test_worker_away_SOURCES = tests/unit/test_worker_away.c $(worker_world)
tests_unit_test_worker_away_LDADD = $(tests_unit_test_worker_LDADD)
tests_unit_test_schedules_LDADD = $(tests_unit_test_worker_LDADD)
EXTRA_tests_unit_test_worker_away_DEPENDENCIES = fsdpd-digits$(EXEEXT)
endif
EXTRA_DIST += tests/parity/make_schedule_numbers.py tests/parity/schedules.txt
