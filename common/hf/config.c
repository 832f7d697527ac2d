/* config.json, read key by key, and which architecture it is; see hf.h and config.h. */
#include "hf/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

enum { FOUND_MAX = 60 };

static const struct {
    const char *name;         /* model_type */
    const char *architecture; /* that is trained */
    const char *others[3];    /* whose files have the same weights, or these and more */
    void (*write)(struct config *config, struct buf *out, bool *tied);
} types[] = {
    [HF_GPT2] = {"gpt2", "GPT2LMHeadModel", {"GPT2Model"}, gpt2_write},
    [HF_LLAMA] = {"llama", "LlamaForCausalLM", {"LlamaModel"}, llama_write},
    [HF_BERT] = {"bert", "BertForMaskedLM", {"BertForPreTraining", "BertModel"}, bert_write},
};
enum { TYPE_COUNT = sizeof types / sizeof types[0] };

const char *hf_type_name(enum hf_type type)
{
    return types[type].name;
}

void config_refuse(struct config *config, enum status_code code, const char *key,
                   const char *format, ...)
{
    if (*config->status != NULL) return;
    va_list args;
    va_start(args, format);
    status_t status = status_new_v(code, format, args);
    va_end(args);
    *config->status = status_wrap(status, "%s: %s%s", config->file, config->section, key);
}

/* The value of a key, as JSON, cut where it is long. */
static void format_found(const json_t *value, char text[static FOUND_MAX + 4])
{
    size_t length = json_dumpb(value, text, FOUND_MAX, JSON_ENCODE_ANY | JSON_COMPACT);
    if (length <= FOUND_MAX) {
        text[length] = '\0';
        return;
    }
    static const char *const words[] = {[JSON_OBJECT] = "an object",
                                        [JSON_ARRAY] = "an array",
                                        [JSON_STRING] = "a long text",
                                        [JSON_INTEGER] = "an integer",
                                        [JSON_REAL] = "a number"};
    snprintf(text, FOUND_MAX, "%s", words[json_typeof(value)]);
}

static void refuse_value(struct config *config, const char *key, const json_t *value,
                         const char *expected)
{
    char found[FOUND_MAX + 4];
    format_found(value, found);
    config_refuse(config, STATUS_INVALID_ARGUMENT, key, "expected %s, found %s", expected, found);
}

/* NULL if it is not there, or null. */
static json_t *find(const struct config *config, const char *key)
{
    json_t *value = json_object_get(config->root, key);
    return json_is_null(value) ? NULL : value;
}

bool config_has(const struct config *config, const char *key)
{
    return find(config, key) != NULL;
}

int64_t config_integer(struct config *config, const char *key, int64_t low, int64_t high,
                       int64_t fallback)
{
    const json_t *value = find(config, key);
    if (value == NULL || *config->status != NULL) return fallback;
    if (json_is_integer(value) && json_integer_value(value) >= low &&
        json_integer_value(value) <= high)
        return json_integer_value(value);
    char expected[80];
    snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)low,
             (long long)high);
    refuse_value(config, key, value, expected);
    return fallback;
}

int64_t config_size(struct config *config, const char *key, int64_t fallback)
{
    return config_integer(config, key, 1, INT32_MAX, fallback);
}

double config_number(struct config *config, const char *key, double low, double high,
                     double fallback)
{
    const json_t *value = find(config, key);
    if (value == NULL || *config->status != NULL) return fallback;
    double number = json_number_value(value);
    if (json_is_number(value) && number >= low && number <= high) return number;
    char expected[80];
    snprintf(expected, sizeof expected, "a number from %g to %g", low, high);
    refuse_value(config, key, value, expected);
    return fallback;
}

double config_probability(struct config *config, const char *key, double fallback)
{
    double p = config_number(config, key, 0, 1, fallback);
    if (p == 1)
        config_refuse(config, STATUS_INVALID_ARGUMENT, key, "expected a number below 1, found 1");
    return p;
}

bool config_boolean(struct config *config, const char *key, bool fallback)
{
    const json_t *value = find(config, key);
    if (value == NULL || *config->status != NULL) return fallback;
    if (!json_is_boolean(value)) refuse_value(config, key, value, "true or false");
    return json_is_true(value);
}

const char *config_text(struct config *config, const char *key, const char *fallback)
{
    const json_t *value = find(config, key);
    if (value == NULL || *config->status != NULL) return fallback;
    if (json_is_string(value)) return json_string_value(value);
    refuse_value(config, key, value, "a text");
    return fallback;
}

void config_refuse_true(struct config *config, const char *key)
{
    if (config_boolean(config, key, false))
        config_refuse(config, STATUS_UNIMPLEMENTED, key, "true is not supported");
}

struct config config_inside(struct config *config, const char *key, const char *section)
{
    json_t *inside = find(config, key);
    if (inside != NULL && !json_is_object(inside)) refuse_value(config, key, inside, "an object");
    return (struct config){.root = inside,
                           .file = config->file,
                           .section = section,
                           .status = config->status};
}

const char *config_activation(struct config *config, const char *key, const char *fallback)
{
    static const struct {
        const char *name, *module;
    } known[] = {
        {"gelu", "GELU()"},
        {"gelu_new", "GELU(approximate='tanh')"},
        {"gelu_pytorch_tanh", "GELU(approximate='tanh')"},
        {"relu", "ReLU()"},
        {"silu", "SiLU()"},
        {"swish", "SiLU()"},
    };
    const char *name = config_text(config, key, fallback);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, name) == 0) return known[i].module;
    config_refuse(config, STATUS_UNIMPLEMENTED, key,
                  "the activation '%.60s' is not supported; gelu, gelu_new, gelu_pytorch_tanh, "
                  "relu and silu are",
                  name);
    return "";
}

const char *config_format(double value, char text[static 32])
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    if (value == floor(value) && fabs(value) < 1e15) snprintf(text, 32, "%.1f", value);
    return text;
}

/* model_type, or what the architectures say. */
static int find_type(struct config *config)
{
    const char *name = config_text(config, "model_type", NULL);
    for (int t = 0; t < TYPE_COUNT && name != NULL; t++)
        if (strcmp(types[t].name, name) == 0) return t;
    if (*config->status != NULL) return -1;
    if (name == NULL)
        config_refuse(config, STATUS_INVALID_ARGUMENT, "model_type",
                      "is missing; gpt2, llama and bert are supported");
    else
        config_refuse(config, STATUS_UNIMPLEMENTED, "model_type",
                      "'%.60s' is not supported; gpt2, llama and bert are", name);
    return -1;
}

static bool is_architecture(int type, const char *name)
{
    bool known = strcmp(name, types[type].architecture) == 0;
    for (int i = 0; i < 3 && types[type].others[i] != NULL; i++)
        known = known || strcmp(name, types[type].others[i]) == 0;
    return known;
}

static void check_architectures(struct config *config, int type)
{
    const json_t *list = find(config, "architectures"), *item;
    size_t index;
    if (list == NULL) return;
    if (!json_is_array(list)) refuse_value(config, "architectures", list, "an array of texts");
    json_array_foreach((json_t *)list, index, item)
    {
        if (!json_is_string(item)) {
            refuse_value(config, "architectures", item, "an array of texts");
            return;
        }
        const char *name = json_string_value(item);
        if (is_architecture(type, name)) continue;
        config_refuse(config, STATUS_UNIMPLEMENTED, "architectures",
                      "'%.60s' is not supported; of %s, %s is", name, types[type].name,
                      types[type].architecture);
    }
}

/* What no architecture here can have. */
static void check_common(struct config *config)
{
    config_refuse_true(config, "is_encoder_decoder");
    config_refuse_true(config, "add_cross_attention");
    config_refuse_true(config, "is_decoder");
    if (find(config, "quantization_config") != NULL)
        config_refuse(config, STATUS_UNIMPLEMENTED, "quantization_config",
                      "quantized weights are not supported");
    const json_t *pruned = find(config, "pruned_heads");
    if (json_object_size(pruned) > 0 || json_array_size(pruned) > 0)
        config_refuse(config, STATUS_UNIMPLEMENTED, "pruned_heads",
                      "pruned heads are not supported");
}

static status_t load(const char *json, size_t length, const char *file, json_t **root)
{
    if (length > HF_CONFIG_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %zu bytes, at most %d are possible", file,
                          length, HF_CONFIG_MAX);
    json_error_t error;
    *root = json_loadb(json, length, JSON_REJECT_DUPLICATES, &error);
    if (*root == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "%s:%d: not JSON: %s", file, error.line,
                          error.text);
    if (json_is_object(*root)) return NULL;
    json_decref(*root);
    return status_new(STATUS_INVALID_ARGUMENT, "%s: expected a JSON object", file);
}

static int read_type(struct config *config)
{
    int type = find_type(config);
    if (type < 0) return type;
    check_architectures(config, type);
    check_common(config);
    return type;
}

status_t hf_config_to_model(const char *json, size_t length, const char *file,
                            struct hf_model *model)
{
    status_t status = NULL;
    struct config config = {.file = file, .section = "", .status = &status};
    TRY(load(json, length, file, &config.root));
    struct buf text = {0};
    bool tied = false;
    int type = read_type(&config);
    if (status == NULL) types[type].write(&config, &text, &tied);
    json_decref(config.root);
    if (status != NULL) {
        buf_deinit(&text);
        return status;
    }
    *model = (struct hf_model){.type = (enum hf_type)type, .tied = tied, .text = buf_take(&text)};
    return NULL;
}

void hf_model_deinit(struct hf_model *model)
{
    free(model->text);
    *model = (struct hf_model){0};
}

/* Whether all numbers below `value` survive in 15 digits, which look like what a person wrote. */
static bool is_short(json_t *value)
{
    const char *key;
    json_t *item;
    size_t index;
    char text[32];
    if (json_is_real(value)) {
        snprintf(text, sizeof text, "%.15g", json_real_value(value));
        return strtod(text, NULL) == json_real_value(value);
    }
    json_object_foreach(value, key, item) if (!is_short(item)) return false;
    json_array_foreach(value, index, item) if (!is_short(item)) return false;
    return true;
}

static void write_export(struct config *config, int type, const char *dtype, struct buf *out)
{
    json_object_set_new(config->root, "architectures", json_pack("[s]", types[type].architecture));
    /* newer versions of transformers write "dtype"; all of them read "torch_dtype" */
    bool newer = json_object_get(config->root, "dtype") != NULL;
    json_object_del(config->root, newer ? "torch_dtype" : "dtype");
    json_object_set_new(config->root, newer ? "dtype" : "torch_dtype", json_string(dtype));
    size_t digits = is_short(config->root) ? 15 : 17;
    char *text = json_dumps(config->root, JSON_INDENT(2) | JSON_REAL_PRECISION(digits));
    buf_add_text(out, text);
    buf_add_char(out, '\n');
    free(text);
}

status_t hf_config_export(const char *json, size_t length, const char *dtype, struct buf *out)
{
    status_t status = NULL;
    struct config config = {.file = "config.json", .section = "", .status = &status};
    TRY(load(json, length, config.file, &config.root));
    int type = read_type(&config);
    if (status == NULL) write_export(&config, type, dtype, out);
    json_decref(config.root);
    return status;
}
