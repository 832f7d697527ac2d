/*
 * Graphs: the tutorial's network against golden text, the structure of gradients for tied, frozen
 * and reused modules, fusion, layouts, and the messages for shapes that do not fit.
 *
 * Golden files are tests/golden/graph-*.txt. FSDPD_UPDATE_GOLDEN=1 in the environment rewrites
 * them; read the difference before committing it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "graph_checks.h"
#include "model_files.h"
#include "tests/testing.h"

static struct model *parse_mnist(void)
{
    char *text = read_source("examples/mnist/net.yaml");
    struct model *model = parse(text);
    free(text);
    return model;
}

static const struct graph_options train = {.batch_size = 2, .train = true, .dropout = true};
static const struct graph_options evaluate = {.batch_size = 2, .count_correct = true};

TESTS_BELOW(.timeout = 60);

TEST(tutorial_network)
{
    struct model *model = parse_mnist();
    struct graph_options options = {.batch_size = 64, .train = true, .dropout = true};
    struct graph *graph = build(model, &options);
    assert_golden(graph, "tests/golden/graph-mnist-train.txt");
    ck_assert_int_eq(graph->correct, -1);
    graph_use_channels_last(graph);
    check_graph(graph);
    assert_golden(graph, "tests/golden/graph-mnist-train-channels-last.txt");
    graph_free(graph);

    options = (struct graph_options){.batch_size = 1000, .count_correct = true};
    graph = build(model, &options);
    assert_golden(graph, "tests/golden/graph-mnist-evaluate.txt");
    ck_assert_int_eq(graph->values[graph->correct].kind, VALUE_CORRECT);
    ck_assert_int_eq(graph->op_count, graph->forward_op_count);
    graph_free(graph);
    graph_free(NULL);
    model_free(model);
}

TEST(values_have_kinds_and_names)
{
    struct model *model = parse_mnist();
    struct graph *graph = build(model, &train);
    static const char *const names[] = {
        "input",      "target",   "conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
        "fc1.weight", "fc1.bias", "fc2.weight",   "fc2.bias",   "relu.output",
    };
    for (int i = 0; i < 11; i++) ck_assert_str_eq(graph->values[i].name, names[i]);
    int gradients = 0;
    for (int i = 0; i < graph->value_count; i++)
        gradients += graph->values[i].kind == VALUE_PARAMETER_GRADIENT;
    ck_assert_int_eq(gradients, 8);
    ck_assert_int_eq(graph->values[graph->target].type.dtype, DTYPE_I32);
    ck_assert_str_eq(model->modules[graph->ops[1].module].path, "conv2");
    ck_assert_str_eq(model->modules[graph->ops[2].module].path, ""); /* max_pool2d, a plain line */
    ck_assert_str_eq(model->modules[graph->ops[3].module].path, "dropout1");
    graph_free(graph);
    model_free(model);
}

TEST(dropout_can_be_off)
{
    struct model *model = parse_mnist();
    struct graph_options options = {.batch_size = 2, .train = true, .dropout = false};
    struct graph *graph = build(model, &options);
    for (int i = 0; i < graph->op_count; i++) {
        ck_assert_int_ne(graph->ops[i].kind, OP_DROPOUT);
        ck_assert_int_ne(graph->ops[i].kind, OP_DROPOUT_BACKWARD);
    }
    graph_free(graph);
    model_free(model);
}

#define HEAD "name: N\ninput: [4]\nclasses: 4\n"
#define LOSS "loss: cross_entropy(output, target)\n"

/* Models and the dumps of their training graphs. */
static const struct {
    const char *what, *text, *dump;
} graphs[] = {
    {"a module used twice accumulates, its value's gradient is summed",
     HEAD "modules: {a: 'Linear(4, 4)'}\n"
          "forward: ['x = a(x)', 'output = a(x) + x']\n" LOSS,
     "%4 = linear(%0, a.weight, a.bias) (2, 4)  # a\n"
     "%5 = linear(%4, a.weight, a.bias) (2, 4)  # a_1\n"
     "%6 = add(%5, %4) (2, 4)  # add\n"
     "%7, %8 = cross_entropy(%6, %1) mean (1,), (2, 4)  # cross_entropy\n"
     "backward:\n"
     "%9 = cross_entropy_backward(%8, %1) mean (2, 4)  # cross_entropy.backward\n"
     "d(a.weight), d(a.bias) = linear_backward_weights(%4, %9) (4, 4), (4,)  "
     "# a_1.backward_weights\n"
     "%12 = linear_backward_data(%9, a.weight) (2, 4)  # a_1.backward_data\n"
     "%13 = add(%9, %12) (2, 4)  # a.sum_gradients\n"
     "+d(a.weight), +d(a.bias) = linear_backward_weights(%0, %13) (4, 4), (4,)  "
     "# a.backward_weights\n"},
    {"tied weights have one gradient, their biases two",
     HEAD "modules: {a: 'Linear(4, 4)', b: 'Linear(4, 4)'}\n"
          "forward: ['output = b(a(x))']\n" LOSS "tie: {b.weight: a.weight}\n",
     "%5 = linear(%0, a.weight, a.bias) (2, 4)  # a\n"
     "%6 = linear(%5, a.weight, b.bias) (2, 4)  # b\n"
     "%7, %8 = cross_entropy(%6, %1) mean (1,), (2, 4)  # cross_entropy\n"
     "backward:\n"
     "%9 = cross_entropy_backward(%8, %1) mean (2, 4)  # cross_entropy.backward\n"
     "d(a.weight), d(b.bias) = linear_backward_weights(%5, %9) (4, 4), (4,)  "
     "# b.backward_weights\n"
     "%12 = linear_backward_data(%9, a.weight) (2, 4)  # b.backward_data\n"
     "+d(a.weight), d(a.bias) = linear_backward_weights(%0, %12) (4, 4), (4,)  "
     "# a.backward_weights\n"},
    {"nothing is computed before frozen layers, nor for frozen parameters",
     HEAD "modules: {a: 'Linear(4, 4)', b: 'Linear(4, 4)', c: 'Linear(4, 4)', d: 'Linear(4, 4)'}\n"
          "forward: ['output = d(c(relu(b(a(x)))))']\n" LOSS
          "freeze: [a.*, b.weight, c.*, d.bias]\n",
     "%10 = linear(%0, a.weight, a.bias) (2, 4)  # a\n"
     "%11 = linear(%10, b.weight, b.bias) relu (2, 4)  # b\n"
     "%12 = linear(%11, c.weight, c.bias) (2, 4)  # c\n"
     "%13 = linear(%12, d.weight, d.bias) (2, 4)  # d\n"
     "%14, %15 = cross_entropy(%13, %1) mean (1,), (2, 4)  # cross_entropy\n"
     "backward:\n"
     "%16 = cross_entropy_backward(%15, %1) mean (2, 4)  # cross_entropy.backward\n"
     "d(d.weight) = linear_backward_weights(%12, %16) (4, 4)  # d.backward_weights\n"
     "%18 = linear_backward_data(%16, d.weight) (2, 4)  # d.backward_data\n"
     "%19 = linear_backward_data(%18, c.weight) (2, 4)  # c.backward_data\n"
     "%20 = relu_backward(%19, %11) (2, 4)  # b.backward_relu\n"
     "%21, d(b.bias) = linear_backward_weights(%10, %20) (4, 4), (4,)  # b.backward_weights\n"},
    {"what the loss does not need is gone; an activation that something else reads stays alone",
     HEAD "modules: {a: 'Linear(4, 4, bias=False)', b: 'Linear(4, 4)', r: ReLU()}\n"
          "forward: ['y = a(x)', 'z = r(b(x))', 'u = r(y)', 'output = y + u']\n" LOSS,
     "%3 = linear(%0, a.weight) (2, 4)  # a\n"
     "%4 = relu(%3) (2, 4)  # r_1\n"
     "%5 = add(%3, %4) (2, 4)  # add\n"
     "%6, %7 = cross_entropy(%5, %1) mean (1,), (2, 4)  # cross_entropy\n"
     "backward:\n"
     "%8 = cross_entropy_backward(%7, %1) mean (2, 4)  # cross_entropy.backward\n"
     "%9 = relu_backward(%8, %4) (2, 4)  # r_1.backward\n"
     "%10 = add(%8, %9) (2, 4)  # a.sum_gradients\n"
     "d(a.weight) = linear_backward_weights(%0, %10) (4, 4)  # a.backward_weights\n"},
    {"a reader that is dropped does not prevent fusion",
     HEAD "modules: {a: 'Linear(4, 4)'}\n"
          "forward: ['y = a(x)', 'z = y + y', 'output = relu(y)']\n" LOSS,
     "%4 = linear(%0, a.weight, a.bias) relu (2, 4)  # a\n"
     "%5, %6 = cross_entropy(%4, %1) mean (1,), (2, 4)  # cross_entropy\n"
     "backward:\n"
     "%7 = cross_entropy_backward(%6, %1) mean (2, 4)  # cross_entropy.backward\n"
     "%8 = relu_backward(%7, %4) (2, 4)  # a.backward_relu\n"
     "d(a.weight), d(a.bias) = linear_backward_weights(%0, %8) (4, 4), (4,)  "
     "# a.backward_weights\n"},
    {"log_softmax that is read twice stays apart from nll_loss",
     HEAD "modules: {a: 'Linear(4, 4)', l: LogSoftmax(-1)}\n"
          "forward: ['y = l(a(x))', 'output = y + relu(y)']\n"
          "loss: nll_loss(output, target)\n",
     "%4 = linear(%0, a.weight, a.bias) (2, 4)  # a\n"
     "%5 = log_softmax(%4) (2, 4)  # l\n"
     "%6 = relu(%5) (2, 4)  # relu\n"
     "%7 = add(%5, %6) (2, 4)  # add\n"
     "%8 = nll_loss(%7, %1) mean (1,)  # nll_loss\n"
     "backward:\n"
     "%9 = nll_loss_backward(%1) mean (2, 4)  # nll_loss.backward\n"
     "%10 = relu_backward(%9, %6) (2, 4)  # relu.backward\n"
     "%11 = add(%9, %10) (2, 4)  # l.sum_gradients\n"
     "%12 = log_softmax_backward(%11, %5) (2, 4)  # l.backward\n"
     "d(a.weight), d(a.bias) = linear_backward_weights(%0, %12) (4, 4), (4,)  "
     "# a.backward_weights\n"},
    {"the same gradient twice", /* x + x */
     HEAD "modules: {a: 'Linear(4, 4)'}\n"
          "forward: ['x = a(x)', 'output = x + x']\n"
          "loss: cross_entropy(output, target, reduction='sum')\n",
     "%4 = linear(%0, a.weight, a.bias) (2, 4)  # a\n"
     "%5 = add(%4, %4) (2, 4)  # add\n"
     "%6, %7 = cross_entropy(%5, %1) sum (1,), (2, 4)  # cross_entropy\n"
     "backward:\n"
     "%8 = cross_entropy_backward(%7, %1) sum (2, 4)  # cross_entropy.backward\n"
     "%9 = add(%8, %8) (2, 4)  # a.sum_gradients\n"
     "d(a.weight), d(a.bias) = linear_backward_weights(%0, %9) (4, 4), (4,)  "
     "# a.backward_weights\n"},
    {"blocks, loops and lists unroll; dropout streams count in forward order",
     HEAD "blocks:\n"
          "  B(p):\n"
          "    modules: {a: 'Linear(4, 4, False)', d: Dropout(p)}\n"
          "    forward: ['x = d(dropout(a(x), p / 2))', 'output = dropout(x, 0)']\n"
          "modules: {bs: 2 * B(0.5)}\n"
          "forward:\n"
          "  - for b in bs: x = b(x)\n"
          "  - output = flatten(x, 1, -1)\n" LOSS,
     "%4 = linear(%0, bs.0.a.weight) (2, 4)  # bs.0.a\n"
     "%5 = dropout(%4) p=0.25 stream=0 (2, 4)  # bs.0.dropout\n"
     "%6 = dropout(%5) p=0.5 stream=1 (2, 4)  # bs.0.d\n"
     "%7 = linear(%6, bs.1.a.weight) (2, 4)  # bs.1.a\n"
     "%8 = dropout(%7) p=0.25 stream=3 (2, 4)  # bs.1.dropout\n"
     "%9 = dropout(%8) p=0.5 stream=4 (2, 4)  # bs.1.d\n"
     "%10, %11 = cross_entropy(%9, %1) mean (1,), (2, 4)  # cross_entropy\n"
     "backward:\n"
     "%12 = cross_entropy_backward(%11, %1) mean (2, 4)  # cross_entropy.backward\n"
     "%13 = dropout_backward(%12) p=0.5 stream=4 (2, 4)  # bs.1.d.backward\n"
     "%14 = dropout_backward(%13) p=0.25 stream=3 (2, 4)  # bs.1.dropout.backward\n"
     "d(bs.1.a.weight) = linear_backward_weights(%6, %14) (4, 4)  # bs.1.a.backward_weights\n"
     "%16 = linear_backward_data(%14, bs.1.a.weight) (2, 4)  # bs.1.a.backward_data\n"
     "%17 = dropout_backward(%16) p=0.5 stream=1 (2, 4)  # bs.0.d.backward\n"
     "%18 = dropout_backward(%17) p=0.25 stream=0 (2, 4)  # bs.0.dropout.backward\n"
     "d(bs.0.a.weight) = linear_backward_weights(%0, %18) (4, 4)  # bs.0.a.backward_weights\n"},
    {"windows with all their attributes",
     "name: N\ninput: [4, 9, 9]\nclasses: 4\n"
     "modules:\n"
     "  c: Conv2d(4, 8, (3, 5), stride=2, padding=(1, 2), dilation=(2, 1), groups=2, bias=False)\n"
     "  s: Sequential(ReLU(), MaxPool2d(2, 1, 1), Flatten(), Linear(240, 4))\n"
     "forward: ['output = s(c(x))']\n" LOSS,
     "%5 = conv2d(%0, c.weight) stride=2x2 padding=1x2 dilation=2x1 groups=2 relu (2, 8, 4, 5)  "
     "# c\n"
     "%6, %17 = max_pool2d(%5) kernel=2x2 stride=1x1 padding=1x1 (2, 8, 5, 6), (2, 8, 5, 6) u8  "
     "# s.1\n"
     "%7 = reshape(%6) (2, 240)  # s.2\n"
     "%8 = linear(%7, s.3.weight, s.3.bias) (2, 4)  # s.3\n"
     "%9, %10 = cross_entropy(%8, %1) mean (1,), (2, 4)  # cross_entropy\n"
     "backward:\n"
     "%11 = cross_entropy_backward(%10, %1) mean (2, 4)  # cross_entropy.backward\n"
     "d(s.3.weight), d(s.3.bias) = linear_backward_weights(%7, %11) (4, 240), (4,)  "
     "# s.3.backward_weights\n"
     "%14 = linear_backward_data(%11, s.3.weight) (2, 240)  # s.3.backward_data\n"
     "%15 = reshape(%14) (2, 8, 5, 6)  # s.2.backward\n"
     "%16 = relu_backward(%15, %6) (2, 8, 5, 6)  # s.1.backward_relu\n"
     "%18 = max_pool2d_backward(%16, %17) kernel=2x2 stride=1x1 padding=1x1 (2, 8, 4, 5)  "
     "# s.1.backward\n"
     "d(c.weight) = conv2d_backward_weights(%0, %18) stride=2x2 padding=1x2 dilation=2x1 groups=2 "
     "(8, 2, 3, 5)  # c.backward_weights\n"},
    {"ReLU of what a pool alone reads has its gradient behind the pool, also on its own",
     "name: N\ninput: [1, 4, 4]\nclasses: 4\n"
     "modules: {c: 'Conv2d(1, 1, 1, bias=False)'}\n"
     "forward: ['x = c(x)', 'y = max_pool2d(relu(x), 2) + max_pool2d(x, 2)', "
     "'output = flatten(y, 1)']\n" LOSS,
     "%3 = conv2d(%0, c.weight) (2, 1, 4, 4)  # c\n"
     "%4 = relu(%3) (2, 1, 4, 4)  # relu\n"
     "%5, %16 = max_pool2d(%4) kernel=2x2 stride=2x2 (2, 1, 2, 2), (2, 1, 2, 2) u8  # max_pool2d\n"
     "%6, %13 = max_pool2d(%3) kernel=2x2 stride=2x2 (2, 1, 2, 2), (2, 1, 2, 2) u8  "
     "# max_pool2d_1\n"
     "%7 = add(%5, %6) (2, 1, 2, 2)  # add\n"
     "%8 = reshape(%7) (2, 4)  # flatten\n"
     "%9, %10 = cross_entropy(%8, %1) mean (1,), (2, 4)  # cross_entropy\n"
     "backward:\n"
     "%11 = cross_entropy_backward(%10, %1) mean (2, 4)  # cross_entropy.backward\n"
     "%12 = reshape(%11) (2, 1, 2, 2)  # flatten.backward\n"
     "%14 = max_pool2d_backward(%12, %13) kernel=2x2 stride=2x2 (2, 1, 4, 4)  "
     "# max_pool2d_1.backward\n"
     "%15 = relu_backward(%12, %5) (2, 1, 2, 2)  # max_pool2d.backward_relu\n"
     "%17 = max_pool2d_backward(%15, %16) kernel=2x2 stride=2x2 (2, 1, 4, 4)  "
     "# max_pool2d.backward\n"
     "%18 = add(%14, %17) (2, 1, 4, 4)  # c.sum_gradients\n"
     "d(c.weight) = conv2d_backward_weights(%0, %18) (1, 1, 1, 1)  # c.backward_weights\n"},
    {"but not where something else reads it too",
     "name: N\ninput: [1, 4, 4]\nclasses: 4\n"
     "modules: {c: 'Conv2d(1, 1, 1, bias=False)'}\n"
     "forward: ['x = relu(c(x))', 'y = max_pool2d(x, 2) + max_pool2d(x, 2)', "
     "'output = flatten(y, 1)']\n" LOSS,
     "%3 = conv2d(%0, c.weight) relu (2, 1, 4, 4)  # c\n"
     "%4, %14 = max_pool2d(%3) kernel=2x2 stride=2x2 (2, 1, 2, 2), (2, 1, 2, 2) u8  # max_pool2d\n"
     "%5, %12 = max_pool2d(%3) kernel=2x2 stride=2x2 (2, 1, 2, 2), (2, 1, 2, 2) u8  "
     "# max_pool2d_1\n"
     "%6 = add(%4, %5) (2, 1, 2, 2)  # add\n"
     "%7 = reshape(%6) (2, 4)  # flatten\n"
     "%8, %9 = cross_entropy(%7, %1) mean (1,), (2, 4)  # cross_entropy\n"
     "backward:\n"
     "%10 = cross_entropy_backward(%9, %1) mean (2, 4)  # cross_entropy.backward\n"
     "%11 = reshape(%10) (2, 1, 2, 2)  # flatten.backward\n"
     "%13 = max_pool2d_backward(%11, %12) kernel=2x2 stride=2x2 (2, 1, 4, 4)  "
     "# max_pool2d_1.backward\n"
     "%15 = max_pool2d_backward(%11, %14) kernel=2x2 stride=2x2 (2, 1, 4, 4)  "
     "# max_pool2d.backward\n"
     "%16 = add(%13, %15) (2, 1, 4, 4)  # c.sum_gradients\n"
     "%17 = relu_backward(%16, %3) (2, 1, 4, 4)  # c.backward_relu\n"
     "d(c.weight) = conv2d_backward_weights(%0, %17) (1, 1, 1, 1)  # c.backward_weights\n"},
};

LOOP_TEST(training_graphs, 0, COUNT_OF(graphs))
{
    struct model *model = parse(graphs[_i].text);
    struct graph *graph = build(model, &train);
    assert_dump(graph, graphs[_i].dump);
    graph_free(graph);
    model_free(model);
}

/* Files that parse, but whose shapes do not fit. */
static const struct {
    const char *modules, *forward, *message;
} misfits[] = {
    {"a: 'Conv2d(3, 8, 3)'", "output = a(x)",
     "net.yaml:6: module a: conv2d: weight is (8, 3, 3, 3), but with input (2, 1, 8, 8) it must be "
     "(8, 1, 3, 3)"},
    {"a: 'Conv2d(1, 8, 9)'", "output = a(x)",
     "net.yaml:6: module a: conv2d: the kernel (9, 9) with dilation (1, 1) is larger than input "
     "(2, 1, 8, 8) with padding (0, 0)"},
    {"a: 'Linear(9, 4)'", "output = a(flatten(x, 1))",
     "net.yaml:6: module a: linear: weight is (4, 9), but with input (2, 64) it must be (4, 64)"},
    {"a: 'Linear(64, 4)', c: 'Conv2d(4, 4, 1)'", "output = c(a(flatten(x, 1)))",
     "net.yaml:6: module c: conv2d: input (2, 4) must have 4 dimensions"},
    {"a: 'Linear(64, 5)'", "output = a(flatten(x, 1))",
     "net.yaml:7: cross_entropy: input is (2, 5), but with classes: 4 it must be (2, 4)"},
    {"a: 'Linear(8, 4)'", "output = a(x)",
     "net.yaml:7: cross_entropy: input is (2, 1, 8, 4), but with classes: 4 it must be (2, 4)"},
    {"a: 'Linear(8, 4)'", "output = x + a(x)",
     "net.yaml:6: add: second input is (2, 1, 8, 4), but with first input (2, 1, 8, 8) it must be "
     "(2, 1, 8, 8)"},
    {"a: 'ReLU()'", "output = flatten(x)",
     "net.yaml:6: flatten: start_dim=0 would join the batch dimension of (2, 1, 8, 8); use "
     "start_dim=1"},
    {"a: 'Flatten(0)'", "output = a(x)",
     "net.yaml:6: module a: flatten: start_dim=0 would join the batch dimension of (2, 1, 8, 8); "
     "use start_dim=1"},
    {"a: 'Flatten(3, 1)'", "output = a(x)",
     "net.yaml:6: module a: flatten: start_dim=3, end_dim=1 do not name dimensions of (2, 1, 8, "
     "8)"},
    {"a: 'Flatten(1, 4)'", "output = a(x)",
     "net.yaml:6: module a: flatten: start_dim=1, end_dim=4 do not name dimensions of (2, 1, 8, "
     "8)"},
    {"a: 'ReLU()'", "output = log_softmax(flatten(x, 1), dim=0)",
     "net.yaml:6: log_softmax: dim=0 is not the last dimension of (2, 64)"},
    {"a: 'ReLU()'", "output = log_softmax(x, dim=3)",
     "net.yaml:7: cross_entropy: input is (2, 1, 8, 8), but with classes: 4 it must be (2, 4)"},
    {"a: 'ReLU()'", "output = max_pool2d(x, 20)",
     "net.yaml:6: max_pool2d: the kernel (20, 20) covers more than 255 elements"},
    {"a: 'ReLU()'", "output = max_pool2d(x, 9)",
     "net.yaml:6: max_pool2d: the kernel (9, 9) with dilation (1, 1) is larger than input (2, 1, "
     "8, "
     "8) with padding (0, 0)"},
    {"a: 'Linear(64, 4)'", "output = max_pool2d(a(flatten(x, 1)), 1)",
     "net.yaml:6: max_pool2d: input (2, 4) must have 4 dimensions"},
    {"a: 'Conv2d(1, 2147483647, 1, padding=2000000000)'", "output = a(x)",
     "net.yaml:6: module a: conv2d: output (2, 2147483647, 4000000008, 4000000008): every "
     "dimension must be positive and all together at most 2^40 elements"},
    {"a: 'ReLU()'", "output = reshape(x, (-1, 3, 4))",
     "net.yaml:6: reshape: the sizes (3, 4) do not make 64, of (2, 1, 8, 8)"},
    {"a: 'ReLU()'", "output = reshape(x, (x.shape[0], 7, -1))",
     "net.yaml:6: reshape: the sizes (7, -1) do not make 64, of (2, 1, 8, 8)"},
    {"a: 'ReLU()'", "output = reshape(mean(flatten(x, 1), 1), (-1, 2))",
     "net.yaml:6: reshape: the sizes (2) do not make 1, of (2,)"},
    {"a: 'ReLU()'", "output = unflatten(unflatten(x, 2, (2, 2, 2)), 1, (1, 1))",
     "net.yaml:6: unflatten: (2, 1, 2, 2, 2, 8) would have more than 6 dimensions"},
    {"a: 'Parameter(1, 3, 8)'", "output = cat([a, x], dim=0)",
     "net.yaml:6: concat: dim=0 is the batch dimension of (2, 1, 8, 8)"},
    {"a: 'Parameter(1, 3, 8)'", "output = x + transpose(a, 0, 1)",
     "net.yaml:6: transpose: dim=0 is the batch dimension of (1, 3, 8)"},
    {"a: 'ReLU()'", "output = matmul(narrow(flatten(x, 1), 1, 0, 2), flatten(x, 1))",
     "net.yaml:6: matmul: a tensor of 2 dimensions, of which the first is the batch, would mix "
     "samples"},
    {"a: 'Parameter(8, 3)'", "output = matmul(a, x)",
     "net.yaml:6: matmul: (8, 3) times (2, 1, 8, 8): the last dimension of the first must be the "
     "last but one of the second"},
    {"a: 'Parameter(1, 8, 8)'", "output = x + randn_like(a)",
     "net.yaml:6: randn_like: a tensor that depends on no sample; each draws by itself"},
    {"a: 'Parameter(8, 8)'", "output = x + randn_like(a * 2)",
     "net.yaml:6: randn_like: a tensor that depends on no sample; each draws by itself"},
    {"a: 'ReLU()'", "output = mean(mean(x, 3), 2) + mean(flatten(x, 1), 1)",
     "net.yaml:6: add: second input is (2,), but with first input (2, 1) it must be (1,)"},
    {"a: 'ReLU()'", "output = where(mean(x, 3) > 0, x, 0)",
     "net.yaml:6: where: the condition is (2, 1, 8), the input (2, 1, 8, 8)"},
    {"a: 'ReLU()'", "output = max(x, 0)",
     "net.yaml:6: mean: dim=0 is the batch dimension of (2, 1, 8, 8)"},
    {"a: 'ReLU()'", "output = interpolate(flatten(x, 1), 2)",
     "net.yaml:6: interpolate: dim=2 is no dimension of (2, 64)"},
    {"a: 'Conv1d(1, 2, 3)'", "output = flatten(a(flatten(x, 1)), 1)",
     "net.yaml:6: module a: unflatten: dim=2 is no dimension of (2, 64)"},
    {"a: 'LSTM(8, 4, batch_first=True)'", "output = flatten(a(x), 1)",
     "net.yaml:6: module a: recurrent: output (2, 1, 8, 4) must have 3 dimensions"},
    {"a: 'GRU(7, 4, batch_first=True)'", "output = a(flatten(x, 1, 2))[:, -1]",
     "net.yaml:6: module a: linear: weight is (12, 7), but with input (2, 8, 8) it must be (12, "
     "8)"},
    {"a: 'MultiheadAttention(8, 2, batch_first=True)'", "output = flatten(a(x, x, x), 1)",
     "net.yaml:6: module a: attention: query (2, 1, 8, 24) must have 3 dimensions"},
    {"a: 'BatchNorm1d(1)'", "output = flatten(a(x), 1)",
     "net.yaml:6: module a: batch_norm: input must have 2 or 3 dimensions"},
    {"a: 'ReLU()'", "output = flatten(x[:, :, 3:-5], 1)",
     "net.yaml:6: slice: 3:3 of 8 places is empty"},
    {"a: 'ReLU()'", "output = flatten(x[:, 0, :, :, 0], 1)",
     "net.yaml:6: slice: dim=3 is no dimension of (2, 8, 8)"},
    {"a: 'ReLU()'", "output = unsqueeze(x, 0)",
     "net.yaml:6: unsqueeze: dim=0 would split the batch dimension of (2, 1, 8, 8)"},
    {"a: Flatten()", "output = a(x)",
     "net.yaml:7: cross_entropy: input is (2, 64), but with classes: 4 it must be (2, 4)"},
};

LOOP_TEST(shapes_that_do_not_fit_are_named, 0, COUNT_OF(misfits))
{
    char *text = mem_printf("name: N\ninput: [1, 8, 8]\nclasses: 4\nmodules: {%s}\nforward:\n"
                            "  - %s\nloss: cross_entropy(output, target)\n",
                            misfits[_i].modules, misfits[_i].forward);
    struct model *model = parse(text);
    struct graph *graph = NULL;
    status_t status = graph_build(model, &train, &graph);
    ck_assert_str_eq(status_message(status), misfits[_i].message);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_null(graph);
    status_free(status);
    model_free(model);
    free(text);
}

TEST(other_refusals)
{
    struct model *model = parse_mnist();
    struct graph_options options = {.batch_size = 0, .train = true};
    assert_build_fails(model, &options,
                       "net.yaml: a batch of 0 samples of (1, 28, 28): every dimension must be "
                       "positive and all together at most 2^40 elements");
    options.batch_size = INT64_MAX;
    assert_build_fails(model, &options,
                       "net.yaml: a batch of 9223372036854775807 samples of (1, 28, 28): every "
                       "dimension must be positive and all together at most 2^40 elements");
    model_free(model);

    model = parse(HEAD "modules: {a: 'Linear(4, 4)', b: 'Linear(4, 4)'}\n"
                       "forward: ['output = a(x)']\n" LOSS "freeze: [a.*]\n");
    assert_build_fails(model, &train,
                       "net.yaml: there is nothing to train: no trainable parameter reaches the "
                       "loss");
    struct graph *graph = build(model, &evaluate); /* it evaluates fine */
    graph_free(graph);
    model_free(model);

    model = parse("name: N\ninput: [8]\nclasses: 4\n"
                  "blocks: {B: {modules: {a: 'Linear(9, 4)'}, forward: ['output = a(x)']},\n"
                  "  C: {modules: {a: ReLU()}, forward: ['output = max_pool2d(x, 2)']}}\n"
                  "modules: {b: B(), c: C()}\nforward: ['output = c(x)', 'output = b(x)']\n" LOSS);
    assert_build_fails(model, &train,
                       "net.yaml:5: in c: max_pool2d: input (2, 8) must have 4 "
                       "dimensions");
    model_free(model);
}

TEST(count_uses_what_the_loss_is_given)
{
    struct model *model = parse(HEAD "modules: {a: 'Linear(4, 4)'}\n"
                                     "forward: ['output = a(x)']\n"
                                     "loss: nll_loss(output, target)\n");
    struct graph *graph = build(model, &evaluate);
    assert_dump(graph, "%4 = linear(%0, a.weight, a.bias) (2, 4)  # a\n"
                       "%5 = nll_loss(%4, %1) mean (1,)  # nll_loss\n"
                       "%6 = count_correct(%4, %1) (1,)  # count_correct\n");
    graph_free(graph);
    struct graph_options both = train;
    both.count_correct = true;
    graph = build(model, &both);
    ck_assert_int_eq(graph->ops[2].kind, OP_COUNT_CORRECT);
    ck_assert_int_eq(graph->forward_op_count, 3);
    graph_free(graph);
    model_free(model);
}

static enum layout layout_of(const struct graph *graph, const char *name)
{
    for (int i = 0; i < graph->value_count; i++)
        if (strcmp(graph->values[i].name, name) == 0) return graph->values[i].type.layout;
    ck_abort_msg("no value '%s'", name);
}

TEST(layouts_agree_where_they_must)
{
    /* A pool directly on an input of three channels stays plain; convolutions convert; add must
     * agree. */
    struct model *model =
        parse("name: N\ninput: [3, 8, 8]\nclasses: 4\n"
              "modules: {c: 'Conv2d(3, 3, 1)', d: 'Conv2d(3, 3, 1)', f: 'Linear(48, 4)'}\n"
              "forward: ['p = max_pool2d(x, 2)', 'y = c(p)', 'z = d(y) + y',\n"
              "  'w = c(x)', 'v = max_pool2d(w, 2) + z', 'u = relu(p) + z',\n"
              "  'output = f(flatten(v, 1)) + f(flatten(u, 1))']\n" LOSS);
    struct graph *graph = build(model, &train);
    graph_use_channels_last(graph);
    check_graph(graph);
    ck_assert_int_eq(layout_of(graph, "input"), LAYOUT_PLAIN);
    ck_assert_int_eq(layout_of(graph, "max_pool2d.output"), LAYOUT_PLAIN);
    ck_assert_int_eq(layout_of(graph, "relu.output"), LAYOUT_PLAIN);
    ck_assert_int_eq(layout_of(graph, "add.output"), LAYOUT_PLAIN); /* by way of u */
    ck_assert_int_eq(layout_of(graph, "c_1.output"), LAYOUT_PLAIN); /* by way of v */
    for (int i = 0; i < graph->value_count; i++)
        if (graph->values[i].type.dim_count != 4 || graph->values[i].kind == VALUE_PARAMETER ||
            graph->values[i].kind == VALUE_PARAMETER_GRADIENT)
            ck_assert_int_eq(graph->values[i].type.layout, LAYOUT_PLAIN);
    graph_free(graph);
    model_free(model);

    model = parse("name: N\ninput: [3, 8, 8]\nclasses: 4\n"
                  "modules: {c: 'Conv2d(3, 3, 1)', d: 'Conv2d(3, 3, 1)', f: 'Linear(192, 4)'}\n"
                  "forward: ['y = c(x)', 'y = d(y) + y', 'output = f(flatten(y, 1))']\n" LOSS);
    graph = build(model, &train);
    graph_use_channels_last(graph);
    ck_assert_int_eq(layout_of(graph, "input"), LAYOUT_PLAIN);
    ck_assert_int_eq(layout_of(graph, "c.output"), LAYOUT_CHANNELS_LAST);
    ck_assert_int_eq(layout_of(graph, "add.output"), LAYOUT_CHANNELS_LAST);
    ck_assert_int_eq(layout_of(graph, "d(add.output)"), LAYOUT_CHANNELS_LAST);
    graph_free(graph);
    model_free(model);
}
