/*
 * Measured durations of the work in plans, by kind of work. A duration that was not measured
 * follows from the nearest ones: a sample is the ratio of what was measured to what the rates
 * predict, and ratios are averaged with weights that fall with the distance in the logarithms of
 * sizes. So a table corrects the rates near what was measured, and never contradicts a sample, but
 * for those of whole steps, which are averages. Pure functions; any thread.
 */
#ifndef FSDPD_PLANNING_PLAN_TABLES_H
#define FSDPD_PLANNING_PLAN_TABLES_H

#include "base/buf.h"
#include "fsdp/plan.h"
#include "ops/optimizers.h"
#include "yaml/yaml.h"

enum {
    PLAN_ROW_INSTRUCTION = OP_KIND_COUNT, /* first the ops; the instructions other than COMPUTE */
    PLAN_ROW_OPTIMIZER = PLAN_ROW_INSTRUCTION + INSTRUCTION_KIND_COUNT, /* by kind */
    PLAN_ROW_STEP = PLAN_ROW_OPTIMIZER + OPTIMIZER_COUNT, /* a step, besides its instructions */
    PLAN_ROW_COUNT
};

enum { PLAN_SAMPLES_MAX = 512 /* of a table */ };

/* One piece of work. */
struct plan_work {
    int row;        /* -1: none, takes no time */
    bool half;      /* on bf16 */
    double ranks;   /* of the job on this host: they share its memory and processors */
    double amount;  /* floating-point operations; of a collective the ranks of its group; of a step
                     * its instructions */
    double bytes;   /* read and written; of a collective those sent */
    double seconds; /* as the rates predict */
};

struct plan_sample {
    double ranks, amount, bytes, seconds;
    /* set by plan_tables_prepare: logarithms, of `seconds` relative to what the rates predict */
    double at[3], ratio;
};

struct plan_table {
    struct plan_sample *samples;
    int count, capacity;
};

struct plan_tables {
    struct plan_table rows[PLAN_ROW_COUNT][2]; /* second index: `half` */
    int threads;                               /* of each rank when they were measured */
    int processors; /* of the host if lanes run on these; 0: lanes do not share any */
};

/* "linear_backward_data", "all_gather", "optimizer adamw", "step". */
void plan_row_name(int row, char name[static 48]);
int plan_row_find(const char *name); /* -1 if there is none */

void plan_table_add(struct plan_table *table, const struct plan_sample *sample);
void plan_tables_free(struct plan_tables *tables); /* accepts NULL */

struct plan_rates;
/* Compares the samples with the rates; once, after the last was added. */
void plan_tables_prepare(struct plan_tables *tables, const struct plan_rates *rates);

/* Seconds of `work`; what the rates predict if nothing of its kind was measured. */
double plan_tables_seconds(const struct plan_tables *tables, const struct plan_work *work);

/* ---- profile_tables.c ---- */

/* A profile's tables of measured durations, as YAML (docs/profiles.md). Internal to this room. */

/* The caller prepares and frees *tables. Errors name file, line and key. */
status_t profile_tables_read(const struct yamldoc_node *node,
                             struct plan_tables **tables) FSDPD_MUST_USE;

/* The key `tables` with all that profile_tables_read reads. */
void profile_tables_print(const struct plan_tables *tables, struct buf *out);

#endif
