/*
 * The schedule of a plan as text; see plan_report.h. A model repeats its layers, and so does its
 * schedule: lines that come again and again, with the same times and other numbers, are printed
 * once. Pure functions; any thread.
 */
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"
#include "print/fold.h"
#include "print/plan_report.h"
#include "print/table.h"

enum { PERIOD_MAX = 32, DOES_LEAST = 36 };

/* `period` lines, `times` times in a row. */
struct repetition {
    size_t period, times;
};

static bool same_duration(double a, double b)
{
    char first[32], second[32];
    return strcmp(text_format_duration(a, first), text_format_duration(b, second)) == 0;
}

static bool is_same(const Fsdpd__V1__ScheduleLine *a, const Fsdpd__V1__ScheduleLine *b)
{
    return a->last - a->first == b->last - b->first && a->bytes == b->bytes &&
           strcmp(a->lane, b->lane) == 0 && strcmp(a->kind, b->kind) == 0 &&
           same_duration(a->seconds, b->seconds) &&
           same_duration(a->exposed_seconds, b->exposed_seconds) &&
           fold_is_same(a->subject, b->subject);
}

static size_t count_times(Fsdpd__V1__ScheduleLine *const *lines, size_t count, size_t period)
{
    size_t same = 0; /* lines that equal the one a period before */
    while (period + same < count && is_same(lines[same], lines[period + same])) same++;
    return 1 + same / period;
}

/* The repetition with which the lines begin that saves the most of them; a short one is not worth
 * it. */
static struct repetition find_repetition(Fsdpd__V1__ScheduleLine *const *lines, size_t count)
{
    struct repetition best = {1, 1};
    for (size_t period = 1; period <= PERIOD_MAX && 2 * period <= count; period++) {
        size_t times = count_times(lines, count, period);
        size_t saved = (times - 1) * period;
        if (saved >= 2 && saved > (best.times - 1) * best.period)
            best = (struct repetition){period, times};
    }
    return best;
}

static void add_duration(struct table *table, double seconds, const char *none)
{
    char text[32];
    table_add(table, seconds > 0 ? text_format_duration(seconds, text) : none);
}

/* One of the lines of a repetition. */
static void add_row(struct table *table, Fsdpd__V1__ScheduleLine *const *lines,
                    struct repetition repetition)
{
    const Fsdpd__V1__ScheduleLine *line = lines[0];
    char at[32];
    if (line->last > line->first) table_addf(table, "%u-%u", line->first, line->last);
    else table_addf(table, "%u", line->first);
    if (repetition.times > 1) table_addf(table, "%zu x", repetition.times);
    else table_add(table, "");
    table_add(table, text_format_duration(line->start_seconds, at));
    add_duration(table, line->seconds, "-");
    table_add(table, line->lane);
    if (line->bytes > 0) table_add_bytes(table, line->bytes);
    else table_add(table, "");
    add_duration(table, line->exposed_seconds, "");
    AUTO_FREE const char **subjects = mem_alloc_array(repetition.times, sizeof *subjects);
    for (size_t i = 0; i < repetition.times; i++)
        subjects[i] = lines[i * repetition.period]->subject;
    AUTO(buf_deinit) struct buf does = {0};
    buf_printf(&does, "%s ", line->kind);
    fold_add(&does, subjects, repetition.times);
    table_add(table, buf_text(&does));
}

/* Adds at most `limit` rows; 0: all, one for each line. Returns the number of lines shown. */
static size_t add_rows(struct table *table, const Fsdpd__V1__PlanProgram *program, size_t limit)
{
    size_t i = 0;
    for (size_t rows = 0; i < program->n_schedule;) {
        struct repetition repetition = {1, 1};
        if (limit > 0) repetition = find_repetition(program->schedule + i, program->n_schedule - i);
        rows += repetition.period;
        if (limit > 0 && rows > limit) break;
        for (size_t k = 0; k < repetition.period; k++)
            add_row(table, program->schedule + i + k, repetition);
        i += repetition.period * repetition.times;
    }
    return i;
}

void report_schedule(const Fsdpd__V1__Plan *plan, size_t limit, int width, struct buf *out)
{
    static const struct table_column columns[] = {
        {.title = "", .right = true},
        {.title = "TIMES", .right = true, .optional = true},
        {.title = "AT", .right = true},
        {.title = "TAKES", .right = true},
        {.title = "LANE", .drop = 3},
        {.title = "SENDS", .right = true, .optional = true, .drop = 2},
        {.title = "EXPOSED", .right = true, .optional = true},
        {.title = "DOES"},
    };
    for (size_t k = 0; k < plan->n_programs; k++) {
        const Fsdpd__V1__PlanProgram *program = plan->programs[k];
        if (program->n_schedule == 0) continue;
        AUTO(table_deinit)
        struct table table = {.columns = columns,
                              .column_count = COUNT_OF(columns),
                              .least = DOES_LEAST,
                              .whole = true};
        size_t shown = add_rows(&table, program, limit);
        buf_add_text(out, k > 0 ? "\n" : "");
        output_clean(out, program->name, false);
        buf_printf(out, ": %u instructions\n", program->instructions);
        table_print(&table, width, 2, out);
        size_t left = program->n_schedule - shown + program->schedule_left_out;
        if (left > 0) buf_printf(out, "  and %zu more; --dump shows all\n", left);
    }
}
