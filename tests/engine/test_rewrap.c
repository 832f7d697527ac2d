/*
 * Another wrap policy for a run, at a step boundary: the same bits as without, its memory, refusals
 * after which the run continues, and failures after which it does not.
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "hf/safetensors.h"
#include "session_group.h"
#include "tests/testing.h"

static const char *const conv_and_out[] = {"conv", "out"}, *const hidden[] = {"hidden"},
                         *const nowhere[] = {"hiden"};
static const struct wrap_unit_spec apart[] = {{.modules = conv_and_out, .module_count = 2},
                                              {.modules = hidden, .module_count = 1}},
                                   wrong[] = {{.modules = nowhere, .module_count = 1}};
static const struct wrap_policy none = {.kind = WRAP_NONE},
                                listed = {.kind = WRAP_UNITS, .units = apart, .unit_count = 2},
                                small = {.kind = WRAP_SIZE, .min_num_params = 50},
                                unknown = {.kind = WRAP_UNITS, .units = wrong, .unit_count = 1};

static void expect_same_run(const struct group *group, const struct group *plain)
{
    for (int rank = 0; rank < group->job.world; rank++) {
        const struct member *a = &group->members[rank], *b = &plain->members[rank];
        ck_assert_int_eq(a->metric_count, b->metric_count);
        ck_assert_int_gt(a->metric_count, 1);
        for (int i = 0; i < a->metric_count; i++)
            ck_assert_msg(a->metrics[i].loss == b->metrics[i].loss, "step %llu: %.17g, not %.17g",
                          (unsigned long long)a->metrics[i].step, a->metrics[i].loss,
                          b->metrics[i].loss);
        ck_assert_int_eq(a->epoch_count, b->epoch_count);
        for (int i = 0; i < a->epoch_count; i++) {
            ck_assert(a->epochs[i].train_loss == b->epochs[i].train_loss);
            ck_assert(a->epochs[i].test_loss == b->epochs[i].test_loss);
        }
        ck_assert_uint_eq(a->last_step, b->last_step);
    }
}

static void expect_memory(const struct group *group, int order)
{
    for (int rank = 0; rank < group->job.world; rank++) {
        const struct member *member = &group->members[rank];
        ck_assert_uint_eq(member->changes[order].peak_bytes, member->changes[order].planned_bytes);
        ck_assert_uint_gt(member->changes[order].planned_bytes,
                          member->changes[order].state_bytes + member->changes[order].work_bytes);
        ck_assert_uint_ge(member->memory_peak, member->changes[order].peak_bytes);
    }
}

/* From the step after a change on: the new arenas, and nothing else. */
static void expect_memory_after(const struct group *group, int order)
{
    for (int rank = 0; rank < group->job.world; rank++) {
        const struct member *member = &group->members[rank];
        uint64_t begin = member->orders[order].step, end = member->orders[order + 1].step;
        int seen = 0;
        for (int i = 0; i < member->metric_count; i++) {
            const struct train_metrics *metrics = &member->metrics[i];
            if (metrics->step <= begin || metrics->step > end) continue;
            ck_assert_uint_eq(metrics->memory_bytes, member->changes[order].state_bytes +
                                                         member->changes[order].work_bytes);
            seen++;
        }
        ck_assert_int_gt(seen, 0);
    }
}

static const struct optimizer_step others = {
    .kind = OPTIMIZER_ADAMW, .lr = 0.5, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
static const struct optimizer_step optimizers[] = {
    {.kind = OPTIMIZER_ADADELTA, .lr = 1, .rho = 0.9, .eps = 1e-6},
    {.kind = OPTIMIZER_SGD, .lr = 0.01, .momentum = 0.9},
    {.kind = OPTIMIZER_SGD, .lr = 0.01},
    {.kind = OPTIMIZER_LION, .lr = 0.001, .beta1 = 0.9, .beta2 = 0.99},
    {.kind = OPTIMIZER_ADAGRAD, .lr = 0.01, .lr_decay = 0.1, .eps = 1e-10},
    {.kind = OPTIMIZER_RADAM, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8},
    {.kind = OPTIMIZER_ADAMW,
     .state = STATE_INT8,
     .lr = 0.01,
     .beta1 = 0.9,
     .beta2 = 0.99,
     .eps = 1e-8},
    {.kind = OPTIMIZER_ADAM,
     .state = STATE_BF16,
     .lr = 0.01,
     .beta1 = 0.9,
     .beta2 = 0.99,
     .eps = 1e-8},
    {.kind = OPTIMIZER_MUON,
     .lr = 0.01,
     .momentum = 0.95,
     .nesterov = true,
     .ns_steps = 5,
     .others = &others},
};

static const char *const adapted[] = {"hidden"};
static const struct model_lora lora = {.rank = 2, .alpha = 4, .targets = {adapted, 1}};

/* Weights of two types, in the types of their file when most of them are frozen. */
static const char frozen_model[] = GROUP_SUM_MODEL "freeze: [conv.bias, hidden.*, out.bias]\n";
static struct weights_source mixed = {.file = "mixed.safetensors", .own_names = true};

static void write_mixed(void)
{
    static const struct {
        const char *name, *dtype;
        int dim_count;
        int64_t dims[4];
    } tensors[] = {
        {"conv.weight", "F32", 4, {8, 1, 3, 3}},  {"conv.bias", "BF16", 1, {8}},
        {"hidden.weight", "BF16", 2, {32, 1352}}, {"hidden.bias", "F32", 1, {32}},
        {"out.weight", "F32", 2, {10, 32}},       {"out.bias", "F32", 1, {10}},
    };
    struct safetensors_entry entries[COUNT_OF(tensors)];
    for (size_t e = 0; e < COUNT_OF(entries); e++) {
        entries[e] = (struct safetensors_entry){.name = (char *)(uintptr_t)tensors[e].name,
                                                .dtype = (char *)(uintptr_t)tensors[e].dtype,
                                                .dim_count = tensors[e].dim_count};
        memcpy(entries[e].dims, tensors[e].dims, sizeof tensors[e].dims);
    }
    struct buf file = {0};
    safetensors_write_header(&file, entries, COUNT_OF(entries), NULL, 0);
    for (size_t e = 0; e < COUNT_OF(entries); e++) {
        size_t size = entries[e].dtype[0] == 'B' ? 2 : 4;
        for (uint32_t i = 0; i < (entries[e].end - entries[e].begin) / size; i++) {
            float value = ((float)(i * 2654435761U >> 16) - 32767) / 500000;
            buf_add(&file, (const char *)&value + sizeof value - size, size);
        }
    }
    mixed.dir = mixed.root = group_data;
    char *path = file_path_join(group_data, mixed.file);
    ck_assert_ptr_null(file_write_atomic(path, file.data, file.length, 0644));
    free(path);
    buf_deinit(&file);
}

/* The first ones in all worlds, the others in a few: with Muon, Adafactor, with an adapter, and
 * with frozen weights in the types of their file. */
enum { EVERYWHERE = 8, A_FEW = 3, CASES = EVERYWHERE * GROUP_WORLDS + 4 * A_FEW };

static bool has_mixed(int number)
{
    return (number - EVERYWHERE * GROUP_WORLDS) / A_FEW == 3;
}

static void set_up(struct group *group, int number)
{
    int late = number - EVERYWHERE * GROUP_WORLDS;
    const struct group_world *world =
        &group_worlds[late < 0 ? number % GROUP_WORLDS : late % A_FEW];
    group_init(group, group_sum_model, group_data, world->world);
    group->job.plan.strategy = world->strategy;
    group->job.optimizer = optimizers[late < 0 ? number / GROUP_WORLDS : EVERYWHERE];
    if (late / A_FEW == 1) group->job.optimizer = group_adafactor;
    if (late / A_FEW == 2) group->job.lora = &lora;
    if (has_mixed(number)) {
        write_mixed();
        group->job.optimizer = optimizers[0];
        group->job.model_text = frozen_model;
        group->job.model_length = strlen(frozen_model);
        group->job.weights = &mixed;
    }
    group->job.plan.rounded = group->job.optimizer.state == STATE_BF16;
    if (group->job.plan.rounded) group->job.plan.gathered_dtype = DTYPE_BF16;
    group->job.epochs = 2;
    group->job.batch_size = 10;
}

TESTS_BELOW(.timeout = 120, .set_up_once = group_draw_digits,
            .tear_down_once = group_remove_digits);

/* From size to none, to units that are not neighbours, to one unit per module, with pulls. */
LOOP_TEST(three_changes, 0, CASES, .sanitized_every = 4)
{
    struct group plain, group;
    set_up(&plain, _i);
    plain.job.log_interval = 1;
    plain.order_count = 4;
    for (int i = 0; i < 4; i++) plain.order_at[i] = 2 + 3 * (uint64_t)i;
    group = plain;
    group.wraps[0] = &none;
    group.wraps[1] = &listed;
    group.wraps[2] = &small; /* order 4 only pulls */
    if (has_mixed(_i)) group.job.base = BASE_FILE;
    group_run(&plain);
    group_expect_success(&plain);
    group_run(&group);
    group_expect_success(&group);
    expect_same_run(&group, &plain);
    if (has_mixed(_i) && group.job.world > 1) /* one worker needs copies of units */
        ck_assert_uint_lt(group.members[0].memory_planned, plain.members[0].memory_planned);
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_eq(group.members[0].orders[i].step, plain.members[0].orders[i].step);
        struct buf a = group_pull_file(&group, i), b = group_pull_file(&plain, i);
        group_expect_same_file(&a, &b);
        if (i == 3) break;
        for (int rank = 0; rank < group.job.world; rank++)
            ck_assert_ptr_null(group.members[rank].changes[i].refused);
        expect_memory(&group, i);
        expect_memory_after(&group, i);
    }
    struct buf a = group_pull_file(&group, -1), b = group_pull_file(&plain, -1);
    group_expect_same_file(&a, &b);
    group_reset(&plain);
    group_reset(&group);
}

/* A network whose shards do not fit the buffer; changes at every boundary, also of evaluations. */
TEST(many_pieces)
{
    static const char large[] = "name: Large\n"
                                "input: [1, 28, 28]\n"
                                "classes: 10\n"
                                "modules:\n"
                                "  hidden: Linear(784, 2500)\n"
                                "  out: Linear(2500, 10)\n"
                                "forward:\n"
                                "  - x = relu(hidden(flatten(x, 1)))\n"
                                "  - output = log_softmax(out(x), 1)\n"
                                "loss: nll_loss(output, target)\n";
    struct group plain, group;
    group_init(&plain, large, group_data, 3);
    plain.job.wrap = none;
    plain.job.batch_size = 50;
    plain.job.epochs = 1;
    plain.job.log_interval = 1;
    plain.order_count = 5;
    for (int i = 0; i < 5; i++) plain.order_at[i] = 1 + (uint64_t)i;
    group = plain;
    static const struct wrap_policy one = {.kind = WRAP_SIZE, .min_num_params = 1000000};
    for (int i = 0; i < 5; i++) group.wraps[i] = i % 2 == 0 ? &one : &none;
    group_run(&plain);
    group_run(&group);
    group_expect_success(&group);
    expect_same_run(&group, &plain);
    for (int i = 0; i < 5; i++) {
        ck_assert_uint_gt(group.members[0].changes[i].peak_bytes, 0);
        expect_memory(&group, i);
    }
    ck_assert_uint_gt(group.members[0].changes[0].largest_unit, 4 << 20);
    struct buf a = group_pull_file(&group, -1), b = group_pull_file(&plain, -1);
    group_expect_same_file(&a, &b);
    group_reset(&plain);
    group_reset(&group);
}

static status_t other_on_rank_1(struct member *member, int order, const struct wrap_policy **policy)
{
    if (member->rank == 1) *policy = order == 0 ? &unknown : &none;
    return NULL;
}

static void expect_refused(const struct group *group, int rank, int order, enum status_code code,
                           const char *text)
{
    status_t refused = group->members[rank].changes[order].refused;
    ck_assert_int_eq(status_code(refused), code);
    ck_assert_msg(strstr(status_message(refused), text) != NULL, "'%s' does not say '%s'",
                  status_message(refused), text);
}

LOOP_TEST(refused_change_keeps_training, 0, GROUP_WORLDS)
{
    struct group plain, group;
    set_up(&plain, _i);
    plain.order_count = 3;
    for (int i = 0; i < 3; i++) plain.order_at[i] = 2 + 3 * (uint64_t)i;
    group = plain;
    group.wraps[0] = group.wraps[2] = &unknown;
    group.wraps[1] = &listed;
    group_run(&plain);
    group_run(&group);
    group_expect_success(&group);
    expect_same_run(&group, &plain);
    for (int rank = 0; rank < group.job.world; rank++) {
        expect_refused(&group, rank, 0, STATUS_INVALID_ARGUMENT, "did you mean 'hidden'?");
        ck_assert_ptr_null(group.members[rank].changes[1].refused);
        expect_refused(&group, rank, 2, STATUS_INVALID_ARGUMENT, "did you mean 'hidden'?");
    }
    struct buf a = group_pull_file(&group, -1), b = group_pull_file(&plain, -1);
    group_expect_same_file(&a, &b);
    group_reset(&plain);
    group_reset(&group);
}

/* Ops are prepared for one type of each parameter: a policy that changes it is refused, any other
 * is carried out. */
TEST(types_stay)
{
    static const struct wrap_unit_spec
        replicated[] = {{.modules = hidden, .module_count = 1, .shard_world = 1}},
        full[] = {{.modules = hidden, .module_count = 1, .param_dtype = UNIT_DTYPE_F32}},
        resharded[] = {{.modules = hidden,
                        .module_count = 1,
                        .reshard = RESHARD_GROUP,
                        .reshard_ranks = 2,
                        .cpu_offload = true}};
    static const struct wrap_policy policies[] = {
        {.kind = WRAP_UNITS, .units = replicated, .unit_count = 1},
        {.kind = WRAP_UNITS, .units = full, .unit_count = 1},
        {.kind = WRAP_UNITS, .units = resharded, .unit_count = 1}};
    struct group plain, group;
    group_init(&plain, group_sum_model, group_data, 4);
    plain.job.plan.gathered_dtype = DTYPE_BF16;
    plain.order_count = 3;
    for (int i = 0; i < 3; i++) plain.order_at[i] = 2 + 3 * (uint64_t)i;
    group = plain;
    for (int i = 0; i < 3; i++) group.wraps[i] = &policies[i];
    group_run(&plain);
    group_run(&group);
    group_expect_success(&group);
    expect_same_run(&group, &plain);
    for (int rank = 0; rank < 4; rank++) {
        ck_assert_ptr_null(group.members[rank].changes[0].refused);
        expect_refused(&group, rank, 1, STATUS_INVALID_ARGUMENT,
                       "ops are prepared for hidden.weight as bf16, but unit hidden would have it "
                       "as f32");
        ck_assert_ptr_null(group.members[rank].changes[2].refused);
    }
    struct buf a = group_pull_file(&group, -1), b = group_pull_file(&plain, -1);
    group_expect_same_file(&a, &b);
    group_reset(&plain);
    group_reset(&group);

    /* without gathers ops read copies in bf16, which move, too */
    group_init(&plain, group_sum_model, group_data, 1);
    plain.job.plan.gathered_dtype = DTYPE_BF16;
    plain.order_count = 2;
    for (int i = 0; i < 2; i++) plain.order_at[i] = 2 + 3 * (uint64_t)i;
    group = plain;
    group.wraps[0] = &policies[1];
    group.wraps[1] = &none;
    group_run(&plain);
    group_run(&group);
    group_expect_success(&group);
    expect_same_run(&group, &plain);
    expect_refused(&group, 0, 0, STATUS_INVALID_ARGUMENT,
                   "ops are prepared for hidden.weight as bf16");
    ck_assert_ptr_null(group.members[0].changes[1].refused);
    group_reset(&plain);
    group_reset(&group);
}

/* If one rank cannot change, none does. */
TEST(one_rank_refuses)
{
    struct group plain, group;
    group_init(&plain, group_sum_model, group_data, 3);
    plain.order_count = 2;
    plain.order_at[0] = 2;
    plain.order_at[1] = 4;
    group = plain;
    group.wraps[0] = group.wraps[1] = &listed;
    group.instead = other_on_rank_1;
    group_run(&plain);
    group_run(&group);
    group_expect_success(&group);
    expect_same_run(&group, &plain);
    for (int rank = 0; rank < 3; rank++) { /* all know the rank, and the reason */
        expect_refused(&group, rank, 0, STATUS_INVALID_ARGUMENT, "rank 1 cannot change its units");
        expect_refused(&group, rank, 0, STATUS_INVALID_ARGUMENT, "did you mean 'hidden'?");
        expect_refused(&group, rank, 1, STATUS_FAILED_PRECONDITION, "rank 1 cannot");
        expect_refused(&group, rank, 1, STATUS_FAILED_PRECONDITION, "differs from that of rank 0");
    }
    group_reset(&plain);
    group_reset(&group);
}

static uint64_t memory_of_rank_1;

static uint64_t little_on_rank_1(int rank)
{
    return rank == 1 ? memory_of_rank_1 : 0;
}

/* With one byte less than the change needs on one rank, nothing happens. With that byte it does. */
TEST(does_not_fit)
{
    struct group plain, group;
    group_init(&plain, group_sum_model, group_data, 2);
    plain.order_count = 1;
    plain.order_at[0] = 3;
    group = plain;
    group.wraps[0] = &none;
    group_run(&plain);
    group_run(&group);
    group_expect_success(&group);
    uint64_t peak = group.members[1].changes[0].peak_bytes;
    ck_assert_uint_gt(peak, group.members[1].memory_planned);
    group_reset(&group);
    group.memory = little_on_rank_1;
    for (int more = 0; more < 2; more++) {
        memory_of_rank_1 = peak - 1 + (uint64_t)more;
        group_run(&group);
        group_expect_success(&group);
        expect_same_run(&group, &plain);
        if (more == 0) {
            expect_refused(&group, 0, 0, STATUS_RESOURCE_EXHAUSTED, "rank 1 cannot");
            expect_refused(&group, 1, 0, STATUS_RESOURCE_EXHAUSTED, "changing the units needs");
            ck_assert_uint_eq(group.members[1].memory_peak, group.members[1].memory_planned);
        } else {
            ck_assert_ptr_null(group.members[0].changes[0].refused);
            ck_assert_uint_eq(group.members[1].memory_peak, peak);
        }
        struct buf a = group_pull_file(&group, -1), b = group_pull_file(&plain, -1);
        group_expect_same_file(&a, &b);
        group_reset(&group);
    }
    group_reset(&plain);
}

static status_t fails_on_rank_1(struct member *member, int order, const struct wrap_policy **policy)
{
    (void)order;
    (void)policy;
    return member->rank == 1 ? status_new(STATUS_INTERNAL, "rank 1 is broken") : NULL;
}

static status_t aborts_on_rank_1(struct member *member, int order,
                                 const struct wrap_policy **policy)
{
    (void)order;
    (void)policy;
    if (member->rank == 1) train_session_abort(member->session, "pulled the plug");
    return NULL;
}

/* No rank waits for a lost one, and none trains on. */
LOOP_TEST(lost_rank, 0, 2)
{
    struct group group;
    group_init(&group, group_sum_model, group_data, 3);
    group.order_count = 1;
    group.order_at[0] = 2;
    group.wraps[0] = &listed;
    group.instead = _i == 0 ? fails_on_rank_1 : aborts_on_rank_1;
    group_run(&group);
    for (int rank = 0; rank < 3; rank++) {
        ck_assert_ptr_nonnull(group.members[rank].status);
        ck_assert_int_eq(group.members[rank].finished, 0);
        ck_assert_uint_eq(group.members[rank].last_step, group.members[rank].orders[0].step);
    }
    ck_assert_str_eq(status_message(group.members[1].status),
                     _i == 0 ? "rank 1 is broken" : "pulled the plug");
    group_reset(&group);
}
