/*
 * Rewrites a state_dict from the daemon's stream into files: in the format of Hugging Face's
 * transformers (its names, tied tensors left out, shards), in another dtype, or both; with
 * adapters, only these, or the model with their products added. Bytes pass through as they arrive;
 * only the header is kept, and of a module with an adapter its tensors until the product is added.
 */
#ifndef FSDPD_CLIENT_REWRITE_H
#define FSDPD_CLIENT_REWRITE_H

#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "fsdpd/v1/control.pb-c.h"
#include "hf/hf.h"
#include "hf/safetensors.h"

struct rewrite_options {
    bool bf16; /* rounded to nearest, ties to even; else f32 */
    const struct hf_family *family; /* use its names, leave tied tensors out; NULL: unchanged */
    uint64_t max_shard_bytes;       /* of tensors in a file; 0: one file */
    /* A model with adapters, unless they are tensors like others; with `merge` they are added to
     * the model, else only they are written, under peft's names. */
    const Fsdpd__V1__ModelSpec *adapted;
    bool merge;
    /* Tensors of one file more, which the caller writes behind the others. */
    const struct safetensors_entry *more;
    int more_count;
};

/* The receiver of the files, one after the other: `number` of `count`, from 1. */
struct rewrite_sink {
    status_t (*begin)(void *user, int number, int count);
    status_t (*write)(void *user, const void *bytes, size_t size);
    status_t (*end)(void *user);
    void *user;
};

struct rewrite;

/* `options` and `sink` must outlive it. */
struct rewrite *rewrite_new(const struct rewrite_options *options, const struct rewrite_sink *sink);
void rewrite_free(struct rewrite *rewrite); /* accepts NULL */

/* Takes the next bytes of the daemon's file. `total` and `step` are read with the first ones only.
 * DATA_LOSS if the bytes are not a state_dict, or are more than announced. */
status_t rewrite_add(struct rewrite *rewrite, const void *bytes, size_t size, uint64_t total,
                     uint64_t step) FSDPD_MUST_USE;

/* Checks that all bytes have arrived, and ends the last file. */
status_t rewrite_finish(struct rewrite *rewrite) FSDPD_MUST_USE;

uint64_t rewrite_received(const struct rewrite *rewrite);
uint64_t rewrite_total(const struct rewrite *rewrite); /* 0 before the first bytes */
uint64_t rewrite_step(const struct rewrite *rewrite);
int rewrite_file_count(const struct rewrite *rewrite); /* 0 before the header is read */

/* That of the stream; empty before it is read. */
const struct safetensors_header *rewrite_header(const struct rewrite *rewrite);

/* Appends model.safetensors.index.json for the files written. */
void rewrite_index(const struct rewrite *rewrite, struct buf *out);

/* ---- adapter.c ---- */

/* The adapters of a job (model.lora) in its state_dict: which tensors are theirs, and peft's
 * description of them. */

bool adapter_given(const Fsdpd__V1__ModelSpec *model);

/* Whether an adapter's file has the tensor: one of its matrices, or one of a module that was saved
 * whole. */
bool adapter_has(const Fsdpd__V1__LoraSpec *lora, const char *tensor);

/* The factor of the product of this rank that a module's adapter has. */
double adapter_scale(const Fsdpd__V1__LoraSpec *lora, const char *module, int64_t rank);

/* Whether matrices of modules are transposed, as those of GPT-2. */
bool adapter_transposed(const Fsdpd__V1__ModelSpec *model);

/* Appends adapter_config.json for a state_dict with this header; `architecture` may be "". */
void adapter_describe(const Fsdpd__V1__ModelSpec *model, const struct safetensors_header *header,
                      const char *architecture, struct buf *out);

#endif
