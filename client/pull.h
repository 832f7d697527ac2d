/* What verify shares with pull. */
#ifndef FSDPD_CLIENT_PULL_H
#define FSDPD_CLIENT_PULL_H

#include "client.h"
#include "hf/hf.h"

#include "rewrite.h"

/* What is known of a job whose weights become a directory; free it with pulled_deinit. */
struct pulled {
    Fsdpd__V1__Job *job;
    struct hf_family *family; /* that it was planned with, and */
    char *config;             /* its own config.json; NULL: its model is a file */
};

/* Reads it, and fills in `options` for the directory: a model of transformers, with the adapters
 * added if it has any, or, with `peft`, only these. */
status_t pull_find_job(const struct client *client, struct session *session, bool peft,
                       struct pulled *pulled, struct rewrite_options *options) FSDPD_MUST_USE;
void pulled_deinit(struct pulled *pulled);

/* Appends the text of adapter_config.json. */
void pull_describe_adapter(const struct pulled *pulled, const struct rewrite *rewrite,
                           struct buf *out);

/* "--checkpoint STEP" and "--max-shard-size BYTES". */
status_t pull_set_checkpoint(struct verb_options *options, const char *value);
status_t pull_set_max_shard_size(struct verb_options *options, const char *value);

#endif
