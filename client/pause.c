/* pause: takes checkpoints and frees the workers; resume: continues from there, or after a
 * failure. */
#include "base/mem.h"
#include "jobs.h"
#include "spec/spec.h"

const struct verb_option resume_options[] = {
    {"set", 0, "KEY=VALUE", "override a setting of the job; may be repeated", option_set},
    {"label", 0, "KEY=VALUE", "all paused jobs with this label instead of JOB; may be repeated",
     option_filter_label},
    {0},
};

int verb_pause(struct client *client)
{
    return jobs_change(client, "starting,running", &control_pause_job, NULL, NULL);
}

/* The model's file may not exist on this machine, so a stand-in replaces it while the rest is read.
 */
status_t client_read_settings(const struct client *client, const char *id, const char *when,
                              const Fsdpd__V1__JobSpec *old, Fsdpd__V1__JobSpec **spec)
{
    static char stand_in[] = "as-it-is";
    const struct verb_options *options = &client->options;
    Fsdpd__V1__ModelSpec model = FSDPD__V1__MODEL_SPEC__INIT;
    model.hf = stand_in;
    model.teacher = old->model->teacher; /* other keys belong to it */
    model.base_dtype = old->model->base_dtype;
    if (model.base_dtype ==
        FSDPD__V1__BASE_DTYPE__BASE_DTYPE_UNSPECIFIED) /* what is read has a default */
        model.base_dtype = FSDPD__V1__BASE_DTYPE__BASE_DTYPE_F32;
    Fsdpd__V1__JobSpec shown = *old;
    shown.model = &model;
    AUTO(buf_deinit) struct buf yaml = {0};
    spec_to_yaml(&shown, &yaml);
    TRY(spec_read_text(buf_text(&yaml), yaml.length, id, options->sets, options->set_count, spec));
    static const char *const keys[] = {"model.", NULL};
    Fsdpd__V1__ModelSpec *read = (*spec)->model;
    const char *changed = spec_find_change(&shown, *spec, keys);
    if (changed != NULL) {
        spec_free(*spec);
        *spec = NULL;
        return status_new(STATUS_INVALID_ARGUMENT, "%s: cannot change when a job %s", changed,
                          when);
    }
    Fsdpd__V1__JobSpec *copy = spec_copy(old);
    (*spec)->model = copy->model;
    copy->model = read;
    spec_free(copy);
    return NULL;
}

static status_t find_settings(struct jobs_call *call, Fsdpd__V1__JobSpec **spec)
{
    Fsdpd__V1__Job *job;
    TRY(client_get_job(call->session, call->id, &job));
    struct spec_settings with;
    status_t status = client_read_settings(call->client, call->id, "resumes",
                                           spec_settings(job->spec, job->chosen, &with), spec);
    call->usage = status != NULL;
    fsdpd__v1__job__free_unpacked(job, NULL);
    return status;
}

static status_t call_resume(struct jobs_call *call)
{
    Fsdpd__V1__ResumeJobRequest request = FSDPD__V1__RESUME_JOB_REQUEST__INIT;
    request.id = (char *)call->id;
    if (call->client->options.set_count > 0) TRY(find_settings(call, &request.spec));
    status_t status =
        session_call(call->session, call->method, &request.base, false, &call->response);
    spec_free(request.spec);
    return status;
}

int verb_resume(struct client *client)
{
    return jobs_change(client, "paused", &control_resume_job, call_resume, "next");
}
