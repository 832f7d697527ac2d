/* What fsdp.tune tries; see advice.h. No state; any thread. */
#include "planning/advice.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "planning/message.h"
#include "planning/search.h"
#include "proto/message.h"
#include "setup/outside.h"
#include "setup/tune_schedule.h"

enum {
    OTHERS = 2, /* that are tried beside the job's own */
    TRIALS_MAX = 64
};

/* Units that are expected to take longer than this many times the fastest are not worth a trial. */
static const double HOPELESS = 1.5;

struct trial {
    bool others; /* than the job's own: those of the point */
    struct point point;
    int units;
    double seconds;
    uint64_t peak;
};

static status_t evaluate(struct advisor *advisor, struct train_session *session,
                         const struct train_job *job, struct trial *trial)
{
    struct unit_set *units;
    struct plan *plan;
    struct plan_estimate estimate;
    TRY(train_session_sketch(session, job, &units, &plan));
    search_estimate(plan, &advisor->profile->rates, &estimate);
    trial->units = units->unit_count;
    trial->seconds = plan_message_round(estimate.step_seconds);
    trial->peak = plan->peak_bytes;
    plan_free(plan);
    units_free(units);
    return NULL;
}

static int compare(const void *a, const void *b)
{
    const struct trial *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    if (x->peak != y->peak) return x->peak < y->peak ? -1 : 1;
    return memcmp(&x->point, &y->point, sizeof x->point);
}

/* Whether a trial before has as many units, which take as much time and memory. */
static bool is_known(const struct trial *trials, const struct trial *trial)
{
    for (; trials < trial; trials++)
        if (trials->units == trial->units && trials->seconds == trial->seconds &&
            trials->peak == trial->peak)
            return true;
    return false;
}

struct trying {
    struct advisor *advisor;
    struct train_session *session;
    const struct space *space;
    uint64_t outside;
    struct trial *trials;
    int count;
};

/* Adds the point's units if they can be planned and fit as far as a sketch says. */
static void try_units(struct trying *trying, struct point point)
{
    struct point canonical = space_canonical(trying->space, point);
    if (trying->count > TRIALS_MAX || memcmp(&canonical, &point, sizeof point) != 0) return;
    struct train_job job = *trying->advisor->job;
    struct space_job with;
    struct trial *trial = &trying->trials[trying->count];
    *trial = (struct trial){.others = true, .point = point};
    space_apply(trying->space, point, &with);
    job.wrap = with.job.wrap;
    status_t status = evaluate(trying->advisor, trying->session, &job, trial);
    bool fits = status == NULL && trial->peak + trying->outside <= trying->advisor->memory_bytes;
    if (fits && !is_known(trying->trials, trial)) trying->count++;
    status_free(status); /* these units are not possible */
    space_job_deinit(&with);
}

/* The units of every policy; those of the first also with some that stay gathered. Units' own
 * strategies are not tried: hybrid_shard adds gradients in another order. */
static void find_others(struct trying *trying)
{
    for (int i = 0; i < space_size(trying->space, DIMENSION_UNITS); i++)
        try_units(trying, (struct point){.at = {[DIMENSION_UNITS] = i}});
    int kept = space_own_kept(trying->space);
    for (int s = 0; kept >= 0 && s < space_size(trying->space, DIMENSION_SHARE); s++)
        try_units(trying, (struct point){.at = {[DIMENSION_OWN] = kept, [DIMENSION_SHARE] = s}});
    struct trial *trials = trying->trials;
    qsort(trials + 1, (size_t)trying->count - 1, sizeof *trials, compare);
    double fastest = trials[0].seconds;
    if (trying->count > 1 && trials[1].seconds < fastest) fastest = trials[1].seconds;
    if (trying->count > OTHERS + 1) trying->count = OTHERS + 1;
    while (trying->count > 1 && trials[trying->count - 1].seconds > HOPELESS * fastest)
        trying->count--;
}

static void add_trial(const struct space *space, const struct trial *trial,
                      Fsdpd__V1__Plan *message)
{
    Fsdpd__V1__Chosen *choice = space_chosen(space, trial->point, true);
    struct buf words = {0};
    if (trial->others) {
        buf_add_text(&words, space_words(space, DIMENSION_UNITS, trial->point.at[DIMENSION_UNITS]));
        if (words.length > 0 && trial->point.at[DIMENSION_OWN] > 0) buf_add_text(&words, ", ");
        space_describe_own(space, trial->point, &words);
        if (words.length == 0) buf_add_text(&words, "units of one block");
    } else {
        buf_add_text(&words, "the job's own units");
        message_free(choice->wrap);
        choice->wrap = NULL;
    }
    choice->description = buf_take(&words);
    choice->profile = mem_strdup(message->device);
    choice->by = FSDPD__V1__CHOOSER__CHOOSER_TUNE;
    choice->step_seconds = trial->seconds;
    choice->peak_bytes = trial->peak;
    message->tune[message->n_tune++] = choice;
}

static void add_note(Fsdpd__V1__Plan *message, uint64_t steps)
{
    const struct tune_schedule schedule = tune_schedule(steps, (int)message->n_tune);
    if (message->n_tune < 2) {
        plan_message_add_note(message, "fsdp.tune: no other units are worth a trial");
        return;
    }
    if (steps > 0 && schedule.count < 2) {
        plan_message_add_note(message,
                              "fsdp.tune: a run of %" PRIu64
                              " steps is too short to try other units",
                              steps);
        return;
    }
    struct buf text = {0};
    char time[32];
    for (size_t i = 0; i < message->n_tune; i++)
        buf_printf(&text, "%s%s (%s)", i > 0 ? ", " : "", message->tune[i]->description,
                   text_format_duration(message->tune[i]->step_seconds, time));
    plan_message_add_note(message,
                          "fsdp.tune: the first steps try these units, with the expected time of "
                          "a step, and the fastest stay: %s",
                          buf_text(&text));
    buf_deinit(&text);
}

status_t trials_add(struct advisor *advisor, Fsdpd__V1__Plan *message)
{
    if (advisor->job->world == 1) {
        plan_message_add_note(message, "fsdp.tune has no effect with one worker");
        return NULL;
    }
    struct trial trials[TRIALS_MAX + 2] = {{0}};
    struct train_job job = *advisor->job;
    job.weights = NULL;
    struct train_session *session = NULL;
    struct space *space = NULL;
    status_t status = train_session_new_unplanned(&job, advisor->device, &session);
    if (status == NULL) status = evaluate(advisor, session, &job, &trials[0]);
    if (status == NULL) {
        /* Without units on the host: its memory is not checked here. */
        space = space_new(&job, train_session_model(session), &advisor->profile->rates, false);
        struct trying trying = {.advisor = advisor,
                                .session = session,
                                .space = space,
                                .outside = train_session_outside_bytes(session),
                                .trials = trials,
                                .count = 1};
        find_others(&trying);
        message->tune = mem_alloc_array((size_t)trying.count, sizeof *message->tune);
        for (int i = 0; i < trying.count; i++) add_trial(space, &trials[i], message);
        add_note(message, message->steps);
    }
    space_free(space);
    train_session_free(session);
    return status;
}
