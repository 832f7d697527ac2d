/*
 * The command line: verbs and options are tables, which parsing, --help, shell completion and the
 * test of the documentation all read. Everything here points into argv, or at texts that
 * options_deinit frees.
 */
#ifndef FSDPD_CLIENT_OPTIONS_H
#define FSDPD_CLIENT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "spec/spec.h"

enum format { FORMAT_TABLE, FORMAT_JSON };

enum { OPTIONS_MAX_ARGUMENTS = 2, OPTIONS_MAX_SETS = 1000 };

/* Of wrap set. */
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

struct options {
    const char *address; /* NULL: not given */
    enum format format;
    int64_t timeout_ms; /* 0: none */
    bool help, version;
    bool wait, dump, verbose;
    bool hold, now; /* submit's; drain's */
    const char *id;
    const char *name, *user; /* list's; NULL: any */
    const char *states;      /* list's, "running,queued" */
    const char **labels;     /* list's, "team=vision" */
    int label_count, label_capacity;
    uint32_t limit; /* list's; 0: none */
    bool limit_given;
    char **texts; /* that options made; they own them */
    int text_count, text_capacity;
    const char *file;         /* pull's and trace's --output */
    uint32_t steps;           /* trace's; 0: not given */
    bool hf, bf16;            /* pull's --format and --dtype */
    uint64_t max_shard_bytes; /* pull's; 0: not given */
    bool checkpoint;          /* pull's */
    uint64_t checkpoint_step; /* 0: the newest */
    struct spec_override *sets;
    int set_count, set_capacity;
    const char *wrap[OPTIONS_WRAP_COUNT]; /* values; NULL: not given */
    uint32_t attempt;                     /* logs' and metrics'; 0: all */
    bool one_rank, follow;                /* logs' */
    int32_t rank;                         /* -1: fsdpd */
    int64_t since_ms;                     /* 0: not given */
    uint32_t tail;                        /* 0: all */
    uint32_t every;                       /* metrics'; 0: not given */
    bool csv;
    bool no_trace;           /* report's */
    double interval_seconds; /* top's; 0: not given */
    uint32_t rounds;         /* 0: no end */
    const char *arguments[OPTIONS_MAX_ARGUMENTS];
    int argument_count;
};

struct option_row {
    const char *name;  /* without the dashes */
    char letter;       /* 0: none */
    const char *value; /* how help names it, "SECONDS"; NULL: a switch */
    const char *about;
    status_t (*apply)(struct options *options, const char *value);
};

struct client;

struct verb {
    const char *name;
    const char *arguments; /* "FILE", "show JOB"; "" for none */
    int argument_count;
    const char *about;                 /* one line */
    const char *details;               /* more lines, for --help; may be NULL */
    const struct option_row *options;  /* ends with a row without a name; may be NULL */
    int (*run)(struct client *client); /* returns the exit code */
};

extern const struct verb verbs[];
extern const int verb_count;

/* What every verb understands, and what may stand before the verb; ends like the others. */
extern const struct option_row options_global[];

/* The row in a table, by its long name; NULL if there is none. `table` may be NULL. */
const struct option_row *options_find(const struct option_row *table, const char *name);

/* The verb of that name, or NULL. */
const struct verb *verb_find(const char *name);

/*
 * Reads the command line without the program's name. *verb stays NULL if there is none. With --help
 * nothing is asked about arguments. INVALID_ARGUMENT says what is wrong and what was meant.
 */
status_t options_parse(int count, char **words, const struct verb **verb,
                       struct options *options) FSDPD_MUST_USE;
void options_deinit(struct options *options);

/* What --help prints: of one verb, or of all for NULL. */
void options_help(const struct verb *verb, struct buf *out);

/* The script that `fsdpctl completion SHELL` prints: "bash", "zsh" or "fish"; false: another. */
bool options_completion(const char *shell, struct buf *out);

#endif
