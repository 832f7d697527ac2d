/*
 * Whole runs on the CUDA device with fsdp.register_buffers, over the stubs of the runtime and of
 * NCCL: changes of the wrap policy, pulls and checkpoints give the bits of the same runs without
 * it, and a plan states the key's effect, or refuses it. test_cuda_registration.c has steps.
 */
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

#include "../emulation/cuda_stub.h"
#include "cuda_runs.h"
#include "fsdpd/v1/control.pb-c.h"
#include "memory_store.h"
#include "planning/planning.h"
#include "setup/session_state.h"
#include "tests/testing.h"

static void tear_down(void)
{
    cuda_runs_tear_down();
    nccl_stub_version(0);
}

/* Worlds of 2 to 4, the last in two groups of two. */
enum { WORLDS = 3 };

static void init(struct group *group, int number)
{
    int world = 2 + number;
    group_init(group, group_sum_model, group_data, world);
    group->job.batch_size = 6;
    group->job.max_steps = 10;
    group->job.log_interval = 1;
    group->job.evaluate = false;
    if (world == 4) group->job.plan.strategy = STRATEGY_HYBRID_SHARD;
    group->job.shard_size = 2;
    group->device = "cuda:0";
    group->join = cuda_runs_join;
    group->failed = memory_store_break;
}

static void run_without_error(struct group *group)
{
    memory_store_reset();
    cuda_stub_record(true);
    group_run_without_error(group);
    ck_assert_uint_eq(nccl_stub_taken(), 0);
    ck_assert_int_eq(cuda_stub_count("ncclCommDeregister"), cuda_stub_count("ncclCommRegister"));
    ck_assert_int_eq(cuda_stub_count("ncclMemAlloc") > 0, group->job.plan.register_buffers);
    ck_assert_int_gt(cuda_stub_count("cudaGraphLaunch"), 0);
}

static void expect_same_file(struct buf a, struct buf b)
{
    ck_assert_uint_eq(a.length, b.length);
    ck_assert_mem_eq(a.data, b.data, a.length);
    buf_deinit(&a);
    buf_deinit(&b);
}

static const char *const nowhere[] = {"thrid"};
static const struct wrap_unit_spec wrong[] = {{.modules = nowhere, .module_count = 1}};
static const struct wrap_policy none = {.kind = WRAP_NONE},
                                small = {.kind = WRAP_SIZE, .min_num_params = 1},
                                unknown = {.kind = WRAP_UNITS, .units = wrong, .unit_count = 1};

TESTS_BELOW(.timeout = 240, .set_up = cuda_runs_set_up, .tear_down = tear_down,
            .set_up_once = group_draw_digits, .tear_down_once = group_remove_digits);

/* Every change creates and registers new arenas while the group has the old ones, and captures
 * again. */
LOOP_TEST(changes_of_the_policy, 0, WORLDS)
{
    struct group group, expected;
    init(&group, _i);
    group.order_count = 4;
    for (int i = 0; i < 4; i++) group.order_at[i] = 2 + (uint64_t)i;
    group.wraps[0] = &small;
    group.wraps[1] = &none;
    group.wraps[2] = &unknown; /* order 4 only pulls */
    expected = group;
    group.job.plan.register_buffers = true;
    run_without_error(&expected);
    run_without_error(&group);
    ck_assert_int_eq(cuda_stub_count("ncclMemAlloc"), 3 * 2 * group.job.world);
    ck_assert_int_gt(cuda_stub_count("registered"), 0);
    ck_assert_int_eq(group.members[0].metric_count, expected.members[0].metric_count);
    for (int i = 0; i < group.members[0].metric_count; i++)
        ck_assert(group.members[0].metrics[i].loss == expected.members[0].metrics[i].loss);
    for (int rank = 0; rank < group.job.world; rank++) {
        const struct member *member = &group.members[rank];
        ck_assert_ptr_null(member->changes[0].refused);
        ck_assert_ptr_null(member->changes[1].refused);
        ck_assert_int_eq(status_code(member->changes[2].refused), STATUS_INVALID_ARGUMENT);
        ck_assert_uint_eq(member->memory_peak, expected.members[rank].memory_peak);
    }
    for (int i = -1; i < 4; i++)
        expect_same_file(group_pull_file(&group, i), group_pull_file(&expected, i));
    group_reset(&group);
    group_reset(&expected);
}

static void init_change(struct group *group)
{
    init(group, 0);
    group->order_count = 1;
    group->order_at[0] = 3;
    group->wraps[0] = &small;
    group->job.plan.register_buffers = true;
    memory_store_reset();
}

/* A failed deregistration is reported by the next collective: the run ends. */
TEST(change_fails)
{
    struct group group;
    init_change(&group);
    cuda_stub_fail("ncclCommDeregister", 1, ncclUnhandledCudaError);
    group_run(&group);
    bool reported = false;
    for (int rank = 0; rank < 2; rank++) {
        const status_t status = group.members[rank].status;
        ck_assert_ptr_nonnull(status);
        reported =
            reported || strstr(status_message(status), "deregistering memory: "
                                                       "ncclCommDeregister: unhandled error");
    }
    ck_assert_msg(reported, "%s; %s", status_message(group.members[0].status),
                  status_message(group.members[1].status));
    ck_assert_uint_eq(nccl_stub_taken(), 0);
    group_reset(&group);
}

/* One rank cannot register a new arena: all continue with memory that is not registered. */
TEST(change_without_registration)
{
    struct group group, expected;
    init_change(&expected);
    run_without_error(&expected);
    const int registered = cuda_stub_count("ncclCommRegister");
    init_change(&group);
    /* Both ranks register two arenas first. */
    cuda_stub_fail("ncclCommRegister", 5, ncclUnhandledCudaError);
    cuda_stub_record(true);
    group_run_without_error(&group);
    ck_assert_int_lt(cuda_stub_count("ncclCommRegister"), registered);
    ck_assert_int_ge(cuda_stub_count("ncclCommRegister"), 5);
    for (int rank = 0; rank < 2; rank++) ck_assert_ptr_null(group.members[rank].changes[0].refused);
    ck_assert_uint_eq(nccl_stub_taken(), 0);
    expect_same_file(group_pull_file(&group, -1), group_pull_file(&expected, -1));
    group_reset(&group);
    group_reset(&expected);
}

/* Taken with registered buffers and resumed without, and vice versa. */
LOOP_TEST(checkpoints, 0, 4)
{
    struct group group, again;
    init(&group, _i / 2);
    group.job.checkpoints = (struct checkpoint_settings){.folder = cuda_runs_folder,
                                                         .run = "digits-1@7",
                                                         .every_steps = 5};
    again = group;
    group.job.plan.register_buffers = _i % 2 == 0;
    again.job.plan.register_buffers = _i % 2 == 1;
    run_without_error(&group);
    group_save_without_error(&group, 0, cuda_runs_folder, 1);
    again.job.checkpoints.every_steps = 0;
    again.job.checkpoints.resume = again.job.checkpoints.must_resume = true;
    again.job.checkpoints.attempt = 2;
    run_without_error(&again);
    ck_assert_uint_eq(again.members[0].resumed_step, 5);
    ck_assert_int_eq(again.members[0].metric_count, 5);
    ck_assert(again.members[0].metrics[4].loss == group.members[0].metrics[9].loss);
    expect_same_file(group_pull_file(&again, -1), group_pull_file(&group, -1));
    group_reset(&group);
    group_reset(&again);
}

/* ---- planning ---- */

static bool is_noted(const Fsdpd__V1__Plan *plan, const char *what)
{
    for (size_t i = 0; i < plan->n_notes; i++)
        if (strstr(plan->notes[i], what) != NULL) return true;
    return false;
}

LOOP_TEST(planning, 0, 4)
{
    static const struct {
        const char *device, *note;
        bool staged;
        int world;
    } cases[] = {
        {"cuda:0", "NCCL uses registered buffers; memory that it allocates beyond them", false, 2},
        {"cuda:0", "no effect with one worker", false, 1},
        {"cuda:0", "no effect where workers share a device", true, 2},
        {"cpu", "fsdp.register_buffers has no effect on a CPU", false, 2},
    };
    struct group group;
    Fsdpd__V1__Plan *plan = NULL;
    init(&group, 0);
    group.job.world = cases[_i].world;
    const struct planning_options options = {.device = cases[_i].device,
                                             .staged = cases[_i].staged,
                                             .dump = true};
    status_t status = planning_make(&group.job, &options, &plan);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert(!is_noted(plan, "egister"));
    uint64_t peak = plan->peak_bytes, hash = plan->hash;
    fsdpd__v1__plan__free_unpacked(plan, NULL);

    group.job.plan.register_buffers = true;
    status = planning_make(&group.job, &options, &plan);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert(is_noted(plan, cases[_i].note));
    ck_assert_uint_eq(plan->peak_bytes, peak);
    bool planned = _i == 0 || _i == 2; /* the plan itself does not know the communicators */
    ck_assert_int_eq(plan->hash != hash, planned);
    ck_assert_int_eq(strstr(plan->dump, ", registered buffers") != NULL, planned);
    fsdpd__v1__plan__free_unpacked(plan, NULL);

    /* Only a job that uses the key minds an NCCL without registration. */
    nccl_stub_version(21805);
    status = planning_make(&group.job, &options, &plan);
    if (_i == 0) {
        ck_assert_int_eq(status_code(status), STATUS_UNIMPLEMENTED);
        ck_assert_str_eq(status_message(status),
                         "fsdp.register_buffers: device cuda:0: registered buffers need NCCL 2.19 "
                         "or later; this is NCCL 2.18.5");
        status_free(status);
    } else {
        ck_assert_msg(status == NULL, "%s", status_message(status));
        fsdpd__v1__plan__free_unpacked(plan, NULL);
    }
}
