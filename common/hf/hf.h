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
 * A config.json that names the architecture of the head that is called `head`, for the caller to
 * free. INVALID_ARGUMENT if the family has none of this name.
 */
status_t hf_config_with_head(const struct hf_family *family, const char *json, size_t length,
                             const char *file, const char *head, char **changed) FSDPD_MUST_USE;

/*
 * A config.json that does not tie the parameter, for the caller to free: the key that decides it is
 * false. INVALID_ARGUMENT if none does.
 */
status_t hf_config_untied(const struct hf_family *family, const char *json, size_t length,
                          const char *file, const char *parameter, char **changed) FSDPD_MUST_USE;

/* Adds a note, unless it is there. */
void hf_family_note(struct hf_family *family, const char *format, ...) FSDPD_PRINTF(2, 3);

const char *hf_family_name(const struct hf_family *family);

/* The object of config.json that has the keys of a model that is a part of another one, whose other
 * weights nothing here reads; NULL: the model is a whole. */
const char *hf_family_inside(const struct hf_family *family);

/* The class of transformers that is trained, after hf_config_to_model. */
const char *hf_family_architecture(const struct hf_family *family);

/* Text `index` of a list of the family, from 0; NULL after the last. Architectures: first its own.
 * Keys: those of config.json that it understands. Harmless: others that transformers' class has,
 * which change no number. Notes: on the last configuration that
 * hf_config_to_model read. */
enum hf_family_list {
    HF_FAMILY_MODEL_TYPES,
    HF_FAMILY_ARCHITECTURES,
    HF_FAMILY_KEYS,
    HF_FAMILY_HARMLESS,
    HF_FAMILY_NOTES,
};
const char *hf_family_item(const struct hf_family *family, enum hf_family_list list, int index);

/* The value of model_type in a config.json, for the caller to free; its mistakes are those of
 * hf_config_to_model. */
status_t hf_config_type(const char *json, size_t length, const char *file,
                        char **model_type) FSDPD_MUST_USE;

/*
 * The model file (docs/model-file.md) of a config.json, for the caller to free. `file` is for
 * messages, which are INVALID_ARGUMENT, "FILE: KEY: expected ..., found ...", or UNIMPLEMENTED,
 * naming what is not supported: an architecture, an option that would change the arithmetic. Keys
 * that are not known have no effect, as in transformers, and a note names them. From then on, also for the
 * functions below, the family is that of this configuration: of the head that it names, with what
 * it ties.
 */
status_t hf_config_to_model(struct hf_family *family, const char *json, size_t length,
                            const char *file, char **model) FSDPD_MUST_USE;

/*
 * The config.json of weights that are exported from a job with this one, after hf_config_to_model:
 * its architecture is the one that was trained, its dtype ("float32", "bfloat16") the files'.
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
const char *hf_export_name(const struct hf_family *family, const char *parameter);

/* ---- families.c: directories of family files ---- */

struct hf_families {
    struct hf_family_file {
        char *path, *text;        /* with what it inherits; "" if it cannot be read */
        struct hf_family *family; /* or: */
        status_t error;           /* why the file cannot be used */
    } * files;
    int count, capacity;
    struct buf as_read; /* the files before they inherited, by which others are compared */
    int holders;
};

/*
 * The family files of the directories, then those that came with the program, in the order in which
 * they are searched. A directory that is not there is an error only if it is one of `dirs`. The
 * process parses files once: as long as they are the same, all callers, in any thread, get the same
 * families, and only read them. Each one closes them; then files that have changed are freed.
 */
status_t hf_families_open(const char *const *dirs, int dir_count,
                          const struct hf_families **families) FSDPD_MUST_USE;
void hf_families_close(const struct hf_families *families);

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
