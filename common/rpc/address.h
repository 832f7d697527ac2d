/* Normalised addresses (rpc/rpc.h): their parts, and listening on them. */
#ifndef FSDPD_RPC_ADDRESS_H
#define FSDPD_RPC_ADDRESS_H

#include "rpc/rpc.h"

/* The path of a normalised Unix address, or NULL for a TCP address. */
const char *rpc_address_unix_path(const char *normal);

/* Host (without brackets) and port of a normalised TCP address; the caller frees *host. */
void rpc_address_split(const char *normal, char **host, int *port);

/* A normalised address as the target of a gRPC channel. Caller frees. */
char *rpc_address_target(const char *normal);

/* The listen backlog. */
enum { RPC_BACKLOG = 1024 };

/*
 * Sockets listening at a normalised TCP address, at most `most`: a name may resolve to several
 * addresses. UNAVAILABLE gives the reason for a failure. Port 0 picks a port. *port may be NULL.
 */
status_t rpc_address_listen(const char *normal, int *fds, int most, int *count,
                            int *port) FSDPD_MUST_USE;

#endif
