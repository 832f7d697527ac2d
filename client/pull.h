/* What verify shares with pull. */
#ifndef FSDPD_CLIENT_PULL_H
#define FSDPD_CLIENT_PULL_H

#include "client.h"
#include "hf/hf.h"

/* The job's own config.json, and the family that it was planned with. The caller frees both. */
status_t pull_find_config(const struct client *client, struct session *session,
                          struct hf_family **family, char **config) FSDPD_MUST_USE;

/* "--checkpoint STEP" and "--max-shard-size BYTES". */
status_t pull_set_checkpoint(struct verb_options *options, const char *value);
status_t pull_set_max_shard_size(struct verb_options *options, const char *value);

#endif
