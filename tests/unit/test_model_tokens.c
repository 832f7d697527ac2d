/*
 * Models of tokens: the models of the transformers in examples/, blocks with several inputs,
 * initial values by rule, and one message for each mistake. Run from anywhere: $srcdir is the place
 * of the examples.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "graph_dump.h"
#include "model_files.h"
#include "tests/testing.h"
#include "tiny_models.h"

/* In the order of transformers' state_dict. */
static const struct {
    const char *name, *shape;
    enum init_kind init;
    double bound;
} gpt2_parameters[] = {
    {"transformer.wte.weight", "(13, 6)", INIT_NORMAL, 0.02},
    {"transformer.wpe.weight", "(9, 6)", INIT_NORMAL, 0.02},
    {"transformer.h.0.ln_1.weight", "(6,)", INIT_ONES, 0},
    {"transformer.h.0.ln_1.bias", "(6,)", INIT_ZEROS, 0},
    {"transformer.h.0.attn.c_attn.weight", "(6, 18)", INIT_NORMAL, 0.02},
    {"transformer.h.0.attn.c_attn.bias", "(18,)", INIT_ZEROS, 0},
    {"transformer.h.0.attn.c_proj.weight", "(6, 6)", INIT_NORMAL, 0.007071067811865475},
    {"transformer.h.0.attn.c_proj.bias", "(6,)", INIT_ZEROS, 0},
    {"transformer.h.0.ln_2.weight", "(6,)", INIT_ONES, 0},
    {"transformer.h.0.ln_2.bias", "(6,)", INIT_ZEROS, 0},
    {"transformer.h.0.mlp.c_fc.weight", "(6, 24)", INIT_NORMAL, 0.02},
    {"transformer.h.0.mlp.c_fc.bias", "(24,)", INIT_ZEROS, 0},
    {"transformer.h.0.mlp.c_proj.weight", "(24, 6)", INIT_NORMAL, 0.007071067811865475},
    {"transformer.h.0.mlp.c_proj.bias", "(6,)", INIT_ZEROS, 0},
};

TESTS_BELOW(.timeout = 60);

TEST(gpt2_is_that_of_transformers)
{
    struct model *model = tiny_model(TINY_GPT2);
    ck_assert(model->tokens);
    ck_assert_int_eq(model->class_count, 13);
    ck_assert_int_eq(model->context, 9);
    char shape[128];
    ck_assert_str_eq(tensor_format_shape(&model->input, shape), "(9,)");
    ck_assert_int_eq(model->input.dtype, DTYPE_I32);
    int count = COUNT_OF(gpt2_parameters);
    ck_assert_int_eq(model->parameter_count, count + 12 + 3); /* a block more, ln_f, lm_head */
    for (int i = 0; i < count; i++) {
        const struct parameter *parameter = &model->parameters[i];
        ck_assert_str_eq(parameter->name, gpt2_parameters[i].name);
        ck_assert_str_eq(tensor_format_shape(&parameter->type, shape), gpt2_parameters[i].shape);
        ck_assert_int_eq(parameter->init, gpt2_parameters[i].init);
        ck_assert_double_eq(parameter->bound, gpt2_parameters[i].bound);
        ck_assert(!parameter->has_zero_row);
    }
    const struct parameter *head = &model->parameters[count + 14];
    ck_assert_str_eq(head->name, "lm_head.weight");
    ck_assert_int_eq(head->tied_to, 0);
    /* The tied head is drawn too, and discarded. */
    ck_assert_int_eq(head->init, INIT_UNIFORM);
    ck_assert_int_eq(head->init_order, count + 14);
    int block = model_find_module(model, "transformer.h.1");
    ck_assert_str_eq(model->modules[block].type, "GPT2Block");
    ck_assert_int_eq(model_find_module(model, "transformer.h.2"), -1);
    model_free(model);
}

LOOP_TEST(names_are_those_of_transformers, 0, TINY_COUNT)
{
    static const char *const names[TINY_COUNT][5] = {
        {"transformer.ln_f.bias"},
        {"model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight",
         "model.layers.0.mlp.gate_proj.weight", "model.layers.1.post_attention_layernorm.weight",
         "lm_head.weight"},
        {"bert.embeddings.word_embeddings.weight", "bert.embeddings.LayerNorm.bias",
         "bert.encoder.layer.1.attention.self.query.bias",
         "bert.encoder.layer.0.attention.output.dense.weight", "cls.predictions.decoder.weight"},
    };
    struct model *model = tiny_model(_i);
    for (int i = 0; i < 5 && names[_i][i]; i++)
        ck_assert_msg(model_find_parameter(model, names[_i][i]) >= 0, "%s", names[_i][i]);
    model_free(model);
}

/* Padding of the parameter that others are tied to; BERT's first row. */
TEST(padding_starts_as_zeros)
{
    struct model *model = tiny_model(TINY_BERT);
    for (int p = 0; p < model->parameter_count; p++) {
        bool padded =
            strcmp(model->parameters[p].name, "bert.embeddings.word_embeddings.weight") == 0;
        ck_assert_int_eq(model->parameters[p].has_zero_row, padded);
        ck_assert_int_eq(model->parameters[p].zero_row, 0);
    }
    model_free(model);
    model =
        parse("name: N\ninput: tokens\nvocabulary: 5\ncontext: 4\n"
              "modules: {head: 'Linear(3, 5, bias=False)', e: 'Embedding(5, 3, padding_idx=-2)'}\n"
              "forward: ['output = head(e(x))']\nloss: cross_entropy(output, target)\n"
              "tie: {head.weight: e.weight}\n");
    ck_assert_int_eq(model->parameters[1].tied_to, 0);
    ck_assert_int_eq(model->parameters[0].has_zero_row, true);
    ck_assert_int_eq(model->parameters[0].zero_row, 3);
    ck_assert_int_eq(model->parameters[0].init, INIT_NORMAL);
    ck_assert_int_eq(model->parameters[1].has_zero_row, false);
    model_free(model);
}

/* What PyTorch (and transformers, for Conv1D) prints for the same constructors. */
static const struct {
    const char *constructor, *type, *print;
} prints[] = {
    {"LeakyReLU(0.2)", "LeakyReLU", "negative_slope=0.2"},
    {"ELU(inplace=True)", "ELU", "alpha=1.0, inplace=True"},
    {"ReLU6()", "ReLU6", ""},
    {"Hardswish()", "Hardswish", ""},
    {"Identity()", "Identity", ""},
    {"Conv1d(4, 6, 3)", "Conv1d", "4, 6, kernel_size=(3,), stride=(1,)"},
    {"Conv1d(4, 6, 3, 2, padding=1, dilation=2, groups=2, bias=False)", "Conv1d",
     "4, 6, kernel_size=(3,), stride=(2,), padding=(1,), dilation=(2,), groups=2, bias=False"},
    {"ConvTranspose2d(4, 6, 3, stride=2)", "ConvTranspose2d",
     "4, 6, kernel_size=(3, 3), stride=(2, 2)"},
    {"ConvTranspose2d(4, 6, (3, 2), 3, (1, 0), 2, 2, False, 2)", "ConvTranspose2d",
     "4, 6, kernel_size=(3, 2), stride=(3, 3), padding=(1, 0), dilation=(2, 2), "
     "output_padding=(2, 2), groups=2, bias=False"},
    {"MaxPool1d(2)", "MaxPool1d",
     "kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False"},
    {"AvgPool1d(4, 2, 1)", "AvgPool1d", "kernel_size=(4,), stride=(2,), padding=(1,)"},
    {"AdaptiveAvgPool1d(1)", "AdaptiveAvgPool1d", "output_size=1"},
    {"BatchNorm1d(6)", "BatchNorm1d",
     "6, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True"},
    {"LSTM(4, 6, batch_first=True)", "LSTM", "4, 6, batch_first=True"},
    {"GRU(4, 6, 2, False, True, 0.5, True)", "GRU",
     "4, 6, num_layers=2, bias=False, batch_first=True, dropout=0.5, bidirectional=True"},
    {"MultiheadAttention(6, 2, 0.1, batch_first=True)", "MultiheadAttention",
     "6, 2, dropout=0.1, batch_first=True"},
    {"Embedding(10, 3)", "Embedding", "10, 3"},
    {"nn.Embedding(10, 3, padding_idx=2)", "Embedding", "10, 3, padding_idx=2"},
    {"LayerNorm(768)", "LayerNorm", "(768,), eps=1e-05, elementwise_affine=True, bias=True"},
    {"LayerNorm((768,), eps=1e-12, bias=False)", "LayerNorm",
     "(768,), eps=1e-12, elementwise_affine=True, bias=False"},
    {"LayerNorm(8, elementwise_affine=False)", "LayerNorm",
     "(8,), eps=1e-05, elementwise_affine=False, bias=False"},
    {"RMSNorm(64, eps=1e-6)", "RMSNorm", "(64,), eps=1e-06, elementwise_affine=True"},
    {"RMSNorm(64)", "RMSNorm", "(64,), eps=None, elementwise_affine=True"},
    {"GemmaRMSNorm(8)", "GemmaRMSNorm", "(8,), eps=1e-06"},
    {"Conv1D(2304, 768)", "Conv1D", "nf=2304, nx=768"},
    {"GELU()", "GELU", "approximate='none'"},
    {"GELU('tanh')", "GELU", "approximate='tanh'"},
    {"SiLU()", "SiLU", ""},
    {"SiLU(True)", "SiLU", "inplace=True"},
    {"Tanh()", "Tanh", ""},
    {"Sigmoid()", "Sigmoid", ""},
    {"ReLUSquaredActivation()", "ReLUSquaredActivation", ""},
    {"Softmax(dim=-1)", "Softmax", "dim=-1"},
};

#define HEAD "name: N\ninput: tokens\nvocabulary: 5\ncontext: 4\n"
#define TAIL "\nloss: cross_entropy(output, target)\n"

LOOP_TEST(modules_print_as_in_pytorch, 0, COUNT_OF(prints))
{
    char *text = mem_printf(HEAD "modules: {e: 'Embedding(5, 8)', m: \"%s\", h: 'Linear(8, 5)'}\n"
                                 "forward: ['output = h(e(x))']" TAIL,
                            prints[_i].constructor);
    struct model *model = parse(text);
    int module = model_find_module(model, "m");
    ck_assert_str_eq(model->modules[module].type, prints[_i].type);
    ck_assert_str_eq(model->modules[module].print, prints[_i].print);
    model_free(model);
    free(text);
}

static const char several[] =
    HEAD "blocks:\n"
         "  Inner(width):\n"
         "    inputs: [x, y, z]\n"
         "    modules: {self: 'Linear(width, width)', out: 'Linear(width, width)'}\n"
         "    forward:\n"
         "      - y = self.self(y) + self(z)\n"
         "      - output = self.out(x) + y\n"
         "  Outer(width):\n"
         "    inputs: [tokens, other]\n"
         "    modules: {inner: Inner(width), output: Inner(width)}\n"
         "    forward:\n"
         "      - x = inner(tokens, z=tokens, y=other)\n"
         "      - output = output(x, other, x)\n"
         "modules: {e: 'Embedding(5, 8)', f: 'Embedding(4, 8)', o: Outer(8), h: 'Linear(8, 5)'}\n"
         "forward:\n"
         "  - y = f(positions(x))\n"
         "  - output = h(o(e(x), e(x) + y))" TAIL;

TEST(blocks_take_several_tensors)
{
    struct model *model = parse(several);
    ck_assert_int_ge(model_find_parameter(model, "o.output.self.weight"), 0);
    struct graph *graph = NULL;
    struct graph_options options = {.batch_size = 2};
    status_t status = graph_build(model, &options, &graph);
    ck_assert_msg(!status, "%s", status_message(status));
    char *dump = graph_dump(graph);
    /* inner's y is o's other, its z o's tokens */
    ck_assert_msg(strstr(dump, "= linear(%18, o.inner.self.weight, o.inner.self.bias) (2, 4, 8)  # "
                               "o.inner.self\n") != NULL,
                  "%s", dump);
    ck_assert_msg(strstr(dump, "= linear(%16, o.inner.self.weight, o.inner.self.bias) (2, 4, 8)  # "
                               "o.inner.self_1\n") != NULL,
                  "%s", dump);
    free(dump);
    graph_free(graph);
    model_free(model);
}

/* One change to the file above each. */
static const struct mistake {
    const char *old, *new, *message;
} mistakes[] = {
    {"vocabulary: 5\n", "", "net.yaml:1: key 'vocabulary' is missing"},
    {"vocabulary: 5\n", "vocabulary: 5\nclasses: 5\ntoken_classes: 5\n",
     "net.yaml:5: key 'token_classes': a model has either 'classes' or 'token_classes'"},
    {"context: 4\n", "context: 0\n",
     "net.yaml:4: key 'context': expected an integer from 1 to 2147483647, found '0'"},
    {"context: 4\n", "contexts: 4\n",
     "net.yaml:4: unknown key 'contexts'; did you mean 'context'?"},
    {"input: tokens", "input: [4]",
     "net.yaml:3: key 'vocabulary': is only for models with 'input: tokens'"},
    {"input: tokens", "input: token",
     "net.yaml:2: key 'input': expected one sample's shape such as [1, 28, 28], or tokens, found "
     "'token'"},

    {"inputs: [x, y, z]", "inputs: x",
     "net.yaml:7: key 'blocks.Inner(width).inputs': expected a list of names such as [x, mask], "
     "found 'x'"},
    {"inputs: [x, y, z]", "inputs: []",
     "net.yaml:7: key 'blocks.Inner(width).inputs': expected 1 to 8 names, found 0"},
    {"inputs: [x, y, z]", "inputs: [a, b, c, d, e, f, g, h, i]",
     "net.yaml:7: key 'blocks.Inner(width).inputs': expected 1 to 8 names, found 9"},
    {"inputs: [x, y, z]", "inputs: [x, y, y]",
     "net.yaml:7: an input cannot be called 'y': it means something else"},
    {"inputs: [x, y, z]", "inputs: [x, y, width]",
     "net.yaml:7: an input cannot be called 'width': it means something else"},
    {"inputs: [x, y, z]", "inputs: [x, y, output]",
     "net.yaml:7: an input cannot be called 'output': it means something else"},
    {"inputs: [x, y, z]", "inputs: [x, y, 3]", "net.yaml:7: an input cannot be called '3'"},
    {"inputs: [x, y, z]", "inputs: [x, y, self]", "net.yaml:7: an input cannot be called 'self'"},
    {"o(e(x), e(x) + y)", "o(e(x))",
     "net.yaml:21: module 'o' (Outer) takes 2 tensors: tokens, other"},
    {"o(e(x), e(x) + y)", "o(e(x), y, y)",
     "net.yaml:21: module 'o' (Outer) takes 2 tensors: tokens, other"},
    {"o(e(x), e(x) + y)", "o(e(x), others=y)",
     "net.yaml:21: o() has no argument 'others'; did you mean 'other'?"},
    {"o(e(x), e(x) + y)", "o(e(x), tokens=y)",
     "net.yaml:21: o(): argument 'tokens' is given twice"},
    {"h(o(", "h(e, o(", "net.yaml:21: module 'h' takes one argument, a tensor"},
    {"h: 'Linear(8, 5)'", "h: 'Linear(8, 5)', s: Sequential(Outer(8))", NULL},
    {"o: Outer(8)", "o: Sequential(Outer(8))",
     "net.yaml:21: module 'o' takes one argument, a tensor"},
    {"x = inner(tokens, z", "x = inners(tokens, z",
     "net.yaml:16: in o: unknown function or module 'inners'; did you mean 'inner'?"},
    {"{self: 'Linear", "{for: 'Linear",
     "net.yaml:8: 'for' cannot be the name of a module: expected letters, digits and _, no digit "
     "first, at most 64, and no word of the language"},

    {"e: 'Embedding(5, 8)'", "e: 'Embedding(5, 8, padding_idx=5)'",
     "net.yaml:18: module e: Embedding(): padding_idx=5 is not a row of num_embeddings=5"},
    {"e: 'Embedding(5, 8)'", "e: 'Embeding(5, 8)'",
     "net.yaml:18: module e: unknown module 'Embeding'; did you mean 'Embedding'?"},
    {"e: 'Embedding(5, 8)'", "e: 'Embedding(5, 8, padding_idx=0.5)'",
     "net.yaml:18: module e: Embedding(): argument 'padding_idx': expected an integer, or None, "
     "found 0.5"},
    {"h: 'Linear(8, 5)'", "h: 'LayerNorm((8, 8))'",
     "net.yaml:18: module h: LayerNorm(): argument 'normalized_shape': expected a positive integer "
     "below 2^31, found (8, 8)"},
    {"h: 'Linear(8, 5)'", "h: 'LayerNorm(8, eps=-1)'",
     "net.yaml:18: module h: LayerNorm(): argument 'eps': expected a number of at least 0, found "
     "-1"},
    {"h: 'Linear(8, 5)'", "h: 'GELU(exact)'",
     "net.yaml:18: module h: GELU(): argument 'approximate': unknown name 'exact'"},
    {"h: 'Linear(8, 5)'", "h: \"GELU('sigmoid')\"",
     "net.yaml:18: module h: GELU(): argument 'approximate': expected \"none\" or \"tanh\", found "
     "'sigmoid'"},

    {"y = f(positions(x))", "y = attention(x)",
     "net.yaml:20: attention(): argument 'num_heads' is missing"},
    {"y = f(positions(x))", "y = attention(x, x, num_heads=2)",
     "net.yaml:20: attention(): needs key and value, or neither if query holds all three side by "
     "side"},
    {"y = f(positions(x))", "y = attention(x, num_heads=6, num_kv_heads=4)",
     "net.yaml:20: attention(): num_kv_heads=4 does not divide num_heads=6"},
    {"y = f(positions(x))", "y = attention(x, num_heads=2, dropout_p=1)",
     "net.yaml:20: attention(): argument 'dropout_p': expected a number from 0 to below 1, found "
     "1"},
    {"y = f(positions(x))", "y = attention(x, num_heads=2, causal=True)",
     "net.yaml:20: attention() has no argument 'causal'; did you mean 'is_causal'?"},
    {"y = f(positions(x))", "y = rope(e(x), head_dim=3)", "net.yaml:20: rope(): head_dim=3 is odd"},
    {"y = f(positions(x))", "y = f(distance_buckets(x, num_buckets=7))",
     "net.yaml:20: distance_buckets(): num_buckets=7 is not an even number from 4 on"},
    {"y = f(positions(x))", "y = f(distance_buckets(x, max_distance=8))",
     "net.yaml:20: distance_buckets(): max_distance=8 must be above num_buckets / 4, 8"},
    {"y = f(positions(x))", "y = rope(e(x), head_dim=4, scaling='linear')",
     "net.yaml:20: rope(): scaling needs a factor"},
    {"y = f(positions(x))", "y = rope(e(x), head_dim=4, factor=2)",
     "net.yaml:20: rope(): a factor needs a scaling"},
    {"y = f(positions(x))", "y = rope(e(x), head_dim=4, scaling='llama3', factor=2)",
     "net.yaml:20: rope(): scaling=\"llama3\" needs original_context"},
    {"y = f(positions(x))", "y = rope(e(x), head_dim=4, scaling='ntk', factor=2)",
     "net.yaml:20: rope(): argument 'scaling': expected \"linear\", \"llama3\", \"yarn\", "
     "\"longrope\" or None, found 'ntk'"},
    {"y = f(positions(x))", "y = rope(e(x), head_dim=4, scaling='yarn', factor=2)",
     "net.yaml:20: rope(): scaling=\"yarn\" needs original_context"},
    {"y = f(positions(x))", "y = rope(e(x), head_dim=4, rotary_dim=6)",
     "net.yaml:20: rope(): rotary_dim=6 is not an even number up to head_dim=4"},
    {"y = f(positions(x))",
     "y = rope(e(x), head_dim=4, scaling='llama3', factor=2, original_context=8, "
     "high_freq_factor=1)",
     "net.yaml:20: rope(): high_freq_factor=1 must be above low_freq_factor=1"},
    {"y = f(positions(x))", "y = e(x) / sqrt(0 - 1)", "net.yaml:20: sqrt() of a number below 0"},
    {"y = f(positions(x))", "y = 2 * 3", "net.yaml:20: expected a tensor, found a constant"},
    {"y = f(positions(x))", "y = where(e(x), e(x), 0)",
     "net.yaml:20: where(): argument 'condition': expected a comparison such as x > 0"},
    {"y = f(positions(x))", "y = masked_fill(e(x), e(x) * (e(x) > 0), 0)",
     "net.yaml:20: masked_fill(): argument 'mask': expected a comparison such as x > 0"},
    {"y = f(positions(x))", "y = where(e(x) > 0, 0)",
     "net.yaml:20: where() takes condition, input and other"},
    {"y = f(positions(x))", "y = e(x) > e(x)",
     "net.yaml:20: a tensor is compared with a number; of two tensors compare the difference, as "
     "in "
     "a - b > 0"},
    {"output, target)", "output, target, weight=3)",
     "net.yaml:22: cross_entropy(): argument 'weight': expected a list of 1 to 1000 numbers, or "
     "None"},
    {"output, target)", "output, target, weight=[1, -0.5])",
     "net.yaml:22: cross_entropy(): argument 'weight': expected numbers of at least 0, found -0.5"},
    {"output, target)", "output, target, weight=[1, 'two'])",
     "net.yaml:22: cross_entropy(): argument 'weight': expected numbers of at least 0, found "
     "'two'"},
    {"output, target)", "output, target, weight=[])",
     "net.yaml:22: cross_entropy(): argument 'weight': expected a list of 1 to 1000 numbers, or "
     "None"},
    {"output, target)", "output, target, weight=most)",
     "net.yaml:22: cross_entropy(): argument 'weight': unknown name 'most'"},
    {"output, target)", "output, target, ignore_index=0)",
     "net.yaml:22: cross_entropy(): ignore_index=0: only negative ones are supported; every "
     "negative target is ignored"},

    {"output, target)", "output, target)\ninit: 3",
     "net.yaml:23: key 'init': expected a list of rules such as {match: \"*.bias\", zeros: true}, "
     "found '3'"},
    {"output, target)", "output, target)\ninit: [{match: a.*, zeros}]",
     "net.yaml:23: key 'init[0].match': no parameter matches 'a.*'"},
    {"output, target)", "output, target)\ninit: [{match: '*'}]",
     "net.yaml:23: key 'init[0]': expected match and one of normal, uniform, constant, zeros and "
     "ones"},
    {"output, target)", "output, target)\ninit: [{match: '*', zeros, ones}]",
     "net.yaml:23: key 'init[0]': expected match and one of normal, uniform, constant, zeros and "
     "ones"},
    {"output, target)", "output, target)\ninit: [{match: '*', constant: [1]}]",
     "net.yaml:23: key 'init[0].constant': expected a number from -1e+30 to 1e+30, found a list"},
    {"output, target)", "output, target)\ninit: [{match: '*', zero}]",
     "net.yaml:23: unknown key 'init[0].zero'; did you mean 'zeros'?"},
    {"output, target)", "output, target)\ninit: [{match: '*', zeros: false}]",
     "net.yaml:23: key 'init[0].zeros': expected true, or the rule left out"},
    {"output, target)", "output, target)\ninit: [{match: '*', normal: -1}]",
     "net.yaml:23: key 'init[0].normal': expected a number from 0 to 1e+30, found '-1'"},
    {"output, target)", "output, target)\ninit: [{match: '*', normal}]",
     "net.yaml:23: key 'init[0].normal': expected a number from 0 to 1e+30, found nothing"},
};

LOOP_TEST(mistakes_are_named, 0, COUNT_OF(mistakes))
{
    char *text = replace(several, mistakes[_i].old, mistakes[_i].new);
    if (mistakes[_i].message) assert_refused(text, strlen(text), mistakes[_i].message);
    else model_free(parse(text)); /* no mistake: it is never called */
    free(text);
}

/* What only the shapes show. */
static const struct mistake misfits[] = {
    {"y = f(positions(x))",
     "y = rope(e(x), head_dim=4, scaling='longrope', factor=2, original_context=4, "
     "short_factor=[1], long_factor=[1, 2])",
     "net.yaml:20: rope: 1 short factors for 2 pairs"},
    {"y = f(positions(x))", "y = rope(e(x), head_dim=4, short_factor=[1, 2], long_factor=[1, 2])",
     "net.yaml:20: rope: 2 short factors for 0 pairs"},
    {"y = f(positions(x))", "y = f(positions(x, start=20))",
     "net.yaml:20: module f: embedding: weight has 4 rows, but indices reach 23"},
    {"y = f(positions(x))", "y = narrow(e(x), 0, 0, 2)",
     "net.yaml:20: slice: dim=0 is the batch dimension of (2, 4, 8)"},
    {"y = f(positions(x))", "y = narrow(e(x), -1, 6, 3)",
     "net.yaml:20: slice: 3 from 6 on are not all in dimension 2, of 8"},
    {"y = f(positions(x))", "y = unflatten(e(x), -1, (3, 2))",
     "net.yaml:20: unflatten: the sizes (3, 2) do not make 8, of (2, 4, 8)"},
    {"y = f(positions(x))", "y = unflatten(e(x), 0, (1, 2))",
     "net.yaml:20: unflatten: dim=0 would split the batch dimension of (2, 4, 8)"},
    {"y = f(positions(x))", "y = unflatten(e(x), 3, (1, 2))",
     "net.yaml:20: unflatten: dim=3 is no dimension of (2, 4, 8)"},
    {"y = f(positions(x))", "y = f(positions(x)) / e(x)",
     "net.yaml:20: div: second input is (2, 4, 8), but with first input (4, 8) it must be (4, 8)"},
};

LOOP_TEST(misfits_are_named, 0, COUNT_OF(misfits))
{
    char *text = replace(several, misfits[_i].old, misfits[_i].new);
    struct model *model = parse(text);
    struct graph *graph = NULL;
    struct graph_options options = {.batch_size = 2};
    status_t status = graph_build(model, &options, &graph);
    ck_assert_ptr_nonnull(status);
    ck_assert_str_eq(status_message(status), misfits[_i].message);
    status_free(status);
    model_free(model);
    free(text);
}

/* An image, a text and numbers; modules may have the names of inputs. */
static const char named[] =
    "name: N\n"
    "args: {width: 6}\n"
    "input: {image: [2, 3, 3], text: tokens, row: [4]}\n"
    "vocabulary: 13\n"
    "context: 5\n"
    "classes: 3\n"
    "modules: {image: 'Linear(3, width)', text: 'Embedding(13, width)', row: 'Linear(4, width)', "
    "h: 'Linear(width, 3)'}\n"
    "forward:\n"
    "  - y = mean(flatten(image(image), 1, 2), 1) + mean(text(text), 1, padding_mask(text, 5))\n"
    "  - output = h(y + row(row))\n"
    "loss: cross_entropy(output, target)\n";

static const struct graph_op *op_called(const struct graph *graph, const char *name)
{
    for (int i = 0; i < graph->op_count; i++)
        if (strcmp(graph->ops[i].name, name) == 0) return &graph->ops[i];
    ck_abort_msg("no op %s", name);
}

LOOP_TEST(several_inputs_are_parts_of_a_row, 0, 2)
{
    static const struct {
        const char *name, *shape;
        enum op_kind kind;
        int64_t start;
    } parts[] = {{"input.image", "(2, 18)", OP_SLICE, 0},
                 {"input.image.shape", "(2, 2, 3, 3)", OP_RESHAPE, 0},
                 {"input.text", "(2, 5)", OP_TOKENS, 18},
                 {"input.row", "(2, 4)", OP_SLICE, 23}};
    struct model *model = parse(named);
    struct graph *graph = NULL;
    const struct graph_options options = {.batch_size = 2,
                                          .compute_dtype = _i ? DTYPE_BF16 : DTYPE_F32};
    char shape[128];
    ck_assert(!model->tokens && model->vocabulary == 13 && model->context == 0);
    ck_assert_int_eq(model->input_count, 3);
    ck_assert_str_eq(tensor_format_shape(&model->input, shape), "(27,)");
    ck_assert_str_eq(model_first_image(model)->name, "image");
    status_t status = graph_build(model, &options, &graph);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const struct graph_op *op = op_called(graph, parts[i].name);
        const struct tensor_type *type = &graph->values[op->outputs[0]].type;
        ck_assert_int_eq(op->kind, parts[i].kind);
        ck_assert_str_eq(tensor_format_shape(type, shape), parts[i].shape);
        if (op->kind == OP_SLICE) ck_assert_int_eq(op->attrs.slice.start, parts[i].start);
        if (op->kind != OP_TOKENS) continue;
        ck_assert_int_eq(op->attrs.tokens.start, parts[i].start);
        ck_assert_int_eq(op->attrs.tokens.count, 13);
        ck_assert_int_eq(op->inputs[0], graph->input); /* in f32, also for a model in bf16 */
    }
    graph_free(graph);
    model_free(model);
}

#define INPUTS "{image: [2, 3, 3], text: tokens, row: [4]}"

static const struct mistake named_mistakes[] = {
    {INPUTS, "{image: [2, 3, 3]}", "net.yaml:3: key 'input': expected 2 to 6 inputs, found 1"},
    {INPUTS, "{a: [1], b: [1], c: [1], d: [1], e: [1], f: [1], g: [1]}",
     "net.yaml:3: key 'input': expected 2 to 6 inputs, found 7"},
    {INPUTS, "{text: tokens, other: tokens}",
     "net.yaml:3: key 'input': expected one that is not tokens; several texts are one input with "
     "'texts'"},
    {"row: [4]", "output: [4]", "net.yaml:3: an input cannot be called 'output'"},
    {"row: [4]", "targets: [4]", "net.yaml:3: an input cannot be called 'targets'"},
    {"row: [4]", "width: [4]", "net.yaml:3: an input cannot be called 'width'"},
    {"row: [4]", "row: token",
     "net.yaml:3: key 'input.row': expected its shape such as [3, 32, 32], or tokens, found "
     "'token'"},
    {"row: [4]", "row: [1048576, 1048576]",
     "net.yaml:3: key 'input': one sample has more than 2^40 elements"},
    {"vocabulary: 13\n", "", "net.yaml:1: key 'vocabulary' is missing"},
    {"vocabulary: 13", "vocabulary: 16777217",
     "net.yaml:4: key 'vocabulary': expected at most 16777216 beside other inputs, found 16777217"},
    {"text: tokens, row", "text: [5], row",
     "net.yaml:4: key 'vocabulary': is only for models with 'input: tokens'"},
    {"classes: 3", "texts: 2", "net.yaml:6: key 'texts': is only for models with 'input: tokens'"},
    {"image(image)", "image(images)", "net.yaml:9: unknown name 'images'; did you mean 'image'?"},
};

LOOP_TEST(mistakes_of_several_inputs_are_named, 0, COUNT_OF(named_mistakes))
{
    char *text = replace(named, named_mistakes[_i].old, named_mistakes[_i].new);
    assert_refused(text, strlen(text), named_mistakes[_i].message);
    free(text);
}

TEST(tokens_among_several_inputs_need_rows_of_an_embedding)
{
    char *text = replace(named, "Embedding(13", "Embedding(12");
    struct model *model = parse(text);
    struct graph *graph = NULL;
    status_t status = graph_build(model, &(struct graph_options){.batch_size = 2}, &graph);
    ck_assert_str_eq(status_message(status), "net.yaml:9: module text: embedding: weight has 12 "
                                             "rows, but indices reach 12");
    status_free(status);
    model_free(model);
    free(text);
}

static const char towers[] = "name: N\n"
                             "input: {image: [6], text: tokens}\n"
                             "vocabulary: 13\n"
                             "context: 5\n"
                             "modules: {s: Parameter(1), e: 'Embedding(13, 6)'}\n"
                             "forward: ['output = mean(e(text), 1)']\n"
                             "loss: clip_loss(output, image, exp(s))\n";

static const struct mistake tower_mistakes[] = {
    {"clip_loss(output, image, exp(s))", "cross_entropy(output, target)",
     "net.yaml:7: cross_entropy() has no targets; expected 'classes', 'targets' or "
     "clip_loss(image_features, text_features, logit_scale)"},
    {"clip_loss(output, image, exp(s))", "multiple_negatives_ranking_loss(output)",
     "net.yaml:7: multiple_negatives_ranking_loss() needs 'texts: 2'"},
    {"context: 5\n", "context: 5\nclasses: 2\n",
     "net.yaml:8: clip_loss() needs several inputs, as in input: {image: [3, 32, 32], text: "
     "tokens}, and neither 'classes' nor 'targets'"},
    {"exp(s))", "0 - 1)", "net.yaml:7: clip_loss(): logit_scale is -1, expected more than 0"},
    {"exp(s))", "1e39)",
     "net.yaml:7: clip_loss(): logit_scale is 1e+39, expected more than 0 and a number of "
     "float32"},
    {"exp(s))", "1e-46)",
     "net.yaml:7: clip_loss(): logit_scale is 1e-46, expected more than 0 and a number of "
     "float32"},
    {", exp(s))", ")", "net.yaml:7: clip_loss(): argument 'logit_scale' is missing"},
    {"exp(s))", "exp(s)) + clip_loss(image, output, 3)",
     "net.yaml:7: clip_loss() cannot be one of several terms"},
};

LOOP_TEST(mistakes_of_towers_are_named, 0, COUNT_OF(tower_mistakes))
{
    char *text = replace(towers, tower_mistakes[_i].old, tower_mistakes[_i].new);
    assert_refused(text, strlen(text), tower_mistakes[_i].message);
    free(text);
}

static const struct mistake tower_misfits[] = {
    {"output, image,", "output, e(text),",
     "net.yaml:7: clip_loss: input is (2, 5, 6), but it must be an embedding of each sample, "
     "(2, width)"},
    {"output, image,", "s, image,",
     "net.yaml:7: clip_loss: input is (1,), but it must be an embedding of each sample, (2, "
     "width)"},
    {"output, image,", "output, text,",
     "net.yaml:7: clip_loss: input is (2, 5), but it must be an embedding of each sample, "
     "(2, width)"},
    {"exp(s))", "mean(output, 1))",
     "net.yaml:7: clip_loss: logit_scale reads samples, but it must be made of parameters"},
    {"Parameter(1)", "Parameter(2)",
     "net.yaml:7: clip_loss: logit_scale is (2,), but it must be one number, (1,)"},
    {"image: [6]", "image: [7]",
     "net.yaml:7: clip_loss: image_features are (2, 6) and text_features (2, 7), but both must be "
     "as wide"},
};

LOOP_TEST(misfits_of_towers_are_named, 0, COUNT_OF(tower_misfits))
{
    char *text = replace(towers, tower_misfits[_i].old, tower_misfits[_i].new);
    struct model *model = parse(text);
    struct graph *graph = NULL;
    status_t status = graph_build(model, &(struct graph_options){.batch_size = 2}, &graph);
    ck_assert_ptr_nonnull(status);
    ck_assert_str_eq(status_message(status), tower_misfits[_i].message);
    status_free(status);
    model_free(model);
    free(text);
}

/* A scale that is trained multiplies in f32, in a model that computes in bf16, too. */
LOOP_TEST(towers_are_compared_in_both_directions, 0, 3)
{
    static const struct {
        const char *before, *after;
        double share;
    } factors[] = {{"clip", "clip", 0.5},
                   {"loss: ", "loss: 0.25 * ", 0.125},
                   {"(s))", "(s)) / 4", 0.125}};
    char *text = replace(towers, factors[_i].before, factors[_i].after);
    struct model *model = parse(text);
    struct graph *graph = NULL;
    const struct graph_options options = {.batch_size = 2,
                                          .world = 3,
                                          .train = true,
                                          .count_correct = true,
                                          .compute_dtype = _i ? DTYPE_BF16 : DTYPE_F32};
    status_t status = graph_build(model, &options, &graph);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    free(text);
    ck_assert_int_eq(model->target, TARGET_PAIR);
    ck_assert_int_eq(graph_samples(graph), 2);
    const struct graph_op *losses[] = {op_called(graph, "clip_loss"),
                                       op_called(graph, "clip_loss.back")};
    for (int i = 0; i < 2; i++) {
        const struct graph_value *products = &graph->values[losses[i]->inputs[0]];
        ck_assert_int_eq(losses[i]->kind, OP_CONTRASTIVE_LOSS);
        ck_assert_double_eq(losses[i]->attrs.contrast.share, factors[_i].share);
        ck_assert(products->type.dims[0] == 2 && products->type.dims[1] == 6);
    }
    ck_assert_int_eq(losses[0]->inputs[1], losses[1]->inputs[1]); /* gathered once */
    const struct graph_op *sum = &graph->ops[graph->values[graph->loss].producer];
    ck_assert(sum->kind == OP_ADD && &graph->ops[graph_loss_op(graph)] == losses[0]);
    ck_assert_int_eq(graph->values[op_called(graph, "clip_loss.scaled")->outputs[0]].type.dtype,
                     DTYPE_F32);
    ck_assert_int_eq(graph->values[op_called(graph, "exp")->outputs[0]].type.dtype, DTYPE_F32);
    ck_assert_int_ge(graph->correct, 0);
    graph_free(graph);
    model_free(model);
}

/* The loss reads what the forward lines made of an input's name. */
TEST(an_input_that_a_line_sets_is_its_new_value)
{
    char *text = replace(towers, "['output", "['image = 2 * image', 'output");
    struct model *model = parse(text);
    struct graph *graph = NULL;
    status_t status = graph_build(model, &(struct graph_options){.batch_size = 2}, &graph);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_int_eq(op_called(graph, "clip_loss.back.features")->inputs[0],
                     op_called(graph, "scale")->outputs[0]);
    graph_free(graph);
    model_free(model);
    free(text);
}

/* A sum over the tokens of a window is another one when tokens come one by one. */
LOOP_TEST(what_crosses_tokens_is_not_continued, 0, 5)
{
    static const char *const lines[] = {"output = h(y)",
                                        "output = h(y + reshape(max(y, 1), (-1, 1, 8)))",
                                        "output = h(y + reshape(sum(y, 1), (-1, 1, 8)))",
                                        "output = h(matmul(y, reshape(y, (-1, 8, 1))) * y)",
                                        "output = h(r(y))"};
    char *text = mem_printf(HEAD "modules: {e: 'Embedding(5, 8)', h: 'Linear(8, 5)', "
                                 "r: 'GRU(8, 8, batch_first=True)'}\n"
                                 "forward: [y = e(x), '%s']" TAIL,
                            lines[_i]);
    struct model *model = parse(text);
    struct graph *graph = NULL;
    struct graph_options options = {.batch_size = 2, .time = 1, .cache = 4};
    status_t status = graph_build(model, &options, &graph);
    if (_i == 0) ck_assert_ptr_null(status);
    else
        ck_assert_msg(strstr(status_message(status), "puts tokens of a window together") != NULL,
                      "%s", status_message(status));
    status_free(status);
    graph_free(graph);
    graph = NULL;
    options = (struct graph_options){.batch_size = 2, .time = 1, .documents = true};
    status = graph_build(model, &options, &graph);
    if (_i < 3) ck_assert_ptr_null(status);
    else ck_assert_ptr_nonnull(strstr(status_message(status), "several documents"));
    status_free(status);
    graph_free(graph);
    model_free(model);
    free(text);
}

TEST(first_rule_that_matches_counts)
{
    char *text = mem_printf("%sinit:\n"
                            "  - {match: '*.self.*', uniform: 0.5}\n"
                            "  - {match: '*', constant: 1 if 2 < 1 else None}\n"
                            "  - {match: 'h.bias', constant: -0.25}\n"
                            "  - {match: '*.bias', ones: true}\n"
                            "  - {match: '?.weight', normal: 3}\n",
                            several);
    struct model *model = parse(text);
    static const struct {
        const char *name;
        enum init_kind init;
        double bound;
    } expected[] = {
        {"o.inner.self.weight", INIT_UNIFORM, 0.5},
        {"o.inner.self.bias", INIT_UNIFORM, 0.5},
        {"o.inner.out.bias", INIT_ONES, 0},
        {"h.bias", INIT_CONSTANT, -0.25},
        {"e.weight", INIT_NORMAL, 3},
        {"h.weight", INIT_NORMAL, 3},
    };
    for (size_t i = 0; i < COUNT_OF(expected); i++) {
        const struct parameter *found =
            &model->parameters[model_find_parameter(model, expected[i].name)];
        ck_assert_int_eq(found->init, expected[i].init);
        ck_assert_msg(found->bound == expected[i].bound, "%s: %g", found->name, found->bound);
    }
    const struct parameter *other =
        &model->parameters[model_find_parameter(model, "o.output.out.weight")];
    ck_assert_int_eq(other->init, INIT_UNIFORM);
    ck_assert(other->bound > 0.3 && other->bound < 0.4); /* PyTorch's */
    model_free(model);
    free(text);
}

/* A directory of Hugging Face becomes such a file. */
LOOP_TEST(configurations_are_model_files, 0, TINY_COUNT)
{
    const char *root = getenv("srcdir");
    char *path = mem_printf("%s/tests/golden/hf-%s.yaml", root ? root : ".", tiny_names[_i]);
    struct buf text = {0};
    status_t status = file_read(path, 1 << 20, &text);
    ck_assert_msg(!status, "%s", status_message(status));
    struct model *model = parse(buf_text(&text));
    for (int train = 0; train < 2; train++) {
        struct graph *graph = NULL;
        struct graph_options options = {
            .batch_size = 3, .time = 7, .train = train, .dropout = true, .count_correct = !train};
        status = graph_build(model, &options, &graph);
        ck_assert_msg(!status, "%s", status_message(status));
        graph_free(graph);
    }
    model_free(model);
    buf_deinit(&text);
    free(path);
}
