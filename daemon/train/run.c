/*
 * Runs training: checks that the ranks agree, initialises the parameters, and loops over epochs and
 * steps. All of it runs on the thread of train_session_run; other threads call only
 * train_session_abort (session.c). See session.h.
 */
#include "train/early.h"
#include "train/evaluate.h"
#include "train/run_state.h"

#include <inttypes.h>
#include <math.h>

#include "base/clock.h"
#include "base/mem.h"
#include "data/batch_share.h"
#include "redundancy/protect.h"
#include "setup/init.h"
#include "train/schedule.h"

/* Orders. */

static float my_signal(const struct run *run)
{
    if (run->session->rank != 0 || run->hooks->latest_order == NULL) return 0;
    return (float)run->hooks->latest_order(run->hooks->user);
}

status_t run_orders(struct run *run, float signal)
{
    uint64_t sequence = (uint64_t)signal;
    if (sequence <= run->orders_done || run->hooks->run_orders == NULL) return NULL;
    run->orders_done = sequence;
    TRY(executor_settle(run->executor));
    session_at(run->session, "carries out orders");
    status_t status = run->hooks->run_orders(run->hooks->user, sequence, run->executor, run->step);
    run->agreed = status_code(status) == STATUS_CANCELLED;
    return status;
}

/* Orders received after the last step began must not be lost: one more round without a step. */
static status_t run_last_orders(struct run *run)
{
    float signal = my_signal(run);
    TRY(executor_settle(run->executor));
    TRY(agreement_share(&run->ranks, &signal, sizeof signal, 0));
    return run_orders(run, signal);
}

status_t run_set_wrap(struct run *run, const struct wrap_policy *policy,
                      struct train_wrap_change *change)
{
    struct train_session *session = run->session;
    uint64_t before = executor_memory_peak(run->executor);
    struct rewrap rewrapping = {.session = session,
                                .ranks = &run->ranks,
                                .baseline = run->baseline,
                                .executor = run->executor};
    status_t status = rewrap(&rewrapping, policy, change);
    run->executor = rewrapping.executor;
    if (before > run->memory_peak) run->memory_peak = before;
    if (change->peak_bytes > run->memory_peak) run->memory_peak = change->peak_bytes;
    atomic_store(&session->memory_peak, run_memory_peak(run));
    return status;
}

status_t train_session_set_wrap(struct train_session *session, const struct wrap_policy *policy,
                                struct train_wrap_change *change)
{
    TRY(run_set_wrap(session->run, policy, change));
    if (change->refused == NULL) tune_end(session->run, "the units were set by hand");
    return NULL;
}

status_t train_session_hand_over(struct train_session *session, const bool *leaves,
                                 status_t (*confirm)(void *user), void *user, status_t *refused)
{
    struct run *run = session->run;
    TRY(protect_hand_over(run, leaves, refused));
    if (*refused != NULL) return NULL;
    if (session->rank == 0 && confirm != NULL) *refused = confirm(user);
    return agreement_share_outcome(&run->ranks, refused, 0);
}

struct executor *train_session_executor(const struct train_session *session)
{
    return session->run != NULL ? session->run->executor : NULL;
}

/* Steps. */

struct step_input run_make_input(const struct run *run, const struct batch *batch)
{
    return (struct step_input){.input = batch->input,
                               .target = batch->target,
                               .starts = batch->starts,
                               .reference = batch->reference,
                               .samples = batch->samples,
                               .signal = my_signal(run),
                               .step = run->step,
                               .optimizer = run->optimizer};
}

/* The sum over all ranks and the targets of a batch that count. A mean was divided by all targets
 * of a rank. */
static double summed_loss(const struct run *run, const float *stats)
{
    double loss = stats[PLAN_STAT_LOSS];
    if (run->session->reduction == REDUCTION_SUM) return loss;
    return loss / run->job->world * (double)stats[PLAN_STAT_TARGETS];
}

static void report_note(struct run *run)
{
    AUTO_FREE char *note = executor_take_note(run->executor);
    if (note == NULL) return;
    if (!run->noted && run->hooks->noted != NULL) run->hooks->noted(run->hooks->user, note);
    run->noted = true;
}

static status_t not_finite(struct run *run, const char *what, float value)
{
    run->agreed = true;
    return status_new(STATUS_FAILED_PRECONDITION,
                      "the %s is %f at step %" PRIu64
                      "; try a smaller optimizer.lr, or train.clip_grad_norm",
                      what, unsigned_nan((double)value), run->step);
}

/* Runs one batch of a step, the last one or an earlier one. All ranks agree whether it is bad. */
static status_t micro_step(struct run *run, const struct step_input *input, bool last,
                           struct step_result *result, struct tally *step)
{
    TRY(last ? executor_train_step(run->executor, input, result)
             : executor_accumulate_step(run->executor, input, result));
    step->compute_ns += result->compute_ns;
    atomic_fetch_add(&run->session->own_ns, result->compute_ns);
    step->comm_ns += result->comm_ns;
    step->exposed_ns += result->exposed_comm_ns;
    if (run->hooks->progress != NULL && !last) run->hooks->progress(run->hooks->user, run->step);
    step->loss += summed_loss(run, result->stats);
    step->samples += result->stats[PLAN_STAT_SAMPLES];
    step->weight += result->stats[PLAN_STAT_WEIGHT];
    for (int k = 0; k < PREFERENCE_SUMS; k++)
        step->preference[k] += result->stats[PLAN_STAT_PREFERENCE + k];
    if (isfinite(result->stats[PLAN_STAT_LOSS]) || run->job->skip_non_finite) return NULL;
    run->step++;
    atomic_store(&run->session->step, run->step);
    return not_finite(run, "loss", result->stats[PLAN_STAT_LOSS]);
}

/* The next batch to train on; counts the time that it takes as waiting. */
static status_t next_batch(struct run *run, struct batch *batch, bool *more)
{
    session_at(run->session, "waits for a batch");
    int64_t began = clock_monotonic_ns();
    status_t status = loader_next(run->train.loader, batch, more);
    int64_t waited = clock_monotonic_ns() - began;
    run->wait_ns += waited;
    atomic_fetch_add(&run->session->own_ns, waited);
    session_at(run->session, "trains");
    return status;
}

/* The samples of an epoch of images that a step may use, or 0 for no limit. */
static int64_t epoch_samples(const struct run *run)
{
    return run->job->data_format == DATA_IMAGES ? run->session->train_set.count : 0;
}

/* The place of a batch's first row in the samples of a step with a global batch. */
static uint64_t first_sample(const struct run *run, uint32_t micro)
{
    if (run->job->global_batch == 0) return 0;
    const struct batch_share share = batch_share_of(run->job, run->session->rank);
    uint64_t step = run->rows / run->job->global_batch;
    return (uint64_t)batch_share_first(&share, (int64_t)step, micro, epoch_samples(run));
}

/* Runs all batches of one step; `batch` is the first. */
static status_t micro_steps(struct run *run, const struct batch *batch, uint32_t count,
                            struct step_result *result, struct tally *step)
{
    struct batch next = *batch;
    bool skip = false;
    for (uint32_t micro = 0; micro < count; micro++) {
        bool more = true;
        if (micro > 0) TRY(next_batch(run, &next, &more));
        if (!more)
            return status_new(STATUS_INTERNAL, "the epoch has fewer batches than were counted");
        struct step_input input = run_make_input(run, &next);
        input.micro = micro;
        /* Not `count`: an epoch's last step may be short, with different figures. */
        input.micro_steps = run->session->micro_steps;
        input.by_sample = run->job->global_batch > 0;
        input.first_sample = first_sample(run, micro);
        input.max_norm = run->job->max_norm;
        input.skip = skip;
        TRY(micro_step(run, &input, micro + 1 == count, result, step));
        skip = skip || !isfinite(result->stats[PLAN_STAT_LOSS]);
    }
    return NULL;
}

/* One of this step that does not know yet that it is the best one is taken again. */
static status_t checkpoint(struct run *run, bool due)
{
    bool best = early_stop_is_best(&run->best, run->step);
    bool taken = run->captured_step == run->step && (!best || run->captured_best == run->step);
    if (!(due || best) || taken || run->hooks->checkpoint == NULL) return NULL;
    TRY(executor_settle(run->executor));
    session_at(run->session, "takes a checkpoint");
    return run->hooks->checkpoint(run->hooks->user);
}

/* Counts the step's rows as used. An epoch's last batch may be short. */
static void count_rows(struct run *run, uint32_t batches)
{
    const struct train_job *job = run->job;
    uint64_t all = (uint64_t)run->train.count * (uint64_t)job->world;
    if (job->global_batch > 0) {
        run->rows += job->global_batch;
        all = (uint64_t)run->session->train_set.count;
    } else {
        run->rows += (uint64_t)batches * job->batch_size * (uint64_t)job->world;
    }
    if (job->data_format == DATA_IMAGES && run->rows > all) run->rows = all;
}

/* The run's position for the schedule. A run that ends with its data is measured by its position
 * there, since another group reaches it after a different number of steps; a run that ends after a
 * number of steps is measured by steps. */
static double schedule_now(const struct run *run)
{
    const struct train_job *job = run->job;
    double steps = (double)run->session->steps;
    bool by_steps = job->max_steps > 0 && run->session->steps == job->max_steps;
    double shift = by_steps ? 0 : run->shift;
    return schedule_factor(&job->schedule, run->step, (double)run->step + shift, steps + shift);
}

/* Of all ranks, in `count` batches. */
static uint64_t samples_of(const struct train_job *job, uint32_t count)
{
    if (job->global_batch > 0) return job->global_batch;
    return (uint64_t)count * job->batch_size * (uint64_t)job->world;
}

/* Runs one training step of `count` batches, and its boundary. */
static status_t train_step(struct run *run, const struct batch *batch, uint32_t count,
                           int64_t began)
{
    run->optimizer.lr = run->epoch_rate * schedule_now(run);
    struct step_result result;
    struct tally step = {.steps = 1};
    if (run->job->data_format != DATA_IMAGES)
        step.tokens = run_row_tokens(run) * (double)samples_of(run->job, count);
    TRY(micro_steps(run, batch, count, &result, &step));
    TRY(protect_finish(run));
    session_at(run->session, "is between two steps");
    report_note(run);
    bool counts = result.stats[PLAN_STAT_COUNTED] != 0;
    bool refused =
        run->job->plan.norm != NORM_NONE && result.stats[PLAN_STAT_SKIPPED] != 0 && counts;
    run->step++;
    atomic_store(&run->session->step, run->step);
    count_rows(run, count);
    run->gradient_norm = result.stats[PLAN_STAT_NORM];
    if (refused && !run->job->skip_non_finite)
        return not_finite(run, "norm of the gradient", result.stats[PLAN_STAT_NORM]);
    if (refused || !counts) run->skipped_steps++;
    else run->optimizer.taken++;
    if (!isfinite(step.loss)) {
        step.not_finite = unsigned_nan(step.loss);
        step.loss = step.weight = 0;
        memset(step.preference, 0, sizeof step.preference);
    }
    step.ns = clock_monotonic_ns() - began;
    tally_add(&run->epoch, &step);
    tally_add(&run->interval, &step);
    tally_add(&run->whole, &step);
    if (run->hooks->progress != NULL) run->hooks->progress(run->hooks->user, run->step);
    if (run->step % run->job->log_interval == 0 || run->step == run->session->steps)
        run_report_metrics(run);
    if (run->job->redundancy != REDUNDANCY_NONE && run->step % run->job->redundancy_steps == 0)
        TRY(protect(run));
    TRY(run_orders(run, result.stats[PLAN_STAT_SIGNAL]));
    return tune_step(run, step.ns);
}

static bool step_needs_checkpoint(const struct run *run)
{
    uint64_t every = run->job->checkpoints.every_steps;
    return every > 0 && run->step % every == 0;
}

/* Before the step's evaluation, which may take long; but one of checkpoint.best says whether it is
 * the best one, and is taken afterwards, by `checkpoint`. */
static status_t checkpoint_step(struct run *run, bool evaluates)
{
    return run->job->best.patience > 0 && evaluates ? NULL
                                                    : checkpoint(run, step_needs_checkpoint(run));
}

/* Whether no step follows. */
static bool is_over(const struct run *run)
{
    return run->step >= run->session->steps ||
           early_stop_is_due(&run->early_stop, &run->job->early_stop);
}

static void end_epoch(struct run *run)
{
    run->epochs++;
    run->epoch_rate = schedule_next_rate(&run->job->schedule, run->epochs, run->epoch_rate);
}

static bool epoch_needs_checkpoint(const struct run *run)
{
    uint32_t every = run->job->checkpoints.every_epochs;
    return every > 0 && run->epochs % every == 0;
}

/* Trains an epoch of images, or the rest of the epoch or of the run, and evaluates. Numbers have no
 * accuracy: their evaluation is reported as one of tokens is, with the metrics of the task. */
static status_t run_epoch(struct run *run)
{
    const struct train_job *job = run->job;
    int64_t began = clock_monotonic_ns() - run->epoch.ns, step_began = clock_monotonic_ns();
    int64_t first = batch_share_position(job, run->rows);
    uint64_t left = (uint64_t)(run->train.count - first + job->batch_size - 1) / job->batch_size;
    struct tally test = {0};
    feed_start_epoch(&run->train, run->epochs + 1, first);
    while (run->step < run->session->steps) {
        struct batch batch;
        bool more;
        TRY(next_batch(run, &batch, &more));
        if (!more) break;
        uint64_t count = run->session->micro_steps;
        if (count > left) count = left;
        TRY(train_step(run, &batch, (uint32_t)count, step_began));
        left -= count;
        TRY(checkpoint_step(run, left == 0 || run->step >= run->session->steps));
        step_began = clock_monotonic_ns();
    }
    bool numbers = run->session->model->target == TARGET_NUMBERS;
    int64_t evaluation_began = clock_monotonic_ns();
    if (job->evaluate) TRY(run_evaluate(run, 0, &test));
    if (job->evaluate) evaluation_note(run, 0, &test);
    const struct train_epoch epoch = {
        .epoch = run->epochs + 1,
        .step = run->step,
        .epochs_done = left == 0 ? run->epochs + 1.0 : run_epochs_done(run),
        .train_loss = run_mean_loss(&run->epoch),
        .test_loss = tally_mean(test.loss, test.weight),
        .accuracy = tally_mean(test.correct, test.samples),
        .correct = (uint64_t)test.correct,
        .test_samples = (uint64_t)test.samples,
        .scores = evaluation_scores(run, &test),
        .seconds = (double)(clock_monotonic_ns() - began) * 1e-9,
        .evaluated = job->evaluate && !numbers,
    };
    if (run->hooks->epoch != NULL) run->hooks->epoch(run->hooks->user, &epoch);
    if (job->evaluate && numbers)
        evaluation_report(run, 0, &test, epoch.epochs_done, evaluation_began);
    end_epoch(run);
    run->epoch = (struct tally){0};
    run->rows = 0;
    bool kept = run->job->best.patience > 0 && step_needs_checkpoint(run);
    return checkpoint(run, kept || epoch_needs_checkpoint(run));
}

/* A resumed run may have an epoch to evaluate without any step left. */
static status_t run_epochs(struct run *run)
{
    while (!is_over(run) || run->rows > 0) TRY(run_epoch(run));
    return NULL;
}

/* After a step on tokens: handles ends of epochs, and validates if it is due. */
static status_t follow_step(struct run *run)
{
    const struct train_session *session = run->session;
    uint64_t windows = (uint64_t)session->tokens.train.rows;
    bool ended = false, last = run->step == session->steps;
    while (run->rows >= windows * (run->epochs + (uint64_t)1)) {
        end_epoch(run);
        ended = ended || epoch_needs_checkpoint(run);
    }
    TRY(run_validate(run, last));
    if (!last && is_over(run)) TRY(run_validate(run, true));
    TRY(run_samples(run, is_over(run)));
    bool kept = run->job->best.patience > 0 && step_needs_checkpoint(run);
    return checkpoint(run, ended || kept);
}

/* Tokens: one stream of batches, in which epochs follow each other seamlessly. */
static status_t run_steps(struct run *run)
{
    const struct train_session *session = run->session;
    feed_start_steps(&run->train, session, (uint64_t)batch_share_position(run->job, run->rows),
                     session->steps - run->step);
    if (run->resumed && run->step > 0) TRY(follow_step(run));
    while (!is_over(run)) {
        int64_t began = clock_monotonic_ns();
        struct batch batch;
        bool more;
        TRY(next_batch(run, &batch, &more));
        if (!more) return status_new(STATUS_INTERNAL, "there are fewer batches than were counted");
        TRY(train_step(run, &batch, session->micro_steps, began));
        TRY(checkpoint_step(run, true));
        TRY(follow_step(run));
    }
    return NULL;
}

static status_t save_last(struct run *run, int round, status_t *outcome)
{
    status_free(*outcome); /* already reported */
    *outcome = NULL;
    bool taken = run->captured_step == run->step;
    return run->hooks->save_last(run->hooks->user, round, taken, outcome);
}

static status_t take_last(struct run *run, int round, status_t *outcome)
{
    return run->hooks->take_last(run->hooks->user, run->executor, run->step, round, outcome);
}

/*
 * What must not be lost after the last step, and may fail for want of disk space or memory. The
 * executor keeps the state meanwhile: retries are unlimited, and orders are carried out between
 * them.
 */
static status_t keep_trying(struct run *run,
                            status_t (*once)(struct run *run, int round, status_t *outcome))
{
    status_t outcome = NULL, status = NULL;
    for (int round = 0;; round++) {
        status = once(run, round, &outcome);
        if (status == NULL) status = agreement_reach(&run->ranks, &outcome);
        if (status != NULL || !capture_may_succeed_later(outcome)) break;
        status = run_last_orders(run);
        if (status != NULL) break;
    }
    status_free(outcome);
    return status;
}

/* Hands over the final parameters, then saves the last step's checkpoint before the run ends, so
 * that no progress since the last due one is lost. */
static status_t finish_run(struct run *run, status_t (*finish)(void *, struct executor *, uint64_t))
{
    if (run->hooks->take_last != NULL) {
        session_at(run->session, "takes the final weights");
        TRY(keep_trying(run, take_last));
    }
    if (finish != NULL) TRY(finish(run->hooks->user, run->executor, run->step));
    if (!run->job->checkpoints.last_step || run->hooks->save_last == NULL) return NULL;
    session_at(run->session, "saves the last step's checkpoint");
    return keep_trying(run, save_last);
}

/* A run in which no step changed anything has not trained. All ranks know it. */
static status_t nothing_trained(struct run *run)
{
    const struct tally *whole = &run->whole;
    struct token_measure measure;
    bool known;
    run->agreed = true;
    TRY(status_wrap(train_session_measure(run->session, &measure, &known), "no step trained"));
    return status_new(STATUS_FAILED_PRECONDITION, "no step of %" PRIu64 " trained: %s", run->step,
                      whole->weight > 0 || whole->not_finite != 0
                          ? "the loss, or the gradient's norm, was never finite"
                      : whole->samples > 0
                          ? "all targets are of classes that have the weight 0 in the loss"
                      : run->job->masked
                          ? "data.mask_probability chose no token"
                          : "no target counts (a label below 0, a number that is NaN, and a token "
                            "whose mask is 0 do not)");
}

/* Setup and cleanup. */

/* Lets train_session_abort reach the executor and the communicator from now on. */
static status_t publish(struct run *run)
{
    struct train_session *session = run->session;
    pthread_mutex_lock(&session->mutex);
    session->executor = run->executor;
    session->comm = run->comm;
    pthread_mutex_unlock(&session->mutex);
    return session_check_abort(session);
}

static status_t open_executor(struct run *run)
{
    struct train_session *session = run->session;
    run->baseline = device_allocated_bytes(session->device);
    TRY(executor_new(session->device, run->comm, session->plan, session->train_lowered,
                     session->evaluate_lowered, run->job->seed, &run->executor));
    atomic_store(&session->memory_peak, executor_memory_peak(run->executor));
    TRY(publish(run));
    bool loaded = false;
    if (session->model->precomputed) TRY(run_find_reference(run, &loaded));
    if (run->job->checkpoints.resume || session->spare.since > 0) TRY(run_resume(run));
    bool other = !run->resumed && run->job->source.folder != NULL;
    if (other) TRY(run_load_source(run));
    run->continues = run->resumed || other;
    if (run->continues && !session_has_base(session)) return NULL;
    if (run->job->only_evaluate) run->step = session->steps = run->job->source.step;
    if (run->job->only_evaluate) atomic_store(&session->step, run->step);
    if (!loaded) TRY(run_load_parameters(run));
    if (!loaded) TRY(run_load_trained(run));
    TRY(run_check_base(run));
    return run->continues ? NULL : executor_start_average(run->executor);
}

/* The last metrics, and why there are no more. */
static void note_early_end(struct run *run)
{
    struct train_session *session = run->session;
    if (run->step >= session->steps) return;
    if (run->interval.steps > 0) run_report_metrics(run);
    session->early_end = early_stop_reason(&run->early_stop, &run->job->early_stop,
                                           session->sets[run->job->early_stop.set].name);
}

/* A run without a step: nothing of what it began with changes. */
static status_t only_evaluate(struct run *run,
                              status_t (*finish)(void *, struct executor *, uint64_t))
{
    run->evaluated = 0; /* by the job that took the checkpoint */
    TRY(run_validate(run, true));
    TRY(run_samples(run, true));
    TRY(run_last_orders(run));
    return finish_run(run, finish);
}

static status_t carry_out(struct run *run, status_t (*finish)(void *, struct executor *, uint64_t))
{
    struct train_session *session = run->session;
    const struct train_job *job = run->job;
    TRY(publish(run));
    session_at(session, "opens its data");
    if (!job->only_evaluate) TRY(feed_open(&run->train, session, NULL));
    score_sums_init(&run->sums, session->evaluate_graph);
    if (run->comm != NULL) TRY(lane_open(session->device, LANE_COMM, &run->lane));
    session_at(session, "compares its job with the other ranks'");
    TRY(run_compare_ranks(run));
    session_at(session, "sets its parameters");
    TRY(protect_open(run));
    TRY(open_executor(run));
    TRY(protect_begin(run));
    if (run->hooks->started != NULL)
        run->hooks->started(run->hooks->user, session->plan->hash, session->steps);
    run->began_ns = clock_monotonic_ns();
    if (job->only_evaluate) return only_evaluate(run, finish);
    tune_begin(run);
    TRY(job->data_format == DATA_IMAGES ? run_epochs(run) : run_steps(run));
    note_early_end(run);
    TRY(protect_finish(run));
    TRY(run_last_orders(run));
    atomic_store(&session->memory_peak, run_memory_peak(run));
    if (run->optimizer.taken == 0) return nothing_trained(run);
    return finish_run(run, finish);
}

static void run_deinit(struct run *run)
{
    struct executor *executor = run->executor;
    if (executor != NULL) status_free(executor_settle(executor)); /* an abort still reaches it */
    run->executor = NULL;
    run->comm = NULL;
    status_free(publish(run));
    lane_close(run->lane);
    protect_close(run);
    executor_free(executor);
    feed_close(&run->train);
    score_sums_deinit(&run->sums);
    tune_deinit(run);
}

static status_t check_group(const struct train_session *session, const struct comm *comm)
{
    int world = comm == NULL ? 1 : comm_world(comm), rank = comm == NULL ? 0 : comm_rank(comm);
    if (session->headers_only)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "this session was made to plan, not to train: it has no data");
    if (world != session->job->world || rank != session->rank)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "planned for rank %d of %d, but the communicator has rank %d of %d",
                          session->rank, session->job->world, rank, world);
    return NULL;
}

status_t train_session_run(struct train_session *session, struct comm *comm, int64_t timeout_ms,
                           const struct train_hooks *hooks,
                           status_t (*finish)(void *user, struct executor *executor, uint64_t step))
{
    TRY(check_group(session, comm));
    struct run run = {.session = session,
                      .job = session->job,
                      .hooks = hooks,
                      .comm = session->job->world > 1 ? comm : NULL,
                      .captured_step = UINT64_MAX,
                      .optimizer = session->job->optimizer,
                      .epoch_rate = session->job->optimizer.lr};
    run.ranks = (struct agreement){run.comm, &run.lane, timeout_ms};
    atomic_store(&session->step, 0);
    atomic_store(&session->own_ns, 0);
    atomic_store(&session->evaluated_batch, 0);
    session->run = &run;
    status_t status = carry_out(&run, finish);
    if (status != NULL) {
        /* Aborting makes every operation fail in its own way; report the abort's reason. */
        status_t aborted = session_check_abort(session);
        if (aborted != NULL) {
            status_free(status);
            status = aborted;
        }
        /* The others must not wait for this rank until their deadline. */
        if (!run.agreed && run.comm != NULL) comm_abort(run.comm, status_message(status));
        if (!run.agreed && session->spare.comm != NULL)
            comm_abort(session->spare.comm, status_message(status));
    }
    session_at(session, "sends the final weights");
    if (hooks->released != NULL) hooks->released(hooks->user, status);
    session_at(session, "ends its run");
    run_deinit(&run);
    session_at(session, NULL);
    session->run = NULL;
    return status;
}
