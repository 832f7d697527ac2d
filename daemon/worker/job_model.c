/*
 * A job's model that is a directory: found below a data root, its config.json made a model file.
 * A job that was planned carries both with it, so that all of its ranks have the same one whatever
 * became of the directory; weights are read from there, unless the job names a file of them.
 */
#include "worker/job_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/beneath.h"
#include "base/file.h"
#include "base/buf.h"
#include "base/mem.h"
#include "checkpoint/weights.h"
#include "model/model.h"

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

/* The name of a parameter that the configuration ties, and whose own tensor in the weights has other
 * values; NULL if there is none. Mistakes in the weights are found when they are matched again. */
static char *find_untied(const struct job_settings *settings, const char *text)
{
    struct model *model = NULL;
    struct weights *weights = NULL;
    char *name = NULL;
    int parameter = -1;
    status_t status = model_parse(text, strlen(text), "model.hf", &model);
    if (status == NULL) status = weights_open(&settings->weights, model, &weights);
    if (weights != NULL && status == NULL)
        status = weights_find_untied(weights, model, &parameter);
    if (parameter >= 0) name = mem_strdup(model->parameters[parameter].name);
    status_free(status);
    weights_free(weights);
    model_free(model);
    return name;
}

/* Tensors that the configuration ties and that differ in the file stay two, as in transformers: the
 * configuration is changed, so that they are two from now on, also in an exported directory. */
static status_t keep_untied(struct job_settings *settings, const char *file, char **text)
{
    Fsdpd__V1__ModelSpec *model = settings->spec->model;
    AUTO_FREE char *name = find_untied(settings, *text);
    if (name == NULL) return NULL;
    char *changed = NULL, *again = NULL;
    TRY(hf_config_untied(settings->family, model->hf_config, strlen(model->hf_config), file, name,
                         &changed));
    status_t status =
        hf_config_to_model(settings->family, changed, strlen(changed), file, &again);
    if (status != NULL) {
        free(changed);
        return status_wrap(status, "the weights have a %s of its own, unlike what it is tied to", name);
    }
    hf_family_note(settings->family,
                   "the weights have a %s of its own, which differs from what it is tied to: both "
                   "are kept, as in transformers, and config.json says so from now on",
                   name);
    free(model->hf_config);
    free(*text);
    model->hf_config = changed;
    *text = again;
    return NULL;
}

/* `model.freeze` is the key of that name of the model file. */
static char *with_frozen(const Fsdpd__V1__ModelSpec *model, char *text)
{
    struct buf out = {0};
    if (model->n_freeze == 0) return text;
    buf_printf(&out, "%s\nfreeze:\n", text);
    for (size_t i = 0; i < model->n_freeze; i++) {
        buf_add_text(&out, "  - '");
        for (const char *at = model->freeze[i]; *at != '\0'; at++)
            buf_printf(&out, *at == '\'' ? "''" : "%c", *at);
        buf_add_text(&out, "'\n");
    }
    free(text);
    return buf_take(&out);
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
    settings->weights.ignore = (const char *const *)model->ignore;
    settings->weights.ignore_count = (int)model->n_ignore;
    if (model->text[0] == '\0') {
        status_t status = keep_untied(settings, file, &text);
        if (status != NULL) {
            free(text);
            return status;
        }
        text = with_frozen(model, text);
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
