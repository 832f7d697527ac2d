/* Models and graphs for the tests of units and plans; see fsdp_fixture.h. */
#include "fsdp_fixture.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- Models ---- */

struct model *fixture_model_new(const char *type)
{
    struct model *model = mem_alloc(sizeof *model);
    fixture_module(model, -1, "", type, "");
    return model;
}

int fixture_module(struct model *model, int parent, const char *name, const char *type,
                   const char *print)
{
    int m = model->module_count++;
    model->modules = mem_resize_array(model->modules, model->module_count, sizeof *model->modules);
    model->modules[m] = (struct module){.name = mem_strdup(name),
                                        .type = mem_strdup(type),
                                        .print = mem_strdup(print),
                                        .parent = parent};
    if (parent < 0) {
        model->modules[m].path = mem_strdup("");
        return m;
    }
    struct module *above = &model->modules[parent];
    model->modules[m].path =
        above->path[0] != '\0' ? mem_printf("%s.%s", above->path, name) : mem_strdup(name);
    above->children =
        mem_resize_array(above->children, above->child_count + 1, sizeof *above->children);
    above->children[above->child_count++] = m;
    return m;
}

int fixture_parameter(struct model *model, int module, const char *name, const int64_t *dims)
{
    int p = model->parameter_count++;
    model->parameters =
        mem_resize_array(model->parameters, model->parameter_count, sizeof *model->parameters);
    struct module *owner = &model->modules[module];
    int count = 0;
    while (dims[count] != 0) count++;
    model->parameters[p] =
        (struct parameter){.name = owner->path[0] != '\0' ? mem_printf("%s.%s", owner->path, name)
                                                          : mem_strdup(name),
                           .module = module,
                           .type = tensor_type_make(DTYPE_F32, count, dims),
                           .trainable = true,
                           .tied_to = -1};
    owner->parameters =
        mem_resize_array(owner->parameters, owner->parameter_count + 1, sizeof *owner->parameters);
    owner->parameters[owner->parameter_count++] = p;
    return p;
}

int fixture_linear(struct model *model, int parent, const char *name, int64_t in, int64_t out)
{
    char *print =
        mem_printf("in_features=%lld, out_features=%lld, bias=True", (long long)in, (long long)out);
    int m = fixture_module(model, parent, name, "Linear", print);
    free(print);
    fixture_parameter(model, m, "weight", (int64_t[]){out, in, 0});
    fixture_parameter(model, m, "bias", (int64_t[]){out, 0});
    return m;
}

int fixture_conv(struct model *model, int parent, const char *name, int64_t in, int64_t out,
                 int64_t kernel)
{
    char *print = mem_printf("%lld, %lld, kernel_size=(%lld, %lld), stride=(1, 1)", (long long)in,
                             (long long)out, (long long)kernel, (long long)kernel);
    int m = fixture_module(model, parent, name, "Conv2d", print);
    free(print);
    fixture_parameter(model, m, "weight", (int64_t[]){out, in, kernel, kernel, 0});
    fixture_parameter(model, m, "bias", (int64_t[]){out, 0});
    return m;
}

struct model *fixture_mnist(void)
{
    struct model *model = fixture_model_new("Net");
    fixture_conv(model, 0, "conv1", 1, 32, 3);
    fixture_conv(model, 0, "conv2", 32, 64, 3);
    fixture_module(model, 0, "dropout1", "Dropout", "p=0.25, inplace=False");
    fixture_module(model, 0, "dropout2", "Dropout", "p=0.5, inplace=False");
    fixture_linear(model, 0, "fc1", 9216, 128);
    fixture_linear(model, 0, "fc2", 128, 10);
    return model;
}

static void layer_norm(struct model *model, int parent, const char *name)
{
    int m = fixture_module(model, parent, name, "LayerNorm", "(768,), eps=1e-05");
    fixture_parameter(model, m, "weight", (int64_t[]){768, 0});
    fixture_parameter(model, m, "bias", (int64_t[]){768, 0});
}

struct model *fixture_gpt2(void)
{
    struct model *model = fixture_model_new("GPT");
    int transformer = fixture_module(model, 0, "transformer", "ModuleDict", "");
    int wte = fixture_module(model, transformer, "wte", "Embedding", "50257, 768");
    int tied = fixture_parameter(model, wte, "weight", (int64_t[]){50257, 768, 0});
    int wpe = fixture_module(model, transformer, "wpe", "Embedding", "1024, 768");
    fixture_parameter(model, wpe, "weight", (int64_t[]){1024, 768, 0});
    int h = fixture_module(model, transformer, "h", "ModuleList", "");
    for (int i = 0; i < 12; i++) {
        char name[8] = {(char)('0' + i / 10), (char)('0' + i % 10), '\0'};
        int block = fixture_module(model, h, i < 10 ? name + 1 : name, "Block", "");
        layer_norm(model, block, "ln_1");
        int attn = fixture_module(model, block, "attn", "CausalSelfAttention", "");
        fixture_linear(model, attn, "c_attn", 768, 2304);
        fixture_linear(model, attn, "c_proj", 768, 768);
        layer_norm(model, block, "ln_2");
        int mlp = fixture_module(model, block, "mlp", "MLP", "");
        fixture_linear(model, mlp, "c_fc", 768, 3072);
        fixture_linear(model, mlp, "c_proj", 3072, 768);
    }
    layer_norm(model, transformer, "ln_f");
    int head = fixture_module(model, 0, "lm_head", "Linear",
                              "in_features=768, out_features=50257, bias=False");
    int weight = fixture_parameter(model, head, "weight", (int64_t[]){50257, 768, 0});
    model->parameters[weight].tied_to = tied;
    return model;
}

uint64_t fixture_draw(struct fixture_random *random, uint64_t below)
{
    random->state ^= random->state << 13;
    random->state ^= random->state >> 7;
    random->state ^= random->state << 17;
    return below == 0 ? 0 : (random->state >> 11) % below;
}

static void random_children(struct fixture_random *random, struct model *model, int parent,
                            int depth)
{
    static const char *const types[] = {"Block", "ModuleList", "ModuleDict", "Sequential",
                                        "MultiheadAttention"};
    int count = 1 + (int)fixture_draw(random, 4);
    for (int i = 0; i < count; i++) {
        char name[2] = {(char)('a' + i), '\0'};
        if (depth < 3 && fixture_draw(random, 3) == 0) {
            int m = fixture_module(model, parent, name, types[fixture_draw(random, 5)], "");
            random_children(random, model, m, depth + 1);
            continue;
        }
        int m = fixture_linear(model, parent, name, 1 + (int64_t)fixture_draw(random, 9),
                               1 + (int64_t)fixture_draw(random, 9));
        const struct module *module = &model->modules[m];
        if (fixture_draw(random, 6) == 0)
            for (int k = 0; k < 2; k++) model->parameters[module->parameters[k]].trainable = false;
        int earlier = (int)fixture_draw(random, (uint64_t)model->parameter_count);
        int weight = module->parameters[0];
        if (fixture_draw(random, 5) != 0 || earlier >= weight) continue;
        model->parameters[weight].tied_to = earlier;
        model->parameters[weight].type = model->parameters[earlier].type;
        model->parameters[weight].trainable = model->parameters[earlier].trainable;
    }
}

struct model *fixture_random_model(struct fixture_random *random)
{
    struct model *model = fixture_model_new("Random");
    if (fixture_draw(random, 3) == 0)
        fixture_parameter(model, 0, "scale", (int64_t[]){1 + (int64_t)fixture_draw(random, 5), 0});
    random_children(random, model, 0, 0);
    return model;
}

/* ---- Graphs ---- */

struct growing {
    struct graph *graph;
    int *gradient; /* by value: its gradient so far, -1 */
    bool *written; /* by parameter: its gradient was written */
    int *value_of_parameter, *gradient_of_parameter;
    int value_capacity, op_capacity;
};

static int new_value(struct growing *g, enum value_kind kind, enum dtype dtype, int count,
                     const int64_t *dims, int parameter, const char *name)
{
    struct graph *graph = g->graph;
    MEM_GROW(graph->values, graph->value_count, g->value_capacity);
    int v = graph->value_count++;
    graph->values[v] = (struct graph_value){.kind = kind,
                                            .type = tensor_type_make(dtype, count, dims),
                                            .parameter = parameter,
                                            .producer = -1,
                                            .name = mem_strdup(name)};
    g->gradient = mem_resize_array(g->gradient, graph->value_count, sizeof(int));
    g->gradient[v] = -1;
    return v;
}

static int new_op(struct growing *g, enum op_kind kind, const char *name, int in0, int in1, int in2,
                  int out0, int out1, bool backward)
{
    struct graph *graph = g->graph;
    MEM_GROW(graph->ops, graph->op_count, g->op_capacity);
    int o = graph->op_count++;
    struct graph_op *op = &graph->ops[o];
    const int inputs[] = {in0, in1, in2}, outputs[] = {out0, out1};
    *op = (struct graph_op){.kind = kind, .backward = backward, .name = mem_strdup(name)};
    for (int k = 0; k < OP_MAX_INPUTS; k++) op->inputs[k] = k < 3 ? inputs[k] : -1;
    for (int k = 0; k < OP_MAX_OUTPUTS; k++) {
        int v = op->outputs[k] = k < 2 ? outputs[k] : -1;
        if (v >= 0 && graph->values[v].producer < 0) graph->values[v].producer = o;
    }
    if (!backward) graph->forward_op_count = graph->op_count;
    return o;
}

static int owner_of(const struct model *model, int p)
{
    while (model->parameters[p].tied_to >= 0) p = model->parameters[p].tied_to;
    return p;
}

static int parameter_value(struct growing *g, int p)
{
    p = owner_of(g->graph->model, p);
    if (g->value_of_parameter[p] < 0) {
        const struct parameter *it = &g->graph->model->parameters[p];
        int v = new_value(g, VALUE_PARAMETER, DTYPE_F32, it->type.dim_count, it->type.dims, p,
                          it->name);
        g->value_of_parameter[p] = v;
    }
    return g->value_of_parameter[p];
}

/* The gradient's value, -1 for a frozen parameter. */
static int parameter_gradient(struct growing *g, int p)
{
    p = owner_of(g->graph->model, p);
    const struct parameter *it = &g->graph->model->parameters[p];
    if (!it->trainable) return -1;
    if (g->gradient_of_parameter[p] < 0) {
        char *name = mem_printf("d(%s)", it->name);
        int v = new_value(g, VALUE_PARAMETER_GRADIENT, DTYPE_F32, it->type.dim_count, it->type.dims,
                          p, name);
        free(name);
        g->gradient_of_parameter[p] = v;
    }
    return g->gradient_of_parameter[p];
}

static void growing_init(struct growing *g, const struct model *model, int64_t batch,
                         const int64_t *sample, int sample_dims)
{
    *g = (struct growing){.graph = mem_alloc(sizeof *g->graph)};
    g->graph->model = model;
    g->graph->correct = g->graph->tally = g->graph->starts = g->graph->reference =
        g->graph->logits = -1;
    g->written = mem_alloc_array(model->parameter_count, sizeof(bool));
    g->value_of_parameter = mem_alloc_array(model->parameter_count, sizeof(int));
    g->gradient_of_parameter = mem_alloc_array(model->parameter_count, sizeof(int));
    for (int p = 0; p < model->parameter_count; p++)
        g->value_of_parameter[p] = g->gradient_of_parameter[p] = -1;
    int64_t dims[TENSOR_MAX_DIMS] = {batch};
    memcpy(dims + 1, sample, sample_dims * sizeof *sample);
    g->graph->input = new_value(g, VALUE_INPUT, DTYPE_F32, sample_dims + 1, dims, -1, "input");
    g->graph->target = new_value(g, VALUE_TARGET, DTYPE_I32, 1, dims, -1, "target");
}

static struct graph *growing_end(struct growing *g)
{
    free(g->gradient);
    free(g->written);
    free(g->value_of_parameter);
    free(g->gradient_of_parameter);
    return g->graph;
}

static int activation(struct growing *g, int64_t batch, int64_t width, const char *name)
{
    return new_value(g, VALUE_ACTIVATION, DTYPE_F32, 2, (int64_t[]){batch, width}, -1, name);
}

static int gradient_like(struct growing *g, int value)
{
    const struct tensor_type type = g->graph->values[value].type;
    char *name = mem_printf("d(%s)", g->graph->values[value].name);
    int v = new_value(g, VALUE_GRADIENT, type.dtype, type.dim_count, type.dims, -1, name);
    free(name);
    return v;
}

/* Adds `from` to the gradient of `value`. */
static void give_gradient(struct growing *g, int value, int from)
{
    if (g->gradient[value] < 0) {
        g->gradient[value] = from;
        return;
    }
    int sum = gradient_like(g, value);
    new_op(g, OP_ADD, "add_gradients", g->gradient[value], from, -1, sum, -1, true);
    g->gradient[value] = sum;
}

static void mark_written(struct growing *g, int op)
{
    for (int k = 0; k < OP_MAX_OUTPUTS; k++) {
        int v = g->graph->ops[op].outputs[k];
        if (v < 0) continue;
        int p = g->graph->values[v].parameter;
        g->graph->ops[op].accumulate[k] = g->written[p];
        g->written[p] = true;
    }
}

static void differentiate(struct growing *g, struct fixture_random *random)
{
    struct graph *graph = g->graph;
    for (int o = graph->forward_op_count - 1; o >= 0; o--) {
        const struct graph_op op = graph->ops[o];
        int x = op.inputs[0], y = op.outputs[0];
        int dy = op.kind == OP_CROSS_ENTROPY ? -1 : g->gradient[y], dx;
        switch (op.kind) {
        case OP_CROSS_ENTROPY:
            dx = gradient_like(g, x);
            new_op(g, OP_CROSS_ENTROPY_BACKWARD, "cross_entropy.backward", op.outputs[1],
                   op.inputs[1], -1, dx, -1, true);
            give_gradient(g, x, dx);
            break;
        case OP_RELU:
        case OP_DROPOUT:
        case OP_RESHAPE:
        case OP_MAX_POOL2D:
            dx = gradient_like(g, x);
            if (op.kind == OP_RELU)
                new_op(g, OP_RELU_BACKWARD, "relu.backward", dy, y, -1, dx, -1, true);
            else if (op.kind == OP_DROPOUT)
                new_op(g, OP_DROPOUT_BACKWARD, "dropout.backward", dy, -1, -1, dx, -1, true);
            else if (op.kind == OP_RESHAPE)
                new_op(g, OP_RESHAPE, "reshape.backward", dy, -1, -1, dx, -1, true);
            else
                new_op(g, OP_MAX_POOL2D_BACKWARD, "max_pool2d.backward", dy, op.outputs[1], -1, dx,
                       -1, true);
            give_gradient(g, x, dx);
            break;
        case OP_ADD:
            give_gradient(g, op.inputs[0], dy);
            give_gradient(g, op.inputs[1], dy);
            break;
        case OP_CONV2D:
        case OP_LINEAR: {
            bool conv = op.kind == OP_CONV2D;
            const struct graph_value *values = graph->values;
            int dw = parameter_gradient(g, values[op.inputs[1]].parameter);
            int db = op.inputs[2] < 0
                         ? -1
                         : parameter_gradient(g, graph->values[op.inputs[2]].parameter);
            bool data_first = random != NULL && fixture_draw(random, 2) == 0;
            for (int step = 0; step < 2; step++) {
                if ((step == 0) == data_first) {
                    if (x == graph->input) continue;
                    char *name = mem_printf("%s.backward_data", op.name);
                    dx = gradient_like(g, x);
                    new_op(g, conv ? OP_CONV2D_BACKWARD_DATA : OP_LINEAR_BACKWARD_DATA, name, dy,
                           op.inputs[1], -1, dx, -1, true);
                    give_gradient(g, x, dx);
                    free(name);
                } else if (dw >= 0 || db >= 0) {
                    char *name = mem_printf("%s.backward_weights", op.name);
                    mark_written(g, new_op(g,
                                           conv ? OP_CONV2D_BACKWARD_WEIGHTS
                                                : OP_LINEAR_BACKWARD_WEIGHTS,
                                           name, x, dy, -1, dw, db, true));
                    free(name);
                }
            }
            break;
        }
        default: abort();
        }
    }
}

static void finish(struct growing *g, int x, int64_t batch, int64_t classes, bool train)
{
    struct graph *graph = g->graph;
    int y = activation(g, batch, classes, "log_probabilities");
    graph->loss = new_value(g, VALUE_LOSS, DTYPE_F32, 1, (int64_t[]){1}, -1, "loss");
    new_op(g, OP_CROSS_ENTROPY, "cross_entropy", x, graph->target, -1, graph->loss, y, false);
    if (train) return;
    graph->correct = new_value(g, VALUE_CORRECT, DTYPE_F32, 1, (int64_t[]){1}, -1, "correct");
    new_op(g, OP_COUNT_CORRECT, "count_correct", y, graph->target, -1, graph->correct, -1, false);
}

/* Widths are wrong for a matrix product; planning ignores them. */
struct graph *fixture_random_graph(struct fixture_random *random, const struct model *model,
                                   int64_t batch, bool train)
{
    struct growing g;
    growing_init(&g, model, batch, (int64_t[]){4}, 1);
    int x = g.graph->input, kept = -1;
    int *order = mem_alloc_array(2 * model->module_count, sizeof *order), count = 0;
    for (int m = 0; m < model->module_count; m++)
        if (model->modules[m].parameter_count > 0) order[count++] = m;
    int extra = (int)fixture_draw(random, (uint64_t)count + 1);
    for (int i = 0; i < extra; i++) order[count + i] = order[fixture_draw(random, (uint64_t)count)];
    count += extra;
    if (fixture_draw(random, 2) == 0)
        for (int i = count - 1; i > 0; i--) {
            int k = (int)fixture_draw(random, (uint64_t)i + 1), swap = order[i];
            order[i] = order[k];
            order[k] = swap;
        }
    for (int i = 0; i < count; i++) {
        const struct module *module = &model->modules[order[i]];
        int64_t width = 5 << fixture_draw(random, 3);
        int y = activation(&g, batch, width, "linear");
        int weight = parameter_value(&g, module->parameters[0]);
        int bias = module->parameter_count > 1 ? parameter_value(&g, module->parameters[1]) : -1;
        new_op(&g, OP_LINEAR, module->path[0] != '\0' ? module->path : "(model)", x, weight, bias,
               y, -1, false);
        x = y;
        static const enum op_kind kinds[] = {OP_RELU, OP_RESHAPE, OP_ADD, OP_DROPOUT};
        for (int more = (int)fixture_draw(random, 3); more > 0; more--) {
            enum op_kind kind = kinds[fixture_draw(random, 4)];
            int64_t same = g.graph->values[x].type.dims[1];
            if (kind == OP_ADD &&
                (kept < 0 || kept == x || g.graph->values[kept].type.dims[1] != same))
                continue;
            y = activation(&g, batch, same, op_info_get(kind)->name);
            new_op(&g, kind, op_info_get(kind)->name, x, kind == OP_ADD ? kept : -1, -1, y, -1,
                   false);
            x = y;
        }
        if (fixture_draw(random, 3) == 0) kept = x;
    }
    free(order);
    finish(&g, x, batch, 4, train);
    if (train) differentiate(&g, random);
    return growing_end(&g);
}

struct graph *fixture_mnist_graph(const struct model *model, int64_t n, bool train)
{
    struct growing g;
    growing_init(&g, model, n, (int64_t[]){1, 28, 28}, 3);
    const int64_t shapes[][4] = {{n, 32, 26, 26}, {n, 64, 24, 24}, {n, 64, 12, 12}};
    int x = g.graph->input, y;
    for (int i = 0; i < 2; i++) {
        const char *const names[] = {"conv1", "conv2"};
        y = new_value(&g, VALUE_ACTIVATION, DTYPE_F32, 4, shapes[i], -1, names[i]);
        int weight = parameter_value(&g, 2 * i), bias = parameter_value(&g, 2 * i + 1);
        new_op(&g, OP_CONV2D, names[i], x, weight, bias, y, -1, false);
        x = y;
        y = new_value(&g, VALUE_ACTIVATION, DTYPE_F32, 4, shapes[i], -1, "relu");
        new_op(&g, OP_RELU, "relu", x, -1, -1, y, -1, false);
        x = y;
    }
    y = new_value(&g, VALUE_ACTIVATION, DTYPE_F32, 4, shapes[2], -1, "max_pool2d");
    int indices = new_value(&g, VALUE_ACTIVATION, DTYPE_U8, 4, shapes[2], -1, "indices");
    new_op(&g, OP_MAX_POOL2D, "max_pool2d", x, -1, -1, y, indices, false);
    x = y;
    if (train) {
        y = new_value(&g, VALUE_ACTIVATION, DTYPE_F32, 4, shapes[2], -1, "dropout1");
        new_op(&g, OP_DROPOUT, "dropout1", x, -1, -1, y, -1, false);
        x = y;
    }
    y = activation(&g, n, 9216, "flatten");
    new_op(&g, OP_RESHAPE, "flatten", x, -1, -1, y, -1, false);
    x = y;
    y = activation(&g, n, 128, "fc1");
    new_op(&g, OP_LINEAR, "fc1", x, parameter_value(&g, 4), parameter_value(&g, 5), y, -1, false);
    x = y;
    y = activation(&g, n, 128, "relu");
    new_op(&g, OP_RELU, "relu", x, -1, -1, y, -1, false);
    x = y;
    if (train) {
        y = activation(&g, n, 128, "dropout2");
        new_op(&g, OP_DROPOUT, "dropout2", x, -1, -1, y, -1, false);
        x = y;
    }
    y = activation(&g, n, 10, "fc2");
    new_op(&g, OP_LINEAR, "fc2", x, parameter_value(&g, 6), parameter_value(&g, 7), y, -1, false);
    finish(&g, y, n, 10, train);
    if (train) differentiate(&g, NULL);
    return growing_end(&g);
}

/* ---- Lowerings ---- */

void fixture_lower(struct fixture_lowering *lowered, const struct graph *graph,
                   struct fixture_random *random)
{
    lowered->workspace_bytes = mem_alloc_array(graph->op_count, sizeof(uint64_t));
    lowered->view = mem_alloc_array(graph->op_count, sizeof(bool));
    lowered->in_place = mem_alloc_array(graph->op_count, sizeof(bool));
    for (int o = 0; o < graph->op_count; o++) {
        bool use = random == NULL || fixture_draw(random, 3) > 0;
        lowered->view[o] = use && graph->ops[o].kind == OP_RESHAPE;
        lowered->in_place[o] = use && op_info_get(graph->ops[o].kind)->element_wise;
        if (random != NULL && fixture_draw(random, 3) == 0)
            lowered->workspace_bytes[o] = fixture_draw(random, 500);
    }
    lowered->lowering = (struct lowering){.workspace_bytes = lowered->workspace_bytes,
                                          .view = lowered->view,
                                          .in_place = lowered->in_place};
}

void fixture_lowering_deinit(struct fixture_lowering *lowered)
{
    free(lowered->workspace_bytes);
    free(lowered->view);
    free(lowered->in_place);
}
