# How tests run; which ones there are stands in each room's local.mk, those that need a whole fsdpd here.
TEST_EXTENSIONS = .py .sh
PY_LOG_COMPILER = $(PYTHON3)

dist_check_SCRIPTS += %D%/check_layers.sh %D%/check_cuda_kernels.sh
TESTS += %D%/check_layers.sh %D%/check_cuda_kernels.sh

PARITY_TESTS = %D%/parity/test_training.py %D%/parity/test_optimizers.py
SYSTEM_TESTS = \
  %D%/system/test_backup.py \
  %D%/system/test_bad_input.py \
  %D%/system/test_chaos.py \
  %D%/system/test_checkpoint.py \
  %D%/system/test_clock.py \
  %D%/system/test_config.py \
  %D%/system/test_devices.py \
  %D%/system/test_disk.py \
  %D%/system/test_examples.py \
  %D%/system/test_failures.py \
  %D%/system/test_gpu_check.py \
  %D%/system/test_grpc_client.py \
  %D%/system/test_hf.py \
  %D%/system/test_jobs.py \
  %D%/system/test_load.py \
  %D%/system/test_logs.py \
  %D%/system/test_manual.py \
  %D%/system/test_metrics.py \
  %D%/system/test_mnist.py \
  %D%/system/test_pause.py \
  %D%/system/test_plan.py \
  %D%/system/test_precision.py \
  %D%/system/test_pull.py \
  %D%/system/test_pull_checkpoint.py \
  %D%/system/test_queue.py \
  %D%/system/test_report.py \
  %D%/system/test_service.py \
  %D%/system/test_cuda_offload.py \
  %D%/system/test_shared_device.py \
  %D%/system/test_shakespeare.py \
  %D%/system/test_tensorboard.py \
  %D%/system/test_tls.py \
  %D%/system/test_trace.py \
  %D%/system/test_two_hosts.py \
  %D%/system/test_units.py \
  %D%/system/test_retry.py \
  %D%/system/test_views.py \
  %D%/system/test_reattach.py \
  %D%/system/test_refusals.py \
  %D%/system/test_restart.py \
  %D%/system/test_weights.py \
  %D%/system/test_wire_fuzz.py \
  %D%/system/test_wrap.py
dist_check_SCRIPTS += $(PARITY_TESTS) $(SYSTEM_TESTS)
TESTS += $(PARITY_TESTS) $(SYSTEM_TESTS)
EXTRA_DIST += %D%/system/harness.py %D%/system/stub_device.py %D%/system/wire.py %D%/system/chaos.py %D%/system/chaos_check.py %D%/parity/reference.py

# These start daemons and training processes of two threads each: alone, timings mean something.
%D%/system/test_mnist.log: $(filter-out %D%/system/test_mnist.log,$(SYSTEM_TESTS:.py=.log))

# What scripts/check.sh runs again with sanitizers.
print-sanitizer-tests:
	@echo $(filter %D%/unit/% %D%/engine/% %D%/fuzz/%,$(TESTS))
.PHONY: print-sanitizer-tests
