/* The one C++ call of common/rpc; used only by peer_server.c. */
#ifndef FSDPD_RPC_EXTERNAL_H
#define FSDPD_RPC_EXTERNAL_H

/* The name of a port without an address, and of its channel argument. */
#define RPC_EXTERNAL_PORT "external:fsdpd"

/* Hands a connected socket to the port; `handler` is what gRPC stored for it. */
void rpc_external_connect(void *handler, int fd);

#endif
