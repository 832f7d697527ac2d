/*
 * The variables of the environment that change what fsdpd and fsdpctl do, in one table; those that
 * are keys of fsdpd.yaml are options' (option_table.c). docs/fsdpd.md has the rows. Any thread.
 */
#ifndef FSDPD_BASE_SWITCHES_H
#define FSDPD_BASE_SWITCHES_H

#include <stdbool.h>
#include <stddef.h>

enum switch_kind {
    SWITCH_USER,       /* stays */
    SWITCH_TEST,       /* for tests and for measurements */
    SWITCH_EXPERIMENT, /* goes, or becomes the default, once `decided` has run on a GPU */
};

struct switch_row {
    const char *name, *value; /* value: what to set it to, "own", "N" */
    enum switch_kind kind;
    const char *decided; /* of an experiment: the measurement */
    const char *help;
};

extern const struct switch_row switch_rows[];
extern const size_t switch_row_count;

/* NULL: there is none of this name. */
const struct switch_row *switch_find(const char *name);
const char *switch_kind_name(enum switch_kind kind);

/* The variable's value; NULL: it is not set. Only of a row: anything else aborts. */
const char *switch_get(const char *name);
bool switch_is(const char *name, const char *value);
/* A number above 0; 0: it is not set, or to something else. */
long long switch_number(const char *name);

/* Logs each that is set, with its value. */
void switches_log(void);

#endif
