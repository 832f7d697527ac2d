/*
 * Activation checkpointing (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016): a
 * pass over a graph with gradients. The forward ops of a checkpointed module form a segment. Values
 * made within a segment are not kept for the backward pass; they are computed again right before
 * the segment's own backward ops. The segment's inputs are kept, and so are values that ops outside
 * of it read, such as the next segment's input.
 *
 * With RECOMPUTE_CHEAP, what products and attention make is kept, too, if it is needed.
 *
 * A repeated op is the same op on the same bytes (dropout makes the same mask from its counter), so
 * the gradients have the same bits. Only ops whose results are needed are repeated.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "model/graph_builder.h"

struct segment {
    int first, last; /* forward ops */
    bool repeated;   /* its ops are listed again already */
};

struct checkpointing {
    struct graph_builder *builder;
    struct segment *segments;
    int segment_count;
    int *segment_of_op; /* by forward op; -1 */
    bool *kept;         /* by value: made in a segment, yet kept for the backward pass */
    bool *wanted;       /* by value: made in a segment, and to be computed again */
    bool *repeat;       /* by forward op: it is repeated */
    int *again;         /* by value: the value that replaces it in its segment's backward ops */
    int values;         /* number of values of the graph before the pass */
    bool cheap;         /* RECOMPUTE_CHEAP */
};

/* ---- Selected modules ---- */

static status_t unknown_glob(const struct model *model, const char *glob)
{
    size_t count = (size_t)model->module_count - 1;
    AUTO_FREE const char **paths = mem_alloc_array(count + 1, sizeof *paths);
    for (size_t i = 0; i < count; i++) paths[i] = model->modules[i + 1].path;
    const char *nearest = text_nearest(glob, paths, count);
    return status_new(STATUS_INVALID_ARGUMENT,
                      "activation checkpointing: no module matches '%s'%s%s%s", glob,
                      nearest ? "; did you mean '" : "", nearest ? nearest : "",
                      nearest ? "'?" : "");
}

const char *graph_checkpoint_owners(const struct model *model, const struct graph_options *options,
                                    int *owner)
{
    const char *unknown = NULL;
    for (int m = 0; m < model->module_count; m++) owner[m] = -1;
    for (int g = 0; g < options->checkpoint_count; g++) {
        bool found = false;
        for (int m = 1; m < model->module_count; m++) {
            if (!text_glob_match(options->checkpoint[g], model->modules[m].path)) continue;
            owner[m] = m;
            found = true;
        }
        if (!found && unknown == NULL) unknown = options->checkpoint[g];
    }
    for (int m = 1; m < model->module_count; m++) { /* parents come first */
        int parent = model->modules[m].parent;
        if (parent >= 0 && owner[parent] >= 0) owner[m] = owner[parent];
    }
    return unknown;
}

/* Groups neighbouring ops of one checkpointed module into a segment; a module that is called in
 * several places has several segments. */
static void find_segments(struct checkpointing *pass, const int *owner)
{
    const struct graph *graph = pass->builder->graph;
    for (int i = 0; i < graph->forward_op_count; i++) {
        int module = owner[graph->ops[i].module];
        bool continues = i > 0 && module == owner[graph->ops[i - 1].module];
        pass->segment_of_op[i] = -1;
        if (module < 0) continue;
        if (!continues) pass->segments[pass->segment_count++].first = i;
        pass->segment_of_op[i] = pass->segment_count - 1;
        pass->segments[pass->segment_count - 1].last = i;
    }
}

/* The segment of the backward op's forward op; -1 for a head that is fused with its loss. */
static int segment_of_backward(const struct checkpointing *pass, const struct graph_op *op)
{
    return op->forward < pass->builder->graph->forward_op_count ? pass->segment_of_op[op->forward]
                                                                : -1;
}

/* ---- Values to recompute ---- */

/* The segment that makes the value in the forward pass, or -1. */
static int segment_of_value(const struct checkpointing *pass, int value)
{
    if (value < 0 || value >= pass->values) return -1;
    const struct graph_value *it = &pass->builder->graph->values[value];
    if (it->kind != VALUE_ACTIVATION) return -1;
    return pass->segment_of_op[it->producer];
}

/* Keeps the value, and the source of a RESHAPE with it: on most devices both are the same bytes. */
static void keep(struct checkpointing *pass, int value)
{
    const struct graph *graph = pass->builder->graph;
    for (;;) {
        if (segment_of_value(pass, value) >= 0) pass->kept[value] = true;
        int maker = graph->values[value].producer;
        if (maker < 0 || maker >= graph->forward_op_count || graph->ops[maker].kind != OP_RESHAPE)
            return;
        value = graph->ops[maker].inputs[0];
    }
}

/* Keeps values of the forward pass that backward ops outside of their segment read. */
static void keep_for_others(struct checkpointing *pass)
{
    const struct graph *graph = pass->builder->graph;
    for (int b = graph->forward_op_count; b < graph->op_count; b++) {
        const struct graph_op *op = &graph->ops[b];
        for (int k = 0; k < OP_MAX_INPUTS; k++) {
            if (op->inputs[k] < 0) continue;
            int segment = segment_of_value(pass, op->inputs[k]);
            if (segment < 0 || segment != segment_of_backward(pass, op)) keep(pass, op->inputs[k]);
        }
    }
}

/* Ranks tell each other once. Products take most of a step, all other ops little more than their
 * memory's time. */
static bool is_made_once(const struct checkpointing *pass, int value)
{
    const struct graph *graph = pass->builder->graph;
    enum op_kind kind = graph->ops[graph->values[value].producer].kind;
    bool product = kind == OP_LINEAR || kind == OP_CONV2D || kind == OP_ATTENTION ||
                   kind == OP_CONV2D_BACKWARD_DATA; /* forward: a transposed convolution */
    return kind == OP_GATHER_RANKS || (pass->cheap && product);
}

static void want(struct checkpointing *pass, const struct graph_op *op, int segment)
{
    for (int k = 0; k < OP_MAX_INPUTS; k++) {
        int value = op->inputs[k];
        if (value < 0 || pass->kept[value]) continue;
        if (segment_of_value(pass, value) == segment && !is_made_once(pass, value))
            pass->wanted[value] = true;
        else keep(pass, value);
    }
}

/* Goes from the last segment to the first, as backward ops do: a segment's needs from earlier ones
 * are then known before those are visited. */
static void find_wanted(struct checkpointing *pass)
{
    const struct graph *graph = pass->builder->graph;
    int b = graph->forward_op_count;
    for (int s = pass->segment_count - 1; s >= 0; s--) {
        while (b < graph->op_count && graph->ops[b].forward > pass->segments[s].last) b++;
        for (; b < graph->op_count && graph->ops[b].forward >= pass->segments[s].first; b++)
            want(pass, &graph->ops[b], s);
        for (int i = pass->segments[s].last; i >= pass->segments[s].first; i--) {
            const struct graph_op *op = &graph->ops[i];
            for (int k = 0; k < OP_MAX_OUTPUTS; k++)
                if (op->outputs[k] >= 0 && pass->wanted[op->outputs[k]]) pass->repeat[i] = true;
            if (pass->repeat[i]) want(pass, op, s);
        }
    }
}

/* ---- The new list of ops ---- */

static void read_again(const struct checkpointing *pass, struct graph_op *op, int segment)
{
    for (int k = 0; k < OP_MAX_INPUTS; k++) {
        int value = op->inputs[k];
        if (segment_of_value(pass, value) == segment && segment >= 0 && pass->wanted[value])
            op->inputs[k] = pass->again[value];
    }
}

/* Statistics and indices, which only backward ops read, are written by the second run alone. */
static void repeat_output(struct checkpointing *pass, struct graph_op *first,
                          struct graph_op *second, int slot)
{
    int value = first->outputs[slot];
    if (value < 0) return;
    const struct op_info *info = op_info_get(first->kind);
    if (pass->builder->graph->values[value].kind == VALUE_BUFFER) { /* moved once */
        second->outputs[slot] = -1;
        return;
    }
    bool optional = info->outputs[slot].optional;
    if (optional && info->outputs[slot].type != OPERAND_REAL) {
        second->outputs[slot] = pass->wanted[value] ? value : -1;
        if (pass->wanted[value]) first->outputs[slot] = -1;
        pass->again[value] = value;
        return;
    }
    const struct graph_value *old = &pass->builder->graph->values[value];
    struct tensor_type type = old->type;
    int made = builder_add_value(pass->builder, VALUE_ACTIVATION, &type,
                                 mem_printf("%s (again)", old->name));
    pass->builder->graph->values[made].repeats = value;
    second->outputs[slot] = pass->again[value] = made;
}

static void repeat_segment(struct checkpointing *pass, int s, struct graph_op *ops, int *count)
{
    pass->segments[s].repeated = true;
    for (int i = pass->segments[s].first; i <= pass->segments[s].last; i++) {
        if (!pass->repeat[i]) continue;
        struct graph_op *op = &ops[*count];
        *op = ops[i];
        op->name = mem_printf("%s.again", ops[i].name);
        op->backward = true;
        read_again(pass, op, s);
        for (int k = 0; k < OP_MAX_OUTPUTS; k++) repeat_output(pass, &ops[i], op, k);
        (*count)++;
    }
}

static void list_ops(struct checkpointing *pass)
{
    struct graph *graph = pass->builder->graph;
    int forward = graph->forward_op_count, count = forward;
    int capacity = graph->op_count + forward;
    struct graph_op *ops = mem_alloc_array((size_t)capacity, sizeof *ops);
    memcpy(ops, graph->ops, (size_t)forward * sizeof *ops);
    for (int b = forward; b < graph->op_count; b++) {
        int s = segment_of_backward(pass, &graph->ops[b]);
        if (s >= 0 && !pass->segments[s].repeated) repeat_segment(pass, s, ops, &count);
        ops[count] = graph->ops[b];
        read_again(pass, &ops[count], s);
        count++;
    }
    free(graph->ops);
    graph->ops = ops;
    graph->op_count = count;
    pass->builder->op_capacity = capacity;
    for (int v = 0; v < graph->value_count; v++) graph->values[v].producer = -1;
    for (int i = count - 1; i >= 0; i--)
        for (int k = 0; k < OP_MAX_OUTPUTS; k++)
            if (ops[i].outputs[k] >= 0) graph->values[ops[i].outputs[k]].producer = i;
}

status_t graph_checkpoint(struct graph_builder *builder, const struct graph_options *options)
{
    if (options->checkpoint_count == 0) return NULL;
    struct graph *graph = builder->graph;
    size_t values = (size_t)graph->value_count, ops = (size_t)graph->forward_op_count;
    AUTO_FREE int *owner = mem_alloc_array((size_t)graph->model->module_count, sizeof *owner);
    const char *unknown = graph_checkpoint_owners(graph->model, options, owner);
    status_t status = unknown != NULL ? unknown_glob(graph->model, unknown) : NULL;
    if (status == NULL) {
        struct checkpointing pass = {.builder = builder,
                                     .segments = mem_alloc_array(ops, sizeof *pass.segments),
                                     .segment_of_op = mem_alloc_array(ops, sizeof(int)),
                                     .kept = mem_alloc_array(values, sizeof(bool)),
                                     .wanted = mem_alloc_array(values, sizeof(bool)),
                                     .repeat = mem_alloc_array(ops, sizeof(bool)),
                                     .again = mem_alloc_array(values, sizeof(int)),
                                     .values = graph->value_count,
                                     .cheap = options->recompute == RECOMPUTE_CHEAP};
        find_segments(&pass, owner);
        keep_for_others(&pass);
        find_wanted(&pass);
        list_ops(&pass);
        free(pass.segments);
        free(pass.segment_of_op);
        free(pass.kept);
        free(pass.wanted);
        free(pass.repeat);
        free(pass.again);
    }
    return status;
}
