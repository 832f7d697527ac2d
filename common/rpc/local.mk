# gRPC's C core on a uv loop. Whoever links it also links libproto.a libbase.a, GRPC_LIBS,
# PROTOBUF_C_LIBS and UV_LIBS.
noinst_LIBRARIES += librpc.a
librpc_a_CPPFLAGS = $(AM_CPPFLAGS) $(GRPC_CFLAGS) $(PROTOBUF_C_CFLAGS) $(UV_CFLAGS)
librpc_a_SOURCES = \
  %D%/address.c \
  %D%/client.c %D%/client.h \
  %D%/descriptors.c %D%/descriptors.h \
  %D%/health.c \
  %D%/internal.h \
  %D%/message.c \
  %D%/reflection.c \
  %D%/rpc.h \
  %D%/runtime.c \
  %D%/server.c %D%/server.h \
  %D%/server_call.c \
  %D%/stream.c
%D%/librpc_a-health.$(OBJEXT) %D%/librpc_a-reflection.$(OBJEXT): proto/generated.stamp

if HAVE_CHECK
check_PROGRAMS += tests/unit/test_rpc
TESTS += tests/unit/test_rpc
RPC_TEST_WORLD = tests/unit/test_rpc_world.c tests/unit/test_rpc_world.h
RPC_TEST_CPPFLAGS = $(AM_CPPFLAGS) $(GRPC_CFLAGS) $(PROTOBUF_C_CFLAGS) $(UV_CFLAGS) $(CHECK_CFLAGS)
RPC_TEST_LIBS = librpc.a libproto.a libbase.a $(GRPC_LIBS) $(PROTOBUF_C_LIBS) $(UV_LIBS) \
  $(CHECK_LIBS)
tests_unit_test_rpc_SOURCES = tests/unit/test_rpc.c $(RPC_TEST_WORLD)
tests_unit_test_rpc_CPPFLAGS = $(RPC_TEST_CPPFLAGS)
tests_unit_test_rpc_LDADD = $(RPC_TEST_LIBS)
endif
