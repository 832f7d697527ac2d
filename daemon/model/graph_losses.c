/*
 * The loss of a graph, its terms, and what is counted beside it; see forward.h. A part of
 * graph_build.
 */
#include <string.h>

#include "base/mem.h"
#include "model/forward.h"
#include "model/layers_internal.h"

/* The key of the model file that says how many classes there are. */
static const char *target_key(const struct model *model)
{
    if (model->target == TARGET_TOKEN) return "vocabulary";
    return model->target == TARGET_TOKEN_CLASS ? "token_classes" : "classes";
}

static status_t check_output(const struct forward *forward, const struct program_call *call,
                             const struct tensor_type *output)
{
    const struct graph *graph = forward->builder.graph;
    struct tensor_type expected = graph->values[graph->target].type; /* and a score per class */
    expected.dtype = DTYPE_F32;
    expected.dims[expected.dim_count++] = forward->model->class_count;
    if (tensor_same_shape(output, &expected)) return NULL;
    char found[128], wanted[128];
    return forward_wrap(forward, call,
                        status_new(STATUS_INVALID_ARGUMENT,
                                   "%s: input is %s, but with %s: %lld it must be %s", call->name,
                                   tensor_format_shape(output, found), target_key(forward->model),
                                   (long long)forward->model->class_count,
                                   tensor_format_shape(&expected, wanted)));
}

/*
 * A loss of every element against the targets, or against a value; of samples that are ignored, the
 * classes then say so. Its mean is over elements, or over rows, and the end of a step corrects it
 * by the targets that count: those are elements in the first case, and samples or tokens in the
 * second. Only targets may be NaN, which is as if they were not there.
 */
static void set_reference(const struct forward *forward, const struct program_call *call,
                          struct graph_op *op)
{
    const struct graph *graph = forward->builder.graph;
    const struct tensor_type *target = &graph->values[graph->target].type;
    const struct tensor_type *x = &graph->values[op->inputs[0]].type;
    double elements = (double)tensor_element_count(x), rows = (double)x->dims[0];
    op->inputs[1] = call->inputs[1] < 0 ? graph->target : forward->value_of[call->inputs[1]];
    bool mean = op->attrs.element_loss.reduction == REDUCTION_MEAN;
    if (target->dtype != DTYPE_I32) {
        if (mean && call->layer.whole_rows) op->attrs.element_loss.weight *= elements / rows;
        return;
    }
    op->inputs[2] = graph->target;
    op->attrs.element_loss.computed = true;
    if (mean && !call->layer.whole_rows)
        op->attrs.element_loss.weight *= (double)tensor_element_count(target) / elements;
}

/* The loss of pairs takes an embedding of every text, or two of every sample. */
static status_t check_rows(const struct forward *forward, const struct program_call *call,
                           int input)
{
    const struct graph *graph = forward->builder.graph;
    const struct tensor_type *type = &graph->values[input].type;
    int64_t rows = graph->values[graph->input].type.dims[0];
    char found[128];
    if (type->dim_count == 2 && type->dims[0] == rows && graph->values[input].producer >= 0 &&
        type->dtype == DTYPE_F32)
        return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: input is %s, but it must be an embedding of each %s, (%lld, width)",
                      call->name, tensor_format_shape(type, found),
                      call->layer.both ? "sample" : "text", (long long)rows);
}

static status_t add_towers(struct forward *forward, const struct program_call *call)
{
    const struct graph *graph = forward->builder.graph;
    int a = forward->value_of[call->inputs[0]], b = forward->value_of[call->inputs[1]];
    int scale = call->inputs[2] < 0 ? -1 : forward->value_of[call->inputs[2]];
    TRY(forward_wrap(forward, call, check_rows(forward, call, b)));
    char first[128], second[128];
    if (!tensor_same_shape(&graph->values[a].type, &graph->values[b].type))
        return forward_wrap(forward, call,
                            status_new(STATUS_INVALID_ARGUMENT,
                                       "%s: image_features are %s and text_features %s, but both "
                                       "must be as wide",
                                       call->name,
                                       tensor_format_shape(&graph->values[a].type, first),
                                       tensor_format_shape(&graph->values[b].type, second)));
    if (scale >= 0 && !forward_is_constant(forward, call->inputs[2]))
        return forward_wrap(forward, call,
                            status_new(STATUS_INVALID_ARGUMENT,
                                       "%s: logit_scale reads samples, but it must be made of "
                                       "parameters",
                                       call->name));
    const struct tensor_type one = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    if (scale >= 0 && !tensor_same_shape(&graph->values[scale].type, &one))
        return forward_wrap(forward, call,
                            status_new(STATUS_INVALID_ARGUMENT,
                                       "%s: logit_scale is %s, but it must be one number, (1,)",
                                       call->name,
                                       tensor_format_shape(&graph->values[scale].type, first)));
    graph_add_towers(&forward->builder, forward->options, call->name, &call->layer.attrs, a, b,
                     scale);
    return forward_check_op(forward, call);
}

static status_t add_contrast(struct forward *forward, const struct program_call *call)
{
    int input = forward->value_of[call->inputs[0]];
    TRY(forward_wrap(forward, call, check_rows(forward, call, input)));
    if (call->layer.both) return add_towers(forward, call);
    if (call->layer.margin > 0 && forward->model->texts != 3)
        return forward_wrap(
            forward, call,
            status_new(STATUS_INVALID_ARGUMENT,
                       "%s: an anchor, its positive and a negative: expected texts: 3",
                       call->name));
    if (call->layer.margin > 0)
        graph_add_triplet(&forward->builder, call->name, &call->layer, input);
    else
        graph_add_contrast(&forward->builder, forward->options, call->name, &call->layer.attrs,
                           input);
    return forward_check_op(forward, call);
}

/* The log-probabilities that `scores` give to the targets, by row or by document; *counts: how many
 * these are. */
static status_t add_log_probs(struct forward *forward, const struct program_call *call, int scores,
                              const char *suffix, int *sums, int *counts)
{
    struct graph_builder *builder = &forward->builder;
    const struct tensor_type type = builder->graph->values[scores].type;
    TRY(check_output(forward, call, &type));
    int starts = builder->graph->starts;
    struct tensor_type rows = tensor_type_make(DTYPE_F32, starts >= 0 ? 2 : 1, type.dims);
    struct tensor_type places = tensor_type_make(DTYPE_F32, 2, type.dims);
    struct graph_op *op = builder_add_op(builder, OP_SEQUENCE_LOG_PROBS, &(union op_attrs){0}, 0,
                                         mem_printf("%s.%s", call->name, suffix));
    op->exact = true;
    op->inputs[0] = scores;
    op->inputs[1] = builder->graph->target;
    op->inputs[2] = starts;
    const struct tensor_type *types[] = {&rows, &rows, &places};
    static const char *const names[] = {"sums", "counts", "lse"};
    int made[3];
    for (int i = 0; i < 3; i++) {
        made[i] = builder_add_value(builder, VALUE_ACTIVATION, types[i],
                                    mem_printf("%s.%s.%s", call->name, suffix, names[i]));
        builder_set_output(builder, i, made[i]);
    }
    *sums = made[0];
    *counts = made[1];
    return forward_check_op(forward, call);
}

/* Of two texts, none counts if they fill up a batch. Of packed ones, the token at which a text has
 * its number. */
static int add_counts(struct forward *forward, const struct program_call *call)
{
    struct graph_builder *builder = &forward->builder;
    struct tensor_type rows = builder->graph->values[builder->graph->target].type;
    rows.dtype = DTYPE_F32;
    struct graph_op *op = builder_add_op(builder, OP_COUNTED, &(union op_attrs){0}, 0,
                                         mem_printf("%s.counted", call->name));
    op->inputs[0] = builder->graph->target;
    int made =
        builder_add_value(builder, VALUE_ACTIVATION, &rows, mem_printf("%s.counts", call->name));
    builder_set_output(builder, 0, made);
    return made;
}

/* The loss of pairs of sequences; see model/preference.h. */
static status_t add_preference(struct forward *forward, const struct program_call *call)
{
    struct graph_builder *builder = &forward->builder;
    int own = forward->value_of[call->inputs[0]], reference = -1, counts;
    if (forward->model->target == TARGET_REWARD) {
        counts = add_counts(forward, call);
    } else {
        reference = builder->graph->reference;
        if (!forward->model->precomputed)
            TRY(add_log_probs(forward, call, forward->value_of[call->inputs[1]], "reference",
                              &reference, &counts));
        TRY(add_log_probs(forward, call, own, "policy", &own, &counts));
    }
    struct tensor_type one = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    struct tensor_type five = tensor_type_make(DTYPE_F32, 1, (int64_t[]){PREFERENCE_SUMS});
    const struct tensor_type rows = builder->graph->values[own].type;
    struct graph_op *op =
        builder_add_op(builder, OP_PREFERENCE_LOSS, &call->layer.attrs, 0, mem_strdup(call->name));
    op->exact = true;
    op->inputs[0] = own;
    op->inputs[1] = reference;
    op->inputs[2] = counts;
    op->inputs[3] = builder->graph->starts;
    builder->graph->loss = builder_add_value(builder, VALUE_LOSS, &one, mem_strdup("loss"));
    builder_set_output(builder, 0, builder->graph->loss);
    builder_set_output(builder, 1,
                       builder_add_value(builder, VALUE_PREFERENCE, &five,
                                         mem_printf("%s.figures", call->name)));
    builder_set_output(builder, 2,
                       builder_add_value(builder, VALUE_ACTIVATION, &rows,
                                         mem_printf("%s.slopes", call->name)));
    return forward_check_op(forward, call);
}

status_t forward_add_loss(struct forward *forward, const struct program_call *call, int *result)
{
    struct graph_builder *builder = &forward->builder;
    struct graph *graph = builder->graph;
    int input = forward->value_of[call->inputs[0]];
    bool elements = call->layer.kind == OP_ELEMENT_LOSS,
         whole = forward->model->program->terms == 1;
    const struct tensor_type type = graph->values[input].type;
    if (!elements) TRY(check_output(forward, call, &type));
    struct graph_op *op =
        builder_add_op(builder, call->layer.kind, &call->layer.attrs, 0, mem_strdup(call->name));
    op->inputs[0] = input;
    op->inputs[1] = graph->target;
    if (elements) set_reference(forward, call, op);
    struct tensor_type one = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    *result = builder_add_value(builder, whole ? VALUE_LOSS : VALUE_ACTIVATION, &one,
                                whole ? mem_strdup("loss") : mem_printf("%s.loss", call->name));
    builder_set_output(builder, 0, *result);
    if (call->layer.kind == OP_CROSS_ENTROPY)
        builder_set_output(builder, 1,
                           builder_add_value(builder, VALUE_ACTIVATION, &type,
                                             mem_printf("%s.output", call->name)));
    return forward_check_op(forward, call);
}

/* The last call, the loss, and the sum with its other terms. */
static status_t add_terms(struct forward *forward, const struct program_call *loss)
{
    struct graph_builder *builder = &forward->builder;
    const struct model_program *program = forward->model->program;
    int sum, left = program->terms - 1;
    TRY(forward_add_loss(forward, loss, &sum));
    const struct tensor_type one = builder->graph->values[sum].type;
    for (int i = 0; left > 0; i++) {
        if (!layer_is_loss(program->calls[i].layer.kind)) continue;
        struct graph_op *op = builder_add_op(builder, OP_ADD, &(union op_attrs){0}, 0,
                                             mem_printf("loss_%d", program->terms - left));
        op->exact = true;
        op->inputs[0] = sum;
        op->inputs[1] = forward->value_of[i + 1];
        bool last = --left == 0;
        sum = builder_add_value(builder, last ? VALUE_LOSS : VALUE_ACTIVATION, &one,
                                last ? mem_strdup("loss") : mem_printf("%s.sum", op->name));
        builder_set_output(builder, 0, sum);
    }
    builder->graph->loss = sum;
    return NULL;
}

status_t forward_add_losses(struct forward *forward, const struct program_call *last)
{
    if (last->layer.kind == OP_CONTRASTIVE_LOSS) return add_contrast(forward, last);
    if (last->layer.kind == OP_PREFERENCE_LOSS) return add_preference(forward, last);
    return add_terms(forward, last);
}

void forward_add_count(struct forward *forward)
{
    struct graph_builder *builder = &forward->builder;
    struct graph *graph = builder->graph;
    struct tensor_type one = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    int producer = graph_loss_op(graph);
    if (graph->ops[producer].kind == OP_ELEMENT_LOSS) return; /* nothing is correct or not */
    graph->correct = builder_add_value(builder, VALUE_CORRECT, &one, mem_strdup("correct"));
    struct graph_op *loss = &graph->ops[producer];
    if (loss->kind == OP_LINEAR_CROSS_ENTROPY) { /* this op never holds all log-probabilities */
        loss->outputs[1] = graph->correct;
        graph->values[graph->correct].producer = producer;
        return;
    }
    bool made = loss->kind == OP_CROSS_ENTROPY || loss->kind == OP_CONTRASTIVE_LOSS;
    int scores = made ? loss->outputs[1] : loss->inputs[0];
    struct graph_op *op = builder_add_op(builder, OP_COUNT_CORRECT, &(union op_attrs){0}, 0,
                                         mem_strdup("count_correct"));
    op->inputs[0] = scores;
    op->inputs[1] = graph->target;
    builder_set_output(builder, 0, graph->correct);
}

/* What this rank's rows have, beside those of the other ranks. */
static void add_rows(struct forward *forward, int rows)
{
    struct graph_builder *builder = &forward->builder;
    struct graph *graph = builder->graph;
    int64_t ranks = forward->options->ranks > 1 ? forward->options->ranks : 1;
    int64_t dims[] = {ranks, tensor_element_count(&graph->values[rows].type)};
    const union op_attrs attrs = {.tally = {TALLY_ROWS, ranks}};
    struct tensor_type type = tensor_type_make(DTYPE_F32, 2, dims);
    graph->tally = builder_add_value(builder, VALUE_TALLY, &type, mem_strdup("tally"));
    builder_add_op(builder, OP_TALLY, &attrs, 0, mem_strdup("tally"))->inputs[0] = rows;
    builder_set_output(builder, 0, graph->tally);
}

void forward_add_tally(struct forward *forward)
{
    struct graph_builder *builder = &forward->builder;
    struct graph *graph = builder->graph;
    const struct graph_op *loss = &graph->ops[graph_loss_op(graph)];
    if (loss->kind == OP_PREFERENCE_LOSS) {
        add_rows(forward, loss->inputs[0]);
        return;
    }
    bool elements = loss->kind == OP_ELEMENT_LOSS, classes = !elements;
    if (loss->kind == OP_LINEAR_CROSS_ENTROPY || loss->inputs[1] != graph->target) return;
    int scores = loss->kind == OP_CROSS_ENTROPY ? loss->outputs[1] : loss->inputs[0];
    const struct tensor_type *x = &graph->values[scores].type;
    int64_t columns = x->dims[x->dim_count - 1];
    bool labels =
        elements && (loss->attrs.element_loss.difference == DIFFERENCE_BINARY_CROSS_ENTROPY ||
                     loss->attrs.element_loss.difference == DIFFERENCE_FOCAL);
    enum op_tally kind = classes ? TALLY_CLASSES : labels ? TALLY_LABELS : TALLY_NUMBERS;
    if (columns > (kind == TALLY_NUMBERS ? GRAPH_TALLY_NUMBERS : GRAPH_TALLY_CLASSES)) return;
    bool apart = kind == TALLY_NUMBERS && forward->options->ranks > 1;
    const union op_attrs attrs = {.tally = {kind, apart ? forward->options->ranks : 1}};
    struct tensor_type type =
        tensor_type_make(DTYPE_F32, 2, (int64_t[]){op_tally_rows(&attrs), columns});
    graph->tally = builder_add_value(builder, VALUE_TALLY, &type, mem_strdup("tally"));
    struct graph_op *op = builder_add_op(builder, OP_TALLY, &attrs, 0, mem_strdup("tally"));
    op->inputs[0] = scores;
    op->inputs[classes ? 1 : 2] = graph->target;
    builder_set_output(builder, 0, graph->tally);
}
