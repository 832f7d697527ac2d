/* Tables of measured durations; see plan_tables.h. Pure functions; any thread. */
#include "planning/plan_tables.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "planning/plan_estimate.h"

/* A rank more on the host, or in a group, changes durations more than as many bytes more. */
static const double RANKS_SCALE = 4;
/* Closer samples than this, squared, count as equal. What a step takes besides its instructions
 * differs from run to run, so it is an average of several samples. */
static const double NEAR = 1e-4, NEAR_STEP = 0.05;
/* What the rates predict may be 0; a ratio needs more. */
static const double SECONDS_MIN = 1e-9;

void plan_row_name(int row, char name[static 48])
{
    if (row < PLAN_ROW_INSTRUCTION) snprintf(name, 48, "%s", op_info_get((enum op_kind)row)->name);
    else if (row < PLAN_ROW_OPTIMIZER)
        snprintf(name, 48, "%s",
                 plan_instruction_name((enum instruction_kind)(row - PLAN_ROW_INSTRUCTION)));
    else if (row < PLAN_ROW_STEP)
        snprintf(name, 48, "optimizer %s",
                 plan_optimizer_name((enum optimizer_kind)(row - PLAN_ROW_OPTIMIZER)));
    else snprintf(name, 48, "step");
}

int plan_row_find(const char *name)
{
    char other[48];
    for (int row = 0; row < PLAN_ROW_COUNT; row++) {
        plan_row_name(row, other);
        if (strcmp(other, name) == 0) return row;
    }
    return -1;
}

void plan_table_add(struct plan_table *table, const struct plan_sample *sample)
{
    MEM_GROW(table->samples, table->count, table->capacity);
    table->samples[table->count++] = *sample;
}

void plan_tables_free(struct plan_tables *tables)
{
    if (tables == NULL) return;
    for (int row = 0; row < PLAN_ROW_COUNT; row++)
        for (int half = 0; half < 2; half++) free(tables->rows[row][half].samples);
    free(tables);
}

static void place(int row, double ranks, double amount, double bytes, double at[static 3])
{
    bool grouped = row >= PLAN_ROW_INSTRUCTION && row != PLAN_ROW_STEP;
    at[0] = RANKS_SCALE * log(ranks);
    at[1] = (grouped ? RANKS_SCALE : 1) * log(amount + 1);
    at[2] = log(bytes + 1);
}

static void prepare(struct plan_table *table, int row, bool half, const struct plan_rates *rates)
{
    for (int i = 0; i < table->count; i++) {
        struct plan_sample *sample = &table->samples[i];
        const struct plan_work work = {.row = row,
                                       .half = half,
                                       .ranks = sample->ranks,
                                       .amount = sample->amount,
                                       .bytes = sample->bytes};
        place(row, sample->ranks, sample->amount, sample->bytes, sample->at);
        sample->ratio = log(sample->seconds / fmax(plan_work_seconds(&work, rates), SECONDS_MIN));
    }
}

void plan_tables_prepare(struct plan_tables *tables, const struct plan_rates *rates)
{
    for (int row = 0; row < PLAN_ROW_COUNT; row++)
        for (int half = 0; half < 2; half++) prepare(&tables->rows[row][half], row, half, rates);
}

/* Without samples of the type, those of the other one are taken. */
static const struct plan_table *find_table(const struct plan_tables *tables,
                                           const struct plan_work *work)
{
    const struct plan_table *own = &tables->rows[work->row][work->half];
    return own->count > 0 ? own : &tables->rows[work->row][!work->half];
}

double plan_tables_seconds(const struct plan_tables *tables, const struct plan_work *work)
{
    const struct plan_table *table = find_table(tables, work);
    if (table->count == 0) return work->seconds;
    double at[3], sum = 0, weights = 0;
    place(work->row, work->ranks, work->amount, work->bytes, at);
    for (int i = 0; i < table->count; i++) {
        const struct plan_sample *sample = &table->samples[i];
        double distance = work->row == PLAN_ROW_STEP ? NEAR_STEP : NEAR;
        for (int k = 0; k < 3; k++) distance += (at[k] - sample->at[k]) * (at[k] - sample->at[k]);
        double weight = 1 / (distance * distance);
        sum += weight * sample->ratio;
        weights += weight;
    }
    return fmax(work->seconds, SECONDS_MIN) * exp(sum / weights);
}
