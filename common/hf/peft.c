/* See peft.h. */
#include "hf/peft.h"

#include <string.h>

#include "base/array.h"

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
