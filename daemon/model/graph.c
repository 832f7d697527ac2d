/* Graphs as a container: growing, compacting, describing, freeing. Pure. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/graph_builder.h"

int builder_add_value(struct graph_builder *builder, enum value_kind kind,
                      const struct tensor_type *type, char *name)
{
    struct graph *graph = builder->graph;
    MEM_GROW(graph->values, graph->value_count, builder->value_capacity);
    graph->values[graph->value_count] = (struct graph_value){
        .kind = kind, .type = *type, .parameter = -1, .producer = -1, .repeats = -1, .name = name};
    return graph->value_count++;
}

struct graph_op *builder_add_op(struct graph_builder *builder, enum op_kind kind,
                                const union op_attrs *attrs, int module, char *name)
{
    struct graph *graph = builder->graph;
    MEM_GROW(graph->ops, graph->op_count, builder->op_capacity);
    struct graph_op *op = &graph->ops[graph->op_count++];
    *op = (struct graph_op){.kind = kind, .attrs = *attrs, .module = module, .name = name};
    for (int i = 0; i < OP_MAX_INPUTS; i++) op->inputs[i] = -1;
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) op->outputs[i] = -1;
    return op;
}

void builder_set_output(struct graph_builder *builder, int slot, int value)
{
    struct graph *graph = builder->graph;
    int op = graph->op_count - 1;
    graph->ops[op].outputs[slot] = value;
    if (graph->values[value].producer < 0) graph->values[value].producer = op;
}

void graph_free(struct graph *graph)
{
    if (!graph) return;
    for (int i = 0; i < graph->value_count; i++) free(graph->values[i].name);
    for (int i = 0; i < graph->op_count; i++) free(graph->ops[i].name);
    free(graph->values);
    free(graph->ops);
    free(graph);
}

void graph_describe_op(const struct graph *graph, int index, struct op_desc *desc)
{
    const struct graph_op *op = &graph->ops[index];
    const struct op_info *info = op_info_get(op->kind);
    *desc = (struct op_desc){.kind = op->kind,
                             .attrs = op->attrs,
                             .input_count = info->input_count,
                             .output_count = info->output_count};
    for (int i = 0; i < info->input_count; i++) {
        desc->input_present[i] = op->inputs[i] >= 0;
        if (op->inputs[i] >= 0) desc->inputs[i] = graph->values[op->inputs[i]].type;
    }
    for (int i = 0; i < info->output_count; i++) {
        desc->output_present[i] = op->outputs[i] >= 0;
        desc->accumulate[i] = op->accumulate[i];
        if (op->outputs[i] >= 0) desc->outputs[i] = graph->values[op->outputs[i]].type;
    }
}

/* Marks, from the last op back, all that the loss and the count need. */
static void mark_needed(const struct graph *graph, const bool *dead, bool *op_needed,
                        bool *value_needed)
{
    value_needed[graph->input] = value_needed[graph->target] = true;
    if (graph->loss >= 0) value_needed[graph->loss] = true;
    if (graph->logits >= 0) value_needed[graph->logits] = true;
    if (graph->starts >= 0) value_needed[graph->starts] = true;
    if (graph->reference >= 0) value_needed[graph->reference] = true;
    if (graph->correct >= 0) value_needed[graph->correct] = true;
    if (graph->tally >= 0) value_needed[graph->tally] = true;
    for (int i = graph->op_count - 1; i >= 0; i--) {
        const struct graph_op *op = &graph->ops[i];
        for (int k = 0; k < OP_MAX_OUTPUTS && !dead[i]; k++)
            if (op->outputs[k] >= 0 && value_needed[op->outputs[k]]) op_needed[i] = true;
        if (!op_needed[i]) continue;
        for (int k = 0; k < OP_MAX_INPUTS; k++)
            if (op->inputs[k] >= 0) value_needed[op->inputs[k]] = true;
        for (int k = 0; k < OP_MAX_OUTPUTS; k++)
            if (op->outputs[k] >= 0) value_needed[op->outputs[k]] = true;
    }
}

struct numbering {
    struct graph_value *values;
    int *number; /* by old value: its new number */
    int count;
};

static void move_value(struct numbering *numbering, const struct graph *graph, int value)
{
    if (numbering->number[value] >= 0) return;
    numbering->number[value] = numbering->count;
    numbering->values[numbering->count] = graph->values[value];
    numbering->values[numbering->count].producer = -1;
    numbering->count++;
}

static void move_parameters(struct numbering *numbering, const struct graph *graph,
                            const bool *value_needed)
{
    int count = graph->model->parameter_count;
    AUTO_FREE int *value_of = mem_alloc_array((size_t)count, sizeof *value_of);
    for (int i = 0; i < graph->value_count; i++)
        if (graph->values[i].kind == VALUE_PARAMETER && value_needed[i])
            value_of[graph->values[i].parameter] = i + 1;
    for (int p = 0; p < count; p++)
        if (value_of[p]) move_value(numbering, graph, value_of[p] - 1);
}

static void renumber_op(struct numbering *numbering, const struct graph *graph, struct graph_op *op,
                        int index)
{
    for (int k = 0; k < OP_MAX_INPUTS; k++)
        if (op->inputs[k] >= 0) op->inputs[k] = numbering->number[op->inputs[k]];
    for (int k = 0; k < OP_MAX_OUTPUTS; k++) {
        if (op->outputs[k] < 0) continue;
        move_value(numbering, graph, op->outputs[k]);
        op->outputs[k] = numbering->number[op->outputs[k]];
        numbering->values[op->outputs[k]].producer = index;
    }
}

void graph_compact(struct graph *graph, const bool *dead)
{
    size_t values = (size_t)graph->value_count;
    AUTO_FREE bool *op_needed = mem_alloc_array((size_t)graph->op_count, sizeof *op_needed);
    AUTO_FREE bool *value_needed = mem_alloc_array(values, sizeof *value_needed);
    mark_needed(graph, dead, op_needed, value_needed);

    struct numbering numbering = {.values = mem_alloc_array(values, sizeof *numbering.values),
                                  .number = mem_alloc_array(values, sizeof *numbering.number)};
    for (size_t i = 0; i < values; i++) numbering.number[i] = -1;
    for (int i = 0; i < GRAPH_BATCH_VALUES; i++)
        if (graph_batch_value(graph, i) >= 0)
            move_value(&numbering, graph, graph_batch_value(graph, i));
    move_parameters(&numbering, graph, value_needed);
    int kept = 0;
    for (int i = 0; i < graph->op_count; i++) {
        if (!op_needed[i]) {
            free(graph->ops[i].name);
            continue;
        }
        graph->ops[kept] = graph->ops[i];
        renumber_op(&numbering, graph, &graph->ops[kept], kept);
        kept++;
    }
    for (size_t i = 0; i < values; i++)
        if (numbering.number[i] < 0) free(graph->values[i].name);
    memcpy(graph->values, numbering.values, (size_t)numbering.count * sizeof *graph->values);
    graph->op_count = kept;
    graph->value_count = numbering.count;
    graph->input = numbering.number[graph->input];
    graph->target = numbering.number[graph->target];
    if (graph->starts >= 0) graph->starts = numbering.number[graph->starts];
    if (graph->reference >= 0) graph->reference = numbering.number[graph->reference];
    if (graph->loss >= 0) graph->loss = numbering.number[graph->loss];
    if (graph->logits >= 0) graph->logits = numbering.number[graph->logits];
    if (graph->correct >= 0) graph->correct = numbering.number[graph->correct];
    if (graph->tally >= 0) graph->tally = numbering.number[graph->tally];
    free(numbering.values);
    free(numbering.number);
}
