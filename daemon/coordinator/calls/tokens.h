/*
 * Tokens, with which clients over HTTP act as a user: issued, listed and revoked by operators. The
 * store has the SHA-256 of each; its secret is shown once, in the answer to IssueToken. What a
 * token's owner may do is what the user of its name may do over gRPC (access.h).
 */
#ifndef FSDPD_COORDINATOR_TOKENS_H
#define FSDPD_COORDINATOR_TOKENS_H

#include "coordinator/core/internal.h"

/* Handlers; the service is the coordinator. */
void tokens_issue(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void tokens_list(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void tokens_revoke(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/*
 * Finds whose secret this is: *peer gets the roles, and a name and a job that the caller frees.
 * UNAUTHENTICATED without saying why: it is unknown, revoked or expired. DATA_LOSS if its record is
 * damaged.
 */
status_t tokens_identify(struct coordinator *c, const char *secret,
                         struct rpc_peer *peer) FSDPD_MUST_USE;

#endif
