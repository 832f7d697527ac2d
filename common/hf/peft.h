/*
 * Adapters as peft, Hugging Face's library of them, has them: its defaults, and the files
 * adapter_config.json and adapter_model.safetensors. Both files are hostile input. Pure; any
 * thread.
 */
#ifndef FSDPD_HF_PEFT_H
#define FSDPD_HF_PEFT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

#define PEFT_CONFIG "adapter_config.json"
#define PEFT_WEIGHTS "adapter_model.safetensors"

/* Before the name of a parameter, in peft's files. */
#define PEFT_PREFIX "base_model.model."

/* In the name of a parameter of an adapted module's own, behind the module's path: peft saves those
 * of embed_tokens and lm_head, too. */
#define PEFT_OWN ".base_layer"

/* A matrix of an adapter; of an embedding's, the first one is transposed in peft's files. */
struct peft_matrix {
    int place; /* 0: the first, 1: the second */
    bool embedding;
    size_t module; /* bytes of the module's path, which the tensor's name begins with */
};

/* Whether a tensor with this name, with or without the prefix, is one. */
bool peft_find_matrix(const char *tensor, struct peft_matrix *matrix);

/* The modules that LoRA adapts in models of this type unless others are named, ending with NULL;
 * NULL if peft has no default for it. */
const char *const *peft_default_targets(const char *model_type);

struct peft_names {
    char **items;
    int count;
};

/* Numbers by module; the first that matches counts. */
struct peft_rules {
    struct peft_rule {
        char *match;
        double value;
    } * items;
    int count;
};

/* The values of adapter_config.json that matter here. */
struct peft_config {
    const char *base;         /* the directory of the model; "" if it has none */
    const char *architecture; /* its class in transformers, of which the task follows; "" */
    uint32_t rank;
    double alpha, dropout;
    bool rslora, transposed; /* GPT-2's modules */
    struct peft_names targets, exclude, layers, saved;
    struct peft_rules ranks, alphas;
};

enum { PEFT_CONFIG_MAX = 1 << 20 }; /* bytes */

/*
 * Reads it, besides `base` and `architecture`; the caller releases it. Every key is understood, or
 * changes no number once an adapter is trained, or is refused by its name, INVALID_ARGUMENT or
 * UNIMPLEMENTED, "FILE: KEY: expected ..., found ...". `notes` gets what was left out, if anything.
 */
status_t peft_config_read(const char *text, size_t length, const char *file,
                          struct peft_config *config, struct buf *notes) FSDPD_MUST_USE;
void peft_config_deinit(struct peft_config *config);

/* Appends the file's text. */
void peft_config_write(const struct peft_config *config, struct buf *out);

#endif
