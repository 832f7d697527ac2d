/*
 * Mutual TLS: each side presents a certificate signed by an authority that the other trusts. It
 * takes three PEM files, given together or not at all.
 */
#ifndef FSDPD_RPC_TLS_H
#define FSDPD_RPC_TLS_H

#include <stdbool.h>

#include "base/status.h"

struct rpc_tls_files {
    const char *ca;          /* certificates of the trusted authorities */
    const char *certificate; /* our own certificate and its chain up to an authority that the peer
                              * trusts */
    const char *key;         /* its private key, without a passphrase; not readable by all users */
    /* The files' names in messages; must outlive everything made with the files. NULL: tls.ca,
     * tls.certificate and tls.key. */
    const char *const *names;
};

/* Whether any of them is given. */
bool rpc_tls_is_given(const struct rpc_tls_files *files);

/* When the certificate expires: Unix time in seconds; 0 if it cannot be read. */
long long rpc_tls_end(const struct rpc_tls_files *files);

/*
 * The name NODE of a worker's certificate (fsdpd://worker/NODE); NULL if there is no certificate or
 * it names no worker. The caller frees it.
 */
char *rpc_tls_worker_name(const struct rpc_tls_files *files);

#endif
