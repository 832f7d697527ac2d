/*
 * The table of options; see options.h. A row with a key may stand in fsdpd.yaml and in the
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
    FOR_STORE = 1 << ROLE_BACKUP | 1 << ROLE_RESTORE,
    FOR_CERT = 1 << ROLE_CERT,
    FOR_DEVICES = 1 << ROLE_DEVICES,
    FOR_SERVERS = FOR_BOTH | FOR_COORDINATOR,
    FOR_DAEMONS = FOR_SERVERS | FOR_WORKER,
    FOR_ALL = FOR_DAEMONS | FOR_PLAN | FOR_CONFIG | FOR_STORE | FOR_CERT | FOR_DEVICES,
};

enum option_kind {
    OPTION_SWITCH,  /* true or false; on the command line without an argument */
    OPTION_TEXT,    /* not empty */
    OPTION_PATH,    /* not empty; in a file absolute or from ~ */
    OPTION_ADDRESS, /* unix:PATH or HOST:PORT */
    OPTION_INTEGER, /* min to max */
    OPTION_SECONDS, /* min to max; kept in milliseconds */
    OPTION_CHOICE,
    OPTION_DEVICE,  /* cpu, cuda or cuda:N, N up to max */
    OPTION_WORKERS, /* cpu:N, N from 1 to max, or none */
};

enum { OPTION_CHOICES_MAX = 5 };

struct option_row {
    const char *key;      /* "log_level"; NULL: on the command line alone */
    const char *flag;     /* "--log-level"; NULL: not on the command line */
    const char *argument; /* its name in the help; NULL for a switch */
    unsigned roles;
    enum option_kind kind;
    bool list;   /* may be repeated */
    bool reload; /* can change while fsdpd runs */
    double min, max;
    const char *choices[OPTION_CHOICES_MAX];
    const char
        *fallback; /* the default as it would be written; NULL: found out, or `offset` has it */
    size_t offset; /* of what it sets in struct options (see kind); 0: apply does it */
    /* One text, checked. May be NULL. */
    status_t (*apply)(struct options *options, const struct option_row *row, const char *text);
    const char *help; /* NULL: not shown; lines are separated by \n */
};

extern const struct option_row option_rows[];
extern const int option_row_count;

/* The row of that flag or key: the role's if it has one, else another role's; NULL if none. */
const struct option_row *option_find_flag(const char *name, size_t length, enum role role);
const struct option_row *option_find_key(const char *key, enum role role);

/* Whether the role knows the row: config knows every key. */
bool option_belongs(const struct option_row *row, enum role role);

/* Whether an earlier row has the same key (for another role). */
bool option_is_repeated(const struct option_row *row);

/* Whether the text is a value: "expected ..., found ...". */
status_t option_check(const struct option_row *row, const char *text) FSDPD_MUST_USE;

/* Sets what a text that option_check took means. */
status_t option_apply(struct options *options, const struct option_row *row,
                      const char *text) FSDPD_MUST_USE;

/* "integer, 1 to 1024", "list of paths": as the documentation has it. */
void option_describe_type(const struct option_row *row, struct buf *out);

/* The value in force, as it would be written in fsdpd.yaml: "[/srv, /data]", "info", "null". */
void option_describe_value(const struct options *options, const struct option_row *row,
                           struct buf *out);

/* "FSDPD_LOG_LEVEL"; the caller frees it. */
char *option_variable(const struct option_row *row);

/* A copy that lives as long as the options; takes `text` over. */
const char *option_keep(struct options *options, char *text);

/* Adds a text to the row's value. `where` and `place` are copied at the first one. */
void option_value_add(struct option_value *value, enum option_source source, const char *where,
                      const char *place, const char *text);

/*
 * Reads a configuration file into the values of rows that have none yet, and checks all of it. Of
 * several mistakes every one is a line of the message.
 */
status_t config_file_read(struct options *options, const char *path) FSDPD_MUST_USE;

/* The same of a text; `name` stands in messages. */
status_t config_file_parse(struct options *options, const char *text, size_t length,
                           const char *name) FSDPD_MUST_USE;

#endif
