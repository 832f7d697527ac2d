# The API: generated C for the messages, and the descriptor set that reflection serves.
PROTO_FILES = fsdpd/v1/control.proto fsdpd/v1/diagnosis.proto fsdpd/v1/event.proto \
  fsdpd/v1/job.proto fsdpd/v1/log.proto fsdpd/v1/plan.proto fsdpd/v1/spec.proto \
  fsdpd/v1/trace.proto fsdpd/v1/worker.proto \
  grpc/health/v1/health.proto grpc/reflection/v1alpha/reflection.proto \
  google/protobuf/any.proto google/protobuf/timestamp.proto \
  google/rpc/status.proto google/rpc/error_details.proto
PROTO_C = $(PROTO_FILES:%.proto=%D%/%.pb-c.c) %D%/fsdpd/v1/methods.c
PROTO_H = $(PROTO_FILES:%.proto=%D%/%.pb-c.h) %D%/fsdpd/v1/methods.h
# protoc-c reads copies of the .proto files; see optional.awk.
PROTO_COPIES = $(PROTO_FILES:%=%D%/for-c/%)
METHODS = $(AWK) -f $(srcdir)/%D%/methods.awk
METHODS_FILES = $(addprefix $(srcdir)/%D%/fsdpd/v1/,control.proto worker.proto)

noinst_LIBRARIES += libproto.a
nodist_libproto_a_SOURCES = \
  %D%/fsdpd/v1/control.pb-c.c %D%/fsdpd/v1/control.pb-c.h \
  %D%/fsdpd/v1/diagnosis.pb-c.c %D%/fsdpd/v1/diagnosis.pb-c.h \
  %D%/fsdpd/v1/event.pb-c.c %D%/fsdpd/v1/event.pb-c.h \
  %D%/fsdpd/v1/job.pb-c.c %D%/fsdpd/v1/job.pb-c.h \
  %D%/fsdpd/v1/log.pb-c.c %D%/fsdpd/v1/log.pb-c.h \
  %D%/fsdpd/v1/plan.pb-c.c %D%/fsdpd/v1/plan.pb-c.h \
  %D%/fsdpd/v1/spec.pb-c.c %D%/fsdpd/v1/spec.pb-c.h \
  %D%/fsdpd/v1/trace.pb-c.c %D%/fsdpd/v1/trace.pb-c.h \
  %D%/fsdpd/v1/worker.pb-c.c %D%/fsdpd/v1/worker.pb-c.h \
  %D%/fsdpd/v1/methods.c %D%/fsdpd/v1/methods.h \
  %D%/grpc/health/v1/health.pb-c.c %D%/grpc/health/v1/health.pb-c.h \
  %D%/grpc/reflection/v1alpha/reflection.pb-c.c %D%/grpc/reflection/v1alpha/reflection.pb-c.h \
  %D%/google/protobuf/any.pb-c.c %D%/google/protobuf/any.pb-c.h \
  %D%/google/protobuf/timestamp.pb-c.c %D%/google/protobuf/timestamp.pb-c.h \
  %D%/google/rpc/status.pb-c.c %D%/google/rpc/status.pb-c.h \
  %D%/google/rpc/error_details.pb-c.c %D%/google/rpc/error_details.pb-c.h \
  %D%/descriptors.c
libproto_a_SOURCES = %D%/descriptors.h %D%/message.c %D%/message.h %D%/threads.c %D%/threads.h
libproto_a_CPPFLAGS = $(AM_CPPFLAGS) $(PROTOBUF_C_CFLAGS) $(UV_CFLAGS)
libproto_a_CFLAGS = $(AM_CFLAGS) -Wno-missing-prototypes

$(PROTO_C) $(PROTO_H): %D%/generated.stamp
	@test -f $@ || { rm -f $<; $(MAKE) $(AM_MAKEFLAGS) $<; }
%D%/generated.stamp: $(addprefix $(srcdir)/%D%/,$(PROTO_FILES) methods.awk optional.awk)
	@for file in $(PROTO_FILES); do $(MKDIR_P) "$$(dirname %D%/for-c/$$file)" && \
	  $(AWK) -f $(srcdir)/%D%/optional.awk $(srcdir)/%D%/$$file >%D%/for-c/$$file || exit 1; done
	$(AM_V_GEN)$(MKDIR_P) %D% && $(PROTOC_C) --proto_path=%D%/for-c --c_out=%D% $(PROTO_FILES)
	@$(METHODS) -v output=header $(METHODS_FILES) >%D%/fsdpd/v1/methods.h
	@$(METHODS) -v output=source $(METHODS_FILES) >%D%/fsdpd/v1/methods.c
	@touch $@

# A C array without any tool that a minimal system lacks.
%D%/descriptors.c: $(addprefix $(srcdir)/%D%/,$(PROTO_FILES))
	$(AM_V_GEN)$(MKDIR_P) %D% && $(PROTOC) --proto_path=$(srcdir)/%D% --include_imports \
	  --descriptor_set_out=%D%/descriptors.bin $(PROTO_FILES)
	@{ echo '#include "proto/descriptors.h"'; echo 'const unsigned char proto_descriptors[] = {'; \
	  od -An -v -tu1 %D%/descriptors.bin | sed 's/  */,/g; s/^,//; s/$$/,/'; echo '};'; \
	  echo 'const unsigned long proto_descriptors_size = sizeof proto_descriptors;'; } > $@

BUILT_SOURCES += $(PROTO_C) $(PROTO_H) %D%/descriptors.c
CLEANFILES += $(PROTO_C) $(PROTO_H) %D%/descriptors.c %D%/descriptors.bin %D%/generated.stamp $(PROTO_COPIES)
# The API, for generators of clients.
nobase_dist_pkgdata_DATA = $(addprefix %D%/,$(PROTO_FILES))
EXTRA_DIST += $(addprefix %D%/,methods.awk optional.awk)
