/*
 * The role token: tokens of clients over HTTP, by the coordinator's API.
 *
 *     fsdpd token issue NAME [--role user|operator|observer] [--days N]    prints its secret, once
 *     fsdpd token issue [NAME] --job ID [--hours N]                        which sees only this job
 *     fsdpd token list
 *     fsdpd token revoke NAME                                              all tokens of the user
 */
#ifndef FSDPD_TOKEN_ROLE_H
#define FSDPD_TOKEN_ROLE_H

#include <stdbool.h>

#include "base/status.h"
#include "rpc/client.h"

enum { TOKEN_WORDS_MAX = 2, TOKEN_DAYS_MAX = 3650 };

struct token_role_options {
    const char *words[TOKEN_WORDS_MAX]; /* the action and its argument */
    int word_count;
    const char *role; /* "user", "operator" or "observer"; NULL: user, or observer with a job */
    const char *job;  /* NULL: not of one job */
    int days, hours;  /* both 0: the coordinator's default */
};

/* Checks that the words are an action with its argument. */
status_t token_role_check(const struct token_role_options *options) FSDPD_MUST_USE;

/* Runs the action at the coordinator of this address and prints the result on stdout. */
status_t token_role_run(const struct token_role_options *options, const char *address,
                        const struct rpc_channel_security *security, bool json) FSDPD_MUST_USE;

#endif
