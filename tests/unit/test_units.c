/* Units: the wrap rule's vectors, flat parameters, ties, frozen parameters, explicit lists, print.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fsdp/units.h"
#include "fsdp_fixture.h"
#include "tests/testing.h"

static struct unit_set *build(const struct model *model, struct wrap_policy policy, int world)
{
    struct unit_set *units = NULL;
    status_t status = units_build(model, &policy, world, &units);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    return units;
}

static struct unit_set *build_size(const struct model *model, uint64_t min_num_params)
{
    return build(model, (struct wrap_policy){.kind = WRAP_SIZE, .min_num_params = min_num_params},
                 2);
}

static void expect_error(const struct model *model, struct wrap_policy policy, const char *text)
{
    struct unit_set *units = NULL;
    status_t status = units_build(model, &policy, 2, &units);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_msg(strstr(status_message(status), text) != NULL, "'%s' does not say '%s'",
                  status_message(status), text);
    ck_assert_ptr_null(units);
    status_free(status);
}

/* "name:elements name:elements ..." */
static void expect_units(const struct unit_set *units, const char *expected)
{
    char text[4096] = "";
    size_t length = 0;
    for (int u = 0; u < units->unit_count; u++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s:%lld",
                                   u > 0 ? " " : "", units->units[u].name,
                                   (long long)units->units[u].flat.parameter_elements);
    ck_assert_str_eq(text, expected);
}

TESTS_BELOW(.timeout = 60);

TEST(mnist_vectors)
{
    struct model *model = fixture_mnist();
    static const struct {
        uint64_t min_num_params;
        const char *units;
    } vectors[] = {
        {20000, "fc1:1179776 (root):20106"},
        {18496, "conv2:18496 fc1:1179776 (root):1610"},
        {18497, "fc1:1179776 (root):20106"},
        {1000, "conv2:18496 fc1:1179776 fc2:1290 (root):320"},
        {100, "conv1:320 conv2:18496 fc1:1179776 fc2:1290 (root):0"},
        {1, "conv1:320 conv2:18496 fc1:1179776 fc2:1290 (root):0"},
        {1179777, "(root):1199882"},
    };
    for (size_t i = 0; i < COUNT_OF(vectors); i++) {
        struct unit_set *units = build_size(model, vectors[i].min_num_params);
        expect_units(units, vectors[i].units);
        units_free(units);
    }
    struct unit_set *units = build(model, (struct wrap_policy){.kind = WRAP_NONE}, 2);
    expect_units(units, "(root):1199882");
    units_free(units);
    model_free(model);
}

TEST(gpt2_vectors)
{
    struct model *model = fixture_gpt2();
    struct unit_set *units = build_size(model, 100000000);
    expect_units(units, "(root):124439808");
    ck_assert_ptr_nonnull(strstr(units->notes, "the root is the only unit"));
    units_free(units);

    units = build_size(model, 5000000);
    ck_assert_int_eq(units->unit_count, 15);
    ck_assert_str_eq(units->units[0].name, "transformer.wte");
    ck_assert_str_eq(units->units[13].name, "lm_head");
    /* The tie would be split over wte and lm_head: it goes to the root. */
    ck_assert_int_eq(units->units[0].flat.parameter_elements, 0);
    ck_assert_int_eq(units->units[13].flat.parameter_elements, 0);
    for (int u = 1; u <= 12; u++)
        ck_assert_int_eq(units->units[u].flat.parameter_elements, 7087872);
    ck_assert_int_eq(units->units[14].flat.parameter_elements, 124439808 - 12 * 7087872);
    int tied = model->parameter_count - 1;
    ck_assert_int_eq(units->unit_of_parameter[tied], 14);
    ck_assert_int_eq(units->unit_of_parameter[model->parameters[tied].tied_to], 14);
    ck_assert_str_eq(units->notes, "lm_head.weight is tied to transformer.wte.weight: one "
                                   "parameter, owned by unit (root), the innermost around all of "
                                   "its users\n");
    units_free(units);

    units = build_size(model, 3000000);
    ck_assert_int_eq(units->unit_count, 15);
    for (int u = 1; u <= 12; u++) {
        ck_assert_ptr_nonnull(strstr(units->units[u].name, ".mlp"));
        ck_assert_int_eq(units->units[u].flat.parameter_elements, 4722432);
    }
    units_free(units);
    model_free(model);
}

/* The rule once more, as the facts state it, over sets instead of counts. */
struct oracle {
    const struct model *model;
    int64_t min_num_params;
    bool *wrapped;
};

static int owner_of(const struct model *model, int p)
{
    while (model->parameters[p].tied_to >= 0) p = model->parameters[p].tied_to;
    return p;
}

static void collect(const struct model *model, int m, bool *in)
{
    const struct module *module = &model->modules[m];
    for (int i = 0; i < module->parameter_count; i++)
        in[owner_of(model, module->parameters[i])] = true;
    for (int i = 0; i < module->child_count; i++) collect(model, module->children[i], in);
}

static int64_t oracle_visit(struct oracle *oracle, int m)
{
    const struct model *model = oracle->model;
    bool *in = mem_alloc_array(model->parameter_count, sizeof *in);
    collect(model, m, in);
    int64_t s = 0, w = 0;
    for (int p = 0; p < model->parameter_count; p++)
        if (in[p]) s += tensor_element_count(&model->parameters[p].type);
    free(in);
    const char *type = model->modules[m].type;
    if (s < oracle->min_num_params || strcmp(type, "MultiheadAttention") == 0) return 0;
    for (int i = 0; i < model->modules[m].child_count; i++)
        w += oracle_visit(oracle, model->modules[m].children[i]);
    if (m > 0 && s - w >= oracle->min_num_params && strncmp(type, "Module", 6) != 0) {
        oracle->wrapped[m] = true;
        return s;
    }
    return w;
}

static bool inside(const struct model *model, int m, const struct unit *unit)
{
    for (; m >= 0; m = model->modules[m].parent)
        for (int i = 0; i < unit->module_count; i++)
            if (unit->modules[i] == m) return true;
    return false;
}

static void check_set(const struct model *model, const struct unit_set *units)
{
    int64_t elements = 0;
    for (int u = 0; u < units->unit_count; u++) {
        const struct unit *unit = &units->units[u];
        const struct flat_parameter *flat = &unit->flat;
        int64_t end = 0;
        for (int i = 0; i < flat->parameter_count; i++) {
            int p = flat->parameters[i];
            ck_assert_int_eq(units->unit_of_parameter[p], u);
            ck_assert_int_eq(model->parameters[p].tied_to, -1);
            ck_assert_int_eq(model->parameters[p].trainable, !unit->frozen);
            ck_assert_int_ge(flat->offsets[i], end);
            ck_assert_int_lt(flat->offsets[i], end + FLAT_ALIGN_ELEMENTS);
            ck_assert_int_eq(flat->offsets[i] % FLAT_ALIGN_ELEMENTS, 0);
            ck_assert_int_eq(flat->offsets[i] * (int64_t)dtype_size(DTYPE_BF16) % 16, 0);
            if (i > 0) ck_assert_int_lt(flat->parameters[i - 1], p);
            end = flat->offsets[i] + tensor_element_count(&model->parameters[p].type);
            elements += tensor_element_count(&model->parameters[p].type);
        }
        ck_assert_int_eq(flat->padded, flat->shard * units->shard_world);
        ck_assert_int_eq(flat->shard % FLAT_ALIGN_ELEMENTS, 0);
        ck_assert_int_ge(flat->padded, end);
        ck_assert_int_lt(flat->padded, end + (int64_t)units->shard_world * FLAT_ALIGN_ELEMENTS);
        if (u > 0 && unit->modules[0] > 0)
            ck_assert_int_ge(unit->modules[0], units->units[u - 1].modules[0]);
    }
    int64_t all = 0;
    for (int p = 0; p < model->parameter_count; p++) {
        if (model->parameters[p].tied_to < 0)
            all += tensor_element_count(&model->parameters[p].type);
        /* Every user of a parameter is inside the unit that owns it. */
        ck_assert(
            inside(model, model->parameters[p].module, &units->units[units->unit_of_parameter[p]]));
    }
    ck_assert_int_eq(elements, all);
    ck_assert_int_eq(units->units[units->unit_count - 1].modules[0], 0);
}

LOOP_TEST(random_models_follow_the_rule, 0, 20)
{
    uint64_t seed = 1000 + (uint64_t)_i;
    struct fixture_random random = {.state = seed * 0x9e3779b97f4a7c15u};
    printf("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 40; round++) {
        struct model *model = fixture_random_model(&random);
        int world = 1 + (int)fixture_draw(&random, 9);
        struct wrap_policy policy = {.kind = WRAP_SIZE,
                                     .min_num_params = 1 + fixture_draw(&random, 120)};
        struct oracle oracle = {.model = model,
                                .min_num_params = (int64_t)policy.min_num_params,
                                .wrapped = mem_alloc_array(model->module_count, sizeof(bool))};
        oracle_visit(&oracle, 0);
        struct unit_set *units = NULL;
        status_t status = units_build(model, &policy, world, &units);
        if (status != NULL) {
            ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
            for (int m = 0; m < model->module_count; m++) ck_assert(!oracle.wrapped[m]);
            status_free(status);
        } else {
            bool *wrapped = mem_alloc_array(model->module_count, sizeof *wrapped);
            for (int u = 0; u < units->unit_count; u++) wrapped[units->units[u].modules[0]] = true;
            ck_assert(wrapped[0]);
            for (int m = 1; m < model->module_count; m++)
                ck_assert_msg(wrapped[m] == oracle.wrapped[m], "module %s of seed %llu",
                              model->modules[m].path, (unsigned long long)seed);
            check_set(model, units);
            free(wrapped);
            free(units_print_tree(units, model));
            units_free(units);
        }
        free(oracle.wrapped);
        model_free(model);
    }
}

TEST(child_registered_twice_counts_once)
{
    struct model *model = fixture_model_new("Net");
    int block = fixture_module(model, 0, "block", "Block", "");
    int inner = fixture_linear(model, block, "inner", 9, 10); /* 100 parameters */
    fixture_linear(model, block, "rest1", 4, 6);              /* 30 */
    fixture_linear(model, block, "rest2", 4, 6);
    struct module *module = &model->modules[block];
    module->children = mem_resize_array(module->children, 4, sizeof(int));
    module->children[module->child_count++] = inner;
    /* Counted twice, inner would leave 160 - 200, and block would not be a unit. */
    struct unit_set *units = build_size(model, 50);
    expect_units(units, "block:60 block.inner:100 (root):0");
    units_free(units);
    units = build_size(model, 61);
    expect_units(units, "block.inner:100 (root):60");
    units_free(units);
    model_free(model);
}

TEST(containers_and_attention_are_never_wrapped)
{
    struct model *model = fixture_model_new("Net");
    int list = fixture_module(model, 0, "list", "ModuleList", "");
    for (int i = 0; i < 3; i++)
        fixture_linear(model, list, (const char *[]){"0", "1", "2"}[i], 9, 10);
    int attention = fixture_module(model, 0, "attention", "MultiheadAttention", "");
    fixture_linear(model, attention, "out_proj", 30, 30);
    struct unit_set *units = build_size(model, 150);
    expect_units(units, "(root):1230"); /* list holds 300, attention 930 */
    units_free(units);
    units = build_size(model, 100);
    expect_units(units, "list.0:100 list.1:100 list.2:100 (root):930");
    units_free(units);
    model_free(model);
}

#define NAMES(...)                                                                                 \
    {                                                                                              \
        (const char *const[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *) \
    }

TEST(types_to_leave_alone_may_be_chosen)
{
    struct model *model = fixture_model_new("Net");
    int list = fixture_module(model, 0, "list", "ModuleList", "");
    for (int i = 0; i < 3; i++)
        fixture_linear(model, list, (const char *[]){"0", "1", "2"}[i], 9, 10);
    int block = fixture_module(model, 0, "block", "Block", "");
    fixture_linear(model, block, "fc", 30, 30);
    struct wrap_policy policy = {.kind = WRAP_SIZE, .min_num_params = 150};
    static const char *const none[1];
    policy.exclude = (struct wrap_names){none, 0};
    struct unit_set *units = build(model, policy, 2);
    expect_units(units, "list:300 block.fc:930 (root):0");
    units_free(units);
    policy.exclude = (struct wrap_names)NAMES("ModuleList", "Linear");
    policy.force_leaf = (struct wrap_names)NAMES("MultiheadAttention", "ModuleDict");
    expect_error(model, policy, "fsdp.wrap.force_leaf: Net has no module type 'ModuleDict'");
    policy.force_leaf = (struct wrap_names)NAMES("Block");
    units = build(model, policy, 2);
    expect_units(units, "(root):1230");
    units_free(units);
    policy.force_leaf = (struct wrap_names){0};
    units = build(model, policy, 2);
    expect_units(units, "block:930 (root):300");
    units_free(units);
    policy.exclude = (struct wrap_names)NAMES("ModulList");
    expect_error(model, policy, "Net has no module type 'ModulList'; did you mean 'ModuleList'?");
    model_free(model);
}

/* Net(embed: Linear, layers: ModuleList(2 of Block(a: Linear, mlp: Mlp(b: Linear), drop: Dropout)),
 * again: Block(a: Linear)) */
static struct model *blocks(void)
{
    struct model *model = fixture_model_new("Net");
    fixture_linear(model, 0, "embed", 4, 5); /* 25 */
    int list = fixture_module(model, 0, "layers", "ModuleList", "");
    for (int i = 0; i < 2; i++) {
        int block = fixture_module(model, list, i ? "1" : "0", "Block", "");
        fixture_linear(model, block, "a", 9, 10); /* 100 */
        int mlp = fixture_module(model, block, "mlp", "Mlp", "");
        fixture_linear(model, mlp, "b", 2, 10); /* 30 */
        fixture_module(model, block, "drop", "Dropout", "p=0.5");
    }
    int again = fixture_module(model, 0, "again", "Block", "");
    fixture_linear(model, again, "a", 9, 10);
    return model;
}

TEST(units_by_type)
{
    struct model *model = blocks();
    struct wrap_policy policy = {.kind = WRAP_TYPE, .types = NAMES("Block")};
    struct unit_set *units = build(model, policy, 2);
    expect_units(units, "layers.0:130 layers.1:130 again:100 (root):25");
    check_set(model, units);
    units_free(units);
    policy.types = (struct wrap_names)NAMES("Mlp", "Block");
    units = build(model, policy, 2);
    expect_units(units, "layers.0:100 layers.0.mlp:30 layers.1:100 layers.1.mlp:30 again:100 "
                        "(root):25");
    check_set(model, units);
    units_free(units);
    policy.types = (struct wrap_names)NAMES("Block", "Linear");
    units = build(model, policy, 2);
    expect_units(units, "embed:25 layers.0:0 layers.0.a:100 layers.0.mlp.b:30 layers.1:0 "
                        "layers.1.a:100 layers.1.mlp.b:30 again:0 again.a:100 (root):0");
    check_set(model, units);
    units_free(units);
    policy.types = (struct wrap_names)NAMES("Block", "Lineer");
    expect_error(model, policy,
                 "fsdp.wrap.types: Net has no module type 'Lineer'; did you "
                 "mean 'Linear'?");
    policy.types = (struct wrap_names)NAMES("Net");
    expect_error(model, policy, "'Net' is the model itself, which is always the root unit");
    policy.types = (struct wrap_names)NAMES("Dropout");
    expect_error(model, policy, "the modules of type 'Dropout' have no parameters to shard");
    policy.types.count = 0;
    expect_error(model, policy, "lists no module types");
    model_free(model);
}

/* Without a policy: the blocks of models of tokens, which the notes state; no units for others. */
TEST(units_by_block)
{
    struct model *model = blocks();
    struct wrap_policy policy = {.kind = WRAP_AUTO};
    struct unit_set *units = build(model, policy, 2);
    expect_units(units, "(root):385");
    ck_assert_str_eq(units->notes, "");
    units_free(units);
    model->tokens = true;
    int small = fixture_module(model, 0, "heads", "ModuleList", "");
    fixture_linear(model, small, "0", 4, 5);
    units = build(model, policy, 2);
    expect_units(units, "layers.0:130 layers.1:130 again:100 (root):50");
    ck_assert_ptr_nonnull(strstr(units->notes, "each of the 3 blocks of the type Block is a unit"));
    check_set(model, units);
    units_free(units);
    fixture_linear(model, 0, "head", 30, 5); /* larger than its blocks, not than the teacher's */
    int first = model->parameter_count, teacher = fixture_module(model, 0, "teacher", "Other", "");
    int list = fixture_module(model, teacher, "layers", "ModuleList", "");
    for (int i = 0; i < 2; i++)
        fixture_linear(model, fixture_module(model, list, i ? "1" : "0", "Layer", ""), "up", 40, 5);
    units = build(model, policy, 2); /* the largest list of all, without a teacher */
    expect_units(units, "teacher.layers.0:205 teacher.layers.1:205 (root):565");
    units_free(units);
    for (int p = first; p < model->parameter_count; p++) {
        model->parameters[p].reference = true;
        model->parameters[p].of = -1;
    }
    units = build(model, policy, 2);
    expect_units(units, "layers.0:130 layers.1:130 again:100 head:155 teacher.layers.0:205 "
                        "teacher.layers.1:205 (root):50");
    ck_assert_ptr_nonnull(strstr(units->notes, "each of the 5 blocks is a unit"));
    check_set(model, units);
    units_free(units);
    model_free(model);

    model = fixture_model_new("Net");
    model->tokens = true;
    fixture_linear(model, 0, "embed", 4, 5);
    fixture_module(model, 0, "layers", "ModuleList", ""); /* an empty one */
    units = build(model, policy, 2);
    expect_units(units, "(root):25");
    units_free(units);
    model_free(model);
}

/* Embeddings and heads with more parameters than a block, unless they share them. */
TEST(units_larger_than_blocks)
{
    struct model *model = blocks();
    model->tokens = true;
    fixture_linear(model, 0, "lm_head", 4, 26);
    fixture_linear(model, 0, "big_head", 4, 27);
    struct wrap_policy policy = {.kind = WRAP_AUTO};
    struct unit_set *units = build(model, policy, 2);
    expect_units(units, "layers.0:130 layers.1:130 again:100 big_head:135 (root):155");
    ck_assert_str_eq(units->notes,
                     "no wrap policy was given: each of the 3 blocks of the type Block is a unit; "
                     "so is big_head, which is larger; set fsdp.wrap.policy: none for one unit\n");
    check_set(model, units);
    units_free(units);
    fixture_linear(model, 0, "tied", 4, 27);
    for (int p = 0; p < 2; p++)
        model->parameters[model->parameter_count - 1 - p].tied_to = model->parameter_count - 3 - p;
    units = build(model, policy, 2);
    expect_units(units, "layers.0:130 layers.1:130 again:100 (root):290");
    check_set(model, units);
    units_free(units);
    model_free(model);
}

TEST(units_by_pattern)
{
    struct model *model = blocks();
    struct wrap_policy policy = {.kind = WRAP_MATCH, .modules = NAMES("layers.*")};
    struct unit_set *units = build(model, policy, 2);
    expect_units(units, "layers.0:130 layers.1:130 (root):125");
    check_set(model, units);
    units_free(units);
    policy.modules = (struct wrap_names)NAMES("layers.*.mlp", "layers.?", "embed");
    units = build(model, policy, 2);
    expect_units(units, "embed:25 layers.0:100 layers.0.mlp:30 layers.1:100 layers.1.mlp:30 "
                        "(root):100");
    check_set(model, units);
    units_free(units);
    policy.modules = (struct wrap_names)NAMES("*");
    units = build(model, policy, 2);
    expect_units(units, "embed:25 layers:260 again:100 (root):0");
    units_free(units);
    policy.modules = (struct wrap_names)NAMES("*", "layer.1");
    expect_error(model, policy,
                 "fsdp.wrap.modules: the pattern 'layer.1' matches no module of Net; did you mean "
                 "'layers.1'?");
    policy.modules = (struct wrap_names)NAMES("*.drop");
    expect_error(model, policy, "'*.drop' matches only modules without parameters to shard");
    policy.modules = (struct wrap_names)NAMES("");
    expect_error(model, policy, "matches no module");
    policy.modules.count = 0;
    expect_error(model, policy, "lists no patterns");
    model_free(model);
}

TEST(padding)
{
    struct model *model = fixture_model_new("Net");
    fixture_linear(model, 0, "fc", 2, 1); /* 2 + 1 elements */
    for (int world = 1; world <= 9; world++) {
        struct unit_set *units = build(model, (struct wrap_policy){.kind = WRAP_NONE}, world);
        const struct flat_parameter *flat = &units->units[0].flat;
        ck_assert_int_eq(flat->offsets[0], 0);
        ck_assert_int_eq(flat->offsets[1], 8);
        ck_assert_int_eq(flat->shard, world == 1 ? 16 : 8); /* most ranks hold padding only */
        ck_assert_int_eq(flat->padded, flat->shard * world);
        units_free(units);
    }
    struct unit_set *units = build_size(model, 1);
    ck_assert_int_eq(units->units[1].flat.padded, 0);
    ck_assert_int_eq(units->units[1].flat.shard, 0);
    units_free(units);
    model_free(model);
}

TEST(listed_units)
{
    struct model *model = fixture_mnist();
    const char *first[] = {"fc2", "conv1"}, *second[] = {"conv2"};
    struct wrap_unit_spec specs[] = {{.modules = second, .module_count = 1},
                                     {.modules = first, .module_count = 2}};
    struct wrap_policy policy = {.kind = WRAP_UNITS, .units = specs, .unit_count = 2};
    struct unit_set *units = build(model, policy, 2);
    expect_units(units, "conv1:1610 conv2:18496 (root):1179776");
    ck_assert_int_eq(units->units[0].module_count, 2);
    ck_assert_int_eq(units->unit_of_module[1], 0);
    ck_assert_int_eq(units->unit_of_module[6], 0);
    ck_assert_int_eq(units->unit_of_module[5], 2);
    check_set(model, units);
    char *text = units_print_tree(units, model);
    ck_assert_str_eq(
        text,
        "FullyShardedDataParallel(  # 1,179,776 parameters\n"
        "  (_fsdp_wrapped_module): Net(\n"
        "    (conv1): FullyShardedDataParallel(  # unit conv1 of 2 modules: 1,610 parameters\n"
        "      (_fsdp_wrapped_module): Conv2d(1, 32, kernel_size=(3, 3), stride=(1, 1))\n"
        "    )\n"
        "    (conv2): FullyShardedDataParallel(  # 18,496 parameters\n"
        "      (_fsdp_wrapped_module): Conv2d(32, 64, kernel_size=(3, 3), stride=(1, 1))\n"
        "    )\n"
        "    (dropout1): Dropout(p=0.25, inplace=False)\n"
        "    (dropout2): Dropout(p=0.5, inplace=False)\n"
        "    (fc1): Linear(in_features=9216, out_features=128, bias=True)\n"
        "    (fc2): FullyShardedDataParallel(  # unit conv1 of 2 modules: 1,610 parameters\n"
        "      (_fsdp_wrapped_module): Linear(in_features=128, out_features=10, bias=True)\n"
        "    )\n"
        "  )\n"
        ")\n");
    free(text);
    units_free(units);
    model_free(model);
}

/* A unit's own settings follow it. */
TEST(printed_settings)
{
    static const char *const paths[] = {"conv1", "conv2", "fc1", "fc2"};
    struct model *model = fixture_mnist();
    struct wrap_unit_spec specs[] = {
        {.modules = &paths[0], .module_count = 1, .shard_world = 1, .reshard = RESHARD_NO},
        {.modules = &paths[1],
         .module_count = 1,
         .shard_world = 2,
         .reshard = RESHARD_NO,
         .param_dtype = UNIT_DTYPE_BF16},
        {.modules = &paths[2],
         .module_count = 1,
         .reshard = RESHARD_GROUP,
         .reshard_ranks = 2,
         .reduce_dtype = UNIT_DTYPE_F32},
        {.modules = &paths[3], .module_count = 1, .reshard = RESHARD_YES, .cpu_offload = true},
    };
    struct wrap_policy policy = {.kind = WRAP_UNITS, .units = specs, .unit_count = 4};
    struct unit_set *units = NULL;
    ck_assert_ptr_null(units_build(model, &policy, 8, &units));
    char *text = units_print_tree(units, model);
    static const char *const lines[] = {
        "(conv1): FullyShardedDataParallel(  # 320 parameters, not sharded\n",
        "(conv2): FullyShardedDataParallel(  # 18,496 parameters, sharded over 2 ranks, kept until "
        "backward, in bf16\n",
        "(fc1): FullyShardedDataParallel(  # 1,179,776 parameters, resharded to 2 ranks after "
        "forward, reduced in f32\n",
        "(fc2): FullyShardedDataParallel(  # 1,290 parameters, resharded after forward, offloaded "
        "to the CPU\n"};
    for (size_t i = 0; i < COUNT_OF(lines); i++)
        ck_assert_msg(strstr(text, lines[i]) != NULL, "no %s in\n%s", lines[i], text);
    free(text);
    units_free(units);
    model_free(model);
}

TEST(listed_units_refused)
{
    struct model *model = fixture_gpt2();
    const char *unknown[] = {"lm_haed"}, *root[] = {""}, *head[] = {"lm_head"};
    const char *block[] = {"transformer.h.3"}, *mlp[] = {"transformer.h.3.mlp"};
    const char *far[] = {"zzzzzzzzzzzz"};
    struct wrap_unit_spec specs[2];
    struct wrap_policy policy = {.kind = WRAP_UNITS, .units = specs, .unit_count = 1};
    specs[0] = (struct wrap_unit_spec){.modules = unknown, .module_count = 1};
    expect_error(model, policy, "did you mean 'lm_head'?");
    specs[0] = (struct wrap_unit_spec){.modules = far, .module_count = 1};
    expect_error(model, policy, "'zzzzzzzzzzzz', which GPT does not have");
    specs[0] = (struct wrap_unit_spec){.modules = root, .module_count = 1};
    expect_error(model, policy, "always the root");
    specs[0] = (struct wrap_unit_spec){.modules = head, .module_count = 0};
    expect_error(model, policy, "lists no modules");
    policy.unit_count = 2;
    specs[0] = specs[1] = (struct wrap_unit_spec){.modules = head, .module_count = 1};
    expect_error(model, policy, "named twice, in wrap units 1 and 2");
    specs[0] = (struct wrap_unit_spec){.modules = mlp, .module_count = 1};
    specs[1] = (struct wrap_unit_spec){.modules = block, .module_count = 1};
    expect_error(model, policy,
                 "wrap unit 1 names 'transformer.h.3.mlp', which is inside 'transformer.h.3'");
    policy.unit_count = 0;
    expect_error(model, policy, "lists no units");
    model_free(model);

    model = fixture_mnist();
    const char *dropout[] = {"dropout1"};
    policy.unit_count = 1;
    specs[0] = (struct wrap_unit_spec){.modules = dropout, .module_count = 1};
    expect_error(model, policy, "('dropout1') has no parameters");
    policy = (struct wrap_policy){.kind = WRAP_SIZE, .min_num_params = 0};
    expect_error(model, policy, "at least 1");
    policy.min_num_params = 1199883;
    expect_error(model, policy,
                 "min_num_params is 1,199,883, but no module reaches it: all of Net "
                 "has 1,199,882 parameters");
    policy.min_num_params = UINT64_MAX;
    expect_error(model, policy, "no module reaches it");
    model_free(model);
}

TEST(ties_stay_in_one_unit)
{
    struct model *model = fixture_model_new("Net");
    int outer = fixture_module(model, 0, "outer", "Block", "");
    int a = fixture_linear(model, outer, "a", 10, 10);
    int b = fixture_linear(model, outer, "b", 10, 10);
    int c = fixture_linear(model, 0, "c", 10, 10);
    int *tied = &model->parameters[model->modules[b].parameters[0]].tied_to;
    *tied = model->modules[a].parameters[0];
    /* a and b in one unit of two modules: the tie stays there. */
    const char *together[] = {"outer.a", "outer.b"}, *apart_a[] = {"outer.a"},
               *apart_b[] = {"outer.b"};
    struct wrap_unit_spec specs[] = {{.modules = together, .module_count = 2},
                                     {.modules = apart_b, .module_count = 1}};
    struct wrap_policy policy = {.kind = WRAP_UNITS, .units = specs, .unit_count = 1};
    struct unit_set *units = build(model, policy, 2);
    expect_units(units, "outer.a:120 (root):110");
    ck_assert_str_eq(units->notes, "");
    check_set(model, units);
    units_free(units);
    specs[0] = (struct wrap_unit_spec){.modules = apart_a, .module_count = 1};
    policy.unit_count = 2;
    units = build(model, policy, 2);
    expect_units(units, "outer.a:10 outer.b:10 (root):210");
    char *text = units_print_tree(units, model);
    ck_assert_ptr_nonnull(strstr(text, "outer.b.weight is tied to outer.a.weight: one parameter, "
                                       "owned by unit (root)"));
    free(text);
    check_set(model, units);
    units_free(units);
    /* By size, the tie is subtracted twice, as PyTorch does: 120 - 220 is left for outer. */
    units = build_size(model, 100);
    expect_units(units, "outer.a:10 outer.b:10 c:110 (root):100");
    units_free(units);
    *tied = -1;
    model->parameters[model->modules[c].parameters[0]].tied_to = model->modules[a].parameters[0];
    units = build_size(model, 200);
    expect_units(units, "outer:120 (root):110"); /* 220 reached; the tie with c moves up */
    units_free(units);
    model_free(model);
}

TEST(frozen_parameters_keep_apart)
{
    struct model *model = fixture_mnist();
    model->parameters[0].trainable = false;                                  /* conv1.weight */
    model->parameters[4].trainable = model->parameters[5].trainable = false; /* fc1 */
    struct unit_set *units = build_size(model, 20000);
    expect_units(units, "fc1:1179776 (root) (frozen):288 (root):19818");
    ck_assert(units->units[0].frozen);
    ck_assert(units->units[1].frozen);
    ck_assert(!units->units[2].frozen);
    ck_assert_int_eq(units->unit_of_module[0], 2);
    ck_assert_int_eq(units->unit_of_parameter[0], 1);
    check_set(model, units);
    char *text = units_print_tree(units, model);
    ck_assert_ptr_nonnull(strstr(text, "# 19,818 parameters and 288 frozen\n"));
    ck_assert_ptr_nonnull(strstr(text, "# 1,179,776 frozen parameters\n"));
    free(text);
    units_free(units);
    model_free(model);
}

/* Unless a unit says otherwise, in all policies. */
TEST(frozen_parameters_may_be_whole)
{
    struct model *model = fixture_mnist();
    model->parameters[0].trainable = false;                                  /* conv1.weight */
    model->parameters[4].trainable = model->parameters[5].trainable = false; /* fc1 */
    const char *const fc1[] = {"fc1"};
    const struct wrap_unit_spec own[] = {{.modules = fc1, .module_count = 1, .shard_world = 2}};
    const struct wrap_policy policies[] = {
        {.kind = WRAP_SIZE, .min_num_params = 20000, .keep_frozen = true},
        {.kind = WRAP_UNITS, .units = own, .unit_count = 1, .keep_frozen = true}};
    for (int i = 0; i < 2; i++) {
        struct unit_set *units = build(model, policies[i], 2);
        expect_units(units, "fc1:1179776 (root) (frozen):288 (root):19818");
        ck_assert_int_eq(units->units[0].shard_world, i == 0 ? 1 : 2);
        ck_assert_int_eq(units->units[0].flat.shard, i == 0 ? 1179776 : 1179776 / 2);
        ck_assert_int_eq(units->units[1].shard_world, 1);
        ck_assert_int_eq(units->units[2].shard_world, 2);
        units_free(units);
    }
    model_free(model);
}

TEST(prints_as_pytorch)
{
    struct model *model = fixture_mnist();
    struct unit_set *units = build_size(model, 20000);
    char *text = units_print_tree(units, model);
    ck_assert_str_eq(
        text,
        "FullyShardedDataParallel(  # 20,106 parameters\n"
        "  (_fsdp_wrapped_module): Net(\n"
        "    (conv1): Conv2d(1, 32, kernel_size=(3, 3), stride=(1, 1))\n"
        "    (conv2): Conv2d(32, 64, kernel_size=(3, 3), stride=(1, 1))\n"
        "    (dropout1): Dropout(p=0.25, inplace=False)\n"
        "    (dropout2): Dropout(p=0.5, inplace=False)\n"
        "    (fc1): FullyShardedDataParallel(  # 1,179,776 parameters\n"
        "      (_fsdp_wrapped_module): Linear(in_features=9216, out_features=128, bias=True)\n"
        "    )\n"
        "    (fc2): Linear(in_features=128, out_features=10, bias=True)\n"
        "  )\n"
        ")\n");
    free(text);
    units_free(units);
    model_free(model);
}

TEST(neighbours_alike_are_printed_once)
{
    struct model *model = fixture_model_new("Net");
    int list = fixture_module(model, 0, "layers", "ModuleList", "");
    for (int i = 0; i < 4; i++) {
        char name[] = {(char)('0' + i), '\0'};
        fixture_linear(model, list, name, 4, i == 2 ? 7 : 6);
    }
    int row = fixture_module(model, 0, "row", "Sequential", "");
    fixture_linear(model, row, "0", 4, 6);
    fixture_linear(model, row, "1", 4, 6);
    struct unit_set *units = build(model, (struct wrap_policy){.kind = WRAP_NONE}, 2);
    char *text = units_print_tree(units, model);
    ck_assert_ptr_nonnull(
        strstr(text, "    (layers): ModuleList(\n"
                     "      (0-1): 2 x Linear(in_features=4, out_features=6, bias=True)\n"
                     "      (2): Linear(in_features=4, out_features=7, bias=True)\n"
                     "      (3): Linear(in_features=4, out_features=6, bias=True)\n"
                     "    )\n"
                     "    (row): Sequential(\n"
                     "      (0): Linear(in_features=4, out_features=6, bias=True)\n"
                     "      (1): Linear(in_features=4, out_features=6, bias=True)\n"
                     "    )\n"));
    free(text);
    units_free(units);
    model_free(model);
}
