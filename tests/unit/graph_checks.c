/* See graph_checks.h. */
#include "graph_checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "graph_dump.h"

static char *source_path(const char *name)
{
    const char *root = getenv("srcdir");
    return file_path_join(root ? root : ".", name);
}

char *read_source(const char *name)
{
    char *path = source_path(name);
    struct buf text = {0};
    status_t status = file_read(path, 1 << 20, &text);
    ck_assert_msg(!status, "%s", status_message(status));
    free(path);
    return buf_take(&text);
}

/* Checks the invariants of every graph. */
void check_graph(const struct graph *graph)
{
    bool *written = mem_alloc_array((size_t)graph->value_count, sizeof *written);
    bool *read = mem_alloc_array((size_t)graph->value_count, sizeof *read);
    for (int i = 0; i < graph->value_count; i++) {
        enum value_kind kind = graph->values[i].kind;
        written[i] = graph_is_batch(kind) || kind == VALUE_PARAMETER;
        bool of_parameter = kind == VALUE_PARAMETER || kind == VALUE_PARAMETER_GRADIENT;
        ck_assert_int_eq(graph->values[i].parameter >= 0, of_parameter);
        if (written[i]) ck_assert_int_eq(graph->values[i].producer, -1);
    }
    for (int i = 0; i < graph->op_count; i++) {
        const struct graph_op *op = &graph->ops[i];
        ck_assert_int_eq(op->backward, i >= graph->forward_op_count);
        ck_assert_int_ge(op->module, 0);
        struct op_desc desc;
        graph_describe_op(graph, i, &desc);
        status_t status = op_desc_check(&desc);
        ck_assert_msg(!status, "%s: %s", op->name, status_message(status));
        for (int k = 0; k < OP_MAX_INPUTS; k++) {
            if (op->inputs[k] < 0) continue;
            ck_assert_msg(written[op->inputs[k]], "%s reads what is not there", op->name);
            read[op->inputs[k]] = true;
        }
        for (int k = 0; k < OP_MAX_OUTPUTS; k++) {
            if (op->outputs[k] < 0) continue;
            /* Single assignment; ops add only to parameters' gradients. */
            ck_assert_int_eq(written[op->outputs[k]], op->accumulate[k]);
            if (op->accumulate[k])
                ck_assert_int_eq(graph->values[op->outputs[k]].kind, VALUE_PARAMETER_GRADIENT);
            else ck_assert_int_eq(graph->values[op->outputs[k]].producer, i);
            written[op->outputs[k]] = true;
        }
    }
    for (int i = 0; i < graph->value_count; i++) {
        ck_assert(written[i]);
        if (graph->values[i].kind == VALUE_PARAMETER) ck_assert(read[i]);
    }
    ck_assert_int_eq(graph->values[graph->loss].kind, VALUE_LOSS);
    free(written);
    free(read);
}

struct graph *build(const struct model *model, const struct graph_options *options)
{
    struct graph *graph = NULL;
    status_t status = graph_build(model, options, &graph);
    ck_assert_msg(!status, "%s", status_message(status));
    check_graph(graph);
    return graph;
}

void assert_dump(const struct graph *graph, const char *expected)
{
    char *dump = graph_dump(graph);
    ck_assert_str_eq(dump, expected);
    free(dump);
}

void assert_golden(const struct graph *graph, const char *name)
{
    char *dump = graph_dump(graph);
    if (getenv("FSDPD_UPDATE_GOLDEN")) {
        char *path = source_path(name);
        status_t status = file_write_atomic(path, dump, strlen(dump), 0644);
        ck_assert_msg(!status, "%s", status_message(status));
        free(path);
    }
    char *expected = read_source(name);
    ck_assert_str_eq(dump, expected);
    free(expected);
    free(dump);
}

void assert_build_fails(const struct model *model, const struct graph_options *options,
                        const char *message)
{
    struct graph *graph = NULL;
    status_t status = graph_build(model, options, &graph);
    ck_assert_str_eq(status_message(status), message);
    ck_assert_ptr_null(graph);
    status_free(status);
}
