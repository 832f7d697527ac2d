/*
 * Advice: plans the job with other settings and reports those that improve it, with the gain. The
 * number of settings tried depends only on the size of the plan, never on a clock, so the same job
 * gets the same advice everywhere. No state; any thread.
 */
#include "planning/advice.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/interrupt.h"
#include "base/mem.h"
#include "base/text.h"
#include "setup/outside.h"

enum {
    TRIES_MAX = 48,          /* for a small plan */
    TRIES_MIN = 2,           /* for a large plan */
    TRIES_WORK = 200000,     /* limit for the instructions planned in total */
    TRIES_PAIRS = 1500,      /* limit for the millions of pairs of them, which placing compares */
    TRIES_IF_UNPLANNED = 24, /* the job's own plan was not made */
    THRESHOLDS = 18,         /* size policies: five to six powers of ten */
    FITS_MAX = 3,            /* number of fitting alternatives named */
};

/* Smaller gains are not reported. */
static const double GAIN_SECONDS = 0.03, GAIN_BYTES = 0.02, EXPOSED = 0.05;

int advice_tries(int instruction_count)
{
    if (instruction_count <= 0) return TRIES_IF_UNPLANNED;
    int tries = TRIES_WORK / instruction_count;
    int of_pairs = (int)(TRIES_PAIRS * 1e6 / ((double)instruction_count * instruction_count));
    if (tries < TRIES_MIN) tries = TRIES_MIN;
    if (tries > of_pairs) tries = of_pairs;
    return tries > TRIES_MAX ? TRIES_MAX : tries;
}

int advisor_host_ranks(const struct advisor *advisor, const struct train_job *job)
{
    return advisor->host_workers < job->world ? advisor->host_workers : job->world;
}

status_t advisor_check_fits(const struct advisor *advisor, const struct train_job *job,
                            const struct train_session *session)
{
    const struct plan *plan = train_session_plan(session);
    const struct plan_host host = {.memory_bytes = advisor->host_memory_bytes,
                                   .staging_bytes = train_session_staging_bytes(session),
                                   .ranks = advisor_host_ranks(advisor, job)};
    TRY(plan_check_fits(plan, train_session_outside_bytes(session), advisor->memory_bytes));
    return host.memory_bytes > 0 ? plan_check_host_fits(plan, &host) : NULL;
}

struct advice_outcome {
    uint64_t peak, train;          /* bytes per rank: allocated, and the part that training needs */
    struct plan_estimate estimate; /* seconds of a training step */
    double seconds;
};

static void judge(const struct advisor *advisor, const struct plan *plan,
                  struct advice_outcome *outcome)
{
    struct plan_timing *timings = mem_alloc_array(plan->train.instruction_count, sizeof *timings);
    plan_estimate_program(plan, &plan->train, &advisor->profile->rates, timings,
                          &outcome->estimate);
    free(timings);
    outcome->seconds = plan_message_round(outcome->estimate.step_seconds);
    outcome->peak = plan->peak_bytes;
    outcome->train = plan->state_bytes + plan->train.work_bytes;
}

/* Whether the job can be planned and fits. */
static bool try_job(struct advisor *advisor, const struct train_job *job,
                    struct advice_outcome *outcome)
{
    if (advisor->tries <= 0 || interrupted()) return false;
    advisor->tries--;
    struct train_session *session = NULL;
    struct train_job tried = *job;
    tried.weights = NULL; /* their headers have been read already */
    status_t status = train_session_new(&tried, advisor->device, 0, true, &session);
    if (status == NULL) status = advisor_check_fits(advisor, job, session);
    bool fits = status == NULL;
    if (fits) judge(advisor, train_session_plan(session), outcome);
    status_free(status);
    train_session_free(session);
    return fits;
}

/* The next smaller of 1, 2, 5, 10, 20, 50, ... */
static uint64_t round_below(uint64_t value)
{
    uint64_t power = 1;
    while (value > power * 10) power *= 10;
    if (value > 5 * power) return 5 * power;
    return value > 2 * power ? 2 * power : power;
}

/* The size policy with the lowest memory for training; 0 if none can be planned. */
static uint64_t find_policy(struct advisor *advisor, struct train_job *job, uint64_t parameters,
                            struct advice_outcome *best)
{
    uint64_t found = 0;
    int thresholds = advisor->tries / 2 < THRESHOLDS ? advisor->tries / 2 : THRESHOLDS;
    for (uint64_t size = round_below(parameters); thresholds-- > 0; size = round_below(size)) {
        struct advice_outcome outcome;
        if (job->wrap.kind != WRAP_SIZE) job->wrap = (struct wrap_policy){.kind = WRAP_SIZE};
        job->wrap.min_num_params = size;
        if (try_job(advisor, job, &outcome) && (found == 0 || outcome.train < best->train)) {
            found = size;
            *best = outcome;
        }
        if (size <= 1) break;
    }
    job->wrap.min_num_params = found;
    return found;
}

/* ---- Advice for a plan that fits ---- */

/* "1.2 ms per step instead of 1.5 ms" */
static void add_times(struct buf *out, double now, double then)
{
    char a[32], b[32];
    buf_printf(out, "%s per step instead of %s", text_format_duration(then, a),
               text_format_duration(now, b));
}

static void add_change(struct buf *out, uint64_t now, uint64_t then)
{
    char text[32];
    if (then > now) buf_printf(out, "%s more memory per rank", text_format_bytes(then - now, text));
    else if (then < now)
        buf_printf(out, "%s less memory per rank", text_format_bytes(now - then, text));
    else buf_add_text(out, "as much memory");
}

static void advise(Fsdpd__V1__Plan *message, struct buf *text)
{
    plan_message_add_advice(message, "%s", buf_text(text));
    buf_deinit(text);
}

/* Reports it if the job would be faster with `setting`. */
static void offer_faster(struct advisor *advisor, const struct train_job *job, const char *setting,
                         const struct advice_outcome *now, Fsdpd__V1__Plan *message)
{
    struct advice_outcome then;
    struct buf text = {0};
    char a[32], b[32];
    if (!try_job(advisor, job, &then) || then.seconds > now->seconds * (1 - GAIN_SECONDS)) return;
    if (now->estimate.communication_seconds > now->estimate.compute_seconds &&
        message->n_advice == 0)
        buf_printf(&text, "communication (%s) outweighs compute (%s): ",
                   text_format_duration(now->estimate.communication_seconds, a),
                   text_format_duration(now->estimate.compute_seconds, b));
    buf_printf(&text, "%s would take ", setting);
    add_times(&text, now->seconds, then.seconds);
    buf_add_text(&text, ", with ");
    add_change(&text, now->train, then.train);
    advise(message, &text);
}

/* Settings that leave less communication exposed; those with the lowest memory first. */
static void advise_faster(struct advisor *advisor, const struct advice_outcome *now,
                          Fsdpd__V1__Plan *message)
{
    if (now->estimate.exposed_seconds < EXPOSED * now->seconds) return;
    struct train_job job = *advisor->job;
    int per_host = advisor->profile->rates.devices_per_host;
    if (job.plan.strategy == STRATEGY_NO_SHARD) return;
    if (job.plan.backward_prefetch != PREFETCH_PRE) {
        job.plan.backward_prefetch = PREFETCH_PRE;
        offer_faster(advisor, &job, "fsdp.backward_prefetch=pre", now, message);
        job.plan.backward_prefetch = advisor->job->plan.backward_prefetch;
    }
    bool hosts = per_host > 1 && job.world > per_host && job.world % per_host == 0;
    if (job.plan.strategy == STRATEGY_FULL_SHARD && hosts && job.plan.reshard == RESHARD_DEFAULT) {
        char *setting = mem_printf("fsdp.reshard_after_forward=%d (a host)", per_host);
        job.plan.reshard = RESHARD_GROUP;
        job.plan.reshard_ranks = per_host;
        offer_faster(advisor, &job, setting, now, message);
        job.plan.reshard = RESHARD_DEFAULT;
        free(setting);
    }
    if (job.plan.strategy == STRATEGY_FULL_SHARD) {
        job.plan.strategy = STRATEGY_SHARD_GRAD_OP;
        offer_faster(advisor, &job, "fsdp.strategy=shard_grad_op", now, message);
    }
    if (job.plan.strategy != STRATEGY_HYBRID_SHARD && hosts) {
        char *setting =
            mem_printf("fsdp.strategy=hybrid_shard with fsdp.shard_size=%d (a host)", per_host);
        job.plan.strategy = STRATEGY_HYBRID_SHARD;
        job.shard_size = per_host;
        offer_faster(advisor, &job, setting, now, message);
        free(setting);
    }
    job.plan.strategy = STRATEGY_NO_SHARD;
    offer_faster(advisor, &job, "fsdp.strategy=no_shard", now, message);
}

static const struct unit *largest_unit(const struct unit_set *units)
{
    const struct unit *largest = &units->units[0];
    for (int u = 1; u < units->unit_count; u++)
        if (units->units[u].flat.parameter_elements > largest->flat.parameter_elements)
            largest = &units->units[u];
    return largest;
}

/* Saved in training; evaluation may determine the allocated memory. */
static void add_saved(struct buf *out, const struct advice_outcome *now,
                      const struct advice_outcome *then)
{
    char text[32];
    buf_printf(out, "would save %s per rank in training",
               text_format_bytes(now->train - then->train, text));
    if (now->peak - then->peak < now->train - then->train)
        buf_printf(out, " (%s of what is allocated: evaluation needs more)",
                   text_format_bytes(now->peak - then->peak, text));
    buf_add_text(out, ", at ");
    add_times(out, now->seconds, then->seconds);
}

/* One unit that holds most of the parameters dominates the gathered memory. */
static void advise_smaller_units(struct advisor *advisor, const struct train_session *session,
                                 const struct advice_outcome *now, Fsdpd__V1__Plan *message)
{
    const struct unit_set *units = train_session_units(session);
    const struct unit *largest = largest_unit(units);
    uint64_t all = message->parameters, most = (uint64_t)largest->flat.parameter_elements;
    if (advisor->job->world == 1 || advisor->job->plan.strategy == STRATEGY_NO_SHARD ||
        most * 2 <= all)
        return;
    struct train_job job = *advisor->job;
    struct advice_outcome then;
    struct buf text = {0};
    bool root = largest == &units->units[units->unit_count - 1];
    buf_printf(&text, "%s holds %.0f%% of the parameters%s", largest->name,
               100.0 * (double)most / (double)all,
               root && units->unit_count > 1 ? " and stays gathered for most of a step" : "");
    uint64_t size = find_policy(advisor, &job, all, &then);
    if (size > 0 && then.train < now->train &&
        (double)(now->train - then.train) > GAIN_BYTES * (double)now->train &&
        then.peak <= now->peak) {
        buf_printf(&text, ": fsdp.wrap.policy=size with min_num_params=%" PRIu64 " ", size);
        add_saved(&text, now, &then);
        advise(message, &text);
        return;
    }
    plan_message_add_note(message, "%s, and no size policy that was tried saves memory",
                          buf_text(&text));
    buf_deinit(&text);
}

static void advise_sharding(struct advisor *advisor, const struct advice_outcome *now,
                            Fsdpd__V1__Plan *message)
{
    if (advisor->job->plan.strategy != STRATEGY_NO_SHARD || advisor->job->world == 1) return;
    struct train_job job = *advisor->job;
    struct advice_outcome then;
    struct buf text = {0};
    job.plan.strategy = STRATEGY_FULL_SHARD;
    if (!try_job(advisor, &job, &then) || then.train >= now->train || then.peak > now->peak ||
        (double)(now->train - then.train) < GAIN_BYTES * (double)now->train)
        return;
    buf_add_text(&text, "fsdp.strategy=full_shard ");
    add_saved(&text, now, &then);
    advise(message, &text);
}

/* Half the width is slower where products in it are not faster. */
static void advise_precision(struct advisor *advisor, const struct advice_outcome *now,
                             Fsdpd__V1__Plan *message)
{
    static const char setting[] = "precision.param_dtype=f32";
    struct train_job job = *advisor->job;
    if (job.plan.gathered_dtype != DTYPE_BF16 || job.plan.rounded) return;
    job.plan.gathered_dtype = DTYPE_F32;
    if (device_has_bf16(advisor->device)) offer_faster(advisor, &job, setting, now, message);
    else
        plan_message_add_advice(message,
                                "%s would be faster: this processor has no instructions for "
                                "products in bf16, which are computed from f32 copies",
                                setting);
}

void advice_add(struct advisor *advisor, const struct train_session *session,
                Fsdpd__V1__Plan *message)
{
    struct advice_outcome now;
    judge(advisor, train_session_plan(session), &now);
    advise_faster(advisor, &now, message);
    advise_precision(advisor, &now, message);
    advise_sharding(advisor, &now, message);
    advise_smaller_units(advisor, session, &now, message);
    if (advisor->tries == 0)
        plan_message_add_note(message,
                              "the plan is large, so not all alternatives have been tried");
}

/* ---- A plan that does not fit ---- */

struct ways {
    struct buf *out;
    int count;
};

static void add_way(struct ways *ways, const struct advice_outcome *outcome, const char *format,
                    ...) FSDPD_PRINTF(3, 4);

static void add_way(struct ways *ways, const struct advice_outcome *outcome, const char *format,
                    ...)
{
    char bytes[32];
    va_list args;
    va_start(args, format);
    status_t text = status_new_v(STATUS_UNKNOWN, format, args);
    va_end(args);
    buf_printf(ways->out, "%s%s (%s)", ways->count == 0 ? "; it would fit with " : ", or with ",
               status_message(text), text_format_bytes(outcome->peak, bytes));
    status_free(text);
    ways->count++;
}

static void try_batches(struct advisor *advisor, struct ways *ways)
{
    struct advice_outcome outcome;
    struct train_job job = *advisor->job;
    int tries = TRIES_IF_UNPLANNED;
    advisor->tries = tries;
    while (job.batch_size > 1 && tries-- > 0) {
        job.batch_size /= 2;
        if (!try_job(advisor, &job, &outcome)) continue;
        add_way(ways, &outcome, "train.batch_size=%" PRIu32, job.batch_size);
        return;
    }
}

static uint64_t count_parameters(const struct train_job *job)
{
    struct model *model = NULL;
    status_t status = model_parse_with(job->model_text, job->model_length, job->model_file,
                                       job->model_arguments, job->model_argument_count, &model);
    if (status == NULL && job->lora != NULL) status = model_adapt(model, job->lora);
    uint64_t count = status == NULL ? (uint64_t)model_parameter_elements(model) : 0;
    status_free(status);
    model_free(model);
    return count;
}

/* With the current policy, and with smaller units. */
static void try_offload(struct advisor *advisor, struct ways *ways)
{
    struct advice_outcome outcome;
    struct train_job job = *advisor->job;
    if (job.plan.cpu_offload || device_is_host(advisor->device)) return;
    job.plan.cpu_offload = true;
    advisor->tries = TRIES_IF_UNPLANNED;
    if (try_job(advisor, &job, &outcome)) {
        add_way(ways, &outcome, "fsdp.cpu_offload=true");
        return;
    }
    uint64_t size = find_policy(advisor, &job, count_parameters(&job), &outcome);
    if (size > 0)
        add_way(
            ways, &outcome,
            "fsdp.cpu_offload=true, fsdp.wrap.policy=size and fsdp.wrap.min_num_params=%" PRIu64,
            size);
}

void advice_what_fits(struct advisor *advisor, struct buf *out)
{
    struct ways ways = {.out = out};
    struct advice_outcome outcome;
    struct train_job job = *advisor->job;
    advisor->tries = TRIES_IF_UNPLANNED;
    bool sharding = job.plan.strategy != STRATEGY_NO_SHARD;
    if (!sharding && job.world > 1) {
        job.plan.strategy = STRATEGY_FULL_SHARD;
        if (try_job(advisor, &job, &outcome)) add_way(&ways, &outcome, "fsdp.strategy=full_shard");
    }
    uint64_t size =
        job.world > 1 ? find_policy(advisor, &job, count_parameters(&job), &outcome) : 0;
    if (size > 0 && ways.count == 0)
        add_way(&ways, &outcome, "%sfsdp.wrap.policy=size and fsdp.wrap.min_num_params=%" PRIu64,
                sharding ? "" : "fsdp.strategy=full_shard, ", size);
    try_batches(advisor, &ways);
    try_offload(advisor, &ways);
    job = *advisor->job;
    advisor->tries = TRIES_IF_UNPLANNED;
    for (int world = job.world * 2; sharding && ways.count < FITS_MAX && world <= PROFILE_WORLD_MAX;
         world *= 2) {
        job.world = world;
        if (!try_job(advisor, &job, &outcome)) continue;
        add_way(&ways, &outcome, "workers=%d", world);
        break;
    }
    if (ways.count == 0)
        buf_add_text(out, "; no other strategy, policy, batch or number of workers that was tried "
                          "would fit");
}
