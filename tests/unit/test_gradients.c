/*
 * Gradients as graphs compute them, against finite differences: whole training graphs run with the
 * reference kernels, and the slope of the loss along a random direction of all trainable parameters
 * is compared with that direction's product with the gradient. This checks the wiring of the
 * backward ops (sums, accumulation, order), beyond what each kernel's own test can.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/kernels.h"
#include "model/graph.h"

enum { BATCH = 3, CLASSES = 5 };

struct machine {
    struct graph *graph;
    struct kernel **kernels;
    void **memory; /* by value */
    void *workspace;
};

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

static struct machine machine_new(struct graph *graph)
{
    struct machine machine = {.graph = graph};
    machine.kernels = mem_alloc_array((size_t)graph->op_count, sizeof *machine.kernels);
    machine.memory = mem_alloc_array((size_t)graph->value_count, sizeof *machine.memory);
    uint64_t workspace = 64;
    for (int i = 0; i < graph->op_count; i++) {
        struct op_desc desc;
        graph_describe_op(graph, i, &desc);
        assert_okay(kernel_new(KERNELS_REFERENCE, &desc, &machine.kernels[i]));
        if (kernel_workspace_bytes(machine.kernels[i]) > workspace)
            workspace = kernel_workspace_bytes(machine.kernels[i]);
    }
    machine.workspace = aligned_alloc(64, (workspace + 63) / 64 * 64);
    for (int i = 0; i < graph->value_count; i++) {
        const struct graph_value *value = &graph->values[i];
        machine.memory[i] = mem_alloc(tensor_bytes(&value->type));
        int64_t count = tensor_element_count(&value->type);
        for (int64_t k = 0; k < count; k++) {
            if (value->kind == VALUE_TARGET) ((int32_t *)machine.memory[i])[k] = (int32_t)k + 1;
            else if (value->kind == VALUE_INPUT) ((float *)machine.memory[i])[k] = next_random();
            else if (value->kind == VALUE_PARAMETER)
                ((float *)machine.memory[i])[k] = 0.5f * next_random();
        }
    }
    return machine;
}

static void machine_deinit(struct machine *machine)
{
    for (int i = 0; i < machine->graph->op_count; i++) kernel_free(machine->kernels[i]);
    for (int i = 0; i < machine->graph->value_count; i++) free(machine->memory[i]);
    free(machine->kernels);
    free(machine->memory);
    free(machine->workspace);
}

static double run(struct machine *machine)
{
    const struct graph *graph = machine->graph;
    for (int i = 0; i < graph->op_count; i++) {
        const struct graph_op *op = &graph->ops[i];
        struct kernel_call call = {.workspace = machine->workspace, .seed = 3, .step = 1};
        for (int k = 0; k < OP_MAX_INPUTS; k++)
            if (op->inputs[k] >= 0) call.inputs[k] = machine->memory[op->inputs[k]];
        for (int k = 0; k < OP_MAX_OUTPUTS; k++)
            if (op->outputs[k] >= 0) call.outputs[k] = machine->memory[op->outputs[k]];
        assert_okay(kernel_run(machine->kernels[i], &call));
    }
    return *(float *)machine->memory[graph->loss];
}

static int value_of(const struct graph *graph, enum value_kind kind, int parameter)
{
    for (int i = 0; i < graph->value_count; i++)
        if (graph->values[i].kind == kind && graph->values[i].parameter == parameter) return i;
    return -1;
}

/* Moves a parameter by `step` along `direction`. */
static void move(struct machine *machine, int value, const float *start, const float *direction,
                 float step)
{
    int64_t count = tensor_element_count(&machine->graph->values[value].type);
    for (int64_t i = 0; i < count; i++)
        ((float *)machine->memory[value])[i] = start[i] + step * direction[i];
}

/* One parameter at a time: the slope along a random direction against the gradient. */
static void check_parameter(struct machine *machine, int parameter)
{
    const struct graph *graph = machine->graph;
    int value = value_of(graph, VALUE_PARAMETER, parameter);
    int gradient = value_of(graph, VALUE_PARAMETER_GRADIENT, parameter);
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
        direction[i] = next_random();
        expected += (double)direction[i] * slopes[i];
        size += fabs((double)direction[i] * slopes[i]);
    }
    const float step = 0x1p-13f; /* small, so that few ReLUs change sides */
    move(machine, value, start, direction, step);
    double above = run(machine);
    move(machine, value, start, direction, -step);
    double below = run(machine);
    move(machine, value, start, direction, 0);
    double found = (above - below) / (2 * step);
    ck_assert_msg(size > 1e-3, "%s has no gradient to check", described->name);
    ck_assert_msg(fabs(found - expected) < 0.01 * size + 2e-3,
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
    /* log_softmax and nll_loss apart */
    HEAD "modules: {f: 'Linear(72, 5)', g: 'Linear(5, 5)'}\n"
         "forward: ['y = log_softmax(f(flatten(x, 1)), dim=-1)', 'output = y + relu(g(y))']\n"
         "loss: nll_loss(output, target)\n",
};

START_TEST(gradients_are_slopes)
{
    struct model *model = NULL;
    struct graph *graph = NULL;
    assert_okay(model_parse(models[_i], strlen(models[_i]), "net.yaml", &model));
    struct graph_options options = {.batch_size = BATCH, .train = true, .dropout = true};
    assert_okay(graph_build(model, &options, &graph));
    struct machine machine = machine_new(graph);
    for (int i = 0; i < model->parameter_count; i++)
        if (model->parameters[i].tied_to < 0) check_parameter(&machine, i);
    machine_deinit(&machine);
    graph_free(graph);
    model_free(model);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gradients");
    TCase *tests = tcase_create("gradients");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, gradients_are_slopes, 0, sizeof models / sizeof models[0]);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
