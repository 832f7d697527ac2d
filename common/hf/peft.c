/* See peft.h. */
#include "hf/peft.h"

#include <string.h>

#include <stdlib.h>

#include "base/array.h"
#include "base/mem.h"
#include "hf/json.h"

enum { TARGETS_MAX = 4 };

/* TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING of peft 0.21, of the types that families
 * serve. */
static const struct {
    const char *model_type, *targets[TARGETS_MAX + 1];
} defaults[] = {
    {"bert", {"query", "value"}},
    {"electra", {"query", "value"}},
    {"gemma", {"q_proj", "v_proj"}},
    {"gemma2", {"q_proj", "v_proj"}},
    {"gemma3_text", {"q_proj", "v_proj"}},
    {"gpt2", {"c_attn"}},
    {"gpt_neox", {"query_key_value"}},
    {"llama", {"q_proj", "v_proj"}},
    {"mistral", {"q_proj", "v_proj"}},
    {"opt", {"q_proj", "v_proj"}},
    {"phi", {"q_proj", "v_proj", "fc1", "fc2"}},
    {"qwen2", {"q_proj", "v_proj"}},
    {"qwen3", {"q_proj", "v_proj"}},
    {"roberta", {"query", "value"}},
    {"stablelm", {"q_proj", "v_proj"}},
    {"xlm-roberta", {"query", "value"}},
};

const char *const *peft_default_targets(const char *model_type)
{
    for (size_t i = 0; i < COUNT_OF(defaults); i++)
        if (strcmp(defaults[i].model_type, model_type) == 0) return defaults[i].targets;
    return NULL;
}

bool peft_find_matrix(const char *tensor, struct peft_matrix *matrix)
{
    static const char *const ends[][2] = {{".lora_A.weight", ".lora_B.weight"},
                                          {".lora_embedding_A", ".lora_embedding_B"}};
    size_t length = strlen(tensor);
    for (int i = 0; i < 4; i++) {
        const char *end = ends[i / 2][i % 2];
        size_t size = strlen(end);
        if (length < size || strcmp(tensor + length - size, end) != 0) continue;
        *matrix = (struct peft_matrix){i % 2, i / 2 == 1, length - size};
        return true;
    }
    return false;
}

/* A whole number without a fraction, as peft writes it. */
static json_t *number(double value)
{
    bool whole = value == (double)(json_int_t)value;
    return whole ? json_integer((json_int_t)value) : json_real(value);
}

static json_t *list(const struct peft_names *names)
{
    json_t *made = json_array();
    for (int i = 0; i < names->count; i++)
        json_array_append_new(made, json_string(names->items[i]));
    return made;
}

static json_t *rules_object(const struct peft_rules *rules)
{
    json_t *made = json_object();
    for (int i = 0; i < rules->count; i++)
        json_object_set_new(made, rules->items[i].match, number(rules->items[i].value));
    return made;
}

/* NULL for a class without one. */
static const char *task_of(const char *architecture)
{
    static const char *const tasks[][2] = {{"ForCausalLM", "CAUSAL_LM"},
                                           {"LMHeadModel", "CAUSAL_LM"},
                                           {"ForSequenceClassification", "SEQ_CLS"},
                                           {"ForTokenClassification", "TOKEN_CLS"},
                                           {"Model", "FEATURE_EXTRACTION"}};
    size_t length = strlen(architecture);
    for (size_t i = 0; i < COUNT_OF(tasks); i++) {
        size_t end = strlen(tasks[i][0]);
        if (length >= end && strcmp(architecture + length - end, tasks[i][0]) == 0)
            return tasks[i][1];
    }
    return NULL;
}

void peft_config_write(const struct peft_config *config, struct buf *out)
{
    const char *task = task_of(config->architecture);
    json_t *root = json_pack(
        "{s:s, s:s?, s:s?, s:i, s:o, s:o, s:o, s:o, s:b, s:b, s:s, s:b, s:b, s:b, s:o, s:o}",
        "peft_type", "LORA", "task_type", task, "base_model_name_or_path",
        config->base[0] != '\0' ? config->base : NULL, "r", (int)config->rank, "lora_alpha",
        number(config->alpha), "lora_dropout", json_real(config->dropout), "target_modules",
        list(&config->targets), "modules_to_save",
        config->saved.count > 0 ? list(&config->saved) : json_null(), "fan_in_fan_out",
        config->transposed, "use_rslora", config->rslora, "bias", "none", "use_dora", false,
        "init_lora_weights", true, "inference_mode", true, "rank_pattern",
        rules_object(&config->ranks), "alpha_pattern", rules_object(&config->alphas));
    char *text = hf_json_write(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(15));
    buf_printf(out, "%s\n", text);
    free(text);
    json_decref(root);
}
