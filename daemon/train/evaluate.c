/* Evaluations of a run; see evaluate.h. On the thread of train_session_run. */
#include "train/evaluate.h"

#include <inttypes.h>
#include <math.h>

#include "base/clock.h"
#include "train/early.h"

double tally_mean(double sum, double count)
{
    return count > 0 ? sum / count : (double)NAN;
}

double unsigned_nan(double value)
{
    return isnan(value) ? (double)NAN : value;
}

void tally_add(struct tally *tally, const struct tally *more)
{
    tally->loss += more->loss;
    tally->correct += more->correct;
    tally->samples += more->samples;
    tally->weight += more->weight;
    tally->not_finite += more->not_finite;
    tally->tokens += more->tokens;
    for (int k = 0; k < PREFERENCE_SUMS; k++) tally->preference[k] += more->preference[k];
    tally->steps += more->steps;
    tally->ns += more->ns;
    tally->compute_ns += more->compute_ns;
    tally->comm_ns += more->comm_ns;
    tally->exposed_ns += more->exposed_ns;
}

/* With train.ema.evaluate the average takes the place of the parameters for as long as rows are evaluated, also
 * if that fails: what a worker keeps of its job are the parameters. */
static status_t place_average(struct run *run, bool in)
{
    if (!run->job->evaluate_average || run->average_in_place == in) return NULL;
    run->average_in_place = in;
    return executor_swap_average(run->executor);
}

/* Orders find the parameters. */
static status_t run_orders_between(struct run *run, float signal)
{
    if ((uint64_t)signal <= run->orders_done) return run_orders(run, signal);
    TRY(place_average(run, false));
    TRY(run_orders(run, signal));
    return place_average(run, true);
}

static status_t evaluate_rows(struct run *run, struct tally *tally)
{
    feed_start_epoch(&run->test, 1, 0);
    score_sums_clear(&run->sums);
    for (;;) {
        int64_t began = clock_monotonic_ns();
        struct batch batch;
        bool more;
        session_at(run->session, "waits for a batch of the evaluation");
        atomic_fetch_add(&run->session->evaluated_batch, 1);
        TRY(loader_next(run->test.loader, &batch, &more));
        session_at(run->session, "evaluates");
        if (!more) break;
        const struct step_input input = run_make_input(run, &batch);
        struct step_result result;
        TRY(executor_evaluate_step(run->executor, &input, &result));
        const struct tally step = {.loss = result.stats[PLAN_STAT_LOSS],
                                   .correct = result.stats[PLAN_STAT_CORRECT],
                                   .samples = result.stats[PLAN_STAT_SAMPLES],
                                   .weight = result.stats[PLAN_STAT_WEIGHT],
                                   .steps = 1,
                                   .ns = clock_monotonic_ns() - began};
        tally_add(tally, &step);
        score_sums_add(&run->sums, result.sums);
        if (run->hooks->progress != NULL) run->hooks->progress(run->hooks->user, run->step);
        TRY(run_orders_between(run, result.stats[PLAN_STAT_SIGNAL]));
    }
    if (!isfinite(tally->loss)) {
        run->agreed = true;
        return status_new(STATUS_FAILED_PRECONDITION,
                          "the %s loss is %f after step %" PRIu64
                          "; try a smaller optimizer.lr, or train.clip_grad_norm",
                          run->job->data_format == DATA_IMAGES ? "test" : "validation",
                          unsigned_nan(tally->loss), run->step);
    }
    run->evaluation_ns = tally->ns;
    return NULL;
}

status_t run_evaluate(struct run *run, struct tally *tally)
{
    atomic_fetch_add(&run->session->evaluated_batch, 1);
    atomic_store(&run->session->evaluates, true);
    status_t status = executor_share_buffers(run->executor);
    if (status == NULL) status = place_average(run, true);
    if (status == NULL) status = evaluate_rows(run, tally);
    status = status_first(status, place_average(run, false));
    atomic_store(&run->session->evaluates, false);
    return status;
}

void evaluation_note(struct run *run, const struct tally *tally)
{
    early_stop_note(&run->early_stop, &run->job->early_stop, run->step,
                    tally_mean(tally->loss, tally->weight), tally_mean(tally->correct, tally->samples));
}

struct train_scores evaluation_scores(const struct run *run, const struct tally *tally)
{
    return score_sums_compute(&run->sums, run->session->model->target,
                              tally_mean(tally->loss, tally->weight), tally->correct, tally->samples);
}

void evaluation_report(struct run *run, const struct tally *tally, double epoch, int64_t began)
{
    run->validated = true;
    run->validation_loss = tally_mean(tally->loss, tally->weight);
    run->validation_step = run->step;
    const struct train_validation validation = {
        .step = run->step,
        .epoch = epoch,
        .loss = run->validation_loss,
        .tokens = (uint64_t)tally->samples,
        .scores = evaluation_scores(run, tally),
        .seconds = (double)(clock_monotonic_ns() - began) * 1e-9,
    };
    if (run->hooks->validation != NULL) run->hooks->validation(run->hooks->user, &validation);
}

status_t run_validate(struct run *run)
{
    int64_t began = clock_monotonic_ns();
    struct tally tally = {0};
    TRY(run_evaluate(run, &tally));
    evaluation_note(run, &tally);
    evaluation_report(run, &tally, run_epochs_done(run), began);
    return NULL;
}
