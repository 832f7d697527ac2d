/*
 * Inside train/: chooses the next token of a sequence from its logits. Pure: what is drawn depends
 * on the settings, the logits, and the place in the sequence, not on what was drawn elsewhere.
 */
#ifndef FSDPD_TRAIN_DRAW_H
#define FSDPD_TRAIN_DRAW_H

#include "setup/session.h"

/* INVALID_ARGUMENT names the setting that is out of its range. */
status_t draw_check(const struct train_draw *settings) FSDPD_MUST_USE;

/*
 * The token of sequence `sequence` at `position`, whose earlier tokens are `seen`. In this order,
 * as transformers does it: the repetition penalty, the temperature, top_k, top_p, min_p. With the
 * temperature 0, the first of the largest. A logit of NaN is never drawn. Changes the logits.
 */
int32_t draw_token(const struct train_draw *settings, float *logits, int64_t count,
                   const int32_t *seen, int64_t seen_count, int sequence, int64_t position);

/*
 * The log-probability of `token` by these logits, and the `alternatives` most probable tokens with
 * theirs, the first of equals first. Beyond the vocabulary an alternative is -1.
 */
float draw_score(const float *logits, int64_t count, int32_t token, int alternatives,
                 int32_t *top_tokens, float *top_logprobs);

#endif
