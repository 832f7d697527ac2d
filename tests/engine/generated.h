/* For tests: continues prompts with the parameters of an executor, token by token. */
#ifndef FSDPD_TESTS_ENGINE_GENERATED_H
#define FSDPD_TESTS_ENGINE_GENERATED_H

#include "setup/decoder.h"

enum { GENERATED_MAX = 8 };

struct generated {
    int sequences, count; /* tokens to draw for each */
    struct decoder_prompt prompts[GENERATED_MAX];
    int64_t context, chunk; /* as in decoder_settings */
    bool holds;             /* likewise */
    const int32_t *forced;  /* (sequences, count): what is fed; NULL: each time the first of the
                             * largest logits */
    /* (sequences, count): the tokens fed; (sequences, count, vocabulary): the logits before each */
    int32_t *tokens;
    float *logits;
    /* Not NULL: (sequences, context, vocabulary), those after each token of a prompt but the last.
     * Every rank writes them, as each has the same. */
    float *prompt_logits;
    int64_t vocabulary;            /* then that of the model */
    int pieces;                    /* of the prompts, after which it ends; 0: it does not */
    struct decoder_bytes bytes;    /* as planned, */
    struct decoder_bytes measured; /* and without its executors */
    uint64_t allocated;            /* on the device, with its executors */
};

/* On every rank, between two steps; of the results those of rank 0 remain. */
status_t generated_make(struct executor *executor, struct generated *generated) FSDPD_MUST_USE;

#endif
