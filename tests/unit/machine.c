/* See machine.h. */
#include "machine.h"

#include <stdlib.h>

#include "base/mem.h"

static status_t prepare(struct machine *machine, enum kernel_library library)
{
    const struct graph *graph = machine->graph;
    uint64_t workspace = 64;
    for (int i = 0; i < graph->op_count; i++) {
        struct op_desc desc;
        graph_describe_op(graph, i, &desc);
        TRY(status_wrap(kernel_new(library, &desc, &machine->kernels[i]), "%s",
                        graph->ops[i].name));
        uint64_t bytes = kernel_workspace_bytes(machine->kernels[i]);
        if (bytes > workspace) workspace = bytes;
    }
    machine->workspace = aligned_alloc(64, (workspace + 63) / 64 * 64);
    return NULL;
}

status_t machine_init(struct machine *machine, enum kernel_library library, struct graph *graph)
{
    *machine = (struct machine){.graph = graph};
    machine->kernels = mem_alloc_array((size_t)graph->op_count, sizeof *machine->kernels);
    machine->memory = mem_alloc_array((size_t)graph->value_count, sizeof *machine->memory);
    for (int i = 0; i < graph->value_count; i++)
        machine->memory[i] = mem_alloc(tensor_bytes(&graph->values[i].type));
    return prepare(machine, library);
}

void machine_deinit(struct machine *machine)
{
    if (machine->graph == NULL) return;
    for (int i = 0; i < machine->graph->op_count; i++) kernel_free(machine->kernels[i]);
    for (int i = 0; i < machine->graph->value_count; i++) free(machine->memory[i]);
    free(machine->kernels);
    free(machine->memory);
    free(machine->workspace);
}

status_t machine_run(struct machine *machine)
{
    const struct graph *graph = machine->graph;
    for (int i = 0; i < graph->op_count; i++) {
        const struct graph_op *op = &graph->ops[i];
        struct kernel_call call = {.workspace = machine->workspace, .seed = 3, .step = 1};
        for (int k = 0; k < OP_MAX_INPUTS; k++)
            if (op->inputs[k] >= 0) call.inputs[k] = machine->memory[op->inputs[k]];
        for (int k = 0; k < OP_MAX_OUTPUTS; k++)
            if (op->outputs[k] >= 0) call.outputs[k] = machine->memory[op->outputs[k]];
        TRY(kernel_run(machine->kernels[i], &call));
    }
    return NULL;
}

int machine_value_of(const struct graph *graph, enum value_kind kind, int parameter)
{
    for (int i = 0; i < graph->value_count; i++)
        if (graph->values[i].kind == kind && graph->values[i].parameter == parameter) return i;
    return -1;
}
