/* What a job asks for its samples; see job_message.h. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "setup/decoder.h"
#include "spec/spec.h"
#include "worker/job_message.h"

/* Of a text, its bytes. The tokens are the caller's. */
static struct decoder_prompt read_prompt(const char *text, bool bytes)
{
    uint32_t *ids = NULL;
    size_t count = strlen(text);
    if (!bytes) {
        status_free(spec_read_tokens(text, &ids, &count)); /* spec_validate has read it */
    } else {
        ids = mem_alloc_array(count, sizeof *ids);
        for (size_t i = 0; i < count; i++) ids[i] = (unsigned char)text[i];
    }
    return (struct decoder_prompt){(const int32_t *)ids, (int64_t)count};
}

/* All of them, which are the caller's. */
static struct decoder_prompt read_stops(const Fsdpd__V1__TrainSampleSpec *sample)
{
    AUTO(buf_deinit) struct buf all = {0};
    for (size_t i = 0; i < sample->n_stop; i++)
        buf_printf(&all, "%s%s", i > 0 ? "," : "", sample->stop[i]);
    return read_prompt(buf_text(&all), false);
}

void job_prompts_init(struct job_settings *settings, const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__TrainSampleSpec *sample = spec->train->sample;
    if (spec->sample != NULL && spec->sample->reserve != NULL) {
        settings->job.reserve.context = (int64_t)spec->sample->reserve->context;
        settings->job.reserve.sequences = (int)spec->sample->reserve->sequences;
    }
    if (sample == NULL || sample->n_prompts == 0) return;
    bool bytes = spec->data->format == FSDPD__V1__DATA_FORMAT__DATA_FORMAT_TEXT;
    settings->prompts = mem_alloc_array(sample->n_prompts, sizeof *settings->prompts);
    for (size_t i = 0; i < sample->n_prompts; i++)
        settings->prompts[i] = read_prompt(sample->prompts[i], bytes);
    const struct decoder_prompt stops = read_stops(sample);
    settings->job.prompts =
        (struct train_prompts){.prompts = settings->prompts,
                               .count = (int)sample->n_prompts,
                               .every_steps = sample->every_steps,
                               .max_tokens = sample->max_tokens,
                               .temperature = sample->temperature,
                               .top_k = sample->top_k,
                               .top_p = sample->_top_p_case != 0 ? sample->top_p : 1,
                               .min_p = sample->min_p,
                               .repetition_penalty = sample->_repetition_penalty_case != 0
                                                         ? sample->repetition_penalty
                                                         : 1,
                               .seed = sample->seed,
                               .stops = stops.tokens,
                               .stop_count = (int)stops.count};
}

void job_prompts_deinit(struct job_settings *settings)
{
    for (int i = 0; i < settings->job.prompts.count; i++)
        free((int32_t *)settings->prompts[i].tokens);
    free(settings->prompts);
    free((int32_t *)settings->job.prompts.stops);
}
