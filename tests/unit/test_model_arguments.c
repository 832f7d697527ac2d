/* Arguments of a model file: sizes, conditions and choices by layer that are expressions over
 * them. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model_files.h"
#include "tests/testing.h"

static const char layered[] = "name: Layered\n"
                              "input: tokens\n"
                              "vocabulary: 3 * width + 1\n"
                              "context: min(time, 64)\n"
                              "args:\n"
                              "  width: 8\n"
                              "  time: 100\n"
                              "  act: gelu_new\n"
                              "  tied: true\n"
                              "  bias: false\n"
                              "  padding: null\n"
                              "  range: 0.02\n"
                              "  kinds: [plain, normed, normed]\n"
                              "blocks:\n"
                              "  Layer(kind, width=2 * width):\n"
                              "    modules:\n"
                              "      norm: LayerNorm(width // 2) if kind == 'normed' else None\n"
                              "      up: Linear(width // 2, width, bias=bias)\n"
                              "      act: ACT2FN[act]\n"
                              "      down: Linear(width, width // 2, bias=bias)\n"
                              "    forward:\n"
                              "      - y = norm(x) if kind == 'normed' else x\n"
                              "      - output = x + down(act(up(y)))\n"
                              "modules:\n"
                              "  embed: Embedding(3 * width + 1, width, padding_idx=padding)\n"
                              "  layers: '[Layer(kind) for kind in kinds]'\n"
                              "  more: '[Layer(kinds[i]) for i in range(len(kinds) - 1)]'\n"
                              "  head: Linear(width, 3 * width + 1, bias=bias)\n"
                              "forward:\n"
                              "  - y = embed(x)\n"
                              "  - for layer in layers: y = layer(y)\n"
                              "  - for layer in more: y = layer(y)\n"
                              "  - output = head(y)\n"
                              "loss: cross_entropy(output, target)\n"
                              "init:\n"
                              "  - {match: '*.bias', zeros: bias}\n"
                              "  - {match: '*.up.weight', normal: range / sqrt(2 * width)}\n"
                              "tie: {head.weight: embed.weight if tied else None}\n";

static struct model *parse_with(const char *text, const struct model_argument *set, int count)
{
    struct model *model = NULL;
    status_t status = model_parse_with(text, strlen(text), "net.yaml", set, count, &model);
    ck_assert_msg(!status, "%s", status_message(status));
    return model;
}

static const char *print_of(const struct model *model, const char *path)
{
    int module = model_find_module(model, path);
    ck_assert_msg(module >= 0, "%s", path);
    return model->modules[module].print;
}

TEST(sizes_and_conditions_are_expressions)
{
    struct model *model = parse(layered);
    ck_assert_int_eq(model->class_count, 25);
    ck_assert_int_eq(model->context, 64);
    ck_assert_str_eq(print_of(model, "embed"), "25, 8");
    ck_assert_str_eq(print_of(model, "layers.1.up"), "in_features=8, out_features=16, bias=False");
    ck_assert_str_eq(print_of(model, "layers.1.act"), "approximate='tanh'");
    ck_assert_str_eq(print_of(model, "layers.1.norm"),
                     "(8,), eps=1e-05, elementwise_affine=True, bias=True");
    ck_assert_int_eq(model_find_module(model, "layers.0.norm"), -1);
    ck_assert_int_eq(model_find_module(model, "more.0.norm"), -1);
    ck_assert_int_ge(model_find_module(model, "more.1.norm"), 0);
    ck_assert_int_eq(model_find_module(model, "more.2"), -1);
    int up = model_find_parameter(model, "layers.2.up.weight");
    ck_assert_double_eq(model->parameters[up].bound, 0.005);
    int head = model_find_parameter(model, "head.weight");
    ck_assert_int_eq(model->parameters[head].tied_to, 0);
    model_free(model);
}

TEST(arguments_are_set_from_outside)
{
    const struct model_argument set[] = {
        {"width", "6"}, {"tied", "false"}, {"bias", "true"}, {"act", "relu"}, {"padding", "-1"}};
    struct model *model = parse_with(layered, set, 5);
    ck_assert_int_eq(model->class_count, 19);
    ck_assert_str_eq(print_of(model, "embed"), "19, 6, padding_idx=-1");
    ck_assert_str_eq(print_of(model, "head"), "in_features=6, out_features=19, bias=True");
    ck_assert_str_eq(model->modules[model_find_module(model, "layers.0.act")].type, "ReLU");
    int head = model_find_parameter(model, "head.weight");
    ck_assert_int_eq(model->parameters[head].tied_to, -1);
    ck_assert_int_eq(model->parameters[head + 1].init, INIT_ZEROS);
    model_free(model);
}

static const struct {
    const char *name, *value, *message;
} wrong_values[] = {
    {"widht", "6", "net.yaml: the model has no argument 'widht'; did you mean 'width'?"},
    {"kinds", "plain", "net.yaml: args.kinds: a list cannot be set here"},
    {"width", "0.5", "net.yaml: args.width: expected an integer, as the file's 8, found '0.5'"},
    {"width", "wide", "net.yaml: args.width: expected an integer, as the file's 8, found 'wide'"},
    {"range", "true", "net.yaml: args.range: expected a number, as the file's 0.02, found 'true'"},
    {"width", "0",
     "net.yaml:25: module embed: Embedding(): argument 'embedding_dim': expected a positive "
     "integer "
     "below 2^31, found 0"},
    {"act", "quick", "net.yaml:19: module layers.0.act: ACT2FN has no activation 'quick'"},
    {"tied", "3", "net.yaml: args.tied: expected true or false, as the file's True, found '3'"},
    {"range", "-1",
     "net.yaml:37: key 'init[1].normal': expected a number from 0 to 1e+30, found "
     "-0.25"},
};

LOOP_TEST(wrong_values_are_named, 0, COUNT_OF(wrong_values))
{
    const struct model_argument set = {wrong_values[_i].name, wrong_values[_i].value};
    struct model *model = NULL;
    status_t status = model_parse_with(layered, strlen(layered), "net.yaml", &set, 1, &model);
    ck_assert_str_eq(status_message(status), wrong_values[_i].message);
    status_free(status);
}

static const struct {
    const char *old, *new, *message;
} mistakes[] = {
    {"  width: 8\n", "  output: 8\n", "net.yaml:6: an argument cannot be called 'output'"},
    {"  width: 8\n", "  width: {a: 8}\n",
     "net.yaml:6: key 'args.width': expected a number, a text, true, false, null, or a list of "
     "them, found a mapping"},
    {"  kinds: [plain,", "  kinds: [[plain],",
     "net.yaml:13: key 'args.kinds[0]': expected a number, a text, true, false, null, or a list of "
     "them, found a list"},
    {"vocabulary: 3 *", "vocabulary: 3 +* ",
     "net.yaml:3: key 'vocabulary': expected a value, found '*' at column 4 of '3 +*  width + 1'"},
    {"context: min(time, 64)", "context: act",
     "net.yaml:4: key 'context': a text cannot stand here"},
    {"if kind == 'normed' else None", "if kinds else None",
     "net.yaml:17: module layers.0.norm: a condition is True or False, found a list"},
    {"for kind in kinds]", "for kind in width]",
     "net.yaml:26: module layers: expected range(N) or a list behind 'in'"},
    {"range(len(kinds) - 1)", "range(0 - 1)",
     "net.yaml:27: module more: expected 0 to 10000 modules, found -1"},
    {"y = embed(x)", "y = gelu(width)",
     "net.yaml:30: 'width' is an argument of the model, not a tensor"},
    {"output = head(y)", "output = head(y) if y else y", "net.yaml:33: unknown name 'y'"},
    {"act: ACT2FN[act]", "act: ACT2FN[width]",
     "net.yaml:19: module layers.0.act: ACT2FN has no activation 16"},
    {"zeros: bias", "zeros: width",
     "net.yaml:36: key 'init[0].zeros': expected True or False, found 8"},
    {"zeros: bias", "zeros: not bias",
     "net.yaml:36: key 'init[0].match': no parameter matches "
     "'*.bias'"},
};

LOOP_TEST(mistakes_are_named, 0, COUNT_OF(mistakes))
{
    char *text = replace(layered, mistakes[_i].old, mistakes[_i].new);
    if (strstr(mistakes[_i].new, "not bias") != NULL) {
        char *normless = replace(text, "[plain, normed, normed]", "[plain, plain, plain]");
        free(text);
        text = normless;
    }
    assert_refused(text, strlen(text), mistakes[_i].message);
    free(text);
}
