/* Token ids as text, and what they were continued with. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/spec.h"

status_t spec_read_tokens(const char *text, uint32_t **ids, size_t *count)
{
    *ids = mem_alloc_array(strlen(text) / 2 + 1, sizeof **ids);
    *count = 0;
    for (const char *at = text;; at++) {
        char *end;
        unsigned long long id = strtoull(at, &end, 10);
        if (*at < '0' || *at > '9' || id > INT32_MAX || (*end != '\0' && *end != ','))
            return status_new(STATUS_INVALID_ARGUMENT,
                              "expected token ids as in 5,17,3, found '%.80s'", text);
        (*ids)[(*count)++] = (uint32_t)id;
        at = end;
        if (*at == '\0') return NULL;
    }
}

void spec_add_sample(struct buf *out, const Fsdpd__V1__JobSpec *spec,
                     const Fsdpd__V1__Sampled *sampled, size_t i)
{
    const Fsdpd__V1__TrainSampleSpec *own = spec != NULL ? spec->train->sample : NULL;
    bool text = spec != NULL && spec->data->format == FSDPD__V1__DATA_FORMAT__DATA_FORMAT_TEXT;
    const Fsdpd__V1__Tokens *tokens = sampled->sequences[i];
    if (own != NULL && i < own->n_prompts) buf_add_text(out, own->prompts[i]);
    if (!text) buf_add_text(out, " ->");
    for (size_t k = 0; k < tokens->n_tokens; k++)
        if (text) buf_add_char(out, (char)tokens->tokens[k]);
        else buf_printf(out, "%s%u", k == 0 ? " " : ",", tokens->tokens[k]);
}
