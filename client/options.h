/*
 * The command line: verbs and options are tables, read by parsing, --help, shell completion and the
 * test of the documentation. All texts point into argv, or to texts that options_deinit frees.
 */
#ifndef FSDPD_CLIENT_OPTIONS_H
#define FSDPD_CLIENT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "output.h"
#include "print/worlds.h"
#include "spec/spec.h"

enum format { FORMAT_TABLE, FORMAT_JSON };

enum { OPTIONS_MAX_SETS = 1000 };

/* The options of wrap set. */
enum {
    OPTIONS_WRAP_POLICY,
    OPTIONS_WRAP_MIN_NUM_PARAMS,
    OPTIONS_WRAP_FORCE_LEAF,
    OPTIONS_WRAP_EXCLUDE,
    OPTIONS_WRAP_TYPES,
    OPTIONS_WRAP_MODULES,
    OPTIONS_WRAP_UNITS,
    OPTIONS_WRAP_COUNT
};

struct verb_options {
    const char *address; /* NULL: not given */
    enum format format;
    int64_t timeout_ms; /* 0: none */
    bool help, version;
    enum colours colours;
    bool wait, dump, choose, verbose;
    uint64_t memory_bytes; /* for plan; 0: not given */
    struct worlds worlds;  /* for plan */
    bool hold, now;        /* for submit; for drain */
    const char *id;
    const char *array;       /* for list: only its jobs; NULL: any */
    bool fold;               /* for list: leave out jobs of arrays that are listed */
    const char *name, *user; /* for list; NULL: any */
    const char *states;      /* for list: "running,queued" */
    const char **labels;     /* "team=vision": of the jobs that are meant */
    int label_count, label_capacity;
    uint32_t limit; /* for list; 0: none */
    bool limit_given;
    char **texts; /* created while parsing the options, and owned */
    int text_count, text_capacity;
    const char *file;         /* --output of pull and trace */
    uint32_t steps;           /* for trace; 0: not given */
    bool hf, peft, bf16;      /* --format and --dtype of pull */
    bool merge;               /* for pull: adapters into the model */
    bool ema;                 /* for pull: the average of the weights */
    uint64_t max_shard_bytes; /* for pull; 0: not given */
    const char *original;     /* a directory, for pull; NULL: not given */
    bool checkpoint;          /* for pull */
    uint64_t checkpoint_step; /* 0: the newest, or the best one: */
    bool best;
    struct spec_override *sets;
    int set_count, set_capacity;
    const char *wrap[OPTIONS_WRAP_COUNT]; /* values; NULL: not given */
    uint32_t attempt;                     /* for logs and metrics; 0: all */
    bool one_rank, follow;                /* for logs */
    int32_t rank;                         /* -1: fsdpd */
    int64_t since_ms;                     /* 0: not given */
    uint32_t tail;                        /* 0: all */
    uint32_t every;                       /* for metrics; 0: not given */
    bool csv;
    const char *data, *held_out; /* for eval; NULL: not given */
    uint32_t batches;
    bool batches_given;
    struct sample_options { /* for sample; texts and numbers that are NULL or 0: not given */
        const char *tokens, *prompt, *stop;
        uint32_t max_tokens, top_k, seed;
        double temperature, top_p, min_p, repetition_penalty;
    } sample;
    bool detach;
    const char *finish_by;   /* NULL: not given */
    bool no_trace;           /* for report */
    bool all, no_stacks;     /* for diagnose */
    double interval_seconds; /* for top; 0: not given */
    uint32_t rounds;         /* 0: no limit */
    const char **arguments;
    int argument_count, argument_capacity;
};

struct verb_option {
    const char *name;  /* without the dashes */
    char letter;       /* 0: none */
    const char *value; /* its name in help, "SECONDS"; NULL: a switch */
    const char *about;
    status_t (*apply)(struct verb_options *options, const char *value);
};

struct client;

/* What a verb is for: the headings of help. */
enum verb_group { VERBS_TRAIN, VERBS_LOOK, VERBS_CHANGE, VERBS_WORKERS, VERBS_TOOLS, VERBS_GROUPS };

struct verb {
    enum verb_group group;
    const char *name;
    const char *arguments; /* "FILE", "show JOB"; "JOB...": one or more; "JOB [FILE]"; "" for none */
    int argument_count;
    const char *about;                 /* one line */
    const char *details;               /* a paragraph, for --help; may be NULL */
    const struct verb_option *options; /* ends with a row without a name; may be NULL */
    int (*run)(struct client *client); /* returns the exit code */
    const char *examples;              /* command lines, one per line */
};

extern const struct verb verbs[];
extern const int verb_count;

/* Options of every verb, which may also precede the verb. Ends like the other tables. */
extern const struct verb_option options_global[];

/* The row in a table, by its long name; NULL if there is none. `table` may be NULL. */
const struct verb_option *options_find(const struct verb_option *table, const char *name);

/* The verb of that name, or NULL. */
const struct verb *verb_find(const char *name);

/*
 * Parses the command line without the program's name. *verb stays NULL if it has none. With --help
 * it does not check the number of arguments. INVALID_ARGUMENT names the mistake and, if there is a
 * likely one, the intended word.
 */
status_t options_parse(int count, char **words, const struct verb **verb,
                       struct verb_options *options) FSDPD_MUST_USE;
void options_deinit(struct verb_options *options);

/* Appends the text of --help for one verb, or for all if `verb` is NULL. */
void options_help(const struct verb *verb, struct buf *out);

/* Appends the script that `fsdpctl completion SHELL` prints, for "bash", "zsh" or "fish"; false for
 * any other shell. */
bool options_completion(const char *shell, struct buf *out);

#endif
