/* Tables of profiles; see plan_tables.h. Pure functions; any thread. */
#include "planning/plan_tables.h"

#include "base/array.h"
#include "base/mem.h"

static const char *const TYPES[] = {"f32", "bf16"};

static status_t read_sample(const struct yamldoc_node *node, struct plan_sample *sample)
{
    static const double least[] = {1, 0, 0, 1e-9}, most[] = {65536, 1e18, 1e16, 1e4};
    double *values[] = {&sample->ranks, &sample->amount, &sample->bytes, &sample->seconds};
    TRY(yamldoc_expect_sequence(node, "a list [ranks, amount, bytes, seconds]"));
    if (node->item_count != 4)
        return yamldoc_key_error(node,
                                 "expected 4 numbers, [ranks, amount, bytes, seconds], found %d",
                                 node->item_count);
    for (int i = 0; i < 4; i++) TRY(yamldoc_read_f64(node->items[i], least[i], most[i], values[i]));
    return NULL;
}

static status_t read_table(const struct yamldoc_node *node, struct plan_table *table)
{
    TRY(yamldoc_expect_sequence(node, "a list of samples"));
    if (node->item_count > PLAN_SAMPLES_MAX)
        return yamldoc_key_error(node, "expected at most %d samples, found %d", PLAN_SAMPLES_MAX,
                                 node->item_count);
    for (int i = 0; i < node->item_count; i++) {
        struct plan_sample sample = {0};
        TRY(read_sample(node->items[i], &sample));
        plan_table_add(table, &sample);
    }
    return NULL;
}

static status_t read_type(const struct yamldoc_node *node, int half, struct plan_tables *tables)
{
    if (node == NULL) return NULL;
    TRY(yamldoc_expect_mapping(node, "samples by kind of work"));
    for (int i = 0; i < node->item_count; i++) {
        int row = plan_row_find(node->items[i]->key);
        if (row < 0)
            return yamldoc_key_error(node->items[i], "there is no such op, instruction or "
                                                     "optimizer");
        TRY(read_table(node->items[i], &tables->rows[row][half]));
    }
    return NULL;
}

static status_t read_tables(const struct yamldoc_node *node, struct plan_tables *tables)
{
    static const char *const keys[] = {"threads", "processors", "f32", "bf16"};
    int64_t threads = 1, processors = 0;
    TRY(yamldoc_expect_mapping(node, "the samples by type"));
    TRY(yamldoc_check_keys(node, keys, COUNT_OF(keys)));
    TRY(yamldoc_read_i64(yamldoc_get(node, "threads"), 1, 1024, &threads));
    TRY(yamldoc_read_i64(yamldoc_get(node, "processors"), 0, 65536, &processors));
    tables->threads = (int)threads;
    tables->processors = (int)processors;
    for (int half = 0; half < 2; half++)
        TRY(read_type(yamldoc_get(node, TYPES[half]), half, tables));
    return NULL;
}

status_t profile_tables_read(const struct yamldoc_node *node, struct plan_tables **result)
{
    struct plan_tables *tables = mem_alloc(sizeof *tables);
    status_t status = read_tables(node, tables);
    if (status == NULL) *result = tables;
    else plan_tables_free(tables);
    return status;
}

static void print_table(const struct plan_table *table, int row, struct buf *out)
{
    char name[48];
    if (table->count == 0) return;
    plan_row_name(row, name);
    buf_printf(out, "    %s:\n", name);
    for (int i = 0; i < table->count; i++) {
        const struct plan_sample *sample = &table->samples[i];
        buf_printf(out, "      - [%g, %.6g, %.10g, %.4g]\n", sample->ranks, sample->amount,
                   sample->bytes, sample->seconds);
    }
}

void profile_tables_print(const struct plan_tables *tables, struct buf *out)
{
    buf_printf(out,
               "tables: # [ranks on the host, operations or ranks of a group, bytes, seconds]\n"
               "  threads: %d\n  processors: %d\n",
               tables->threads, tables->processors);
    for (int half = 0; half < 2; half++) {
        bool any = false;
        for (int row = 0; row < PLAN_ROW_COUNT; row++) any |= tables->rows[row][half].count > 0;
        if (!any) continue;
        buf_printf(out, "  %s:\n", TYPES[half]);
        for (int row = 0; row < PLAN_ROW_COUNT; row++)
            print_table(&tables->rows[row][half], row, out);
    }
}
