/*
 * The role cert: a small private certificate authority for people who have none.
 *
 *     fsdpd cert init DIR                            makes DIR/ca.crt and DIR/ca.key
 *     fsdpd cert issue DIR user|operator|worker NAME makes DIR/KIND-NAME.crt and .key
 *     fsdpd cert issue DIR server NAME [--host HOST]...
 *     fsdpd cert show FILE
 *
 * Keys have mode 0600. Nothing that is there is replaced, but for what is issued again: that is how
 * a certificate is renewed.
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
    int days;        /* 0: the default of the action */
    const char *out; /* directory; NULL: the authority's */
};

/* Whether the words are an action with what it needs. */
status_t cert_role_check(const struct cert_role_options *options) FSDPD_MUST_USE;

/* Does it, and says on stdout what it made. */
status_t cert_role_run(const struct cert_role_options *options) FSDPD_MUST_USE;

#endif
