/*
 * Requests and responses of /v1/completions as JSON, in the form of OpenAI's API, with token ids
 * instead of text: the daemon has no tokenizer. Pure, and fuzzed.
 *
 * A token's text is "token_id:17", where that API has texts of tokens; `token_ids` of a choice has
 * the numbers, and `text` is empty.
 */
#ifndef FSDPD_COORDINATOR_COMPLETION_TEXT_H
#define FSDPD_COORDINATOR_COMPLETION_TEXT_H

#include "base/buf.h"
#include "base/status.h"
#include "fsdpd/v1/job.pb-c.h"

struct completion {
    char *model; /* the id of a job */
    Fsdpd__V1__Sample *sample;
    bool echo;     /* the prompts are in the answer, too */
    bool has_seed; /* otherwise the caller chooses one */
};

/* INVALID_ARGUMENT names the field. Free with completion_deinit in any case. */
status_t completion_read(const char *text, size_t size,
                         struct completion *completion) FSDPD_MUST_USE;
void completion_deinit(struct completion *completion);

/* Appends the response. `number` makes its id; `time`: Unix, in seconds. INTERNAL if `sampled` is
 * not an answer to this request. */
status_t completion_write(const struct completion *completion, const Fsdpd__V1__Sampled *sampled,
                          uint64_t number, int64_t time, struct buf *out) FSDPD_MUST_USE;

#endif
