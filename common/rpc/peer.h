/*
 * Who is at the other end of a call, and what that allows.
 *
 * A Unix socket's peer is known from the kernel: the user and the groups of the process that
 * connected (SO_PEERCRED, SO_PEERGROUPS), which nobody can make up. A TLS peer is known from its
 * certificate: the URIs fsdpd://ROLE/NAME among its subject's alternative names, ROLE being user,
 * operator or worker. Of plaintext TCP nothing is known, so that everything is allowed to
 * everybody; it exists only where the operator has asked for it with a flag that says insecure.
 */
#ifndef FSDPD_RPC_PEER_H
#define FSDPD_RPC_PEER_H

#include <stdbool.h>
#include <sys/types.h>

/* What a peer may be; a set of bits. */
enum rpc_role {
    RPC_USER = 1,     /* submits jobs, sees all, changes its own */
    RPC_OPERATOR = 2, /* changes anybody's */
    RPC_WORKER = 4,   /* attaches and runs what it is given */
    RPC_ANY_ROLE = RPC_USER | RPC_OPERATOR | RPC_WORKER,
};

enum rpc_peer_kind { RPC_PEER_UNIX, RPC_PEER_TLS, RPC_PEER_INSECURE };

struct rpc_peer {
    enum rpc_peer_kind kind;
    /* Of a Unix peer the user's name, "uid:1234" if the system knows none; of a certificate NAME;
     * "anonymous" of plaintext TCP. A name of one kind means the same person as that name of
     * another. */
    const char *name;
    uid_t uid;      /* of Unix peers; else (uid_t)-1 */
    unsigned roles; /* 0: a certificate that names no identity of fsdpd */
};

/* "user", "user and worker" with `joint` "and", "no role". Caller frees. */
char *rpc_roles_text(unsigned roles, const char *joint);

/*
 * The identity in "fsdpd://ROLE/NAME": the role's bits (an operator is a user too), and where in
 * `uri` the name begins. 0 if it is no such URI. A name is 1 to 64 of letters, digits and "._-@",
 * and begins with a letter, a digit or "_".
 */
unsigned rpc_peer_parse_uri(const char *uri, const char **name);

#endif
