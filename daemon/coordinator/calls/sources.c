/* The job whose weights a submission means; see calls.h. */
#include "coordinator/calls/calls.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/calls/access.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/calls/pulls.h"
#include "coordinator/jobs/checkpoint_place.h"
#include "coordinator/workers/planner.h"
#include "proto/message.h"
#include "spec/spec.h"

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

/* Only what describes its parameters. */
static Fsdpd__V1__ModelSpec *describe(const Fsdpd__V1__ModelSpec *of)
{
    Fsdpd__V1__ModelSpec model = FSDPD__V1__MODEL_SPEC__INIT;
    model.file_name = of->file_name;
    model.text = of->text;
    model.hf_config = of->hf_config;
    model.args = of->args;
    model.n_args = of->n_args;
    model.lora = of->lora;
    return message_copy(&model);
}

/* A job that is not over is waited for, as `after` does. */
static void wait_for(job_spec *spec, const char *id)
{
    for (size_t i = 0; i < spec->n_after; i++)
        if (strcmp(spec->after[i], id) == 0) return;
    spec->after = mem_resize_array(spec->after, spec->n_after + 1, sizeof *spec->after);
    spec->after[spec->n_after++] = mem_strdup(id);
}

/* What the adapters of a job are, which another one continues: with another scale, for instance,
 * they would be no more what was trained. */
static status_t take_lora(const job_message *of, job_spec *spec)
{
    static const char *const keys[] = {"model.lora.", NULL};
    const char *key = spec_find_change(spec, of->spec, keys);
    if (spec->model->lora == NULL || spec->model->lora->rank == 0) {
        message_free(spec->model->lora);
        spec->model->lora = message_copy(of->spec->model->lora);
    } else if (key != NULL) {
        return status_new(STATUS_FAILED_PRECONDITION,
                          "%s is another one in job %s, whose adapters training continues; "
                          "expected the same or nothing",
                          key, of->id);
    }
    return NULL;
}

static status_t take_from(struct coordinator *c, const struct spec_from *found,
                          const job_message *of, bool over, job_spec *spec)
{
    Fsdpd__V1__JobWeights *from = found->from;
    const Fsdpd__V1__LoraSpec *lora = of->spec->model->lora;
    bool adapted = lora != NULL && lora->rank > 0;
    if (found->adapter && !adapted)
        return status_new(
            STATUS_FAILED_PRECONDITION,
            "job %s trains no adapters (model.lora); model.weights takes whole models", of->id);
    if (found->adapter) TRY(take_lora(of, spec));
    message_free(from->model);
    from->model = describe(of->spec->model);
    if (!over) {
        wait_for(spec, of->id);
        return NULL;
    }
    TRY(checkpoint_place_choose(c, of, from->checkpoint, &from->step));
    from->_step_case = FSDPD__V1__JOB_WEIGHTS___STEP_STEP;
    bool lacks = of->spec->model->base_dtype > FSDPD__V1__BASE_DTYPE__BASE_DTYPE_F32;
    if (from->step == 0 || found->adapter || !lacks) return NULL;
    return status_new(STATUS_FAILED_PRECONDITION,
                      "the checkpoints of job %s lack the parameters that it does not train "
                      "(model.base_dtype); expected its final weights (save_model)",
                      of->id);
}

static status_t find_job(struct coordinator *c, const struct rpc_call *call, const char *id,
                         const char *doing, job_message **stored, const job_message **of)
{
    const struct job *live = jobs_find(c, id);
    if (live == NULL) TRY(store_get_job(c->store, id, stored));
    *of = live != NULL ? live->message : *stored;
    return access_check(rpc_call_peer(call), *of, doing);
}

static status_t settle_from(struct coordinator *c, const struct rpc_call *call,
                            const struct spec_from *found, job_spec *spec)
{
    job_message *stored = NULL;
    const job_message *of = NULL;
    AUTO_FREE char *key = mem_printf("%s.job", found->key);
    status_t status = find_job(c, call, found->from->job, "take the weights of", &stored, &of);
    if (status == NULL) status = take_from(c, found, of, stored != NULL, spec);
    message_free(stored);
    if (status == NULL) return NULL;
    return refuse(key, found->from->job, status_wrap(status, "%s", key));
}

status_t sources_settle(struct coordinator *c, const struct rpc_call *call, job_spec *spec)
{
    struct spec_from found[SPEC_FROM_MAX];
    int count = spec_find_from(spec->model, found);
    for (int i = 0; i < count; i++) TRY(settle_from(c, call, &found[i], spec));
    if (spec->model->job[0] == '\0') return NULL;
    job_message *stored = NULL;
    const job_message *of = NULL;
    status_t status = find_job(c, call, spec->model->job, "evaluate", &stored, &of);
    if (status == NULL) status = choose(c, of, spec);
    message_free(stored);
    return status_code(status) == STATUS_NOT_FOUND ? status_wrap(status, "model.job") : status;
}

/* ---- the files of a job's own model ---- */

static const struct job_call_type file_calls = {.size = sizeof(struct job_call)};

static void on_file(void *user, status_t status, const job_spec *spec,
                    const Fsdpd__V1__PlanResult *result)
{
    (void)spec;
    struct job_call *own = user;
    if (status != NULL) job_call_finish(own, status);
    else job_call_reply(own, &result->file->base);
}

/* A worker of another kind than the job's is as good, but may be of a host without the directory.
 */
static status_t read_file(struct job_call *own, const job_spec *of,
                          const Fsdpd__V1__GetModelFileRequest *request)
{
    Fsdpd__V1__ModelSpec model = FSDPD__V1__MODEL_SPEC__INIT;
    Fsdpd__V1__JobSpec spec = FSDPD__V1__JOB_SPEC__INIT;
    model.hf = of->model->hf;
    spec.model = &model;
    if (planner_has_worker(own->c, of->device)) spec.device = of->device;
    if (model.hf[0] == '\0')
        return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                      "the model of job %s is a file (model.file), so it has no "
                                      "tokenizer and no other files",
                                      own->id),
                           (struct status_details){.reason = "JOB_HAS_NO_DIRECTORY",
                                                   .subject = own->id});
    return planner_read_file(own->c, &spec, access_user(own->call), request, on_file, own);
}

void sources_get_file(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__GetModelFileRequest *request = (const void *)message;
    const struct job *live = jobs_find(c, request->id);
    job_message *stored = NULL;
    status_t status = live == NULL ? store_get_job(c->store, request->id, &stored) : NULL;
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct job_call *own = job_call_begin(&file_calls, call, c, request->id);
    status = read_file(own, (live != NULL ? live->message : stored)->spec, request);
    if (status != NULL) job_call_finish(own, status);
    message_free(stored);
}

void sources_pull(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__PullStateDictRequest *request = (const void *)message;
    status_t status = status_new(STATUS_PERMISSION_DENIED,
                                 "no job that runs on %s begins with the weights of job %s",
                                 rpc_call_peer(call)->name, request->id);
    for (int i = 0; i < c->job_count && status != NULL; i++) {
        if (c->jobs[i]->attempt == NULL ||
            !checkpoint_place_names(c->jobs[i]->message, request->id))
            continue;
        status_t refused = access_check_rank(c, call, c->jobs[i]->message->id);
        if (refused == NULL) {
            status_free(status);
            status = NULL;
        }
        status_free(refused);
    }
    if (status != NULL) rpc_call_finish(call, status);
    else pulls_start(call, message, service);
}
