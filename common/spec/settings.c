/* The settings of a job that count; see spec.h. Pure functions, any thread. */
#include "spec/spec.h"

static void take(const Fsdpd__V1__ChosenSettings *chosen, Fsdpd__V1__TrainSpec *train,
                 Fsdpd__V1__FsdpSpec *fsdp)
{
    train->batch_size = chosen->batch_size;
    if (chosen->accumulation_steps > 0) train->accumulation_steps = chosen->accumulation_steps;
    train->no_sync = chosen->no_sync;
    fsdp->choose = false;
    fsdp->strategy = chosen->strategy;
    fsdp->shard_size = chosen->shard_size;
    fsdp->_shard_size_case = chosen->shard_size > 0 ? FSDPD__V1__FSDP_SPEC___SHARD_SIZE_SHARD_SIZE
                                                    : FSDPD__V1__FSDP_SPEC___SHARD_SIZE__NOT_SET;
    fsdp->reshard_after_forward = chosen->reshard_after_forward;
    fsdp->backward_prefetch = chosen->backward_prefetch;
    fsdp->gathered_limit = chosen->gathered_limit;
    fsdp->activation_checkpointing = chosen->activation_checkpointing;
    fsdp->n_activation_checkpointing = chosen->n_activation_checkpointing;
    fsdp->recompute = chosen->recompute;
    fsdp->cpu_offload = chosen->cpu_offload;
    fsdp->keep_frozen = chosen->keep_frozen;
}

const Fsdpd__V1__JobSpec *spec_settings(const Fsdpd__V1__JobSpec *asked,
                                        const Fsdpd__V1__Chosen *chosen, struct spec_settings *out)
{
    if (chosen == NULL || asked->train == NULL || asked->fsdp == NULL) return asked;
    *out = (struct spec_settings){.spec = *asked, .train = *asked->train, .fsdp = *asked->fsdp};
    out->spec.train = &out->train;
    out->spec.fsdp = &out->fsdp;
    if (chosen->settings != NULL) take(chosen->settings, &out->train, &out->fsdp);
    if (chosen->wrap != NULL) out->fsdp.wrap = chosen->wrap;
    if (chosen->tuned) out->fsdp.tune = false;
    if (chosen->workers > 0) out->spec.workers = chosen->workers;
    return &out->spec;
}
