# gRPC's C core on a uv loop. Programs that link it also link libx509.a libproto.a libbase.a,
# GRPC_LIBS, PROTOBUF_C_LIBS, UV_LIBS and CRYPTO_LIBS.
noinst_LIBRARIES += librpc.a
librpc_a_CPPFLAGS = $(AM_CPPFLAGS) $(GRPC_CFLAGS) $(PROTOBUF_C_CFLAGS) $(UV_CFLAGS)
librpc_a_SOURCES = \
  %D%/acceptor.c \
  %D%/address.c %D%/address.h \
  %D%/client.c %D%/client.h %D%/client_internal.h \
  %D%/descriptors.c %D%/descriptors.h \
  %D%/details.c \
  %D%/peer_server.c \
  %D%/external.cc %D%/external.h \
  %D%/health.c \
  %D%/lobby.c %D%/lobby.h \
  %D%/message.c %D%/message.h \
  %D%/peer.c %D%/peer.h %D%/peer_internal.h \
  %D%/reflection.c \
  %D%/rpc.h \
  %D%/runtime.c %D%/runtime.h \
  %D%/server.c %D%/server.h %D%/server_internal.h \
  %D%/server_call.c \
  %D%/stream.c \
  %D%/tls.c %D%/tls.h %D%/tls_internal.h
%D%/librpc_a-health.$(OBJEXT) %D%/librpc_a-reflection.$(OBJEXT): proto/generated.stamp

if HAVE_CHECK
RPC_TESTS = tests/unit/test_rpc tests/unit/test_rpc_ends tests/unit/test_rpc_server tests/unit/test_rpc_parts \
  tests/unit/test_rpc_peers
check_PROGRAMS += $(RPC_TESTS)
TESTS += $(RPC_TESTS)
$(RPC_TESTS): private LDADD = $(RPC_TEST_LIBS)
$(RPC_TESTS): $(filter %.a,$(RPC_TEST_LIBS))

# The service that they talk to.
check_LIBRARIES += tests/unit/librpctest.a
tests_unit_librpctest_a_SOURCES = \
  tests/unit/test_rpc_notes.c tests/unit/test_rpc_notes.h \
  tests/unit/test_rpc_world.c tests/unit/test_rpc_world.h
RPC_TEST_LIBS = tests/unit/librpctest.a librpc.a libx509.a libproto.a libbase.a $(GRPC_LIBS) $(CRYPTO_LIBS) \
  $(PROTOBUF_C_LIBS) $(UV_LIBS) $(TEST_LIBS)
endif
