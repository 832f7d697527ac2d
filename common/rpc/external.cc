/*
 * Connections that we accept ourselves, for a gRPC server with TLS. The C core can take a connected
 * socket with credentials only through the interface that gRPC's C++ library uses for its external
 * connection acceptors: a port whose name begins with "external:", and an object that the core
 * stores where a channel argument of that name points. This is that object's class, as the core
 * (1.51) declares it. It needs the core's name: of a class of this file alone the compiler knows
 * that nothing is derived from it.
 */
extern "C" {
#include "rpc/external.h"
}

struct grpc_byte_buffer;

namespace grpc_core
{

class TcpServerFdHandler
{
  public:
    virtual ~TcpServerFdHandler() = default;
    virtual void Handle(int listener_fd, int fd, grpc_byte_buffer *pending_read) = 0;
};

} // namespace grpc_core

extern "C" void rpc_external_connect(void *handler, int fd)
{
    static_cast<grpc_core::TcpServerFdHandler *>(handler)->Handle(-1, fd, nullptr);
}
