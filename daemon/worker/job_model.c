/*
 * A job's model that is a directory: found below a data root, its config.json made a model file.
 * A job that was planned carries both with it, so that all of its ranks have the same one whatever
 * became of the directory; weights are read from there, unless the job names a file of them.
 */
#include "worker/job_model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/beneath.h"
#include "base/file.h"
#include "base/mem.h"

static status_t read_config(struct job_settings *settings, Fsdpd__V1__ModelSpec *model)
{
    AUTO_FREE char *path = file_path_join(settings->hf_dir, "config.json");
    AUTO(buf_deinit) struct buf text = {0};
    status_t status = beneath_read(settings->hf_root, path, HF_CONFIG_MAX, &text);
    if (status == NULL && strlen(buf_text(&text)) != text.length)
        status = status_new(STATUS_INVALID_ARGUMENT, "%s is not a text file", path);
    if (status == NULL) {
        if (model->hf_config != protobuf_c_empty_string) free(model->hf_config);
        model->hf_config = buf_take(&text);
    }
    return status;
}

/* The family that the job was planned with, or else the one that serves its configuration now. */
static status_t find_family(struct job_settings *settings, const struct worker_options *options,
                            const char *file)
{
    Fsdpd__V1__ModelSpec *model = settings->spec->model;
    if (model->hf_family[0] == '\0') {
        char *type = NULL, *text = NULL;
        TRY(hf_config_type(model->hf_config, strlen(model->hf_config), file, &type));
        status_t status = hf_family_find(options->families, options->family_count, type, &text);
        free(type);
        if (status != NULL) return status_wrap(status, "%s", file);
        if (model->hf_family != protobuf_c_empty_string) free(model->hf_family);
        model->hf_family = text;
    }
    TRY(hf_family_parse(model->hf_family, strlen(model->hf_family), "its family",
                        &settings->family));
    if (model->head[0] != '\0') {
        char *changed = NULL;
        TRY(hf_config_with_head(settings->family, model->hf_config, strlen(model->hf_config), file,
                                model->head, &changed));
        free(model->hf_config);
        model->hf_config = changed;
    }
    return NULL;
}

static status_t make_text(struct job_settings *settings, const struct worker_options *options)
{
    Fsdpd__V1__ModelSpec *model = settings->spec->model;
    char *text = NULL;
    AUTO_FREE char *file = mem_printf("%s/config.json", model->hf);
    TRY(find_family(settings, options, file));
    TRY(hf_config_to_model(settings->family, model->hf_config, strlen(model->hf_config), file,
                           &text));
    settings->weights.family = settings->family;
    if (settings->weights_path == NULL) {
        settings->weights.dir = settings->hf_dir;
        settings->weights.root = settings->hf_root;
    }
    if (model->text[0] == '\0') {
        if (model->text != protobuf_c_empty_string) free(model->text);
        model->text = text;
        text = NULL;
    }
    free(text);
    return NULL;
}

status_t job_model_read(struct job_settings *settings, const struct worker_options *options)
{
    Fsdpd__V1__ModelSpec *model = settings->spec->model;
    int fd = -1;
    TRY(status_wrap(beneath_open(settings->hf_root, settings->hf_dir, true, &fd), "model.hf"));
    close(fd);
    if (model->hf_config[0] == '\0') TRY(status_wrap(read_config(settings, model), "model.hf"));
    return status_wrap(make_text(settings, options), "model.hf");
}
