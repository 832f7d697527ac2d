/*
 * The table of options; see options.h. A row with a key may appear in fsdpd.yaml and in the
 * environment, a row with a flag on the command line.
 */
#ifndef FSDPD_OPTION_TABLE_H
#define FSDPD_OPTION_TABLE_H

#include <stddef.h>

#include "options.h"

enum {
    FOR_BOTH = 1 << ROLE_BOTH,
    FOR_COORDINATOR = 1 << ROLE_COORDINATOR,
    FOR_WORKER = 1 << ROLE_WORKER,
    FOR_PLAN = 1 << ROLE_PLAN,
    FOR_CONFIG = 1 << ROLE_CONFIG,
    FOR_SCRUB = 1 << ROLE_SCRUB,
    FOR_STORE = 1 << ROLE_BACKUP | 1 << ROLE_RESTORE | FOR_SCRUB,
    FOR_CERT = 1 << ROLE_CERT,
    FOR_DEVICES = 1 << ROLE_DEVICES,
    FOR_CALIBRATE = 1 << ROLE_CALIBRATE,
    FOR_TOKEN = 1 << ROLE_TOKEN,
    FOR_SERVERS = FOR_BOTH | FOR_COORDINATOR,
    FOR_DAEMONS = FOR_SERVERS | FOR_WORKER,
    FOR_ALL = FOR_DAEMONS | FOR_PLAN | FOR_CONFIG | FOR_STORE | FOR_CERT | FOR_DEVICES |
              FOR_CALIBRATE | FOR_TOKEN,
};

enum option_kind {
    OPTION_SWITCH,  /* true or false; on the command line without an argument */
    OPTION_TEXT,    /* not empty */
    OPTION_PATH,    /* not empty; in a file absolute or starting with ~ */
    OPTION_ADDRESS, /* unix:PATH or HOST:PORT */
    OPTION_INTEGER, /* min to max */
    OPTION_SECONDS, /* min to max; kept in milliseconds */
    OPTION_CHOICE,
    OPTION_DEVICE,  /* cpu, cuda or cuda:N, N at most max */
    OPTION_WORKERS, /* cpu:N, N from 1 to max, or none */
    OPTION_NOTIFY,  /* a mapping; see notify_option.h */
};

enum { OPTION_CHOICES_MAX = 5 };

struct option_row {
    const char *key;      /* "log_level"; NULL: command line only */
    const char *flag;     /* "--log-level"; NULL: not on the command line */
    const char *argument; /* its name in help; NULL for a switch */
    unsigned roles;
    enum option_kind kind;
    bool list;   /* may be repeated */
    bool reload; /* can change while fsdpd runs */
    double min, max;
    const char *choices[OPTION_CHOICES_MAX];
    const char
        *fallback; /* the default as a user would write it; NULL: computed, or `offset` has it */
    size_t offset; /* of the member of struct options that it sets (see kind); 0: apply sets it */
    /* Applies one value that option_check has accepted. May be NULL. */
    status_t (*apply)(struct options *options, const struct option_row *row, const char *text);
    const char *help; /* NULL: not shown; \n separates lines */
};

extern const struct option_row option_rows[];
extern const int option_row_count;

/* The row of a flag or key: the role's own if it has one, otherwise another role's; NULL if
 * none. */
const struct option_row *option_find_flag(const char *name, size_t length, enum role role);
const struct option_row *option_find_key(const char *key, enum role role);

/* Whether the role accepts the row; the role config accepts every key. */
bool option_belongs(const struct option_row *row, enum role role);

/* Whether an earlier row has the same key, for another role. */
bool option_is_repeated(const struct option_row *row);

/* Whether its values, numbers and switches, stand in a file without quotes. */
bool option_is_number(const struct option_row *row);

/* Checks that the text is a valid value; the error is "expected ..., found ...". */
status_t option_check(const struct option_row *row, const char *text) FSDPD_MUST_USE;

/* Applies a text that option_check has accepted. */
status_t option_apply(struct options *options, const struct option_row *row,
                      const char *text) FSDPD_MUST_USE;

/* Appends the type as in the documentation: "integer, 1 to 1024", "list of paths". */
void option_describe_type(const struct option_row *row, struct buf *out);

/* Appends the value in force as in fsdpd.yaml: "[/srv, /data]", "info", "null". */
void option_describe_value(const struct options *options, const struct option_row *row,
                           struct buf *out);

/* "FSDPD_LOG_LEVEL"; caller frees. */
char *option_variable(const struct option_row *row);

/* Takes ownership of `text`; returns it, valid as long as the options. */
const char *option_keep(struct options *options, char *text);

/* Adds a text to the row's value. `where` and `place` are copied with the first text. */
void option_value_add(struct option_value *value, enum option_source source, const char *where,
                      const char *place, const char *text);

/*
 * Reads a configuration file into the rows that have no value yet, and checks the whole file. The
 * message has one line per mistake.
 */
status_t config_file_read(struct options *options, const char *path) FSDPD_MUST_USE;

/* The same for a text; `name` is its name in messages. */
status_t config_file_parse(struct options *options, const char *text, size_t length,
                           const char *name) FSDPD_MUST_USE;

#endif
