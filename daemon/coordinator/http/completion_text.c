/* /v1/completions as JSON; see completion_text.h. Pure. */
#include "coordinator/http/completion_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "print/json.h"
#include "proto/message.h"

enum { PROMPTS_MAX = 64, STOPS_MAX = 64, LOGPROBS_MAX = 20, MAX_TOKENS = 16 };

/* The least logarithm in an answer: JSON has no infinity. */
#define LOGPROB_MIN (-9999.0)

/* ---- requests ---- */

static status_t wrong(const char *field, const char *expected)
{
    return status_new(STATUS_INVALID_ARGUMENT, "%s: expected %s", field, expected);
}

static status_t read_integer(const json_t *value, const char *field, int64_t least, int64_t most,
                             int64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < least ||
        json_integer_value(value) > most)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: expected an integer from %" PRId64 " to %" PRId64, field, least,
                          most);
    *out = json_integer_value(value);
    return NULL;
}

static status_t read_number(const json_t *value, const char *field, double *out)
{
    if (!json_is_number(value)) return wrong(field, "a number");
    *out = json_number_value(value);
    return NULL;
}

static bool is_ids(const json_t *value)
{
    return json_is_array(value) && json_is_integer(json_array_get(value, 0));
}

static status_t read_ids(const json_t *value, const char *field, uint32_t **ids, size_t *count)
{
    size_t size = json_array_size(value);
    *ids = mem_alloc_array(size + 1, sizeof **ids);
    for (size_t i = 0; i < size; i++) {
        int64_t id = 0;
        TRY(read_integer(json_array_get(value, i), field, 0, INT32_MAX, &id));
        (*ids)[(*count)++] = (uint32_t)id;
    }
    return NULL;
}

static status_t read_prompt(const json_t *value, Fsdpd__V1__Sample *sample)
{
    if (json_array_size(value) == 0) return wrong("prompt", "token ids, at least one");
    Fsdpd__V1__Tokens *prompt = sample->prompts[sample->n_prompts++] =
        MESSAGE_NEW(prompt, fsdpd__v1__tokens__init);
    return read_ids(value, "prompt", &prompt->tokens, &prompt->n_tokens);
}

static status_t read_prompts(const json_t *value, Fsdpd__V1__Sample *sample)
{
    const json_t *first = json_array_get(value, 0);
    if (json_is_string(value) || json_is_string(first))
        return status_new(
            STATUS_INVALID_ARGUMENT,
            "prompt: expected token ids, as in [5, 17, 3], found a text: fsdpd has no "
                          "tokenizer; fsdpd-sample --serve, of the Python client, takes texts");
    bool one = is_ids(value);
    size_t count = one ? 1 : json_array_size(value);
    if (!json_is_array(value) || count == 0 || count > PROMPTS_MAX ||
        (!one && !json_is_array(first)))
        return wrong("prompt", "a list of token ids, or a list of 1 to 64 such lists");
    sample->prompts = mem_alloc_array(count, sizeof *sample->prompts);
    for (size_t i = 0; i < count; i++)
        TRY(read_prompt(one ? value : json_array_get(value, i), sample));
    return NULL;
}

static status_t read_stop(const json_t *value, Fsdpd__V1__Sample *sample)
{
    json_t *list = json_is_integer(value) ? json_pack("[O]", value) : json_incref((json_t *)value);
    status_t status = NULL;
    if (json_is_string(list) || json_is_string(json_array_get(list, 0)))
        status = wrong("stop", "token ids: fsdpd has no tokenizer, so it cannot find a text");
    else if (!json_is_array(list) || json_array_size(list) > STOPS_MAX)
        status = wrong("stop", "a token id, or a list of at most 64");
    if (status == NULL) status = read_ids(list, "stop", &sample->stop, &sample->n_stop);
    json_decref(list);
    return status;
}

static status_t read_max_tokens(struct completion *completion, const json_t *value)
{
    int64_t count = 0;
    TRY(read_integer(value, "max_tokens", 0, INT32_MAX, &count));
    completion->sample->max_tokens = (uint32_t)count;
    return NULL;
}

static status_t read_logprobs(struct completion *completion, const json_t *value)
{
    int64_t count = 0;
    TRY(read_integer(value, "logprobs", 0, LOGPROBS_MAX, &count));
    completion->sample->_logprobs_case = FSDPD__V1__SAMPLE___LOGPROBS_LOGPROBS;
    completion->sample->logprobs = (uint32_t)count;
    return NULL;
}

static status_t read_seed(struct completion *completion, const json_t *value)
{
    int64_t seed = 0;
    TRY(read_integer(value, "seed", INT64_MIN, INT64_MAX, &seed));
    completion->has_seed = true;
    completion->sample->seed = (uint64_t)seed;
    return NULL;
}

static status_t read_model(struct completion *completion, const json_t *value)
{
    if (!json_is_string(value)) return wrong("model", "the id of a job");
    completion->model = mem_strdup(json_string_value(value));
    return NULL;
}

static status_t read_prompt_field(struct completion *completion, const json_t *value)
{
    return read_prompts(value, completion->sample);
}

static status_t read_stop_field(struct completion *completion, const json_t *value)
{
    return read_stop(value, completion->sample);
}

static status_t read_echo(struct completion *completion, const json_t *value)
{
    if (!json_is_boolean(value)) return wrong("echo", "true or false");
    completion->echo = json_is_true(value);
    return NULL;
}

static status_t read_temperature(struct completion *completion, const json_t *value)
{
    return read_number(value, "temperature", &completion->sample->temperature);
}

static status_t read_top_p(struct completion *completion, const json_t *value)
{
    completion->sample->_top_p_case = FSDPD__V1__SAMPLE___TOP_P_TOP_P;
    return read_number(value, "top_p", &completion->sample->top_p);
}

static status_t read_min_p(struct completion *completion, const json_t *value)
{
    return read_number(value, "min_p", &completion->sample->min_p);
}

static status_t read_top_k(struct completion *completion, const json_t *value)
{
    int64_t count = 0;
    TRY(read_integer(value, "top_k", 0, INT32_MAX, &count));
    completion->sample->top_k = (uint32_t)count;
    return NULL;
}

static status_t read_penalty(struct completion *completion, const json_t *value)
{
    completion->sample->_repetition_penalty_case =
        FSDPD__V1__SAMPLE___REPETITION_PENALTY_REPETITION_PENALTY;
    return read_number(value, "repetition_penalty", &completion->sample->repetition_penalty);
}

/* For whom a request is has no meaning here. */
static status_t ignore(struct completion *completion, const json_t *value)
{
    (void)completion, (void)value;
    return NULL;
}

/* A field without a reader may only have the value that means nothing. */
static const struct field {
    const char *name;
    status_t (*read)(struct completion *completion, const json_t *value);
    double only;
} fields[] = {
    {"model", read_model, 0},
    {"prompt", read_prompt_field, 0},
    {"max_tokens", read_max_tokens, 0},
    {"temperature", read_temperature, 0},
    {"top_p", read_top_p, 0},
    {"top_k", read_top_k, 0},
    {"min_p", read_min_p, 0},
    {"repetition_penalty", read_penalty, 0},
    {"seed", read_seed, 0},
    {"stop", read_stop_field, 0},
    {"echo", read_echo, 0},
    {"logprobs", read_logprobs, 0},
    {"user", ignore, 0},
    {"n", NULL, 1},
    {"best_of", NULL, 1},
    {"stream", NULL, 0},
    {"presence_penalty", NULL, 0},
    {"frequency_penalty", NULL, 0},
};

static status_t read_field(struct completion *completion, const char *name, const json_t *value)
{
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        const struct field *field = &fields[i];
        if (strcmp(name, field->name) != 0) continue;
        if (json_is_null(value)) return NULL; /* as if it was not there */
        if (field->read != NULL) return field->read(completion, value);
        double found = json_is_number(value) ? json_number_value(value) : json_is_true(value);
        if ((json_is_number(value) || json_is_boolean(value)) && found == field->only) return NULL;
        return status_new(STATUS_INVALID_ARGUMENT, "%s: fsdpd can only do %g", name, field->only);
    }
    return status_new(STATUS_INVALID_ARGUMENT, "%.80s: fsdpd does not know this field", name);
}

static status_t check(const struct completion *completion)
{
    Fsdpd__V1__Sample *sample = completion->sample;
    bool scored = sample->_logprobs_case != 0;
    if (completion->model == NULL) return wrong("model", "the id of a job");
    if (sample->n_prompts == 0) return wrong("prompt", "token ids");
    sample->score_prompts = completion->echo && scored;
    if (sample->max_tokens > 0 || sample->score_prompts) return NULL;
    return wrong("max_tokens", "at least 1, or echo and logprobs beside it");
}

status_t completion_read(const char *text, size_t size, struct completion *completion)
{
    json_error_t error;
    *completion =
        (struct completion){.sample = MESSAGE_NEW(completion->sample, fsdpd__v1__sample__init)};
    completion->sample->max_tokens = MAX_TOKENS;
    completion->sample->temperature = 1;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "the body is not JSON: line %d: %s", error.line,
                          error.text);
    status_t status = json_is_object(root) ? NULL : wrong("the body", "an object");
    const char *name;
    json_t *value;
    if (status == NULL)
        json_object_foreach(root, name, value) if (status == NULL) status =
            read_field(completion, name, value);
    json_decref(root);
    return status != NULL ? status : check(completion);
}

void completion_deinit(struct completion *completion)
{
    free(completion->model);
    if (completion->sample != NULL) message_free(completion->sample);
    *completion = (struct completion){0};
}

/* ---- responses ---- */

/* A choice: the prompt and what follows it. */
struct completion_choice {
    const Fsdpd__V1__Tokens *prompt, *made;
    const Fsdpd__V1__Scored *scored; /* NULL: not asked for */
    uint32_t alternatives;
    bool echo;
};

static size_t token_count(const struct completion_choice *choice)
{
    return (choice->echo ? choice->prompt->n_tokens : 0) + choice->made->n_tokens;
}

static uint32_t token_at(const struct completion_choice *choice, size_t i)
{
    size_t skipped = choice->echo ? choice->prompt->n_tokens : 0;
    return i < skipped ? choice->prompt->tokens[i] : choice->made->tokens[i - skipped];
}

/* As many digits as tell floats apart: a client compares them. */
static void add_logprob(struct buf *out, float value)
{
    if (isnan(value)) buf_add_text(out, "null");
    else buf_printf(out, "%.9g", value < LOGPROB_MIN ? LOGPROB_MIN : (double)value);
}

static void add_comma(struct buf *out, size_t i)
{
    if (i > 0) buf_add_text(out, ", ");
}

/* The most probable tokens in the place of score `i`, and the token itself, as that API has it. */
static void add_top(const struct completion_choice *choice, size_t i, uint32_t token,
                    struct buf *out)
{
    const Fsdpd__V1__Scored *scored = choice->scored;
    bool found = false;
    size_t written = 0;
    buf_add_char(out, '{');
    for (size_t k = i * choice->alternatives; k < (i + 1) * choice->alternatives; k++) {
        if (scored->top_tokens[k] > INT32_MAX) continue; /* beyond the vocabulary */
        found = found || scored->top_tokens[k] == token;
        add_comma(out, written++);
        buf_printf(out, "\"token_id:%" PRIu32 "\": ", scored->top_tokens[k]);
        add_logprob(out, scored->top_logprobs[k]);
    }
    if (!found) {
        add_comma(out, written);
        buf_printf(out, "\"token_id:%" PRIu32 "\": ", token);
        add_logprob(out, scored->logprobs[i]);
    }
    buf_add_char(out, '}');
}

static void add_logprobs(const struct completion_choice *choice, struct buf *out)
{
    size_t count = token_count(choice), without = choice->echo ? 1 : 0;
    buf_add_text(out, "{\"tokens\": [");
    for (size_t i = 0; i < count; i++) {
        add_comma(out, i);
        buf_printf(out, "\"token_id:%" PRIu32 "\"", token_at(choice, i));
    }
    buf_add_text(out, "], \"token_logprobs\": [");
    for (size_t i = 0; i < count; i++) {
        add_comma(out, i);
        if (i < without) buf_add_text(out, "null");
        else add_logprob(out, choice->scored->logprobs[i - without]);
    }
    buf_add_text(out, "], \"top_logprobs\": [");
    for (size_t i = 0; i < count; i++) {
        add_comma(out, i);
        if (i < without) buf_add_text(out, "null");
        else add_top(choice, i - without, token_at(choice, i), out);
    }
    buf_add_text(out, "], \"text_offset\": [");
    for (size_t i = 0; i < count; i++) buf_printf(out, "%s0", i > 0 ? ", " : "");
    buf_add_text(out, "]}");
}

static void add_choice(const struct completion_choice *choice, size_t index, uint32_t most,
                       struct buf *out)
{
    buf_printf(out, "{\"index\": %zu, \"text\": \"\", \"token_ids\": [", index);
    for (size_t i = 0; i < token_count(choice); i++) {
        add_comma(out, i);
        buf_printf(out, "%" PRIu32, token_at(choice, i));
    }
    buf_add_text(out, "], \"logprobs\": ");
    if (choice->scored != NULL) add_logprobs(choice, out);
    else buf_add_text(out, "null");
    buf_printf(out, ", \"finish_reason\": \"%s\"}",
               choice->made->n_tokens < most ? "stop" : "length");
}

/* Whether a worker's answer has as many scores as tokens. */
static bool fits(const struct completion_choice *choice)
{
    const Fsdpd__V1__Scored *scored = choice->scored;
    if (scored == NULL) return true;
    size_t count = token_count(choice) - (choice->echo ? 1 : 0);
    size_t top = count * choice->alternatives;
    return scored->n_logprobs == count && scored->n_top_tokens == top &&
           scored->n_top_logprobs == top;
}

status_t completion_write(const struct completion *completion, const Fsdpd__V1__Sampled *sampled,
                          uint64_t number, int64_t time, struct buf *out)
{
    const Fsdpd__V1__Sample *sample = completion->sample;
    bool scored = sample->_logprobs_case != 0;
    size_t count = sample->n_prompts, prompt_tokens = 0, made_tokens = 0;
    if (sampled->n_sequences != count || (scored && sampled->n_scored != count))
        return status_new(STATUS_INTERNAL, "%zu prompts have %zu answers", count,
                          sampled->n_sequences);
    buf_printf(out,
               "{\"id\": \"cmpl-%" PRIu64 "\", \"object\": \"text_completion\", "
               "\"created\": %" PRId64 ", \"model\": ",
               number, time);
    json_add_string(out, completion->model);
    buf_printf(out, ", \"step\": %" PRIu64 ", \"choices\": [", sampled->step);
    for (size_t i = 0; i < count; i++) {
        const struct completion_choice choice = {.prompt = sample->prompts[i],
                                                 .made = sampled->sequences[i],
                                                 .scored = scored ? sampled->scored[i] : NULL,
                                                 .alternatives = sample->logprobs,
                                                 .echo = completion->echo};
        if (!fits(&choice))
            return status_new(STATUS_INTERNAL, "sequence %zu has other scores than tokens", i);
        prompt_tokens += choice.prompt->n_tokens;
        made_tokens += choice.made->n_tokens;
        add_comma(out, i);
        add_choice(&choice, i, sample->max_tokens, out);
    }
    buf_printf(out,
               "], \"usage\": {\"prompt_tokens\": %zu, \"completion_tokens\": %zu, "
               "\"total_tokens\": %zu}}\n",
               prompt_tokens, made_tokens, prompt_tokens + made_tokens);
    return NULL;
}
