/*
 * A model's weights in files: a directory of Hugging Face's transformers, with one safetensors file
 * or several and an index, or one file that uses the parameters' own names; and PEFT's file of an
 * adapter beside them, or alone. A rank reads only its part. Files are read in pieces, never
 * mapped: a file truncated during the read is an error, not a signal.
 */
#ifndef FSDPD_CHECKPOINT_WEIGHTS_H
#define FSDPD_CHECKPOINT_WEIGHTS_H

#include "hf/hf.h"
#include "model/model.h"

struct weights_source {
    const char *dir;   /* absolute, links resolved; NULL: there is only an adapter */
    const char *root;  /* no link leads out of it */
    const char *file;  /* of the directory, which must be there; NULL: as transformers calls them */
    bool own_names;    /* tensors are called as parameters are; else as in transformers' files */
    const struct hf_family *family; /* then: of this family */
    const char *const *ignore;      /* patterns of tensors that are left out, if the model does not
                                     * have them */
    int ignore_count;
    bool only_trained; /* of parameters that are not trained there may be no tensors */
    const char *adapter_dir,
        *adapter_root;        /* likewise; NULL: none. It has all adapters of the model */
    bool adapter_saves;       /* also all modules that are trained whole; else those that it has */
    const char *adapter_note; /* what to say of its configuration, or NULL */
};

struct weights;

/*
 * Reads the headers of the files and finds each parameter's tensor. *weights stays NULL if the
 * directory has no weights at all. Missing and unknown tensors, and those with another shape or an
 * unknown type, are reported together as INVALID_ARGUMENT. The source must outlive the weights.
 */
status_t weights_open(const struct weights_source *source, const struct model *model,
                      struct weights **weights) FSDPD_MUST_USE;
void weights_free(struct weights *weights); /* accepts NULL */

/* Whether a parameter that is not tied to another is in a file; a new head's and an adapter's may be
 * in none, and then get initial values. */
bool weights_has(const struct weights *weights, int parameter);
/* Whether its file has it in bf16, as it is used. */
bool weights_are_bf16(const struct weights *weights, int parameter);
bool weights_is_partial(const struct weights *weights);

/* `count` elements of a parameter that is not tied to another, from its element `offset` on.
 * INVALID_ARGUMENT names the tensor and its first element that is infinite or NaN. */
status_t weights_read(struct weights *weights, int parameter, int64_t offset, size_t count,
                      float *values) FSDPD_MUST_USE;

/* A parameter that is tied to another, and whose own tensor has other values than the other's; -1 if
 * there is none. */
status_t weights_find_untied(struct weights *weights, const struct model *model,
                             int *parameter) FSDPD_MUST_USE;

/* A hash of the files' layout and sizes, which ranks compare. */
uint64_t weights_hash(const struct weights *weights);

/* Tensors that the model has no use for or that are missing, as a sentence; NULL if there are none.
 */
const char *weights_note(const struct weights *weights);

#endif
