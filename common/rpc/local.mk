# gRPC's C core on a uv loop. Whoever links it also links libx509.a libproto.a libbase.a,
# GRPC_LIBS, PROTOBUF_C_LIBS, UV_LIBS and CRYPTO_LIBS.
noinst_LIBRARIES += librpc.a
librpc_a_CPPFLAGS = $(AM_CPPFLAGS) $(GRPC_CFLAGS) $(PROTOBUF_C_CFLAGS) $(UV_CFLAGS)
librpc_a_SOURCES = \
  %D%/acceptor.c \
  %D%/address.c \
  %D%/client.c %D%/client.h \
  %D%/descriptors.c %D%/descriptors.h \
  %D%/door.c \
  %D%/health.c \
  %D%/internal.h \
  %D%/message.c \
  %D%/peer.c %D%/peer.h \
  %D%/reflection.c \
  %D%/rpc.h \
  %D%/runtime.c \
  %D%/server.c %D%/server.h \
  %D%/server_call.c \
  %D%/stream.c \
  %D%/tls.c %D%/tls.h
%D%/librpc_a-health.$(OBJEXT) %D%/librpc_a-reflection.$(OBJEXT): proto/generated.stamp

if HAVE_CHECK
RPC_TESTS = tests/unit/test_rpc tests/unit/test_rpc_ends tests/unit/test_rpc_server \
  tests/unit/test_rpc_parts tests/unit/test_rpc_peers
check_PROGRAMS += $(RPC_TESTS)
TESTS += $(RPC_TESTS)
RPC_TEST_CPPFLAGS = $(AM_CPPFLAGS) $(GRPC_CFLAGS) $(PROTOBUF_C_CFLAGS) $(UV_CFLAGS) $(CHECK_CFLAGS)

# The service that they talk to.
check_LIBRARIES += tests/unit/librpctest.a
tests_unit_librpctest_a_CPPFLAGS = $(RPC_TEST_CPPFLAGS)
tests_unit_librpctest_a_SOURCES = \
  tests/unit/test_rpc_notes.c tests/unit/test_rpc_notes.h \
  tests/unit/test_rpc_world.c tests/unit/test_rpc_world.h
RPC_TEST_LIBS = tests/unit/librpctest.a librpc.a libx509.a libproto.a libbase.a $(GRPC_LIBS) $(CRYPTO_LIBS) \
  $(PROTOBUF_C_LIBS) $(UV_LIBS) $(CHECK_LIBS)

tests_unit_test_rpc_SOURCES = tests/unit/test_rpc.c
tests_unit_test_rpc_CPPFLAGS = $(RPC_TEST_CPPFLAGS)
tests_unit_test_rpc_LDADD = $(RPC_TEST_LIBS)
tests_unit_test_rpc_ends_SOURCES = tests/unit/test_rpc_ends.c
tests_unit_test_rpc_ends_CPPFLAGS = $(RPC_TEST_CPPFLAGS)
tests_unit_test_rpc_ends_LDADD = $(RPC_TEST_LIBS)
tests_unit_test_rpc_server_SOURCES = tests/unit/test_rpc_server.c
tests_unit_test_rpc_server_CPPFLAGS = $(RPC_TEST_CPPFLAGS)
tests_unit_test_rpc_server_LDADD = $(RPC_TEST_LIBS)
tests_unit_test_rpc_parts_SOURCES = tests/unit/test_rpc_parts.c
tests_unit_test_rpc_parts_CPPFLAGS = $(RPC_TEST_CPPFLAGS)
tests_unit_test_rpc_parts_LDADD = $(RPC_TEST_LIBS)
tests_unit_test_rpc_peers_SOURCES = tests/unit/test_rpc_peers.c
tests_unit_test_rpc_peers_CPPFLAGS = $(RPC_TEST_CPPFLAGS)
tests_unit_test_rpc_peers_LDADD = $(RPC_TEST_LIBS)

tests/unit/librpctest_a-test_rpc_notes.$(OBJEXT) \
tests/unit/librpctest_a-test_rpc_world.$(OBJEXT) \
tests/unit/test_rpc-test_rpc.$(OBJEXT) \
tests/unit/test_rpc_ends-test_rpc_ends.$(OBJEXT) \
tests/unit/test_rpc_server-test_rpc_server.$(OBJEXT) \
tests/unit/test_rpc_parts-test_rpc_parts.$(OBJEXT) \
tests/unit/test_rpc_peers-test_rpc_peers.$(OBJEXT): proto/generated.stamp
endif
