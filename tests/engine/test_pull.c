/*
 * Pulls: snapshots of sharded runs, streamed as safetensors files. With generated digits and ranks
 * as threads.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "fsdp/units.h"
#include "hf/safetensors.h"
#include "session_group.h"
#include "setup/init.h"
#include "tests/testing.h"

struct loaded {
    struct safetensors_header header;
    const char *bytes;
};

static struct loaded load(const struct buf *file)
{
    struct loaded loaded = {.bytes = file->data};
    uint64_t needed;
    status_t status =
        safetensors_read_header(file->data, file->length, file->length, &loaded.header, &needed);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    return loaded;
}

/* The values of an entry, which may lie unaligned in the file's buffer; caller frees. */
static float *values_of(const struct loaded *loaded, const char *name, size_t elements)
{
    for (int i = 0; i < loaded->header.count; i++) {
        const struct safetensors_entry *entry = &loaded->header.entries[i];
        if (strcmp(entry->name, name) != 0) continue;
        ck_assert_str_eq(entry->dtype, "F32");
        ck_assert_uint_eq(entry->end - entry->begin, elements * sizeof(float));
        return mem_dup(loaded->bytes + loaded->header.data_offset + entry->begin,
                       elements * sizeof(float));
    }
    ck_abort_msg("%s is not in the file", name);
}

struct expectation {
    const struct loaded *loaded;
    const struct model *model;
    int seen;
};

static status_t expect_parameter(void *user, int index, struct parameter_part piece,
                                 const float *values)
{
    struct expectation *expectation = user;
    const struct parameter *parameter = &expectation->model->parameters[index];
    size_t elements = (size_t)tensor_element_count(&parameter->type);
    float *found = values_of(expectation->loaded, parameter->name, elements);
    ck_assert_mem_eq(found + piece.offset, values, (size_t)piece.count * sizeof *values);
    free(found);
    if (piece.offset == 0) expectation->seen++;
    return NULL;
}

TESTS_BELOW(.timeout = 90, .set_up_once = group_draw_digits, .tear_down_once = group_remove_digits);

/* Parameters reach the shards and return whole: a run that learns nothing keeps the initial ones,
 * to the bit, whatever the world. */
LOOP_TEST(pull_of_initial_parameters, 0, GROUP_WORLDS)
{
    static const enum wrap_kind kinds[] = {WRAP_NONE, WRAP_SIZE};
    for (int k = 0; k < 2; k++) {
        struct group group;
        group_init(&group, group_sum_model, group_data, group_worlds[_i].world);
        group_freeze(&group);
        group.job.plan.strategy = group_worlds[_i].strategy;
        group.job.wrap.kind = kinds[k];
        group.job.max_steps = 2;
        group.job.seed = 77;
        group_run(&group);
        group_expect_success(&group);
        struct buf file = group_pull_file(&group, -1);
        struct loaded loaded = load(&file);
        struct model *model;
        ck_assert_ptr_null(
            model_parse(group_sum_model, strlen(group_sum_model), "small.yaml", &model));
        struct expectation expectation = {&loaded, model, 0};
        ck_assert_ptr_null(
            init_draw(model, 77,
                      &(struct init_target){.set = expect_parameter, .user = &expectation}));
        ck_assert_int_eq(expectation.seen, 6);
        ck_assert_int_eq(loaded.header.count, 6);
        ck_assert_ptr_nonnull(strstr(file.data + 8, "{\"__metadata__\":{\"format\":\"pt\"},"));
        model_free(model);
        safetensors_header_deinit(&loaded.header);
        buf_deinit(&file);
        group_reset(&group);
    }
}

/* A pull in the middle of a run matches the result of a run that ends there, to the bit. */
LOOP_TEST(pull_in_the_middle, 0, GROUP_WORLDS)
{
    struct group group, shorter;
    group_init(&group, group_sum_model, group_data, group_worlds[_i].world);
    group.job.plan.strategy = group_worlds[_i].strategy;
    group.job.batch_size = 5;
    group.order_at[0] = 5;
    group.order_count = 1;
    shorter = group;
    group.job.max_steps = 9;
    group_run(&group);
    group_expect_success(&group);
    for (int rank = 0; rank < group.job.world; rank++) {
        ck_assert_int_eq(group.members[rank].order_count, 1);
        ck_assert_uint_eq(group.members[rank].orders[0].step, group.members[0].orders[0].step);
    }
    shorter.job.max_steps = group.members[0].orders[0].step;
    shorter.order_count = 0;
    ck_assert_uint_ge(shorter.job.max_steps, 5);
    ck_assert_uint_lt(shorter.job.max_steps, 9);
    group_run(&shorter);
    group_expect_success(&shorter);

    struct buf middle = group_pull_file(&group, 0), last = group_pull_file(&group, -1);
    struct buf reference = group_pull_file(&shorter, -1);
    ck_assert_uint_eq(middle.length, reference.length);
    ck_assert_mem_eq(middle.data, reference.data, reference.length);
    ck_assert(last.length != middle.length || memcmp(last.data, middle.data, last.length) != 0);
    buf_deinit(&middle);
    buf_deinit(&last);
    buf_deinit(&reference);
    group_reset(&group);
    group_reset(&shorter);
}

#define TIED(FREEZE)                                                                               \
    "name: Tied\n"                                                                                 \
    "input: [28, 28]\n"                                                                            \
    "classes: 28\n"                                                                                \
    "modules:\n"                                                                                   \
    "  a: Linear(28, 28)\n"                                                                        \
    "  b: Linear(28, 28)\n"                                                                        \
    "  last: Linear(784, 28)\n"                                                                    \
    "forward:\n"                                                                                   \
    "  - x = relu(b(relu(a(x))))\n"                                                                \
    "  - output = log_softmax(last(flatten(x, 1)), 1)\n"                                           \
    "loss: nll_loss(output, target, reduction='sum')\n"                                            \
    "tie:\n"                                                                                       \
    "  b.weight: a.weight\n" FREEZE

LOOP_TEST(pull_of_tied_parameters, 0, GROUP_WORLDS)
{
    static const char tied[] = TIED("");
    struct group group;
    group_init(&group, tied, group_data, group_worlds[_i].world);
    group.job.plan.strategy = group_worlds[_i].strategy;
    group.job.wrap.min_num_params = 28;
    group.job.max_steps = 3;
    group_run(&group);
    group_expect_success(&group);
    struct buf file = group_pull_file(&group, -1);
    struct loaded loaded = load(&file);
    ck_assert_int_eq(loaded.header.count, 6);
    float *a = values_of(&loaded, "a.weight", 784), *b = values_of(&loaded, "b.weight", 784);
    ck_assert_mem_eq(a, b, 784 * sizeof *a);
    free(a);
    free(b);
    free(values_of(&loaded, "b.bias", 28));
    safetensors_header_deinit(&loaded.header);
    buf_deinit(&file);
    group_reset(&group);
}

/* A sink that fails at any call: rank 0 gets its error, the others succeed. */
LOOP_TEST(pull_without_listener, 0, GROUP_WORLDS)
{
    struct group group;
    group_init(&group, group_sum_model, group_data, group_worlds[_i].world);
    group.job.plan.strategy = group_worlds[_i].strategy;
    group.job.max_steps = 1;
    group_run(&group);
    group_expect_success(&group);
    for (int fail_at = 0; fail_at < 8; fail_at++) {
        struct buf file = {0};
        status_t statuses[GROUP_MAX_WORLD];
        group_pull(&group, -1, fail_at, &file, statuses);
        ck_assert_int_eq(status_code(statuses[0]), STATUS_UNAVAILABLE);
        ck_assert_str_eq(status_message(statuses[0]), "no process listens");
        for (int rank = 1; rank < group.job.world; rank++)
            ck_assert_msg(statuses[rank] == NULL, "%s", status_message(statuses[rank]));
        status_free(statuses[0]);
        buf_deinit(&file);
    }
    group_reset(&group);
}

/* The linker (--wrap) replaces malloc and snapshot_take by these. */
static _Thread_local bool no_memory;
static atomic_int poor_rank = -1;
static atomic_size_t largest_allocation;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
    size_t largest = atomic_load(&largest_allocation);
    while (size > largest && !atomic_compare_exchange_weak(&largest_allocation, &largest, size))
        continue;
    return no_memory && size > 4000 ? NULL : __real_malloc(size);
}

struct snapshot *__real_snapshot_take(struct executor *executor, uint64_t step);
struct snapshot *__wrap_snapshot_take(struct executor *executor, uint64_t step);
struct snapshot *__wrap_snapshot_take(struct executor *executor, uint64_t step)
{
    no_memory = executor_plan(executor)->options.rank == atomic_load(&poor_rank) && step < 9;
    struct snapshot *snapshot = __real_snapshot_take(executor, step);
    no_memory = false;
    return snapshot;
}

static status_t ignore_begin(void *user, uint64_t total_size, uint64_t step)
{
    (void)user, (void)total_size, (void)step;
    return NULL;
}

static status_t append(void *user, const void *bytes, size_t size)
{
    buf_add(user, bytes, size);
    return NULL;
}

static struct buf stream_alone(const struct snapshot *snapshot)
{
    struct buf file = {0};
    const struct state_dict_sink sink = {ignore_begin, append, &file};
    status_t status = state_dict_stream(snapshot, NULL, NULL, &sink);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    return file;
}

static void borrow(struct member *member, struct executor *executor)
{
    static const float other[28 * 28];
    no_memory = true; /* for what is as large as the weights */
    struct snapshot *borrowed = snapshot_borrow(executor, 3);
    no_memory = false;
    ck_assert_ptr_null(snapshot_failure(borrowed));
    ck_assert_ptr_null(executor_release_work(executor));
    struct buf first = stream_alone(borrowed), copied = stream_alone(member->final);
    ck_assert_uint_eq(first.length, copied.length);
    ck_assert_mem_eq(first.data, copied.data, first.length);
    ck_assert_ptr_null(executor_set_parameter(executor, 0, other));
    struct buf second = stream_alone(borrowed);
    ck_assert_int_ne(memcmp(first.data, second.data, first.length), 0);
    buf_deinit(&first);
    buf_deinit(&second);
    buf_deinit(&copied);
    snapshot_free(borrowed);
}

/* It takes no memory, has the same bytes, and needs no work arena of the executor, in whatever type
 * frozen weights are kept. */
LOOP_TEST(borrowed_weights_are_the_executors, BASE_F32, BASE_NF4 + 1)
{
    struct group group;
    group_init(&group, TIED("freeze: [a.bias, last.weight]\n"), group_data, 1);
    group.job.base = (enum base_dtype)_i;
    group.job.max_steps = 3;
    group.ended = borrow;
    group_run(&group);
    group_expect_success(&group);
    group_reset(&group);
}

/* A rank without memory for its copies: all ranks of that pull learn it, and training continues. */
LOOP_TEST(pull_without_memory, 0, GROUP_WORLDS)
{
    struct group group;
    group_init(&group, group_sum_model, group_data, group_worlds[_i].world);
    group.job.plan.strategy = group_worlds[_i].strategy;
    group.job.batch_size = 5;
    group.job.max_steps = 9;
    group.order_at[0] = 5;
    group.order_count = 1;
    bool shared = group.job.plan.strategy != STRATEGY_NO_SHARD && group.job.world > 1;
    atomic_store(&poor_rank, shared ? 1 : 0);
    group_run(&group);
    group_expect_success(&group);
    struct buf file = {0};
    status_t statuses[GROUP_MAX_WORLD];
    group_pull(&group, 0, 1000, &file, statuses);
    for (int rank = 0; rank < (shared ? group.job.world : 1); rank++) {
        ck_assert_int_eq(status_code(statuses[rank]), STATUS_RESOURCE_EXHAUSTED);
        char *words = mem_printf("rank %d: no memory to copy the", atomic_load(&poor_rank));
        ck_assert_msg(strstr(status_message(statuses[rank]), words) != NULL, "%s",
                      status_message(statuses[rank]));
        free(words);
    }
    for (int rank = 0; rank < group.job.world; rank++) status_free(statuses[rank]);
    ck_assert_uint_eq(file.length, 0);
    buf_deinit(&file);
    file = group_pull_file(&group, -1);
    ck_assert_uint_gt(file.length, 0);
    buf_deinit(&file);
    group_reset(&group);
}

/* The largest unit, in bytes. */
static size_t largest_unit(const struct group *group)
{
    struct model *model;
    struct unit_set *units;
    const struct train_job *job = &group->job;
    int ranks = job->plan.strategy == STRATEGY_HYBRID_SHARD ? job->shard_size : job->world;
    int64_t largest = 0;
    ck_assert_ptr_null(model_parse(job->model_text, job->model_length, "small.yaml", &model));
    struct wrap_policy wrap = job->wrap;
    wrap.base = job->base;
    ck_assert_ptr_null(units_build(model, &wrap, ranks, &units));
    for (int u = 0; u < units->unit_count; u++)
        if (units->units[u].flat.padded > largest) largest = units->units[u].flat.padded;
    units_free(units);
    model_free(model);
    return (size_t)largest * sizeof(float);
}

/* Runs the job and pulls its file, for which nothing larger than a unit is allocated. */
static struct buf run_and_pull(struct group *group)
{
    group_run(group);
    group_expect_success(group);
    atomic_store(&largest_allocation, 0);
    struct buf file = group_pull_file(group, -1);
    ck_assert_uint_le(atomic_load(&largest_allocation), largest_unit(group));
    return file;
}

/* Also where a unit is visited several times, as parameters of others lie between its own. */
LOOP_TEST(pull_gathers_at_most_a_unit, 0, GROUP_WORLDS)
{
    static const char frozen[] = TIED("freeze: [a.bias, last.weight]\n");
    static const struct wrap_policy policies[] = {
        {.kind = WRAP_NONE},
        {.kind = WRAP_SIZE, .min_num_params = 28},
        {.kind = WRAP_SIZE, .min_num_params = 800},
    };
    for (size_t p = 0; p < COUNT_OF(policies); p++) {
        struct group group;
        group_init(&group, frozen, group_data, group_worlds[_i].world);
        group.job.plan.strategy = group_worlds[_i].strategy;
        group.job.wrap = policies[p];
        group.job.max_steps = 1;
        struct buf file = run_and_pull(&group);
        buf_deinit(&file);
        group_reset(&group);
    }
}

/* The file of an untrained network whose frozen weights are kept in that type. */
static struct buf pull_frozen(enum base_dtype base, enum wrap_kind kind, int world,
                              enum strategy strategy)
{
    struct group group;
    group_init(&group, TIED("freeze: [a.bias, last.weight]\n"), group_data, world);
    group_freeze(&group);
    group.job.base = base;
    group.job.plan.strategy = strategy;
    group.job.wrap.kind = kind;
    group.job.max_steps = 1;
    struct buf file = run_and_pull(&group);
    group_reset(&group);
    return file;
}

/* Square of the error of a frozen matrix, relative to the values; vectors have none. */
static double square_error(const struct buf *file, const struct buf *exact)
{
    enum { ELEMENTS = 784 * 28 };
    struct loaded found = load(file), given = load(exact);
    float *a = values_of(&found, "last.weight", ELEMENTS);
    float *b = values_of(&given, "last.weight", ELEMENTS);
    float *bias = values_of(&found, "a.bias", 28), *other = values_of(&given, "a.bias", 28);
    double error = 0, all = 0;
    for (int i = 0; i < ELEMENTS; i++) {
        error += (double)(a[i] - b[i]) * (double)(a[i] - b[i]);
        all += (double)b[i] * (double)b[i];
    }
    for (int i = 0; i < 28; i++) ck_assert_double_eq_tol((double)bias[i], (double)other[i], 0x1p-8);
    free(a);
    free(b);
    free(bias);
    free(other);
    safetensors_header_deinit(&found.header);
    safetensors_header_deinit(&given.header);
    return error / all;
}

/* Wherever the blocks of frozen weights are cut, they are sent as the f32 that they stand for, and
 * a rank never holds more than a unit of that. */
LOOP_TEST(frozen_weights_of_any_type_are_sent_in_f32, 0, GROUP_WORLDS)
{
    static const double bounds[] = {0, 0x1p-16, 0.0004, 0.0225};
    struct buf exact = pull_frozen(BASE_F32, WRAP_NONE, 1, STRATEGY_FULL_SHARD);
    for (enum base_dtype base = BASE_BF16; base <= BASE_NF4; base++) {
        struct buf alone = pull_frozen(base, WRAP_NONE, 1, STRATEGY_FULL_SHARD);
        double error = square_error(&alone, &exact);
        ck_assert(error > bounds[base] / 400 && error < bounds[base]);
        for (int kind = WRAP_NONE; kind <= WRAP_SIZE; kind++) {
            struct buf file = pull_frozen(base, (enum wrap_kind)kind, group_worlds[_i].world,
                                          group_worlds[_i].strategy);
            ck_assert_uint_eq(file.length, alone.length);
            ck_assert_mem_eq(file.data, alone.data, file.length);
            buf_deinit(&file);
        }
        buf_deinit(&alone);
    }
    buf_deinit(&exact);
}
