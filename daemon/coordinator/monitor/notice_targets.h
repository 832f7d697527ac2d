/*
 * To whom notices go, with the keys of webhooks, and what a webhook's request is. Signatures are as
 * of Standard Webhooks. Any thread.
 */
#ifndef FSDPD_COORDINATOR_NOTICE_TARGETS_H
#define FSDPD_COORDINATOR_NOTICE_TARGETS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "coordinator/core/settings.h"

struct notice_target {
    char *name;
    char **command; /* see notice_setting; NULL: a webhook */
    char *url, *ca_file;
    unsigned char *key;
    size_t key_size;
};

struct notice_targets {
    struct notice_target *items;
    int count;
};

/* Copies the settings and reads the keys of webhooks. The error names the setting and the file.
 * Free them with notice_targets_deinit, whether or not that succeeds. */
status_t notice_targets_read(const struct coordinator_options *options,
                             struct notice_targets *targets) FSDPD_MUST_USE;
void notice_targets_deinit(struct notice_targets *targets);

/* NULL if there is none of this name. */
const struct notice_target *notice_targets_find(const struct notice_targets *targets,
                                                const char *name);

/* The key of a secret as Standard Webhooks writes it, "whsec_" and base64 of 24 to 64 bytes. The
 * caller frees *key. */
status_t notice_key_parse(const char *secret, unsigned char **key, size_t *size) FSDPD_MUST_USE;

/* "v1,<base64>" of the webhook's request; the caller frees it. `seconds` is a Unix time. */
char *notice_signature(const struct notice_target *target, const char *id, int64_t seconds,
                       const char *payload);

/* Appends the request as a configuration of curl(1). */
void notice_request(const struct notice_target *target, const char *id, int64_t seconds,
                    const char *payload, int deadline_ms, struct buf *out);

#endif
