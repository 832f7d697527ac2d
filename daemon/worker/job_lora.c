/* LoraSpec -> model_lora; see job_lora.h. */
#include "worker/job_lora.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "hf/peft.h"

static struct lora_names names_of(char *const *items, size_t count)
{
    return (struct lora_names){(const char *const *)items, (int)count};
}

/* The default of the model's type; none for a model file. */
static status_t find_targets(const Fsdpd__V1__ModelSpec *model, struct lora_names *targets)
{
    char *type = NULL;
    if (model->hf_config[0] == '\0') return NULL;
    TRY(hf_config_type(model->hf_config, strlen(model->hf_config), "model.hf", &type));
    targets->items = peft_default_targets(type);
    for (targets->count = 0; targets->items != NULL && targets->items[targets->count] != NULL;)
        targets->count++;
    free(type);
    return NULL;
}

status_t job_lora_read(struct job_settings *settings)
{
    const Fsdpd__V1__ModelSpec *model = settings->spec->model;
    const Fsdpd__V1__LoraSpec *spec = model->lora;
    if (spec == NULL || spec->rank == 0) return NULL;
    settings->lora = (struct model_lora){
        .rank = (int)spec->rank,
        .alpha = spec->alpha,
        .dropout = spec->dropout,
        .rslora = spec->rslora,
        .targets = names_of(spec->targets, spec->n_targets),
        .exclude = names_of(spec->exclude, spec->n_exclude),
        .layers = names_of(spec->layers, spec->n_layers),
        .save = names_of(spec->modules_to_save, spec->n_modules_to_save),
    };
    if (spec->n_targets == 0) TRY(find_targets(model, &settings->lora.targets));
    return NULL;
}
