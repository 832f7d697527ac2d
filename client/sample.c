/* sample: continues tokens with the weights of a running job, between two of its steps. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "client.h"
#include "eval.h"
#include "exit.h"
#include "output.h"
#include "pull.h"
#include "report.h"
#include "spec/spec.h"

enum { PROMPT_MAX = 1 << 20 };

static status_t set_tokens(struct verb_options *options, const char *value)
{
    options->sample.tokens = value;
    return NULL;
}

static status_t set_prompt(struct verb_options *options, const char *value)
{
    if (value[0] == '\0') return status_new(STATUS_INVALID_ARGUMENT, "expected a text");
    options->sample.prompt = value;
    return NULL;
}

static status_t set_stop(struct verb_options *options, const char *value)
{
    options->sample.stop = value;
    return NULL;
}

static status_t set_max_tokens(struct verb_options *options, const char *value)
{
    return option_number(value, 1, PROMPT_MAX, &options->sample.max_tokens);
}

static status_t set_top_k(struct verb_options *options, const char *value)
{
    return option_number(value, 1, 1000000000, &options->sample.top_k);
}

static status_t set_seed(struct verb_options *options, const char *value)
{
    return option_number(value, 0, UINT32_MAX, &options->sample.seed);
}

static status_t real(const char *value, double *to)
{
    if (text_parse_f64(value, to) && *to >= 0 && *to <= 1e6) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "expected a number from 0 to 1e6, found '%s'",
                      value);
}

static status_t set_temperature(struct verb_options *options, const char *value)
{
    return real(value, &options->sample.temperature);
}

/* 0 would mean that it is not given. */
static status_t above_0(const char *value, double *to)
{
    TRY(real(value, to));
    if (*to > 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "expected a number above 0, found '%s'", value);
}

static status_t set_top_p(struct verb_options *options, const char *value)
{
    return above_0(value, &options->sample.top_p);
}

static status_t set_min_p(struct verb_options *options, const char *value)
{
    return real(value, &options->sample.min_p);
}

static status_t set_penalty(struct verb_options *options, const char *value)
{
    return above_0(value, &options->sample.repetition_penalty);
}

const struct verb_option sample_options[] = {
    {"tokens", 0, "N,N,...", "the prompt, as token ids", set_tokens},
    {"prompt", 0, "TEXT", "the prompt's bytes, for data.format text", set_prompt},
    {"max-tokens", 0, "N", "at most N tokens after the prompt; 64 by default", set_max_tokens},
    {"temperature", 0, "T", "of the draws; 0, the default: the most probable token",
     set_temperature},
    {"top-k", 0, "N", "draw from the N most probable tokens", set_top_k},
    {"top-p", 0, "P", "draw from the most probable tokens that have probability P", set_top_p},
    {"min-p", 0, "P", "leave out tokens below P times the largest probability", set_min_p},
    {"repetition-penalty", 0, "R", "of tokens that the sequence has; 1: none", set_penalty},
    {"stop", 0, "N,N,...", "token ids that end the sequence", set_stop},
    {"seed", 0, "N", "of the draws; 0 by default", set_seed},
    {"checkpoint", 0, "STEP", "the weights of this checkpoint, or of the latest one",
     pull_set_checkpoint},
    {0},
};

static status_t read_ids(const char *option, const char *text, uint32_t **ids, size_t *count)
{
    return status_wrap(spec_read_tokens(text, ids, count), "--%s", option);
}

static status_t read_prompt(const struct sample_options *options, Fsdpd__V1__Tokens *prompt)
{
    if ((options->tokens == NULL) == (options->prompt == NULL))
        return status_new(STATUS_INVALID_ARGUMENT, "expected either --tokens or --prompt");
    if (options->tokens != NULL)
        return read_ids("tokens", options->tokens, &prompt->tokens, &prompt->n_tokens);
    prompt->n_tokens = strlen(options->prompt);
    prompt->tokens = mem_alloc_array(prompt->n_tokens, sizeof *prompt->tokens);
    for (size_t i = 0; i < prompt->n_tokens; i++)
        prompt->tokens[i] = (unsigned char)options->prompt[i];
    return NULL;
}

static status_t fill(const struct sample_options *options, Fsdpd__V1__Sample *sample)
{
    TRY(read_prompt(options, sample->prompts[0]));
    if (options->stop != NULL) TRY(read_ids("stop", options->stop, &sample->stop, &sample->n_stop));
    sample->max_tokens = options->max_tokens > 0 ? options->max_tokens : (uint32_t)SAMPLE_TOKENS;
    sample->temperature = options->temperature;
    sample->top_k = options->top_k;
    sample->min_p = options->min_p;
    sample->seed = options->seed;
    sample->top_p = options->top_p;
    if (options->top_p > 0) sample->_top_p_case = FSDPD__V1__SAMPLE___TOP_P_TOP_P;
    sample->repetition_penalty = options->repetition_penalty;
    if (options->repetition_penalty > 0)
        sample->_repetition_penalty_case =
            FSDPD__V1__SAMPLE___REPETITION_PENALTY_REPETITION_PENALTY;
    return NULL;
}

static void add_ids(const Fsdpd__V1__Tokens *tokens, const char *between, bool first,
                    struct buf *out)
{
    for (size_t i = 0; i < tokens->n_tokens; i++)
        buf_printf(out, "%s%u", first && i == 0 ? "" : between, tokens->tokens[i]);
}

/* What arrives. */
struct sample_result {
    const struct client *client;
    size_t printed; /* tokens */
    bool ended;
};

/* With json there is one object, at the end. */
static void add_json(const Fsdpd__V1__Sampled *sampled, struct buf *out)
{
    buf_printf(out, "{\"step\": %llu, \"tokens\": [", (unsigned long long)sampled->step);
    if (sampled->n_sequences > 0) add_ids(sampled->sequences[0], ", ", true, out);
    buf_printf(out, "], \"seconds\": %.6g, \"memory_bytes\": %llu, \"held_bytes\": %llu}\n",
               sampled->seconds, (unsigned long long)sampled->memory_bytes,
               (unsigned long long)sampled->held_bytes);
}

static void add_drawn(struct sample_result *result, const Fsdpd__V1__Tokens *tokens,
                      struct buf *out)
{
    bool text = result->client->options.sample.prompt != NULL;
    if (!text) add_ids(tokens, ",", result->printed == 0, out);
    for (size_t i = 0; text && i < tokens->n_tokens; i++)
        buf_add_char(out, (char)tokens->tokens[i]);
    result->printed += tokens->n_tokens;
}

static status_t take_response(const ProtobufCMessage *message, void *user)
{
    const Fsdpd__V1__SampleJobResponse *response = (const void *)message;
    struct sample_result *result = user;
    bool json = result->client->options.format == FORMAT_JSON;
    struct buf text = {0};
    result->ended = response->sampled != NULL;
    if (!json && response->n_drawn > 0) add_drawn(result, response->drawn[0], &text);
    if (result->ended && json) add_json(response->sampled, &text);
    if (result->ended && !json) buf_add_char(&text, '\n');
    output_print(&text);
    return NULL;
}

void sample_print(const struct client *client, const Fsdpd__V1__Sampled *sampled)
{
    struct sample_result result = {.client = client};
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        add_json(sampled, &text);
    } else {
        if (sampled->n_sequences > 0) add_drawn(&result, sampled->sequences[0], &text);
        buf_add_char(&text, '\n');
    }
    output_print(&text);
}

static int sample_running(struct client *client, struct session *session,
                          const Fsdpd__V1__SampleJobRequest *request)
{
    struct sample_result result = {.client = client};
    status_t status = session_stream(session, &control_sample_job, &request->base,
                                     client->options.timeout_ms, take_response, &result);
    if (status == NULL && !result.ended)
        status = status_new(STATUS_INTERNAL, "the stream ended before the result");
    if (status == NULL) return EXIT_DONE;
    struct buf end = {0};
    if (result.printed > 0) buf_add_char(&end, '\n'); /* of the line that was begun */
    output_print(&end);
    return output_error(status);
}

/* A job that does not run, or a checkpoint: by a job of its own, as fsdpctl eval. */
static int sample_job(struct client *client, const Fsdpd__V1__SampleJobRequest *request)
{
    struct session *session;
    Fsdpd__V1__Job *job;
    int code;
    if (!client_open(client, &session, &code)) return code;
    status_t status = client_get_job(session, request->id, &job);
    if (status != NULL) {
        session_free(session);
        return output_error(status);
    }
    bool by_job = client->options.checkpoint || report_is_over(job->state) ||
                  job->state == FSDPD__V1__JOB_STATE__JOB_STATE_PAUSED;
    code = by_job ? eval_by_job(client, session, job) : sample_running(client, session, request);
    fsdpd__v1__job__free_unpacked(job, NULL);
    session_free(session);
    return code;
}

int verb_sample(struct client *client)
{
    Fsdpd__V1__SampleJobRequest request = FSDPD__V1__SAMPLE_JOB_REQUEST__INIT;
    Fsdpd__V1__Sample sample = FSDPD__V1__SAMPLE__INIT;
    Fsdpd__V1__Tokens prompt = FSDPD__V1__TOKENS__INIT, *prompts[] = {&prompt};
    sample.prompts = prompts;
    sample.n_prompts = 1;
    request.id = (char *)client->options.arguments[0];
    request.sample = &sample;
    request.bytes = client->options.sample.prompt != NULL;
    request.stream = client->options.format != FORMAT_JSON;
    status_t status = fill(&client->options.sample, &sample);
    int code = status == NULL ? sample_job(client, &request) : output_usage_error(status);
    free(prompt.tokens);
    free(sample.stop);
    return code;
}
