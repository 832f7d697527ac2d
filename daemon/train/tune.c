/* Other units, tried while a run trains; see tune.h. On the training thread. */
#include "train/tune.h"

#include <stdlib.h>

#include "train/run_state.h"

static int compare_times(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median_seconds(struct tuning *tuning)
{
    int count = tuning->schedule.measured;
    qsort(tuning->times, (size_t)count, sizeof tuning->times[0], compare_times);
    int64_t twice = tuning->times[count / 2] + tuning->times[(count - 1) / 2];
    return (double)twice * 0.5e-9;
}

/* The measured candidate with the fastest steps; the job's own if none was faster. */
static int fastest(const struct tuning *tuning)
{
    int best = 0;
    for (int i = 1; i < tuning->schedule.count; i++) {
        const struct train_trial *trial = &tuning->result.trials[i];
        if (trial->seconds > 0 && trial->seconds < tuning->result.trials[best].seconds) best = i;
    }
    return best;
}

static void end(struct run *run)
{
    struct tuning *tuning = &run->tuning;
    tuning->ended = true;
    if (run->hooks->tuned != NULL) run->hooks->tuned(run->hooks->user, run->step, &tuning->result);
}

void tune_deinit(struct run *run)
{
    struct train_tuned *result = &run->tuning.result;
    for (int i = 0; i < result->count; i++) status_free(result->trials[i].refused);
}

void tune_end(struct run *run, const char *why)
{
    struct tuning *tuning = &run->tuning;
    if (tuning->ended) return;
    tuning->result.stopped = why;
    tuning->result.kept = -1;
    end(run);
}

void tune_begin(struct run *run)
{
    struct tuning *tuning = &run->tuning;
    const struct train_job *job = run->job;
    tuning->ended = job->tune_count == 0;
    if (tuning->ended) return;
    tuning->next = 1;
    tuning->result.count = job->tune_count + 1;
    tuning->schedule = tune_schedule(run->session->steps - run->step, job->tune_count + 1);
    if (tuning->schedule.count < 2) tune_end(run, "the run is too short to try other units");
}

/* Gives the run the units of a candidate; `change->refused` if they do not fit. */
static status_t take(struct run *run, int candidate, struct train_wrap_change *change)
{
    const struct train_job *job = run->job;
    TRY(run_set_wrap(run, candidate == 0 ? &job->wrap : &job->tune[candidate - 1], change));
    if (run->hooks->rewrapped != NULL) run->hooks->rewrapped(run->hooks->user, run->step, change);
    if (change->refused != NULL) return NULL;
    run->tuning.at = candidate;
    run->tuning.taken = 0;
    run->tuning.result.peak_bytes = change->peak_bytes;
    run->tuning.result.change_seconds += change->seconds;
    return NULL;
}

static status_t finish(struct run *run)
{
    struct tuning *tuning = &run->tuning;
    int best = fastest(tuning);
    TRY(agreement_share(&run->ranks, &best, sizeof best, 0));
    if (best != tuning->at) {
        struct train_wrap_change change;
        TRY(take(run, best, &change));
        status_free(tuning->result.trials[best].refused);
        tuning->result.trials[best].refused = change.refused;
    }
    tuning->result.kept = tuning->at;
    end(run);
    return NULL;
}

/* The next candidate that fits trains; after the last one the fastest is kept. */
static status_t advance(struct run *run)
{
    struct tuning *tuning = &run->tuning;
    for (int next = tuning->next; next < tuning->schedule.count; next++) {
        tuning->next = next + 1;
        struct train_wrap_change change;
        TRY(take(run, next, &change));
        if (change.refused == NULL) return NULL;
        tuning->result.trials[next].refused = change.refused;
    }
    return finish(run);
}

status_t tune_step(struct run *run, int64_t ns)
{
    struct tuning *tuning = &run->tuning;
    if (tuning->ended) return NULL;
    int warm = tuning->schedule.warm, measured = tuning->schedule.measured;
    if (tuning->taken >= warm) tuning->times[tuning->taken - warm] = ns;
    if (++tuning->taken < warm + measured) return NULL;
    tuning->result.trials[tuning->at].seconds = median_seconds(tuning);
    TRY(executor_settle(run->executor));
    return advance(run);
}
