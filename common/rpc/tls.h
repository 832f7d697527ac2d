/*
 * Mutual TLS: each side shows a certificate that an authority of the other's has signed. Three PEM
 * files say it all; they are given together or not at all.
 */
#ifndef FSDPD_RPC_TLS_H
#define FSDPD_RPC_TLS_H

#include <stdbool.h>

#include "base/status.h"

struct rpc_tls_files {
    const char *ca;          /* certificates of the authorities that vouch for peers */
    const char *certificate; /* our own, and what leads from it to an authority of the peer's */
    const char *key; /* its private key, without a pass phrase; not readable for everybody */
    /* What messages call these three; it outlives whatever is made with the files. NULL: tls.ca,
     * tls.certificate and tls.key. */
    const char *const *names;
};

/* Whether any of them is given. */
bool rpc_tls_is_given(const struct rpc_tls_files *files);

/* When the certificate ends: Unix time in seconds; 0 if it cannot be read. */
long long rpc_tls_end(const struct rpc_tls_files *files);

#endif
