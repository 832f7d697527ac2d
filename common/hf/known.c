/* See known.h. */
#include "hf/known.h"

#include <stddef.h>
#include <string.h>

#include "base/array.h"

/* Those of one formula have one name in model files, as they differ in rounding alone. Gemma takes
 * gelu, and not gelu_python, for another. */
static const struct {
    const char *name, *here;
} activations[] = {
    {"gelu", "gelu"},
    {"gelu_python", "gelu_python"},
    {"gelu_new", "gelu_new"},
    {"gelu_fast", "gelu_new"},
    {"gelu_accurate", "gelu_new"},
    {"gelu_pytorch_tanh", "gelu_new"},
    {"gelu_python_tanh", "gelu_new"},
    {"quick_gelu", "quick_gelu"},
    {"relu", "relu"},
    {"relu2", "relu2"},
    {"sigmoid", "sigmoid"},
    {"silu", "silu"},
    {"swish", "silu"},
    {"tanh", "tanh"},
};

const char *known_activation(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(activations); i++)
        if (strcmp(activations[i].name, name) == 0) return activations[i].here;
    return NULL;
}

const char *known_activation_at(int index)
{
    return (size_t)index < COUNT_OF(activations) ? activations[index].name : NULL;
}

static const struct known_refused refused[] = {
    {"is_encoder_decoder", KNOWN_FLAG, "true is not supported"},
    {"add_cross_attention", KNOWN_FLAG, "true is not supported"},
    {"is_decoder", KNOWN_FLAG, "true is not supported"},
    {"quantization_config", KNOWN_VALUE, "quantized weights are not supported"},
    {"compression_config", KNOWN_VALUE, "compressed weights are not supported"},
    {"pruned_heads", KNOWN_ENTRIES, "pruned heads are not supported"},
    {"per_layer_config", KNOWN_ENTRIES, "layers that differ are not supported"},
    {"layer_types", KNOWN_LAYERS,
     "layers other than full_attention are not supported in this family"},
};

const struct known_refused *known_refused_at(int index)
{
    return (size_t)index < COUNT_OF(refused) ? &refused[index] : NULL;
}

static const char *const harmless[] = {
    /* about the file */
    "model_type", "architectures", "transformers_version", "_name_or_path", "name_or_path",
    "_commit_hash", "_attn_implementation_autoset", "auto_map", "custom_pipelines", "torch_dtype",
    "dtype", "finetuning_task", "task_specific_params", "label2id", "tokenizer_class", "prefix",
    "language", "_flash_attn_2_enabled",
    /* what a forward pass returns, keeps or is run by */
    "use_cache", "output_attentions", "output_hidden_states", "output_scores", "return_dict",
    "return_dict_in_generate", "torchscript", "use_bfloat16", "attn_implementation",
    "_attn_implementation", "experts_implementation", "chunk_size_feed_forward",
    "gradient_checkpointing", "cache_implementation", "tf_legacy_loss", "tie_encoder_decoder",
    "cross_attention_hidden_size", "decoder_start_token_id", "encoder_no_repeat_ngram_size",
    "use_return_dict",
    /* tokens, which matter to the text alone */
    "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id",
    "pad_token_id", "forced_bos_token_id", "forced_eos_token_id",
    /* generation */
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "do_sample", "early_stopping",
    "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "min_p",
    "typical_p", "epsilon_cutoff", "eta_cutoff", "repetition_penalty", "length_penalty",
    "no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "remove_invalid_values", "penalty_alpha",
    /* a head's, where it is not trained */
    "problem_type", "num_labels", "id2label", "tie_word_embeddings", "classifier_dropout",
    "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
    "summary_first_dropout",
    /* fsdpd's own, where there is no head for them */
    "pooling", "texts",
};

const char *known_harmless_at(int index)
{
    return (size_t)index < COUNT_OF(harmless) ? harmless[index] : NULL;
}

bool known_is_harmless(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(harmless); i++)
        if (strcmp(harmless[i], name) == 0) return true;
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        if (strcmp(refused[i].name, name) == 0) return true;
    return false;
}
