/*
 * The shipped MNIST net, read from its file: the text of its plans over two ranks, and the memory
 * that the README promises. Kernels' scratch memory is omitted, so the text is the same everywhere.
 *
 * Golden files are tests/golden/plan-mnist-*.txt. FSDPD_UPDATE_GOLDEN=1 in the environment rewrites
 * them; read the difference before committing it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "fsdp/plan.h"
#include "model/graph.h"
#include "model/model.h"
#include "tests/testing.h"

struct planned {
    struct model *model;
    struct unit_set *units;
    struct graph *graphs[2];
    struct lowering lowered[2];
    struct plan *plan;
};

static char *source_path(const char *name)
{
    const char *root = getenv("srcdir");
    return file_path_join(root != NULL ? root : ".", name);
}

static char *read_source(const char *name)
{
    char *path = source_path(name);
    struct buf text = {0};
    status_t status = file_read(path, 1 << 20, &text);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    free(path);
    return buf_take(&text);
}

static void lower(const struct graph *graph, struct lowering *lowered)
{
    bool *view = mem_alloc_array(graph->op_count, sizeof *view);
    bool *in_place = mem_alloc_array(graph->op_count, sizeof *in_place);
    for (int o = 0; o < graph->op_count; o++) {
        view[o] = graph->ops[o].kind == OP_RESHAPE;
        in_place[o] = op_info_get(graph->ops[o].kind)->element_wise;
    }
    *lowered = (struct lowering){.view = view, .in_place = in_place};
}

/* No policy if min_num_params is 0. */
static void plan_mnist(struct planned *planned, uint64_t min_num_params, enum strategy strategy,
                       bool evaluate)
{
    *planned = (struct planned){0};
    char *text = read_source("examples/mnist/net.yaml");
    status_t status = model_parse(text, strlen(text), "net.yaml", &planned->model);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    free(text);
    for (int k = 0; k < (evaluate ? 2 : 1); k++) {
        struct graph_options options = {.batch_size = k == 0 ? 64 : 1000,
                                        .train = k == 0,
                                        .dropout = true,
                                        .count_correct = k == 1};
        status = graph_build(planned->model, &options, &planned->graphs[k]);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        lower(planned->graphs[k], &planned->lowered[k]);
    }
    struct wrap_policy policy = {.kind = min_num_params > 0 ? WRAP_SIZE : WRAP_NONE,
                                 .min_num_params = min_num_params};
    status = units_build(planned->model, &policy, strategy == STRATEGY_NO_SHARD ? 1 : 2,
                         &planned->units);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    struct plan_options options = {.world = 2,
                                   .strategy = strategy,
                                   .backward_prefetch = PREFETCH_PRE,
                                   .optimizer = OPTIMIZER_ADADELTA,
                                   .optimizer_slots = 2};
    status = plan_build(planned->model, planned->units, planned->graphs[0], &planned->lowered[0],
                        planned->graphs[1], &planned->lowered[1], &options, &planned->plan);
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

static void planned_deinit(struct planned *planned)
{
    plan_free(planned->plan);
    units_free(planned->units);
    for (int k = 0; k < 2; k++) {
        graph_free(planned->graphs[k]);
        free((void *)planned->lowered[k].view);
        free((void *)planned->lowered[k].in_place);
    }
    model_free(planned->model);
}

/* Prints the lines up to `end` with a sign before each. */
static void print_lines(const char *text, const char *end, char sign)
{
    while (text < end) {
        const char *line_end = memchr(text, '\n', (size_t)(end - text));
        if (line_end == NULL) line_end = end;
        printf("%c%.*s\n", sign, (int)(line_end - text), text);
        text = line_end + 1;
    }
}

/* The difference, as two runs of lines between the common start and the common end. */
static void print_difference(const char *expected, const char *found)
{
    const char *e = expected, *f = found;
    for (;;) {
        const char *e_end = strchr(e, '\n'), *f_end = strchr(f, '\n');
        if (e_end == NULL || f_end == NULL || e_end - e != f_end - f ||
            memcmp(e, f, (size_t)(e_end - e)) != 0)
            break;
        e = e_end + 1;
        f = f_end + 1;
    }
    const char *e_last = e + strlen(e), *f_last = f + strlen(f);
    while (e_last > e && f_last > f && e_last[-1] == f_last[-1]) e_last--, f_last--;
    while (*e_last != '\0' && e_last[-1] != '\n') e_last++;
    while (*f_last != '\0' && f_last[-1] != '\n') f_last++;
    print_lines(e, e_last, '-');
    print_lines(f, f_last, '+');
}

static void expect_golden(const char *text, const char *name)
{
    const char *update = getenv("FSDPD_UPDATE_GOLDEN");
    if (update != NULL && strcmp(update, "1") == 0) {
        char *path = source_path(name);
        status_t status = file_write_atomic(path, text, strlen(text), 0644);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        free(path);
    }
    char *expected = read_source(name);
    bool same = strcmp(expected, text) == 0;
    if (!same) print_difference(expected, text);
    free(expected);
    ck_assert_msg(same, "%s differs", name);
}

TESTS_BELOW(.timeout = 60);

LOOP_TEST(plans, 0, 5)
{
    static const struct {
        uint64_t min_num_params;
        enum strategy strategy;
        const char *file;
    } cases[] = {
        {100, STRATEGY_FULL_SHARD, "tests/golden/plan-mnist-100.txt"},
        {1000, STRATEGY_FULL_SHARD, "tests/golden/plan-mnist-1000.txt"},
        {20000, STRATEGY_FULL_SHARD, "tests/golden/plan-mnist-20000.txt"},
        {0, STRATEGY_FULL_SHARD, "tests/golden/plan-mnist-none.txt"},
        {0, STRATEGY_NO_SHARD, "tests/golden/plan-mnist-no-shard.txt"},
    };
    struct planned planned;
    plan_mnist(&planned, cases[_i].min_num_params, cases[_i].strategy, true);
    char *text = plan_dump(planned.plan);
    expect_golden(text, cases[_i].file);
    free(text);
    planned_deinit(&planned);
}

TEST(module_tree)
{
    struct planned planned;
    plan_mnist(&planned, 20000, STRATEGY_FULL_SHARD, true);
    char *text = units_print_tree(planned.units, planned.model);
    expect_golden(text, "tests/golden/units-mnist-20000.txt");
    free(text);
    planned_deinit(&planned);
}

/* The tutorial's claim, for the step alone and with evaluation. */
LOOP_TEST(sharding_and_wrapping_save_memory, 0, 2)
{
    static const struct {
        uint64_t min_num_params;
        enum strategy strategy;
    } less_and_less[] = {{0, STRATEGY_NO_SHARD},
                         {0, STRATEGY_FULL_SHARD},
                         {20000, STRATEGY_FULL_SHARD}};
    uint64_t before = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        struct planned planned;
        plan_mnist(&planned, less_and_less[i].min_num_params, less_and_less[i].strategy, _i == 1);
        ck_assert_uint_lt(planned.plan->peak_bytes, before);
        before = planned.plan->peak_bytes;
        planned_deinit(&planned);
    }
}
