/*
 * Defaults: the table's for keys of job files, and for what the messages of clients leave out, so
 * both mean the same. Pure functions, any thread.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "spec/internal.h"

static void set_list(const struct spec_key *key, struct spec_field field)
{
    for (const char *item = key->fallback; *item != '\0';) {
        size_t length = strcspn(item, ",");
        AUTO_FREE char *text = mem_strndup(item, length);
        spec_field_add_text(field, text);
        item += length;
        item += strspn(item, ", ");
    }
}

void spec_field_set_default(struct spec_field field, const struct spec_key *key)
{
    double value = 0;
    switch (key->type) {
    case SPEC_INTEGER:
    case SPEC_NUMBER:
        if (!text_parse_f64(key->fallback, &value)) abort(); /* a test reads every default */
        spec_field_set_number(field, value);
        break;
    case SPEC_BOOLEAN: spec_field_set_number(field, strcmp(key->fallback, "true") == 0); break;
    case SPEC_JOBS:
    case SPEC_LABELS:
    case SPEC_ARGUMENTS:
    case SPEC_RULES:
    case SPEC_SOURCES:
    case SPEC_HELD_OUT:
    case SPEC_PHASES:
    case SPEC_UNITS:
    case SPEC_GROUPS: break; /* none */
    case SPEC_GLOBS:
    case SPEC_WORDS:
    case SPEC_TYPES: set_list(key, field); break;
    case SPEC_NAME:
    case SPEC_TEXT:
    case SPEC_MODEL:
    case SPEC_CHOICE:
    case SPEC_INDICES:
    case SPEC_TIME:
        if (key->fallback[0] != '\0') spec_field_set_text(field, key->fallback);
        break;
    }
}

/* A group without a value of its own shows as such where its parameters may have several. */
static bool has_one_decay(const Fsdpd__V1__OptimizerSpec *optimizer)
{
    return optimizer->weight_decay_exclude != FSDPD__V1__DECAY_EXCLUSION__DECAY_EXCLUSION_AUTO &&
           !spec_has_others(optimizer);
}

void spec_complete_groups(Fsdpd__V1__OptimizerSpec *optimizer)
{
    bool decay = has_one_decay(optimizer);
    for (size_t i = 0; i < optimizer->n_groups; i++) {
        Fsdpd__V1__OptimizerGroup *group = optimizer->groups[i];
        if (group->_weight_decay_case == 0 && decay) {
            group->weight_decay = optimizer->weight_decay;
            group->_weight_decay_case = FSDPD__V1__OPTIMIZER_GROUP___WEIGHT_DECAY_WEIGHT_DECAY;
        }
        if (group->_lr_scale_case == 0) group->lr_scale = 1;
        group->_lr_scale_case = FSDPD__V1__OPTIMIZER_GROUP___LR_SCALE_LR_SCALE;
    }
}

void spec_complete_source(Fsdpd__V1__DataSource *source)
{
    if (source->_weight_case != 0) return;
    source->weight = 1;
    source->_weight_case = FSDPD__V1__DATA_SOURCE___WEIGHT_WEIGHT;
}

/* Of adapters it is the file's: their checkpoints and files are complete without the base. Not
 * beside copies of the adapters, which are made in f32 only. */
void spec_complete_base(Fsdpd__V1__JobSpec *spec)
{
    Fsdpd__V1__ModelSpec *model = spec->model;
    bool adapts = (model->lora != NULL && model->lora->rank > 0) || model->adapter[0] != '\0' ||
                  (model->adapter_from != NULL && model->adapter_from->job[0] != '\0');
    bool copies =
        spec->dpo != NULL && spec->dpo->reference == FSDPD__V1__DPO_REFERENCE__DPO_REFERENCE_COPY;
    if (model->base_dtype != FSDPD__V1__BASE_DTYPE__BASE_DTYPE_UNSPECIFIED) return;
    model->base_dtype = adapts && !copies ? FSDPD__V1__BASE_DTYPE__BASE_DTYPE_FILE
                                          : FSDPD__V1__BASE_DTYPE__BASE_DTYPE_F32;
}

/* A list with a default is a message of its own, which is there even if the list is empty. */
static bool is_given(struct spec_field field, const struct spec_key *key)
{
    bool list = key->type == SPEC_TYPES || key->type == SPEC_GLOBS;
    if (list && key->fallback != NULL && key->fallback[0] != '\0') return field.member != NULL;
    return spec_field_is_given(field);
}

/* Types before the keys that depend on them. */
void spec_complete_keys(Fsdpd__V1__JobSpec *spec, const char *prefix)
{
    for (int dependent = 0; dependent < 2; dependent++)
        for (size_t i = 0; i < spec_key_count; i++) {
            const struct spec_key *key = &spec_keys[i];
            if ((key->with_key != NULL) != dependent || key->fallback == NULL ||
                spec_key_stays_absent(key) ||
                strncmp(key->key, prefix, strlen(prefix)) != 0 || !spec_key_applies(key, spec))
                continue;
            bool given = is_given(spec_field_find(spec, key, false), key);
            struct spec_field field = spec_field_find(spec, key, true);
            if (!given) spec_field_set_default(field, key);
        }
}

void spec_complete(Fsdpd__V1__JobSpec *spec)
{
    spec_complete_keys(spec, "");
    spec_complete_groups(spec->optimizer);
    for (size_t i = 0; i < spec->data->n_sources; i++) spec_complete_source(spec->data->sources[i]);
    for (size_t i = 0; i < spec->n_schedule_phases; i++)
        spec_complete_phase(spec->schedule_phases[i]);
    spec_complete_held_out(spec);
    spec_complete_base(spec);
    Fsdpd__V1__ModelSpec *model = spec->model;
    if (model->file_name[0] == '\0' && model->text[0] != '\0' && model->hf[0] == '\0') {
        if (model->file_name != protobuf_c_empty_string) free(model->file_name);
        model->file_name = mem_strdup("model.yaml");
    }
}

void spec_complete_wrap(Fsdpd__V1__WrapSpec *wrap)
{
    Fsdpd__V1__JobSpec spec = FSDPD__V1__JOB_SPEC__INIT;
    Fsdpd__V1__FsdpSpec fsdp = FSDPD__V1__FSDP_SPEC__INIT;
    spec.fsdp = &fsdp;
    fsdp.wrap = wrap;
    spec_complete_keys(&spec, "fsdp.wrap.");
}

void spec_mark_given(Fsdpd__V1__JobSpec *spec)
{
    for (size_t i = 0; i < spec_key_count; i++) {
        const struct spec_key *key = &spec_keys[i];
        struct spec_field field = spec_field_find(spec, key, false);
        bool number = field.descriptor->flags & PROTOBUF_C_FIELD_FLAG_ONEOF;
        if (!spec_key_applies(key, spec)) continue;
        if (number && field.member != NULL) spec_field_set_number(field, spec_field_number(field));
        else if (key->type == SPEC_TYPES) spec_field_find(spec, key, true);
    }
    if (spec->optimizer != NULL) {
        for (size_t i = 0; i < spec->optimizer->n_groups; i++) {
            Fsdpd__V1__OptimizerGroup *group = spec->optimizer->groups[i];
            if (has_one_decay(spec->optimizer))
                group->_weight_decay_case = FSDPD__V1__OPTIMIZER_GROUP___WEIGHT_DECAY_WEIGHT_DECAY;
            group->_lr_scale_case = FSDPD__V1__OPTIMIZER_GROUP___LR_SCALE_LR_SCALE;
        }
    }
}
