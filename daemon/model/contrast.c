/*
 * The loss of pairs against all others (CONTRASTIVE_LOSS in ops/op.h), made of the embeddings of a
 * batch: rows of length 1, this rank's candidates gathered with those of the other ranks, the
 * products of its anchors with all of them, and their cross-entropy. Everything is in f32. Part of
 * graph_build. The texts of a pair are neighbouring rows: its anchor first, then its candidates. Of
 * two towers the rows are as the model makes them, and each is the anchors, the other the
 * candidates.
 */
#include "base/mem.h"
#include "model/graph_builder.h"

/* Far below the squares of numbers that matter. A row of zeros stays one, and the third power of
 * its inverse root, which the gradient has, is finite. */
static const double tiny = 1e-20;

struct contrast_loss {
    struct graph_builder *builder;
    const char *name; /* of the loss */
};

static int append(const struct contrast_loss *contrast, enum op_kind kind,
                  const union op_attrs *attrs, const int *inputs, int input_count,
                  const struct tensor_type *type, const char *suffix)
{
    struct graph_op *op = builder_add_op(contrast->builder, kind, attrs, 0,
                                         mem_printf("%s.%s", contrast->name, suffix));
    op->exact = true;
    for (int i = 0; i < input_count; i++) op->inputs[i] = inputs[i];
    int made = builder_add_value(contrast->builder, VALUE_ACTIVATION, type,
                                 mem_printf("%s.%s", contrast->name, suffix));
    builder_set_output(contrast->builder, 0, made);
    return made;
}

static int reshape(const struct contrast_loss *contrast, int x, int dim_count, const int64_t *dims,
                   const char *suffix)
{
    struct tensor_type type = tensor_type_make(DTYPE_F32, dim_count, dims);
    return append(contrast, OP_RESHAPE, &(union op_attrs){0}, &x, 1, &type, suffix);
}

/* Texts `from` to `to` of every pair, as rows. */
static int take_texts(const struct contrast_loss *contrast, int x, int64_t from, int64_t to,
                      const char *suffix)
{
    struct tensor_type type = contrast->builder->graph->values[x].type;
    type.dims[1] = to - from;
    const union op_attrs attrs = {.slice = {.dim = 1, .start = from}};
    int taken = append(contrast, OP_SLICE, &attrs, &x, 1, &type, suffix);
    return reshape(contrast, taken, 2, (int64_t[]){type.dims[0] * (to - from), type.dims[2]},
                   suffix);
}

/* The rows of all ranks. */
static int gather(const struct contrast_loss *contrast, int x, int64_t world, const char *suffix)
{
    struct tensor_type one = contrast->builder->graph->values[x].type, all = one;
    if (world == 1) return x;
    all.dims[0] = world;
    for (int i = 0; i < one.dim_count; i++) all.dims[i + 1] = one.dims[i];
    all.dim_count++;
    int gathered = append(contrast, OP_GATHER_RANKS, &(union op_attrs){0}, &x, 1, &all, suffix);
    if (one.dim_count == 1) return gathered;
    return reshape(contrast, gathered, 2, (int64_t[]){world * one.dims[0], one.dims[1]}, suffix);
}

/* The loss of `anchors` among `all` candidates, of those pairs that are `counted`: a value of this
 * kind. */
static int add_loss(const struct contrast_loss *contrast, const union op_attrs *attrs,
                    enum value_kind kind, int anchors, int all, int counted)
{
    struct graph_builder *builder = contrast->builder;
    const struct graph *graph = builder->graph;
    const char *name = contrast->name;
    int64_t pairs = graph->values[anchors].type.dims[0];
    int64_t dims[] = {pairs, graph->values[all].type.dims[0]};
    struct tensor_type products = tensor_type_make(DTYPE_F32, 2, dims);
    struct tensor_type one = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    struct tensor_type two = tensor_type_make(DTYPE_F32, 2, (int64_t[]){pairs, 2});
    struct tensor_type rows = tensor_type_make(DTYPE_F32, 1, &pairs);
    int inputs[] = {anchors, all};
    int scores =
        append(contrast, OP_LINEAR, &(union op_attrs){0}, inputs, 2, &products, "products");
    struct graph_op *op = builder_add_op(builder, OP_CONTRASTIVE_LOSS, attrs, 0, mem_strdup(name));
    op->exact = true;
    op->inputs[0] = scores;
    op->inputs[1] = counted;
    op->inputs[2] = graph->target;
    int loss =
        builder_add_value(builder, kind, &one,
                          kind == VALUE_LOSS ? mem_strdup("loss") : mem_printf("%s.loss", name));
    builder_set_output(builder, 0, loss);
    builder_set_output(builder, 1,
                       builder_add_value(builder, VALUE_ACTIVATION, &two,
                                         mem_printf("%s.scores", name)));
    builder_set_output(builder, 2,
                       builder_add_value(builder, VALUE_ACTIVATION, &rows,
                                         mem_printf("%s.lse", name)));
    return loss;
}

void graph_add_contrast(struct graph_builder *builder, const struct graph_options *options,
                        const char *name, const union op_attrs *attrs, int x)
{
    struct graph *graph = builder->graph;
    const struct contrast_loss contrast = {builder, name};
    int64_t texts = graph->model->texts, world = options->world > 1 ? options->world : 1;
    struct tensor_type type = graph->values[x].type;
    int64_t pairs = type.dims[0] / texts, width = type.dims[1];
    type.dtype = DTYPE_F32;
    const union op_attrs none = {0}, norm = {.norm = {.eps = tiny}};
    int normed = append(&contrast, OP_RMS_NORM, &norm, &x, 1, &type, "norm");
    normed = reshape(&contrast, normed, 3, (int64_t[]){pairs, texts, width}, "texts");
    int anchors = take_texts(&contrast, normed, 0, 1, "anchors");
    int candidates = take_texts(&contrast, normed, 1, texts, "candidates");
    struct tensor_type rows = tensor_type_make(DTYPE_F32, 1, &pairs);
    int counted = append(&contrast, OP_COUNTED, &none, &graph->target, 1, &rows, "counted");
    candidates = gather(&contrast, candidates, world, "all_candidates");
    counted = gather(&contrast, counted, world, "all_counted");
    union op_attrs loss = *attrs; /* the norm makes rows of length sqrt(width) */
    loss.contrast.factor /= (double)width;
    graph->loss = add_loss(&contrast, &loss, VALUE_LOSS, anchors, candidates, counted);
}

/* A value for each of `from`, repeated along a new dimension. */
static int repeat(const struct contrast_loss *contrast, int from, int dim, int64_t count,
                  const char *suffix)
{
    struct tensor_type type = contrast->builder->graph->values[from].type;
    const union op_attrs sum = {.mean = {.dim = dim, .sum = true}};
    type.dims[1] = type.dims[0];
    type.dims[dim] = count;
    type.dim_count++;
    return append(contrast, OP_MEAN_BACKWARD, &sum, &from, 1, &type, suffix);
}

/* The features of a tower, of which rows that fill up a batch, and their gradients, are zeros
 * whatever the tower makes of them: with a NaN, no product by zero would leave them out. */
static int take_counted(const struct contrast_loss *contrast, int features, int mask)
{
    struct tensor_type type = contrast->builder->graph->values[features].type;
    int inputs[] = {features, mask};
    return append(contrast, OP_RELU_BACKWARD, &(union op_attrs){0}, inputs, 2, &type, "features");
}

/* Features times a scale of shape (1). */
static int multiply(const struct contrast_loss *contrast, int features, int scale)
{
    const struct graph_value *values = contrast->builder->graph->values;
    struct tensor_type type = values[features].type;
    scale = reshape(contrast, scale, 0, type.dims, "scale");
    scale = repeat(contrast, scale, 0, type.dims[1], "scale");
    int factors[] = {features, scale};
    return append(contrast, OP_MUL, &(union op_attrs){0}, factors, 2, &type, "scaled");
}

void graph_add_towers(struct graph_builder *builder, const struct graph_options *options,
                      const char *name, const union op_attrs *attrs, int a, int b, int scale)
{
    struct graph *graph = builder->graph;
    AUTO_FREE char *other = mem_printf("%s.back", name);
    const struct contrast_loss there = {builder, name}, back = {builder, other};
    int64_t world = options->world > 1 ? options->world : 1;
    const union op_attrs none = {0};
    union op_attrs half = *attrs;
    half.contrast.share = 0.5 * (attrs->contrast.share == 0 ? 1 : attrs->contrast.share);
    struct tensor_type rows = tensor_type_make(DTYPE_F32, 1, graph->values[a].type.dims);
    struct tensor_type one = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    int counted = append(&there, OP_COUNTED, &none, &graph->target, 1, &rows, "counted");
    int mask = repeat(&there, counted, 1, graph->values[a].type.dims[1], "mask");
    a = take_counted(&there, a, mask);
    b = take_counted(&back, b, mask);
    if (scale >= 0) a = multiply(&there, a, scale);
    counted = gather(&there, counted, world, "all_counted");
    int all_b = gather(&there, b, world, "all_candidates");
    int all_a = gather(&back, a, world, "all_candidates"), terms[2];
    terms[0] = add_loss(&there, &half, VALUE_ACTIVATION, a, all_b, counted);
    terms[1] = add_loss(&back, &half, VALUE_ACTIVATION, b, all_a, counted);
    struct graph_op *op = builder_add_op(builder, OP_ADD, &none, 0, mem_printf("%s.sum", name));
    op->exact = true;
    for (int i = 0; i < 2; i++) op->inputs[i] = terms[i];
    graph->loss = builder_add_value(builder, VALUE_LOSS, &one, mem_strdup("loss"));
    builder_set_output(builder, 0, graph->loss);
}

/* |a - b + eps| of every row. */
static int distance(const struct contrast_loss *contrast, int a, int b, double eps,
                    const char *suffix)
{
    const struct tensor_type type = contrast->builder->graph->values[a].type;
    const struct tensor_type row = tensor_type_make(DTYPE_F32, 1, type.dims);
    const union op_attrs none = {0}, minus = {.scale = {-1, eps}},
                         sum = {.mean = {.dim = 1, .sum = true}};
    const union op_attrs root = {.function.kind = FUNCTION_SQRT};
    int terms[] = {a, append(contrast, OP_SCALE, &minus, &b, 1, &type, suffix)};
    int away = append(contrast, OP_ADD, &none, terms, 2, &type, suffix), both[] = {away, away};
    away = append(contrast, OP_MUL, &none, both, 2, &type, suffix);
    away = append(contrast, OP_MEAN, &sum, &away, 1, &row, suffix);
    return append(contrast, OP_FUNCTION, &root, &away, 1, &row, suffix);
}

/* max(0, a - b + margin) */
static int hinge(const struct contrast_loss *contrast, int a, int b, double margin,
                 const char *suffix)
{
    const struct tensor_type type = contrast->builder->graph->values[a].type;
    const union op_attrs none = {0}, minus = {.scale = {-1, margin}};
    int terms[] = {a, append(contrast, OP_SCALE, &minus, &b, 1, &type, suffix)};
    int made = append(contrast, OP_ADD, &none, terms, 2, &type, suffix);
    return append(contrast, OP_RELU, &none, &made, 1, &type, suffix);
}

/* Of those rows that count, the differences from 0. */
void graph_add_triplet(struct graph_builder *builder, const char *name, const struct layer *layer,
                       int x)
{
    struct graph *graph = builder->graph;
    const struct contrast_loss contrast = {builder, name};
    const struct tensor_type type = graph->values[x].type;
    int64_t pairs = type.dims[0] / 3;
    const struct tensor_type rows = tensor_type_make(DTYPE_F32, 1, &pairs);
    const struct tensor_type one = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    const union op_attrs none = {0}, zero = {.scale = {0, 0}};
    int whole = reshape(&contrast, x, 3, (int64_t[]){pairs, 3, type.dims[1]}, "texts"), texts[3];
    for (int i = 0; i < 3; i++) texts[i] = take_texts(&contrast, whole, i, i + 1, "text");
    int near = distance(&contrast, texts[0], texts[1], layer->eps, "positive");
    int far = distance(&contrast, texts[0], texts[2], layer->eps, "negative");
    if (layer->swap) { /* the smaller one of both: far - max(0, far - other) */
        int other = distance(&contrast, texts[1], texts[2], layer->eps, "swapped");
        int more = hinge(&contrast, far, other, 0, "more");
        int terms[] = {far, append(&contrast, OP_SCALE, &(union op_attrs){.scale = {-1, 0}}, &more,
                                   1, &rows, "less")};
        far = append(&contrast, OP_ADD, &none, terms, 2, &rows, "smaller");
    }
    int losses = hinge(&contrast, near, far, layer->margin, "losses");
    int counted = append(&contrast, OP_COUNTED, &none, &graph->target, 1, &rows, "counted");
    const union op_attrs loss = {.element_loss = {.reduction = layer->attrs.contrast.reduction,
                                                  .share = layer->attrs.contrast.share,
                                                  .difference = DIFFERENCE_ABSOLUTE,
                                                  .weight = 1}};
    int zeros = append(&contrast, OP_SCALE, &zero, &counted, 1, &rows, "zeros");
    struct graph_op *op = builder_add_op(builder, OP_ELEMENT_LOSS, &loss, 0, mem_strdup(name));
    op->exact = true;
    op->inputs[0] = losses;
    op->inputs[1] = zeros;
    op->inputs[2] = graph->target;
    graph->loss = builder_add_value(builder, VALUE_LOSS, &one, mem_strdup("loss"));
    builder_set_output(builder, 0, graph->loss);
}
