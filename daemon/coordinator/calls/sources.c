/* The job whose weights a submission means; see sources.h. */
#include "coordinator/calls/sources.h"

#include "coordinator/calls/access.h"

struct source_steps {
    uint64_t wanted, newest;
    bool found;
};

static status_t take_step(void *user, const Fsdpd__V1__Checkpoint *checkpoint)
{
    struct source_steps *steps = user;
    if (checkpoint->step > steps->newest) steps->newest = checkpoint->step;
    steps->found = steps->found || checkpoint->step == steps->wanted;
    return NULL;
}

static status_t refuse(const char *key, const char *id, status_t status)
{
    return status_with(status, (struct status_details){.reason = "WEIGHTS_NOT_FOUND",
                                                       .subject = id,
                                                       .field = key});
}

/* What is kept after the last step has the weights, but not their average. */
static bool evaluates_average(const job_spec *spec)
{
    const Fsdpd__V1__EmaSpec *ema = spec->train->ema;
    return ema != NULL && ema->decay > 0 && ema->evaluate;
}

static status_t choose(struct coordinator *c, const job_message *of, job_spec *spec)
{
    Fsdpd__V1__ModelSpec *model = spec->model;
    bool given = model->_checkpoint_case != 0, average = evaluates_average(spec);
    struct source_steps steps = {.wanted = given ? model->checkpoint : 0};
    TRY(store_each_checkpoint(c->store, of->id, take_step, &steps));
    bool final = of->has_state_dict && !average;
    if (given && model->checkpoint > 0 && !steps.found)
        return refuse("model.checkpoint", of->id,
                      status_new(STATUS_FAILED_PRECONDITION,
                                 "model.checkpoint: job %s has no checkpoint of step %llu; fsdpctl "
                                 "checkpoints %s lists them",
                                 of->id, (unsigned long long)model->checkpoint, of->id));
    if (!given) model->checkpoint = final ? 0 : steps.newest;
    model->_checkpoint_case = FSDPD__V1__MODEL_SPEC___CHECKPOINT_CHECKPOINT;
    if (model->checkpoint > 0 || final) return NULL;
    if (of->has_state_dict)
        return refuse("train.ema.evaluate", of->id,
                      status_new(STATUS_FAILED_PRECONDITION,
                                 "train.ema.evaluate: of job %s only the final weights are kept, "
                                 "without their average; expected false, or a checkpoint",
                                 of->id));
    return refuse("model.job", of->id,
                  status_new(STATUS_FAILED_PRECONDITION,
                             "model.job: job %s is %s, and has neither final weights nor a "
                             "checkpoint",
                             of->id, job_state_name(of->state)));
}

status_t sources_settle(struct coordinator *c, const struct rpc_call *call, job_spec *spec)
{
    const char *id = spec->model->job;
    if (id[0] == '\0') return NULL;
    const struct job *live = jobs_find(c, id);
    job_message *stored = NULL;
    if (live == NULL) TRY(status_wrap(store_get_job(c->store, id, &stored), "model.job"));
    const job_message *of = live != NULL ? live->message : stored;
    status_t status = access_check(rpc_call_peer(call), of, "evaluate");
    if (status == NULL) status = choose(c, of, spec);
    message_free(stored);
    return status;
}
