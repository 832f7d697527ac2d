# The API: generated C for the messages, and the descriptor set that reflection serves.
PROTO_FILES = fsdpd/v1/control.proto fsdpd/v1/worker.proto \
  grpc/health/v1/health.proto grpc/reflection/v1alpha/reflection.proto
PROTO_C = $(PROTO_FILES:%.proto=%D%/%.pb-c.c)
PROTO_H = $(PROTO_FILES:%.proto=%D%/%.pb-c.h)

noinst_LIBRARIES += libproto.a
nodist_libproto_a_SOURCES = \
  %D%/fsdpd/v1/control.pb-c.c %D%/fsdpd/v1/control.pb-c.h \
  %D%/fsdpd/v1/worker.pb-c.c %D%/fsdpd/v1/worker.pb-c.h \
  %D%/grpc/health/v1/health.pb-c.c %D%/grpc/health/v1/health.pb-c.h \
  %D%/grpc/reflection/v1alpha/reflection.pb-c.c %D%/grpc/reflection/v1alpha/reflection.pb-c.h \
  %D%/descriptors.c
libproto_a_SOURCES = %D%/descriptors.h
libproto_a_CFLAGS = $(AM_CFLAGS) -Wno-missing-prototypes

$(PROTO_C) $(PROTO_H): %D%/generated.stamp
	@test -f $@ || { rm -f $<; $(MAKE) $(AM_MAKEFLAGS) $<; }
%D%/generated.stamp: $(addprefix $(srcdir)/%D%/,$(PROTO_FILES))
	$(AM_V_GEN)$(MKDIR_P) %D% && $(PROTOC_C) --proto_path=$(srcdir)/%D% --c_out=%D% $(PROTO_FILES)
	@touch $@

# A C array without any tool that a minimal system lacks.
%D%/descriptors.c: $(addprefix $(srcdir)/%D%/,$(PROTO_FILES))
	$(AM_V_GEN)$(MKDIR_P) %D% && $(PROTOC) --proto_path=$(srcdir)/%D% --include_imports \
	  --descriptor_set_out=%D%/descriptors.bin $(PROTO_FILES)
	@{ echo '#include "proto/descriptors.h"'; echo 'const unsigned char proto_descriptors[] = {'; \
	  od -An -v -tu1 %D%/descriptors.bin | sed 's/  */,/g; s/^,//; s/$$/,/'; echo '};'; \
	  echo 'const unsigned long proto_descriptors_size = sizeof proto_descriptors;'; } > $@

BUILT_SOURCES += $(PROTO_C) $(PROTO_H) %D%/descriptors.c
CLEANFILES += $(PROTO_C) $(PROTO_H) %D%/descriptors.c %D%/descriptors.bin %D%/generated.stamp
EXTRA_DIST += $(addprefix %D%/,$(PROTO_FILES))
