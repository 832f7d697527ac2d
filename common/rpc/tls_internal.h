/* Inside rpc/: the files of TLS, and gRPC's credentials made of them. */
#ifndef FSDPD_RPC_TLS_INTERNAL_H
#define FSDPD_RPC_TLS_INTERNAL_H

#include <grpc/grpc.h>

#include "rpc/tls.h"

/* A server's certificate, which can be replaced while it serves: peers that connect later see the
 * new one. */
struct rpc_server_tls *rpc_server_tls_new(void);
void rpc_server_tls_free(struct rpc_server_tls *tls); /* after its gRPC server */
void rpc_server_tls_set(struct rpc_server_tls *tls, struct rpc_pems *pems); /* takes them */
grpc_server_credentials *rpc_server_tls_credentials(struct rpc_server_tls *tls);

grpc_channel_credentials *rpc_client_tls_credentials(const struct rpc_pems *pems);

#endif
