EXTRA_DIST += %D%/attention.py %D%/checkpoint.py %D%/checkpoint.sh %D%/choices.py %D%/choices.sh %D%/elastic.py %D%/elastic.sh %D%/generation.py %D%/generation.sh %D%/generation_torch.py %D%/goals.py %D%/goals.sh %D%/gpt.py %D%/gpt.sh %D%/gpt_torch.py %D%/load.py %D%/load_pages.py %D%/load.sh %D%/lora.py %D%/lora.sh \
  %D%/measure.py %D%/memory.py %D%/memory.sh %D%/mnist.py %D%/mnist.sh %D%/packed.py %D%/packed.sh %D%/planner.py %D%/planner.sh %D%/run.sh %D%/sequence.py \
  %D%/optimizers.py %D%/optimizers.sh %D%/simulate.py %D%/simulate.sh %D%/start.py %D%/start.sh %D%/start_model.py %D%/state_loss.py %D%/state_loss.sh %D%/strategies.py %D%/strategies.sh %D%/table.py %D%/table.sh %D%/table_models.py %D%/table_page.py %D%/table_torch.py %D%/transport.py %D%/transport.sh %D%/variants.py %D%/variants.sh

# Puts a coordinator under load. It plans its job as a worker does, hence the libraries.
noinst_PROGRAMS += bench/load # tests/system/test_load.py needs it
bench_load_SOURCES = %D%/load.c %D%/load.h %D%/load_watch.c %D%/load_worker.c
bench_load_CPPFLAGS = $(AM_CPPFLAGS) $(PROTOBUF_C_CFLAGS) $(UV_CFLAGS)
bench_load_LDADD = libclient.a libpage.a libworker.a libplanning.a libprint.a libtrain.a libcheckpoint.a \
  libdigest.a libhf.a $(RUNTIME_LIBS) libspec.a libyamldoc.a librpc.a libx509.a libproto.a libbase.a $(YAML_LIBS) \
  $(GRPC_LIBS) $(CRYPTO_LIBS) $(PROTOBUF_C_LIBS) $(UV_LIBS) $(JANSSON_LIBS) $(ZLIB_LIBS) -lm
%D%/bench_load-load.$(OBJEXT) %D%/bench_load-load_watch.$(OBJEXT) \
%D%/bench_load-load_worker.$(OBJEXT): proto/generated.stamp
