/*
 * The role cert: a small private certificate authority for users who have none.
 *
 *     fsdpd cert init DIR                            makes DIR/ca.crt and DIR/ca.key
 *     fsdpd cert issue DIR user|operator|worker NAME makes DIR/KIND-NAME.crt and .key
 *     fsdpd cert issue DIR server NAME [--host HOST]...
 *     fsdpd cert show FILE
 *
 * Keys have mode 0600. init never replaces files; issue does, because issuing again is how a
 * certificate is renewed.
 */
#ifndef FSDPD_CERT_ROLE_H
#define FSDPD_CERT_ROLE_H

#include "base/status.h"
#include "x509/x509.h"

enum { CERT_WORDS_MAX = 4 };

struct cert_role_options {
    const char *words[CERT_WORDS_MAX]; /* the action and its arguments */
    int word_count;
    const char *hosts[X509_NAMES_MAX];
    int host_count;
    int days;        /* 0: the action's default */
    const char *out; /* directory; NULL: the authority's */
};

/* Checks that the words are an action with its arguments. */
status_t cert_role_check(const struct cert_role_options *options) FSDPD_MUST_USE;

/* Runs the action and prints the result on stdout. */
status_t cert_role_run(const struct cert_role_options *options) FSDPD_MUST_USE;

#endif
