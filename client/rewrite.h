/*
 * A state_dict on its way from the daemon's stream into files: as Hugging Face's transformers have
 * it (names, tied tensors left out, shards), in another dtype, or both. Bytes pass through as they
 * come; nothing but the header is kept.
 */
#ifndef FSDPD_CLIENT_REWRITE_H
#define FSDPD_CLIENT_REWRITE_H

#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "hf/hf.h"

struct rewrite_options {
    bool bf16; /* rounded to nearest, ties to even; else f32 */
    bool hf;   /* with names and ties of `type` */
    enum hf_type type;
    bool tied;
    uint64_t max_shard_bytes; /* of a file's tensors; 0: all in one */
    const char *job;          /* for the metadata, unless `hf` */
};

/* Where files go: one after the other, `number` of `count`, from 1. */
struct rewrite_sink {
    status_t (*begin)(void *user, int number, int count);
    status_t (*write)(void *user, const void *bytes, size_t size);
    status_t (*end)(void *user);
    void *user;
};

struct rewrite;

/* Both must outlive it. */
struct rewrite *rewrite_new(const struct rewrite_options *options, const struct rewrite_sink *sink);
void rewrite_free(struct rewrite *rewrite); /* accepts NULL */

/* The next bytes of the daemon's file. `total` and `step` count with the first ones. DATA_LOSS if
 * they are no state_dict, or more than was announced. */
status_t rewrite_add(struct rewrite *rewrite, const void *bytes, size_t size, uint64_t total,
                     uint64_t step) FSDPD_MUST_USE;

/* Checks that all came, and ends the last file. */
status_t rewrite_finish(struct rewrite *rewrite) FSDPD_MUST_USE;

uint64_t rewrite_received(const struct rewrite *rewrite);
uint64_t rewrite_total(const struct rewrite *rewrite); /* 0 before the first bytes */
uint64_t rewrite_step(const struct rewrite *rewrite);
int rewrite_file_count(const struct rewrite *rewrite); /* 0 before the header is read */

/* model.safetensors.index.json of what was written. */
void rewrite_index(const struct rewrite *rewrite, struct buf *out);

#endif
