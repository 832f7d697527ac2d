/*
 * Failures under a stub of the CUDA runtime (tests/emulation/cuda_stub.cc): a call that fails is
 * reported with its op and unit, a lost or late peer ends the step within the group's timeout, and
 * nothing else does.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "../emulation/cuda_stub.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cuda_fixture.h"
#include "tests/testing.h"

/* ---- calls that fail ---- */

static int fail_number;
static const char *fail_call;

static void fail_in_step(struct executor *executor, struct comm *comm, int step)
{
    (void)executor;
    (void)comm;
    if (step == 1) cuda_stub_fail(fail_call, fail_number, cudaErrorLaunchFailure);
}

/* The message of the job's end; NULL if it succeeded. Caller frees. */
static char *run_failing(struct engine_job *job, int world)
{
    struct group_result results[GROUP_MAX];
    struct engine_run what = {job, engine_outcome_new(job)};
    group_run(GROUP_LOCAL, world, 60000, engine_rank, &what, results);
    char *message = results[0].code == STATUS_OK ? NULL : mem_strdup(results[0].message);
    engine_outcome_free(what.outcome);
    return message;
}

TESTS_BELOW(.timeout = 240, .set_up = cuda_fixture_set_up, .tear_down = cuda_fixture_tear_down);

/* Each of a step's launches in turn, until the step has no more. */
LOOP_TEST(launches_fail, 0, 6)
{
    static const char *const calls[] = {"launch", "matmul", "memset", "copy", "wait", "record"};
    setenv("FSDPD_CUDA_GRAPHS", "off", 1); /* else the second step is captured before it is done */
    fail_call = calls[_i];
    int failures = 0;
    for (fail_number = 1;; fail_number += _i == 0 || _i > 3 ? 13 : 5) {
        cuda_stub_reset(5);
        struct engine_job job = cuda_fixture_job(TINY_GPT2);
        job.device = "cuda:0";
        job.poison = false;
        job.steps = 2;
        job.before_step = fail_in_step;
        char *message = run_failing(&job, 1);
        if (message == NULL) break;
        failures++;
        bool where = strstr(message, "training step, instruction ") != NULL &&
                     (strstr(message, " of op ") != NULL || strstr(message, " of unit ") != NULL ||
                      strstr(message, ", gate") != NULL || strstr(message, "copy") != NULL);
        /* work after the step's last instruction belongs to no op: the statistics, the
         * evaluation */
        bool after = strstr(message, "evaluation step") != NULL ||
                     strncmp(message, "cudaMemcpyAsync", 15) == 0 ||
                     strstr(message, " lane's clock: cudaEventRecordWithFlags: ") != NULL;
        ck_assert_msg(where || after, "%s %d: %s", fail_call, fail_number, message);
        ck_assert_msg(strstr(message, "unspecified launch failure") != NULL ||
                          strstr(message, "execution failed") != NULL,
                      "%s", message);
        free(message);
    }
    ck_assert_int_ge(failures, _i == 0 ? 10 : 1);
}

/* A device error that stays unseen until the wait for the lanes. */
TEST(device_fails)
{
    fail_call = "cudaStreamQuery", fail_number = 1;
    struct engine_job job = cuda_fixture_job(TINY_LLAMA);
    job.device = "cuda:0";
    job.before_step = fail_in_step;
    char *message = run_failing(&job, 1);
    ck_assert_ptr_nonnull(message);
    ck_assert_msg(strstr(message, "lane") != NULL && strstr(message, "launch failure") != NULL,
                  "%s", message);
    ck_assert_msg(strstr(message, "this process has lost its device") != NULL, "%s", message);
    ck_assert(device_is_lost());
    free(message);
}

/* A lost peer: NCCL reports it in a replayed step, the group is aborted, and no rank waits. In a
 * step that is recorded the ranks would make a new group (group_after_failed_capture). */
enum { STEP_OF_LOSS = 3 };
static int64_t lost_ns;

static void lose_peer(struct executor *executor, struct comm *comm, int step)
{
    (void)executor;
    if (step != STEP_OF_LOSS || comm_rank(comm) != 0) return;
    lost_ns = clock_monotonic_ns();
    cuda_stub_fail("ncclCommGetAsyncError", 1, ncclRemoteError);
}

TEST(peer_is_lost)
{
    struct engine_job job = cuda_fixture_job(TINY_GPT2);
    job.device = "cuda:0";
    job.join = cuda_fixture_join;
    job.before_step = lose_peer;
    job.steps = STEP_OF_LOSS + 2;
    job.poison = false; /* whose many copies wait for each other without a check for errors */
    cuda_fixture_timeout_ms = 3000;
    struct group_result results[GROUP_MAX];
    struct engine_run what = {&job, engine_outcome_new(&job)};
    group_run(GROUP_LOCAL, 2, 60000, engine_rank, &what, results);
    bool reported = false;
    for (int r = 0; r < 2; r++) {
        ck_assert_int_ne(results[r].code, STATUS_OK);
        reported = reported || (results[r].code == STATUS_UNAVAILABLE &&
                                strstr(results[r].message, "remote process exited") != NULL);
    }
    /* the other one has the timeout */
    ck_assert_double_lt((double)(clock_monotonic_ns() - lost_ns) / 1e9, 30);
    ck_assert_msg(reported, "%s; %s", results[0].message, results[1].message);
    engine_outcome_free(what.outcome);
}

/* A failed send or receive is reported, although its group continues without it. */
LOOP_TEST(transfers_fail, 0, 2)
{
    static const char *const calls[] = {"ncclSend", "ncclRecv"};
    setenv("FSDPD_CUDA_GRAPHS", "off", 1);
    fail_call = calls[_i], fail_number = 1;
    struct engine_job job = cuda_fixture_job(TINY_GPT2);
    job.device = "cuda:0";
    job.join = cuda_fixture_join;
    job.param_dtype = job.reduce_dtype = DTYPE_BF16;
    job.before_step = fail_in_step;
    job.poison = false;
    cuda_fixture_timeout_ms = 3000;
    struct group_result results[GROUP_MAX];
    struct engine_run what = {&job, engine_outcome_new(&job)};
    group_run(GROUP_LOCAL, 2, 60000, engine_rank, &what, results);
    char *expected = mem_printf("%s: unhandled error", fail_call);
    bool reported = false;
    for (int r = 0; r < 2; r++)
        reported = reported || (results[r].code == STATUS_INTERNAL &&
                                strstr(results[r].message, expected) != NULL);
    ck_assert_msg(reported, "%s; %s", results[0].message, results[1].message);
    free(expected);
    engine_outcome_free(what.outcome);
}

/* ---- deadlines ---- */

/* A rank's view of a group of two and the device's comm lane. */
struct member {
    struct device *device;
    struct lane_queue *lane;
    struct comm *group;
    void *memory;
};

static status_t enter(struct comm *comm, struct member *member)
{
    TRY(device_open("cuda:0", 1, &member->device));
    TRY(cuda_fixture_join(member->device, comm_rank(comm), comm_world(comm), &member->group));
    return lane_open(member->device, LANE_COMM, &member->lane);
}

static void leave(struct member *member)
{
    if (member->lane != NULL) lane_close(member->lane);
    device_release(member->device, member->memory);
    comm_free(member->group);
    device_close(member->device);
}

static void sleep_for(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* A barrier that the other rank enters late, so that this one queries errors meanwhile. */
static status_t meet_late(struct member *member, int late)
{
    if (comm_rank(member->group) == late) sleep_for(50);
    TRY(comm_barrier(member->group, member->lane));
    return lane_wait(member->lane, 2 * cuda_fixture_timeout_ms);
}

/* Work of the lane without any peer, which is unfinished at the first query. */
static status_t work_alone(struct member *member)
{
    TRY(device_allocate(member->device, 1000, &member->memory));
    cuda_stub_fail("cudaStreamQuery", 1, cudaErrorNotReady);
    TRY(lane_zero(member->lane, member->memory, 1000));
    return lane_wait(member->lane, 2 * cuda_fixture_timeout_ms);
}

/* The deadline belongs to the work that a rank waits for: an idle part has none, and the time
 * between two waits does not count. */
static status_t idle(struct comm *comm, void *argument)
{
    struct member member = {NULL, NULL, NULL, NULL};
    struct comm *part = NULL;
    const int ranks[] = {0, 1};
    (void)argument;
    status_t status = enter(comm, &member);
    if (status == NULL) status = comm_split(member.group, ranks, 2, &part);
    for (int late = 0; late < 2 && status == NULL; late++) status = meet_late(&member, late);
    sleep_for(cuda_fixture_timeout_ms + 200);
    if (status == NULL) status = work_alone(&member);
    for (int late = 0; late < 2 && status == NULL; late++) status = meet_late(&member, late);
    comm_free(part);
    leave(&member);
    return status;
}

TEST(idle_part)
{
    struct group_result results[GROUP_MAX];
    cuda_fixture_timeout_ms = 2000;
    group_run(GROUP_LOCAL, 2, 60000, idle, NULL, results);
    for (int r = 0; r < 2; r++)
        ck_assert_msg(results[r].code == STATUS_OK, "rank %d: %s", r, results[r].message);
}

/* A group of two, with a part, of which a call fails on one rank: neither destroys anything then
 * (the stub ends the test). */
static status_t fail_and_leave(struct comm *comm, void *argument)
{
    struct member member = {NULL, NULL, NULL, NULL};
    struct comm *part = NULL, *other = NULL;
    const int ranks[] = {0, 1};
    (void)argument;
    status_t status = enter(comm, &member);
    if (status == NULL) status = comm_split(member.group, ranks, 2, &part);
    if (status == NULL) status = device_allocate_registrable(member.device, 1000, &member.memory);
    if (status == NULL) status = comm_register(member.group, member.memory, 1000);
    if (status == NULL) status = comm_split(member.group, ranks, 2, &other);
    if (status == NULL) status = comm_all_reduce(part, member.lane, member.memory, 10, 1, NULL);
    if (status == NULL) status = lane_wait(member.lane, cuda_fixture_timeout_ms);
    comm_free(other);
    comm_free(part);
    comm_free(member.group);
    member.group = NULL;
    leave(&member);
    return status;
}

LOOP_TEST(never_destroyed, 0, 2)
{
    static const char *const calls[] = {"ncclCommSplit", "ncclAllReduce"};
    struct group_result results[GROUP_MAX];
    fail_call = calls[_i];
    cuda_fixture_begin(7);
    cuda_fixture_timeout_ms = 1000;
    cuda_stub_fail(fail_call, _i == 0 ? 3 : 1, ncclSystemError); /* the second split */
    group_run(GROUP_LOCAL, 2, 60000, fail_and_leave, NULL, results);
    bool reported = false;
    for (int r = 0; r < 2; r++) {
        ck_assert_int_ne(results[r].code, STATUS_OK);
        reported = reported || (results[r].code == STATUS_UNAVAILABLE &&
                                strstr(results[r].message, fail_call) != NULL);
    }
    ck_assert_msg(reported, "%s; %s", results[0].message, results[1].message);
    ck_assert_int_ge(cuda_stub_count("ncclCommAbort"), 2 * 2);
}

static status_t stay_away(struct comm *comm, void *argument)
{
    struct member member = {NULL, NULL, NULL, NULL};
    (void)argument;
    status_t status = enter(comm, &member);
    if (status == NULL && comm_rank(comm) == 0) status = comm_barrier(member.group, member.lane);
    leave(&member);
    return status;
}

/* FSDPD_CUDA_SYNC: the wait after every call has the group's deadline, like any other wait. */
TEST(sync_lost_peer)
{
    struct group_result results[GROUP_MAX];
    setenv("FSDPD_CUDA_SYNC", "1", 1);
    cuda_fixture_timeout_ms = 1000;
    int64_t begin = clock_monotonic_ns();
    group_run(GROUP_LOCAL, 2, 60000, stay_away, NULL, results);
    ck_assert_int_eq(results[0].code, STATUS_DEADLINE_EXCEEDED);
    ck_assert_msg(strstr(results[0].message, "not done within 1000 ms") != NULL, "%s",
                  results[0].message);
    ck_assert_double_lt((double)(clock_monotonic_ns() - begin) / 1e9, 30);
}

/* A device error is reported at the op that caused it, not at the end of the step. */
TEST(sync_finds_errors)
{
    struct engine_job job = cuda_fixture_job(TINY_LLAMA);
    job.device = "cuda:0";
    job.poison = false;
    job.before_step = fail_in_step;
    fail_call = "cudaStreamQuery", fail_number = 20;
    setenv("FSDPD_CUDA_SYNC", "1", 1);
    char *message = run_failing(&job, 1);
    ck_assert_ptr_nonnull(message);
    ck_assert_msg(strstr(message, "training step, instruction ") != NULL &&
                      strstr(message, " of op ") != NULL &&
                      strstr(message, "unspecified launch failure") != NULL,
                  "%s", message);
    free(message);
}
