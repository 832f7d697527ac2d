/* Plans as text; see plan_report.h. Pure functions; any thread. */
#include "print/plan_report.h"

#include "base/text.h"
#include "print/table.h"

enum { ELEMENT_BYTES = 4 }; /* parameters are f32 */

static void end_line(struct buf *out)
{
    if (out->length > 0 && out->data[out->length - 1] != '\n') buf_add_char(out, '\n');
}

void report_tree(const Fsdpd__V1__Plan *plan, struct buf *out)
{
    output_clean(out, plan->module_tree, true);
    end_line(out);
}

void report_units(Fsdpd__V1__Unit *const *units, size_t count, int width, struct buf *out)
{
    static const struct table_column columns[] = {
        {"UNIT", false}, {"PARAMETERS", true},  {"PADDED", true},
        {"BYTES", true}, {"SHARD BYTES", true}, {"MODULES", false},
    };
    struct table table = {.columns = columns, .column_count = 6};
    for (size_t i = 0; i < count; i++) {
        struct buf modules = {0};
        for (size_t m = 0; m < units[i]->n_modules; m++)
            buf_printf(&modules, "%s%s", m ? ", " : "",
                       units[i]->modules[m][0] ? units[i]->modules[m] : "(root)");
        table_add(&table, units[i]->name);
        table_add_count(&table, units[i]->parameters);
        table_add_count(&table, units[i]->padded);
        table_add_bytes(&table, units[i]->padded * ELEMENT_BYTES);
        table_add_bytes(&table, units[i]->shard_bytes);
        table_add(&table, buf_text(&modules));
        buf_deinit(&modules);
    }
    table_print(&table, width, 0, out);
    table_deinit(&table);
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
}

void report_memory(const Fsdpd__V1__Plan *plan, struct buf *out)
{
    static const struct table_column columns[] = {{"MEMORY PER RANK", false}, {"BYTES", true}};
    char count[32];
    buf_printf(out, "%s parameters, ", text_format_count(plan->parameters, count));
    output_clean(out, plan->strategy, false);
    buf_printf(out, " over %u worker%s\n\n", plan->world, plan->world == 1 ? "" : "s");
    struct table table = {.columns = columns, .column_count = 2};
    for (size_t i = 0; i < plan->n_memory; i++) {
        table_add(&table, plan->memory[i]->name);
        table_add_bytes(&table, plan->memory[i]->bytes);
    }
    table_add(&table, "peak");
    table_add_bytes(&table, plan->peak_bytes);
    table_print(&table, 0, 0, out);
    table_deinit(&table);
    if (plan->peak_at != NULL && plan->peak_at[0] != '\0') {
        buf_add_text(out, "The peak is at ");
        output_clean(out, plan->peak_at, false);
        buf_add_text(out, ".\n");
    }
    report_communication(plan, out);
}
