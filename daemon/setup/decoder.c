/*
 * Continues sequences; see decoder.h. The decoder owns its graphs, plans and executors; the one for
 * single tokens owns the cache, which it lends to the other.
 *
 * Rows of a step that have no token take the position of the sequence's next one, which then writes
 * over them, also where a layer keeps its window only. A sequence of `context` tokens ends with one
 * that is not read any more.
 */
#include "setup/decoder.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

enum { CHUNK = 64, ROWS_WITH_LOGITS = 256 };

/* One of the two programs. */
struct decoder_program {
    int64_t time; /* rows of a sequence in a step */
    struct graph *graph;
    struct device_graph *lowered;
    struct plan *plan;
    struct executor *executor;
    int32_t *tokens, *targets, *starts; /* (sequences, time) */
    const void *logits;                 /* of the last step */
};

struct decoder {
    struct decoder_settings settings;
    const struct plan *lender;
    const struct model *model;
    struct device *device; /* the lender's */
    struct decoder_program prefill, step;
    int64_t chunk;    /* rows of a sequence in a step of the prefill */
    int64_t *lengths; /* by sequence: tokens in the cache; -1: it is over */
    float *row;       /* logits, for settings.each */
};

static int64_t vocabulary_of(const struct decoder *decoder)
{
    return decoder->model->class_count;
}

static status_t build_program(const struct decoder *decoder, enum plan_lent lent, int64_t time,
                              struct decoder_program *program)
{
    const struct decoder_settings *settings = &decoder->settings;
    const struct plan *lender = decoder->lender;
    const struct graph_options options = {.batch_size = settings->sequences,
                                          .time = time,
                                          .cache = settings->context,
                                          .every_row = settings->each != NULL && lent == LENT_CACHE,
                                          .cache_rows = decoder->chunk,
                                          .compute_dtype = settings->compute_dtype,
                                          .parameter_dtypes = settings->parameter_dtypes,
                                          .module_dtypes = settings->module_dtypes};
    size_t rows = (size_t)(settings->sequences * time);
    program->time = time;
    program->tokens = mem_alloc_array(rows, sizeof *program->tokens);
    program->targets = mem_alloc_array(rows, sizeof *program->targets);
    program->starts = mem_alloc_array(rows, sizeof *program->starts);
    TRY(graph_build(decoder->model, &options, &program->graph));
    TRY(device_lower(decoder->device, program->graph, &program->lowered));
    struct plan_options plan = lender->options;
    plan.lent = lent;
    plan.holds = settings->holds;
    plan.accumulation = ACCUMULATION_NONE;
    plan.micro_steps = 0;
    plan.norm = NORM_NONE;
    plan.optimizer_slots = 0;
    plan.averages = plan.register_buffers = false;
    plan.group_of_parameter = NULL;
    return plan_build(decoder->model, lender->units, NULL, NULL, program->graph,
                      device_graph_lowering(program->lowered), &plan, &program->plan);
}

static uint64_t own_bytes(const struct decoder_program *program)
{
    return program->plan->peak_bytes - program->plan->lent_bytes;
}

struct decoder_bytes decoder_bytes(const struct decoder *decoder)
{
    return (struct decoder_bytes){.cache = decoder->step.plan->cache_bytes,
                                  .held = decoder->step.plan->held_bytes,
                                  .all = own_bytes(&decoder->prefill) + own_bytes(&decoder->step)};
}

static status_t check_fits(const struct decoder *decoder)
{
    const struct decoder_settings *settings = &decoder->settings;
    const struct decoder_bytes bytes = decoder_bytes(decoder);
    uint64_t left = device_memory_bytes(decoder->device); /* beside training's */
    char needed[32], cache[32], held[32], given[32], reserved[32], gathered[64] = "";
    if (bytes.all <= left || bytes.all <= settings->reserved) return NULL;
    if (bytes.held > 0)
        snprintf(gathered, sizeof gathered, " and %s are gathered parameters",
                 text_format_bytes(bytes.held, held));
    return status_new(STATUS_RESOURCE_EXHAUSTED,
                      "%d sequence%s of %" PRId64 " tokens need%s %s of memory per rank, of which "
                      "%s are keys and values%s, but training leaves %s, and sample.reserve %s",
                      settings->sequences, settings->sequences == 1 ? "" : "s", settings->context,
                      settings->sequences == 1 ? "s" : "", text_format_bytes(bytes.all, needed),
                      text_format_bytes(bytes.cache, cache), gathered,
                      text_format_bytes(left, given),
                      text_format_bytes(settings->reserved, reserved));
}

static status_t set_up(struct decoder *decoder)
{
    const struct decoder_settings *settings = &decoder->settings;
    decoder->chunk = settings->chunk > 0 ? settings->chunk : CHUNK;
    if (plan_has_offloaded(decoder->lender))
        return status_new(STATUS_UNIMPLEMENTED,
                          "tokens cannot be drawn yet while units are offloaded to the host");
    if (settings->sequences < 1 || settings->context < 1)
        return status_new(STATUS_INVALID_ARGUMENT, "%d sequences of %" PRId64 " tokens",
                          settings->sequences, settings->context);
    if (settings->each != NULL && decoder->chunk > ROWS_WITH_LOGITS / settings->sequences)
        decoder->chunk = ROWS_WITH_LOGITS / settings->sequences;
    if (decoder->chunk > settings->context) decoder->chunk = settings->context;
    if (decoder->chunk < 1) decoder->chunk = 1;
    TRY(build_program(decoder, LENT_PARAMETERS, 1, &decoder->step));
    return build_program(decoder, LENT_CACHE, decoder->chunk, &decoder->prefill);
}

/* After all ranks know that each can. */
static status_t open_executors(struct decoder *decoder)
{
    struct decoder_program *step = &decoder->step, *prefill = &decoder->prefill;
    TRY(executor_new_borrowing(step->plan, step->lowered, decoder->settings.lender,
                               &step->executor));
    TRY(executor_new_borrowing(prefill->plan, prefill->lowered, step->executor,
                               &prefill->executor));
    return executor_hold(step->executor);
}

static void program_deinit(struct decoder_program *program)
{
    executor_free(program->executor);
    plan_free(program->plan);
    device_graph_free(program->lowered);
    graph_free(program->graph);
    free(program->tokens);
    free(program->targets);
    free(program->starts);
}

void decoder_free(struct decoder *decoder)
{
    if (decoder == NULL) return;
    program_deinit(&decoder->prefill); /* it borrows from the other */
    program_deinit(&decoder->step);
    free(decoder->lengths);
    free(decoder->row);
    free(decoder);
}

static struct decoder *make(const struct decoder_settings *settings, struct device *device,
                            const struct plan *lender)
{
    struct decoder *decoder = mem_alloc(sizeof *decoder);
    decoder->settings = *settings;
    decoder->lender = lender;
    decoder->model = lender->model;
    decoder->device = device;
    decoder->lengths = mem_alloc_array((size_t)settings->sequences + 1, sizeof *decoder->lengths);
    decoder->row = mem_alloc_array((size_t)vocabulary_of(decoder) + 1, sizeof *decoder->row);
    return decoder;
}

status_t decoder_new(const struct decoder_settings *settings, struct decoder **result)
{
    struct decoder *decoder =
        make(settings, executor_device(settings->lender), executor_plan(settings->lender));
    status_t status = set_up(decoder);
    if (status == NULL) status = check_fits(decoder);
    if (status == NULL) *result = decoder;
    else decoder_free(decoder);
    return status;
}

status_t decoder_measure(const struct decoder_settings *settings, struct device *device,
                         const struct plan *lender, struct decoder_bytes *bytes)
{
    struct decoder *decoder = make(settings, device, lender);
    status_t status = set_up(decoder);
    if (status == NULL) *bytes = decoder_bytes(decoder);
    decoder_free(decoder);
    return status;
}

/* Fills in a row; a token below 0: the row has none. */
static void set_row(const struct decoder *decoder, struct decoder_program *program, int sequence,
                    int64_t row, int32_t token, int64_t position, bool wanted)
{
    int64_t at = sequence * program->time + row;
    if (position >= decoder->settings.context) position = decoder->settings.context - 1;
    program->tokens[at] = token < 0 ? 0 : token;
    program->targets[at] = wanted ? 0 : -1;
    program->starts[at] = (int32_t)(row - position);
}

static status_t run(struct decoder_program *program)
{
    const struct step_input input = {.input = program->tokens,
                                     .target = program->targets,
                                     .starts = program->starts};
    struct step_result result;
    TRY(executor_evaluate_step(program->executor, &input, &result));
    return executor_read_logits(program->executor, &program->logits);
}

/* Copies a row of the logits that the last step made. */
static void take_row(const struct decoder *decoder, const struct decoder_program *program,
                     int64_t row, float *logits)
{
    const struct tensor_type *type = &program->graph->values[program->graph->logits].type;
    size_t count = (size_t)vocabulary_of(decoder), at = (size_t)row * count;
    const void *made = program->logits;
    if (type->dtype != DTYPE_BF16) {
        memcpy(logits, (const float *)made + at, count * sizeof *logits);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)((const uint16_t *)made)[at + i] << 16; /* the upper half */
        memcpy(&logits[i], &bits, sizeof bits);
    }
}

/* What the piece of a prompt that begins at `begin` has made. */
static void take_prompt(struct decoder *decoder, int sequence, int64_t begin, float *logits)
{
    const struct decoder_program *program = &decoder->prefill;
    int64_t time = program->time, last = decoder->lengths[sequence] - 1, first = sequence * time;
    bool every = decoder->settings.each != NULL;
    for (int64_t at = begin; every && at < begin + time && at < last; at++) {
        take_row(decoder, program, first + at - begin, decoder->row);
        decoder->settings.each(decoder->settings.user, sequence, at, decoder->row);
    }
    if (last < begin || last >= begin + time) return;
    take_row(decoder, program, every ? first + last - begin : sequence,
             logits + sequence * vocabulary_of(decoder));
}

status_t decoder_check_prompts(const struct decoder *decoder, const struct decoder_prompt *prompts)
{
    int64_t vocabulary = decoder->model->vocabulary, most = decoder->settings.context;
    for (int s = 0; s < decoder->settings.sequences; s++) {
        if (prompts[s].count < 1 || prompts[s].count >= most)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "prompt %d has %" PRId64 " tokens; expected 1 to %" PRId64, s,
                              prompts[s].count, most - 1);
        for (int64_t i = 0; i < prompts[s].count; i++)
            if (prompts[s].tokens[i] < 0 || prompts[s].tokens[i] >= vocabulary)
                return status_new(STATUS_INVALID_ARGUMENT,
                                  "prompt %d has the token %" PRId32
                                  "; the model knows 0 to %" PRId64,
                                  s, prompts[s].tokens[i], vocabulary - 1);
    }
    return NULL;
}

status_t decoder_prefill(struct decoder *decoder, const struct decoder_prompt *prompts,
                         float *logits)
{
    struct decoder_program *program = &decoder->prefill;
    int64_t longest = 0, time = program->time;
    TRY(decoder_check_prompts(decoder, prompts));
    if (decoder->step.executor == NULL) TRY(open_executors(decoder));
    for (int s = 0; s < decoder->settings.sequences; s++) {
        decoder->lengths[s] = prompts[s].count;
        if (prompts[s].count > longest) longest = prompts[s].count;
    }
    for (int64_t begin = 0; begin < longest; begin += time) {
        bool end = false;
        if (begin > 0 && decoder->settings.between != NULL)
            TRY(decoder->settings.between(decoder->settings.user, &end));
        if (end) return NULL;
        for (int s = 0; s < decoder->settings.sequences; s++)
            for (int64_t row = 0; row < time; row++) {
                int64_t at = begin + row, count = prompts[s].count;
                bool there = at < count;
                set_row(decoder, program, s, row, there ? prompts[s].tokens[at] : -1,
                        there ? at : count, at == count - 1);
            }
        TRY(run(program));
        for (int s = 0; s < decoder->settings.sequences; s++)
            take_prompt(decoder, s, begin, logits);
    }
    return NULL;
}

status_t decoder_next(struct decoder *decoder, const int32_t *tokens, float *logits)
{
    struct decoder_program *program = &decoder->step;
    for (int s = 0; s < decoder->settings.sequences; s++) {
        int64_t *length = &decoder->lengths[s];
        bool over = *length < 0 || tokens[s] < 0;
        if (over) *length = -1;
        else if (tokens[s] >= decoder->model->vocabulary ||
                 *length >= decoder->settings.context - 1)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "sequence %d cannot get the token %" PRId32 " after %" PRId64
                              " of at most %" PRId64,
                              s, tokens[s], *length, decoder->settings.context);
        set_row(decoder, program, s, 0, over ? -1 : tokens[s], over ? 0 : *length, true);
        if (!over) ++*length;
    }
    TRY(run(program));
    for (int s = 0; s < decoder->settings.sequences; s++)
        if (decoder->lengths[s] >= 0)
            take_row(decoder, program, s, logits + s * vocabulary_of(decoder));
    return NULL;
}
