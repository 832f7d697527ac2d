# Fuzz targets; see fuzz.h. In a build with --enable-fuzzers, `make fuzz` runs each for FUZZ_SECONDS,
# as many at a time as there are processors; elsewhere `make check` replays their corpora.
FUZZ_TARGETS = \
  %D%/fuzz_address \
  %D%/fuzz_config \
  %D%/fuzz_dataset \
  %D%/fuzz_descriptors \
  %D%/fuzz_family \
  %D%/fuzz_hf_config \
  %D%/fuzz_hf_index \
  %D%/fuzz_http \
  %D%/fuzz_idx \
  %D%/fuzz_job \
  %D%/fuzz_job_message \
  %D%/fuzz_manifest \
  %D%/fuzz_megatron \
  %D%/fuzz_model \
  %D%/fuzz_npy \
  %D%/fuzz_peft \
  %D%/fuzz_policy \
  %D%/fuzz_profile \
  %D%/fuzz_safetensors \
  %D%/fuzz_tokens \
  %D%/fuzz_weights
FUZZ_SECONDS = 60
FUZZ_FAMILIES = tests/unit/family_files.c tests/unit/family_files.h
check_PROGRAMS += $(FUZZ_TARGETS)
dist_check_SCRIPTS += %D%/run.sh
EXTRA_DIST += %D%/corpus %D%/dict %D%/make_corpus.py

if FUZZERS
FUZZ_MAIN = %D%/fuzz.h
else
FUZZ_MAIN = %D%/fuzz.h %D%/replay.c
TESTS += $(FUZZ_TARGETS)
endif

%C%_fuzz_address_SOURCES = %D%/fuzz_address.c $(FUZZ_MAIN)
%C%_fuzz_address_LDADD = librpc.a libx509.a libproto.a libbase.a $(GRPC_LIBS) $(CRYPTO_LIBS) $(PROTOBUF_C_LIBS) $(UV_LIBS) \
  $(FUZZ_LIBS) -lm
%C%_fuzz_descriptors_SOURCES = %D%/fuzz_descriptors.c $(FUZZ_MAIN)
%C%_fuzz_descriptors_LDADD = $(%C%_fuzz_address_LDADD)
%C%_fuzz_config_SOURCES = %D%/fuzz_config.c daemon/config_file.c daemon/notify_option.c daemon/option_table.c $(FUZZ_MAIN)
%C%_fuzz_config_CPPFLAGS = $(AM_CPPFLAGS) $(UV_CFLAGS)
%C%_fuzz_config_LDADD = libprint.a libspec.a librpc.a libx509.a libproto.a libyamldoc.a libbase.a $(GRPC_LIBS) $(CRYPTO_LIBS) \
  $(PROTOBUF_C_LIBS) $(UV_LIBS) $(YAML_LIBS) $(FUZZ_LIBS) -lm
%C%_fuzz_family_SOURCES = %D%/fuzz_family.c $(FUZZ_MAIN)
%C%_fuzz_family_LDADD = libmodel.a $(HF_LIBS) $(FUZZ_LIBS)
%C%_fuzz_hf_config_SOURCES = %D%/fuzz_hf_config.c $(FUZZ_FAMILIES) $(FUZZ_MAIN)
%C%_fuzz_hf_config_LDADD = libmodel.a libyamldoc.a $(HF_LIBS) $(YAML_LIBS) $(FUZZ_LIBS) -lm
%C%_fuzz_hf_index_SOURCES = %D%/fuzz_hf_index.c $(FUZZ_MAIN)
%C%_fuzz_hf_index_LDADD = $(HF_LIBS) $(FUZZ_LIBS) -lm
%C%_fuzz_http_SOURCES = %D%/fuzz_http.c %D%/http_reads.c %D%/http_reads.h daemon/coordinator/http/completion_text.c \
  daemon/coordinator/http/http_checks.c daemon/coordinator/http/reads.c daemon/coordinator/http/routes.c \
  daemon/coordinator/store/message.c $(FUZZ_MAIN)
%C%_fuzz_http_CPPFLAGS = $(AM_CPPFLAGS) $(PROTOBUF_C_CFLAGS) $(JANSSON_CFLAGS) $(UV_CFLAGS) $(MICROHTTPD_CFLAGS)
%C%_fuzz_http_LDADD = libprint.a $(FUZZ_SPEC_LIBS) $(JANSSON_LIBS) $(FUZZ_LIBS) -lm
%C%_fuzz_idx_SOURCES = %D%/fuzz_idx.c $(FUZZ_MAIN)
%C%_fuzz_idx_LDADD = libtrain.a libbase.a $(ZLIB_LIBS) $(FUZZ_LIBS) -lm
%C%_fuzz_manifest_SOURCES = %D%/fuzz_manifest.c $(FUZZ_MAIN)
%C%_fuzz_manifest_LDADD = libcheckpoint.a libfsdp.a libdigest.a $(HF_LIBS) $(CRYPTO_LIBS) $(FUZZ_LIBS) -lm
%C%_fuzz_megatron_SOURCES = %D%/fuzz_megatron.c %D%/scratch.h $(FUZZ_MAIN)
%C%_fuzz_megatron_LDADD = libtrain.a libbase.a $(FUZZ_LIBS) -lm
%C%_fuzz_model_SOURCES = %D%/fuzz_model.c $(FUZZ_MAIN)
%C%_fuzz_model_LDADD = libfsdp.a libmodel.a libops.a libyamldoc.a libbase.a $(YAML_LIBS) \
  $(FUZZ_LIBS) -lm
%C%_fuzz_peft_SOURCES = %D%/fuzz_peft.c $(FUZZ_MAIN)
%C%_fuzz_peft_LDADD = $(HF_LIBS) $(FUZZ_LIBS) -lm
%C%_fuzz_policy_SOURCES = %D%/fuzz_policy.c $(FUZZ_MAIN)
%C%_fuzz_policy_LDADD = $(%C%_fuzz_model_LDADD)
%C%_fuzz_profile_SOURCES = %D%/fuzz_profile.c $(FUZZ_MAIN)
%C%_fuzz_profile_LDADD = libplanning.a libfsdp.a libmodel.a libops.a libyamldoc.a libbase.a $(YAML_LIBS) $(FUZZ_LIBS) -lm
%C%_fuzz_safetensors_SOURCES = %D%/fuzz_safetensors.c $(FUZZ_MAIN)
%C%_fuzz_safetensors_LDADD = $(HF_LIBS) $(FUZZ_LIBS) -lm
%C%_fuzz_weights_SOURCES = %D%/fuzz_weights.c $(FUZZ_FAMILIES) $(FUZZ_MAIN)
%C%_fuzz_weights_LDADD = libcheckpoint.a libmodel.a libyamldoc.a $(HF_LIBS) $(YAML_LIBS) $(FUZZ_LIBS) -lm
%C%_fuzz_tokens_SOURCES = %D%/fuzz_tokens.c %D%/scratch.h $(FUZZ_MAIN)
%C%_fuzz_tokens_LDADD = libtrain.a libbase.a $(FUZZ_LIBS) -lm
%C%_fuzz_npy_SOURCES = %D%/fuzz_npy.c %D%/scratch.h $(FUZZ_MAIN)
%C%_fuzz_npy_LDADD = libtrain.a libbase.a $(FUZZ_LIBS) -lm
%C%_fuzz_dataset_SOURCES = %D%/fuzz_dataset.c $(FUZZ_MAIN)
%C%_fuzz_dataset_LDADD = libtrain.a libops.a libdigest.a libbase.a $(JANSSON_LIBS) $(ZLIB_LIBS) $(CRYPTO_LIBS) $(FUZZ_LIBS) -lm

FUZZ_SPEC_FILES = %D%/spec_round_trip.c %D%/spec_round_trip.h $(FUZZ_MAIN)
FUZZ_WRAP_FILE_READ = $(AM_LDFLAGS) -Wl,--wrap=file_read
FUZZ_SPEC_LIBS = libspec.a libyamldoc.a libproto.a libbase.a $(YAML_LIBS) \
  $(PROTOBUF_C_LIBS) $(FUZZ_LIBS) -lm
%C%_fuzz_job_SOURCES = %D%/fuzz_job.c $(FUZZ_SPEC_FILES)
%C%_fuzz_job_LDFLAGS = $(FUZZ_WRAP_FILE_READ)
%C%_fuzz_job_LDADD = $(FUZZ_SPEC_LIBS)
%C%_fuzz_job_message_SOURCES = %D%/fuzz_job_message.c $(FUZZ_SPEC_FILES)
%C%_fuzz_job_message_LDFLAGS = $(FUZZ_WRAP_FILE_READ)
%C%_fuzz_job_message_LDADD = librpc.a libx509.a $(FUZZ_SPEC_LIBS) $(GRPC_LIBS) $(CRYPTO_LIBS) $(UV_LIBS)
$(%C%_fuzz_job_OBJECTS) $(%C%_fuzz_job_message_OBJECTS): $(PROTO_H)

fuzz-build: $(BUILT_SOURCES)
	@$(MAKE) $(AM_MAKEFLAGS) $(FUZZ_TARGETS)
fuzz: fuzz-build
	@$(srcdir)/%D%/run.sh $(srcdir)/%D% %D% $(FUZZ_SECONDS) $(FUZZ_TARGETS:%D%/fuzz_%=%)
.PHONY: fuzz fuzz-build
clean-local: clean-fuzz
clean-fuzz:
	-rm -rf %D%/found
.PHONY: clean-fuzz
