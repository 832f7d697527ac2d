# The coordinator. Programs that link it also link COORDINATOR_LIBS.
noinst_LIBRARIES += libcoordinator.a
libcoordinator_a_CPPFLAGS = $(AM_CPPFLAGS) $(PROTOBUF_C_CFLAGS) $(UV_CFLAGS) $(SQLITE_CFLAGS) \
  $(MICROHTTPD_CFLAGS) $(JANSSON_CFLAGS) $(ZLIB_CFLAGS)
libcoordinator_a_SOURCES = \
  %D%/scheduler/arrays.c %D%/scheduler/arrays.h \
  %D%/calls/access.c %D%/calls/access.h %D%/calls/calls.h \
  %D%/scheduler/admission.c %D%/scheduler/admission.h \
  %D%/workers/adopted.c %D%/workers/adopted.h \
  %D%/workers/calibration.c \
  %D%/workers/kept_profiles.c %D%/workers/kept_profiles.h \
  %D%/api/api.c %D%/api/api.h \
  %D%/api/handlers.h \
  %D%/api/api_families.c \
  %D%/api/api_history.c \
  %D%/api/api_jobs.c \
  %D%/api/api_list.c \
  %D%/api/api_queue.c \
  %D%/api/api_workers.c \
  %D%/api/attach.c \
  %D%/jobs/elastic.c %D%/jobs/elastic.h %D%/jobs/parts.c %D%/jobs/parts.h %D%/jobs/attempt.c %D%/jobs/attempt.h %D%/jobs/attempt_run.c %D%/jobs/attempt_run.h %D%/jobs/attempt_orders.c %D%/calls/attempt_reports.c \
  %D%/jobs/checkpoint_dirs.c \
  %D%/jobs/checkpoint_place.c %D%/jobs/checkpoint_place.h \
  %D%/calls/checkpoint_reader.c %D%/calls/checkpoint_reader.h \
  %D%/calls/checkpoints.c %D%/calls/checkpoints.h \
  %D%/coordinator.c %D%/coordinator.h \
  %D%/scheduler/deadlines.c \
  %D%/scheduler/dependencies.c %D%/scheduler/dependencies.h \
  %D%/workers/cuts.c %D%/workers/cuts.h \
  %D%/workers/drains.c %D%/workers/drains.h \
  %D%/calls/diagnose.c \
  %D%/jobs/blame.c %D%/jobs/diagnoses.c %D%/jobs/diagnoses.h \
  %D%/calls/final_weights.c %D%/calls/final_weights.h \
  %D%/retention/forget.c %D%/retention/retention.h \
  %D%/monitor/certificate.c %D%/monitor/monitor.h \
  %D%/monitor/scrub.c %D%/monitor/scrub.h %D%/monitor/scrubber.c \
  %D%/http/completions.c %D%/http/completion_text.c %D%/http/completion_text.h \
  %D%/http/http.c %D%/http/http.h %D%/http/http_internal.h %D%/http/http_listener.c %D%/http/http_checks.c %D%/http/http_checks.h %D%/http/monitoring.c %D%/http/pages.c %D%/http/reads.c %D%/http/routes.c %D%/http/routes.h \
  %D%/monitor/get_metrics.c \
  %D%/core/internal.h %D%/core/settings.h \
  %D%/calls/job_call.c %D%/calls/job_call.h \
  %D%/jobs/handover.c \
  %D%/jobs/job_log.c \
  %D%/jobs/job_totals.c \
  %D%/jobs/job_record.c %D%/jobs/job_record.h %D%/jobs/jobs.c %D%/jobs/jobs.h \
  %D%/jobs/log_files.c %D%/jobs/log_files.h \
  %D%/calls/kept_weights.c %D%/calls/kept_weights.h \
  %D%/calls/logs.c \
  %D%/store/message.c %D%/store/message.h \
  %D%/monitor/metrics.c \
  %D%/monitor/notice_targets.c %D%/monitor/notice_targets.h %D%/monitor/notices.c %D%/monitor/notices.h \
  %D%/store/migrations.c %D%/store/migrations.h \
  %D%/notify.c %D%/notify.h \
  %D%/workers/devices.c %D%/workers/offline.c %D%/workers/offline.h \
  %D%/workers/oom.c \
  %D%/jobs/orders.c %D%/jobs/orders.h \
  %D%/scheduler/placement.c %D%/scheduler/placement.h \
  %D%/workers/planner.c %D%/workers/planner.h \
  %D%/scheduler/fair_share.c \
  %D%/scheduler/preempting.c %D%/scheduler/preempting.h \
  %D%/scheduler/quotas.c %D%/scheduler/quotas.h \
  %D%/jobs/owners.c %D%/jobs/owners.h \
  %D%/core/list_page.c %D%/core/list_page.h \
  %D%/calls/pulls.c %D%/calls/pulls.h \
  %D%/scheduler/queue.c %D%/scheduler/queue.h %D%/scheduler/resizing.c \
  %D%/jobs/reattach.c \
  %D%/workers/rendezvous.c %D%/workers/rendezvous.h \
  %D%/api/resume.c \
  %D%/jobs/retry.c %D%/jobs/retry.h \
  %D%/core/reserve.c \
  %D%/calls/evaluations.c %D%/calls/evaluations.h \
  %D%/calls/rewrap.c \
  %D%/scheduler/room.c \
  %D%/scheduler/unplanned.c \
  %D%/scheduler/why.c %D%/scheduler/why.h \
  %D%/calls/saving.c \
  %D%/calls/sources.c \
  %D%/calls/shares.c \
  %D%/jobs/stalls.c %D%/jobs/stragglers.c \
  %D%/store/store.c %D%/store/store.h %D%/store/store_internal.h \
  %D%/store/store_checkpoints.c %D%/store/store_backup.c \
  %D%/store/store_events.c \
  %D%/store/store_jobs.c \
  %D%/store/store_log.c \
  %D%/store/store_mark.c %D%/store/store_mark.h \
  %D%/store/store_queue.c \
  %D%/store/store_sums.c \
  %D%/store/store_tokens.c \
  %D%/retention/sweeps.c \
  %D%/workers/supervisor.c %D%/workers/supervisor.h \
  %D%/jobs/tensorboard.c %D%/jobs/tensorboard.h \
  %D%/calls/tokens.c \
  %D%/calls/traces.c \
  %D%/turn.c %D%/turn.h \
  %D%/calls/uploads.c \
  %D%/jobs/verdict.c \
  %D%/calls/watch.c \
  %D%/workers/workers.c %D%/workers/workers.h
$(libcoordinator_a_OBJECTS): proto/generated.stamp
COORDINATOR_LIBS = libcoordinator.a libpage.a libprint.a libprocess.a libcheckpoint.a libfsdp.a libdigest.a libhf.a libops.a libspec.a libyamldoc.a librpc.a \
  libx509.a libproto.a libbase.a $(JANSSON_LIBS) $(ZLIB_LIBS) $(YAML_LIBS) $(SQLITE_LIBS) $(MICROHTTPD_LIBS) $(GRPC_LIBS) $(CRYPTO_LIBS) $(PROTOBUF_C_LIBS) $(UV_LIBS) -lm

if HAVE_CHECK

EXTRA_DIST += tests/unit/stores

check_LIBRARIES += tests/unit/libcoordinatortest.a
tests_unit_libcoordinatortest_a_SOURCES = \
  tests/unit/test_coordinator_fake.c \
  tests/unit/test_coordinator_world.c tests/unit/test_coordinator_world.h \
  tests/unit/test_queue_fakes.h tests/unit/test_queue_world.c tests/unit/test_queue_world.h
COORDINATOR_TEST_LIBS = tests/unit/libcoordinatortest.a $(COORDINATOR_LIBS) $(TEST_LIBS)
COORDINATOR_TESTS = tests/unit/test_store tests/unit/test_store_damage tests/unit/test_migrations \
  tests/unit/test_parts tests/unit/test_queue_changes tests/unit/test_queue_elastic tests/unit/test_queue_preempt tests/unit/test_queue_shares tests/unit/test_queue_orders tests/unit/test_queue tests/unit/test_coordinator_logs tests/unit/test_coordinator_pages tests/unit/test_log_files \
  tests/unit/test_coordinator_ends tests/unit/test_coordinator_streams tests/unit/test_coordinator_checkpoints \
  tests/unit/test_coordinator_pulls tests/unit/test_coordinator_rewrap tests/unit/test_coordinator_devices \
  tests/unit/test_coordinator_monitoring tests/unit/test_coordinator_http tests/unit/test_http_floods tests/unit/test_coordinator_traces tests/unit/test_coordinator_samples tests/unit/test_coordinator_reattach \
  tests/unit/test_coordinator_unplanned tests/unit/test_coordinator_starts_again tests/unit/test_coordinator_calibration \
  tests/unit/test_coordinator tests/unit/test_coordinator_diagnoses tests/unit/test_blame tests/unit/test_why \
  tests/unit/test_notices tests/unit/test_arrays
check_PROGRAMS += $(COORDINATOR_TESTS)
TESTS += $(COORDINATOR_TESTS)
$(COORDINATOR_TESTS): private LDADD = $(COORDINATOR_TEST_LIBS)
$(COORDINATOR_TESTS): $(filter %.a,$(COORDINATOR_TEST_LIBS))
store_fixture = tests/unit/store_fixture.c tests/unit/store_fixture.h
tests_unit_test_store_SOURCES = tests/unit/test_store.c $(store_fixture)

tests_unit_test_store_damage_SOURCES = tests/unit/test_store_damage.c $(store_fixture)

tests_unit_test_migrations_SOURCES = tests/unit/test_migrations.c $(store_fixture)
endif
