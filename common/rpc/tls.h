/*
 * Mutual TLS: each side presents a certificate signed by an authority that the other trusts. It
 * takes three PEM files, given together or not at all.
 */
#ifndef FSDPD_RPC_TLS_H
#define FSDPD_RPC_TLS_H

#include <stdbool.h>
#include <stdint.h>

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

/* The files' content; the private key is wiped when freed. */
struct rpc_pems {
    char *ca, *certificate, *key;
    int64_t end; /* when the certificate expires: Unix time in seconds */
};
/*
 * Reads and checks the files, on any thread; errors name the file: INVALID_ARGUMENT if one is
 * missing or malformed, or is not a server's (`server`) or a client's certificate;
 * FAILED_PRECONDITION if the certificate has expired or is not yet valid; PERMISSION_DENIED if every
 * user may read the key.
 */
status_t rpc_pems_read(const struct rpc_tls_files *files, bool server,
                       struct rpc_pems *pems) FSDPD_MUST_USE;
void rpc_pems_deinit(struct rpc_pems *pems);

/*
 * The name NODE of a worker's certificate (fsdpd://worker/NODE); NULL if there is no certificate or
 * it names no worker. The caller frees it.
 */
char *rpc_tls_worker_name(const struct rpc_tls_files *files);

#endif
