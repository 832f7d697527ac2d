/*
 * The loss of pairs against all others (CONTRASTIVE_LOSS in ops/op.h), made of the embeddings of a
 * batch: rows of length 1, this rank's candidates gathered with those of the other ranks, the
 * products of its anchors with all of them, and their cross-entropy. Everything is in f32. Part of
 * graph_build. The texts of a pair are neighbouring rows: its anchor first, then its candidates.
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
    int64_t all = world * pairs * (texts - 1);
    struct tensor_type products = tensor_type_make(DTYPE_F32, 2, (int64_t[]){pairs, all});
    int inputs[] = {anchors, candidates};
    int scores = append(&contrast, OP_LINEAR, &none, inputs, 2, &products, "products");

    union op_attrs loss = *attrs; /* the norm makes rows of length sqrt(width) */
    loss.contrast.factor /= (double)width;
    struct tensor_type one = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    struct tensor_type two = tensor_type_make(DTYPE_F32, 2, (int64_t[]){pairs, 2});
    struct graph_op *op = builder_add_op(builder, OP_CONTRASTIVE_LOSS, &loss, 0, mem_strdup(name));
    op->exact = true;
    op->inputs[0] = scores;
    op->inputs[1] = counted;
    op->inputs[2] = graph->target;
    graph->loss = builder_add_value(builder, VALUE_LOSS, &one, mem_strdup("loss"));
    builder_set_output(builder, 0, graph->loss);
    builder_set_output(builder, 1,
                       builder_add_value(builder, VALUE_ACTIVATION, &two,
                                         mem_printf("%s.scores", name)));
    builder_set_output(builder, 2,
                       builder_add_value(builder, VALUE_ACTIVATION, &rows,
                                         mem_printf("%s.lse", name)));
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
