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

status_t evaluation_place_average(struct run *run, bool in)
{
    if (!run->job->evaluate_average || run->average_in_place == in) return NULL;
    run->average_in_place = in;
    return executor_swap_average(run->executor);
}

/* Orders find the parameters. */
static status_t run_orders_between(struct run *run, float signal)
{
    if ((uint64_t)signal <= run->orders_done) return run_orders(run, signal);
    TRY(evaluation_place_average(run, false));
    TRY(run_orders(run, signal));
    return evaluation_place_average(run, true);
}

static status_t evaluate_rows(struct run *run, struct feed *feed, struct tally *tally)
{
    feed_start_epoch(feed, 1, 0);
    score_sums_clear(&run->sums);
    for (uint64_t batches = 0;; batches++) {
        int64_t began = clock_monotonic_ns();
        struct batch batch;
        bool more;
        session_at(run->session, "waits for a batch of the evaluation");
        atomic_fetch_add(&run->session->evaluated_batch, 1);
        TRY(loader_next(feed->loader, &batch, &more));
        session_at(run->session, "evaluates");
        if (!more) break;
        struct step_input input = run_make_input(run, &batch);
        /* Each evaluation of as many ranks draws alike, and not as training does. */
        input.step = UINT64_C(1) << 31 | batches;
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
        if (run->stops_evaluation) break;
    }
    return NULL;
}

static status_t evaluate_set(struct run *run, const struct evaluation_set *set, struct tally *tally)
{
    struct feed feed = {0};
    bool within = atomic_exchange(&run->session->evaluates, true);
    atomic_fetch_add(&run->session->evaluated_batch, 1);
    status_t status = executor_share_buffers(run->executor);
    if (status == NULL) status = feed_open(&feed, run->session, set);
    if (status == NULL) status = evaluation_place_average(run, true);
    if (status == NULL) status = evaluate_rows(run, &feed, tally);
    status = status_first(status, evaluation_place_average(run, false));
    feed_close(&feed);
    atomic_store(&run->session->evaluates, within);
    return status;
}

static status_t refuse_loss(struct run *run, const struct evaluation_set *set, double loss)
{
    run->agreed = true;
    return status_new(STATUS_FAILED_PRECONDITION,
                      "the %s loss%s%s is %f after step %" PRIu64
                      "; try a smaller optimizer.lr, or train.clip_grad_norm",
                      run->job->data_format == DATA_IMAGES ? "test" : "validation",
                      set->name[0] != '\0' ? " of " : "", set->name, unsigned_nan(loss), run->step);
}

status_t run_evaluate(struct run *run, int set, struct tally *tally)
{
    const struct evaluation_set *evaluated = &run->session->sets[set];
    status_t status = evaluate_set(run, evaluated, tally);
    bool fails = !isfinite(tally->loss) && !run->job->only_evaluate;
    if (status == NULL && fails) status = refuse_loss(run, evaluated, tally->loss);
    if (status == NULL && set == 0) run->evaluation_ns = tally->ns;
    return status;
}

void evaluation_note(struct run *run, int set, const struct tally *tally)
{
    const struct train_job *job = run->job;
    double loss = tally_mean(tally->loss, tally->weight);
    double accuracy = tally_mean(tally->correct, tally->samples);
    if (set == job->early_stop.set)
        early_stop_note(&run->early_stop, &job->early_stop, run->step, loss, accuracy);
    if (set == job->best.set) early_stop_note(&run->best, &job->best, run->step, loss, accuracy);
}

struct train_scores evaluation_scores(const struct run *run, const struct tally *tally)
{
    return score_sums_compute(&run->sums, run->session->model->target,
                              tally_mean(tally->loss, tally->weight), tally->correct,
                              tally->samples);
}

static struct train_validation result_of(const struct run *run, const struct evaluation_set *set,
                                         const struct tally *tally, double epoch, int64_t began)
{
    return (struct train_validation){
        .set = set->name,
        .step = run->step,
        .epoch = epoch,
        .loss = unsigned_nan(tally_mean(tally->loss, tally->weight)),
        .tokens = (uint64_t)tally->samples,
        .scores = evaluation_scores(run, tally),
        .seconds = (double)(clock_monotonic_ns() - began) * 1e-9,
    };
}

void evaluation_report(struct run *run, int set, const struct tally *tally, double epoch,
                       int64_t began)
{
    const struct train_validation validation =
        result_of(run, &run->session->sets[set], tally, epoch, began);
    if (set == 0) {
        run->validated = true;
        run->validation_loss = validation.loss;
        run->validation_step = run->step;
    }
    if (run->hooks->validation != NULL) run->hooks->validation(run->hooks->user, &validation);
}

static status_t validate(struct run *run, int set)
{
    int64_t began = clock_monotonic_ns();
    struct tally tally = {0};
    TRY(run_evaluate(run, set, &tally));
    if (run->evaluated_step != run->step) run->evaluated = 0;
    run->evaluated_step = run->step;
    run->evaluated |= UINT32_C(1) << set;
    evaluation_note(run, set, &tally);
    evaluation_report(run, set, &tally, run_epochs_done(run), began);
    return NULL;
}

static bool is_due(const struct run *run, int set, bool last)
{
    uint64_t every = run->session->sets[set].every_steps;
    bool done = run->evaluated_step == run->step && (run->evaluated >> set & 1) != 0;
    return !done && (last || (every > 0 && run->step % every == 0));
}

status_t run_validate(struct run *run, bool last)
{
    for (int set = 0; set < run->session->set_count; set++)
        if (is_due(run, set, last)) TRY(validate(run, set));
    return NULL;
}

uint64_t evaluation_sets_hash(const struct train_session *session)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (int set = 0; set < session->set_count; set++) {
        const char *at = session->sets[set].name;
        do hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
        while (*at++ != '\0');
    }
    return hash;
}

/* ---- evaluations that an order asks for ---- */

/* Two sets that differ in it have other data. */
static uint64_t hash_of(const struct evaluation_set *set)
{
    return set->images != NULL ? (uint64_t)set->images->count << 20 : set->tokens->hash;
}

/* All ranks must read the same; *outcome is whether this one can read. */
static status_t agree_on_data(struct run *run, const struct evaluation_set *set, status_t *outcome)
{
    uint64_t mine = *outcome == NULL ? hash_of(set) ^ set->steps : 0, first = mine;
    TRY(agreement_share(&run->ranks, &first, sizeof first, 0));
    if (*outcome == NULL && first != 0 && first != mine)
        *outcome = status_new(STATUS_FAILED_PRECONDITION,
                              "rank %d reads other data there than rank 0", run->session->rank);
    return agreement_reach(&run->ranks, outcome);
}

/* It may be within another evaluation, whose sums continue afterwards. */
static status_t evaluate_apart(struct run *run, const struct evaluation_set *set,
                               struct train_validation *result, status_t *refused)
{
    const struct score_sums sums = run->sums;
    bool stops = run->stops_evaluation;
    int64_t began = clock_monotonic_ns();
    struct tally tally = {0};
    run->stops_evaluation = false;
    score_sums_init(&run->sums, run->session->evaluate_graph);
    status_t status = evaluate_set(run, set, &tally);
    if (run->stops_evaluation) *refused = status_new(STATUS_CANCELLED, "the client is gone");
    else *result = result_of(run, set, &tally, run_epochs_done(run), began);
    score_sums_deinit(&run->sums);
    run->sums = sums;
    run->stops_evaluation = stops;
    session_at(run->session, "is between two steps");
    return status;
}

status_t train_session_evaluate(struct train_session *session, const struct held_out *held,
                                status_t found, struct train_validation *result, status_t *refused)
{
    struct run *run = session->run;
    struct evaluation_set set = {0};
    *refused = found;
    if (found == NULL && session->set_count == 0)
        *refused = status_new(STATUS_FAILED_PRECONDITION,
                              "train.evaluate is false: the job's plan has no evaluation");
    if (*refused == NULL && held != NULL && session->model->precomputed)
        *refused = status_new(STATUS_FAILED_PRECONDITION,
                              "dpo.reference: precomputed: what the reference makes of these data "
                              "was not computed before training: expected the job's own data");
    if (*refused == NULL && held != NULL) *refused = session_open_set(session, held, &set);
    const struct evaluation_set *of = held != NULL ? &set : session->sets;
    status_t status = agree_on_data(run, of, refused);
    if (status == NULL && *refused == NULL) status = evaluate_apart(run, of, result, refused);
    token_data_close(&set.own);
    image_set_close(&set.own_images);
    return status;
}

void train_session_stop_evaluation(struct train_session *session)
{
    session->run->stops_evaluation = true;
}
