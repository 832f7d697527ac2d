/* See generated.h. */
#include "generated.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static int32_t largest(const float *logits, int64_t count)
{
    int32_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = (int32_t)i;
    return best;
}

static void keep(void *user, int sequence, int64_t position, const float *logits)
{
    struct generated *generated = user;
    int64_t at = sequence * generated->context + position;
    memcpy(generated->prompt_logits + at * generated->vocabulary, logits,
           (size_t)generated->vocabulary * sizeof *logits);
}

static status_t count_piece(void *user, bool *end)
{
    struct generated *generated = user;
    *end = --generated->pieces == 0;
    return NULL;
}

static status_t make(struct decoder *decoder, int64_t vocabulary, bool keeps,
                     struct generated *generated)
{
    int sequences = generated->sequences, count = generated->count;
    int32_t tokens[GENERATED_MAX];
    AUTO_FREE float *logits = mem_alloc_array((size_t)(sequences * vocabulary), sizeof *logits);
    bool ends = generated->pieces > 0;
    TRY(decoder_prefill(decoder, generated->prompts, logits));
    for (int i = 0; i < count && !ends; i++) {
        for (int s = 0; s < sequences; s++) {
            int at = s * count + i;
            const float *own = logits + s * vocabulary;
            tokens[s] =
                generated->forced != NULL ? generated->forced[at] : largest(own, vocabulary);
            if (!keeps) continue;
            generated->tokens[at] = tokens[s];
            memcpy(generated->logits + at * vocabulary, own, (size_t)vocabulary * sizeof *own);
        }
        if (i + 1 < count) TRY(decoder_next(decoder, tokens, logits));
    }
    return NULL;
}

status_t generated_make(struct executor *executor, struct generated *generated)
{
    const struct plan *plan = executor_plan(executor);
    AUTO_FREE enum dtype *parameters = NULL;
    AUTO_FREE enum dtype *modules = NULL;
    units_find_dtypes(plan->units, plan->model, plan->options.gathered_dtype, &parameters,
                      &modules);
    const struct decoder_settings settings = {.lender = executor,
                                              .compute_dtype = plan->options.gathered_dtype,
                                              .parameter_dtypes = parameters,
                                              .module_dtypes = modules,
                                              .sequences = generated->sequences,
                                              .context = generated->context,
                                              .chunk = generated->chunk,
                                              .holds = generated->holds,
                                              .each =
                                                  generated->prompt_logits != NULL ? keep : NULL,
                                              .between = generated->pieces > 0 ? count_piece : NULL,
                                              .user = generated};
    struct decoder *decoder = NULL;
    TRY(executor_settle(executor));
    TRY(decoder_new(&settings, &decoder));
    bool keeps = plan->options.rank == 0;
    struct decoder_bytes measured;
    uint64_t before = device_allocated_bytes(executor_device(executor));
    status_t status = decoder_measure(&settings, executor_device(executor), plan, &measured);
    if (keeps) generated->bytes = decoder_bytes(decoder);
    if (keeps && status == NULL) generated->measured = measured;
    if (status == NULL) status = make(decoder, plan->model->vocabulary, keeps, generated);
    if (keeps && status == NULL)
        generated->allocated = device_allocated_bytes(executor_device(executor)) - before;
    decoder_free(decoder);
    return status;
}
