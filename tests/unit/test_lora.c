/* Adapters: how a model is rewritten, and one message for each mistake. tests/parity/lora.json has
 * peft's numbers. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "graph_dump.h"
#include "model/lora.h"
#include "model/preference.h"
#include "model/teach.h"
#include "model_files.h"
#include "tests/testing.h"
#include "tiny_models.h"

static const char net[] = "name: Net\n"
                          "input: [6]\n"
                          "classes: 4\n"
                          "modules:\n"
                          "  blocks: 2 * Block()\n"
                          "  score: Linear(6, 4)\n"
                          "blocks:\n"
                          "  Block():\n"
                          "    modules:\n"
                          "      fc1: Linear(6, 5, bias=False)\n"
                          "      norm: LayerNorm(5)\n"
                          "      fc2: Linear(5, 6)\n"
                          "    forward:\n"
                          "      - output = x + fc2(norm(fc1(x)))\n"
                          "forward:\n"
                          "  - \"for block in blocks: x = block(x)\"\n"
                          "  - output = score(x)\n"
                          "loss: cross_entropy(output, target)\n";

#define NAMES(...)                                                                                 \
    {                                                                                              \
        (const char *const[]){__VA_ARGS__}, (int)COUNT_OF(((const char *const[]){__VA_ARGS__}))    \
    }

static void must_adapt(struct model *model, const struct model_lora *lora)
{
    status_t status = model_adapt(model, lora);
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

TEST(adapters_follow_their_modules)
{
    struct model *model = parse(net);
    const struct model_lora lora = {
        .rank = 2, .alpha = 6, .dropout = 0.25, .targets = NAMES("fc1"), .layers = NAMES("1")};
    static const char *const paths[] = {"",
                                        "blocks",
                                        "blocks.0",
                                        "blocks.0.fc1",
                                        "blocks.0.norm",
                                        "blocks.0.fc2",
                                        "blocks.1",
                                        "blocks.1.fc1",
                                        "blocks.1.fc1.lora_A",
                                        "blocks.1.fc1.lora_B",
                                        "blocks.1.norm",
                                        "blocks.1.fc2",
                                        "score"};
    must_adapt(model, &lora);
    ck_assert_int_eq(model->module_count, COUNT_OF(paths));
    for (int m = 0; m < model->module_count; m++) {
        const struct module *module = &model->modules[m];
        ck_assert_str_eq(module->path, paths[m]);
        for (int i = 0; i < module->child_count; i++)
            ck_assert_int_eq(model->modules[module->children[i]].parent, m);
        for (int i = 0; i < module->parameter_count; i++)
            ck_assert_int_eq(model->parameters[module->parameters[i]].module, m);
    }
    int a = model_find_parameter(model, "blocks.1.fc1.lora_A.weight");
    ck_assert_int_eq(a, model_find_parameter(model, "blocks.1.fc1.weight") + 1);
    const struct parameter *first = &model->parameters[a], *second = first + 1;
    ck_assert_str_eq(second->name, "blocks.1.fc1.lora_B.weight");
    char shape[128];
    ck_assert_str_eq(tensor_format_shape(&first->type, shape), "(2, 6)");
    ck_assert_str_eq(tensor_format_shape(&second->type, shape), "(5, 2)");
    ck_assert_int_eq(first->dropped, 2 * 6 + 5 * 2);
    ck_assert_int_eq(second->dropped, 0);
    ck_assert_int_eq(second->init, INIT_ZEROS);
    /* a model of classes trains its score, too */
    for (int p = 0; p < model->parameter_count; p++) {
        const struct parameter *parameter = &model->parameters[p];
        bool saved = strncmp(parameter->name, "score.", 6) == 0;
        ck_assert_int_eq(parameter->adapter, p == a || p == a + 1);
        ck_assert_int_eq(parameter->trainable, parameter->adapter || saved);
        ck_assert(!parameter->adapter || parameter->init_order > model->parameters[0].init_order);
    }
    struct buf text = {0};
    ck_assert(model_describe_adapters(model, &text));
    ck_assert_str_eq(buf_text(&text), "1 module: blocks.*.fc1");
    buf_deinit(&text);
    model_free(model);
}

/* The product is added to what the module makes; nothing is computed for frozen parameters. */
TEST(graph_has_the_product)
{
    struct model *model = parse(net);
    const struct model_lora lora = {.rank = 2,
                                    .alpha = 6,
                                    .dropout = 0.25,
                                    .targets = NAMES("blocks.1.fc1")};
    must_adapt(model, &lora);
    const struct graph_options options = {.batch_size = 3, .train = true, .dropout = true};
    struct graph *graph;
    ck_assert_ptr_null(graph_build(model, &options, &graph));
    AUTO_FREE char *dump = graph_dump(graph);
    static const char *const lines[] = {
        "= linear(%19, blocks.1.fc1.weight) (3, 5)",
        "= dropout(%19) p=0.25",
        ", blocks.1.fc1.lora_A.weight) (3, 2)",
        "= scale(",
        "(3, 2)  # blocks.1.fc1.lora_scale",
        ", blocks.1.fc1.lora_B.weight) (3, 5)",
        "= layer_norm(%20, blocks.1.norm.weight, blocks.1.norm.bias, %24)", /* of the sum */
        "d(blocks.1.fc1.lora_A.weight)",
        "d(blocks.1.fc1.lora_B.weight)",
        "d(score.weight)",
    };
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        ck_assert_msg(strstr(dump, lines[i]) != NULL, "no %s in\n%s", lines[i], dump);
    ck_assert_ptr_null(strstr(dump, "d(blocks.1.fc1.weight)"));
    ck_assert_ptr_null(strstr(dump, "d(blocks.1.fc2.weight)"));
    graph_free(graph);
    model_free(model);
}

/* What a module makes of parameters alone is still none of the samples' with an adapter. */
TEST(queries_may_be_parameters)
{
    static const char text[] = "name: Net\ninput: [5, 6]\nclasses: 3\n"
                               "modules: {queries: 'Parameter(1, 6, 6)', q: 'Linear(6, 6)', "
                               "score: 'Linear(30, 3)'}\n"
                               "forward:\n"
                               "  - y = matmul(x, q(queries))\n"
                               "  - output = score(flatten(y, 1))\n"
                               "loss: cross_entropy(output, target)\n";
    struct model *model = parse(text);
    const struct model_lora lora = {.rank = 2, .alpha = 6, .targets = NAMES("q")};
    const struct graph_options options = {.batch_size = 3, .train = true};
    struct graph *graph;
    must_adapt(model, &lora);
    status_t status = graph_build(model, &options, &graph);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    graph_free(graph);
    model_free(model);
}

/* GPT-2's Conv1D is transposed, and its head is tied to the embedding. */
TEST(transposed_and_tied)
{
    struct model *model = tiny_model(TINY_GPT2);
    int64_t before = model_parameter_elements(model);
    const struct model_lora lora = {.rank = 3, .alpha = 1, .targets = NAMES("all-linear")};
    must_adapt(model, &lora);
    int pairs = 0;
    int64_t added = 0;
    for (int p = 0; p < model->parameter_count; p++) {
        const struct parameter *parameter = &model->parameters[p];
        if (parameter->tied_to >= 0) ck_assert_int_lt(parameter->tied_to, p);
        ck_assert_msg(strstr(parameter->name, "lm_head.lora") == NULL, "%s", parameter->name);
        if (!parameter->adapter) continue;
        pairs += parameter->init == INIT_UNIFORM;
        added += tensor_element_count(&parameter->type);
    }
    ck_assert_int_eq(pairs, 4 * TINY_LAYERS);
    ck_assert_int_eq(model_parameter_elements(model), before + added);
    int b = model_find_parameter(model, "transformer.h.0.attn.c_attn.lora_B.weight");
    ck_assert_int_ge(b, 0);
    ck_assert_int_eq(model->parameters[b].type.dims[0], 3 * model->parameters[b - 1].type.dims[1]);
    const struct graph_options options = {.batch_size = 2, .train = true};
    struct graph *graph;
    ck_assert_ptr_null(graph_build(model, &options, &graph));
    graph_free(graph);
    model_free(model);
}

/* Its first matrix has a row per token and zeros, as PEFT's transposed; its second is drawn behind
 * what PEFT draws of both before. Nothing drops its input, and its head keeps the shared matrix. */
TEST(embeddings)
{
    struct model *model = tiny_model(TINY_GPT2);
    int base = model_find_parameter(model, "transformer.wte.weight");
    const struct tensor_type table = model->parameters[base].type;
    const struct model_lora lora = {.rank = 3, .alpha = 6, .dropout = 0.5, .targets = NAMES("wte")};
    must_adapt(model, &lora);
    int a = model_find_parameter(model, "transformer.wte.lora_embedding_A");
    int b = model_find_parameter(model, "transformer.wte.lora_embedding_B");
    ck_assert_int_eq(b, a + 1);
    const struct parameter *first = &model->parameters[a], *second = &model->parameters[b];
    int64_t counts[] = {3 * table.dims[0], 3 * table.dims[1]}, words = 0;
    for (int i = 0; i < 2; i++) words += counts[i] + (counts[i] % 16 != 0 ? 16 : 0);
    ck_assert_int_eq(first->type.dims[0], table.dims[0]);
    ck_assert_int_eq(first->type.dims[1], 3);
    ck_assert(first->flipped && first->init == INIT_ZEROS && first->dropped == 0);
    ck_assert_int_eq(second->type.dims[0], table.dims[1]);
    ck_assert_int_eq(second->type.dims[1], 3);
    ck_assert(!second->flipped && second->init == INIT_NORMAL && second->bound == 1);
    ck_assert_int_eq(second->dropped, words);
    const struct graph_options options = {.batch_size = 2, .train = true, .dropout = true};
    struct graph *graph;
    ck_assert_ptr_null(graph_build(model, &options, &graph));
    AUTO_FREE char *dump = graph_dump(graph);
    static const char *const lines[] = {
        "= embedding(%0, transformer.wte.lora_embedding_A)",
        "d(transformer.wte.lora_embedding_A)",
        "d(transformer.wte.lora_embedding_B)",
    };
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        ck_assert_msg(strstr(dump, lines[i]) != NULL, "no %s in\n%s", lines[i], dump);
    ck_assert_ptr_null(strstr(dump, "lora_dropout"));
    ck_assert_ptr_null(strstr(dump, "d(transformer.wte.weight)"));
    graph_free(graph);
    struct buf text = {0};
    ck_assert(model_describe_adapters(model, &text));
    ck_assert_str_eq(buf_text(&text), "1 module: transformer.wte");
    buf_deinit(&text);
    model_free(model);
}

static void expect_refused(const struct model_lora *lora, const char *message)
{
    struct model *model = parse(net);
    status_t status = model_adapt(model, lora);
    ck_assert_msg(status != NULL, "expected: %s", message);
    ck_assert_str_eq(status_message(status), message);
    status_free(status);
    ck_assert_int_eq(model->module_count, 11);
    model_free(model);
}

TEST(refusals)
{
    struct model_lora lora = {.rank = 2, .alpha = 6};
    expect_refused(&lora,
                   "model.lora.targets: is missing, as PEFT has no default for this model; "
                   "expected all-linear or names of Linear, Conv1D or Embedding modules; there "
                   "are fc1, fc2, score");
    lora.targets = (struct lora_names)NAMES("fc1", "fc3");
    expect_refused(&lora, "model.lora.targets: 'fc3' matches no Linear, Conv1D or Embedding module "
                          "of the model; did you mean 'fc1'?");
    lora.targets = (struct lora_names)NAMES("query");
    expect_refused(&lora, "model.lora.targets: 'query' matches no Linear, Conv1D or Embedding "
                          "module of the model; there are fc1, fc2, score");
    lora.targets = (struct lora_names)NAMES("norm");
    expect_refused(&lora,
                   "model.lora.targets: 'norm' is blocks.1.norm, of the type LayerNorm; only "
                   "Linear, Conv1D and Embedding can be adapted, yet");
    lora.targets = (struct lora_names)NAMES("all-linear");
    lora.exclude = (struct lora_names)NAMES("fc1", "fc2");
    expect_refused(&lora, "model.lora.targets: all that match are excluded or saved as they are");
    lora.exclude = (struct lora_names)NAMES("norms");
    expect_refused(&lora, "model.lora.exclude: 'norms' matches no module of the model; did you mean "
                          "'norm'?");
    lora.exclude = (struct lora_names){0};
    lora.layers = (struct lora_names)NAMES("1", "2");
    expect_refused(&lora, "model.lora.layers: no target is in a layer '2'; expected numbers of "
                          "layers, from 0");
    lora.layers = (struct lora_names){0};
    lora.save = (struct lora_names)NAMES("scores");
    expect_refused(&lora,
                   "model.lora.modules_to_save: 'scores' matches no module of the model; did "
                   "you mean 'score'?");
    lora.save = (struct lora_names){0};
    lora.rank = 6;
    expect_refused(&lora, "model.lora.rank: expected an integer from 1 to 5, the smaller side of "
                          "blocks.0.fc1 (6 inputs, 5 outputs), found 6");
    lora.rank = 2;
    const struct lora_rule ranks[] = {{"fc2", 9}}, alphas[] = {{"fc7", 1}};
    lora.ranks = ranks;
    lora.rank_count = 1;
    expect_refused(&lora, "model.lora.rank_pattern: expected an integer from 1 to 5, the smaller "
                          "side of blocks.0.fc2 (5 inputs, 6 outputs), found 9");
    lora.rank_count = 0;
    lora.alphas = alphas;
    lora.alpha_count = 1;
    expect_refused(&lora, "model.lora.alpha_pattern: 'fc7' matches no target");
    lora.lenient = true; /* what a file says of adapters is not in the job file */
    lora.layers = (struct lora_names)NAMES("2");
    expect_refused(&lora, "model.adapter: model.lora.layers: no target is in a layer '2'; expected "
                          "numbers of layers, from 0");
}

TEST(tied_modules_are_not_saved_alone)
{
    struct model *model = tiny_model(TINY_GPT2);
    const struct model_lora lora = {.rank = 1,
                                    .alpha = 1,
                                    .targets = NAMES("c_attn"),
                                    .save = NAMES("lm_head")};
    status_t status = model_adapt(model, &lora);
    ck_assert_int_eq(status_code(status), STATUS_UNIMPLEMENTED);
    ck_assert_msg(strstr(status_message(status), "share their memory") != NULL, "%s",
                  status_message(status));
    status_free(status);
    model_free(model);
}

static int count_ops(const struct graph *graph, const char *end)
{
    int count = 0;
    for (int i = 0; i < graph->op_count; i++) {
        size_t length = strlen(graph->ops[i].name), wanted = strlen(end);
        count += length >= wanted && strcmp(graph->ops[i].name + length - wanted, end) == 0;
    }
    return count;
}

/* Only calls behind the first adapter are made twice, each right behind the other. */
TEST(preferences_repeat_what_adapters_reach)
{
    struct model *model = tiny_model(TINY_LLAMA);
    const struct model_lora lora = {.rank = 2,
                                    .alpha = 2,
                                    .targets = NAMES("q_proj"),
                                    .layers = NAMES("1")};
    const struct model_preference preference = {.beta = 0.1};
    must_adapt(model, &lora);
    status_t status = model_prefer(model, &preference);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_int_eq(model->target, TARGET_PREFERENCE);
    ck_assert_int_eq(model->texts, 2);
    struct graph *graph = NULL;
    const struct graph_options options = {.batch_size = 2, .train = true};
    ck_assert_ptr_null(graph_build(model, &options, &graph));
    for (int i = 0; i < graph->op_count; i++)
        ck_assert_ptr_null(strstr(graph->ops[i].name, "layers.0.self_attn.q_proj.reference"));
    ck_assert_int_eq(count_ops(graph, "q_proj.lora_sum"), 1);
    ck_assert_int_eq(count_ops(graph, "lora_B.reference"), 0);
    ck_assert_int_eq(count_ops(graph, "q_proj.reference"),
                     0); /* its input has no adapter behind it */
    ck_assert_int_eq(count_ops(graph, "o_proj.reference"), 1);
    ck_assert_int_eq(count_ops(graph, "k_proj.reference"), 0);
    ck_assert_int_eq(count_ops(graph, "down_proj.reference"), 1);
    graph_free(graph);
    model_free(model);
}

/* All that is trained has a copy, which is not; what is frozen has none. */
TEST(a_reference_may_be_a_frozen_copy)
{
    struct model *model = tiny_model(TINY_LLAMA);
    const struct model_preference preference = {.beta = 0.1, .reference = REFERENCE_COPY};
    int count = model->parameter_count, copies = 0;
    int64_t elements = model_parameter_elements(model);
    model->parameters[1].trainable = false;
    status_t status = model_prefer(model, &preference);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    for (int p = 0; p < model->parameter_count; p++) {
        const struct parameter *parameter = &model->parameters[p];
        ck_assert(parameter->reference == (p >= count));
        if (!parameter->reference) continue;
        const struct parameter *of = &model->parameters[parameter->of];
        char *name = mem_printf("%s.reference", of->name);
        ck_assert_str_eq(parameter->name, name);
        ck_assert(!parameter->trainable && of->trainable && parameter->module == of->module);
        if (of->tied_to >= 0)
            ck_assert_int_eq(model->parameters[parameter->tied_to].of, of->tied_to);
        free(name);
        copies++;
    }
    ck_assert_int_eq(copies, count - 1);
    ck_assert_int_eq(model_parameter_elements(model), elements);
    struct graph *graph = NULL;
    const struct graph_options options = {.batch_size = 2, .train = true};
    ck_assert_ptr_null(graph_build(model, &options, &graph));
    ck_assert_int_eq(count_ops(graph, "embed_tokens.reference"), 1);
    ck_assert_int_eq(count_ops(graph, "q_proj.reference"), TINY_LAYERS);
    for (int i = 0; i < graph->op_count; i++)
        if (graph->ops[i].backward) ck_assert_ptr_null(strstr(graph->ops[i].name, ".reference"));
    graph_free(graph);
    model_free(model);
}

/* One model; what the reference made of the pairs comes with a batch, and an evaluation has what it
 * makes of them itself. */
TEST(a_reference_may_be_numbers)
{
    struct model *model = tiny_model(TINY_LLAMA);
    const struct model_preference preference = {.beta = 0.1, .reference = REFERENCE_PRECOMPUTED};
    int count = model->parameter_count;
    status_t status = model_prefer(model, &preference);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_int_eq(model->parameter_count, count);
    const struct graph_options options[] = {{.batch_size = 3, .train = true},
                                            {.batch_size = 3, .tally = true, .ranks = 2}};
    for (int i = 0; i < 2; i++) {
        struct graph *graph = NULL;
        ck_assert_ptr_null(graph_build(model, &options[i], &graph));
        ck_assert_int_eq(count_ops(graph, ".reference"), 0);
        const struct tensor_type *reference = &graph->values[graph->reference].type;
        ck_assert_int_eq(reference->dim_count, 1);
        ck_assert_int_eq(reference->dims[0], 6);
        ck_assert_int_eq(graph->values[graph->reference].kind, VALUE_REFERENCE);
        ck_assert_int_eq(graph_batch_value(graph, 3), graph->reference);
        ck_assert_int_eq(graph_tally_count(graph), i == 0 ? 0 : 2 * 6);
        graph_free(graph);
    }
    model_free(model);
}

static void must_fail(status_t status, enum status_code code, const char *words)
{
    ck_assert_int_eq(status_code(status), code);
    ck_assert_msg(strstr(status_message(status), words) != NULL, "%s", status_message(status));
    status_free(status);
}

/* Of packed texts the number is made of every token. */
TEST(rewards_of_packed_texts)
{
    static const char form[] = "name: Reward\n"
                               "input: tokens\n"
                               "vocabulary: 7\n"
                               "context: 6\n"
                               "targets: 1\n"
                               "modules:\n"
                               "  wte: Embedding(7, 4)\n"
                               "  score: Linear(4, 1)\n"
                               "forward:\n"
                               "  - output = score(%s)\n"
                               "loss: mse_loss(output, target)\n";
    const struct model_preference reward = {.reward = true, .beta = 1, .packed = true};
    const struct graph_options options = {.batch_size = 2, .train = true, .documents = true};
    char *last = mem_printf(form, "last(wte(x), 1, padding_mask(x, 0))");
    char *mean = mem_printf(form, "mean(wte(x), 1)");
    struct graph *graph = NULL;
    struct model *model = parse(last);
    status_t status = model_prefer(model, &reward);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_int_eq(model->texts, 1);
    status = graph_build(model, &options, &graph);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    const struct graph_op *loss = &graph->ops[graph->values[graph->loss].producer];
    const struct tensor_type *numbers = &graph->values[loss->inputs[0]].type;
    ck_assert_int_eq(numbers->dim_count, 3);
    ck_assert_int_eq(numbers->dims[1], 6);
    ck_assert_int_eq(graph->values[graph->target].type.dim_count, 2);
    ck_assert_int_eq(loss->inputs[3], graph->starts);
    for (int i = 0; i < graph->op_count; i++) ck_assert_int_ne(graph->ops[i].kind, OP_MEAN);
    graph_free(graph);
    model_free(model);
    model = parse(mean);
    must_fail(model_prefer(model, &reward), STATUS_INVALID_ARGUMENT,
              "its number at the last token of a text (last()): expected document");
    model_free(model);
    free(last);
    free(mean);
}

TEST(refused_preferences)
{
    const struct model_preference preference = {.beta = 0.1};
    struct model *model = parse(net);
    must_fail(model_prefer(model, &preference), STATUS_INVALID_ARGUMENT,
              "data.objective: dpo needs a model that predicts tokens");
    const struct model_preference reward = {.reward = true, .beta = 1};
    must_fail(model_prefer(model, &reward), STATUS_INVALID_ARGUMENT,
              "data.objective: reward needs a model that makes one number of a text");
    model_free(model);
    model = tiny_model(TINY_LLAMA);
    must_fail(model_prefer(model, &preference), STATUS_INVALID_ARGUMENT,
              "expected model.lora or model.adapter");
    const struct model_lora lora = {.rank = 2,
                                    .alpha = 2,
                                    .targets = NAMES("q_proj"),
                                    .save = NAMES("norm")};
    must_adapt(model, &lora);
    must_fail(model_prefer(model, &preference), STATUS_UNIMPLEMENTED,
              "model.lora.modules_to_save: with data.objective: dpo");
    model_free(model);
}

/* Its modules and parameters stand behind all others, frozen, and no state_dict has them. */
TEST(teachers)
{
    const struct model_teaching teaching = {.temperature = 2, .share = 0.5};
    struct model *model = parse(net), *teacher = parse(net);
    int parameters = model->parameter_count, modules = model->module_count, first = 0;
    status_t status = model_teach(model, teacher, &teaching, &first);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_int_eq(first, parameters);
    ck_assert_int_eq(model->parameter_count, 2 * parameters);
    ck_assert_str_eq(model->modules[modules].path, "teacher");
    ck_assert_int_eq(model_find_module(model, "teacher.blocks.1.fc2"), modules + 9);
    for (int p = first; p < model->parameter_count; p++) {
        ck_assert_int_eq(strncmp(model->parameters[p].name, "teacher.", 8), 0);
        ck_assert(!model->parameters[p].trainable && model->parameters[p].reference);
        ck_assert_int_ge(model->parameters[p].module, modules);
    }
    struct graph *graph = NULL;
    const struct graph_options options = {.batch_size = 2, .train = true, .count_correct = true};
    status = graph_build(model, &options, &graph);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    char *text = graph_dump(graph);
    ck_assert_msg(strstr(text, "element_loss(") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "mean divergence computed share=2") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "mean share=0.5") != NULL, "%s", text);
    ck_assert_msg(strstr(text, "d(teacher") == NULL, "%s", text);
    free(text);
    graph_free(graph);
    model_free(model);
    model_free(teacher);
}

TEST(refused_teachers)
{
    static const char other[] =
        "name: Other\ninput: [6]\nclasses: 5\nmodules: {fc: \"Linear(6, 5)\"}\n"
        "forward: [output = fc(x)]\nloss: cross_entropy(output, target)\n";
    static const char wide[] =
        "name: Wide\ninput: [7]\nclasses: 4\nmodules: {fc: \"Linear(7, 4)\"}\n"
        "forward: [output = fc(x)]\nloss: cross_entropy(output, target)\n";
    static const char twice[] =
        "name: Twice\ninput: [6]\nclasses: 4\nmodules: {fc: \"Linear(6, 4)\"}\n"
        "forward: [output = fc(x)]\nloss: cross_entropy(output, target) + mse_loss(x, x)\n";
    static const char *const texts[] = {other, wide, twice};
    static const char *const words[] = {"it tells 5 classes or tokens apart, the model 4",
                                        "its input is not that of the model",
                                        "the teacher's loss must be a cross_entropy"};
    const struct model_teaching teaching = {.temperature = 2, .share = 0.5};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct model *model = parse(net), *teacher = parse(texts[i]);
        int first = 0;
        must_fail(model_teach(model, teacher, &teaching, &first), STATUS_INVALID_ARGUMENT,
                  words[i]);
        model_free(model);
        model_free(teacher);
    }
}
