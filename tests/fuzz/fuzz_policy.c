/*
 * Wrap policies over a few fixed models: units that hold what they promise, and plans that the
 * validator accepts. The input is read as choices, byte by byte; past its end every choice is 0.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "fsdp/plan.h"
#include "fuzz.h"
#include "model/graph.h"
#include "model/model.h"

static const char *const model_texts[] = {
    "name: Net\n"
    "input: [1, 12, 12]\n"
    "classes: 10\n"
    "modules:\n"
    "  conv1: Conv2d(1, 4, 3)\n"
    "  conv2: Conv2d(4, 8, 3)\n"
    "  fc1: Linear(128, 7)\n"
    "  fc2: Linear(7, 10)\n"
    "forward:\n"
    "  - x = relu(conv1(x))\n"
    "  - x = max_pool2d(relu(conv2(x)), 2)\n"
    "  - x = relu(fc1(dropout(flatten(x, 1), 0.5)))\n"
    "  - output = log_softmax(fc2(x), dim=1)\n"
    "loss: nll_loss(output, target, reduction=\"sum\")\n",

    /* nested blocks; a tied and frozen parameters; a module that is used twice, one that is not */
    "name: Deep\n"
    "input: [6]\n"
    "classes: 6\n"
    "blocks:\n"
    "  Block(width):\n"
    "    modules:\n"
    "      a: Linear(width, width)\n"
    "      b: Sequential(Linear(width, 5), ReLU(), Linear(5, width, bias=False))\n"
    "    forward:\n"
    "      - output = x + b(relu(a(x)))\n"
    "modules:\n"
    "  first: Linear(6, 6)\n"
    "  layers: 4 * Block(6)\n"
    "  unused: Linear(3, 3)\n"
    "  head: Linear(6, 6)\n"
    "forward:\n"
    "  - x = first(x)\n"
    "  - for layer in layers: x = layer(x)\n"
    "  - output = head(first(x))\n"
    "loss: cross_entropy(output, target)\n"
    "tie: {head.weight: first.weight}\n"
    "freeze: ['layers.0.a.*', 'layers.2.*', head.bias]\n",

    "name: Frozen\n"
    "input: [3]\n"
    "classes: 2\n"
    "modules:\n"
    "  a: Linear(3, 3)\n"
    "  b: Linear(3, 2)\n"
    "forward:\n"
    "  - output = b(a(x))\n"
    "loss: cross_entropy(output, target)\n"
    "freeze: ['a.*']\n",
};
enum { MODELS = COUNT_OF(model_texts), UNITS_MAX = 8, MODULES_MAX = 6, NAME_LISTS = 4 };

struct input {
    const uint8_t *at, *end;
};

static unsigned choose(struct input *input, unsigned below)
{
    return input->at < input->end ? *input->at++ % below : 0;
}

static const struct model *model_get(unsigned number)
{
    static struct model *models[MODELS];
    if (models[number] == NULL) {
        status_t status = model_parse(model_texts[number], strlen(model_texts[number]), "net.yaml",
                                      &models[number]);
        FUZZ_CHECK(status == NULL, "%s", status_message(status));
    }
    return models[number];
}

/* Mostly a module's path or type, at times text. Caller frees. */
static char *choose_name(struct input *input, const struct model *model, bool type)
{
    unsigned module = choose(input, (unsigned)model->module_count + 2);
    if (module < (unsigned)model->module_count)
        return mem_strdup(type ? model->modules[module].type : model->modules[module].path);
    size_t length = choose(input, 12);
    char *text = mem_alloc(length + 1);
    for (size_t i = 0; i < length; i++) text[i] = (char)choose(input, 256);
    return text;
}

struct drawn_policy {
    struct wrap_policy policy;
    struct wrap_unit_spec units[UNITS_MAX];
    const char *modules[UNITS_MAX][MODULES_MAX];
    const char *names[NAME_LISTS][MODULES_MAX];
};

static void choose_names(struct input *input, const struct model *model, bool types,
                         const char **items, struct wrap_names *names)
{
    int count = (int)choose(input, MODULES_MAX + 1);
    for (int i = 0; i < count; i++) items[i] = choose_name(input, model, types);
    *names = (struct wrap_names){items, count};
}

static void choose_policy(struct input *input, const struct model *model,
                          struct drawn_policy *drawn)
{
    static const enum wrap_kind kinds[] = {WRAP_UNITS, WRAP_SIZE, WRAP_NONE, WRAP_TYPE, WRAP_MATCH};
    *drawn = (struct drawn_policy){.policy.kind = kinds[choose(input, 5)]};
    drawn->policy.min_num_params = 1 + choose(input, 256) * (uint64_t)(1 + choose(input, 4));
    drawn->policy.units = drawn->units;
    if (drawn->policy.kind == WRAP_TYPE)
        choose_names(input, model, true, drawn->names[0], &drawn->policy.types);
    if (drawn->policy.kind == WRAP_MATCH)
        choose_names(input, model, false, drawn->names[1], &drawn->policy.modules);
    if (drawn->policy.kind == WRAP_SIZE && choose(input, 2)) {
        choose_names(input, model, true, drawn->names[2], &drawn->policy.force_leaf);
        choose_names(input, model, true, drawn->names[3], &drawn->policy.exclude);
    }
    if (drawn->policy.kind != WRAP_UNITS) return;
    drawn->policy.unit_count = (int)choose(input, UNITS_MAX + 1);
    for (int i = 0; i < drawn->policy.unit_count; i++) {
        drawn->units[i].modules = drawn->modules[i];
        drawn->units[i].module_count = (int)(1 + choose(input, MODULES_MAX));
        for (int j = 0; j < drawn->units[i].module_count; j++)
            drawn->modules[i][j] = choose_name(input, model, false);
    }
}

/* What each unit has for itself. */
static void choose_settings(struct input *input, struct drawn_policy *drawn)
{
    for (int i = 0; i < drawn->policy.unit_count && drawn->policy.kind == WRAP_UNITS; i++) {
        struct wrap_unit_spec *unit = &drawn->units[i];
        unit->shard_world = (int)choose(input, 10) - (choose(input, 16) == 15);
        unit->reshard = (enum reshard)choose(input, 4);
        unit->reshard_ranks = (int)choose(input, 10) - (choose(input, 16) == 15);
        unit->param_dtype = (enum unit_dtype)choose(input, 3);
        unit->reduce_dtype = (enum unit_dtype)choose(input, 3);
        unit->cpu_offload = choose(input, 2);
    }
}

static void drawn_policy_deinit(struct drawn_policy *drawn)
{
    for (int i = 0; i < UNITS_MAX; i++)
        for (int j = 0; j < MODULES_MAX; j++) free((char *)drawn->modules[i][j]);
    for (int i = 0; i < NAME_LISTS; i++)
        for (int j = 0; j < MODULES_MAX; j++) free((char *)drawn->names[i][j]);
}

/* Every distinct parameter lies in exactly one unit, the one that says so. */
static void check_units(const struct model *model, const struct unit_set *units)
{
    int *seen = mem_alloc_array((size_t)model->parameter_count + 1, sizeof *seen);
    for (int u = 0; u < units->unit_count; u++) {
        const struct flat_parameter *flat = &units->units[u].flat;
        int64_t end = 0;
        for (int p = 0; p < flat->parameter_count; p++) {
            const struct parameter *parameter = &model->parameters[flat->parameters[p]];
            FUZZ_CHECK(parameter->tied_to < 0 && parameter->trainable != units->units[u].frozen,
                       "%s in %s", parameter->name, units->units[u].name);
            FUZZ_CHECK(units->unit_of_parameter[flat->parameters[p]] == u, "%s", parameter->name);
            FUZZ_CHECK(flat->offsets[p] >= end, "%s", parameter->name);
            end = flat->offsets[p] + tensor_element_count(&parameter->type);
            seen[flat->parameters[p]]++;
        }
        FUZZ_CHECK(flat->padded >= end && flat->padded == flat->shard * units->units[u].shard_world,
                   "%s", units->units[u].name);
    }
    for (int p = 0; p < model->parameter_count; p++)
        FUZZ_CHECK(seen[p] == (model->parameters[p].tied_to < 0), "%s in %d units",
                   model->parameters[p].name, seen[p]);
    free(seen);
}

struct lowered {
    struct graph *graph;
    uint64_t *workspace_bytes;
    bool *view, *in_place;
    struct lowering lowering;
};

static void lower(const struct model *model, const struct unit_set *units, enum dtype dtype,
                  bool train, struct input *input, struct lowered *lowered)
{
    enum dtype *parameters, *modules;
    units_find_dtypes(units, model, dtype, &parameters, &modules);
    const struct graph_options options = {.batch_size = 2,
                                          .train = train,
                                          .dropout = true,
                                          .count_correct = !train,
                                          .compute_dtype = dtype,
                                          .parameter_dtypes = parameters,
                                          .module_dtypes = modules};
    status_t status = graph_build(model, &options, &lowered->graph);
    free(parameters);
    free(modules);
    FUZZ_CHECK(status == NULL, "%s", status_message(status));
    size_t count = (size_t)lowered->graph->op_count;
    lowered->workspace_bytes = mem_alloc_array(count, sizeof *lowered->workspace_bytes);
    lowered->view = mem_alloc_array(count, sizeof *lowered->view);
    lowered->in_place = mem_alloc_array(count, sizeof *lowered->in_place);
    for (size_t o = 0; o < count; o++) {
        unsigned choice = choose(input, 8);
        lowered->workspace_bytes[o] = choice == 1 ? 1000 : choice == 2 ? 64 : 0;
        lowered->view[o] = lowered->graph->ops[o].kind == OP_RESHAPE && choice != 3;
        lowered->in_place[o] =
            op_info_get(lowered->graph->ops[o].kind)->element_wise && choice != 4;
    }
    lowered->lowering = (struct lowering){.workspace_bytes = lowered->workspace_bytes,
                                          .view = lowered->view,
                                          .in_place = lowered->in_place};
}

static void lowered_deinit(struct lowered *lowered)
{
    graph_free(lowered->graph);
    free(lowered->workspace_bytes);
    free(lowered->view);
    free(lowered->in_place);
}

static void plan_units(struct input *input, const struct model *model, const struct unit_set *units,
                       const struct plan_options *options)
{
    struct lowered train, evaluate;
    lower(model, units, options->gathered_dtype, true, input, &train);
    lower(model, units, options->gathered_dtype, false, input, &evaluate);
    struct plan *plan;
    status_t status = plan_build(model, units, train.graph, &train.lowering, evaluate.graph,
                                 &evaluate.lowering, options, &plan);
    if (status == NULL) {
        status = plan_validate(plan);
        FUZZ_CHECK(status == NULL, "%s", status_message(status));
        free(plan_dump(plan));
        plan_free(plan);
    } else {
        fuzz_expect_user_error(status);
    }
    lowered_deinit(&train);
    lowered_deinit(&evaluate);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, data + size};
    const struct model *model = model_get(choose(&input, MODELS));
    struct plan_options options = {
        .strategy = choose(&input, 2) ? STRATEGY_NO_SHARD : STRATEGY_FULL_SHARD,
        .world = (int)(1 + choose(&input, 9)),
        .backward_prefetch = (enum prefetch)choose(&input, 3),
        .forward_prefetch = choose(&input, 2),
        .gathered_limit = (int)choose(&input, 4),
        .optimizer = OPTIMIZER_SGD,
        .optimizer_slots = (int)choose(&input, 3),
        .collective_workspace_bytes = choose(&input, 2) * UINT64_C(4096),
    };
    options.rank = (int)choose(&input, (unsigned)options.world);
    struct drawn_policy drawn;
    choose_policy(&input, model, &drawn);
    if (choose(&input, 2)) choose_settings(&input, &drawn);
    int shard_world = options.strategy == STRATEGY_NO_SHARD ? 1 : options.world;
    if (options.strategy != STRATEGY_NO_SHARD && choose(&input, 3) == 1) {
        options.strategy = STRATEGY_HYBRID_SHARD;
        shard_world = (int)(1 + choose(&input, 9));
    }
    options.reshard = (enum reshard)choose(&input, 4);
    options.reshard_ranks = (int)choose(&input, 10);
    options.gathered_dtype = choose(&input, 4) == 1 ? DTYPE_BF16 : DTYPE_F32;
    options.reduce_dtype = choose(&input, 4) == 1 ? DTYPE_BF16 : DTYPE_F32;
    options.norm = (enum norm_kind)choose(&input, 3);
    options.accumulation =
        options.world > 1 && choose(&input, 2) ? ACCUMULATION_REDUCED : ACCUMULATION_NONE;
    options.micro_steps = options.accumulation == ACCUMULATION_NONE ? 0 : 2;
    struct unit_set *units;
    status_t status = units_build(model, &drawn.policy, shard_world, &units);
    if (status == NULL) {
        check_units(model, units);
        free(units_print_tree(units, model));
        plan_units(&input, model, units, &options);
        units_free(units);
    } else {
        FUZZ_CHECK(status_code(status) == STATUS_INVALID_ARGUMENT, "%s", status_message(status));
        status_free(status);
    }
    drawn_policy_deinit(&drawn);
    return 0;
}
