/* LoraSpec -> model_lora; see job_lora.h. */
#include "worker/job_lora.h"

#include <stdlib.h>
#include <string.h>

#include "base/beneath.h"
#include "base/file.h"
#include "base/mem.h"
#include "hf/peft.h"
#include "proto/message.h"
#include "spec/spec.h"

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

static struct lora_rule *add_rules(struct lora_rule *to, Fsdpd__V1__LoraRule *const *rules,
                                   size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (struct lora_rule){.match = rules[i]->match, .value = rules[i]->value};
    return to + count;
}

/* ---- model.adapter ---- */

/* The names are the message's from now on. */
static void move_names(struct peft_names *from, char ***items, size_t *count)
{
    *items = from->items;
    *count = (size_t)from->count;
    *from = (struct peft_names){0};
}

static void copy_rules(const struct peft_rules *from, Fsdpd__V1__LoraRule ***items, size_t *count)
{
    *items = mem_alloc_array((size_t)from->count + 1, sizeof **items);
    for (int i = 0; i < from->count; i++) {
        Fsdpd__V1__LoraRule *rule = MESSAGE_NEW(rule, fsdpd__v1__lora_rule__init);
        rule->match = mem_strdup(from->items[i].match);
        rule->value = from->items[i].value;
        (*items)[(*count)++] = rule;
    }
}

static Fsdpd__V1__LoraSpec *message_of(struct peft_config *config)
{
    Fsdpd__V1__LoraSpec *spec = MESSAGE_NEW(spec, fsdpd__v1__lora_spec__init);
    spec->_rank_case = FSDPD__V1__LORA_SPEC___RANK_RANK;
    spec->rank = config->rank;
    spec->_alpha_case = FSDPD__V1__LORA_SPEC___ALPHA_ALPHA;
    spec->alpha = config->alpha;
    spec->_dropout_case = FSDPD__V1__LORA_SPEC___DROPOUT_DROPOUT;
    spec->dropout = config->dropout;
    spec->_rslora_case = FSDPD__V1__LORA_SPEC___RSLORA_RSLORA;
    spec->rslora = config->rslora;
    move_names(&config->targets, &spec->targets, &spec->n_targets);
    move_names(&config->exclude, &spec->exclude, &spec->n_exclude);
    move_names(&config->layers, &spec->layers, &spec->n_layers);
    move_names(&config->saved, &spec->modules_to_save, &spec->n_modules_to_save);
    copy_rules(&config->ranks, &spec->rank_pattern, &spec->n_rank_pattern);
    copy_rules(&config->alphas, &spec->alpha_pattern, &spec->n_alpha_pattern);
    return spec;
}

static status_t read_config(struct job_settings *settings, Fsdpd__V1__LoraSpec **made)
{
    AUTO_FREE char *path = file_path_join(settings->adapter_dir, PEFT_CONFIG);
    AUTO(buf_deinit) struct buf text = {0}, notes = {0};
    struct peft_config config;
    TRY(beneath_read(settings->adapter_root, path, PEFT_CONFIG_MAX, &text));
    TRY(peft_config_read(buf_text(&text), text.length, path, &config, &notes));
    *made = message_of(&config);
    peft_config_deinit(&config);
    if (notes.length > 0)
        settings->adapter_note = mem_printf("%s: %s", PEFT_CONFIG, buf_text(&notes));
    return NULL;
}

/* What the spec says of adapters must be what their directory says. */
static status_t compare(const Fsdpd__V1__JobSpec *spec, Fsdpd__V1__LoraSpec *made)
{
    static const char *const keys[] = {"model.lora.", NULL};
    Fsdpd__V1__ModelSpec model = *spec->model;
    Fsdpd__V1__JobSpec other = *spec;
    model.lora = made;
    other.model = &model;
    const char *key = spec_find_change(spec, &other, keys);
    if (key == NULL) return NULL;
    return status_new(STATUS_FAILED_PRECONDITION,
                      "%s: is another one in %s/%s, which says what the adapters of model.adapter "
                      "are; expected the same or nothing",
                      key, spec->model->adapter, PEFT_CONFIG);
}

static status_t take_config(struct job_settings *settings)
{
    Fsdpd__V1__ModelSpec *model = settings->spec->model;
    Fsdpd__V1__LoraSpec *made = NULL;
    TRY(status_wrap(read_config(settings, &made), "model.adapter"));
    status_t status = NULL;
    if (model->lora != NULL && model->lora->rank > 0) {
        status = compare(settings->spec, made);
        message_free(made);
    } else {
        if (model->lora != NULL) message_free(model->lora);
        model->lora = made;
        status = status_wrap(spec_validate(settings->spec), "%s/%s", model->adapter, PEFT_CONFIG);
    }
    settings->weights.own_names = settings->hf_dir == NULL;
    settings->weights.adapter_dir = settings->adapter_dir;
    settings->weights.adapter_root = settings->adapter_root;
    settings->weights.adapter_note = settings->adapter_note;
    settings->weights.adapter_saves = model->lora->n_modules_to_save > 0;
    return status;
}

/* ---- model.lora ---- */

status_t job_lora_read(struct job_settings *settings, const struct worker_options *options)
{
    Fsdpd__V1__ModelSpec *model = settings->spec->model;
    if (model->adapter[0] != '\0' && options != NULL) {
        TRY(job_find_path("model.adapter", model->adapter, options, &settings->adapter_dir,
                          &settings->adapter_root));
        TRY(take_config(settings));
    }
    const Fsdpd__V1__LoraSpec *spec = model->lora;
    if (spec == NULL || spec->rank == 0) return NULL;
    settings->lora_rules = mem_alloc_array(spec->n_rank_pattern + spec->n_alpha_pattern + 1,
                                           sizeof *settings->lora_rules);
    settings->lora = (struct model_lora){
        .rank = (int)spec->rank,
        .alpha = spec->alpha,
        .dropout = spec->dropout,
        .rslora = spec->rslora,
        .targets = names_of(spec->targets, spec->n_targets),
        .exclude = names_of(spec->exclude, spec->n_exclude),
        .layers = names_of(spec->layers, spec->n_layers),
        .save = names_of(spec->modules_to_save, spec->n_modules_to_save),
        .ranks = settings->lora_rules,
        .rank_count = (int)spec->n_rank_pattern,
        .alpha_count = (int)spec->n_alpha_pattern,
        .lenient = model->adapter[0] != '\0',
    };
    settings->lora.alphas =
        add_rules(settings->lora_rules, spec->rank_pattern, spec->n_rank_pattern);
    add_rules(settings->lora_rules + spec->n_rank_pattern, spec->alpha_pattern,
              spec->n_alpha_pattern);
    if (spec->n_targets == 0) TRY(find_targets(model, &settings->lora.targets));
    return NULL;
}
