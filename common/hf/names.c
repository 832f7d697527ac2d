/*
 * The names of tensors in files; see hf.h. Files of the bare model leave the prefix out, old ones
 * have names that were changed since, and there are buffers and heads that nothing here needs.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "hf/hf.h"

enum { NAMES_MAX = 8 };

static const struct {
    const char *prefix;             /* of the bare model's tensors in the whole one */
    const char *bare[NAMES_MAX];    /* how these begin where it is left out */
    const char *buffers[NAMES_MAX]; /* patterns */
    const char *heads[NAMES_MAX];   /* patterns */
    const char *output;             /* has the word embeddings when they are tied */
} types[] = {
    [HF_GPT2] = {.prefix = "transformer.",
                 .bare = {"wte.", "wpe.", "h.", "ln_f."},
                 .buffers = {"*.attn.bias", "*.attn.masked_bias"},
                 .heads = {"score.*", "multiple_choice_head.*"},
                 .output = "lm_head.weight"},
    [HF_LLAMA] = {.prefix = "model.",
                  .bare = {"embed_tokens.", "layers.", "norm."},
                  .buffers = {"*.rotary_emb.inv_freq"},
                  .heads = {"score.*"},
                  .output = "lm_head.weight"},
    [HF_BERT] = {.prefix = "bert.",
                 .bare = {"embeddings.", "encoder.", "pooler."},
                 .buffers = {"*embeddings.position_ids", "*embeddings.token_type_ids"},
                 .heads = {"bert.pooler.*", "pooler.*", "cls.seq_relationship.*", "classifier.*",
                           "qa_outputs.*"},
                 .output = "cls.predictions.decoder.weight"},
};

/* Bert's output bias is registered twice, and kept in files under the first of its names. */
static const char bias_in_files[] = "cls.predictions.bias";
static const char bias_in_models[] = "cls.predictions.decoder.bias";

static bool matches(const char *const patterns[NAMES_MAX], const char *name)
{
    for (int i = 0; i < NAMES_MAX && patterns[i] != NULL; i++)
        if (text_glob_match(patterns[i], name)) return true;
    return false;
}

static bool is_bare(enum hf_type type, const char *name)
{
    const char *const *bare = types[type].bare;
    for (int i = 0; i < NAMES_MAX && bare[i] != NULL; i++)
        if (strncmp(name, bare[i], strlen(bare[i])) == 0) return true;
    return false;
}

/* TensorFlow's names of a LayerNorm's parameters, which old files have. */
static void modernise(char **name)
{
    static const struct {
        const char *old, *new;
    } ends[] = {{"LayerNorm.gamma", "LayerNorm.weight"}, {"LayerNorm.beta", "LayerNorm.bias"}};
    size_t length = strlen(*name);
    for (int i = 0; i < 2; i++) {
        size_t old = strlen(ends[i].old);
        if (length < old || strcmp(*name + length - old, ends[i].old) != 0) continue;
        char *modern = mem_printf("%.*s%s", (int)(length - old), *name, ends[i].new);
        free(*name);
        *name = modern;
        return;
    }
}

char *hf_parameter_name(enum hf_type type, const char *name, enum hf_tensor *kind)
{
    *kind = matches(types[type].buffers, name) ? HF_TENSOR_BUFFER
            : matches(types[type].heads, name) ? HF_TENSOR_OTHER_HEAD
                                               : HF_TENSOR_PARAMETER;
    if (*kind != HF_TENSOR_PARAMETER) return NULL;
    if (type == HF_BERT && strcmp(name, bias_in_files) == 0) return mem_strdup(bias_in_models);
    if (type == HF_BERT && strcmp(name, bias_in_models) == 0) *kind = HF_TENSOR_COPY;
    char *full =
        is_bare(type, name) ? mem_printf("%s%s", types[type].prefix, name) : mem_strdup(name);
    if (type == HF_BERT) modernise(&full);
    return full;
}

const char *hf_export_name(enum hf_type type, bool tied, const char *parameter)
{
    if (tied && strcmp(parameter, types[type].output) == 0) return NULL;
    if (type == HF_BERT && strcmp(parameter, bias_in_models) == 0) return bias_in_files;
    return parameter;
}
