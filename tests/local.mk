# How tests run; which ones there are stands in each room's local.mk, those that need a whole fsdpd here.
TEST_EXTENSIONS = .py .sh
PY_LOG_COMPILER = $(PYTHON3)

# The one main of the Check programs.
if HAVE_CHECK
TEST_LIBS = %D%/libtesting.a $(CHECK_LIBS)
check_LIBRARIES += %D%/libtesting.a
%C%_libtesting_a_SOURCES = %D%/testing.c %D%/testing.h
# Any test may include a generated header.
$(patsubst $(srcdir)/%,%,$(patsubst %.c,%.$(OBJEXT),$(wildcard $(srcdir)/tests/unit/*.c $(srcdir)/tests/engine/*.c))): | proto/generated.stamp
endif

RULE_TESTS = %D%/check_layers.sh %D%/check_install.py %D%/check_circles.py %D%/check_structs.py %D%/check_proto.py %D%/check_docs.sh %D%/check_hf_keys.py %D%/check_english.py %D%/check_dialect.sh %D%/check_cuda_kernels.sh %D%/check_cuda_sass.py %D%/test_rules.py
dist_check_SCRIPTS += $(RULE_TESTS)
EXTRA_DIST += %D%/english.txt
TESTS += $(RULE_TESTS)

# Comparisons with packages that are too heavy for every machine (make check-live).
LIVE_TESTS = %D%/parity/test_embeddings.py %D%/parity/test_export_live.py %D%/parity/test_families.py %D%/parity/test_follow_live.py %D%/parity/test_heads.py \
  %D%/parity/test_lm_eval.py %D%/parity/test_lora_live.py %D%/parity/test_optimizers_live.py %D%/parity/test_picture_curves.py %D%/parity/test_prepare_live.py %D%/parity/test_pulled.py %D%/parity/test_schedules_live.py %D%/parity/test_weights_live.py \
  %D%/system/test_generated_clients.py
EXTRA_DIST += $(LIVE_TESTS) %D%/parity/prepare.json %D%/parity/odd_records.py %D%/parity/odd_weights.py \
  %D%/parity/odd_weights.json %D%/parity/load_directories.py %D%/parity/pulled.json %D%/requirements.txt
check-live: all
	@test -n "$$FSDPD_LIVE_PYTHON" || { echo "check-live: FSDPD_LIVE_PYTHON is not set: it names a Python with torch, transformers, safetensors, peft, lm-eval and bitsandbytes" >&2; exit 1; }
	@test -n "$$FSDPD_LIVE_PYTHON_4" || { echo "check-live: FSDPD_LIVE_PYTHON_4 is not set: it names a Python with version 4 of transformers and its torch" >&2; exit 1; }
	@test -n "$$FSDPD_LIVE_PYTHON_TRACKERS" || { echo "check-live: FSDPD_LIVE_PYTHON_TRACKERS is not set: it names a Python with mlflow, wandb, trackio and opentelemetry-proto" >&2; exit 1; }
	@"$$FSDPD_LIVE_PYTHON" -c 'import bitsandbytes, lm_eval, numpy, peft, tenacity, torch, transformers, safetensors' || { echo "check-live: $$FSDPD_LIVE_PYTHON lacks torch, transformers, safetensors, peft, lm-eval[api] or bitsandbytes" >&2; exit 1; }
	"$$FSDPD_LIVE_PYTHON" $(srcdir)/scripts/model_types.py
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(LIVE_TESTS)' PY_LOG_COMPILER="$$FSDPD_LIVE_PYTHON"
.PHONY: check-live

PARITY_TESTS = %D%/parity/test_batch_norm.py %D%/parity/test_training.py %D%/parity/test_optimizers.py
# Those that wait longest come first, so that others run meanwhile.
SYSTEM_TESTS = \
  %D%/system/test_cut_pairs.py \
  %D%/system/test_redundancy_waits.py \
  %D%/system/test_redundancy_kills.py \
  %D%/system/test_shakespeare.py \
  %D%/system/test_mnist.py \
  %D%/system/test_shrink_elastic.py \
  %D%/system/test_gpu_check.py \
  %D%/system/test_adapter_examples.py \
  %D%/system/test_arrays.py \
  %D%/system/test_backup.py \
  %D%/system/test_diagnose.py \
  %D%/system/test_diagnose_cables.py \
  %D%/system/test_diagnose_cases.py \
  %D%/system/test_store_damage.py \
  %D%/system/test_bad_input.py \
  %D%/system/test_bit_flips.py %D%/system/test_verify.py %D%/system/test_scrub.py \
  %D%/system/test_chaos.py \
  %D%/system/test_checkpoint.py \
  %D%/system/test_clock.py \
  %D%/system/test_config.py \
  %D%/system/test_devices.py \
  %D%/system/test_disk.py \
  %D%/system/test_early_stop.py \
  %D%/system/test_eval.py \
  %D%/system/test_failing_calls.py \
  %D%/system/test_follow.py \
  %D%/system/test_elastic.py \
  %D%/system/test_unlisted_checkpoint.py \
  %D%/system/test_examples.py \
  %D%/system/test_failures.py \
  %D%/system/test_api.py \
  %D%/system/test_grpc_client.py \
  %D%/system/test_hf.py \
  %D%/system/test_jobs.py \
  %D%/system/test_limits.py \
  %D%/system/test_load.py \
  %D%/system/test_logs.py \
  %D%/system/test_manual.py \
  %D%/system/test_metrics.py \
  %D%/system/test_orders.py \
  %D%/system/test_pause.py \
  %D%/system/test_pictures.py \
  %D%/system/test_images.py \
  %D%/system/test_memory.py \
  %D%/system/test_auto.py \
  %D%/system/test_calibration.py \
  %D%/system/test_plan.py \
  %D%/system/test_printed_commands.py \
  %D%/system/test_precision.py \
  %D%/system/test_prepare.py \
  %D%/system/test_prepare_kinds.py \
  %D%/system/test_page.py \
  %D%/system/test_prepare_odd.py \
  %D%/system/test_classify.py \
  %D%/system/test_python_client.py \
  %D%/system/test_published_templates.py \
  %D%/system/test_pull.py \
  %D%/system/test_pull_checkpoint.py \
  %D%/system/test_pull_order.py \
  %D%/system/test_queue.py \
  %D%/system/test_redundancy.py \
  %D%/system/test_replaced_weights.py \
  %D%/system/test_report.py \
  %D%/system/test_service.py \
  %D%/system/test_slurm.py \
  %D%/system/test_side_groups.py \
  %D%/system/test_stopping.py \
  %D%/system/test_cuda_offload.py \
  %D%/system/test_lost_device.py \
  %D%/system/test_shared_device.py \
  %D%/system/test_shared_plans.py \
  %D%/system/test_shares.py \
  %D%/system/test_fair_share.py \
  %D%/system/test_preemptions.py \
  %D%/system/test_tensorboard.py \
  %D%/system/test_tls.py \
  %D%/system/test_trace.py \
  %D%/system/test_tune.py \
  %D%/system/test_two_hosts.py \
  %D%/system/test_units.py \
  %D%/system/test_not_begun.py \
  %D%/system/test_odd_weights.py \
  %D%/system/test_nothing_counts.py \
  %D%/system/test_retry.py \
  %D%/system/test_views.py \
  %D%/system/test_reattach.py \
  %D%/system/test_refusals.py \
  %D%/system/test_silent_streams.py \
  %D%/system/test_strangers.py \
  %D%/system/test_modes.py \
  %D%/system/test_restart.py \
  %D%/system/test_resume.py \
  %D%/system/test_sample_proxy.py \
  %D%/system/test_saving.py \
  %D%/system/test_weights.py \
  %D%/system/test_wire_fuzz.py \
  %D%/system/test_wrap.py
dist_check_SCRIPTS += $(PARITY_TESTS) $(SYSTEM_TESTS)
TESTS += $(PARITY_TESTS) $(SYSTEM_TESTS)
# Makes system calls of the daemons fail (harness.Faults): loaded by LD_PRELOAD, so without sanitizers.
%D%/system/faults.so: %D%/system/faults.c
	$(AM_V_CCLD)$(MKDIR_P) $(@D) && $(CC) -D_GNU_SOURCE -I$(srcdir)/common -O1 -Wall -shared -fPIC \
	  -o $@ $< -ldl
check_DATA = %D%/system/faults.so
CLEANFILES += %D%/system/faults.so
EXTRA_DIST += %D%/system/faults.c

EXTRA_DIST += %D%/system/harness.py %D%/system/printed.py %D%/system/elastic_jobs.py %D%/system/stub_device.py %D%/system/wire.py %D%/system/calls_under_kills.py %D%/system/chaos.py %D%/system/following.py %D%/system/orders.py %D%/system/diagnosing.py %D%/system/holding.py %D%/system/chaos_check.py %D%/system/kills.py %D%/system/preemptions.py %D%/system/failing_calls.py %D%/parity/reference.py %D%/parity/lion.py

# What scripts/check.sh runs again with sanitizers.
sanitizer_tests = $(filter %D%/unit/% %D%/engine/% %D%/fuzz/%,$(TESTS))
# Those that take longest come first, so that none runs alone in the end.
slow_with_sanitizers = $(filter $(sanitizer_tests),$(addprefix %D%/,engine/test_matrix unit/test_kernels_bfloat16 \
  unit/test_search engine/test_recovery engine/test_tokens engine/test_rewrap engine/test_engine \
  engine/test_precision unit/test_calibrate unit/test_lying_checkpoints))
print-sanitizer-tests:
	@echo $(slow_with_sanitizers) $(filter-out $(slow_with_sanitizers),$(sanitizer_tests))
# What scripts/flakes.sh runs.
print-tests:
	@echo $(TESTS)
.PHONY: print-sanitizer-tests print-tests
