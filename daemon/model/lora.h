/*
 * LoRA (Hu et al., ICLR 2022) as PEFT has it: a linear module with the weight W gets two children,
 * lora_A (rank rows, the inputs' columns) and lora_B (the outputs' rows, rank columns), and
 * computes
 *
 *     y = W x + bias + scale B A dropout(x),    scale = alpha / rank, or alpha / sqrt(rank)
 *
 * An embedding gets lora_embedding_A, whose row of a token stands for A x and is never dropped, and
 * lora_embedding_B. The first has a row per token here, as embeddings have, and in PEFT's files a
 * column (`flipped` of struct parameter).
 *
 * Only they and whole modules to save are trained; all other parameters are frozen. This is a
 * rewrite of a model that was read: nothing behind it knows of adapters, except that their initial
 * values come from a seed of their own, and that no file of the model's weights has them
 * (`adapter` of struct parameter).
 */
#ifndef FSDPD_MODEL_LORA_H
#define FSDPD_MODEL_LORA_H

#include "base/buf.h"
#include "model/model.h"

struct lora_names {
    const char *const *items;
    int count;
};

struct lora_rule { /* the first that matches a module replaces the value for all */
    const char *match; /* as a target; "^" before it: the whole path */
    double value;
};

struct model_lora {
    int rank;
    double alpha, dropout;
    bool rslora; /* the scale divides by the rank's square root */
    /* A module's path, its end ("q_proj", "mlp.fc1") or a pattern of paths (text_glob_match).
     * "all-linear", as only target: every linear module but the one that makes the scores of
     * tokens, and no embedding. */
    struct lora_names targets, exclude;
    struct lora_names layers; /* numbers of layers; none: all */
    /* Whole modules that are trained; those called classifier and score, which are heads, are
     * always among them. */
    struct lora_names save;
    const struct lora_rule *ranks, *alphas;
    int rank_count, alpha_count;
    bool lenient; /* that of model.adapter: a name that means nothing is no mistake, as to PEFT */
};

/* Rewrites the model. INVALID_ARGUMENT names the job's key ("model.lora.targets: ...", if lenient
 * behind "model.adapter: "); the model is then as it was. */
status_t model_adapt(struct model *model, const struct model_lora *lora) FSDPD_MUST_USE;

/* Appends which modules have adapters: "4 modules: model.layers.*.self_attn.q_proj (2), ...". False
 * if none has. */
bool model_describe_adapters(const struct model *model, struct buf *text);

#endif
