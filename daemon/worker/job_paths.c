/* Finds a job's files below the data roots; see job_message.h and job_internal.h. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/beneath.h"
#include "base/file.h"
#include "base/mem.h"
#include "data/token_file.h"
#include "worker/job_internal.h"

bool job_has_tokens(const Fsdpd__V1__DataSpec *data)
{
    return data->format != FSDPD__V1__DATA_FORMAT__DATA_FORMAT_IDX &&
           data->format != FSDPD__V1__DATA_FORMAT__DATA_FORMAT_IMAGES;
}

bool job_has_dataset(const Fsdpd__V1__DataSpec *data)
{
    return data->format == FSDPD__V1__DATA_FORMAT__DATA_FORMAT_DATASET;
}

status_t job_find_path(const char *key, const char *dir, const struct worker_options *options,
                       char **resolved, char **root)
{
    status_t first = NULL;
    for (int i = 0; i < options->data_root_count; i++) {
        status_t status = beneath_resolve(options->data_roots[i], dir, resolved);
        if (status == NULL) {
            *root = mem_strdup(options->data_roots[i]);
            status_free(first);
            return NULL;
        }
        /* "does not exist here" says more than "is outside that other root" */
        if (first != NULL && status_code(status) == STATUS_NOT_FOUND &&
            status_code(first) == STATUS_PERMISSION_DENIED) {
            status_free(first);
            first = status;
        } else {
            first = status_first(first, status);
        }
    }
    if (first == NULL)
        first = status_new(STATUS_PERMISSION_DENIED,
                           "this worker has no data root; start fsdpd with --data-root DIR");
    return status_wrap(first, "%s", key);
}

/* "org/name", as models are called on the Hugging Face Hub. */
static bool is_hub_name(const char *path)
{
    const char *slash = strchr(path, '/');
    return slash != NULL && slash != path && slash[1] != '\0' && strchr(slash + 1, '/') == NULL &&
           path[0] != '.' && path[0] != '~';
}

status_t job_find_model(const Fsdpd__V1__ModelSpec *model, const struct worker_options *options,
                           struct job_settings *settings)
{
    static const struct worker_options none;
    if (model->hf[0] == '\0') return NULL;
    if (options == NULL) options = &none;
    status_t status =
        job_find_path("model.hf", model->hf, options, &settings->hf_dir, &settings->hf_root);
    if (status_code(status) != STATUS_NOT_FOUND || !is_hub_name(model->hf)) return status;
    status_t hint =
        status_new(STATUS_NOT_FOUND,
                   "%s. fsdpd reads a directory below a data root, and downloads nothing: "
                   "hf download %s --local-dir %s/%s",
                   status_message(status), model->hf, options->data_roots[0], model->hf);
    status_free(status);
    return hint;
}

status_t job_find_weights(const Fsdpd__V1__ModelSpec *model,
                             const struct worker_options *options, struct job_settings *settings)
{
    if (model->weights[0] == '\0') return NULL;
    TRY(job_find_path("model.weights", model->weights, options, &settings->weights_path,
                      &settings->weights_root));
    settings->weights_dir = file_path_directory(settings->weights_path);
    settings->weights.dir = settings->weights_dir;
    settings->weights.root = settings->weights_root;
    settings->weights.file = strrchr(settings->weights_path, '/') + 1;
    settings->weights.own_names = settings->hf_dir == NULL;
    settings->weights.ignore = (const char *const *)model->ignore;
    settings->weights.ignore_count = (int)model->n_ignore;
    return NULL;
}

/* The same for a file, or a pattern of files in one directory (token_file.h). */
static status_t find_files(const char *key, const char *path, const struct worker_options *options,
                           char **resolved, char **root)
{
    if (!token_path_is_pattern(path)) return job_find_path(key, path, options, resolved, root);
    AUTO_FREE char *directory = file_path_directory(path), *found = NULL;
    TRY(job_find_path(key, directory, options, &found, root));
    const char *slash = strrchr(path, '/');
    *resolved = file_path_join(found, slash != NULL ? slash + 1 : path);
    return NULL;
}

static status_t find_source(const char *key, const char *path, double weight,
                            const struct worker_options *options, struct job_settings *settings)
{
    char *resolved = NULL, *root = NULL;
    TRY(job_find_path(key, path, options, &resolved, &root));
    settings->sources[settings->source_count++] =
        (struct token_path){.path = resolved, .root = root, .weight = llround(weight * 1000)};
    return NULL;
}

/* Weights are thousandths; what divides all of them makes only the mixture's cycle longer. */
static void reduce_weights(struct job_settings *settings)
{
    int64_t common = 0;
    for (int s = 0; s < settings->source_count; s++)
        for (int64_t other = settings->sources[s].weight; other != 0;) {
            int64_t rest = common % other;
            common = other;
            other = rest;
        }
    for (int s = 0; s < settings->source_count; s++) settings->sources[s].weight /= common;
}

static status_t find_datasets(const Fsdpd__V1__DataSpec *data, const struct worker_options *options,
                              struct job_settings *settings)
{
    settings->sources = mem_alloc_array(data->n_sources + 1, sizeof *settings->sources);
    if (data->n_sources == 0) TRY(find_source("data.path", data->path, 1, options, settings));
    for (size_t i = 0; i < data->n_sources; i++)
        TRY(find_source("data.sources", data->sources[i]->path, data->sources[i]->weight, options,
                        settings));
    reduce_weights(settings);
    return NULL;
}

status_t job_find_held_out(const Fsdpd__V1__DataSpec *data, const Fsdpd__V1__HeldOutSet *set,
                           const struct worker_options *options, struct held_out *held)
{
    const char *key = set->name[0] != '\0' ? "data.validation" : "path";
    char *path = NULL, *root = NULL;
    status_t status = job_has_dataset(data) || !job_has_tokens(data)
                          ? job_find_path(key, set->path, options, &path, &root)
                          : find_files(key, set->path, options, &path, &root);
    *held = (struct held_out){set->name, path, root, set->every_steps, set->batches};
    return status;
}

static status_t find_held_out(const Fsdpd__V1__DataSpec *data, const struct worker_options *options,
                              struct job_settings *settings)
{
    settings->held_out = mem_alloc_array(data->n_validation + 1, sizeof *settings->held_out);
    for (size_t i = 0; i < data->n_validation; i++)
        TRY(job_find_held_out(data, data->validation[i], options,
                              &settings->held_out[settings->held_out_count++]));
    return NULL;
}

status_t job_find_data(const Fsdpd__V1__DataSpec *data, const struct worker_options *options,
                          struct job_settings *settings)
{
    if (!job_has_tokens(data))
        return job_find_path("data.dir", data->dir, options, &settings->data_dir,
                             &settings->data_root);
    TRY(find_held_out(data, options, settings));
    if (job_has_dataset(data)) return find_datasets(data, options, settings);
    TRY(find_files("data.path", data->path, options, &settings->data_path, &settings->data_root));
    if (data->validation_path[0] == '\0') return NULL;
    return find_files("data.validation_path", data->validation_path, options,
                      &settings->validation_path, &settings->validation_root);
}

status_t job_find_checkpoints(const Fsdpd__V1__JobSpec *spec,
                                 const struct worker_options *options,
                                 struct job_settings *settings)
{
    const Fsdpd__V1__CheckpointSpec *checkpoint = spec->checkpoint;
    if (checkpoint == NULL || checkpoint->directory[0] == '\0') return NULL;
    TRY(job_find_path("checkpoint.directory", checkpoint->directory, options,
                      &settings->checkpoint_dir, &settings->checkpoint_root));
    if (access(settings->checkpoint_dir, W_OK | X_OK) == 0) return NULL;
    return status_from_errno(errno, "checkpoint.directory: cannot write in %s",
                             settings->checkpoint_dir);
}
