/*
 * A model: the module tree and its parameters, read from a model file (docs/model-file.md), and the
 * forward program from which graphs are built (graph.h). Nothing here holds weights.
 *
 * Modules are numbered in registration order, parents before children: module 0 is the model
 * itself, with path "". Parameters are numbered in PyTorch's state_dict order: depth first, a
 * module's own parameters before its children's, weight before bias. A model is immutable once
 * read.
 */
#ifndef FSDPD_MODEL_MODEL_H
#define FSDPD_MODEL_MODEL_H

#include "base/status.h"
#include "ops/tensor.h"

/* How PyTorch initialises a parameter; see docs/model-file.md. */
enum init_kind {
    INIT_UNIFORM, /* uniform in [-bound, bound) */
    INIT_NORMAL,  /* mean 0, standard deviation `bound` */
    INIT_ZEROS,
    INIT_ONES,
    INIT_CONSTANT, /* all are `bound` */
};

/* A buffer of PyTorch's: state that ops read and write, without a gradient. A count is a 64-bit
 * integer in the bytes of two elements, and a scalar in files. */
enum buffer_kind { MODEL_BUFFER_NONE, MODEL_BUFFER_STATISTIC, MODEL_BUFFER_COUNT };

struct parameter {
    char *name; /* "conv1.weight": PyTorch's state_dict name */
    int module; /* the module that registers it */
    struct tensor_type type;
    enum buffer_kind buffer;
    bool trainable;  /* no buffer is */
    bool adapter;    /* of LoRA (lora.h), drawn from a generator of its own after all others */
    int64_t dropped; /* of such a one: words that PyTorch draws before its own values, and drops */
    bool flipped;    /* likewise: PEFT's files have its transpose */
    int tied_to;     /* the parameter whose memory this one shares (its number is smaller), or -1 */
    enum init_kind init;
    double bound;
    bool has_zero_row; /* an embedding with padding has a row of zeros */
    int64_t zero_row;  /* the row that starts as zeros */
    /* Of dpo (preference.h): a frozen copy of the starting values of parameter `of`, behind all
     * others, which no file has under a name of its own. -1: a teacher's (teach.h). */
    bool reference;
    int of;
    int init_order;    /* place among all draws from the generator, tied parameters included; the
                        * owner of tied memory has the place of the parameter whose values are
                        * used */
};

struct module {
    char *path;  /* "layers.0.conv"; "" for the model */
    char *name;  /* "conv": last part of the path */
    char *type;  /* "Conv2d"; a block's name; the model's name for module 0 */
    char *print; /* what PyTorch prints in the parentheses: "1, 32, kernel_size=(3, 3), stride=(1,
                    1)" */
    int parent;  /* -1 for module 0 */
    int *children;
    int child_count;
    int *parameters; /* its own parameters, without its children's */
    int parameter_count;
};

/* What the targets of a batch are. */
enum model_target {
    TARGET_TOKEN,       /* another token of each token: the next one, or what was masked */
    TARGET_TOKEN_CLASS, /* a class of each token */
    TARGET_CLASS,       /* one class of each sample; of tokens, of each window */
    TARGET_NUMBERS,     /* `targets` of each sample or window */
    TARGET_PAIR,        /* 0 for each sample, which is compared with the others: its texts, or what
                         * is made of its inputs */
    TARGET_PREFERENCE,  /* the next token, of two texts, of which the first is preferred */
    TARGET_REWARD,      /* 0 for each of two texts, of which the first is preferred; of packed
                         * ones, at the token at which each has its number */
};

enum { MODEL_MAX_INPUTS = 6 };

/* One of several inputs: an array of its own in files, and a part of the row that is a sample. */
struct model_input {
    char *name;
    struct tensor_type type; /* of one sample: f32, or (context) i32 tokens, which are f32 there */
    int64_t start;           /* the place of its first number in the row */
};

struct model_program; /* the forward section, parsed: model/program.h */

struct model {
    struct module *modules;
    int module_count;
    struct parameter *parameters;
    int parameter_count;
    struct tensor_type input; /* one sample, without the batch dimension, e.g. (1, 28, 28) f32; with
                               * tokens the longest window, (context) i32; of several inputs the
                               * row of all, (numbers) f32 */
    struct model_input inputs[MODEL_MAX_INPUTS]; /* several; at least one is not of tokens */
    int input_count;                             /* 0: one input, x */
    enum model_target target;
    int64_t class_count; /* targets are 0 ... class_count - 1; of TARGET_TOKEN, the vocabulary; of
                          * TARGET_PAIR 1 */
    struct tensor_type targets; /* one sample's targets, f32, instead of a class (class_count is 0);
                                 * dim_count 0: none */
    bool tokens;                /* "input: tokens" */
    int64_t vocabulary;         /* with tokens, also as one of several inputs: they are below it;
                                 * else 0 */
    int64_t texts;              /* of TARGET_PAIR: in each sample, at least 2, or 1 with several
                                 * inputs; of TARGET_PREFERENCE and TARGET_REWARD, unless they are
                                 * packed, 2; else 1 */
    int64_t context;            /* with tokens: the greatest length of a window; else 0 */
    int64_t padding; /* the token that the model's padding_mask marks; -1 if it has none */
    struct model_program *program;
    bool precomputed; /* of TARGET_PREFERENCE: batches have what the reference makes of them */
};

/* Whether each token of a window has a target, and not each window. */
static inline bool model_has_token_targets(const struct model *model)
{
    bool packed = model->target == TARGET_REWARD && model->texts == 1;
    return model->target == TARGET_TOKEN || model->target == TARGET_TOKEN_CLASS ||
           model->target == TARGET_PREFERENCE || packed;
}

/* Whether a sample is a chosen text and a rejected one. */
static inline bool model_has_preferences(const struct model *model)
{
    return model->target == TARGET_PREFERENCE || model->target == TARGET_REWARD;
}

/* Of several inputs, the first that is not of tokens. */
static inline const struct model_input *model_first_image(const struct model *model)
{
    const struct model_input *input = model->inputs;
    while (input->type.dtype == DTYPE_I32) input++;
    return input;
}

/* A value for one of the file's arguments, which replaces the file's own. */
struct model_argument {
    const char *name, *value;
};

/*
 * Reads a model file. `file_name` is used in messages only. Errors are INVALID_ARGUMENT and start
 * with "<file>:<line>: ". The text may be hostile, so it is limited to 1 MiB, 10,000 modules and a
 * depth of 256.
 */
status_t model_parse(const char *text, size_t length, const char *file_name,
                     struct model **model) FSDPD_MUST_USE;
status_t model_parse_with(const char *text, size_t length, const char *file_name,
                          const struct model_argument *arguments, int argument_count,
                          struct model **model) FSDPD_MUST_USE;
void model_free(struct model *model); /* accepts NULL */

/* -1 if there is no such module. */
int model_find_module(const struct model *model, const char *path);
int model_find_parameter(const struct model *model, const char *name);

/* Elements of all distinct parameters (tied ones count once). */
int64_t model_parameter_elements(const struct model *model);

#endif
