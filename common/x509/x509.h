/*
 * Certificates: a small private certificate authority, and checks that report problems with TLS's
 * files before TLS does, in clearer words. OpenSSL's libcrypto does the work; gRPC links it too.
 * Keys are ECDSA on P-256, signatures SHA-256.
 *
 * Identities of peers are URIs among a certificate's subject alternative names, fsdpd://ROLE/NAME
 * (rpc/peer.h); servers have DNS names and addresses there, which clients compare with the address
 * they connect to. A certificate is for servers or for clients, never for both.
 */
#ifndef FSDPD_X509_X509_H
#define FSDPD_X509_X509_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

enum {
    X509_CA_DAYS = 3650,
    X509_DAYS = 365,
    X509_DAYS_MAX = 36500,
    X509_NAMES_MAX = 32,
};

/* Reads a PEM file of at most 1 MiB as text, without leaving a copy; the caller wipes a key when
 * done (x509_pair_deinit). INVALID_ARGUMENT if it contains NUL bytes. The caller frees *text. */
status_t x509_read_pem(const char *path, char **text) FSDPD_MUST_USE;

/* A certificate and its key, both as PEM. Free with x509_pair_deinit. */
struct x509_pair {
    char *certificate, *key;
};
void x509_pair_deinit(struct x509_pair *pair);

/* Makes a self-signed certificate authority that may sign leaves only. `name` is its common name.
 */
status_t x509_make_authority(const char *name, int days,
                             struct x509_pair *authority) FSDPD_MUST_USE;

/* The content of a new certificate. */
struct x509_request {
    const char *name;                  /* its common name */
    bool server;                       /* for servers; otherwise for clients */
    const char *uri;                   /* the identity; NULL: none */
    const char *hosts[X509_NAMES_MAX]; /* DNS names and addresses (IPv4, IPv6 without brackets) */
    int host_count;
    int days; /* at most the authority's own expiry */
};

/* INVALID_ARGUMENT names a host that is neither a name nor an address, or an invalid or mismatched
 * authority. */
status_t x509_issue(const struct x509_pair *authority, const struct x509_request *request,
                    struct x509_pair *issued) FSDPD_MUST_USE;

/* The content of a PEM file's first certificate. */
struct x509_facts {
    char *subject; /* "CN = node1" */
    char *issuer;
    char *names;                   /* "URI:fsdpd://worker/node1, DNS:node1"; "" if none */
    char *fingerprint;             /* SHA-256, "AB:CD:..." */
    char *serial;                  /* hexadecimal */
    int64_t not_before, not_after; /* Unix time, seconds */
    bool authority, server, client;
};
status_t x509_describe(const char *pem, struct x509_facts *facts) FSDPD_MUST_USE;
void x509_facts_deinit(struct x509_facts *facts);

/*
 * Whether TLS can use these: the certificate is valid now by the clock, the key belongs to it, and
 * `authorities` (PEM, one or more) are certificates. INVALID_ARGUMENT or FAILED_PRECONDITION give
 * the reason; the caller adds the file's name.
 */
status_t x509_check_certificate(const char *certificate) FSDPD_MUST_USE;
/* Whether it is for servers, or for clients: the peer would reject the other kind. */
status_t x509_check_use(const char *certificate, bool server) FSDPD_MUST_USE;
status_t x509_check_key(const char *certificate, const char *key) FSDPD_MUST_USE;
status_t x509_check_authorities(const char *authorities) FSDPD_MUST_USE;

#endif
