/*
 * Model files: the models of the tutorial's file and others, and one message for each mistake.
 * test_model_limits.c has limits, test_model_tokens.c models of tokens. Run from anywhere: $srcdir
 * is the place of the examples.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "model/graph.h"
#include "model_files.h"
#include "tests/testing.h"

TESTS_BELOW(.timeout = 120, .set_up = load_mnist, .tear_down = unload_mnist);

TEST(tutorial_network)
{
    static const struct {
        const char *path, *type, *print;
    } modules[] = {
        {"", "Net", ""},
        {"conv1", "Conv2d", "1, 32, kernel_size=(3, 3), stride=(1, 1)"},
        {"conv2", "Conv2d", "32, 64, kernel_size=(3, 3), stride=(1, 1)"},
        {"dropout1", "Dropout", "p=0.25, inplace=False"},
        {"dropout2", "Dropout", "p=0.5, inplace=False"},
        {"fc1", "Linear", "in_features=9216, out_features=128, bias=True"},
        {"fc2", "Linear", "in_features=128, out_features=10, bias=True"},
    };
    /* Bounds as PyTorch 1.13 passes them to uniform_, printed with float.hex. */
    static const struct {
        const char *name;
        int64_t elements;
        double bound;
    } parameters[] = {
        {"conv1.weight", 288, 0x1.5555555555554p-2},   {"conv1.bias", 32, 0x1.5555555555555p-2},
        {"conv2.weight", 18432, 0x1.e2b7dddfefa66p-5}, {"conv2.bias", 64, 0x1.e2b7dddfefa67p-5},
        {"fc1.weight", 1179648, 0x1.5555555555554p-7}, {"fc1.bias", 128, 0x1.5555555555555p-7},
        {"fc2.weight", 1280, 0x1.6a09e667f3bcbp-4},    {"fc2.bias", 10, 0x1.6a09e667f3bccp-4},
    };
    static const int64_t per_module[] = {0, 320, 18496, 0, 0, 1179776, 1290};
    struct model *model = parse(buf_text(&mnist));
    ck_assert_int_eq(model->module_count, 7);
    ck_assert_int_eq(model->parameter_count, 8);
    ck_assert_int_eq(model->class_count, 10);
    char shape[128];
    ck_assert_str_eq(tensor_format_shape(&model->input, shape), "(1, 28, 28)");
    for (int i = 0; i < 7; i++) {
        const struct module *module = &model->modules[i];
        ck_assert_str_eq(module->path, modules[i].path);
        ck_assert_str_eq(module->name, modules[i].path);
        ck_assert_str_eq(module->type, modules[i].type);
        ck_assert_str_eq(module->print, modules[i].print);
        ck_assert_int_eq(module->parent, i ? 0 : -1);
        int64_t elements = 0;
        for (int k = 0; k < module->parameter_count; k++)
            elements += tensor_element_count(&model->parameters[module->parameters[k]].type);
        ck_assert_int_eq(elements, per_module[i]);
        ck_assert_int_eq(model_find_module(model, modules[i].path), i);
    }
    ck_assert_int_eq(model->modules[0].child_count, 6);
    for (int i = 0; i < 8; i++) {
        const struct parameter *parameter = &model->parameters[i];
        ck_assert_str_eq(parameter->name, parameters[i].name);
        ck_assert_int_eq(tensor_element_count(&parameter->type), parameters[i].elements);
        ck_assert_int_eq(parameter->init, INIT_UNIFORM);
        ck_assert_double_eq(parameter->bound, parameters[i].bound);
        ck_assert_int_eq(parameter->init_order, i);
        ck_assert_int_eq(parameter->tied_to, -1);
        ck_assert(parameter->trainable);
        ck_assert_int_eq(model_find_parameter(model, parameters[i].name), i);
    }
    ck_assert_int_eq(model_parameter_elements(model), 1199882);
    ck_assert_int_eq(model_find_module(model, "conv3"), -1);
    ck_assert_int_eq(model_find_parameter(model, "conv1"), -1);
    model_free(model);
    model_free(NULL);
}

/* What PyTorch 1.13 prints for the same constructors. */
static const struct {
    const char *constructor, *type, *print;
} prints[] = {
    {"Conv2d(1, 8, 3)", "Conv2d", "1, 8, kernel_size=(3, 3), stride=(1, 1)"},
    {"Conv2d(4, 8, (3, 5), stride=2, padding=(1, 2), dilation=2, groups=4, bias=False)", "Conv2d",
     "4, 8, kernel_size=(3, 5), stride=(2, 2), padding=(1, 2), dilation=(2, 2), groups=4, "
     "bias=False"},
    {"nn.Linear(in_features=3, out_features=4, bias=False)", "Linear",
     "in_features=3, out_features=4, bias=False"},
    {"torch.nn.Dropout()", "Dropout", "p=0.5, inplace=False"},
    {"Dropout(1e-5, True)", "Dropout", "p=1e-05, inplace=True"},
    {"Dropout(0)", "Dropout", "p=0, inplace=False"},
    {"Dropout(0.0)", "Dropout", "p=0.0, inplace=False"},
    {"Dropout(1/3)", "Dropout", "p=0.3333333333333333, inplace=False"},
    {"ReLU()", "ReLU", ""},
    {"ReLU(inplace=True)", "ReLU", "inplace=True"},
    {"MaxPool2d(2)", "MaxPool2d",
     "kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False"},
    {"MaxPool2d((3, 2), stride=(2, 1), padding=1)", "MaxPool2d",
     "kernel_size=(3, 2), stride=(2, 1), padding=1, dilation=1, ceil_mode=False"},
    {"Flatten()", "Flatten", "start_dim=1, end_dim=-1"},
    {"LogSoftmax(dim=-1)", "LogSoftmax", "dim=-1"},
    {"Sequential(ReLU())", "Sequential", ""},
    {"2 * ReLU()", "ModuleList", ""},
};

LOOP_TEST(modules_print_as_in_pytorch, 0, COUNT_OF(prints))
{
    char *changed = replace(buf_text(&mnist), "Dropout(0.25)", prints[_i].constructor);
    char *text = replace(changed, "x = dropout1(x)", "x = dropout2(x)"); /* it is only printed */
    struct model *model = parse(text);
    int module = model_find_module(model, "dropout1");
    ck_assert_str_eq(model->modules[module].type, prints[_i].type);
    ck_assert_str_eq(model->modules[module].print, prints[_i].print);
    model_free(model);
    free(changed);
    free(text);
}

TEST(blocks_nest_and_repeat)
{
    static const char *const paths[] = {
        "",
        "first",
        "first.0",
        "first.1",
        "first.2",
        "first.3",
        "first.3.up",
        "first.3.down",
        "towers",
        "towers.0",
        "towers.0.layers",
        "towers.0.layers.0",
        "towers.0.layers.0.up",
        "towers.0.layers.0.down",
        "towers.0.layers.1",
        "towers.0.layers.1.up",
        "towers.0.layers.1.down",
        "towers.1",
        "towers.1.layers",
        "towers.1.layers.0",
        "towers.1.layers.0.up",
        "towers.1.layers.0.down",
        "head",
    };
    char *text = replace(residual, "head(towers[0].layers[1].up(x))", "head(x)");
    struct model *model = parse(text);
    ck_assert_int_eq(model->module_count, (int)COUNT_OF(paths));
    for (int i = 0; i < model->module_count; i++) {
        const struct module *module = &model->modules[i];
        ck_assert_str_eq(module->path, paths[i]);
        for (int k = 0; k < module->child_count; k++) {
            ck_assert_int_eq(model->modules[module->children[k]].parent, i);
            ck_assert_int_gt(module->children[k], i);
        }
        for (int k = 0; k < module->parameter_count; k++)
            ck_assert_int_eq(model->parameters[module->parameters[k]].module, i);
    }
    ck_assert_str_eq(model->modules[1].type, "Sequential");
    ck_assert_str_eq(model->modules[5].type, "Layer");
    ck_assert_str_eq(model->modules[8].type, "ModuleList");
    ck_assert_str_eq(model->modules[9].type, "Tower");
    ck_assert_str_eq(model->modules[9].name, "0");
    ck_assert_str_eq(model->modules[6].print, "in_features=8, out_features=8, bias=False");
    ck_assert_str_eq(model->modules[12].print, "in_features=8, out_features=16, bias=True");
    ck_assert_str_eq(model->parameters[2].name, "first.3.up.weight");
    ck_assert_str_eq(model->parameters[3].name, "first.3.down.weight");
    ck_assert_int_eq(model_parameter_elements(model),
                     72 + 64 + 72 + 3 * (8 * 16 + 16 + 16 * 8 + 8) + 36);
    model_free(model);
    free(text);
    model_free(parse(residual)); /* a path into a list and a block works, too; shapes come later */
}

TEST(parameters_are_tied)
{
    static const char tied[] = "name: T\ninput: [8]\nclasses: 8\n"
                               "modules: {a: 'Linear(8, 8)', b: 'Linear(8, 8, bias=False)', "
                               "c: 'Linear(8, 8)'}\n"
                               "forward: ['output = c(b(a(x)))']\n"
                               "loss: cross_entropy(output, target)\n"
                               "tie: {a.weight: c.weight, b.weight: a.weight}\n"
                               "freeze: [b.*]\n";
    struct model *model = parse(tied);
    const struct parameter *p = model->parameters; /* a.w a.b b.w c.w c.b */
    ck_assert_int_eq(p[0].tied_to, -1);
    ck_assert_int_eq(p[2].tied_to, 0);
    ck_assert_int_eq(p[3].tied_to, 0);
    ck_assert_int_eq(p[0].init_order, 3); /* its values are c's; its own draw is discarded */
    ck_assert_int_eq(p[3].init_order, 0);
    ck_assert_int_eq(model_parameter_elements(model), 64 + 8 + 8);
    ck_assert(!p[0].trainable && !p[2].trainable && !p[3].trainable);
    ck_assert(p[1].trainable && p[4].trainable);
    model_free(model);
}

TEST(parameters_are_frozen)
{
    char *text = mem_printf("%sfreeze: ['conv*.weight', fc1.bias]\n", buf_text(&mnist));
    struct model *model = parse(text);
    static const bool trainable[] = {false, true, false, true, true, false, true, true};
    for (int i = 0; i < 8; i++) ck_assert_int_eq(model->parameters[i].trainable, trainable[i]);
    model_free(model);
    free(text);
}

/* One change to the tutorial's file each. */
static const struct {
    const char *old, *new, *message;
} mistakes[] = {
    /* top level */
    {"name: Net\n", "", "net.yaml:4: key 'name' is missing"},
    {"name: Net", "name: 3d",
     "net.yaml:4: key 'name': expected a name of letters, digits and _, "
     "found '3d'"},
    {"name: Net", "name:", "net.yaml:4: key 'name': a value is missing"},
    {"name: Net", "name: [a]", "net.yaml:4: key 'name': expected the model's name, found a list"},
    {"classes: 10", "clases: 10", "net.yaml:6: unknown key 'clases'; did you mean 'classes'?"},
    {"classes: 10", "classes: ten",
     "net.yaml:6: key 'classes': expected an integer from 1 to 2147483647, found 'ten'"},
    {"classes: 10", "classes: 0",
     "net.yaml:6: key 'classes': expected an integer from 1 to 2147483647, found '0'"},
    {"[1, 28, 28]", "28",
     "net.yaml:5: key 'input': expected one sample's shape such as [1, 28, 28], or tokens, found "
     "'28'"},
    {"[1, 28, 28]", "[]", "net.yaml:5: key 'input': expected 1 to 5 dimensions, found 0"},
    {"[1, 28, 28]", "[1,1,1,1,1,1]",
     "net.yaml:5: key 'input': expected 1 to 5 dimensions, found 6"},
    {"[1, 28, 28]", "[1, 28, -28]",
     "net.yaml:5: key 'input[2]': expected an integer from 1 to 2147483647, found '-28'"},
    {"[1, 28, 28]", "[2000000, 2000000, 28]",
     "net.yaml:5: key 'input': one sample has more than 2^40 elements"},
    {"modules:\n", "modules: 3\nblocks:\n",
     "net.yaml:8: key 'modules': expected a mapping from names to constructors, found '3'"},
    {"name: Net", "name: Net\nname: Net2",
     "net.yaml:5: key 'name' is given twice; the first is on line 4"},

    /* constructors */
    {"Conv2d(1, 32, 3, 1)", "Conv2D(1, 32, 3, 1)",
     "net.yaml:9: module conv1: unknown module 'Conv2D'; did you mean 'Conv2d'?"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d",
     "net.yaml:9: module conv1: expected a constructor such as "
     "Conv2d(1, 32, 3)"},
    {"Conv2d(1, 32, 3, 1)", "[1, 2]",
     "net.yaml:9: key 'modules.conv1': expected a constructor such as Conv2d(1, 32, 3), found a "
     "list"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32)",
     "net.yaml:9: module conv1: Conv2d(): argument 'kernel_size' is missing"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, 3, 1, 0, 1, 1, True, 5)",
     "net.yaml:9: module conv1: Conv2d() takes at most 8 arguments, found 9"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, kernal_size=3)",
     "net.yaml:9: module conv1: Conv2d() has no argument 'kernal_size'; did you mean "
     "'kernel_size'?"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, 3, in_channels=1)",
     "net.yaml:9: module conv1: Conv2d(): argument 'in_channels' is given twice"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, stride=3, 32)",
     "net.yaml:9: modules.conv1: Conv2d(): a positional argument follows a keyword argument"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(0, 32, 3)",
     "net.yaml:9: module conv1: Conv2d(): argument 'in_channels': expected a positive integer "
     "below "
     "2^31, found 0"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32.0, 3)",
     "net.yaml:9: module conv1: Conv2d(): argument 'out_channels': expected a positive integer "
     "below 2^31, found 32.0"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, (3, 0))",
     "net.yaml:9: module conv1: Conv2d(): argument 'kernel_size': expected a positive integer or a "
     "pair of them, found (3, 0)"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, (3, 3, 3))",
     "net.yaml:9: module conv1: Conv2d(): argument 'kernel_size': expected a pair of integers, "
     "found 3 values"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, (3, 0.5))",
     "net.yaml:9: module conv1: Conv2d(): argument 'kernel_size': a pair must consist of integers"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, 3, padding='same')",
     "net.yaml:9: module conv1: Conv2d(): argument 'padding': expected an integer of at least 0 or "
     "a pair of them, found 'same'"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, 3, padding=-1)",
     "net.yaml:9: module conv1: Conv2d(): argument 'padding': expected an integer of at least 0 or "
     "a pair of them, found -1"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, 3, bias=1)",
     "net.yaml:9: module conv1: Conv2d(): argument 'bias': expected True or False, found 1"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, 3, groups=2)",
     "net.yaml:9: module conv1: Conv2d(): groups=2 does not divide 1 input and 32 output channels"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, width, 3)",
     "net.yaml:9: module conv1: Conv2d(): argument 'out_channels': unknown name 'width'"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, Linear(1, 2))",
     "net.yaml:9: module conv1: Conv2d(): argument 'kernel_size': expected a constant, found the "
     "call 'Linear()'"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, 3 // 0)",
     "net.yaml:9: module conv1: Conv2d(): argument 'kernel_size': division by zero"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, -(-9223372036854775807 - 1))",
     "net.yaml:9: module conv1: Conv2d(): argument 'kernel_size': an integer passes 64 bits"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, 9223372036854775808)",
     "net.yaml:9: modules.conv1: '9223372036854775808' at column 15 is not a 64-bit number"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, 1e308 * 10)",
     "net.yaml:9: module conv1: Conv2d(): argument 'kernel_size': a number is too large"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, True + 1)",
     "net.yaml:9: module conv1: Conv2d(): argument 'kernel_size': arithmetic needs numbers on both "
     "sides"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(2147483647, 2147483647, 2147483647)",
     "net.yaml:9: module conv1: weight (2147483647, 2147483647, 2147483647, 2147483647) would have "
     "more than 2^40 elements"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 4294967296, 3)",
     "net.yaml:9: module conv1: Conv2d(): argument 'out_channels': expected a positive integer "
     "below 2^31, found 4294967296"},
    {"Linear(9216, 128)", "Linear(2000000, 2000000)",
     "net.yaml:13: module fc1: weight (2000000, 2000000) would have more than 2^40 elements"},
    {"Dropout(0.25)", "Dropout(1.0)",
     "net.yaml:11: module dropout1: Dropout(): argument 'p': expected a number from 0 to below 1, "
     "found 1.0"},
    {"Dropout(0.25)", "Dropout(-0.1)",
     "net.yaml:11: module dropout1: Dropout(): argument 'p': expected a number from 0 to below 1, "
     "found -0.1"},
    {"Dropout(0.25)", "LogSoftmax()",
     "net.yaml:11: module dropout1: LogSoftmax(): argument 'dim' is missing"},
    {"Dropout(0.25)", "MaxPool2d(2, ceil_mode=True)",
     "net.yaml:11: module dropout1: MaxPool2d(): ceil_mode and return_indices are not supported"},
    {"Dropout(0.25)", "MaxPool2d(2, dilation=2)",
     "net.yaml:11: module dropout1: MaxPool2d(): only dilation=1 is supported"},
    {"Dropout(0.25)", "Sequential(ReLU)",
     "net.yaml:11: module dropout1.0: expected a constructor such as Conv2d(1, 32, 3)"},
    {"Dropout(0.25)", "Sequential(inplace=ReLU())",
     "net.yaml:11: module dropout1: Sequential() has no argument 'inplace'"},
    {"Dropout(0.25)", "Sequential(ReLU(), Relu())",
     "net.yaml:11: module dropout1.1: unknown module 'Relu'; did you mean 'ReLU'?"},
    {"Dropout(0.25)", "0 * Dropout(0.25)",
     "net.yaml:11: module dropout1: expected an integer from 1 to 10000 before '*', found 0"},
    {"Dropout(0.25)", "0.5 * Dropout(0.25)",
     "net.yaml:11: module dropout1: expected an integer from 1 to 10000 before '*', found 0.5"},
    {"Dropout(0.25)", "10000 * Dropout(0.25)", "net.yaml:11: more than 10000 modules"},
    {"Dropout(0.25)", "1000 * Sequential(1000 * ReLU())", "net.yaml:11: more than 10000 modules"},
    {"dropout1: D", "1st: D",
     "net.yaml:11: '1st' cannot be the name of a module: expected letters, digits and _, no digit "
     "first, at most 64, and no word of the language"},
    {"dropout1: D", "for: D",
     "net.yaml:11: 'for' cannot be the name of a module: expected letters, digits and _, no digit "
     "first, at most 64, and no word of the language"},
    {"dropout1: D", "a.b: D",
     "net.yaml:11: 'a.b' cannot be the name of a module: expected letters, digits and _, no digit "
     "first, at most 64, and no word of the language"},
    {"dropout1: D", "conv1: D", "net.yaml:11: key 'conv1' is given twice; the first is on line 9"},

    /* syntax */
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, 3",
     "net.yaml:9: modules.conv1: expected ',' or ')' at the end of 'Conv2d(1, 32, 3'"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 32, 3, 1))",
     "net.yaml:9: modules.conv1: expected the end of the line, found ')' at column 20 of "
     "'Conv2d(1, 32, 3, 1))'"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, , 3)",
     "net.yaml:9: modules.conv1: expected a value, found ',' at column 11 of 'Conv2d(1, , 3)'"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 3x)",
     "net.yaml:9: modules.conv1: '3x' at column 11 is not a number"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 1.2.3)",
     "net.yaml:9: modules.conv1: '1.2.3' at column 11 is not a number"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1; 2)",
     "net.yaml:9: modules.conv1: unexpected ';' at column 9"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1\xc3\xa9)",
     "net.yaml:9: modules.conv1: unexpected character at column 9"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 'x)",
     "net.yaml:9: modules.conv1: the text at column 11 has no closing '"},
    {"Conv2d(1, 32, 3, 1)", "Conv2d(1, 'x\\n')",
     "net.yaml:9: modules.conv1: backslashes are not supported in the text at column 11"},
    {"x = relu(conv1(x))", "x = = relu(conv1(x))",
     "net.yaml:17: expected a value, found '=' at column 5 of 'x = = relu(conv1(x))'"},
    {"x = relu(conv1(x))", "relu(conv1(x))",
     "net.yaml:17: expected '=', found '(' at column 5 of 'relu(conv1(x))'"},
    {"x = relu(conv1(x))", "x.y = relu(conv1(x))",
     "net.yaml:17: expected '=', found '.' at column 2 of 'x.y = relu(conv1(x))'"},
    {"x = relu(conv1(x))", "None = relu(conv1(x))",
     "net.yaml:17: expected NAME = ..., found 'None' at column 1 of 'None = relu(conv1(x))'"},
    {"x = relu(conv1(x))", "x: relu(conv1(x))",
     "net.yaml:17: key 'forward[0]': expected NAME = ... or for NAME in NAME: ..., found a "
     "mapping"},
    {"x = relu(conv1(x))", "[x]",
     "net.yaml:17: key 'forward[0]': expected NAME = ... or for NAME in NAME: ..., found a list"},
    {"x = relu(conv1(x))", "for x conv1: x = 3",
     "net.yaml:17: expected 'in', found 'conv1' at column 7 of 'for x conv1'"},
    {"x = relu(conv1(x))", "for y in conv1:", "net.yaml:17: the loop has no body"},
    {"x = relu(conv1(x))", "'for y in conv1'",
     "net.yaml:17: expected ':' at the end of 'for y in "
     "conv1'"},
    {"forward:\n", "forward: x = 3\nblocks:\n",
     "net.yaml:16: key 'forward': expected a list of lines, found 'x = 3'"},

    {"Conv2d(1, 32, 3, 1)", "Con2vd(1, 32, 3, 1)",
     "net.yaml:9: module conv1: unknown module 'Con2vd'; did you mean 'Conv2d'?"},

    /* names in forward */
    {"relu(conv1(x))", "relo(conv1(x))",
     "net.yaml:17: unknown function or module 'relo'; did you mean 'relu'?"},
    {"relu(conv1(x))", "relu(conv3(x))",
     "net.yaml:17: unknown function or module 'conv3'; did you mean 'conv1'?"},
    {"relu(conv1(x))", "relu(conv1(y))", "net.yaml:17: unknown name 'y'; did you mean 'x'?"},
    {"relu(conv1(x))", "relu(conv1)",
     "net.yaml:17: 'conv1' is a module, not a tensor; call it: conv1(x)"},
    {"relu(conv1(x))", "relu(conv1(3))", "net.yaml:17: expected a tensor, found a constant"},
    {"relu(conv1(x))", "relu(conv1(x, x))",
     "net.yaml:17: module 'conv1' takes one argument, a tensor"},
    {"relu(conv1(x))", "relu(conv1(input=x))",
     "net.yaml:17: module 'conv1' takes one argument, a tensor"},
    {"relu(conv1(x))", "relu()", "net.yaml:17: relu(): argument 'input' is missing"},
    {"relu(conv1(x))", "conv1.weight(x)",
     "net.yaml:17: module 'conv1' (Conv2d) has no module 'weight'"},
    {"relu(conv1(x))", "x % x",
     "net.yaml:17: tensors can be combined with + - * /; '%' is not supported"},
    {"relu(conv1(x))", "x // 2",
     "net.yaml:17: tensors can be combined with + - * /; '//' is not supported"},
    {"relu(conv1(x))", "-3", "net.yaml:17: expected a tensor, found a constant"},
    {"relu(conv1(x))", "2 + 1", "net.yaml:17: expected a tensor, found a constant"},
    {"relu(conv1(x))", "x / 0", "net.yaml:17: division by zero"},
    {"relu(conv1(x))", "nll_loss(x, target)",
     "net.yaml:17: nll_loss() belongs under the key 'loss'"},
    {"conv1(x)", "chunk(x, 2, dim=1)",
     "net.yaml:17: chunk() gives several tensors; take one of them, as in chunk(x, 2, dim=1)[0]"},
    {"conv1(x)", "chunk(x, 2, dim=1)[2]", "net.yaml:17: chunk(): there is no part 2 of 2"},
    {"conv1(x)", "relu(x)[0]",
     "net.yaml:17: the batch is dimension 0 and stays whole, as in x[:, 0] or x[:, 1:-1]; one of "
     "several tensors has a place in [ ] only behind chunk(x, 2, dim=1)"},
    {"relu(conv1(x))", "x[1:, 0]",
     "net.yaml:17: expected ']', found ':' at column 8 of 'x = x[1:, 0]'"},
    {"relu(conv1(x))", "x[:, 0.5]", "net.yaml:17: expected an integer in [ ], found 0.5"},
    {"relu(conv1(x))", "x[:, ]",
     "net.yaml:17: expected a value, found ']' at column 10 of 'x = x[:, ]'"},
    {"relu(conv1(x))", "x[:, 1:2:3]",
     "net.yaml:17: expected ']', found ':' at column 13 of 'x = x[:, 1:2:3]'"},
    {"conv1(x)", "reshape(x, (8, -1))",
     "net.yaml:17: reshape(): argument 'shape': the batch dimension comes first, as -1 or "
     "x.shape[0]; found 8"},
    {"conv1(x)", "reshape(x, (-1, 8, -1))",
     "net.yaml:17: reshape(): argument 'shape': only one size can be -1"},
    {"conv1(x)", "reshape(x, (-1, 0))",
     "net.yaml:17: reshape(): argument 'shape': expected a positive integer below 2^31 or -1, "
     "found 0"},
    {"conv1(x)", "reshape(x, (-1, x.shape[0]))",
     "net.yaml:17: reshape(): argument 'shape': unknown name 'x.shape'"},
    {"conv1(x)", "reshape(x, 28)",
     "net.yaml:17: reshape(): argument 'shape': expected 1 to 6 sizes, as in (2, 3)"},
    {"conv1(x)", "reshape(x)", "net.yaml:17: reshape(): argument 'shape' is missing"},
    {"conv1(x)", "unflatten(x, 1, (x.size(0), 28))",
     "net.yaml:17: unflatten(): argument 'sizes': none of them is the batch's"},
    {"conv1(x)", "cat([x], dim=1)",
     "net.yaml:17: cat(): expected 2 to 16 tensors and a dimension, as in cat([x, y], dim=1)"},
    {"conv1(x)", "cat([x, y], dim=1)", "net.yaml:17: unknown name 'y'; did you mean 'x'?"},
    {"conv1(x)", "cat([x, x], dim=x)", "net.yaml:17: unknown name 'x'"},
    {"conv1: Conv2d(1, 32, 3, 1)", "conv1: Parameter(0)",
     "net.yaml:9: module conv1: Parameter(): expected a positive integer below 2^31, found 0"},
    {"conv1: Conv2d(1, 32, 3, 1)", "conv1: Parameter()",
     "net.yaml:9: module conv1: Parameter() takes 1 to 6 sizes"},
    {"conv1: Conv2d(1, 32, 3, 1)", "conv1: Sequential(Parameter(4))",
     "net.yaml:9: module conv1.0: a Parameter belongs to a block or the model, not to a list of "
     "modules"},
    {"conv1: Conv2d(1, 32, 3, 1)", "conv1: 'GroupNorm(3, 32)'",
     "net.yaml:9: module conv1: GroupNorm(): num_groups=3 does not divide num_channels=32"},
    {"conv1: Conv2d(1, 32, 3, 1)", "conv1: 'AvgPool2d(2, ceil_mode=True)'",
     "net.yaml:9: module conv1: AvgPool2d(): ceil_mode is not supported"},
    {"x = max_pool2d(x, 2)", "x = max_pool2d(x)",
     "net.yaml:19: max_pool2d(): argument 'kernel_size' is missing"},
    {"x = max_pool2d(x, 2)", "x = max_pool2d(x, x)",
     "net.yaml:19: max_pool2d(): argument 'kernel_size': unknown name 'x'"},
    {"x = max_pool2d(x, 2)", "x = max_pool2d(x, 2, ceil_mode=True)",
     "net.yaml:19: max_pool2d(): ceil_mode and return_indices are not supported"},
    {"output = log", "outputs = log", "net.yaml:4: the forward lines of Net never set 'output'"},
    {"- x = dropout1(x)", "- for layer in conv1: x = layer(x)",
     "net.yaml:20: 'conv1' is not a list of modules"},
    {"- x = dropout1(x)", "- for layer in layers: x = layer(x)",
     "net.yaml:20: 'layers' is not a list of modules"},

    /* loss, tie, freeze */
    {"loss: nll_loss(output", "loss: nll_loss(outputs",
     "net.yaml:27: unknown name 'outputs'; did you mean 'output'?"},
    {"(output, target, reduction=\"sum\")", "(output, targets)",
     "net.yaml:27: nll_loss(): argument 'target' must be target"},
    {"(output, target, reduction=\"sum\")", "(output)",
     "net.yaml:27: nll_loss(): argument 'target' is missing"},
    {"reduction=\"sum\"", "reduction=\"none\"",
     "net.yaml:27: nll_loss(): argument 'reduction': expected \"sum\" or \"mean\", found 'none'"},
    {"loss: nll_loss", "loss: relu",
     "net.yaml:27: unknown loss 'relu'; the losses are nll_loss, cross_entropy, mse_loss, l1_loss, "
     "huber_loss, smooth_l1_loss, "
     "binary_cross_entropy_with_logits, kl_div, focal_loss, sigmoid_focal_loss, "
     "triplet_margin_loss, "
     "multiple_negatives_ranking_loss, clip_loss"},
    {"loss: nll_loss", "loss: cross_entrpoy",
     "net.yaml:27: unknown loss 'cross_entrpoy'; did you mean 'cross_entropy'?"},
    {"nll_loss(output, target, reduction=\"sum\")", "3",
     "net.yaml:27: the loss must be a call such as cross_entropy(output, target); the losses are "
     "nll_loss, cross_entropy, mse_loss, l1_loss, huber_loss, smooth_l1_loss, "
     "binary_cross_entropy_with_logits, kl_div, focal_loss, sigmoid_focal_loss, "
     "triplet_margin_loss, "
     "multiple_negatives_ranking_loss, clip_loss"},
    {"nll_loss(output, target, reduction=\"sum\")", "mse_loss(output, target)",
     "net.yaml:27: mse_loss() needs 'targets' instead of 'classes'"},
    {"nll_loss(output, target, reduction=\"sum\")", "mse_loss(output, y)",
     "net.yaml:27: unknown name 'y'; did you mean 'x'?"},
    {"nll_loss(output, target, reduction=\"sum\")", "nll_loss(output, target) + 0 * mse_loss(x, x)",
     "net.yaml:27: the factor of a term of the loss is 0, expected more than 0"},
    {"nll_loss(output, target, reduction=\"sum\")", "nll_loss(output, target) - mse_loss(x, x)",
     "net.yaml:27: the loss must be a call such as cross_entropy(output, target); the losses are "
     "nll_loss, cross_entropy, mse_loss, l1_loss, huber_loss, smooth_l1_loss, "
     "binary_cross_entropy_with_logits, kl_div, focal_loss, sigmoid_focal_loss, "
     "triplet_margin_loss, multiple_negatives_ranking_loss, clip_loss"},
    {"nll_loss(output, target, reduction=\"sum\")",
     "nll_loss(output, target) + mse_loss(x, x, reduction='sum') / 2",
     "net.yaml:27: mse_loss(): all terms of the loss have the same reduction"},
    {"nll_loss(output, target, reduction=\"sum\")",
     "mse_loss(x, x) + nll_loss(output, target, weight=[1, 1, 1, 1, 1, 1, 1, 1, 1, 2])",
     "net.yaml:27: nll_loss(): one of several terms has no weights of classes"},
    {"nll_loss(output, target, reduction=\"sum\")",
     "nll_loss(output, target) + 2 * (triplet_margin_loss(output))",
     "net.yaml:27: triplet_margin_loss() needs 'texts: 2'"},
    {"nll_loss(output, target, reduction=\"sum\")", "kl_div(output, target)",
     "net.yaml:27: kl_div() needs 'targets' instead of 'classes'"},
    {"nll_loss(output, target, reduction=\"sum\")", "huber_loss(output, target, delta=0)",
     "net.yaml:27: huber_loss(): argument 'delta': expected a number above 0, found 0"},
    {"classes: 10", "targets: [10]",
     "net.yaml:27: nll_loss() needs 'classes' instead of 'targets'"},
    {"classes: 10", "classes: 10\ntargets: [10]",
     "net.yaml:7: key 'targets': a model has either 'classes' or 'targets'"},
    {"classes: 10", "targets: []",
     "net.yaml:6: key 'targets': expected 1 to 5 dimensions, found 0"},
    {"classes: 10", "token_classes: 10",
     "net.yaml:6: key 'token_classes': is only for models with 'input: tokens'"},
    {"loss: nll_loss(output, target, reduction=\"sum\")\n", "",
     "net.yaml:4: key 'loss' is missing"},
    {"loss: nll_loss(output, target", "loss: nll_loss(output target",
     "net.yaml:27: loss: expected ',' or ')', found 'target' at column 17 of 'nll_loss(output "
     "target, reduction=\"sum\")'"},
    {"classes: 10", "classes: 10\ntie: {conv1.weight: conv2.weight}",
     "net.yaml:7: key 'tie.conv1.weight': shapes differ: conv1.weight is (32, 1, 3, 3), "
     "conv2.weight is (64, 32, 3, 3)"},
    {"classes: 10", "classes: 10\ntie: {conv1.wieght: conv2.weight}",
     "net.yaml:7: key 'tie.conv1.wieght': the model has no parameter 'conv1.wieght'; did you mean "
     "'conv1.weight'?"},
    {"classes: 10", "classes: 10\ntie: {conv1.weight: conv1.weight}",
     "net.yaml:7: key 'tie.conv1.weight': conv1.weight and conv1.weight are one parameter already"},
    {"classes: 10", "classes: 10\ntie: [conv1.weight]",
     "net.yaml:7: key 'tie': expected a mapping from parameters to parameters, found a list"},
    {"classes: 10", "classes: 10\nfreeze: conv1.*",
     "net.yaml:7: key 'freeze': expected a list of patterns of parameter names, found 'conv1.*'"},
    {"classes: 10", "classes: 10\nfreeze: [conv9.*]",
     "net.yaml:7: key 'freeze[0]': no parameter matches 'conv9.*'"},
};

LOOP_TEST(mistakes_are_named, 0, COUNT_OF(mistakes))
{
    char *text = replace(buf_text(&mnist), mistakes[_i].old, mistakes[_i].new);
    assert_refused(text, strlen(text), mistakes[_i].message);
    free(text);
}

TEST(patterns_of_256_letters)
{
    char stars[252];
    memset(stars, '*', sizeof stars - 1);
    stars[sizeof stars - 1] = '\0';
    for (int more = 0; more < 2; more++) {
        AUTO_FREE char *key = mem_printf("classes: 10\nfreeze: ['conv1.%s']", stars + 1 - more);
        AUTO_FREE char *text = replace(buf_text(&mnist), "classes: 10", key);
        if (more == 0) model_free(parse(text));
        else
            assert_refused(text, strlen(text),
                           "net.yaml:7: key 'freeze[0]': longer than 256 letters");
    }
}

/* Targets that are missing are NaN, which a comparison or the model's input would not be. */
TEST(losses_against_numbers)
{
    static const char refused[] =
        "net.yaml:27: mse_loss(): with 'targets' it compares with target or parts of it";
    static const char *const losses[][2] = {
        {"mse_loss(output, target) + mse_loss(x, x)", refused},
        {"mse_loss(output, target > 0.5)", refused},
        {"kl_div(log_softmax(output, dim=-1), target, reduction=\"batchmean\")", NULL},
    };
    AUTO_FREE char *numbers = replace(buf_text(&mnist), "classes: 10", "targets: [10]");
    for (size_t i = 0; i < COUNT_OF(losses); i++) {
        AUTO_FREE char *text =
            replace(numbers, "nll_loss(output, target, reduction=\"sum\")", losses[i][0]);
        struct model *model = NULL;
        struct graph *graph = NULL;
        const struct graph_options options = {.batch_size = 2, .train = true};
        if (losses[i][1] != NULL) {
            assert_refused(text, strlen(text), losses[i][1]);
            continue;
        }
        ck_assert_ptr_null(model_parse(text, strlen(text), "net.yaml", &model));
        ck_assert_ptr_null(graph_build(model, &options, &graph));
        graph_free(graph);
        model_free(model);
    }
    /* Nor with the targets and what the model is given. */
    static const char mixed[] = "name: N\ninput: [4]\ntargets: [4]\n"
                                "modules: {fc: 'Linear(4, 4)'}\nforward: [output = fc(x)]\n"
                                "loss: mse_loss(output, target + x)\n";
    assert_refused(mixed, strlen(mixed),
                   "net.yaml:6: mse_loss(): with 'targets' it compares with target or parts of it");
}

/* CRF is not GRU, and topk is not rope. */
TEST(another_word_is_not_taken_for_a_misspelt_one)
{
    static const char *const words[][3] = {
        {"relu(conv1(x))", "topk(conv1(x))",
         "net.yaml:17: unknown function or module 'topk'; the functions and modules are relu, "},
        {"Conv2d(1, 32, 3, 1)", "CRF(1, 32)",
         "net.yaml:9: module conv1: unknown module 'CRF'; the modules are Conv2d, "},
        {"nll_loss(output, target, reduction=\"sum\")", "ctc_loss(output, target)",
         "net.yaml:27: unknown loss 'ctc_loss'; the losses are nll_loss, cross_entropy, "},
    };
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        struct model *model = NULL;
        char *text = replace(buf_text(&mnist), words[i][0], words[i][1]);
        status_t status = model_parse(text, strlen(text), "net.yaml", &model);
        ck_assert_ptr_nonnull(status);
        ck_assert_msg(strncmp(status_message(status), words[i][2], strlen(words[i][2])) == 0, "%s",
                      status_message(status));
        status_free(status);
        free(text);
    }
}

/* One change to the file with blocks each. */
static const struct {
    const char *old, *new, *message;
} block_mistakes[] = {
    {"Layer(width, hidden=2 * 4", "Layer(width, width=2 * 4",
     "net.yaml:5: block 'Layer(width, width=2 * 4, bias=True)': argument 'width' is named twice"},
    {"Layer(width, hidden=2 * 4", "Layer(3, hidden=2 * 4",
     "net.yaml:5: block 'Layer(3, hidden=2 * 4, bias=True)': expected the name of an argument"},
    {"Layer(width, hidden=2 * 4", "Layer(x, hidden=2 * 4",
     "net.yaml:5: block 'Layer(x, hidden=2 * 4, bias=True)': an argument cannot be called 'x'"},
    {"Layer(width, hidden=2 * 4", "Layer(width, hidden=other",
     "net.yaml:5: block 'Layer(width, hidden=other, bias=True)': unknown name 'other'"},
    {"  Layer(width, hidden=2 * 4, bias=True)", "  2 + 3",
     "net.yaml:5: block '2 + 3': expected a block's name and arguments such as Block(channels, "
     "p=0.1)"},
    {"  Tower(width, depth)", "  Linear(width, depth)",
     "net.yaml:11: block 'Linear(width, depth)': 'Linear' is a module of the library already"},
    {"  Tower(width, depth)", "  Layer(width, depth)",
     "net.yaml:11: block 'Layer' is defined twice; the first is on line 5"},
    {"      up: Linear(width", "      up: Linear(with",
     "net.yaml:7: module first.3.up: Linear(): argument 'in_features': unknown name 'with'; did "
     "you "
     "mean 'width'?"},
    {"Tower(8, 2)", "Tower(8)",
     "net.yaml:19: module towers.0: Tower(): argument 'depth' is missing"},
    {"Tower(8, 2)", "Tower(8, 2, 3)",
     "net.yaml:19: module towers.0: Tower() takes at most 2 arguments, found 3"},
    {"Tower(8, 2)", "Tower(8, dept=2)",
     "net.yaml:19: module towers.0: Tower() has no argument 'dept'; did you mean 'depth'?"},
    {"Tower(8, 2)", "Towers(8, 2)",
     "net.yaml:19: module towers.0: unknown module 'Towers'; did you mean 'Tower'?"},
    {"depth * Layer(width, hidden=4 * width // 2)", "Tower(width, depth)",
     "net.yaml:13: module towers.0.layers: block 'Tower' would contain itself"},
    {"x = layer(x)", "x = layer(y)",
     "net.yaml:15: in towers.0: unknown name 'y'; did you mean 'x'?"},
    {"x = layer(x)", "x = layers(x)",
     "net.yaml:15: in towers.0: 'towers.0.layers' is a ModuleList, which cannot be called; write: "
     "for layer in layers: x = layer(x)"},
    {"x = layer(x)", "x = relu(layer)",
     "net.yaml:15: in towers.0: 'layer' is a module, not a tensor; call it: layer(x)"},
    {"x = layer(x)", "x = relu(depth)",
     "net.yaml:15: in towers.0: 'depth' is an argument of the block, not a tensor"},
    {"- output = x\n", "- y = x\n",
     "net.yaml:11: in towers.0: the forward lines of Tower never set 'output'"},
    {"towers[0].layers[1]", "towers[0].layers[7]",
     "net.yaml:26: module 'towers.0.layers' (ModuleList) has no module '7.up'"},
    {"towers[0].layers[1]", "towers[x].layers[1]",
     "net.yaml:26: only constants have computed places in a list; a module's is a number, as in "
     "layers[0]"},
    {"    forward:\n      - output = x +", "    forwards:\n      - output = x +",
     "net.yaml:9: unknown key 'blocks.Layer(width, hidden=2 * 4, bias=True).forwards'; did you "
     "mean "
     "'forward'?"},
};

/* If no name is close, the message lists them all: this is its beginning, and its end. */
TEST(unknown_names_list_what_there_is)
{
    static const char *const cases[][4] = {
        {"Conv2d(1, 32, 3, 1)", "MultiheadAttention(8, 3, batch_first=True)",
         "net.yaml:9: module conv1: MultiheadAttention(): num_heads=3 does not divide embed_dim=8",
         ""},
        {"Conv2d(1, 32, 3, 1)", "MultiheadAttention(8, 2, batch_first=True)",
         "net.yaml:17: module 'conv1' takes query, key and value, as in conv1(x, x, x)", ""},
        {"Conv2d(1, 32, 3, 1)", "LSTM(1, 32)",
         "net.yaml:9: module conv1: LSTM(): only batch_first=True: the batch is dimension 0", ""},
        {"Conv2d(1, 32, 3, 1)", "GRU(1, 32, 9, batch_first=True)",
         "net.yaml:9: module conv1: GRU(): num_layers is at most 8, found 9", ""},
        {"Conv2d(1, 32, 3, 1)", "ConvTranspose2d(1, 32, 3, 2, output_padding=2)",
         "net.yaml:9: module conv1: ConvTranspose2d(): output_padding=2 must be below stride=2",
         ""},
        {"Conv2d(1, 32, 3, 1)", "Quaternion(1)",
         "net.yaml:9: module conv1: unknown module 'Quaternion'; the modules are Conv2d, Conv1d, ",
         ", Sequential, ModuleList"},
        {"relu(conv1(x))", "softmax2d_with_everything(x)",
         "net.yaml:17: unknown function or module 'softmax2d_with_everything'; the functions and "
         "modules are relu, max_pool2d, ",
         ", fc1, fc2"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char *text = replace(buf_text(&mnist), cases[i][0], cases[i][1]);
        struct model *model = NULL;
        status_t status = model_parse(text, strlen(text), "net.yaml", &model);
        const char *message = status_message(status), *end = cases[i][3];
        ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
        ck_assert_msg(strncmp(message, cases[i][2], strlen(cases[i][2])) == 0, "%s", message);
        ck_assert_str_eq(message + strlen(message) - strlen(end), end);
        status_free(status);
        free(text);
    }
}

LOOP_TEST(block_mistakes_are_named, 0, COUNT_OF(block_mistakes))
{
    char *text = replace(residual, block_mistakes[_i].old, block_mistakes[_i].new);
    assert_refused(text, strlen(text), block_mistakes[_i].message);
    free(text);
}

/* The first example below the heading that starts like ```yaml; the caller frees. */
static char *documented_example(const char *document, const char *heading)
{
    const char *start = strstr(document, heading);
    ck_assert_msg(start != NULL, "there is no heading %s", heading);
    start = strstr(start, "\n```yaml\n");
    ck_assert_msg(start != NULL, "there is no example below %s", heading);
    start += strlen("\n```yaml\n");
    return mem_strndup(start, (size_t)(strstr(start, "\n```") - start) + 1);
}

TEST(documented_examples_are_right)
{
    const char *root = getenv("srcdir");
    char *path = file_path_join(root ? root : ".", "docs/model-file.md");
    struct buf document = {0};
    status_t status = file_read(path, 1 << 20, &document);
    ck_assert_msg(!status, "%s", status_message(status));
    free(path);

    char *text = documented_example(buf_text(&document), "# The model file\n");
    ck_assert_msg(strstr(buf_text(&mnist), strstr(text, "modules:")) != NULL,
                  "the document shows another network than examples/mnist/net.yaml");
    model_free(parse(text));
    free(text);

    char *blocks = documented_example(buf_text(&document), "\n## Blocks\n");
    text = mem_printf("name: R\ninput: [3, 32, 32]\nclasses: 10\n%s"
                      "loss: cross_entropy(output, target)\n",
                      blocks);
    struct model *model = parse(text);
    ck_assert_int_ge(model_find_parameter(model, "layers.0.conv1.weight"), 0);
    model_free(model);
    free(blocks);
    free(text);

    text = documented_example(buf_text(&document), "\n## Arguments and expressions\n");
    model = parse(text);
    ck_assert_int_eq(model->class_count, 256);
    ck_assert_int_ge(model_find_module(model, "layers.5.norm"), 0);
    ck_assert_int_eq(model_find_module(model, "layers.4.norm"), -1);
    model_free(model);
    free(text);

    text = documented_example(buf_text(&document), "\n## A transformer\n");
    model_free(parse(text));
    path = file_path_join(root ? root : ".", "examples/gpt2/model.yaml");
    struct buf example = {0};
    status = file_read(path, 1 << 20, &example);
    ck_assert_msg(!status, "%s", status_message(status));
    free(path);
    ck_assert_msg(strstr(buf_text(&example), text) != NULL,
                  "the document shows another network than examples/gpt2/model.yaml");
    free(text);
    buf_deinit(&example);
    buf_deinit(&document);
}
