# The coordinator. Whoever links it also links COORDINATOR_LIBS.
noinst_LIBRARIES += libcoordinator.a
libcoordinator_a_CPPFLAGS = $(AM_CPPFLAGS) $(PROTOBUF_C_CFLAGS) $(UV_CFLAGS) $(SQLITE_CFLAGS) \
  $(MICROHTTPD_CFLAGS)
libcoordinator_a_SOURCES = \
  %D%/access.c %D%/access.h \
  %D%/adopted.c %D%/adopted.h \
  %D%/api.c %D%/api.h \
  %D%/api_jobs.c %D%/api_jobs.h \
  %D%/api_list.c %D%/api_list.h \
  %D%/api_queue.c %D%/api_queue.h \
  %D%/attach.c %D%/attach.h \
  %D%/attempt.c %D%/attempt.h %D%/attempt_orders.c %D%/attempt_reports.c \
  %D%/checkpoint_dirs.c %D%/checkpoint_dirs.h \
  %D%/checkpoint_reader.c %D%/checkpoint_reader.h \
  %D%/checkpoints.c %D%/checkpoints.h \
  %D%/coordinator.c %D%/coordinator.h \
  %D%/deadlines.c %D%/deadlines.h \
  %D%/dependencies.c %D%/dependencies.h \
  %D%/drains.c %D%/drains.h \
  %D%/forget.c %D%/forget.h \
  %D%/http.c %D%/http.h \
  %D%/history.c %D%/history.h \
  %D%/internal.h \
  %D%/job_record.c %D%/job_record.h %D%/jobs.c %D%/jobs.h \
  %D%/log_files.c %D%/log_files.h \
  %D%/logs.c %D%/logs.h \
  %D%/message.c %D%/message.h \
  %D%/metrics.c %D%/metrics.h \
  %D%/migrations.c %D%/migrations.h \
  %D%/notify.c %D%/notify.h \
  %D%/orders.c %D%/orders.h \
  %D%/placement.c %D%/placement.h \
  %D%/planner.c %D%/planner.h \
  %D%/pulls.c %D%/pulls.h \
  %D%/queue.c %D%/queue.h \
  %D%/reattach.c %D%/reattach.h \
  %D%/rendezvous.c %D%/rendezvous.h \
  %D%/retry.c %D%/retry.h \
  %D%/rewrap.c %D%/rewrap.h \
  %D%/store.c %D%/store.h %D%/store_internal.h \
  %D%/store_checkpoints.c %D%/store_backup.c \
  %D%/store_events.c \
  %D%/store_jobs.c \
  %D%/store_queue.c \
  %D%/sweeps.c %D%/sweeps.h \
  %D%/supervisor.c %D%/supervisor.h \
  %D%/tensorboard.c %D%/tensorboard.h \
  %D%/traces.c %D%/traces.h \
  %D%/uploads.c %D%/uploads.h \
  %D%/verdict.c %D%/verdict.h \
  %D%/watch.c %D%/watch.h \
  %D%/workers.c %D%/workers.h
$(libcoordinator_a_OBJECTS): proto/generated.stamp
COORDINATOR_LIBS = libcoordinator.a libcheckpoint.a libhf.a libops.a libspec.a libyamldoc.a librpc.a \
  libx509.a libproto.a libbase.a $(JANSSON_LIBS) $(ZLIB_LIBS) $(YAML_LIBS) $(SQLITE_LIBS) $(MICROHTTPD_LIBS) $(GRPC_LIBS) $(CRYPTO_LIBS) $(PROTOBUF_C_LIBS) $(UV_LIBS) -lm

if HAVE_CHECK
COORDINATOR_TEST_CPPFLAGS = $(AM_CPPFLAGS) $(PROTOBUF_C_CFLAGS) $(UV_CFLAGS) $(SQLITE_CFLAGS) \
  $(CHECK_CFLAGS)
COORDINATOR_WORLD = tests/unit/test_coordinator_world.c tests/unit/test_coordinator_world.h

EXTRA_DIST += tests/unit/stores

COORDINATOR_TESTS = tests/unit/test_store tests/unit/test_migrations tests/unit/test_queue \
  tests/unit/test_queue_changes \
  tests/unit/test_coordinator \
  tests/unit/test_coordinator_ends tests/unit/test_coordinator_streams \
  tests/unit/test_coordinator_traces tests/unit/test_coordinator_rewrap \
  tests/unit/test_coordinator_checkpoints tests/unit/test_coordinator_reattach \
  tests/unit/test_coordinator_devices tests/unit/test_coordinator_monitoring tests/unit/test_log_files \
  tests/unit/test_coordinator_logs tests/unit/test_coordinator_pulls
check_PROGRAMS += $(COORDINATOR_TESTS)
TESTS += $(COORDINATOR_TESTS)
store_fixture = tests/unit/store_fixture.c tests/unit/store_fixture.h
tests_unit_test_store_SOURCES = tests/unit/test_store.c $(store_fixture)
tests_unit_test_store_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_store_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)

tests_unit_test_migrations_SOURCES = tests/unit/test_migrations.c $(store_fixture)
tests_unit_test_migrations_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_migrations_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)

QUEUE_WORLD = tests/unit/test_queue_world.c tests/unit/test_queue_world.h $(COORDINATOR_WORLD)
tests_unit_test_queue_changes_SOURCES = tests/unit/test_queue_changes.c $(QUEUE_WORLD)
tests_unit_test_queue_changes_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_queue_changes_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)

tests_unit_test_queue_SOURCES = tests/unit/test_queue.c $(QUEUE_WORLD)
tests_unit_test_queue_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_queue_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)

tests_unit_test_coordinator_logs_SOURCES = tests/unit/test_coordinator_logs.c $(COORDINATOR_WORLD)
tests_unit_test_coordinator_logs_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_coordinator_logs_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)

tests_unit_test_log_files_SOURCES = tests/unit/test_log_files.c
tests_unit_test_log_files_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_log_files_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)

tests_unit_test_coordinator_ends_SOURCES = tests/unit/test_coordinator_ends.c $(COORDINATOR_WORLD)
tests_unit_test_coordinator_ends_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_coordinator_ends_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)

tests_unit_test_coordinator_streams_SOURCES = tests/unit/test_coordinator_streams.c \
  $(COORDINATOR_WORLD)
tests_unit_test_coordinator_streams_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_coordinator_streams_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)

tests_unit_test_coordinator_checkpoints_SOURCES = tests/unit/test_coordinator_checkpoints.c \
  $(COORDINATOR_WORLD)
tests_unit_test_coordinator_checkpoints_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_coordinator_checkpoints_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)

tests_unit_test_coordinator_pulls_SOURCES = tests/unit/test_coordinator_pulls.c \
  $(COORDINATOR_WORLD)
tests_unit_test_coordinator_pulls_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS) $(ZLIB_CFLAGS)
tests_unit_test_coordinator_pulls_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)

tests_unit_test_coordinator_rewrap_SOURCES = tests/unit/test_coordinator_rewrap.c \
  $(COORDINATOR_WORLD)
tests_unit_test_coordinator_rewrap_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_coordinator_rewrap_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)

tests_unit_test_coordinator_devices_SOURCES = tests/unit/test_coordinator_devices.c \
  $(COORDINATOR_WORLD)
tests_unit_test_coordinator_devices_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_coordinator_devices_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)
tests_unit_test_coordinator_monitoring_SOURCES = tests/unit/test_coordinator_monitoring.c \
  $(COORDINATOR_WORLD)
tests_unit_test_coordinator_monitoring_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_coordinator_monitoring_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)

tests_unit_test_coordinator_traces_SOURCES = tests/unit/test_coordinator_traces.c \
  $(COORDINATOR_WORLD)
tests_unit_test_coordinator_traces_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_coordinator_traces_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)

tests_unit_test_coordinator_reattach_SOURCES = tests/unit/test_coordinator_reattach.c \
  $(COORDINATOR_WORLD)
tests_unit_test_coordinator_reattach_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_coordinator_reattach_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)

tests_unit_test_coordinator_SOURCES = tests/unit/test_coordinator.c $(COORDINATOR_WORLD)
tests_unit_test_coordinator_CPPFLAGS = $(COORDINATOR_TEST_CPPFLAGS)
tests_unit_test_coordinator_LDADD = $(COORDINATOR_LIBS) $(CHECK_LIBS)
endif
