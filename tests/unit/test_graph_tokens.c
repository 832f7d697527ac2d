/*
 * Graphs of models of tokens: tiny GPT-2, Llama and BERT against golden text, which ops are fused
 * and which are not, checkpointing, precision, and the messages for shapes that do not fit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "graph_checks.h"
#include "graph_dump.h"
#include "model_files.h"
#include "tests/testing.h"
#include "tiny_models.h"

#define TIME 5

static const struct graph_options train = {.batch_size = 2,
                                           .time = TIME,
                                           .train = true,
                                           .dropout = true};
static const struct graph_options evaluate = {.batch_size = 2, .time = TIME, .count_correct = true};

TESTS_BELOW(.timeout = 60);

LOOP_TEST(golden_graphs, 0, TINY_COUNT)
{
    struct model *model = tiny_model(_i);
    struct graph *graph = build(model, &train);
    char *name = mem_printf("tests/golden/graph-%s-train.txt", tiny_names[_i]);
    assert_golden(graph, name);
    free(name);
    char shape[128];
    ck_assert_str_eq(tensor_format_shape(&graph->values[graph->input].type, shape), "(2, 5)");
    ck_assert_int_eq(graph->values[graph->input].type.dtype, DTYPE_I32);
    ck_assert_int_eq(graph->values[graph->target].type.dtype, DTYPE_I32);
    ck_assert_str_eq(tensor_format_shape(&graph->values[graph->target].type, shape), "(2, 5)");
    /* Head and loss are the first backward op. */
    ck_assert_int_eq(graph->values[graph->loss].producer, graph->forward_op_count);
    graph_free(graph);

    graph = build(model, &evaluate);
    name = mem_printf("tests/golden/graph-%s-evaluate.txt", tiny_names[_i]);
    assert_golden(graph, name);
    free(name);
    ck_assert_int_eq(graph->values[graph->correct].producer, graph->values[graph->loss].producer);
    graph_free(graph);
    model_free(model);
}

TEST(windows_may_be_shorter)
{
    struct model *model = tiny_model(TINY_GPT2);
    struct graph_options options = {.batch_size = 2};
    struct graph *graph = build(model, &options);
    ck_assert_int_eq(graph->values[graph->input].type.dims[1], TINY_CONTEXT);
    graph_free(graph);
    options.time = 1;
    graph = build(model, &options);
    ck_assert_int_eq(graph->values[graph->target].type.dims[1], 1);
    graph_free(graph);
    options.time = TINY_CONTEXT + 1;
    assert_build_fails(model, &options, "model.yaml: windows of 10 tokens: the model takes 1 to 9");
    options.time = -1;
    assert_build_fails(model, &options, "model.yaml: windows of -1 tokens: the model takes 1 to 9");
    options = (struct graph_options){.batch_size = 0, .time = 3};
    assert_build_fails(model, &options,
                       "model.yaml: a batch of 0 samples of (3,): every dimension must be "
                       "positive and all together at most 2^40 elements");
    options.batch_size = INT64_MAX;
    assert_build_fails(
        model, &options,
        "model.yaml: a batch of 9223372036854775807 samples of (3,): every dimension "
        "must be positive and all together at most 2^40 elements");
    model_free(model);
}

#define HEAD "name: N\ninput: tokens\nvocabulary: 5\ncontext: 4\n"
#define TAIL "\nloss: cross_entropy(output, target)\n"

/* Modules and forward lines; an op that the graph has once, and one that it lacks. */
static const struct {
    const char *modules, *forward, *there, *missing;
} fusions[] = {
    /* the head */
    {"e: 'Embedding(5, 4)', h: 'Linear(4, 5)'", "'output = h(e(x))'", "linear_cross_entropy(",
     "linear("},
    {"e: 'Embedding(5, 4)', h: 'Linear(4, 5)'", "'output = log_softmax(h(e(x)), dim=2)'",
     "cross_entropy(", "linear_cross_entropy("},
    {"e: 'Embedding(5, 4)', h: 'Conv1D(5, 4)'", "'output = h(e(x))'", " = cross_entropy(",
     "linear_cross_entropy("},
    {"e: 'Embedding(5, 4)', h: 'Linear(4, 5)'", "'output = relu(h(e(x)))'", " = cross_entropy(",
     "linear_cross_entropy("},
    {"e: 'Embedding(5, 4)', h: 'Linear(4, 5)', i: 'Linear(5, 5)'",
     "'y = h(e(x))', 'output = y + i(y)'", " = cross_entropy(", "linear_cross_entropy("},
    {"e: 'Embedding(5, 5)'", "'output = e(x)'", " = cross_entropy(", "linear"},
    /* gates */
    {"e: 'Embedding(5, 4)', g: 'Linear(4, 4)', h: 'Linear(4, 5)'",
     "'y = e(x)', 'output = h(silu(g(y)) * y)'", " = silu_mul(%8, %7)", "silu("},
    {"e: 'Embedding(5, 4)', g: 'Linear(4, 4)', h: 'Linear(4, 5)'",
     "'y = e(x)', 'output = h(y * silu(g(y)))'", " = silu_mul(%8, %7)", "silu("},
    {"e: 'Embedding(5, 4)', g: 'Linear(4, 4)', h: 'Linear(4, 5)'",
     "'y = e(x)', 'output = h(gelu(g(y), \"tanh\") * y)'", " = gelu_mul(%8, %7)", "gelu_tanh"},
    {"e: 'Embedding(5, 4)', g: 'Linear(4, 4)', h: 'Linear(4, 5)'",
     "'y = e(x)', 'output = h(y * gelu(g(y)))'", " = gelu_mul(%8, %7)", "gelu("},
    {"e: 'Embedding(5, 4)', g: 'Linear(4, 4)', h: 'Linear(4, 5)'",
     "'y = e(x)', 'output = h(gelu(g(y), \"tanh\") + y)'", "gelu_tanh", "gelu_mul("},
    {"e: 'Embedding(5, 4)', f: 'Embedding(4, 4)', h: 'Linear(4, 5)'",
     "'output = h(e(x) * silu(f(positions(x))))'", " = mul(", "silu_mul("},
    {"e: 'Embedding(5, 4)', h: 'Linear(4, 5)'", "'y = silu(e(x))', 'output = h(y * y)'", " = mul(",
     "silu_mul("},
    {"e: 'Embedding(5, 4)', h: 'Linear(4, 5)'", "'y = silu(e(x))', 'output = h(y * e(x) + y)'",
     " = mul(", "silu_mul("},
    /* GELU */
    {"e: 'Embedding(5, 4)', g: 'Linear(4, 4)', a: \"GELU('tanh')\", h: 'Linear(4, 5)'",
     "'output = h(a(g(e(x))))'", " = linear(%7, g.weight, g.bias) gelu_tanh", " gelu("},
    {"e: 'Embedding(5, 4)', g: 'Linear(4, 4)', a: 'GELU()', h: 'Linear(4, 5)'",
     "'output = h(a(g(e(x))))'", " = gelu(", "gelu_tanh"},
    {"e: 'Embedding(5, 4)', g: 'Linear(4, 4)', a: \"GELU('tanh')\", h: 'Linear(4, 5)'",
     "'y = g(e(x))', 'output = h(a(y) + y)'", " = gelu(", "gelu_tanh"},
    {"e: 'Embedding(5, 4)', g: 'Linear(4, 4)', a: \"GELU('tanh')\", h: 'Linear(4, 5)'",
     "'output = h(a(relu(g(e(x)))))'", " = gelu(", "gelu_tanh"},
    {"e: 'Embedding(5, 4)', a: \"GELU('tanh')\", h: 'Linear(4, 5)'", "'output = h(a(e(x)))'",
     " = gelu(", "gelu_tanh"},
    /* sums and norms */
    {"e: 'Embedding(5, 4)', f: 'Embedding(5, 4)', n: LayerNorm(4), h: 'Linear(4, 5)'",
     "'output = h(n(e(x) + f(x)))'", "%10, %11 = layer_norm(%8, n.weight, n.bias, %9)", "add("},
    {"e: 'Embedding(5, 4)', f: 'Embedding(5, 4)', n: RMSNorm(4), h: 'Linear(4, 5)'",
     "'y = e(x) + f(x)', 'output = h(n(y) + y)'", " = rms_norm(%7, n.weight, %8)", "add(%7, %8)"},
    {"e: 'Embedding(5, 4)', f: 'Embedding(5, 4)', n: RMSNorm(4), h: 'Linear(4, 5)'",
     "'y = e(x) + f(x)', 'z = relu(y)', 'output = h(n(y) + z)'", " = rms_norm(%9, n.weight)",
     "rms_norm(%7, n.weight, %8)"},
    {"e: 'Embedding(5, 4)', f: 'Embedding(4, 4)', n: LayerNorm(4), h: 'Linear(4, 5)'",
     "'output = h(n(e(x) + f(positions(x))))'", " = layer_norm(%11, n.weight, n.bias)",
     "layer_norm(%8"},
    /* the smaller one of a sum may come first */
    {"e: 'Embedding(5, 4)', f: 'Embedding(4, 4)', h: 'Linear(4, 5)'",
     "'output = h(f(positions(x)) + e(x))'", "= add(%8, %7) (2, 4, 4)", "(4, 4, "},
};

LOOP_TEST(what_is_fused, 0, COUNT_OF(fusions))
{
    char *text = mem_printf(HEAD "modules: {%s}\nforward: [%s]" TAIL, fusions[_i].modules,
                            fusions[_i].forward);
    struct model *model = parse(text);
    struct graph_options options = {.batch_size = 2, .train = true};
    graph_free(build(model, &options)); /* with its gradients */
    options.train = false;
    struct graph *graph = build(model, &options);
    char *dump = graph_dump(graph);
    ck_assert_msg(strstr(dump, fusions[_i].there) != NULL, "no '%s' in\n%s", fusions[_i].there,
                  dump);
    ck_assert_msg(strstr(dump, fusions[_i].missing) == NULL, "'%s' in\n%s", fusions[_i].missing,
                  dump);
    free(dump);
    graph_free(graph);
    model_free(model);
    free(text);
}

static int count_kind(const struct graph *graph, enum op_kind kind)
{
    int count = 0;
    for (int i = 0; i < graph->op_count; i++) count += graph->ops[i].kind == kind;
    return count;
}

/* Counting in training, or access to the logits, needs them. */
/*
 * The gradient of GELU belongs to the layer that is the only reader of GELU's result; a head, which
 * is one op with the loss, does not take it, nor do several readers. If GELU is recomputed without
 * its layer it stays an op.
 */
static const struct {
    const char *forward, *glob;
    int layers, slopes, gelu, gelu_backward; /* linear and data with GELU, and separate ops */
} gelus[] = {
    {"'output = h(i(a(g(e(x)))))'", NULL, 1, 1, 0, 0},
    {"'output = h(a(g(e(x))))'", NULL, 1, 0, 0, 1},
    {"'y = a(g(e(x)))', 'output = h(i(y) + y)'", NULL, 1, 0, 0, 1},
    {"'output = h(i(a(i(a(g(e(x)))))))'", NULL, 2, 2, 0, 0},
    {"'output = h(s(e(x)))'", "s", 2, 1, 0, 0},
    {"'output = h(t(g(e(x))))'", NULL, 1, 1, 0, 0},
    {"'output = h(t(g(e(x))))'", "t", 0, 0, 2, 1},
    {"'output = h(t(g(e(x))))'", "g", 0, 0, 1, 1},
};

LOOP_TEST(gradients_of_gelu, 0, COUNT_OF(gelus))
{
    char *text = mem_printf(HEAD "modules: {e: 'Embedding(5, 4)', g: 'Linear(4, 4)', "
                                 "a: \"GELU('tanh')\", i: 'Linear(4, 4)', h: 'Linear(4, 5)', "
                                 "s: \"Sequential(Linear(4, 4), GELU('tanh'), Linear(4, 4))\", "
                                 "t: \"Sequential(GELU('tanh'), Linear(4, 4))\"}\n"
                                 "forward: [%s]" TAIL,
                            gelus[_i].forward);
    struct model *model = parse(text);
    const char *globs[] = {gelus[_i].glob};
    struct graph_options options = {.batch_size = 2,
                                    .train = true,
                                    .checkpoint = globs,
                                    .checkpoint_count = globs[0] != NULL};
    struct graph *graph = build(model, &options);
    int layers = 0, slopes = 0;
    for (int i = 0; i < graph->op_count; i++) {
        const struct graph_op *op = &graph->ops[i];
        bool linear = op->kind == OP_LINEAR || op->kind == OP_LINEAR_BACKWARD_DATA;
        if (!linear || op->attrs.linear.activation != ACTIVATION_GELU_TANH) continue;
        ck_assert_int_ge(op->kind == OP_LINEAR ? op->outputs[1] : op->inputs[2], 0);
        layers += op->kind == OP_LINEAR;
        slopes += op->kind == OP_LINEAR_BACKWARD_DATA;
    }
    ck_assert_int_eq(layers, gelus[_i].layers);
    ck_assert_int_eq(slopes, gelus[_i].slopes);
    ck_assert_int_eq(count_kind(graph, OP_GELU), gelus[_i].gelu);
    ck_assert_int_eq(count_kind(graph, OP_GELU_BACKWARD), gelus[_i].gelu_backward);
    graph_free(graph);
    model_free(model);
    free(text);
}

TEST(logits_can_be_kept)
{
    struct model *model = tiny_model(TINY_LLAMA);
    struct graph_options options = train;
    options.count_correct = true;
    struct graph *graph = build(model, &options);
    ck_assert_int_eq(count_kind(graph, OP_CROSS_ENTROPY), 1);
    ck_assert_int_eq(count_kind(graph, OP_COUNT_CORRECT), 1);
    graph_free(graph);
    options = evaluate;
    options.keep_logits = true;
    graph = build(model, &options);
    ck_assert_int_eq(count_kind(graph, OP_LINEAR_CROSS_ENTROPY), 0);
    int logits = graph->ops[graph->values[graph->loss].producer].inputs[0];
    char shape[128];
    ck_assert_str_eq(tensor_format_shape(&graph->values[logits].type, shape), "(2, 5, 13)");
    graph_free(graph);
    model_free(model);
}

/* In bf16 the table of ops determines types: statistics, losses and gradients of parameters are
 * f32; values that are not real numbers stay unchanged. */
LOOP_TEST(low_precision, 0, 2 * TINY_COUNT)
{
    struct model *model = tiny_model(_i % TINY_COUNT);
    enum dtype *parameters = mem_alloc_array((size_t)model->parameter_count, sizeof *parameters);
    for (int p = 0; p < model->parameter_count; p++) parameters[p] = DTYPE_BF16;
    struct graph_options options = train;
    options.compute_dtype = DTYPE_BF16;
    if (_i >= TINY_COUNT) options.parameter_dtypes = parameters;
    struct graph *graph = build(model, &options);
    int low = 0;
    for (int v = 0; v < graph->value_count; v++) {
        const struct graph_value *value = &graph->values[v];
        bool full = value->kind == VALUE_PARAMETER_GRADIENT || value->kind == VALUE_LOSS;
        if (full) ck_assert_int_eq(value->type.dtype, DTYPE_F32);
        low += value->type.dtype == DTYPE_BF16;
    }
    ck_assert_int_gt(low, graph->value_count / 2);
    /* Parameters that lie in bf16 already need no cast; then no op does. */
    if (_i >= TINY_COUNT) ck_assert_int_eq(count_kind(graph, OP_CAST), 0);
    else ck_assert_int_gt(count_kind(graph, OP_CAST), 0);
    graph_free(graph);
    free(parameters);
    model_free(model);
}

/* RoBERTa's positions do not restart within a window. */
TEST(positions_by_token_need_one_document)
{
    static const char text[] = "name: N\ninput: tokens\nvocabulary: 5\ncontext: 4\n"
                               "modules: {e: 'Embedding(9, 4)', h: 'Linear(4, 5)'}\n"
                               "forward: ['output = h(e(x) + e(token_positions(x, 1)))']\n"
                               "loss: cross_entropy(output, target)\n";
    struct model *model = NULL;
    ck_assert_ptr_null(model_parse(text, strlen(text), "net.yaml", &model));
    struct graph_options options = {.batch_size = 2};
    graph_free(build(model, &options));
    options.documents = true;
    assert_build_fails(model, &options,
                       "net.yaml:6: token_positions() counts through the window, so it cannot hold "
                       "several documents (data.windows: packed)");
    model_free(model);
}

/* Units that compute in a type of their own: one block in f32 among others in bf16. */
LOOP_TEST(mixed_precision, 0, TINY_COUNT)
{
    struct model *model = tiny_model(_i);
    enum dtype *modules = mem_alloc_array((size_t)model->module_count, sizeof *modules);
    for (int m = 0; m < model->module_count; m++) {
        const char *path = model->modules[m].path;
        modules[m] = strstr(path, "layer.1") || strstr(path, "h.1") || strstr(path, "layers.1")
                         ? DTYPE_F32
                         : DTYPE_BF16;
    }
    struct graph_options options = train;
    options.compute_dtype = DTYPE_BF16;
    options.module_dtypes = modules;
    struct graph *graph = build(model, &options);
    int full = 0, low = 0;
    for (int i = 0; i < graph->op_count; i++) {
        if (graph->ops[i].kind != OP_ATTENTION) continue;
        enum dtype dtype = graph->values[graph->ops[i].inputs[0]].type.dtype;
        full += dtype == DTYPE_F32;
        low += dtype == DTYPE_BF16;
    }
    ck_assert_int_eq(full, 1);
    ck_assert_int_eq(low, TINY_LAYERS - 1);
    graph_free(graph);
    free(modules);
    model_free(model);
}

static int find_op(const struct graph *graph, const char *name)
{
    for (int i = 0; i < graph->op_count; i++)
        if (strcmp(graph->ops[i].name, name) == 0) return i;
    return -1;
}

static int norms_of_rounded_sums(const struct model *model, const struct graph_options *options)
{
    struct graph *graph = build(model, options);
    int count = 0;
    for (int i = 0; i < graph->op_count; i++)
        count += graph->ops[i].attrs.norm.rounded &&
                 (graph->ops[i].kind == OP_LAYER_NORM || graph->ops[i].kind == OP_RMS_NORM);
    graph_free(graph);
    return count;
}

/* The sum at a block's end goes into the norm behind it, unless a checkpointed module ends there,
 * or modules compute in types of their own. BERT's norms are within the blocks. */
LOOP_TEST(sums_at_ends_of_blocks, 0, TINY_COUNT)
{
    static const char *const last[TINY_COUNT] = {
        [TINY_GPT2] = "transformer.h.1", [TINY_LLAMA] = "model.layers.1", [TINY_BERT] = "*"};
    struct model *model = tiny_model(_i);
    struct graph_options options = train;
    int most = _i == TINY_BERT ? 0 : TINY_LAYERS;
    ck_assert_int_eq(norms_of_rounded_sums(model, &options), most);
    options.checkpoint = &last[_i];
    options.checkpoint_count = 1;
    ck_assert_int_eq(norms_of_rounded_sums(model, &options), most > 0 ? most - 2 : 0);
    enum dtype *modules = mem_alloc_array((size_t)model->module_count, sizeof *modules);
    options.checkpoint_count = 0;
    options.module_dtypes = modules;
    ck_assert_int_eq(norms_of_rounded_sums(model, &options), 0);
    free(modules);
    model_free(model);
}

/* The second run computes the statistics, and the sum that the norm must output; the first keeps
 * neither, except for the sums at the ends of blocks. */
TEST(checkpointed_blocks)
{
    struct model *model = tiny_model(TINY_GPT2);
    struct graph_options options = train;
    options.checkpoint = (const char *const[]){"transformer.h.*"};
    options.checkpoint_count = 1;
    struct graph *graph = build(model, &options);
    const struct graph_op *first = &graph->ops[find_op(graph, "transformer.h.0.ln_2")];
    const struct graph_op *again = &graph->ops[find_op(graph, "transformer.h.0.ln_2.again")];
    ck_assert_int_eq(first->outputs[1], -1);
    ck_assert_int_eq(first->outputs[2], -1);
    ck_assert_int_ge(first->outputs[3], 0);
    ck_assert_int_ge(again->outputs[1], 0);
    ck_assert_int_ge(again->outputs[2], 0);
    ck_assert_int_eq(graph->values[again->outputs[3]].repeats, first->outputs[3]);
    first = &graph->ops[find_op(graph, "transformer.h.1.attn.attention")];
    again = &graph->ops[find_op(graph, "transformer.h.1.attn.attention.again")];
    ck_assert_int_eq(first->outputs[1], -1);
    ck_assert_int_ge(again->outputs[1], 0);
    ck_assert_int_eq(first->attrs.attention.stream, again->attrs.attention.stream);
    ck_assert_int_eq(find_op(graph, "transformer.h.0.add_1.again"), -1);
    ck_assert_int_eq(find_op(graph, "transformer.ln_f.again"), -1);
    /* No backward op reads an original value between a block's two ends. */
    const int block = find_op(graph, "transformer.h.1.mlp.c_fc");
    for (int i = graph->forward_op_count; i < graph->op_count; i++)
        for (int k = 0; k < OP_MAX_INPUTS; k++)
            ck_assert_int_ne(graph->ops[i].inputs[k], graph->ops[block].outputs[0]);
    graph_free(graph);

    /* The head itself never runs twice; its input stays. */
    options.checkpoint = (const char *const[]){"*"};
    graph = build(model, &options);
    ck_assert_int_eq(count_kind(graph, OP_LINEAR_CROSS_ENTROPY_BACKWARD), 1);
    graph_free(graph);
    model_free(model);
}

/* Frozen parts cost nothing, in any place. */
static const struct {
    const char *freeze;
    enum op_kind missing;
} frozen[] = {
    {"*.wpe.*", OP_SUM_LEADING},
    {"transformer.*", OP_LAYER_NORM_BACKWARD},
    {"lm_head.*", OP_EMBEDDING_BACKWARD}, /* wpe still has one */
};

LOOP_TEST(frozen_parts, 0, COUNT_OF(frozen))
{
    char *text = mem_printf("%sfreeze: ['%s']\n", tiny_model_text(TINY_GPT2), frozen[_i].freeze);
    char *untied = replace(text, "tie: {lm_head.weight: transformer.wte.weight}", "");
    if (_i < 2) {
        struct model *model = parse(untied);
        struct graph *graph = build(model, &train);
        ck_assert_int_eq(count_kind(graph, frozen[_i].missing), 0);
        graph_free(graph);
        model_free(model);
    }
    struct model *model = parse(text); /* tied, the embedding is frozen with its head */
    if (_i == 1) {
        assert_build_fails(model, &train,
                           "net.yaml: there is nothing to train: no trainable parameter reaches "
                           "the loss");
    } else {
        struct graph *graph = build(model, &train);
        ck_assert_int_eq(count_kind(graph, OP_EMBEDDING_BACKWARD), 1);
        graph_free(graph);
    }
    model_free(model);
    free(untied);
    free(text);
}

static const struct {
    const char *forward, *message;
} misfits[] = {
    {"output = h(x)", "net.yaml:6: module h: linear: input (2, 4) is of type i32, expected f32"},
    {"output = h(e(e(x)))",
     "net.yaml:6: module e: embedding: indices (2, 4, 4) is of type f32, expected i32"},
    {"output = h(n(e(x)))",
     "net.yaml:6: module n: layer_norm: weight is (6,), but with input (2, 4, 4) it must be (4,)"},
    {"output = h(attention(e(x), num_heads=2))",
     "net.yaml:6: attention: query (2, 4, 4) is not 6 heads wide"},
    {"output = h(attention(e(x), e(x), e(x), num_heads=3))",
     "net.yaml:6: attention: query (2, 4, 4) is not 3 heads wide"},
    {"output = h(attention(e(x), e(x), w(x), num_heads=2))",
     "net.yaml:6: attention: value is (2, 4, 6), but with query (2, 4, 4) it must be (2, 4, 4)"},
    {"output = h(attention(e(x), e(x), e(x), e(x), num_heads=2))",
     "net.yaml:6: attention: mask (2, 4, 4) is of type f32, expected u8"},
    {"output = h(rope(e(x), head_dim=6))",
     "net.yaml:6: rope: head_dim is 6, which is not possible"},
    {"output = h(e(x) + w(x))", "net.yaml:6: add: second input is (2, 4, 6), but with first input "
                                "(2, 4, 4) it must be (2, 4, 4)"},
    {"output = h(e(x) * w(x))", "net.yaml:6: mul: second input is (2, 4, 6), but with first input "
                                "(2, 4, 4) it must be (2, 4, 4)"},
    {"output = h(e(x) + e(token_positions(x, 1)))",
     "net.yaml:6: module e: embedding: weight has 5 rows, but indices reach 5"},
    {"output = h(s(x))", "net.yaml:6: module s: embedding: weight has 3 rows, but indices reach 4"},
    {"output = h(s(positions(x)))",
     "net.yaml:6: module s: embedding: weight has 3 rows, but indices reach 3"},
    {"output = h(e(x) + e(token_positions(x, -1)))",
     "net.yaml:6: token_positions: id is -1, which is not possible"},
    {"output = h(e(x) + e(token_positions(x, 2147483644)))",
     "net.yaml:6: token_positions: the last position is 2.14748e+09, which is not possible"},
    {"output = h(e(token_positions(e(x), 0)))",
     "net.yaml:6: token_positions: tokens (2, 4, 4) is of type f32, expected i32"},
    {"output = h(attention(e(x), e(x), e(x), num_heads=2, bias=e(distance_buckets(x, 4))))",
     "net.yaml:6: attention: bias is (7, 4), but with query (2, 4, 4) it must be (7, 2)"},
    {"output = h(e(distance_buckets(x)))",
     "net.yaml:6: module e: embedding: weight has 5 rows, but indices reach 31"},
    {"output = h(softmax(e(x), dim=1))",
     "net.yaml:6: softmax: dim=1 is not the last dimension of (2, 4, 4)"},
    {"output = h(e(positions(e(x))))",
     "net.yaml:6: arange: input (2, 4, 4) is of type f32, expected i32"},
    {"output = e(x)", "net.yaml:7: cross_entropy: input is (2, 4, 4), but with vocabulary: 5 it "
                      "must be (2, 4, 5)"},
    {"output = h(e(positions(x)))", "net.yaml:7: cross_entropy: input is (4, 5), but with "
                                    "vocabulary: 5 it must be (2, 4, 5)"},
};

LOOP_TEST(shapes_that_do_not_fit_are_named, 0, COUNT_OF(misfits))
{
    char *text = mem_printf(
        HEAD "modules: {e: 'Embedding(5, 4)', w: 'Embedding(5, 6)', "
             "h: 'Linear(4, 5)', n: LayerNorm(6), s: 'Embedding(3, 4)'}\nforward: ['%s']" TAIL,
        misfits[_i].forward);
    struct model *model = parse(text);
    struct graph_options options = {.batch_size = 2, .train = true};
    assert_build_fails(model, &options, misfits[_i].message);
    model_free(model);
    free(text);
}
