/* Weights of other jobs; see job_message.h. */
#include "worker/job_message.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "model/lora.h"
#include "model/model.h"
#include "spec/spec.h"
#include "worker/job_lora.h"
#include "worker/link.h"

/* ---- names and shapes ---- */

/* The model that a spec describes, as a job of it trains it. */
static status_t build(const Fsdpd__V1__ModelSpec *described, struct model **out)
{
    Fsdpd__V1__JobSpec spec = FSDPD__V1__JOB_SPEC__INIT;
    spec.model = (Fsdpd__V1__ModelSpec *)described;
    struct job_settings settings = {.spec = &spec};
    struct model *model = NULL;
    AUTO_FREE struct model_argument *arguments =
        mem_alloc_array(described->n_args + 1, sizeof *arguments);
    for (size_t i = 0; i < described->n_args; i++)
        arguments[i] = (struct model_argument){described->args[i]->key, described->args[i]->value};
    TRY(job_lora_read(&settings, NULL));
    status_t status =
        model_parse_with(described->text, strlen(described->text), described->file_name, arguments,
                         (int)described->n_args, &model);
    if (status == NULL && settings.lora.rank > 0) status = model_adapt(model, &settings.lora);
    free(settings.lora_rules);
    if (status == NULL) *out = model;
    else model_free(model);
    return status;
}

static const struct parameter *find(const struct model *model, const char *name)
{
    for (int p = 0; p < model->parameter_count; p++)
        if (strcmp(model->parameters[p].name, name) == 0) return &model->parameters[p];
    return NULL;
}

/* Every parameter that is taken is in `of`; new adapters have initial values. */
static status_t compare(const struct spec_from *found, const struct model *own,
                        const struct model *of)
{
    char is[128], expected[128];
    for (int p = 0; p < own->parameter_count; p++) {
        const struct parameter *parameter = &own->parameters[p];
        const struct parameter *other = find(of, parameter->name);
        if (parameter->tied_to >= 0 || (found->adapter && !parameter->trainable)) continue;
        if (other == NULL && parameter->adapter && !found->adapter) continue;
        if (other == NULL)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s.job: the model of job %s has no parameter %s", found->key,
                              found->from->job, parameter->name);
        if (!tensor_same_shape(&other->type, &parameter->type))
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s.job: %s is %s in job %s; expected %s", found->key,
                              parameter->name, tensor_format_shape(&other->type, is),
                              found->from->job, tensor_format_shape(&parameter->type, expected));
    }
    for (int p = 0; p < of->parameter_count && !found->adapter; p++)
        if (find(own, of->parameters[p].name) == NULL)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s.job: job %s has a parameter %s, which the model has not",
                              found->key, found->from->job, of->parameters[p].name);
    return NULL;
}

status_t job_from_check(const struct job_settings *settings)
{
    struct spec_from found[SPEC_FROM_MAX];
    int count = spec_find_from(settings->spec->model, found);
    status_t status = NULL;
    for (int i = 0; i < count && status == NULL; i++) {
        struct model *own = NULL, *of = NULL;
        if (found[i].from->model == NULL) continue; /* the daemon has not settled it, yet */
        status = build(settings->spec->model, &own);
        if (status == NULL) status = build(found[i].from->model, &of);
        if (status == NULL) status = compare(&found[i], own, of);
        model_free(own);
        model_free(of);
    }
    return status;
}

/* ---- files ---- */

static status_t make_directory(struct job_settings *settings)
{
    if (settings->fetched_dir != NULL) return NULL;
    char *path = mem_printf("%s/fsdpd-weights-XXXXXX", file_temporary_directory());
    if (mkdtemp(path) != NULL) {
        settings->fetched_dir = path;
        return NULL;
    }
    status_t status = status_from_errno(errno, "cannot create %s", path);
    free(path);
    return status;
}

/* *dir is the settings' own, or points into them. */
static status_t fetch(struct job_settings *settings, const Fsdpd__V1__Source *source,
                      const char *name, bool average, struct link *link, struct gate *gate)
{
    TRY(make_directory(settings));
    AUTO_FREE char *path = file_path_join(settings->fetched_dir, name);
    return fetch_weights(link, gate, source, average, path);
}

static struct weights_source whole(const char *dir, const char *file)
{
    return (struct weights_source){.dir = dir, .root = dir, .file = file, .own_names = true};
}

status_t job_from_find(struct job_settings *settings, const Fsdpd__V1__Assignment *assignment,
                       struct link *link, struct gate *gate)
{
    const Fsdpd__V1__Source *source = assignment->source, *adapter = assignment->adapter_source;
    if (source != NULL && source->job[0] != '\0') {
        bool average = settings->job.only_evaluate && settings->job.evaluate_average;
        TRY(fetch(settings, source, "weights.safetensors", average, link, gate));
        settings->weights = whole(settings->fetched_dir, "weights.safetensors");
        settings->job.weights = &settings->weights;
    }
    if (adapter == NULL) return NULL;
    if (adapter->job[0] != '\0') {
        TRY(fetch(settings, adapter, "adapter.safetensors", false, link, gate));
        settings->trained = whole(settings->fetched_dir, "adapter.safetensors");
    } else {
        settings->trained_dir = file_path_directory(adapter->file);
        settings->trained = whole(settings->trained_dir, strrchr(adapter->file, '/') + 1);
    }
    settings->trained.only_trained = true;
    settings->job.trained = &settings->trained;
    return NULL;
}

void job_from_deinit(struct job_settings *settings)
{
    static const char *const names[] = {"weights.safetensors", "adapter.safetensors"};
    free(settings->trained_dir);
    if (settings->fetched_dir == NULL) return;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        AUTO_FREE char *path = file_path_join(settings->fetched_dir, names[i]);
        unlink(path);
    }
    rmdir(settings->fetched_dir);
    free(settings->fetched_dir);
}
