/* Chooses a job's settings; see advice.h. No state; any thread. */
#include "planning/advice.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"
#include "planning/search.h"
#include "proto/message.h"

/* A step is limited by what takes at least this part of it. */
static const double LIMITING = 0.1;

struct chosen {
    struct train_session *base; /* of the job before the choice; owns the model */
    struct train_job asked;     /* the job before the choice, with its batches per step */
    struct space *space;
    struct search_result result;
    struct space_job job;
};

void chosen_free(struct chosen *chosen)
{
    if (chosen == NULL) return;
    space_job_deinit(&chosen->job);
    space_free(chosen->space);
    train_session_free(chosen->base);
    free(chosen);
}

const struct train_job *chosen_job(const struct chosen *chosen)
{
    return &chosen->job.job;
}

/* "full_shard, batches of 4, each block computed again" */
static void add_words(const struct space *space, struct point point, struct buf *out)
{
    static const enum dimension order[] = {DIMENSION_SHARDING, DIMENSION_UNITS,     DIMENSION_OWN,
                                           DIMENSION_BATCH,    DIMENSION_RECOMPUTE, DIMENSION_FETCH,
                                           DIMENSION_OFFLOAD};
    size_t start = out->length;
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        const char *words = space_words(space, order[i], point.at[order[i]]);
        if (words[0] == '\0' && order[i] == DIMENSION_SHARDING) words = "full_shard";
        if (words[0] == '\0') continue;
        if (out->length > start) buf_add_text(out, ", ");
        if (order[i] == DIMENSION_OWN) space_describe_own(space, point, out);
        else buf_add_text(out, words);
    }
}

static status_t nothing_fits(const struct advisor *advisor, const struct chosen *chosen)
{
    const struct found *least = &chosen->result.best[0];
    struct buf words = {0}, host = {0}, more = {0};
    char needs[32], has[32], most[32], bytes[32];
    add_words(chosen->space, least->point, &words);
    if (least->host > 0)
        buf_printf(&host, " and %s of the host's", text_format_bytes(least->host, bytes));
    if (least->outside > 0)
        buf_printf(&more, "; the process itself needs another %s",
                   text_format_bytes(least->outside, bytes));
    if (least->op_bytes > advisor->memory_bytes)
        buf_printf(&more, "; the operands of one op, %s, take %s", least->op,
                   text_format_bytes(least->op_bytes, bytes));
    status_t status =
        status_new(STATUS_RESOURCE_EXHAUSTED,
                   "no settings fit in %s of memory per rank: of %" PRIu64
                   " that were planned, those that "
                   "need least (%s) take %s%s, of which %s are %s%s",
                   text_format_bytes(advisor->memory_bytes, has), chosen->result.evaluated,
                   buf_text(&words), text_format_bytes(least->peak, needs), buf_text(&host),
                   text_format_bytes(least->largest_bytes, most),
                   plan_buffer_class_name(least->largest), buf_text(&more));
    buf_deinit(&more);
    buf_deinit(&words);
    buf_deinit(&host);
    return status;
}

status_t choose(struct advisor *advisor, struct chosen **out)
{
    struct chosen *chosen = mem_alloc(sizeof *chosen);
    struct train_job plain = *advisor->job;
    plain.checkpoint_count = 0;
    plain.weights = NULL;
    if (plain.batch_tokens > 0) plain.batch_size = 1; /* it is chosen */
    status_t status = train_session_new_unplanned(&plain, advisor->device, &chosen->base);
    if (status == NULL) {
        chosen->asked = *advisor->job;
        chosen->asked.batch_size = plain.batch_size;
        chosen->asked.accumulation_steps = train_session_micro_steps(chosen->base);
        chosen->space = space_new(&chosen->asked, train_session_model(chosen->base),
                                  &advisor->profile->rates, !device_is_host(advisor->device));
        status = search_run(advisor, chosen->space, SEARCH_WORK, &chosen->result);
    }
    if (status == NULL && chosen->result.count == 0) status = nothing_fits(advisor, chosen);
    if (status != NULL) {
        chosen_free(chosen);
        return status;
    }
    space_apply(chosen->space, chosen->result.best[0].point, &chosen->job);
    *out = chosen;
    return NULL;
}

/* ---- The message ---- */

static void add_choice(const struct chosen *chosen, const struct found *found,
                       Fsdpd__V1__Plan *message)
{
    struct buf words = {0};
    Fsdpd__V1__Chosen *choice = space_chosen(chosen->space, found->point, false);
    add_words(chosen->space, found->point, &words);
    choice->description = buf_take(&words);
    choice->profile = mem_strdup(message->device);
    choice->step_seconds = found->seconds;
    choice->peak_bytes = found->peak;
    choice->host_bytes = found->host;
    message->choices[message->n_choices++] = choice;
}

/* What a step mostly waits for. */
static void add_limit(const struct found *found, Fsdpd__V1__Plan *message)
{
    const struct plan_estimate *estimate = &found->estimate;
    double step = estimate->step_seconds, compute = estimate->compute_seconds;
    char part[32], all[32];
    text_format_duration(found->seconds, all);
    if (estimate->exposed_seconds > LIMITING * step)
        plan_message_add_note(
            message, "a step of %s waits %s for communication%s that no arithmetic covers", all,
            text_format_duration(plan_message_round(estimate->exposed_seconds), part),
            found->across_hosts ? ", some of it between hosts," : "");
    else if (step - compute > LIMITING * step)
        plan_message_add_note(message, "a step of %s computes for %s and waits for the host's part",
                              all, text_format_duration(plan_message_round(compute), part));
    else
        plan_message_add_note(
            message,
            "a step of %s is limited by %s: with unlimited memory bandwidth it would "
            "compute for %s",
            all, found->arithmetic_seconds > compute / 2 ? "arithmetic" : "memory bandwidth",
            text_format_duration(plan_message_round(found->arithmetic_seconds), part));
}

void chosen_add(const struct chosen *chosen, Fsdpd__V1__Plan *message)
{
    const struct search_result *result = &chosen->result;
    message->choices = mem_alloc_array((size_t)result->count, sizeof *message->choices);
    for (int i = 0; i < result->count; i++) add_choice(chosen, &result->best[i], message);
    add_limit(&result->best[0], message);
    char points[32];
    plan_message_add_note(message,
                          "settings were chosen: %" PRIu64 " of %s combinations were planned",
                          result->evaluated, text_format_count(result->points, points));
}
