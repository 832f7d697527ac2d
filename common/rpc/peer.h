/*
 * The peer of a call, and its roles.
 *
 * The kernel identifies the peer of a Unix socket: the user and the groups of the process that
 * connected (SO_PEERCRED, SO_PEERGROUPS), which cannot be forged. A certificate identifies a TLS
 * peer: the URIs fsdpd://ROLE/NAME among its subject alternative names, where ROLE is user,
 * operator or worker. A plaintext TCP peer is unidentified and may do everything; plaintext exists
 * only where the operator enabled it with a flag named "insecure".
 */
#ifndef FSDPD_RPC_PEER_H
#define FSDPD_RPC_PEER_H

#include <stdbool.h>
#include <sys/types.h>

/* The roles of a peer; a set of bits. */
enum rpc_role {
    RPC_USER = 1,     /* submits jobs, sees all, changes its own */
    RPC_OPERATOR = 2, /* changes the jobs of all users */
    RPC_WORKER = 4,   /* attaches and runs assigned jobs */
    RPC_OBSERVER = 8, /* sees all jobs; only tokens have it, so no peer of gRPC */
    RPC_ANY_ROLE = RPC_USER | RPC_OPERATOR | RPC_WORKER,
};

/* The Unix group whose members have the role operator; `known` is false if there is none. */
struct rpc_operators {
    gid_t group;
    bool known;
};

enum rpc_peer_kind { RPC_PEER_UNIX, RPC_PEER_TLS, RPC_PEER_INSECURE, RPC_PEER_TOKEN };

struct rpc_peer {
    enum rpc_peer_kind kind;
    /* For a Unix peer the user's name, "uid:1234" if the system has none; for a certificate NAME;
     * "anonymous" for plaintext TCP; of a token, which is not gRPC's, its name. Equal names of
     * different kinds mean the same person. */
    const char *name;
    uid_t uid;      /* for Unix peers; otherwise (uid_t)-1 */
    unsigned roles; /* 0: a certificate without an fsdpd identity */
    const char *job; /* of a token for one job: it sees no other; NULL: all */
};

/* "user", "user and worker" with `joint` "and", "no role". Caller frees. */
char *rpc_roles_text(unsigned roles, const char *joint);

/*
 * Parses the identity "fsdpd://ROLE/NAME": returns the role's bits (an operator is also a user) and
 * where the name begins in `uri`; 0 if it is not such a URI. A name has 1 to 64 letters, digits and
 * "._-@", and begins with a letter, a digit or "_".
 */
unsigned rpc_peer_parse_uri(const char *uri, const char **name);

#endif
