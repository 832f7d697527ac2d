/* A JobSpec as an equivalent job file; see spec.h. */
#include <string.h>

#include "base/array.h"
#include "spec/internal.h"

static void add_units(struct buf *out, const Fsdpd__V1__WrapSpec *wrap)
{
    buf_add_char(out, '[');
    for (size_t i = 0; i < wrap->n_units; i++) {
        const Fsdpd__V1__WrapUnit *unit = wrap->units[i];
        const ProtobufCEnumDescriptor *dtype = &fsdpd__v1__dtype__descriptor;
        const char *reshard = unit->reshard_after_forward;
        const struct {
            const char *key, *value;
        } words[] = {{"strategy", spec_word(&fsdpd__v1__strategy__descriptor, (int)unit->strategy)},
                     {"reshard_after_forward", reshard[0] != '\0' ? reshard : NULL},
                     {"param_dtype", spec_word(dtype, (int)unit->param_dtype)},
                     {"reduce_dtype", spec_word(dtype, (int)unit->reduce_dtype)},
                     {"cpu_offload", unit->_cpu_offload_case == 0 ? NULL
                                     : unit->cpu_offload          ? "true"
                                                                  : "false"}};
        bool own = false;
        for (size_t k = 0; k < COUNT_OF(words); k++) own = own || words[k].value != NULL;
        if (i > 0) buf_add_text(out, ", ");
        buf_add_text(out, own ? "{modules: [" : "[");
        for (size_t j = 0; j < unit->n_modules; j++) {
            if (j > 0) buf_add_text(out, ", ");
            yamldoc_print_text(out, unit->modules[j]);
        }
        buf_add_char(out, ']');
        for (size_t k = 0; k < COUNT_OF(words); k++) {
            if (words[k].value != NULL) buf_printf(out, ", %s: %s", words[k].key, words[k].value);
            if (k == 0 && unit->shard_size > 0)
                buf_printf(out, ", shard_size: %u", unit->shard_size);
        }
        if (own) buf_add_char(out, '}');
    }
    buf_add_char(out, ']');
}

static void add_groups(struct buf *out, const Fsdpd__V1__OptimizerSpec *optimizer)
{
    char decay[32], scale[32];
    buf_add_char(out, '[');
    for (size_t i = 0; i < optimizer->n_groups; i++) {
        const Fsdpd__V1__OptimizerGroup *group = optimizer->groups[i];
        buf_add_text(out, i ? ", {match: " : "{match: ");
        yamldoc_print_text(out, group->match);
        if (group->_weight_decay_case != 0)
            buf_printf(out, ", weight_decay: %s", spec_format_number(group->weight_decay, decay));
        buf_printf(out, ", lr_scale: %s", spec_format_number(group->lr_scale, scale));
        if (group->use != 0) buf_printf(out, ", use: %s", spec_use_word(group->use));
        if (group->ndim != 0) buf_printf(out, ", ndim: %u", group->ndim);
        buf_add_char(out, '}');
    }
    buf_add_char(out, ']');
}

static void add_sources(struct buf *out, const Fsdpd__V1__DataSpec *data)
{
    char weight[32];
    buf_add_char(out, '[');
    for (size_t i = 0; i < data->n_sources; i++) {
        buf_add_text(out, i ? ", {path: " : "{path: ");
        yamldoc_print_text(out, data->sources[i]->path);
        buf_printf(out, ", weight: %s}", spec_format_number(data->sources[i]->weight, weight));
    }
    buf_add_char(out, ']');
}

static void add_globs(struct buf *out, struct spec_field field)
{
    size_t count;
    char *const *globs = spec_field_texts(field, &count);
    buf_add_char(out, '[');
    for (size_t i = 0; i < count; i++) {
        if (i > 0) buf_add_text(out, ", ");
        yamldoc_print_text(out, globs[i]);
    }
    buf_add_char(out, ']');
}

static void add_labels(struct buf *out, const Fsdpd__V1__JobSpec *spec)
{
    buf_add_char(out, '{');
    for (size_t i = 0; i < spec->n_labels; i++) {
        buf_printf(out, "%s%s: ", i ? ", " : "", spec->labels[i]->key);
        yamldoc_print_text(out, spec->labels[i]->value);
    }
    buf_add_char(out, '}');
}

static void add_arguments(struct buf *out, const Fsdpd__V1__ModelSpec *model)
{
    buf_add_char(out, '{');
    for (size_t i = 0; i < model->n_args; i++) {
        buf_printf(out, "%s%s: ", i ? ", " : "", model->args[i]->key);
        yamldoc_print_text(out, model->args[i]->value);
    }
    buf_add_char(out, '}');
}

static void add_text(struct buf *out, const struct spec_key *key, const Fsdpd__V1__JobSpec *spec,
                     struct spec_field field)
{
    const char *text = spec_field_text(field);
    const struct spec_key of = {.key = key->set};
    const char *set = key->set != NULL ? spec_field_text(spec_field_find(spec, &of, false)) : "";
    if (set[0] == '\0') yamldoc_print_text(out, text);
    else buf_printf(out, "%s/%s", set, strcmp(text, "loss") == 0 ? "val_loss" : text);
}

static void add_phases(struct buf *out, const Fsdpd__V1__JobSpec *spec);

static void add_value(struct buf *out, const struct spec_key *key, const Fsdpd__V1__JobSpec *spec,
                      struct spec_field field)
{
    char number[32];
    switch (key->type) {
    case SPEC_INTEGER:
    case SPEC_NUMBER:
        buf_add_text(out, spec_format_number(spec_field_number(field), number));
        break;
    case SPEC_BOOLEAN: buf_add_text(out, spec_field_number(field) != 0 ? "true" : "false"); break;
    case SPEC_UNITS: add_units(out, spec->fsdp->wrap); break;
    case SPEC_GROUPS: add_groups(out, spec->optimizer); break;
    case SPEC_SOURCES: add_sources(out, spec->data); break;
    case SPEC_HELD_OUT: spec_print_held_out(spec->data, out); break;
    case SPEC_LABELS: add_labels(out, spec); break;
    case SPEC_ARGUMENTS: add_arguments(out, spec->model); break;
    case SPEC_PHASES: add_phases(out, spec); break;
    case SPEC_RULES: spec_print_rules(field, out); break;
    case SPEC_GLOBS:
    case SPEC_WORDS:
    case SPEC_JOBS:
    case SPEC_TYPES: add_globs(out, field); break;
    default: add_text(out, key, spec, field); break;
    }
}

/* A phase's keys are those of a job with that schedule. */
static void add_phases(struct buf *out, const Fsdpd__V1__JobSpec *spec)
{
    char number[32];
    for (size_t p = 0; p < spec->n_schedule_phases; p++) {
        Fsdpd__V1__JobSpec one = FSDPD__V1__JOB_SPEC__INIT;
        one.schedule = spec->schedule_phases[p];
        buf_add_text(out, p > 0 ? "}, {" : "[{");
        for (size_t i = 0; i < spec_key_count; i++) {
            const struct spec_key *key = &spec_keys[i];
            if (strncmp(key->key, "schedule.", strlen("schedule.")) != 0 ||
                key->type == SPEC_PHASES || !spec_key_applies(key, &one))
                continue;
            buf_printf(out, "%s: ", spec_last_word(key->key));
            add_value(out, key, &one, spec_field_find(&one, key, false));
            buf_add_text(out, ", ");
        }
        buf_printf(out, "steps: %llu, factor: %s", (unsigned long long)one.schedule->steps,
                   spec_format_number(one.schedule->factor, number));
    }
    buf_add_text(out, spec->n_schedule_phases > 0 ? "}]" : "[]");
}

/* Opens the sections of `key` that are not open after `last`; returns the depth of its last
 * word. */
static int open_sections(struct buf *out, const char *key, const char *last)
{
    int depth = 0;
    size_t start = 0;
    bool same = true;
    for (const char *dot; (dot = strchr(key + start, '.')) != NULL; depth++) {
        size_t end = (size_t)(dot - key);
        same = same && strncmp(key, last, end + 1) == 0;
        if (!same) buf_printf(out, "%*s%.*s:\n", 2 * depth, "", (int)(end - start), key + start);
        start = end + 1;
    }
    return depth;
}

void spec_to_yaml(const Fsdpd__V1__JobSpec *spec, struct buf *out)
{
    const char *last = "";
    for (size_t i = 0; i < spec_key_count; i++) {
        const struct spec_key *key = &spec_keys[i];
        struct spec_field field = spec_field_find(spec, key, false);
        if (field.member == NULL || !spec_key_applies(key, spec)) continue;
        bool text = key->type == SPEC_CHOICE || key->type == SPEC_TEXT || key->type == SPEC_MODEL ||
                    key->type == SPEC_TIME || (key->type == SPEC_NAME && key->fallback != NULL);
        if (text && spec_field_text(field)[0] == '\0') continue;
        if (key->type == SPEC_ARGUMENTS && spec->model->n_args == 0) continue;
        bool quiet =
            spec_key_stays_absent(key) || key->type == SPEC_RULES || key->type == SPEC_WORDS ||
            key->type == SPEC_HELD_OUT ||
            (key->type == SPEC_GLOBS && (key->unit != NULL || strncmp(key->key, "model.", 6) == 0));
        if (quiet && !spec_field_is_given(field)) continue;
        int depth = open_sections(out, key->key, last);
        const char *word = strrchr(key->key, '.');
        buf_printf(out, "%*s%s: ", 2 * depth, "", word ? word + 1 : key->key);
        add_value(out, key, spec, field);
        buf_add_char(out, '\n');
        last = key->key;
    }
}

/* Prints nothing for a key that does not apply. */
static void add_applied(struct buf *out, const struct spec_key *key, const Fsdpd__V1__JobSpec *spec)
{
    struct spec_field field = spec_field_find(spec, key, false);
    if (field.member != NULL && spec_key_applies(key, spec)) add_value(out, key, spec, field);
    else if (spec_key_applies(key, spec) && key->fallback != NULL)
        yamldoc_print_text(out, key->fallback);
}

static bool is_listed(const char *key, const char *const *keys)
{
    for (; *keys != NULL; keys++) {
        size_t length = strlen(*keys);
        bool section = (*keys)[length - 1] == '.';
        if (section ? strncmp(key, *keys, length) == 0 : strcmp(key, *keys) == 0) return true;
    }
    return false;
}

/* Whether the specs differ in this key; `value` is the second's, for the caller to free. */
static bool differs(const struct spec_key *key, const Fsdpd__V1__JobSpec *a,
                    const Fsdpd__V1__JobSpec *b, struct buf *value)
{
    AUTO(buf_deinit) struct buf first = {0};
    add_applied(&first, key, a);
    add_applied(value, key, b);
    return strcmp(buf_text(&first), buf_text(value)) != 0;
}

const char *spec_find_change(const Fsdpd__V1__JobSpec *a, const Fsdpd__V1__JobSpec *b,
                             const char *const *keys)
{
    for (size_t i = 0; i < spec_key_count; i++) {
        AUTO(buf_deinit) struct buf value = {0};
        if (is_listed(spec_keys[i].key, keys) && differs(&spec_keys[i], a, b, &value))
            return spec_keys[i].key;
    }
    return NULL;
}

void spec_print_changes(const Fsdpd__V1__JobSpec *from, const Fsdpd__V1__JobSpec *to,
                        struct buf *out)
{
    for (size_t i = 0; i < spec_key_count; i++) {
        AUTO(buf_deinit) struct buf value = {0};
        if (differs(&spec_keys[i], from, to, &value) && value.length > 0)
            buf_printf(out, "%s: %s\n", spec_keys[i].key, buf_text(&value));
    }
}
