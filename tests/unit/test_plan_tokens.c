/*
 * Plans of GPT-2 124M, the example with the real sizes: a rank's memory with a unit per block,
 * which is linear in the window and never includes all logits. Kernels' scratch memory is omitted.
 * $srcdir is the place of the example.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "fsdp/plan.h"
#include "model/graph.h"
#include "tests/testing.h"

enum { WIDTH = 768, CONTEXT = 32768 };

struct planned {
    struct model *model;
    struct unit_set *units;
    struct graph *graph;
    bool *view, *in_place;
    struct plan *plan;
};

static char *replace(char *text, const char *old, const char *new)
{
    const char *at = strstr(text, old);
    ck_assert_msg(at != NULL, "no '%s' in the example", old);
    char *made = mem_printf("%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    free(text);
    return made;
}

static void assert_okay(status_t status)
{
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

/* With positions for long windows; GPT-2 itself has 1024. */
static struct model *read_gpt2(const char *context)
{
    const char *root = getenv("srcdir");
    char *path = file_path_join(root != NULL ? root : ".", "examples/gpt2/model.yaml");
    struct buf bytes = {0};
    assert_okay(file_read(path, 1 << 20, &bytes));
    free(path);
    char *sizes = mem_printf("GPT2Model(50257, %s, 768, 12, 12)", context);
    char *positions = mem_printf("context: %s", context);
    char *text = replace(buf_take(&bytes), "vocabulary: 256", "vocabulary: 50257");
    text = replace(text, "context: 64", positions);
    text = replace(text, "GPT2Model(256, 64, 128, 4, 4)", sizes);
    text = replace(text, "lm_head: Linear(128, 256,", "lm_head: Linear(768, 50257,");
    struct model *model = NULL;
    assert_okay(model_parse(text, strlen(text), "model.yaml", &model));
    free(text);
    free(sizes);
    free(positions);
    return model;
}

static struct planned plan_windows(const char *context, int world, int64_t time, bool checkpoint,
                                   bool documents)
{
    static const char *const block[] = {"GPT2Block"}, *const blocks[] = {"transformer.h.*"};
    struct planned planned = {.model = read_gpt2(context)};
    const struct graph_options options = {.batch_size = 2,
                                          .time = time,
                                          .train = true,
                                          .documents = documents,
                                          .checkpoint = blocks,
                                          .checkpoint_count = checkpoint ? 1 : 0};
    assert_okay(graph_build(planned.model, &options, &planned.graph));
    planned.view = mem_alloc_array((size_t)planned.graph->op_count, sizeof(bool));
    planned.in_place = mem_alloc_array((size_t)planned.graph->op_count, sizeof(bool));
    for (int o = 0; o < planned.graph->op_count; o++)
        planned.in_place[o] = op_info_get(planned.graph->ops[o].kind)->element_wise;
    const struct wrap_policy policy = {.kind = WRAP_TYPE, .types = {.items = block, .count = 1}};
    assert_okay(units_build(planned.model, &policy, world, &planned.units));
    const struct lowering lowering = {.view = planned.view, .in_place = planned.in_place};
    const struct plan_options plan = {.world = world,
                                      .backward_prefetch = PREFETCH_PRE,
                                      .optimizer = OPTIMIZER_ADAMW,
                                      .optimizer_slots = 2};
    assert_okay(plan_build(planned.model, planned.units, planned.graph, &lowering, NULL, NULL,
                           &plan, &planned.plan));
    return planned;
}

static struct planned plan_gpt2(const char *context, int world, int64_t time, bool checkpoint)
{
    return plan_windows(context, world, time, checkpoint, false);
}

static void planned_deinit(struct planned *planned)
{
    plan_free(planned->plan);
    units_free(planned->units);
    graph_free(planned->graph);
    free(planned->view);
    free(planned->in_place);
    model_free(planned->model);
}

TESTS_BELOW(.timeout = 60);

/* A rank's lasting state is its share; beyond it, at most the root and two blocks at a time. */
LOOP_TEST(two_blocks_are_gathered, 0, 4)
{
    static const int worlds[] = {1, 2, 8, 64};
    int world = worlds[_i];
    struct planned planned = plan_gpt2("1024", world, 256, false);
    const struct plan *plan = planned.plan;
    int64_t elements = model_parameter_elements(planned.model);
    ck_assert_int_eq(elements, 124439808); /* as transformers count them */
    ck_assert_int_eq(planned.units->unit_count, 13);

    uint64_t state = (uint64_t)elements * 3 * sizeof(float) / (uint64_t)world;
    ck_assert_uint_ge(plan->state_bytes, state);
    ck_assert_uint_le(plan->state_bytes, state + (1 << 20)); /* padding, the batch */

    uint64_t block = 0, root = 0, most = 0, now = 0;
    for (int u = 0; u < planned.units->unit_count; u++) {
        const struct unit *unit = &planned.units->units[u];
        uint64_t bytes = (uint64_t)unit->flat.padded * sizeof(float);
        if (unit->modules[0] == 0) root = bytes;
        else if (bytes > block) block = bytes;
    }
    for (int i = 0; i < plan->train.instruction_count; i++) {
        const struct plan_instruction *in = &plan->train.instructions[i];
        uint64_t bytes =
            in->unit < 0 ? 0 : (uint64_t)planned.units->units[in->unit].flat.padded * sizeof(float);
        if (in->kind == INSTRUCTION_ALL_GATHER) now += bytes;
        if (in->kind == INSTRUCTION_FREE) now -= bytes;
        if (now > most) most = now;
    }
    uint64_t two = world == 1 ? 0 : root + 2 * block;
    ck_assert_uint_le(most, two);
    ck_assert_uint_eq(now, 0);
    ck_assert_uint_le(plan->train.class_bytes_at_peak[BUFFER_GATHERED], two);
    ck_assert(world == 1 || most >= root + block);
    planned_deinit(&planned);
}

/* No value of (time x time) or (time x vocabulary) elements; the memory that a longer window adds
 * is proportional to it. */
LOOP_TEST(memory_is_linear_in_the_window, 0, 2)
{
    uint64_t peaks[3];
    for (int k = 0; k < 3; k++) {
        int64_t time = CONTEXT >> (2 - k);
        struct planned planned = plan_gpt2("32768", 2, time, _i == 1);
        peaks[k] = planned.plan->peak_bytes;
        for (int v = 0; v < planned.graph->value_count; v++) {
            const struct graph_value *value = &planned.graph->values[v];
            if (value->kind == VALUE_PARAMETER || value->kind == VALUE_PARAMETER_GRADIENT) continue;
            ck_assert_msg(tensor_element_count(&value->type) <= 2 * time * 4 * WIDTH, "%s",
                          value->name);
        }
        planned_deinit(&planned);
    }
    double first = (double)(peaks[1] - peaks[0]), second = (double)(peaks[2] - peaks[1]);
    ck_assert_msg(second > 1.9 * first && second < 2.1 * first,
                  "%" PRIu64 ", %" PRIu64 ", %" PRIu64 " bytes", peaks[0], peaks[1], peaks[2]);
}

/* Per kept block, one value of a window's width, instead of everything inside. */
TEST(checkpointing_keeps_one_value_per_block)
{
    const int64_t time = 1024;
    struct planned plain = plan_gpt2("1024", 64, time, false);
    struct planned checkpointed = plan_gpt2("1024", 64, time, true);
    uint64_t value = (uint64_t)(2 * time * WIDTH) * sizeof(float);
    uint64_t activations = checkpointed.plan->train.class_bytes_at_peak[BUFFER_ACTIVATION];
    ck_assert_uint_lt(checkpointed.plan->peak_bytes, plain.plan->peak_bytes - 12 * 8 * value);
    ck_assert_msg(activations <= 16 * value, "%" PRIu64 " of %" PRIu64 " bytes", activations,
                  value);
    planned_deinit(&plain);
    planned_deinit(&checkpointed);
}

/* Windows of several documents take one more value of the batch, and no mask of (time, time). */
TEST(documents_take_memory_for_their_starts)
{
    const int64_t time = 1024;
    struct planned plain = plan_gpt2("1024", 2, time, false);
    struct planned packed = plan_windows("1024", 2, time, false, true);
    const struct graph *graph = packed.graph;
    ck_assert_int_ge(graph->starts, 0);
    ck_assert_uint_eq(packed.plan->state_bytes, plain.plan->state_bytes + 2 * time * 4);
    /* positions, and their embeddings, differ between the windows of a batch */
    ck_assert_uint_le(packed.plan->peak_bytes,
                      plain.plan->peak_bytes + 2 * time * (4 + 4 + WIDTH * 4));
    for (int v = 0; v < graph->value_count; v++)
        if (graph->values[v].kind == VALUE_ACTIVATION)
            ck_assert_int_le(tensor_element_count(&graph->values[v].type), 2 * time * 4 * WIDTH);
    char *text = plan_dump(packed.plan);
    ck_assert_ptr_nonnull(text);
    free(text);
    planned_deinit(&plain);
    planned_deinit(&packed);
}
