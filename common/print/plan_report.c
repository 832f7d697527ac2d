/* Plans as text; see plan_report.h. Pure functions; any thread. */
#include "print/plan_report.h"

#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"
#include "print/fold.h"
#include "print/table.h"
#include "spec/spec.h"

enum {
    ELEMENT_BYTES = 4,   /* parameters are f32 */
    SCHEDULE_LINES = 48, /* lines of a program without --dump */
};

static void end_line(struct buf *out)
{
    if (out->length > 0 && out->data[out->length - 1] != '\n') buf_add_char(out, '\n');
}

void report_tree(const Fsdpd__V1__Plan *plan, struct buf *out)
{
    output_clean(out, plan->module_tree, true);
    end_line(out);
}

/* Units of the same size whose names differ in one number only share a row. */
static bool is_equal(const Fsdpd__V1__Unit *a, const Fsdpd__V1__Unit *b)
{
    return a->parameters == b->parameters && a->padded == b->padded &&
           a->shard_bytes == b->shard_bytes && a->n_modules == b->n_modules;
}

/* Moves the units that belong to units[0] next to it, in their order; returns how many they are. */
static size_t gather_group(const Fsdpd__V1__Unit **units, size_t count)
{
    int number = -1;
    size_t members = 1;
    for (size_t i = 1; i < count; i++) {
        int difference = fold_difference(units[0]->name, units[i]->name);
        if (difference < 0 || (number >= 0 && difference != number)) continue;
        if (!is_equal(units[0], units[i])) continue;
        number = difference;
        const Fsdpd__V1__Unit *unit = units[i];
        memmove(&units[members + 1], &units[members], (i - members) * sizeof *units);
        units[members++] = unit;
    }
    return members;
}

static const char *module_name(const Fsdpd__V1__Unit *unit, size_t m)
{
    return unit->modules[m][0] != '\0' ? unit->modules[m] : "(root)";
}

/* Appends names as one, or one after the other if they differ in more than numbers. */
static void add_folded(struct buf *text, const char **names, size_t count)
{
    bool same = true;
    for (size_t i = 1; i < count; i++) same = same && fold_is_same(names[0], names[i]);
    for (size_t i = 0; !same && i < count; i++)
        buf_printf(text, "%s%s", i > 0 ? ", " : "", names[i]);
    if (same) fold_add(text, names, count);
}

static void add_units(struct table *table, const Fsdpd__V1__Unit **units, size_t count)
{
    AUTO_FREE const char **names = mem_alloc_array(count, sizeof *names);
    AUTO(buf_deinit) struct buf text = {0};
    for (size_t i = 0; i < count; i++) names[i] = units[i]->name;
    fold_add(&text, names, count);
    table_add(table, buf_text(&text));
    if (count > 1) table_addf(table, "%zu x", count);
    else table_add(table, "");
    table_add_count(table, units[0]->parameters);
    table_add_count(table, units[0]->padded);
    table_add_bytes(table, units[0]->padded * ELEMENT_BYTES);
    table_add_bytes(table, units[0]->shard_bytes);
    buf_clear(&text);
    for (size_t m = 0; m < units[0]->n_modules; m++) {
        if (m > 0) buf_add_text(&text, ", ");
        for (size_t i = 0; i < count; i++) names[i] = module_name(units[i], m);
        add_folded(&text, names, count);
    }
    table_add(table, buf_text(&text));
}

void report_units(Fsdpd__V1__Unit *const *given, size_t count, int width, struct buf *out)
{
    static const struct table_column columns[] = {
        {.title = "UNIT"},
        {.title = "TIMES", .right = true, .optional = true},
        {.title = "PARAMETERS", .right = true},
        {.title = "PADDED", .right = true, .drop = 2},
        {.title = "BYTES", .right = true, .drop = 1},
        {.title = "SHARD BYTES", .right = true},
        {.title = "MODULES"},
    };
    AUTO(table_deinit)
    struct table table = {.columns = columns, .column_count = COUNT_OF(columns), .whole = true};
    AUTO_FREE const Fsdpd__V1__Unit **units = mem_alloc_array(count, sizeof *units);
    for (size_t i = 0; i < count; i++) units[i] = given[i];
    for (size_t i = 0; i < count;) {
        size_t members = gather_group(units + i, count - i);
        add_units(&table, units + i, members);
        i += members;
    }
    table_print(&table, width, 0, out);
}

static void report_communication(const Fsdpd__V1__Plan *plan, struct buf *out)
{
    char bytes[32];
    buf_printf(out, "Sent per rank and step: %s",
               text_format_bytes(plan->communicated_bytes, bytes));
    for (size_t i = 0; i < plan->n_collectives; i++) {
        const Fsdpd__V1__Collective *collective = plan->collectives[i];
        buf_printf(out, "%s%u ", i ? ", " : " (", collective->count);
        output_clean(out, collective->kind, false);
        buf_printf(out, " %s", text_format_bytes(collective->bytes, bytes));
    }
    buf_add_text(out, plan->n_collectives ? ")\n" : "\n");
    if (plan->redundancy_sent_bytes > 0)
        buf_printf(out, "Sent for redundancy in memory, whenever it is renewed: %s\n",
                   text_format_bytes(plan->redundancy_sent_bytes, bytes));
}

/* An older daemon sends the rows of one program only. */
static void report_plain_memory(const Fsdpd__V1__Plan *plan, struct buf *out)
{
    static const struct table_column columns[] = {{.title = "MEMORY PER RANK"},
                                                  {.title = "BYTES", .right = true}};
    AUTO(table_deinit) struct table table = {.columns = columns, .column_count = 2};
    for (size_t i = 0; i < plan->n_memory; i++) {
        table_add(&table, plan->memory[i]->name);
        table_add_bytes(&table, plan->memory[i]->bytes);
    }
    table_add(&table, "peak");
    table_add_bytes(&table, plan->peak_bytes);
    table_print(&table, 0, 0, out);
    if (plan->peak_at != NULL && plan->peak_at[0] != '\0') {
        buf_add_text(out, "The peak is at ");
        output_clean(out, plan->peak_at, false);
        buf_add_text(out, ".\n");
    }
}

enum { PROGRAMS_MAX = 4 }; /* columns of a table; there are fewer kinds of steps */

static size_t program_count(const Fsdpd__V1__Plan *plan)
{
    return plan->n_programs < PROGRAMS_MAX ? plan->n_programs : PROGRAMS_MAX;
}

/* A table with a column for each program. The titles must outlive it. */
static void start_programs(struct table *table, struct table_column columns[1 + PROGRAMS_MAX],
                           char *titles[PROGRAMS_MAX], const Fsdpd__V1__Plan *plan,
                           const char *title)
{
    size_t count = program_count(plan);
    columns[0] = (struct table_column){.title = title};
    for (size_t k = 0; k < count; k++) {
        struct buf text = {0};
        output_clean(&text, plan->programs[k]->name, false);
        titles[k] = buf_take(&text);
        for (char *c = titles[k]; *c != '\0'; c++) *c = (char)toupper((unsigned char)*c);
        columns[1 + k] = (struct table_column){.title = titles[k], .right = true};
    }
    *table = (struct table){.columns = columns, .column_count = 1 + (int)count};
}

static void end_programs(struct table *table, char *titles[PROGRAMS_MAX], struct buf *out)
{
    int count = table->column_count - 1;
    table_print(table, 0, 0, out);
    table_deinit(table);
    for (int k = 0; k < count; k++) free(titles[k]);
}

static const Fsdpd__V1__MemoryClass *find_class(const Fsdpd__V1__PlanProgram *program,
                                                const char *name)
{
    for (size_t i = 0; i < program->n_memory; i++)
        if (strcmp(program->memory[i]->name, name) == 0) return program->memory[i];
    return NULL;
}

/* A row for every class of any program, in the order of the first program that has it. */
static void add_classes(struct table *table, const Fsdpd__V1__Plan *plan)
{
    size_t count = program_count(plan);
    for (size_t k = 0; k < count; k++) {
        const Fsdpd__V1__PlanProgram *program = plan->programs[k];
        for (size_t i = 0; i < program->n_memory; i++) {
            const char *name = program->memory[i]->name;
            bool seen = false;
            for (size_t before = 0; before < k && !seen; before++)
                seen = find_class(plan->programs[before], name) != NULL;
            if (seen) continue;
            table_add(table, name);
            for (size_t column = 0; column < count; column++) {
                const Fsdpd__V1__MemoryClass *found = find_class(plan->programs[column], name);
                table_add_bytes(table, found != NULL ? found->bytes : 0);
            }
        }
    }
}

/* "0.0066% of 17.2 GB", "100% of 126 MB" */
static void add_share(struct buf *out, double part, uint64_t whole)
{
    char bytes[32];
    double percent = 100.0 * part / (double)whole;
    buf_printf(out, percent < 10 ? "%.2g%% of %s" : "%.0f%% of %s", percent,
               text_format_bytes(whole, bytes));
}

/* The host's memory: copies use some too, and all ranks on a host share it. */
static void report_offloaded(const Fsdpd__V1__Plan *plan, struct buf *out)
{
    char bytes[32];
    buf_printf(out, "Offloaded: %s of host memory per rank",
               text_format_bytes(plan->host_bytes, bytes));
    double all = (double)(plan->host_bytes + plan->staging_bytes) * plan->host_ranks;
    if (plan->host_memory_bytes > 0) {
        buf_printf(out, "; with copies, %u rank%s on a host would have ", plan->host_ranks,
                   plan->host_ranks > 1 ? "s" : "");
        add_share(out, all, plan->host_memory_bytes);
    }
    buf_add_text(out, ".\n");
}

/* Allocated memory, its fraction of the device, and the program that determines it. */
static void report_allocated(const Fsdpd__V1__Plan *plan, struct buf *out)
{
    char bytes[32];
    buf_printf(out, "Allocated: %s per rank", text_format_bytes(plan->peak_bytes, bytes));
    if (plan->device_memory_bytes > 0) {
        buf_add_text(out, ", ");
        add_share(out, (double)plan->peak_bytes, plan->device_memory_bytes);
    }
    if (plan->staging_bytes > 0)
        buf_printf(out, ", and %s of pinned host memory for copies",
                   text_format_bytes(plan->staging_bytes, bytes));
    buf_add_text(out, ".");
    const Fsdpd__V1__PlanProgram *train = plan->programs[0];
    if (plan->peak_bytes > train->bytes) {
        buf_printf(out, " Training alone needs %s: evaluation decides.",
                   text_format_bytes(train->bytes, bytes));
    }
    buf_add_char(out, '\n');
    if (plan->host_bytes > 0) report_offloaded(plan, out);
    for (size_t k = 0; k < plan->n_programs; k++) {
        buf_add_text(out, "Peak of ");
        output_clean(out, plan->programs[k]->name, false);
        buf_add_text(out, ": instruction ");
        output_clean(out, plan->programs[k]->peak_at, false);
        buf_add_text(out, ".\n");
    }
}

/* What a worker's process needs besides, and the process as a whole. */
static void add_outside(struct table *table, const Fsdpd__V1__Plan *plan)
{
    uint64_t outside = 0;
    for (size_t i = 0; i < plan->n_outside; i++) {
        outside += plan->outside[i]->bytes;
        table_addf(table, "outside: %s", plan->outside[i]->name);
        for (size_t k = 0; k < program_count(plan); k++)
            table_add_bytes(table, plan->outside[i]->bytes);
    }
    if (plan->resident_bytes == 0) return;
    table_add(table, "process");
    for (size_t k = 0; k < program_count(plan); k++)
        table_add_bytes(table, plan->programs[k]->bytes + outside);
}

void report_memory(const Fsdpd__V1__Plan *plan, struct buf *out)
{
    char count[32];
    const char *strategy = spec_word(&fsdpd__v1__strategy__descriptor, (int)plan->strategy);
    buf_printf(out, "%s parameters, %s", text_format_count(plan->parameters, count),
               strategy != NULL ? strategy : "an unknown strategy");
    buf_printf(out, " over %u worker%s\n\n", plan->world, plan->world == 1 ? "" : "s");
    if (plan->n_programs == 0) {
        report_plain_memory(plan, out);
    } else {
        struct table_column columns[1 + PROGRAMS_MAX];
        char *titles[PROGRAMS_MAX];
        struct table table;
        start_programs(&table, columns, titles, plan, "MEMORY PER RANK");
        add_classes(&table, plan);
        table_add(&table, "in all");
        for (size_t k = 0; k < program_count(plan); k++)
            table_add_bytes(&table, plan->programs[k]->bytes);
        add_outside(&table, plan);
        end_programs(&table, titles, out);
        report_allocated(plan, out);
    }
    report_communication(plan, out);
}

/* ---- Times ---- */

static void table_add_duration(struct table *table, double seconds)
{
    char text[32];
    table_add(table, seconds > 0 ? text_format_duration(seconds, text) : "-");
}

static void add_estimate_row(struct table *table, const Fsdpd__V1__Plan *plan, const char *name,
                             size_t offset)
{
    table_add(table, name);
    for (size_t k = 0; k < program_count(plan); k++) {
        const Fsdpd__V1__Estimate *estimate = plan->programs[k]->estimate;
        double seconds = 0;
        if (estimate != NULL) memcpy(&seconds, (const char *)estimate + offset, sizeof seconds);
        table_add_duration(table, seconds);
    }
}

static void report_collectives(const Fsdpd__V1__Plan *plan, struct buf *out)
{
    static const struct table_column columns[] = {{.title = "COLLECTIVE"},
                                                  {.title = "STEP"},
                                                  {.title = "COUNT", .right = true},
                                                  {.title = "SENT", .right = true},
                                                  {.title = "TAKES", .right = true},
                                                  {.title = "EXPOSED", .right = true}};
    AUTO(table_deinit) struct table table = {.columns = columns, .column_count = 6};
    for (size_t k = 0; k < plan->n_programs; k++) {
        const Fsdpd__V1__PlanProgram *program = plan->programs[k];
        for (size_t i = 0; i < program->n_collectives; i++) {
            const Fsdpd__V1__Collective *collective = program->collectives[i];
            table_add(&table, collective->kind);
            table_add(&table, program->name);
            table_add_count(&table, collective->count);
            table_add_bytes(&table, collective->bytes);
            table_add_duration(&table, collective->seconds);
            table_add_duration(&table, collective->exposed_seconds);
        }
    }
    if (table.cell_count > 0) {
        buf_add_char(out, '\n');
        table_print(&table, 0, 0, out);
    }
}

/* Estimated times of a step and of each kind of collective; nothing without an estimate. */
static void report_estimate(const Fsdpd__V1__Plan *plan, struct buf *out)
{
    if (plan->n_programs == 0 || plan->programs[0]->estimate == NULL) return;
    struct table_column columns[1 + PROGRAMS_MAX];
    char *titles[PROGRAMS_MAX], count[32];
    struct table table;
    AUTO(buf_deinit) struct buf title = {0};
    buf_add_text(&title, "ESTIMATE FOR ");
    output_clean(&title, plan->device, false);
    start_programs(&table, columns, titles, plan, buf_text(&title));
    add_estimate_row(&table, plan, "step", offsetof(Fsdpd__V1__Estimate, step_seconds));
    add_estimate_row(&table, plan, "compute", offsetof(Fsdpd__V1__Estimate, compute_seconds));
    add_estimate_row(&table, plan, "communication",
                     offsetof(Fsdpd__V1__Estimate, communication_seconds));
    add_estimate_row(&table, plan, "of that exposed",
                     offsetof(Fsdpd__V1__Estimate, exposed_seconds));
    if (plan->host_bytes > 0) {
        add_estimate_row(&table, plan, "uploads and batch",
                         offsetof(Fsdpd__V1__Estimate, copy_seconds));
        add_estimate_row(&table, plan, "downloads",
                         offsetof(Fsdpd__V1__Estimate, download_seconds));
        add_estimate_row(&table, plan, "host's optimizer",
                         offsetof(Fsdpd__V1__Estimate, host_seconds));
    }
    bool tokens = plan->programs[0]->estimate->tokens_per_second > 0;
    table_add(&table, tokens ? "tokens/s, all ranks" : "samples/s, all ranks");
    for (size_t k = 0; k < program_count(plan); k++) {
        const Fsdpd__V1__Estimate *estimate = plan->programs[k]->estimate;
        double rate = estimate == NULL ? 0
                      : tokens         ? estimate->tokens_per_second
                                       : estimate->samples_per_second;
        table_add(&table, text_format_count(rate < 1e18 ? (uint64_t)rate : 0, count));
    }
    end_programs(&table, titles, out);
    report_collectives(plan, out);
    double seconds = plan->programs[0]->estimate->step_seconds;
    if (plan->micro_steps > 1 && plan->n_programs > 1 && plan->programs[1]->estimate != NULL)
        seconds += (plan->micro_steps - 1) * plan->programs[1]->estimate->step_seconds;
    if (plan->steps > 0)
        buf_printf(out, "\n%s steps, about %s of training.\n",
                   text_format_count(plan->steps, count),
                   text_format_duration((double)plan->steps * seconds, (char[32]){0}));
}

void report_advice(const Fsdpd__V1__Plan *plan, struct buf *out)
{
    for (size_t i = 0; i < plan->n_advice; i++) {
        buf_add_text(out, "Advice: ");
        output_clean(out, plan->advice[i], false);
        buf_add_text(out, ".\n");
    }
    for (size_t i = 0; i < plan->n_notes; i++) {
        buf_add_text(out, "Note: ");
        output_clean(out, plan->notes[i], false);
        buf_add_text(out, ".\n");
    }
}

static void add_part(struct buf *out, void (*part)(const Fsdpd__V1__Plan *plan, struct buf *out),
                     const Fsdpd__V1__Plan *plan)
{
    AUTO(buf_deinit) struct buf text = {0};
    part(plan, &text);
    if (text.length > 0) {
        buf_add_char(out, '\n');
        buf_add(out, text.data, text.length);
    }
}

static void report_choices(const Fsdpd__V1__Plan *plan, struct buf *out)
{
    static const struct table_column columns[] = {{.title = "CHOICE", .right = true},
                                                  {.title = "STEP", .right = true},
                                                  {.title = "MEMORY", .right = true},
                                                  {.title = "ON THE HOST", .right = true},
                                                  {.title = "SETTINGS"}};
    AUTO(table_deinit) struct table table = {.columns = columns, .column_count = 5, .whole = true};
    for (size_t i = 0; i < plan->n_choices; i++) {
        const Fsdpd__V1__Chosen *choice = plan->choices[i];
        char text[32];
        table_add_count(&table, i + 1);
        table_add(&table, text_format_duration(choice->step_seconds, text));
        table_add_bytes(&table, choice->peak_bytes);
        table_add_bytes(&table, choice->host_bytes);
        table_add(&table, choice->description);
    }
    table_print(&table, 0, 0, out);
}

/* A number of workers that was compared with others, and fits. */
static const Fsdpd__V1__PlanWorld *find_compared(const Fsdpd__V1__Plan *plan)
{
    for (size_t i = 0; i < plan->n_worlds; i++)
        if (plan->worlds[i]->step_seconds > 0) return plan->worlds[i];
    return NULL;
}

static void report_worlds(const Fsdpd__V1__Plan *plan, struct buf *out)
{
    const Fsdpd__V1__PlanWorld *compared = find_compared(plan);
    if (compared == NULL) return;
    bool tokens = compared->tokens_per_second > 0;
    const struct table_column columns[] = {{.title = "WORKERS", .right = true},
                                           {.title = "STEP", .right = true},
                                           {.title = tokens ? "TOKENS/S" : "SAMPLES/S",
                                            .right = true},
                                           {.title = "PER WORKER", .right = true},
                                           {.title = "MEMORY", .right = true},
                                           {.title = "", .optional = true}};
    AUTO(table_deinit) struct table table = {.columns = columns, .column_count = 6, .whole = true};
    for (size_t i = 0; i < plan->n_worlds; i++) {
        const Fsdpd__V1__PlanWorld *world = plan->worlds[i];
        double rate = tokens ? world->tokens_per_second : world->samples_per_second;
        char text[32];
        bool fits = world->step_seconds > 0;
        table_add_count(&table, world->workers);
        table_add(&table, fits ? text_format_duration(world->step_seconds, text) : "-");
        table_add(&table, fits ? text_format_count((uint64_t)rate, text) : "-");
        table_add(&table, fits ? text_format_count((uint64_t)(rate / world->workers), text) : "-");
        if (fits) table_add_bytes(&table, world->peak_bytes);
        else table_add(&table, "-");
        table_add(&table, !fits ? "does not fit" : world->workers == plan->world ? "chosen" : "");
    }
    table_print(&table, 0, 0, out);
}

void report_plan(const Fsdpd__V1__Plan *plan, int width, struct buf *out)
{
    report_tree(plan, out);
    buf_add_char(out, '\n');
    report_units(plan->units, plan->n_units, width, out);
    add_part(out, report_memory, plan);
    add_part(out, report_estimate, plan);
    bool dumped = plan->dump != NULL && plan->dump[0] != '\0';
    AUTO(buf_deinit) struct buf schedule = {0};
    report_schedule(plan, dumped ? 0 : SCHEDULE_LINES, width, &schedule);
    if (schedule.length > 0) buf_printf(out, "\n%s", buf_text(&schedule));
    if (plan->n_choices > 0) add_part(out, report_choices, plan);
    add_part(out, report_worlds, plan);
    add_part(out, report_advice, plan);
    if (!dumped) return;
    buf_add_char(out, '\n');
    output_clean(out, plan->dump, true);
}
