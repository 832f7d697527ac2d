/*
 * Directories of Hugging Face's transformers: config.json as a model file, the names that their
 * weights have, and config.json as it goes back. What is particular to an architecture is data, a
 * family file (docs/families.md). Both files are hostile input. All but families.c is pure.
 *
 * Nothing else knows about Hugging Face: a model that came this way is a model file like any other,
 * whose parameters have the names of transformers' state_dict.
 */
#ifndef FSDPD_HF_HF_H
#define FSDPD_HF_HF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/* Limits on what comes from outside, in bytes. */
enum { HF_CONFIG_MAX = 1 << 20, HF_INDEX_MAX = 64 << 20, HF_FAMILY_MAX = 1 << 18 };

struct hf_family;

/* Reads a family file. `file` is for messages, which are INVALID_ARGUMENT, "FILE:LINE: ...". */
status_t hf_family_parse(const char *text, size_t length, const char *file,
                         struct hf_family **family) FSDPD_MUST_USE;
void hf_family_free(struct hf_family *family); /* accepts NULL */

/*
 * Makes the family that of the architecture that a config.json names, if that is one of its heads.
 * Before the functions below, and once. Its mistakes are those of hf_config_to_model.
 */
status_t hf_family_choose(struct hf_family *family, const char *json, size_t length,
                          const char *file) FSDPD_MUST_USE;

/*
 * A config.json that names the architecture of the head that is called `head`, for the caller to
 * free. INVALID_ARGUMENT if the family has none of this name.
 */
status_t hf_config_with_head(const struct hf_family *family, const char *json, size_t length,
                             const char *file, const char *head, char **changed) FSDPD_MUST_USE;

const char *hf_family_name(const struct hf_family *family);

/* Text `index` of a list of the family, from 0; NULL after the last. Architectures: first the one
 * that is trained. Keys: those of config.json that it understands. */
enum hf_family_list { HF_FAMILY_MODEL_TYPES, HF_FAMILY_ARCHITECTURES, HF_FAMILY_KEYS };
const char *hf_family_item(const struct hf_family *family, enum hf_family_list list, int index);

/* The value of model_type in a config.json, for the caller to free; its mistakes are those of
 * hf_config_to_model. */
status_t hf_config_type(const char *json, size_t length, const char *file,
                        char **model_type) FSDPD_MUST_USE;

/* The first of a config.json's architectures, for the caller to free; NULL if it names none. */
status_t hf_config_architecture(const char *json, size_t length, const char *file,
                                char **architecture) FSDPD_MUST_USE;

enum { HF_LEFT_OUT_MAX = 16 };

struct hf_model {
    char *text;                     /* the model file (docs/model-file.md) */
    bool left_out[HF_LEFT_OUT_MAX]; /* for hf_export_name: what holds of this configuration */
};

/*
 * The model file of a config.json. `file` is for messages, which are INVALID_ARGUMENT, "FILE: KEY:
 * expected ..., found ...", or UNIMPLEMENTED, naming what is not supported: an architecture, an
 * option that would change the arithmetic. Other keys than those of the family are ignored, as
 * transformers does.
 */
status_t hf_config_to_model(const struct hf_family *family, const char *json, size_t length,
                            const char *file, struct hf_model *model) FSDPD_MUST_USE;
void hf_model_deinit(struct hf_model *model);

/*
 * The config.json of weights that are exported from a job with this one: its architecture is the
 * one that was trained, its dtype ("float32", "bfloat16") that of the files.
 */
status_t hf_config_export(const struct hf_family *family, const char *json, size_t length,
                          const char *dtype, struct buf *out) FSDPD_MUST_USE;

/* A tensor's name in files, seen from a model of this family. */
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
char *hf_parameter_name(const struct hf_family *family, const char *name, enum hf_tensor *kind);

/* Whether files may lack this parameter, as it belongs to a head that they were not trained with:
 * it then gets initial values. */
bool hf_parameter_is_new(const struct hf_family *family, const char *parameter);

/* Of a table of positions whose rows are the places of a square grid, row by row, after those of
 * other tokens: the grid's first row. Files may have another grid. -1: it is none. */
int64_t hf_parameter_grid(const struct hf_family *family, const char *parameter);

/* The name under which a parameter is exported; NULL if its values go under another one's, as
 * transformers leaves out what is tied. */
const char *hf_export_name(const struct hf_family *family, const struct hf_model *model,
                           const char *parameter);

/* ---- families.c: directories of family files ---- */

/* A file in one of them, valid during a visit. */
struct hf_family_file {
    const char *path;
    const char *text; /* `length` bytes; "" if it cannot be read */
    size_t length;
    const struct hf_family *family; /* NULL if it cannot be used */
};

/* `error` says why the file cannot be used, NULL if it can; the visitor owns it. A status ends the
 * visits and is their result; `*done` also ends them. */
typedef status_t hf_family_visit(void *user, const struct hf_family_file *file, status_t error,
                                 bool *done);

/*
 * Visits the family files of the directories, then those that came with the program, in the order
 * in which they are searched. A directory that is not there is an error only if it is one of
 * `dirs`.
 */
status_t hf_families_each(const char *const *dirs, int dir_count, hf_family_visit *visit,
                          void *user) FSDPD_MUST_USE;

/*
 * The text of the first family file that serves `model_type`, for the caller to free;
 * UNIMPLEMENTED if there is none. A file with a mistake is passed over, unless its name or its
 * model_type says that it is meant for this one: then its mistake is the result.
 */
status_t hf_family_find(const char *const *dirs, int dir_count, const char *model_type,
                        char **text) FSDPD_MUST_USE;

/* Logs the mistakes in files of these directories. */
void hf_families_report(const char *const *dirs, int dir_count);

#endif
