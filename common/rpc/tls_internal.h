/* Inside rpc/: the files of TLS, and gRPC's credentials made of them. */
#ifndef FSDPD_RPC_TLS_INTERNAL_H
#define FSDPD_RPC_TLS_INTERNAL_H

#include <grpc/grpc.h>

#include "rpc/tls.h"

/* The files' content; the private key is wiped when freed. */
struct rpc_pems {
    char *ca, *certificate, *key;
};
/*
 * Reads and checks the files; errors name the file: INVALID_ARGUMENT if one is missing or
 * malformed, or is not a server's (`server`) or a client's certificate; FAILED_PRECONDITION if the
 * certificate has expired or is not yet valid; PERMISSION_DENIED if every user may read the key.
 */
status_t rpc_pems_read(const struct rpc_tls_files *files, bool server,
                       struct rpc_pems *pems) FSDPD_MUST_USE;
void rpc_pems_deinit(struct rpc_pems *pems);

/* A server's certificate, which can be replaced while it serves: peers that connect later see the
 * new one. */
struct rpc_server_tls *rpc_server_tls_new(void);
void rpc_server_tls_free(struct rpc_server_tls *tls); /* after its gRPC server */
void rpc_server_tls_set(struct rpc_server_tls *tls, struct rpc_pems *pems); /* takes them */
grpc_server_credentials *rpc_server_tls_credentials(struct rpc_server_tls *tls);

grpc_channel_credentials *rpc_client_tls_credentials(const struct rpc_pems *pems);

#endif
