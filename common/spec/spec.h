/*
 * The job file and its message. A job file is YAML (docs/job-file.md); what travels is
 * fsdpd.v1.JobSpec. Both are ruled by one table of keys (spec_keys): it drives reading, --set,
 * defaults, bounds, validation, printing, and the test that keeps the documentation true.
 *
 * A message is complete: reading a job file fills in every default, so the daemon never guesses
 * what a zero meant. Keys that do not belong to a chosen type (optimizer.rho with sgd) stay zero.
 */
#ifndef FSDPD_SPEC_SPEC_H
#define FSDPD_SPEC_SPEC_H

#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"
#include "fsdpd/v1/control.pb-c.h"

/* Limits on what comes from outside, in bytes and pieces. */
enum {
    SPEC_FILE_MAX = 1 << 20,  /* of a job file */
    SPEC_MODEL_MAX = 1 << 20, /* of a model file */
    SPEC_TEXT_MAX = 4096,     /* of a path */
    SPEC_NAME_MAX = 40,
    SPEC_MODULE_MAX = 256, /* of a module's path */
    SPEC_MODULES_MAX = 65536,
    SPEC_GLOB_MAX = 256, /* of a pattern of names */
    SPEC_GLOBS_MAX = 64,
    SPEC_WORKERS_MAX = 4096,
};

enum spec_type {
    SPEC_NAME,   /* [a-z0-9-], starting with a letter or digit */
    SPEC_TEXT,   /* a path; "~/" stands for the home directory */
    SPEC_MODEL,  /* the path of the model file, relative to the job file */
    SPEC_CHOICE, /* one of a few words */
    SPEC_INTEGER,
    SPEC_NUMBER,
    SPEC_BOOLEAN,
    SPEC_UNITS,  /* a list whose items are a module's path or a list of them */
    SPEC_GLOBS,  /* a list of patterns of names, empty only if it need not be given */
    SPEC_TYPES,  /* a list of module types, likewise */
    SPEC_GROUPS, /* a list of mappings: match, and what is different for what it matches */
    SPEC_JOBS,   /* a job's id or a list of them */
    SPEC_TIME,   /* a duration or a point in time; see time.h */
    SPEC_LABELS, /* a mapping of texts */
};

enum { SPEC_CHOICES_MAX = 6 };

/*
 * One key. A key whose default depends on a type has a row for each ("optimizer.lr"). `fallback` is
 * the default as it would be written in a job file (a list: its items, with ", " between them), ""
 * for none (device), NULL if the key must be given.
 */
struct spec_key {
    const char *key; /* "train.epochs" */
    enum spec_type type;
    const char *field; /* path in the message, "data.normalize_mean"; the key itself if NULL */
    const char *fallback;
    const char *unit; /* "samples"; NULL if it has none */
    double min, max;  /* SPEC_INTEGER, SPEC_NUMBER; both inclusive */
    const char *choices[SPEC_CHOICES_MAX];
    /* Belongs to a spec in which with_key is with_value or, if it is not NULL, or_value; or NULL.
     */
    const char *with_key, *with_value, *or_value;
    bool or_ranks; /* SPEC_CHOICE: or a number of ranks */
    bool late;     /* came later: a message without its section has the default */
};

extern const struct spec_key spec_keys[];
extern const size_t spec_key_count;

/* One --set of a command line: "train.epochs=3". Lists are written as in YAML: "[fc1, [a, b]]". */
struct spec_override {
    const char *text;
    const char *origin; /* what was typed, for messages: "--priority 5"; NULL: --set `text` */
};

/*
 * Reads the job file `path`, with `overrides` in place of what it says; a later one wins. The model
 * file's text is put into the message. A relative data.dir from an override that is a directory
 * here, or data.path that is a file, becomes absolute, since it was typed relative to the shell;
 * one from the file is relative to the workers' data root. An override of a type drops the file's
 * keys that belong to another type.
 *
 * INVALID_ARGUMENT says "FILE:LINE: KEY: expected ..., found ..."; a file that cannot be read has
 * the code of the failed call. *spec is the caller's, for spec_free.
 */
status_t spec_read_file(const char *path, const struct spec_override *overrides, int count,
                        Fsdpd__V1__JobSpec **spec) FSDPD_MUST_USE;

/* The same from memory. `file` is for messages and for the model file's directory. */
status_t spec_read_text(const char *text, size_t length, const char *file,
                        const struct spec_override *overrides, int count,
                        Fsdpd__V1__JobSpec **spec) FSDPD_MUST_USE;

/* One key and its value as in YAML; `origin` is for messages. */
struct spec_setting {
    const char *key, *value, *origin;
};

/*
 * A complete wrap policy from settings of keys that begin with "fsdp.wrap.", defaults filled in,
 * for fsdpd__v1__wrap_spec__free_unpacked. `what` stands for the file in messages.
 */
status_t spec_read_wrap(const char *what, const struct spec_setting *settings, int count,
                        Fsdpd__V1__WrapSpec **wrap) FSDPD_MUST_USE;

/* Whether a message, from the network say, keeps every bound of the table and is complete.
 * INVALID_ARGUMENT says "KEY: expected ..., found ...". */
status_t spec_validate(const Fsdpd__V1__JobSpec *spec) FSDPD_MUST_USE;

/* A copy on the heap, for spec_free. */
Fsdpd__V1__JobSpec *spec_copy(const Fsdpd__V1__JobSpec *spec);

void spec_free(Fsdpd__V1__JobSpec *spec); /* accepts NULL */

/* The job file that says what the message says, every key written out; the model file by its name
 * only. Appends to `out`. */
void spec_to_yaml(const Fsdpd__V1__JobSpec *spec, struct buf *out);

#endif
