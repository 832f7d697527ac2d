/* Before the first step: checks that all ranks are about to run the same job; see run_state.h. */
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "train/evaluate.h"
#include "train/run_state.h"

static uint64_t mix(uint64_t hash, const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < size; i++) hash = (hash ^ at[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
    return hash;
}

static uint64_t mix_schedule(uint64_t hash, const struct train_schedule *schedule)
{
    const uint64_t counts[] = {
        schedule->kind,
        schedule->step_size,
        schedule->warmup_steps,
        schedule->total_steps,
        schedule->cycles,
        schedule->timescale,
        schedule->decay_steps,
        schedule->shape,
        schedule->three_phase,
        schedule->steps,
        (uint64_t)schedule->phase_count,
    };
    const double numbers[] = {
        schedule->gamma,  schedule->warmup_start_factor, schedule->end_factor,
        schedule->power,  schedule->pct_start,           schedule->div_factor,
        schedule->factor, schedule->final_div_factor,
    };
    hash = mix(hash, counts, sizeof counts);
    hash = mix(hash, numbers, sizeof numbers);
    for (int p = 0; p < schedule->phase_count; p++) hash = mix_schedule(hash, &schedule->phases[p]);
    return hash;
}

/* The values beyond the plan that ranks must agree on: the data's size and the job's settings. */
static uint64_t hash_settings(const struct train_session *session)
{
    const struct train_job *job = session->job;
    const struct optimizer_step *optimizer = &job->optimizer;
    const uint64_t counts[] = {
        (uint64_t)session->train_set.count,
        (uint64_t)session->test_set.count,
        session->tokens.hash,
        (uint64_t)job->context,
        job->data_format,
        job->windows,
        job->masked,
        (uint64_t)job->mask_token,
        job->evaluate_interval,
        session->steps,
        job->seed,
        job->epochs,
        job->shuffle,
        job->dropout,
        job->evaluate,
        job->only_evaluate,
        job->source.step,
        job->accumulation_steps,
        job->global_batch,
        job->skip_non_finite,
        job->early_stop.patience,
        job->early_stop.metric,
        job->evaluate_average,
        (uint64_t)job->early_stop.set,
        (uint64_t)job->prompts.count,
        job->prompts.every_steps,
        job->prompts.max_tokens,
        job->prompts.seed,
        job->prompts.top_k,
        job->best.patience,
        job->best.metric,
        job->best.mode,
        (uint64_t)job->best.set,
        evaluation_sets_hash(session),
        optimizer->kind,
        (uint64_t)optimizer->ns_steps,
        optimizer->adjust_lr,
        optimizer->others != NULL ? optimizer->others->kind + 1 : 0,
        optimizer->nesterov,
        session->weights != NULL ? weights_hash(session->weights) : 0,
        session->teacher_weights != NULL ? weights_hash(session->teacher_weights) : 0,
    };
    const double numbers[] = {
        job->transform.mean,
        job->transform.std,
        (double)job->transform.height,
        (double)job->transform.width,
        (double)job->transform.crop_padding,
        job->transform.flip,
        optimizer->lr,
        optimizer->rho,
        optimizer->eps,
        optimizer->weight_decay,
        optimizer->momentum,
        optimizer->dampening,
        optimizer->beta1,
        optimizer->beta2,
        optimizer->lr_decay,
        optimizer->eps1,
        optimizer->eps2,
        optimizer->clip,
        optimizer->beta2_decay,
        optimizer->ema_decay,
        optimizer->others != NULL ? optimizer->others->lr : 0,
        optimizer->others != NULL ? optimizer->others->beta1 : 0,
        optimizer->others != NULL ? optimizer->others->beta2 : 0,
        optimizer->others != NULL ? optimizer->others->eps : 0,
        optimizer->others != NULL ? optimizer->others->weight_decay : 0,
        job->preference == NULL   ? 0
        : job->preference->reward ? -1
                                  : job->preference->loss + 1.0,
        job->preference != NULL ? job->preference->beta : 0,
        job->preference != NULL ? job->preference->label_smoothing : 0,
        job->teacher != NULL ? job->teacher->how.temperature : 0,
        job->teacher != NULL ? job->teacher->how.share : 0,
        job->max_norm,
        job->mask_probability,
        job->early_stop.min_delta,
        job->prompts.temperature,
        job->prompts.top_p,
        job->prompts.min_p,
        job->prompts.repetition_penalty,
    };
    uint64_t hash = mix(UINT64_C(0xcbf29ce484222325), counts, sizeof counts);
    hash = mix_schedule(hash, &job->schedule);
    for (int s = 0; s < session->set_count; s++) {
        const struct evaluation_set *set = &session->sets[s];
        const uint64_t of[] = {set->every_steps, set->steps, set->tokens->hash};
        hash = mix(hash, of, sizeof of);
    }
    for (int g = 0; g < optimizer->group_count; g++) {
        hash = mix(hash, &optimizer->groups[g].weight_decay, sizeof(double));
        hash = mix(hash, &optimizer->groups[g].lr_scale, sizeof(double));
    }
    return mix(hash, numbers, sizeof numbers);
}

enum { HASH_FLOATS = 4 }; /* see agreement_pack */

static status_t check_hashes(struct run *run, const float *all)
{
    for (int rank = 1; rank < run->job->world; rank++) {
        const float *theirs = all + (size_t)rank * 2 * HASH_FLOATS;
        bool plans = memcmp(theirs, all, HASH_FLOATS * sizeof *all) == 0;
        bool settings =
            memcmp(theirs + HASH_FLOATS, all + HASH_FLOATS, HASH_FLOATS * sizeof *all) == 0;
        if (plans && settings) continue;
        run->agreed = true;
        if (plans)
            return status_new(STATUS_FAILED_PRECONDITION,
                              "the data or settings of rank %d differ from those of rank 0", rank);
        return status_new(STATUS_FAILED_PRECONDITION,
                          "the plan of rank %d differs from that of rank 0: %016" PRIx64
                          ", not %016" PRIx64,
                          rank, agreement_unpack(theirs, HASH_FLOATS),
                          agreement_unpack(all, HASH_FLOATS));
    }
    return NULL;
}

status_t run_compare_ranks(struct run *run)
{
    if (run->comm == NULL) return NULL;
    enum { EACH = 2 * HASH_FLOATS };
    AUTO_FREE float *mine = mem_alloc_array(EACH, sizeof *mine);
    AUTO_FREE float *all = mem_alloc_array((size_t)run->job->world * EACH, sizeof *all);
    agreement_pack(run->session->plan->hash, HASH_FLOATS, mine);
    agreement_pack(hash_settings(run->session), HASH_FLOATS, mine + HASH_FLOATS);
    TRY(agreement_wait(&run->ranks, comm_all_gather(run->comm, run->lane, mine, all, EACH)));
    return check_hashes(run, all);
}
