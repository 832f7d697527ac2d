noinst_LIBRARIES += libruntime.a
libruntime_a_SOURCES = \
  %D%/arena_pool.c %D%/arena_pool.h \
  %D%/backend.c %D%/backend.h \
  %D%/backend_describe.c %D%/backend_join.c \
  %D%/comm.c %D%/comm.h \
  %D%/comm_gloo.c \
  %D%/comm_memory.c \
  %D%/comm_shm.c \
  %D%/comm_table.h \
  %D%/device.c %D%/device.h \
  %D%/device_cpu.c \
  %D%/device_null.c \
  %D%/device_table.h \
  %D%/base.c %D%/base.h \
  %D%/executor.c %D%/executor.h %D%/executor_internal.h %D%/executor_prepare.c \
  %D%/executor_look.c %D%/executor_state.c \
  %D%/gloo_link.cc %D%/gloo_link.h \
  %D%/lane_cpu.c \
  %D%/factor_step.c %D%/factor_step.h \
  %D%/matrix_step.c %D%/matrix_step.h \
  %D%/recorder.c %D%/recorder.h \
  %D%/relayout.c %D%/relayout.h \
  %D%/rendezvous.c %D%/rendezvous.h \
  %D%/shm_join.c %D%/shm_link.c %D%/shm_link.h %D%/shm_segment.h %D%/shm_watch.c \
  %D%/step_args.h \
  %D%/step_cpu.c \
  %D%/trace.c %D%/trace.h

libruntime_a_CPPFLAGS = $(AM_CPPFLAGS) -DPKGLIBDIR='"$(pkglibdir)"'
EXTRA_DIST += %D%/backend.syms
include %D%/cuda/local.mk

# The libraries that a program must link after libruntime.a.
RUNTIME_LIBS = libruntime.a libkernels.a libfsdp.a libmodel.a libops.a libyamldoc.a libbase.a \
  $(YAML_LIBS) $(DNNL_LIBS) $(OPENMP_CFLAGS) $(GLOO_LIBS) -lstdc++ -lm

if HAVE_CHECK
ENGINE_TEST_SOURCES = tests/engine/engine.c tests/engine/engine.h tests/engine/group.c \
  tests/engine/group.h tests/engine/comm_local.c tests/engine/comm_local.h \
  tests/engine/device_logged.c tests/engine/device_logged.h
check_LIBRARIES += tests/engine/libenginetest.a
tests_engine_libenginetest_a_SOURCES = $(ENGINE_TEST_SOURCES) tests/unit/tiny_models.c tests/unit/tiny_models.h
RUNTIME_TEST_LIBS = tests/engine/libenginetest.a $(RUNTIME_LIBS) $(TEST_LIBS)
RUNTIME_TESTS = tests/unit/test_device tests/unit/test_comm tests/unit/test_comm_join tests/engine/test_engine \
  tests/engine/test_engine_failures tests/engine/test_transformers tests/engine/test_checkpointing \
  tests/engine/test_trace tests/engine/test_matrix tests/engine/test_precision tests/engine/test_muon
check_PROGRAMS += $(RUNTIME_TESTS)
TESTS += $(RUNTIME_TESTS)
$(RUNTIME_TESTS): private LDADD = $(RUNTIME_TEST_LIBS)
$(RUNTIME_TESTS): $(filter %.a,$(RUNTIME_TEST_LIBS))

tests_engine_test_engine_failures_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=kernel_run
check_PROGRAMS += tests/parity/train_transformer
tests_parity_train_transformer_SOURCES = tests/parity/train_transformer.c \
  tests/parity/parameters.c tests/parity/parameters.h $(ENGINE_TEST_SOURCES)
tests_parity_train_transformer_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_parity_train_transformer_LDADD = libhf.a $(RUNTIME_LIBS) $(JANSSON_LIBS) $(CHECK_LIBS)
FAMILY_NUMBERS = \
  tests/parity/families/albert.json \
  tests/parity/families/arcee.json \
  tests/parity/families/bert.json \
  tests/parity/families/biogpt.json \
  tests/parity/families/bloom.json \
  tests/parity/families/camembert.json \
  tests/parity/families/clip.json \
  tests/parity/families/codegen.json \
  tests/parity/families/cohere.json \
  tests/parity/families/cohere2.json \
  tests/parity/families/convnext.json \
  tests/parity/families/convnextv2.json \
  tests/parity/families/cwm.json \
  tests/parity/families/data2vec_text.json \
  tests/parity/families/deit.json \
  tests/parity/families/dinov2.json \
  tests/parity/families/dinov2_with_registers.json \
  tests/parity/families/distilbert.json \
  tests/parity/families/electra.json \
  tests/parity/families/ernie.json \
  tests/parity/families/ernie4_5.json \
  tests/parity/families/eurobert.json \
  tests/parity/families/exaone.json \
  tests/parity/families/exaone4.json \
  tests/parity/families/falcon.json \
  tests/parity/families/gemma.json \
  tests/parity/families/gemma2.json \
  tests/parity/families/gemma3.json \
  tests/parity/families/gemma3_text.json \
  tests/parity/families/glm.json \
  tests/parity/families/glm4.json \
  tests/parity/families/gpt2.json \
  tests/parity/families/gpt_bigcode.json \
  tests/parity/families/gpt_neo.json \
  tests/parity/families/gpt_neox.json \
  tests/parity/families/gpt_neox_japanese.json \
  tests/parity/families/gptj.json \
  tests/parity/families/granite.json \
  tests/parity/families/helium.json \
  tests/parity/families/hunyuan_v1_dense.json \
  tests/parity/families/hyperclovax.json \
  tests/parity/families/ijepa.json \
  tests/parity/families/internlm3.json \
  tests/parity/families/iquestcoder.json \
  tests/parity/families/jais2.json \
  tests/parity/families/llama.json \
  tests/parity/families/megatron_bert.json \
  tests/parity/families/metaclip_2.json \
  tests/parity/families/ministral.json \
  tests/parity/families/mistral.json \
  tests/parity/families/mistral3.json \
  tests/parity/families/modernbert.json \
  tests/parity/families/modernbert_decoder.json \
  tests/parity/families/mpnet.json \
  tests/parity/families/mpt.json \
  tests/parity/families/nanochat.json \
  tests/parity/families/nemotron.json \
  tests/parity/families/olmo.json \
  tests/parity/families/olmo2.json \
  tests/parity/families/olmo3.json \
  tests/parity/families/openai_gpt.json \
  tests/parity/families/opt.json \
  tests/parity/families/persimmon.json \
  tests/parity/families/phi.json \
  tests/parity/families/phi3.json \
  tests/parity/families/poolformer.json \
  tests/parity/families/qwen2.json \
  tests/parity/families/qwen2_5_vl.json \
  tests/parity/families/qwen3.json \
  tests/parity/families/qwen3_vl.json \
  tests/parity/families/regnet.json \
  tests/parity/families/rembert.json \
  tests/parity/families/resnet.json \
  tests/parity/families/roberta.json \
  tests/parity/families/roberta_prelayernorm.json \
  tests/parity/families/seed_oss.json \
  tests/parity/families/siglip.json \
  tests/parity/families/smollm3.json \
  tests/parity/families/stablelm.json \
  tests/parity/families/starcoder2.json \
  tests/parity/families/vaultgemma.json \
  tests/parity/families/vit.json \
  tests/parity/families/xlm_roberta.json \
  tests/parity/families/xlm_roberta_xl.json
TESTS += tests/parity/test_family_numbers.py tests/parity/test_lora_numbers.py tests/parity/test_base_numbers.py tests/parity/test_dpo_numbers.py tests/parity/test_reward_numbers.py tests/parity/test_export.py tests/parity/test_networks.py tests/parity/test_distillation.py tests/parity/test_pairs.py tests/parity/test_transformers.py tests/parity/test_windows.py
EXTRA_DIST += tests/parity/family_cases.py tests/parity/family_models.py tests/parity/family_numbers.py \
  tests/parity/make_family_numbers.py tests/parity/test_family_numbers.py $(FAMILY_NUMBERS) \
  tests/parity/base.json tests/parity/make_base_losses.py tests/parity/test_base_numbers.py \
  tests/parity/adapters.json tests/parity/lora.json tests/parity/lora_cases.py tests/parity/make_lora_numbers.py tests/parity/test_lora_numbers.py \
  tests/parity/dpo.json tests/parity/dpo_cases.py tests/parity/pair_jobs.py tests/parity/make_dpo_numbers.py tests/parity/test_dpo_numbers.py \
  tests/parity/reward.json tests/parity/reward_cases.py tests/parity/make_reward_numbers.py tests/parity/test_reward_numbers.py
EXTRA_DIST += tests/parity/random_families.py tests/parity/test_export.py tests/parity/export.json tests/parity/export_networks.py tests/parity/make_export_graphs.py tests/parity/test_networks.py tests/parity/test_distillation.py tests/parity/test_pairs.py tests/parity/decoder_blocks.py tests/parity/draws.py tests/parity/loss_networks.py tests/parity/test_transformers.py tests/parity/test_windows.py tests/parity/transformer_reference.py
endif
