/* Inside rpc/: how peers are identified (rpc/peer.h). */
#ifndef FSDPD_RPC_PEER_INTERNAL_H
#define FSDPD_RPC_PEER_INTERNAL_H

#include <grpc/grpc.h>

#include "rpc/peer.h"

/*
 * The peer of an accepted socket. `name` stays NULL for a Unix peer: rpc_peer_unix_name looks it up
 * in the system's user database. False if the peer is gone.
 */
bool rpc_peer_of_socket(int fd, const struct rpc_operators *operators, struct rpc_peer *peer);
/* NULL if the database cannot be queried now, which is logged. A failed lookup does not mean that
 * there is no name: refuse the connection, so that the peer tries again rather than being taken for
 * another user. */
char *rpc_peer_unix_name(uid_t uid);

/* The peer of a TLS call. Returns the storage of peer->name, which the caller frees, or NULL. */
char *rpc_peer_of_call(grpc_call *call, struct rpc_peer *peer);

#endif
