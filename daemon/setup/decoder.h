/*
 * Continues sequences of tokens with the parameters of an executor that trains, between its steps:
 * a plan of generation for pieces of prompts, and one for a token of each sequence, which share a
 * cache of keys and values. Parameters stay where they are and are gathered unit by unit for each
 * step or, where that fits, once.
 *
 * Every rank computes all sequences, with the same bits, so what a sequence gives depends neither
 * on the world nor on the other sequences. On the thread of the lender.
 */
#ifndef FSDPD_SETUP_DECODER_H
#define FSDPD_SETUP_DECODER_H

#include "runtime/executor.h"

struct decoder;

struct decoder_settings {
    struct executor *lender; /* settled; must not run while the decoder lives */
    /* As in the lender's graphs. */
    enum dtype compute_dtype;
    const enum dtype *parameter_dtypes, *module_dtypes;
    int sequences;
    int64_t context; /* tokens of a sequence, prompt and all that follows; at most the model's */
    int64_t chunk;   /* of a prompt in a step, at most `context`; 0: at most 64 */
    bool holds;      /* units are gathered once, if any are; takes memory for all of them */
    uint64_t reserved; /* bytes that are planned for it: it fits if it needs no more */
    /* Not NULL: decoder_prefill calls it with the logits after each token of a prompt but the last,
     * by position; they are valid during the call. Takes memory for the logits of a whole step. */
    void (*each)(void *user, int sequence, int64_t position, const float *logits);
    /* Not NULL: decoder_prefill calls it between two pieces of the prompts. *end, for which all
     * ranks must have the same: the rest is not read, and the decoder is only to be freed. */
    status_t (*between)(void *user, bool *end);
    void *user;
};

/* Bytes on the device, of one rank. */
struct decoder_bytes {
    uint64_t cache, held; /* of keys and values; of units that stay gathered */
    uint64_t all;         /* with these what the decoder allocates */
};

/*
 * Every rank, with the same settings. UNIMPLEMENTED for a model that cannot be continued
 * (graph_options.cache) and where units are offloaded to the host; RESOURCE_EXHAUSTED with figures
 * if the memory beside the lender's does not suffice.
 */
status_t decoder_new(const struct decoder_settings *settings,
                     struct decoder **decoder) FSDPD_MUST_USE;
void decoder_free(struct decoder *decoder); /* accepts NULL */

/* What such a decoder allocates beside an executor of `lender` on this device; settings->lender and
 * reserved are ignored. UNIMPLEMENTED as above. */
status_t decoder_measure(const struct decoder_settings *settings, struct device *device,
                         const struct plan *lender, struct decoder_bytes *bytes) FSDPD_MUST_USE;

struct decoder_bytes decoder_bytes(const struct decoder *decoder);

/* Tokens below the vocabulary, at least 1. */
struct decoder_prompt {
    const int32_t *tokens;
    int64_t count;
};

/* INVALID_ARGUMENT names the prompt that has no token, too many, or an unknown one. */
status_t decoder_check_prompts(const struct decoder *decoder,
                               const struct decoder_prompt *prompts) FSDPD_MUST_USE;

/* Every rank, once, with a prompt for each sequence: `logits` (sequences, vocabulary) become those
 * of the first new tokens. An error must end the group's work, as one of a step does. */
status_t decoder_prefill(struct decoder *decoder, const struct decoder_prompt *prompts,
                         float *logits) FSDPD_MUST_USE;

/* The same after one more token of each sequence; below 0: the sequence is over, and its logits
 * have no meaning from now on. */
status_t decoder_next(struct decoder *decoder, const int32_t *tokens, float *logits) FSDPD_MUST_USE;

#endif
