/*
 * adapter_config.json, strictly. Peft passes over keys that it does not know, of a newer version
 * for instance; here such a key must have the value of a feature that is off. See peft.h.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "hf/json.h"
#include "hf/peft.h"

enum {
    NAMES_MAX = 4096,     /* of a list */
    NAME_MAX_BYTES = 256, /* of a module's path */
    RANK_MAX = 65536,
    SHOWN = 60 /* bytes of a value in a message */
};

static const double alpha_min = 1e-6, alpha_max = 1e6;

struct peft_reading {
    const char *file;
    struct peft_config *config;
    struct buf *notes;
};

static void add_note(struct buf *notes, const char *key, const char *why)
{
    buf_printf(notes, "%s%s %s", notes->length > 0 ? "; " : "", key, why);
}

/* The value as JSON, for a message; the caller frees. */
static char *shown(const json_t *value)
{
    AUTO_FREE char *text = hf_json_write(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    size_t length = strlen(text);
    return mem_printf("%.*s%s", SHOWN, text, length > SHOWN ? "..." : "");
}

static status_t unexpected(const struct peft_reading *reading, const char *key,
                           const char *expected, const json_t *value)
{
    AUTO_FREE char *found = shown(value);
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s: expected %s, found %s", reading->file, key,
                      expected, found);
}

static status_t unsupported(const struct peft_reading *reading, const char *key, const char *what,
                            const json_t *value)
{
    AUTO_FREE char *found = shown(value);
    return status_new(STATUS_UNIMPLEMENTED, "%s: %s: %s; found %s", reading->file, key, what,
                      found);
}

/* null, false, and what is empty or 0: a feature that is off. */
static bool is_off(const json_t *value)
{
    if (json_is_object(value)) return json_object_size(value) == 0;
    if (json_is_array(value)) return json_array_size(value) == 0;
    if (json_is_string(value)) return json_string_value(value)[0] == '\0';
    if (json_is_number(value)) return json_number_value(value) == 0;
    return !json_is_true(value);
}

/* ---- values ---- */

static status_t read_rank(const struct peft_reading *reading, const char *key, const json_t *value,
                          double *to)
{
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > RANK_MAX)
        return unexpected(reading, key, "an integer from 1 to 65536", value);
    *to = (double)json_integer_value(value);
    return NULL;
}

static status_t read_alpha(const struct peft_reading *reading, const char *key, const json_t *value,
                           double *to)
{
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= alpha_min && number <= alpha_max))
        return unexpected(reading, key, "a number from 1e-06 to 1000000", value);
    *to = number;
    return NULL;
}

static status_t read_boolean(const struct peft_reading *reading, const char *key,
                             const json_t *value, bool *to)
{
    if (!json_is_boolean(value) && !json_is_null(value))
        return unexpected(reading, key, "true or false", value);
    *to = json_is_true(value);
    return NULL;
}

/* A module's path or the end of one, not a regular expression. */
static bool is_name(const char *name)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    size_t length = strlen(name);
    return length > 0 && length <= NAME_MAX_BYTES && strspn(name, letters) == length;
}

static void add_name(struct peft_names *names, const char *name)
{
    names->items = mem_resize_array(names->items, (size_t)names->count + 1, sizeof *names->items);
    names->items[names->count++] = mem_strdup(name);
}

static status_t read_names(const struct peft_reading *reading, const char *key, const json_t *value,
                           struct peft_names *names)
{
    size_t count = json_array_size(value);
    if (json_is_null(value)) return NULL;
    if (!json_is_array(value) || count > NAMES_MAX)
        return unexpected(reading, key, "a list of names of modules", value);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_string(item) || !is_name(json_string_value(item)))
            return unexpected(reading, key, "the name of a module", item);
        add_name(names, json_string_value(item));
    }
    return NULL;
}

/* A text is a regular expression of Python's, but for one word. */
static status_t read_targets(const struct peft_reading *reading, const char *key,
                             const json_t *value, struct peft_names *names)
{
    if (!json_is_string(value)) return read_names(reading, key, value, names);
    if (names == &reading->config->targets && strcmp(json_string_value(value), "all-linear") == 0) {
        add_name(names, "all-linear");
        return NULL;
    }
    return unsupported(reading, key,
                       "a regular expression cannot be read; expected a list of names of modules",
                       value);
}

static status_t read_layers(const struct peft_reading *reading, const char *key,
                            const json_t *value)
{
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (json_is_null(value)) return NULL;
    for (size_t i = 0; i < count && i < NAMES_MAX; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        char number[32];
        if (!json_is_integer(item) || json_integer_value(item) < 0)
            return unexpected(reading, key, "numbers of layers, from 0", item);
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(item));
        add_name(&reading->config->layers, number);
    }
    return NULL;
}

/* Peft's keys are regular expressions; here they must be names, which "^" makes whole paths. */
static status_t read_rules(const struct peft_reading *reading, const char *key, json_t *value,
                           bool rank, struct peft_rules *rules)
{
    const char *match;
    json_t *item;
    if (json_is_null(value)) return NULL;
    if (!json_is_object(value) || json_object_size(value) > NAMES_MAX)
        return unexpected(reading, key, "an object of numbers by module", value);
    json_object_foreach(value, match, item)
    {
        double number;
        AUTO_FREE char *place = mem_printf("%s: %.*s", key, NAME_MAX_BYTES, match);
        if (!is_name(match + (match[0] == '^')))
            return unsupported(reading, key,
                               "only names of modules can be read, not regular expressions", value);
        TRY((rank ? read_rank : read_alpha)(reading, place, item, &number));
        rules->items =
            mem_resize_array(rules->items, (size_t)rules->count + 1, sizeof *rules->items);
        rules->items[rules->count++] = (struct peft_rule){mem_strdup(match), number};
    }
    return NULL;
}

/* ---- keys ---- */

static status_t read_type(const struct peft_reading *reading, const char *key, const json_t *value)
{
    if (!json_is_string(value)) return unexpected(reading, key, "\"LORA\"", value);
    if (strcmp(json_string_value(value), "LORA") == 0) return NULL;
    return unsupported(reading, key, "only \"LORA\" can be trained", value);
}

/* Other initialisations than these change the model's own weights, also when peft loads them. */
static status_t read_start(const struct peft_reading *reading, const char *key, const json_t *value)
{
    static const char *const harmless[] = {"gaussian", "orthogonal", "eva"};
    if (json_is_boolean(value) || json_is_null(value)) return NULL;
    for (size_t i = 0; json_is_string(value) && i < COUNT_OF(harmless); i++)
        if (strcmp(json_string_value(value), harmless[i]) == 0) return NULL;
    return unsupported(
        reading, key,
        "only true, false, gaussian, orthogonal and eva leave the model's own weights "
        "as they are",
        value);
}

static status_t read_bias(const struct peft_reading *reading, const char *key, const json_t *value)
{
    if (json_is_null(value)) return NULL;
    if (!json_is_string(value)) return unexpected(reading, key, "\"none\"", value);
    if (strcmp(json_string_value(value), "none") == 0) return NULL;
    return unsupported(reading, key, "biases cannot be trained beside adapters", value);
}

static status_t read_dropout(const struct peft_reading *reading, const char *key,
                             const json_t *value)
{
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= 0 && number < 1))
        return unexpected(reading, key, "a number from 0 and below 1", value);
    reading->config->dropout = number;
    return NULL;
}

/* Whether no number depends on the key, once there are weights. */
static bool is_harmless(const char *key)
{
    static const char *const harmless[] = {
        "auto_mapping",   "base_model_name_or_path",
        "corda_config",   "eva_config",
        "inference_mode", "loftq_config",
        "lora_ga_config", "megatron_core",
        "peft_version",   "qalora_group_size",
        "revision",       "runtime_config",
        "task_type",
    };
    for (size_t i = 0; i < COUNT_OF(harmless); i++)
        if (strcmp(key, harmless[i]) == 0) return true;
    return false;
}

/* What a key would turn on that adapters here do not have; NULL for a key that is not known. */
static const char *feature_of(const char *key)
{
    static const char *const features[][2] = {
        {"alora_invocation_tokens", "activated LoRA (aLoRA) is not supported"},
        {"arrow_config", "Arrow's routing is not supported"},
        {"ensure_weight_tying", "adapters that are tied to each other are not supported"},
        {"kasa_config", "KaSA is not supported"},
        {"layer_replication", "layers that are used twice are not supported"},
        {"layers_pattern", "a name of the list of layers is not supported"},
        {"lora_bias", "adapters with a bias are not supported"},
        {"megatron_config", "Megatron's parallel modules are not supported"},
        {"monteclora_config", "MonteCLoRA is not supported"},
        {"target_parameters", "adapters of parameters without a module are not supported"},
        {"trainable_token_indices", "single trained tokens are not supported"},
        {"use_bdlora", "block-diagonal adapters (BD-LoRA) are not supported"},
        {"use_dora", "DoRA is not supported"},
        {"use_qalora", "QALoRA is not supported"},
        {"velora_config", "VeLoRA is not supported"},
    };
    for (size_t i = 0; i < COUNT_OF(features); i++)
        if (strcmp(key, features[i][0]) == 0) return features[i][1];
    return NULL;
}

static status_t read_other(const struct peft_reading *reading, const char *key, const json_t *value)
{
    if (is_harmless(key)) return NULL;
    const char *feature = feature_of(key);
    if (is_off(value)) {
        if (feature == NULL) add_note(reading->notes, key, "is not known, and off");
        return NULL;
    }
    if (feature != NULL) return unsupported(reading, key, feature, value);
    AUTO_FREE char *name = mem_printf("%.*s", NAME_MAX_BYTES, key);
    return unsupported(reading, name, "the key is not known, and not off", value);
}

static status_t read_key(const struct peft_reading *reading, const char *key, json_t *value)
{
    struct peft_config *config = reading->config;
    double number;
    if (strcmp(key, "peft_type") == 0) return read_type(reading, key, value);
    if (strcmp(key, "r") == 0) {
        TRY(read_rank(reading, key, value, &number));
        config->rank = (uint32_t)number;
        return NULL;
    }
    if (strcmp(key, "lora_alpha") == 0) return read_alpha(reading, key, value, &config->alpha);
    if (strcmp(key, "lora_dropout") == 0) return read_dropout(reading, key, value);
    if (strcmp(key, "use_rslora") == 0) return read_boolean(reading, key, value, &config->rslora);
    if (strcmp(key, "fan_in_fan_out") == 0)
        return read_boolean(reading, key, value, &config->transposed);
    if (strcmp(key, "target_modules") == 0)
        return read_targets(reading, key, value, &config->targets);
    if (strcmp(key, "exclude_modules") == 0)
        return read_targets(reading, key, value, &config->exclude);
    if (strcmp(key, "modules_to_save") == 0) return read_names(reading, key, value, &config->saved);
    if (strcmp(key, "layers_to_transform") == 0) return read_layers(reading, key, value);
    if (strcmp(key, "rank_pattern") == 0)
        return read_rules(reading, key, value, true, &config->ranks);
    if (strcmp(key, "alpha_pattern") == 0)
        return read_rules(reading, key, value, false, &config->alphas);
    if (strcmp(key, "init_lora_weights") == 0) return read_start(reading, key, value);
    if (strcmp(key, "bias") == 0) return read_bias(reading, key, value);
    return read_other(reading, key, value);
}

static status_t read_keys(const struct peft_reading *reading, json_t *root)
{
    const char *key;
    json_t *value;
    if (json_object_get(root, "peft_type") == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: peft_type: is missing; expected \"LORA\"",
                          reading->file);
    TRY(read_type(reading, "peft_type", json_object_get(root, "peft_type")));
    json_object_foreach(root, key, value) TRY(read_key(reading, key, value));
    return NULL;
}

status_t peft_config_read(const char *text, size_t length, const char *file,
                          struct peft_config *config, struct buf *notes)
{
    json_t *root = NULL;
    *config = (struct peft_config){.rank = 8, .alpha = 8}; /* peft's defaults */
    TRY(hf_json_load(text, length, PEFT_CONFIG_MAX, file, &root));
    const struct peft_reading reading = {file, config, notes};
    status_t status = read_keys(&reading, root);
    json_decref(root);
    if (status != NULL) peft_config_deinit(config);
    return status;
}

static void names_deinit(struct peft_names *names)
{
    for (int i = 0; i < names->count; i++) free(names->items[i]);
    free(names->items);
}

static void rules_deinit(struct peft_rules *rules)
{
    for (int i = 0; i < rules->count; i++) free(rules->items[i].match);
    free(rules->items);
}

void peft_config_deinit(struct peft_config *config)
{
    names_deinit(&config->targets);
    names_deinit(&config->exclude);
    names_deinit(&config->layers);
    names_deinit(&config->saved);
    rules_deinit(&config->ranks);
    rules_deinit(&config->alphas);
    *config = (struct peft_config){0};
}
