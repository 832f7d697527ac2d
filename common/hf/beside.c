/* See beside.h. */
#include "hf/beside.h"

#include <string.h>

/* What AutoTokenizer, AutoProcessor and GenerationConfig of transformers 4.57 and 5.24 read for the
 * types of models that families serve. */
const char *const hf_beside_names[] = {"tokenizer.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "chat_template.jinja",
                                       "chat_template.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "vocab.txt",
                                       "bpe.codes",
                                       "tokenizer.model",
                                       "spiece.model",
                                       "spm.model",
                                       "sentencepiece.bpe.model",
                                       "tekken.json",
                                       "generation_config.json",
                                       "preprocessor_config.json",
                                       "processor_config.json",
                                       NULL};

static bool is_template(const char *name)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    static const char directory[] = HF_TEMPLATES "/", end[] = ".jinja";
    if (strncmp(name, directory, sizeof directory - 1) != 0) return false;
    const char *file = name + sizeof directory - 1;
    size_t length = strlen(file), tail = sizeof end - 1;
    return length > tail && length <= 128 && file[0] != '.' && strspn(file, letters) == length &&
           strcmp(file + length - tail, end) == 0;
}

bool hf_is_beside(const char *name)
{
    for (const char *const *known = hf_beside_names; *known != NULL; known++)
        if (strcmp(name, *known) == 0) return true;
    return is_template(name);
}
