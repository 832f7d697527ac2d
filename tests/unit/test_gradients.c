/*
 * Gradients of graphs against finite differences: whole training graphs run with the reference
 * kernels, and the slope of the loss along a random direction of all trainable parameters is
 * compared with that direction's product with the gradient. This checks the wiring of the backward
 * ops (sums, accumulation, order), beyond the test of each kernel.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "machine.h"
#include "model/lora.h"
#include "model/preference.h"
#include "model/teach.h"
#include "tests/testing.h"
#include "tiny_models.h"

enum { BATCH = 3, CLASSES = 5 };

static unsigned random_state = 7;

static float next_random(void) /* in [-1, 1) */
{
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) * 0x1p-23f - 1.0f;
}

static void assert_okay(status_t status)
{
    ck_assert_msg(!status, "%s", status_message(status));
}

/* Where the documents of a window start: two or three of them, otherwise in every window. */
static int32_t start_of(int64_t place, int64_t time)
{
    int64_t at = place % time, border = 2 + place / time % 3;
    return (int32_t)(at < border ? 0 : at < border + 2 ? border : border + 2);
}

static void fill(struct machine *machine, int value)
{
    const struct graph_value *it = &machine->graph->values[value];
    bool tokens = machine->graph->model->tokens;
    int64_t count = tensor_element_count(&it->type);
    float *reals = machine->memory[value];
    int32_t *integers = machine->memory[value];
    for (int64_t k = 0; k < count; k++) {
        if (it->kind == VALUE_PARAMETER) reals[k] = (tokens ? 1.0f : 0.5f) * next_random();
        else if (it->kind == VALUE_INPUT && !tokens) reals[k] = next_random();
        else if (it->kind == VALUE_TARGET && !tokens) integers[k] = (int32_t)k + 1;
        else if (it->kind == VALUE_INPUT) integers[k] = tiny_token((uint64_t)k);
        else if (it->kind == VALUE_TARGET) /* some are ignored */
            integers[k] = k % 5 == 2 ? -100 : tiny_token((uint64_t)k + 1);
        else if (it->kind == VALUE_STARTS) integers[k] = start_of(k, it->type.dims[1]);
    }
}

static struct machine machine_new(struct graph *graph)
{
    struct machine machine;
    assert_okay(machine_init(&machine, KERNELS_REFERENCE, graph));
    for (int i = 0; i < graph->value_count; i++) fill(&machine, i);
    return machine;
}

static double run(struct machine *machine)
{
    assert_okay(machine_run(machine));
    return *(float *)machine->memory[machine->graph->loss];
}

/* Moves a parameter by `step` along `direction`. */
static void move(struct machine *machine, int value, const float *start, const float *direction,
                 float step)
{
    int64_t count = tensor_element_count(&machine->graph->values[value].type);
    for (int64_t i = 0; i < count; i++)
        ((float *)machine->memory[value])[i] = start[i] + step * direction[i];
}

/* Parameters of a slope, and the required match with the gradient. */
struct measure {
    float step;   /* along the direction */
    double bound; /* allowed error relative to a gradient's size */
    double noise; /* and the absolute one: the loss is f32 */
    double least; /* smaller gradients are not compared */
};

/* A small step, so that few ReLUs change sides. */
static const struct measure with_relus = {0x1p-13f, 0.01, 2e-3, 1e-3};
static const struct measure smooth = {0x1p-9f, 0.001, 1e-4, 3e-4};
static const struct measure smooth_sum = {0x1p-10f, 0.001, 2e-2, 0.1};

/* One parameter at a time: the slope along a random direction against the gradient. */
static void check_parameter(struct machine *machine, int parameter, const struct measure *measure)
{
    const struct graph *graph = machine->graph;
    int value = machine_value_of(graph, VALUE_PARAMETER, parameter);
    int gradient = machine_value_of(graph, VALUE_PARAMETER_GRADIENT, parameter);
    const struct parameter *described = &graph->model->parameters[parameter];
    if (value < 0 || !described->trainable) {
        ck_assert_int_eq(gradient, -1);
        return;
    }
    ck_assert_int_ge(gradient, 0);
    int64_t count = tensor_element_count(&described->type);
    size_t bytes = tensor_bytes(&described->type);
    run(machine);
    float *start = mem_dup(machine->memory[value], bytes);
    float *slopes = mem_dup(machine->memory[gradient], bytes);
    float *direction = mem_alloc(bytes);
    double expected = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        /* A padding's row has no gradient, although forward reads it. */
        bool padding =
            described->has_zero_row && i / described->type.dims[1] == described->zero_row;
        direction[i] = padding ? 0 : next_random();
        expected += (double)direction[i] * slopes[i];
        size += fabs((double)direction[i] * slopes[i]);
    }
    move(machine, value, start, direction, measure->step);
    double above = run(machine);
    move(machine, value, start, direction, -measure->step);
    double below = run(machine);
    move(machine, value, start, direction, 0);
    double found = (above - below) / (2 * measure->step);
    /* Adding the same number to all of a row's scores does not change the softmax. */
    bool has_gradient = !text_glob_match("*.key.bias", described->name);
    ck_assert_msg(size > measure->least || !has_gradient, "%s has no gradient to check",
                  described->name);
    ck_assert_msg(fabs(found - expected) < measure->bound * size + measure->noise,
                  "%s: the loss changes by %g, the gradient says %g", described->name, found,
                  expected);
    free(start);
    free(slopes);
    free(direction);
}

#define HEAD "name: N\ninput: [2, 6, 6]\nclasses: 5\n"
#define LOSS "loss: cross_entropy(output, target)\n"

static const char *const models[] = {
    /* the tutorial's kinds of layer, dropout on */
    HEAD "modules: {c: 'Conv2d(2, 4, 3)', d: 'Conv2d(4, 4, 2)', f: 'Linear(4, 8)', "
         "g: 'Linear(8, 5)', p: Dropout(0.25)}\n"
         "forward: ['x = relu(c(x))', 'x = relu(d(x))', 'x = p(max_pool2d(x, 2))', "
         "'x = flatten(x, 1)', 'x = dropout(relu(f(x)))', 'output = log_softmax(g(x), dim=1)']\n"
         "loss: nll_loss(output, target, reduction='sum')\n",
    /* one module four times, its values read several times */
    HEAD "modules: {c: 'Conv2d(2, 2, 3, padding=1)', f: 'Linear(72, 5)'}\n"
         "forward: ['y = c(x)', 'z = relu(c(y)) + y', 'z += c(z) + z', 'z = c(relu(z)) + y', "
         "'output = f(flatten(z, 1))']\n" LOSS,
    /* tied weights with own biases, and a parameter that is never used */
    HEAD "modules: {s: 'Linear(72, 6)', a: 'Linear(6, 6)', b: 'Linear(6, 6)', c: 'Linear(6, 6)', "
         "f: 'Linear(6, 5)'}\n"
         "forward: ['x = relu(s(flatten(x, 1)))', 'x = relu(a(x)) + x', 'output = f(b(x))']\n" LOSS
         "tie: {b.weight: a.weight}\n",
    /* frozen in the middle, at the start, and by halves */
    HEAD "modules: {c: 'Conv2d(2, 3, 3)', d: 'Conv2d(3, 3, 2)', e: 'Conv2d(3, 3, 2)', "
         "f: 'Linear(12, 5)'}\n"
         "forward: ['output = f(flatten(relu(e(relu(d(relu(c(x)))))), 1))']\n" LOSS
         "freeze: [c.*, d.weight, e.*, f.bias]\n",
    /* blocks in lists, groups, strides, dilation, no bias */
    HEAD "blocks:\n"
         "  R(n):\n"
         "    modules: {c: 'Conv2d(n, n, 3, padding=2, dilation=2, groups=n, bias=False)', "
         "r: ReLU()}\n"
         "    forward: ['output = r(c(x) + x)']\n"
         "modules: {s: Sequential(2 * R(2)), t: 2 * R(2), c: 'Conv2d(2, 4, 3, stride=2)', "
         "f: 'Linear(16, 5)'}\n"
         "forward:\n"
         "  - x = s(x)\n"
         "  - for r in t:\n"
         "      - x = r(x)\n"
         "      - x = relu(x + max_pool2d(x, 3, 1, 1))\n"
         "  - output = f(flatten(c(x), 1))\n" LOSS,
    /* shapes of samples, and of parameters that have no batch yet */
    HEAD
    "modules: {q: 'Parameter(1, 1, 6)', r: 'Parameter(1, 6, 2)', f: 'Linear(36, 5)'}\n"
    "forward: ['y = transpose(reshape(x, (x.shape[0], 4, 3, -1)), 2, 3)', "
    "'y = reshape(mean(y, 1), (-1, 3, 6))', "
    "'y = cat([q, transpose(r, 1, 2), y, select(r, -1, 0) * q], dim=1)', "
    "'y = unflatten(narrow(y, 1, 1, 6), -1, (2, -1))', 'output = f(reshape(y, (-1, 36)))']\n" LOSS,
    /* log_softmax and nll_loss apart */
    HEAD "modules: {f: 'Linear(72, 5)', g: 'Linear(5, 5)'}\n"
         "forward: ['y = log_softmax(f(flatten(x, 1)), dim=-1)', 'output = y + relu(g(y))']\n"
         "loss: nll_loss(output, target)\n",
};

TESTS_BELOW(.timeout = 120);

LOOP_TEST(gradients_are_slopes, 0, COUNT_OF(models))
{
    struct model *model = NULL;
    struct graph *graph = NULL;
    assert_okay(model_parse(models[_i], strlen(models[_i]), "net.yaml", &model));
    struct graph_options options = {.batch_size = BATCH, .train = true, .dropout = true};
    assert_okay(graph_build(model, &options, &graph));
    struct machine machine = machine_new(graph);
    for (int i = 0; i < model->parameter_count; i++)
        if (model->parameters[i].tied_to < 0) check_parameter(&machine, i, &with_relus);
    machine_deinit(&machine);
    graph_free(graph);
    model_free(model);
}

/* What the transformers lack: products, softmax, silu alone, norms without weights, packed
 * attention with fewer keys, one embedding in three places, values that many ops read. */
static const char everything[] =
    "name: N\ninput: tokens\nvocabulary: 13\ncontext: 9\n"
    "modules: {e: 'Embedding(13, 8, padding_idx=3)', c: 'Conv1D(16, 8)', l: 'LayerNorm(8, "
    "bias=False)', "
    "m: 'LayerNorm(8, elementwise_affine=False)', r: 'RMSNorm(8, elementwise_affine=False)', "
    "s: 'RMSNorm(8)', k: 'Linear(8, 4)', v: 'Linear(8, 4)', h: 'Linear(8, 13)', "
    "a: 'ReLUSquaredActivation()', g: 'GemmaRMSNorm(8, eps=1e-5)'}\n"
    "forward:\n"
    "  - p = e(positions(x)) + e(zeros(x))\n"
    "  - y = l(e(x)) + p\n"
    "  - y = m(y) * silu(y) + tanh(softmax(y, dim=-1))\n"
    "  - y = m(a(2 * y - 0.5) / (1.5 + sigmoid(y)) - 0.1 * p * y + y / (3 - tanh(p)))\n"
    "  - y = -y * 1 + sqrt(2) / (4 + tanh(y) * tanh(p))\n"
    "  - z = flatten(s(unflatten(c(y), -1, (2, 8))), 2)\n"
    "  - y = g(y) + narrow(z, -1, 3, 8) * narrow(z, 2, 8, 8)\n"
    "  - z = attention(c(y), num_heads=4, num_kv_heads=2, is_causal=True, dropout_p=0.3)\n"
    "  - z = z + 0.2 * attention(c(z), num_heads=2, num_kv_heads=1, is_causal=True, window=3, "
    "softcap=2, alibi=4)\n"
    "  - q = rope(z, head_dim=4, rotary_dim=2, scaling='linear', factor=2, theta=100)\n"
    "  - k = rope(k(z), head_dim=4, interleaved=True, scaling='yarn', factor=4, "
    "original_context=8)\n"
    "  - y = attention(q, k, v(z * z), padding_mask(x, 5), num_heads=2, num_kv_heads=1, "
    "scale=0.7)\n"
    "  - z = rope(z, head_dim=4, scaling='longrope', factor=2, original_context=4, "
    "short_factor=[1, 2], long_factor=[1.5, 3], attention_factor=0.9)\n"
    "  - y = r(y + z) + gelu(y) + 0.3 * y * gelu(z, approximate='tanh')\n"
    "  - output = dropout(h(s(p + y) + y), 0.2)\n"
    "loss: cross_entropy(output, target, reduction='sum')\n";

/* What the test freezes, or ties: then the padding has the gradient of the head's row. */
enum { TIED = 4 };
static const char *const partly[] = {"", "freeze: [e.*]\n", "freeze: [k.*, v.weight, l.*]\n",
                                     "freeze: [h.weight, s.*, c.bias]\n",
                                     "tie: {h.weight: e.weight}\n"};

LOOP_TEST(gradients_of_all_ops_are_slopes, 0, 2 * COUNT_OF(partly))
{
    int which = _i % COUNT_OF(partly);
    struct model *model = NULL;
    struct graph *graph = NULL;
    char *text = mem_printf("%s%s", everything, partly[which]);
    assert_okay(model_parse(text, strlen(text), "net.yaml", &model));
    free(text);
    struct graph_options options = {.batch_size = 2,
                                    .time = TINY_CONTEXT - 2,
                                    .train = true,
                                    .dropout = true,
                                    .documents = _i >= (int)COUNT_OF(partly)};
    assert_okay(graph_build(model, &options, &graph));
    struct machine machine = machine_new(graph);
    for (int i = 0; i < model->parameter_count; i++)
        if (model->parameters[i].tied_to < 0) check_parameter(&machine, i, &smooth_sum);
    int padded = machine_value_of(graph, VALUE_PARAMETER_GRADIENT, 0);
    for (int i = 0; i < 8 && padded >= 0; i++) {
        float gradient = ((float *)machine.memory[padded])[3 * 8 + i];
        ck_assert_msg((gradient == 0) == (which != TIED), "padding has the gradient %g",
                      (double)gradient);
    }
    machine_deinit(&machine);
    graph_free(graph);
    model_free(model);
}

/* A batch whose last pair fills it up, with hard negatives or without. */
static const char pairs[] =
    "name: N\nargs: {count: 2}\ninput: tokens\ntexts: count\nvocabulary: 13\ncontext: 9\n"
    "modules: {e: 'Embedding(13, 8)', l: 'Linear(8, 6)', n: 'LayerNorm(6)'}\n"
    "forward:\n"
    "  - y = n(tanh(l(e(x))))\n"
    "  - output = mean(y, 1, padding_mask(x, 5)) + 0.3 * select(y, 1, 0)\n"
    "loss: multiple_negatives_ranking_loss(output, scale=3)\n";

LOOP_TEST(gradients_of_pairs_are_slopes, 2, 5)
{
    struct model *model = NULL;
    struct graph *graph = NULL;
    char count[2] = {(char)('0' + _i), 0};
    const struct model_argument argument = {"count", count};
    assert_okay(model_parse_with(pairs, strlen(pairs), "net.yaml", &argument, 1, &model));
    struct graph_options options = {.batch_size = 4, .time = TINY_CONTEXT - 2, .train = true};
    assert_okay(graph_build(model, &options, &graph));
    ck_assert_int_eq(graph->values[graph->input].type.dims[0], 4 * _i);
    ck_assert_int_eq(graph_samples(graph), 4);
    struct machine machine = machine_new(graph);
    int32_t *targets = machine.memory[graph->target];
    for (int i = 0; i < 4; i++) targets[i] = i < 3 ? 0 : -1;
    ck_assert(run(&machine) > 0);
    for (int i = 0; i < model->parameter_count; i++) check_parameter(&machine, i, &smooth);
    double loss = run(&machine);
    int32_t *tokens = machine.memory[graph->input];
    int row = 3 * _i * (TINY_CONTEXT - 2); /* what fills up the batch has no part in it */
    for (int i = row; i < row + 3; i++) tokens[i] = 7;
    ck_assert(run(&machine) == loss);
    tokens[0] = tokens[0] == 1 ? 2 : 1;
    ck_assert(run(&machine) != loss);
    machine_deinit(&machine);
    graph_free(graph);
    model_free(model);
}

/* A batch of pictures and texts, whose last sample fills it up; one tower may be frozen. */
static const char towers[] =
    "name: N\ninput: {image: [2, 3, 3], text: tokens}\nvocabulary: 13\ncontext: 5\n"
    "modules: {scale: Parameter(1), image: 'Linear(18, 6)', text: 'Embedding(13, 8)', "
    "l: 'Linear(8, 6)'}\n"
    "forward:\n"
    "  - a = tanh(image(flatten(image, 1)))\n"
    "  - b = l(mean(text(text), 1, padding_mask(text, 5)))\n"
    "  - output = a / unsqueeze(sqrt(sum(a * a, 1)), 1)\n"
    "  - b = b / unsqueeze(sqrt(sum(b * b, 1)), 1)\n"
    "loss: clip_loss(output, b, 3 * exp(scale))\n";
static const struct {
    const char *text;
    int directions; /* in which a tower has gradients, if the other has none */
    bool lost;      /* the tower of images makes NaN of what fills up the batch */
} frozen_towers[] = {{"", 2, false},
                     {"freeze: [image.*]\n", 2, true}, /* its features are scaled */
                     {"freeze: [image.*, scale]\n", 1, true},
                     {"freeze: [text.*, l.*, scale]\n", 1, false}};

static int ops_of(const struct graph *graph, enum op_kind kind)
{
    int count = 0;
    for (int o = 0; o < graph->op_count; o++) count += graph->ops[o].kind == kind;
    return count;
}

LOOP_TEST(gradients_of_towers_are_slopes, 0, COUNT_OF(frozen_towers))
{
    enum { SAMPLES = 4, PIXELS = 18, TIME = 5, ROW = PIXELS + TIME };
    struct model *model = NULL;
    struct graph *graph = NULL;
    char *text = mem_printf("%s%s", towers, frozen_towers[_i].text);
    assert_okay(model_parse(text, strlen(text), "net.yaml", &model));
    free(text);
    struct graph_options options = {.batch_size = SAMPLES, .train = true};
    assert_okay(graph_build(model, &options, &graph));
    int directions = frozen_towers[_i].directions;
    ck_assert_int_eq(ops_of(graph, OP_CONTRASTIVE_LOSS_BACKWARD), directions);
    ck_assert_int_eq(ops_of(graph, OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS), directions);
    struct machine machine = machine_new(graph);
    float *rows = machine.memory[graph->input];
    int32_t *targets = machine.memory[graph->target];
    for (int i = 0; i < SAMPLES; i++) {
        targets[i] = i < SAMPLES - 1 ? 0 : -1;
        for (int t = 0; t < TIME; t++)
            rows[i * ROW + PIXELS + t] = (float)tiny_token((uint64_t)(i * TIME + t));
    }
    float *last = rows + (SAMPLES - 1) * ROW; /* what fills up the batch has no part in it */
    if (frozen_towers[_i].lost) last[0] = NAN;
    ck_assert(run(&machine) > 0);
    for (int i = 0; i < model->parameter_count; i++) check_parameter(&machine, i, &smooth);
    double loss = run(&machine);
    last[0] += 1;
    last[PIXELS] = last[PIXELS] == 1 ? 2 : 1;
    ck_assert(run(&machine) == loss);
    rows[PIXELS] = rows[PIXELS] == 1 ? 2 : 1;
    double other = run(&machine);
    ck_assert(other != loss);
    rows[0] += 1;
    ck_assert(run(&machine) != other);
    machine_deinit(&machine);
    graph_free(graph);
    model_free(model);
}

/* Pairs, of which the last does not count: through adapters alone, and the model without them. */
LOOP_TEST(gradients_of_preferences_are_slopes, 0, 6)
{
    struct model *model = tiny_model(_i % 2 == 0 ? TINY_GPT2 : TINY_LLAMA);
    static const char *const linear[] = {"all-linear"};
    const struct model_lora lora = {.rank = 2, .alpha = 3, .targets = {linear, 1}};
    const struct model_preference preference = {.loss = (enum op_preference)(_i / 2),
                                                .beta = 0.4,
                                                .label_smoothing = _i / 2 == 0 ? 0.1 : 0};
    assert_okay(model_adapt(model, &lora));
    assert_okay(model_prefer(model, &preference));
    random_state = 22;
    struct graph *graph = NULL;
    struct graph_options options = {.batch_size = 3, .time = TINY_CONTEXT - 2, .train = true};
    assert_okay(graph_build(model, &options, &graph));
    ck_assert_int_eq(graph->values[graph->input].type.dims[0], 6);
    ck_assert_int_eq(graph_samples(graph), 3);
    struct machine machine = machine_new(graph);
    int32_t *targets = machine.memory[graph->target];
    for (int i = 5 * (TINY_CONTEXT - 2); i < 6 * (TINY_CONTEXT - 2); i++) targets[i] = -1;
    for (int i = 0; i < model->parameter_count; i++)
        if (model->parameters[i].tied_to < 0) check_parameter(&machine, i, &smooth);
    double loss = run(&machine);
    int32_t *tokens = machine.memory[graph->input];
    tokens[4 * (TINY_CONTEXT - 2)] = 7; /* of the pair that does not count */
    ck_assert(run(&machine) == loss);
    tokens[0] = tokens[0] == 1 ? 2 : 1;
    ck_assert(run(&machine) != loss);
    machine_deinit(&machine);
    graph_free(graph);
    model_free(model);
}

/* A model learns from its targets, and from what another family makes of the tokens. */
TEST(gradients_of_distillation_are_slopes)
{
    struct model *model = tiny_model(TINY_LLAMA), *teacher = tiny_model(TINY_GPT2);
    const struct model_teaching teaching = {.temperature = 3, .share = 0.4};
    int first = 0, parameters = model->parameter_count;
    assert_okay(model_teach(model, teacher, &teaching, &first));
    ck_assert_int_eq(first, parameters);
    random_state = 22;
    struct graph *graph = NULL;
    struct graph_options options = {.batch_size = 3,
                                    .time = TINY_CONTEXT - 2,
                                    .train = true,
                                    .dropout = true};
    assert_okay(graph_build(model, &options, &graph));
    for (int i = 0; i < graph->op_count; i++) {
        bool of_teacher = strstr(graph->ops[i].name, "teacher") != NULL;
        ck_assert_msg(!of_teacher || !graph->ops[i].backward, "%s", graph->ops[i].name);
        ck_assert_msg(!of_teacher || graph->ops[i].kind != OP_DROPOUT, "%s", graph->ops[i].name);
    }
    struct machine machine = machine_new(graph);
    int32_t *targets = machine.memory[graph->target], *tokens = machine.memory[graph->input];
    int row = 2 * (TINY_CONTEXT - 2);
    for (int i = row; i < row + TINY_CONTEXT - 2; i++) targets[i] = -1;
    for (int i = 0; i < parameters; i++)
        if (model->parameters[i].tied_to < 0) check_parameter(&machine, i, &smooth);
    double loss = run(&machine);
    tokens[row] = tokens[row] == 1 ? 2 : 1; /* of the window that does not count */
    ck_assert(run(&machine) == loss);
    for (int v = 0; v < graph->value_count; v++) /* the teacher has its part in the loss */
        if (graph->values[v].parameter == first && graph->values[v].kind == VALUE_PARAMETER)
            ((float *)machine.memory[v])[0] += 1;
    ck_assert(run(&machine) != loss);
    for (int v = 0; v < graph->value_count; v++) /* also where it is no number */
        if (graph->values[v].parameter == first && graph->values[v].kind == VALUE_PARAMETER)
            for (int64_t i = 0; i < tensor_element_count(&graph->values[v].type); i++)
                ((float *)machine.memory[v])[i] = NAN;
    ck_assert(isnan(run(&machine)));
    machine_deinit(&machine);
    graph_free(graph);
    model_free(model);
    model_free(teacher);
}

/* Through whole transformers, with dropout and without, and with several documents per window. */
LOOP_TEST(gradients_of_transformers_are_slopes, 0, 4 * TINY_COUNT)
{
    struct model *model = tiny_model(_i % TINY_COUNT);
    random_state = 22; /* keeps attention unsaturated */
    struct graph *graph = NULL;
    struct graph_options options = {.batch_size = 2,
                                    .time = TINY_CONTEXT - 2,
                                    .train = true,
                                    .dropout = _i / TINY_COUNT % 2 == 1,
                                    .documents = _i / TINY_COUNT == 3,
                                    .keep_logits = _i / TINY_COUNT == 2};
    assert_okay(graph_build(model, &options, &graph));
    struct machine machine = machine_new(graph);
    for (int i = 0; i < model->parameter_count; i++)
        if (model->parameters[i].tied_to < 0) check_parameter(&machine, i, &smooth);
    machine_deinit(&machine);
    graph_free(graph);
    model_free(model);
}

/* The summed loss of tokens `first` to `first` + `time` - 1, with the same parameters every time;
 * `starts` may be NULL. */
static double loss_of_tokens(const struct model *model, int first, int time, const int32_t *starts)
{
    struct graph *graph = NULL;
    struct graph_options options = {.batch_size = 1, .time = time, .documents = starts != NULL};
    assert_okay(graph_build(model, &options, &graph));
    random_state = 22;
    struct machine machine = machine_new(graph);
    for (int i = 0; i < time; i++) {
        ((int32_t *)machine.memory[graph->input])[i] = tiny_token((uint64_t)(first + i));
        ((int32_t *)machine.memory[graph->target])[i] = tiny_token((uint64_t)(first + i) * 3 + 1);
        if (starts != NULL) ((int32_t *)machine.memory[graph->starts])[i] = starts[i];
    }
    double loss = run(&machine) * time;
    machine_deinit(&machine);
    graph_free(graph);
    return loss;
}

/* A document has the loss that it has in a window of its own. */
LOOP_TEST(documents_do_not_see_each_other, 0, TINY_COUNT)
{
    static const int32_t starts[] = {0, 0, 0, 3, 4, 4, 4, 4};
    struct model *model = tiny_model(_i);
    double together = loss_of_tokens(model, 0, 8, starts),
           mixed = loss_of_tokens(model, 0, 8, NULL);
    double apart = loss_of_tokens(model, 0, 3, NULL) + loss_of_tokens(model, 3, 1, NULL) +
                   loss_of_tokens(model, 4, 4, NULL);
    ck_assert_double_eq_tol(together, apart, 1e-5);
    ck_assert_double_gt(fabs(mixed - apart), 1e-3);
    model_free(model);
}

/* Which modules of each model to checkpoint. */
static const char *const checkpoints[][2] = {
    {"*", NULL},
    {"[cd]", "f"},
    {"s*", "t.?"},
    {"t", NULL},
};

static int find_op(const struct graph *graph, const char *name)
{
    for (int i = 0; i < graph->op_count; i++)
        if (strcmp(graph->ops[i].name, name) == 0) return i;
    return -1;
}

/* Gradients with and without checkpointing have the same bits, and no backward op of a checkpointed
 * module reads a value that forward made inside it and no other op needs. */
LOOP_TEST(checkpointed_gradients_are_the_same, 0,
          2 * (COUNT_OF(models) + 1) * COUNT_OF(checkpoints))
{
    enum { MODELS = COUNT_OF(models) + 1, PATTERNS = COUNT_OF(checkpoints) };
    struct model *model = NULL;
    const char *text = _i % MODELS < MODELS - 1 ? models[_i % MODELS] : everything;
    assert_okay(model_parse(text, strlen(text), "net.yaml", &model));
    struct graph_options options = {.batch_size = BATCH, .train = true, .dropout = true};
    struct graph *plain = NULL, *checkpointed = NULL;
    assert_okay(graph_build(model, &options, &plain));
    options.checkpoint = checkpoints[_i / MODELS % PATTERNS];
    options.recompute = _i / MODELS < PATTERNS ? RECOMPUTE_ALL : RECOMPUTE_CHEAP;
    options.checkpoint_count = options.checkpoint[1] != NULL ? 2 : 1;
    status_t status = graph_build(model, &options, &checkpointed);
    if (status != NULL) { /* this model has no such modules */
        ck_assert_ptr_nonnull(strstr(status_message(status), "no module matches"));
        status_free(status);
        graph_free(plain);
        model_free(model);
        return;
    }
    ck_assert_int_eq(plain->forward_op_count, checkpointed->forward_op_count);
    random_state = 7;
    struct machine first = machine_new(plain);
    random_state = 7;
    struct machine second = machine_new(checkpointed);
    double loss = run(&first);
    ck_assert_double_eq(loss, run(&second));
    for (int p = 0; p < model->parameter_count; p++) {
        int a = machine_value_of(plain, VALUE_PARAMETER_GRADIENT, p);
        int b = machine_value_of(checkpointed, VALUE_PARAMETER_GRADIENT, p);
        ck_assert_int_eq(a < 0, b < 0);
        if (a < 0) continue;
        ck_assert_mem_eq(first.memory[a], second.memory[b], tensor_bytes(&plain->values[a].type));
    }
    machine_deinit(&first);
    machine_deinit(&second);
    graph_free(plain);
    graph_free(checkpointed);
    model_free(model);
}

/* The recomputed ops, by name, in a block of two layers with dropout and a pool. */
TEST(checkpointing_repeats_what_is_needed)
{
    static const char text[] =
        HEAD "blocks:\n"
             "  B():\n"
             "    modules: {c: 'Conv2d(2, 2, 3, padding=1)', d: 'Conv2d(2, 2, 3, padding=1)', "
             "p: Dropout(0.5), m: MaxPool2d(1)}\n"
             "    forward: ['x = p(relu(c(x)))', 'x = m(x)', 'output = relu(d(x))']\n"
             "modules: {a: B(), b: B(), f: 'Linear(72, 5)'}\n"
             "forward: ['output = f(flatten(b(a(x)), 1))']\n" LOSS;
    struct model *model = NULL;
    assert_okay(model_parse(text, strlen(text), "net.yaml", &model));
    struct graph_options options = {.batch_size = BATCH,
                                    .train = true,
                                    .dropout = true,
                                    .checkpoint = (const char *const[]){"?"},
                                    .checkpoint_count = 1};
    struct graph *graph = NULL;
    assert_okay(graph_build(model, &options, &graph));
    static const char *const repeated[] = {"b.c.again", "b.p.again", "b.m.again",
                                           "a.c.again", "a.p.again", "a.m.again"};
    for (size_t i = 0; i < COUNT_OF(repeated); i++) {
        int op = find_op(graph, repeated[i]);
        ck_assert_msg(op >= graph->forward_op_count, "%s", repeated[i]);
        ck_assert_int_eq(graph->ops[op].kind, graph->ops[graph->ops[op].forward].kind);
    }
    /* a block's output is the next one's input, so it remains anyway */
    ck_assert_int_eq(find_op(graph, "a.d.again"), -1);
    ck_assert_int_eq(find_op(graph, "b.d.again"), -1);
    ck_assert_int_eq(find_op(graph, "f.again"), -1);
    /* a recomputed op precedes its block's backward ops directly, after the later block's */
    ck_assert_int_lt(find_op(graph, "b.c.backward_weights"), find_op(graph, "a.c.again"));
    ck_assert_int_lt(find_op(graph, "a.c.again"), find_op(graph, "a.d.backward_relu"));
    /* only the second run records where the maxima were */
    ck_assert_int_eq(graph->ops[find_op(graph, "a.m")].outputs[1], -1);
    ck_assert_int_ge(graph->ops[find_op(graph, "a.m.again")].outputs[1], 0);
    graph_free(graph);

    options.recompute = RECOMPUTE_CHEAP;
    assert_okay(graph_build(model, &options, &graph));
    for (size_t i = 0; i < COUNT_OF(repeated); i++) {
        bool convolution = strstr(repeated[i], ".c.") != NULL;
        ck_assert_msg((find_op(graph, repeated[i]) < 0) == convolution, "%s", repeated[i]);
    }
    int dropout = graph->ops[find_op(graph, "b.p.again")].inputs[0];
    ck_assert_int_eq(graph->values[dropout].producer, find_op(graph, "b.c"));
    graph_free(graph);

    options.checkpoint = (const char *const[]){"ac"};
    status_t status = graph_build(model, &options, &graph);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_str_eq(status_message(status), "activation checkpointing: no module matches 'ac'; "
                                             "did you mean 'a'?");
    status_free(status);
    model_free(model);
}
