/*
 * Directories of Hugging Face's transformers: config.json as a model file, the names that their
 * weights have, and config.json as it goes back. Pure; config.json is hostile input.
 *
 * Nothing else knows about Hugging Face: a model that came this way is a model file like any other,
 * whose parameters have the names of transformers' state_dict.
 */
#ifndef FSDPD_HF_HF_H
#define FSDPD_HF_HF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"

enum hf_type { HF_GPT2, HF_LLAMA, HF_BERT };

/* Limits on what comes from outside, in bytes. */
enum { HF_CONFIG_MAX = 1 << 20, HF_INDEX_MAX = 64 << 20 };

struct hf_model {
    enum hf_type type;
    bool tied;  /* the output layer has the weights of the word embeddings */
    char *text; /* the model file (docs/model-file.md) */
};

/*
 * The model file of a config.json. `file` is for messages, which are INVALID_ARGUMENT, "FILE: KEY:
 * expected ..., found ...", or UNIMPLEMENTED, naming what is not supported: an architecture, an
 * option that would change the arithmetic. Other keys than those of the architecture are ignored,
 * as transformers does.
 */
status_t hf_config_to_model(const char *json, size_t length, const char *file,
                            struct hf_model *model) FSDPD_MUST_USE;
void hf_model_deinit(struct hf_model *model);

/*
 * The config.json of weights that are exported from a job with this one: its architecture is the
 * one that was trained, its dtype ("float32", "bfloat16") that of the files.
 */
status_t hf_config_export(const char *json, size_t length, const char *dtype,
                          struct buf *out) FSDPD_MUST_USE;

/* A tensor's name in files, seen from a model of this type. */
enum hf_tensor {
    HF_TENSOR_PARAMETER, /* of the model, if it has one of that name */
    HF_TENSOR_COPY,   /* the same under a second name; if both are there, this one does not count */
    HF_TENSOR_BUFFER, /* computed from the configuration: nothing is lost without it */
    HF_TENSOR_OTHER_HEAD /* weights of a head that this model does not have */
};

/*
 * The parameter that the tensor `name` is, with the prefixes that files may leave out and the old
 * names that they may have, for the caller to free. NULL if it is none.
 */
char *hf_parameter_name(enum hf_type type, const char *name, enum hf_tensor *kind);

/* The name under which a parameter is exported; NULL if its values go under another one's, as
 * transformers leaves out what is tied. */
const char *hf_export_name(enum hf_type type, bool tied, const char *parameter);

/* "gpt2" */
const char *hf_type_name(enum hf_type type);

#endif
