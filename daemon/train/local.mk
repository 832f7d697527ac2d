# daemon/train, and the program that draws digits to train on
noinst_LIBRARIES += libtrain.a
libtrain_a_SOURCES = \
  %D%/base_check.c \
  %D%/compare.c \
  %D%/draw.c %D%/draw.h \
  %D%/early.c %D%/early.h \
  %D%/evaluate.c %D%/evaluate.h \
  %D%/feed.c %D%/feed.h \
  %D%/load.c %D%/metrics.c \
  %D%/reference.c \
  %D%/rewrap.c \
  %D%/resume.c \
  %D%/run.c %D%/run_state.h \
  %D%/sample.c \
  %D%/schedule.c %D%/schedule.h \
  %D%/scores.c %D%/scores.h \
  %D%/tune.c %D%/tune.h
libtrain_a_CPPFLAGS = $(AM_CPPFLAGS) $(JANSSON_CFLAGS) $(ZLIB_CFLAGS)

noinst_PROGRAMS += fsdpd-digits
fsdpd_digits_SOURCES = examples/digits/draw.c
fsdpd_digits_LDADD = libbase.a -lm

EXTRA_DIST += tests/parity/make_numbers.py tests/parity/numbers.txt \
  tests/parity/make_training_numbers.py tests/parity/training.json
EXTRA_DIST += tests/parity/make_block_numbers.py tests/parity/blocks.txt tests/parity/make_muon_numbers.py tests/parity/muon.txt \
  tests/parity/make_adafactor_numbers.py tests/parity/adafactor.txt \
  tests/parity/make_optimizer_numbers.py tests/parity/optimizers.txt
EXTRA_DIST += tests/parity/make_base_numbers.py tests/parity/base.txt

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_train_numbers tests/unit/test_scores tests/unit/test_blocks tests/unit/test_muon tests/unit/test_adafactor tests/unit/test_draw tests/unit/test_base
TESTS += tests/unit/test_train_numbers tests/unit/test_scores tests/unit/test_blocks tests/unit/test_muon tests/unit/test_adafactor tests/unit/test_draw tests/unit/test_base
tests_unit_test_draw_SOURCES = tests/unit/test_draw.c tests/unit/draw_numbers.h
tests_unit_test_draw_LDADD = libtrain.a $(RUNTIME_LIBS) $(ZLIB_LIBS) $(TEST_LIBS) -lm
tests_unit_test_blocks_LDADD = libtrain.a libdigest.a $(RUNTIME_LIBS) $(CRYPTO_LIBS) $(ZLIB_LIBS) $(TEST_LIBS) -lm
tests_unit_test_adafactor_LDADD = libtrain.a $(RUNTIME_LIBS) $(TEST_LIBS) -lm
tests_unit_test_muon_LDADD = libtrain.a $(RUNTIME_LIBS) $(TEST_LIBS) -lm
tests_unit_test_base_LDADD = libdigest.a $(RUNTIME_LIBS) $(CRYPTO_LIBS) $(TEST_LIBS) -lm
tests_unit_test_train_numbers_LDADD = libtrain.a $(RUNTIME_LIBS) $(ZLIB_LIBS) $(TEST_LIBS) -lm
tests_unit_test_scores_LDADD = libtrain.a $(RUNTIME_LIBS) $(ZLIB_LIBS) $(TEST_LIBS) -lm
endif

# Continued sequences against those of transformers' generate.
if HAVE_CHECK
check_PROGRAMS += tests/parity/generate
tests_parity_generate_SOURCES = tests/parity/generate.c tests/parity/directory.c tests/parity/directory.h \
  tests/parity/parameters.c tests/parity/parameters.h tests/unit/family_files.c tests/unit/family_files.h \
  tests/engine/generated.c tests/engine/generated.h
tests_parity_generate_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
tests_parity_generate_LDADD = tests/engine/libenginetest.a libtrain.a libcheckpoint.a libdigest.a libhf.a \
  $(RUNTIME_LIBS) $(JANSSON_LIBS) $(ZLIB_LIBS) $(CRYPTO_LIBS) $(TEST_LIBS)
TESTS += tests/parity/test_generated.py
endif
EXTRA_DIST += tests/parity/generated.json tests/parity/generated_cases.py tests/parity/make_draw_numbers.py \
  tests/parity/make_generated_numbers.py tests/parity/test_generated.py

# Initial parameters against PyTorch's; skips itself where PyTorch is not installed.
check_PROGRAMS += tests/parity/dump_init
tests_parity_dump_init_SOURCES = tests/parity/dump_init.c
tests_parity_dump_init_LDADD = libtrain.a libmodel.a libyamldoc.a $(RUNTIME_LIBS) $(YAML_LIBS) -lm
TESTS += tests/parity/test_init.py
EXTRA_DIST += tests/parity/test_init.py

if HAVE_CHECK
TRAIN_TESTS = tests/engine/test_session tests/engine/test_step tests/engine/test_global_batch tests/engine/test_pull tests/engine/test_tokens \
  tests/engine/test_capture tests/engine/test_checkpoint tests/engine/test_unlisted tests/engine/test_export tests/engine/test_bit_flips tests/engine/test_recovery tests/engine/test_rewrap \
  tests/engine/test_average tests/engine/test_generation \
  tests/engine/test_batch_norm
check_PROGRAMS += $(TRAIN_TESTS)
TESTS += $(TRAIN_TESTS)
$(TRAIN_TESTS): private LDADD = $(TRAIN_TEST_LIBS)
$(TRAIN_TESTS): $(filter %.a,$(TRAIN_TEST_LIBS))
check_LIBRARIES += tests/engine/libsessiontest.a
tests_engine_libsessiontest_a_SOURCES = tests/engine/session_group.c tests/engine/session_group.h \
  tests/engine/comm_local.c tests/engine/comm_local.h
TRAIN_TEST_LIBS = tests/engine/libsessiontest.a libtrain.a libcheckpoint.a libdigest.a libhf.a $(RUNTIME_LIBS) $(JANSSON_LIBS) $(ZLIB_LIBS) \
  $(CRYPTO_LIBS) $(TEST_LIBS)

tests_engine_test_session_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=kernel_run
EXTRA_tests_engine_test_session_DEPENDENCIES = fsdpd-digits$(EXEEXT)

tests_engine_test_step_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=lane_launch
EXTRA_tests_engine_test_step_DEPENDENCIES = fsdpd-digits$(EXEEXT)

tests_engine_test_pull_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=snapshot_take -Wl,--wrap=malloc
EXTRA_tests_engine_test_pull_DEPENDENCIES = fsdpd-digits$(EXEEXT)

tests_engine_test_generation_SOURCES = tests/engine/test_generation.c tests/engine/generated.c tests/engine/generated.h \
  tests/unit/machine.c tests/unit/machine.h
tests_engine_test_generation_LDADD = tests/engine/libenginetest.a $(TRAIN_TEST_LIBS)

tests_engine_test_tokens_SOURCES = tests/engine/test_tokens.c tests/unit/dataset_files.c tests/unit/dataset_files.h

tests_engine_test_capture_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=write -Wl,--wrap=malloc
EXTRA_tests_engine_test_capture_DEPENDENCIES = fsdpd-digits$(EXEEXT)

EXTRA_tests_engine_test_checkpoint_DEPENDENCIES = fsdpd-digits$(EXEEXT)

EXTRA_tests_engine_test_average_DEPENDENCIES = fsdpd-digits$(EXEEXT)

EXTRA_tests_engine_test_unlisted_DEPENDENCIES = fsdpd-digits$(EXEEXT)

EXTRA_tests_engine_test_export_DEPENDENCIES = fsdpd-digits$(EXEEXT)

EXTRA_tests_engine_test_bit_flips_DEPENDENCIES = fsdpd-digits$(EXEEXT)

EXTRA_tests_engine_test_rewrap_DEPENDENCIES = fsdpd-digits$(EXEEXT)

EXTRA_tests_engine_test_batch_norm_DEPENDENCIES = fsdpd-digits$(EXEEXT)
endif
