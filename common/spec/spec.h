/*
 * The job file and its message. A job file is YAML (docs/job-file.md); its message is
 * fsdpd.v1.JobSpec. One table of keys (spec_keys) defines both: it drives reading, --set, defaults,
 * bounds, validation, printing, and the test that compares the documentation.
 *
 * Reading a job file fills in every default, and spec_complete those of a client's message. After
 * that a message is complete, and nothing else interprets what is absent. Keys that do not belong
 * to a chosen type (optimizer.rho with sgd) stay absent.
 */
#ifndef FSDPD_SPEC_SPEC_H
#define FSDPD_SPEC_SPEC_H

#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"
#include "fsdpd/v1/control.pb-c.h"

/* Limits on untrusted input, in bytes and counts. */
enum {
    SPEC_FILE_MAX = 1 << 20,  /* of a job file */
    SPEC_MODEL_MAX = 1 << 20, /* of a model file */
    SPEC_TEXT_MAX = 4096,     /* of a path */
    SPEC_NAME_MAX = 40,
    SPEC_MODULE_MAX = 256, /* of a module's path */
    SPEC_MODULES_MAX = 65536,
    SPEC_GLOB_MAX = 256, /* of a pattern of names */
    SPEC_GLOBS_MAX = 64,
    SPEC_NDIM_MAX = 8,
    SPEC_SOURCES_MAX = 64,
    SPEC_HELD_OUT_MAX = 16,
    SPEC_PHASES_MAX = 64,
    SPEC_ARGUMENTS_MAX = 64,
    SPEC_WORKERS_MAX = 4096,
    SPEC_OVERRIDES_MAX = 1024,
    SPEC_ARRAY_MAX = 10000,         /* jobs of an array */
    SPEC_ARRAY_BYTES_MAX = 1 << 30, /* of job file, read for all jobs of an array together */
};

enum spec_type {
    SPEC_NAME,   /* [a-z0-9-], starting with a letter or digit */
    SPEC_TEXT,   /* a path; "~/" is the home directory */
    SPEC_MODEL,  /* the path of the model file, relative to the job file */
    SPEC_CHOICE, /* one of a few words */
    SPEC_INTEGER,
    SPEC_NUMBER,
    SPEC_BOOLEAN,
    SPEC_UNITS,     /* a list whose items are a module's path or a list of them */
    SPEC_GLOBS,     /* a list of name patterns; empty only if the key is optional */
    SPEC_TYPES,     /* a list of module types, likewise */
    SPEC_GROUPS,    /* a list of mappings: match, and the settings of what it matches */
    SPEC_SOURCES,   /* a list of mappings: path and weight */
    SPEC_WORDS,     /* a list of words of `choices` */
    SPEC_HELD_OUT,  /* a list of mappings: name, path, every_steps and batches */
    SPEC_PHASES,    /* a list of mappings: a schedule's keys, steps and factor */
    SPEC_JOBS,      /* a job's id or a list of them */
    SPEC_INDICES,   /* of an array: "1,3,7-9", "0-100:10" */
    SPEC_TIME,      /* a duration or a point in time; see queue.h */
    SPEC_LABELS,    /* a mapping of texts */
    SPEC_ARGUMENTS, /* a mapping from names to single values */
    SPEC_RULES, /* a mapping from patterns of modules to numbers; the first that matches counts */
};

enum { SPEC_CHOICES_MAX = 10, SPEC_WITH_MAX = 6 }; /* unused entries are NULL */

/*
 * One key. A key whose default depends on a type has a row for each type ("optimizer.lr").
 * `fallback` is the default as in a job file (a list: its items, separated by ", "), "" for an
 * empty default (device; a number then stays absent), NULL if the key is required.
 */
struct spec_key {
    const char *key; /* "train.epochs" */
    enum spec_type type;
    const char *field; /* path in the message, "data.normalize_mean"; the key itself if NULL */
    const char *fallback;
    const char *unit; /* "samples"; NULL if it has none */
    double min, max;  /* SPEC_INTEGER, SPEC_NUMBER; both inclusive */
    const char *choices[SPEC_CHOICES_MAX];
    const ProtobufCEnumDescriptor *values; /* the choices in the message, from 1; NULL: as text */
    /* The key applies only if with_key is one of with_values, or, without these, is given. NULL:
     * always. */
    const char *with_key, *with_values[SPEC_WITH_MAX];
    bool or_ranks; /* SPEC_CHOICE: or a number of ranks, or of the unit */
    bool absent;   /* the message that has it is absent without it */
    /* SPEC_CHOICE: or NAME/val_loss or NAME/accuracy, of one of data.validation; the field that has
     * NAME then. NULL: not so. */
    const char *set;
};

extern const struct spec_key spec_keys[];
extern const size_t spec_key_count;

/* For a path on the workers' hosts. */
status_t spec_check_path(const char *path) FSDPD_MUST_USE;

/* Reads "5,17,3". The caller frees *ids, also after an error. */
status_t spec_read_tokens(const char *text, uint32_t **ids, size_t *count) FSDPD_MUST_USE;

/* Appends what train.sample's prompt `i` was continued with: "PROMPT -> 4,9", or as text for
 * data.format text, whose bytes may be anything. */
void spec_add_sample(struct buf *out, const Fsdpd__V1__JobSpec *spec,
                     const Fsdpd__V1__Sampled *sampled, size_t i);

bool spec_has_images(const Fsdpd__V1__DataSpec *data);

/* Whether the optimizer updates matrices only, so that optimizer.others has the other parameters.
 */
bool spec_has_others(const Fsdpd__V1__OptimizerSpec *optimizer);

/* Values that one optimizer keeps per parameter, or both together; as many as any for one of a
 * newer fsdpd. */
int spec_optimizer_slots(const Fsdpd__V1__OptimizerSpec *optimizer);

/* Weights of other jobs that a job begins with (model.weights.job, model.adapter.job). */
struct spec_from {
    const char *key; /* "model.weights" */
    Fsdpd__V1__JobWeights *from;
    bool adapter; /* only what an adapter job trains */
};
enum { SPEC_FROM_MAX = 2 };

/* Returns their number. */
int spec_find_from(const Fsdpd__V1__ModelSpec *model, struct spec_from found[static SPEC_FROM_MAX]);

/* Whether settings say when to take checkpoints; NULL: there are none. */
bool spec_takes_checkpoints(const Fsdpd__V1__CheckpointSpec *checkpoint);

/* Whether the best checkpoint stays beside the newest ones. */
bool spec_keeps_best(const Fsdpd__V1__CheckpointSpec *checkpoint);

/*
 * A value of an enum of the API as people read and write it: the word of a job file, if a key has
 * this type ("full_shard"), or of a worker's state ("idle"), otherwise its name without the type's
 * prefix ("RUNNING"). NULL for 0, which is nothing, and for what is unknown.
 */
const char *spec_word(const ProtobufCEnumDescriptor *type, int value);

/* The value of a word; 0 if there is none. */
int spec_word_value(const ProtobufCEnumDescriptor *type, const char *word);

/* The first key with this last word ("epochs": "train.epochs"), or with this name in other trainers
 * ("learning_rate": "optimizer.lr"). NULL if there is none. */
const char *spec_key_of_word(const char *word);

/* One --set of a command line: "train.epochs=3". Lists are in YAML: "[fc1, [a, b]]". */
struct spec_override {
    const char *text;
    const char *origin; /* the user's input, for messages: "--priority 5"; NULL: --set `text` */
};

/*
 * Reads the job file `path`; `overrides` replace its values, later ones win. Stores the model
 * file's text in the message. A relative data.dir from an override that is a directory here, or
 * data.path that is a file (of a dataset: a directory), becomes absolute, since the user typed it
 * relative to the shell; one from the file is relative to the workers' data root. An override of a
 * type drops the file's keys that belong to another type.
 *
 * INVALID_ARGUMENT reads "FILE:LINE: KEY: expected ..., found ..."; a file that cannot be read has
 * the code of the failed call. The caller frees *spec with spec_free.
 */
status_t spec_read_file(const char *path, const struct spec_override *overrides, int count,
                        Fsdpd__V1__JobSpec **spec) FSDPD_MUST_USE;

/* The same from memory. `file` is for messages and gives the model file's directory. */
status_t spec_read_text(const char *text, size_t length, const char *file,
                        const struct spec_override *overrides, int count,
                        Fsdpd__V1__JobSpec **spec) FSDPD_MUST_USE;

/* The same from what a client sent: no file of this machine is read. */
status_t spec_read_sent(const Fsdpd__V1__JobFile *sent, Fsdpd__V1__JobSpec **spec) FSDPD_MUST_USE;

/* Adds field and line to an error that was found after the file was read, if it begins with a key
 * that the file has ("data.path: there is no such file"); returns `status`. */
status_t spec_place(const Fsdpd__V1__JobFile *sent, status_t status) FSDPD_MUST_USE;

/*
 * Arrays (docs/arrays.md). spec_read_sent and the like give the spec of an array's record: that of
 * its first index, but with the array's own name, without labels that depend on the index, and,
 * from a client's file, with this file. spec_array_each gives those of its jobs, in order, named
 * NAME-INDEX; an error names the index and the place. Trials of a sweep have their values in
 * of_array. The work is limited, too.
 */
struct spec_array_part {
    size_t first, count; /* of its indices, from 0; beyond the last: none */
};
typedef status_t spec_array_visit(void *user, uint32_t index, Fsdpd__V1__JobSpec *spec);
status_t spec_array_each(const Fsdpd__V1__JobFile *sent, const struct spec_array_part *part,
                         spec_array_visit *visit, void *user) FSDPD_MUST_USE;

/* The indices of array.indices in their order, none twice; the caller frees them. */
status_t spec_array_indices(const char *text, uint32_t **indices, size_t *count) FSDPD_MUST_USE;

/* Whether it is the spec of one of this array's jobs. */
bool spec_is_of_array(const Fsdpd__V1__JobSpec *spec, const char *array);

/*
 * For clients: reads a job file as the functions above do, which checks it, and makes the message
 * from which a daemon reads the same: its text, the overrides with their paths resolved, and the
 * model file. Free it with fsdpd__v1__job_file__free_unpacked.
 */
status_t spec_pack_file(const char *path, const struct spec_override *overrides, int count,
                        Fsdpd__V1__JobFile **sent) FSDPD_MUST_USE;
status_t spec_pack_text(const char *text, size_t length, const char *file,
                        const struct spec_override *overrides, int count,
                        Fsdpd__V1__JobFile **sent) FSDPD_MUST_USE;

/* One key and its value as in YAML; `origin` is for messages. */
struct spec_setting {
    const char *key, *value, *origin;
};

/*
 * A complete wrap policy from settings of keys that begin with "fsdp.wrap.", with defaults filled
 * in; free it with fsdpd__v1__wrap_spec__free_unpacked. `what` replaces the file name in messages.
 */
status_t spec_read_wrap(const char *what, const struct spec_setting *settings, int count,
                        Fsdpd__V1__WrapSpec **wrap) FSDPD_MUST_USE;

/*
 * Fills in what a client's message leaves out, from the table: what a job file without these keys
 * has. Required keys stay absent, for spec_validate. The messages are from the heap, as unpacked.
 */
void spec_complete(Fsdpd__V1__JobSpec *spec);
void spec_complete_wrap(Fsdpd__V1__WrapSpec *wrap);

/* Marks every value of a complete message as given: for messages of versions that could not leave
 * out a value, so that 0 is one. */
void spec_mark_given(Fsdpd__V1__JobSpec *spec);

/* Checks that a message, e.g. from the network, is complete and within all bounds of the table.
 * INVALID_ARGUMENT reads "KEY: expected ..., found ...". */
status_t spec_validate(const Fsdpd__V1__JobSpec *spec) FSDPD_MUST_USE;

/* A copy on the heap; free it with spec_free. */
Fsdpd__V1__JobSpec *spec_copy(const Fsdpd__V1__JobSpec *spec);

void spec_free(Fsdpd__V1__JobSpec *spec); /* accepts NULL */

/* The first of `keys` (ends with NULL) whose values differ between two specs; "data." covers all
 * keys with that prefix. NULL if none differ. */
const char *spec_find_change(const Fsdpd__V1__JobSpec *a, const Fsdpd__V1__JobSpec *b,
                             const char *const *keys);

/*
 * The settings of a job that count: what its spec asks for, and in its place what was chosen since
 * (NULL: nothing). What is chosen is not open any more: fsdp.auto and fsdp.tune are false then.
 * Borrows from both, as `out` does, which need not be freed.
 */
struct spec_settings {
    Fsdpd__V1__JobSpec spec;
    Fsdpd__V1__TrainSpec train;
    Fsdpd__V1__FsdpSpec fsdp;
};
const Fsdpd__V1__JobSpec *spec_settings(const Fsdpd__V1__JobSpec *asked,
                                        const Fsdpd__V1__Chosen *chosen, struct spec_settings *out);

/* Appends a line "KEY: VALUE" for each key of `to` that has another value than in `from`. */
void spec_print_changes(const Fsdpd__V1__JobSpec *from, const Fsdpd__V1__JobSpec *to,
                        struct buf *out);

/* Appends to `out` the job file equivalent to the message, with every key written out and the model
 * file by its name only. */
void spec_to_yaml(const Fsdpd__V1__JobSpec *spec, struct buf *out);

#endif
