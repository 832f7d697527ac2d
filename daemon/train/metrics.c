/* The metrics of a run, of the steps since the last ones; see run_state.h. */
#include <math.h>

#include "base/clock.h"
#include "train/evaluate.h"
#include "train/run_state.h"

uint64_t run_memory_peak(const struct run *run)
{
    uint64_t peak = executor_memory_peak(run->executor);
    return peak > run->memory_peak ? peak : run->memory_peak;
}

static double per(double sum, double count)
{
    return count > 0 ? sum / count : 0;
}

double run_mean_loss(const struct tally *tally)
{
    bool skipped = tally->weight == 0 && tally->not_finite != 0;
    return skipped ? tally->not_finite : tally_mean(tally->loss, tally->weight);
}

double run_epochs_done(const struct run *run)
{
    if (run->job->only_evaluate) return run->epochs;
    return ((double)run->step + run->shift) / run->session->epoch_steps;
}

/* As many of the job's own data as take the time of all. */
static double evaluations_left(const struct run *run)
{
    const struct train_session *session = run->session;
    if (run->job->data_format == DATA_IMAGES)
        return ceil(((double)session->steps + run->shift) / session->epoch_steps) -
               floor(run_epochs_done(run));
    double batches = 0;
    for (int i = 0; i < session->set_count; i++) {
        uint64_t every = session->sets[i].every_steps;
        uint64_t left = every == 0 ? 1 : (session->steps + every - 1) / every - run->step / every;
        batches += (double)left * (double)session->sets[i].steps;
    }
    return per(batches, (double)session->sets[0].steps);
}

static double estimate_seconds_left(const struct run *run)
{
    const struct train_session *session = run->session;
    double step_ns = per((double)run->whole.ns, (double)run->whole.steps);
    double left = step_ns * (double)(session->steps - run->step);
    if (!run->job->evaluate) return left * 1e-9;
    double evaluation_ns = (double)run->evaluation_ns;
    if (evaluation_ns <= 0) /* none yet: a forward pass is about a third of a training step */
        evaluation_ns = step_ns / 3 * (double)session->sets[0].steps * session->evaluate_batch /
                        run->job->batch_size / session->micro_steps;
    return (left + evaluations_left(run) * evaluation_ns) * 1e-9;
}

double run_row_tokens(const struct run *run)
{
    return (double)(run->job->context * run->session->model->texts);
}

/* The mean over the pairs that count. */
static double preference_of(const struct run *run, enum op_preference_sum sum)
{
    const struct model *model = run->session->model;
    bool logs = sum == PREFERENCE_LOGPS_CHOSEN || sum == PREFERENCE_LOGPS_REJECTED;
    if (!model_has_preferences(model) || (logs && model->target == TARGET_REWARD))
        return (double)NAN;
    return tally_mean(run->interval.preference[sum], run->interval.weight);
}

/* NAN: none was sampled. */
static double sampled_per_second(const struct run *run, bool prefill)
{
    const struct sample_sums *samples = &run->samples;
    int64_t count = prefill ? samples->prompt_tokens : samples->tokens;
    int64_t ns = prefill ? samples->prefill_ns : samples->decode_ns;
    return count > 0 && ns > 0 ? (double)count / ((double)ns * 1e-9) : (double)NAN;
}

void run_report_metrics(struct run *run)
{
    const struct tally *interval = &run->interval;
    double seconds = (double)interval->ns * 1e-9;
    double tokens_per_second = per(interval->tokens, seconds);
    bool tokens = run->job->data_format != DATA_IMAGES;
    const struct sample_sums *samples = &run->samples;
    bool sampled = samples->calls > 0;
    if (run->hooks->metrics != NULL) {
        const struct train_metrics metrics = {
            .step = run->step,
            .epoch = run_epochs_done(run),
            .loss = run_mean_loss(interval),
            .learning_rate = run->optimizer.lr,
            .samples_per_second =
                tokens ? tokens_per_second / run_row_tokens(run) : per(interval->samples, seconds),
            .tokens_per_second = tokens ? tokens_per_second : (double)NAN,
            .counted_tokens_per_second = tokens ? per(interval->samples, seconds) : (double)NAN,
            .flops_per_second = per(run->session->step_flops * (double)interval->steps, seconds),
            .validated = run->validated,
            .validation_loss = run->validation_loss,
            .validation_step = run->validation_step,
            .step_seconds = per((double)interval->ns * 1e-9, (double)interval->steps),
            .seconds_left = estimate_seconds_left(run),
            .train_seconds = (double)(clock_monotonic_ns() - run->began_ns) * 1e-9,
            .gradient_norm = run->job->plan.norm == NORM_NONE ? (double)NAN
                             : isfinite(run->gradient_norm)   ? run->gradient_norm
                                                              : 0,
            .rewards_chosen = preference_of(run, PREFERENCE_REWARDS_CHOSEN),
            .rewards_rejected = preference_of(run, PREFERENCE_REWARDS_REJECTED),
            .rewards_accuracies = preference_of(run, PREFERENCE_ACCURACIES),
            .rewards_margins = preference_of(run, PREFERENCE_REWARDS_CHOSEN) -
                               preference_of(run, PREFERENCE_REWARDS_REJECTED),
            .logps_chosen = preference_of(run, PREFERENCE_LOGPS_CHOSEN),
            .logps_rejected = preference_of(run, PREFERENCE_LOGPS_REJECTED),
            .skipped_steps = run->skipped_steps,
            .communicated_bytes = plan_communicated_per_step(run->session->plan),
            .memory_bytes = executor_memory(run->executor),
            .memory_peak_bytes = run_memory_peak(run),
            .compute_seconds = per((double)interval->compute_ns * 1e-9, (double)interval->steps),
            .communication_seconds = per((double)interval->comm_ns * 1e-9, (double)interval->steps),
            .exposed_communication_seconds =
                per((double)interval->exposed_ns * 1e-9, (double)interval->steps),
            .redundancy_seconds = per((double)run->protection.ns * 1e-9, (double)interval->steps),
            .data_wait_share = per((double)run->wait_ns, (double)interval->ns),
            .sample_prefill_tokens_per_second = sampled_per_second(run, true),
            .sample_tokens_per_second = sampled_per_second(run, false),
            .sample_wait_seconds = sampled ? samples->waited_seconds / samples->calls : (double)NAN,
            .sample_share =
                sampled ? (double)samples->ns / (double)(samples->ns + interval->ns) : (double)NAN,
        };
        run->hooks->metrics(run->hooks->user, &metrics);
    }
    run->interval = (struct tally){0};
    run->samples = (struct sample_sums){0};
    run->wait_ns = run->protection.ns = 0;
}
