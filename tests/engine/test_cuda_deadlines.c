/*
 * The deadline of collectives on the CUDA device, under a stub of the runtime (tests/emulation). It
 * covers the peers: it runs while a collective works or waits for them, and never while the lane
 * waits for arithmetic; the same for enqueued calls, for the replay of a graph of them, for what a
 * replay does after its delivery, and for parts of a group.
 */
#include <stdatomic.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "../emulation/cuda_stub.h"
#include "base/clock.h"
#include "cuda_fixture.h"
#include "tests/testing.h"

enum { TIMEOUT_MS = 4000, WAIT_MS = 120000 };

static const char *const label = "the step's gather";

/* The work of the ranks of a group of two: before each collective, their lane waits for
 * arithmetic. */
struct scenario {
    bool replayed, of_part, stuck;
    int collectives;
    int64_t longest_ms;  /* arithmetic of both, before the first */
    int64_t each_ms;     /* of rank 1 alone, before each */
    bool peer_is_absent; /* rank 1, from the last */
    bool quits;          /* each rank's group is aborted while it captures */
    bool delivers;       /* before the last */
};

struct member {
    const struct scenario *scenario;
    struct device *device;
    struct lane_queue *compute, *lane;
    struct event *done;
    struct comm *group, *part, *used;
    void *memory; /* of the device */
    float arrived;
    bool absent;
    _Atomic int64_t until_ns, each_ms; /* duration of arithmetic now */
};

static void CUDART_CB take_time(void *argument)
{
    struct member *member = argument;
    int64_t each = atomic_load(&member->each_ms);
    if (each > 0) clock_sleep_ms(each);
    while (clock_monotonic_ns() < atomic_load(&member->until_ns)) clock_sleep_ms(1);
}

static status_t compute(struct member *member)
{
    struct cuda_lane *lane = cuda_lane(member->compute);
    if (!cuda_does_enqueue(lane)) return NULL;
    TRY(cuda_enqueue(lane));
    TRY_CUDA(cudaLaunchHostFunc(lane->stream, take_time, member));
    return NULL;
}

static status_t walk(struct member *member)
{
    for (int i = 0; i < member->scenario->collectives; i++) {
        TRY(compute(member));
        lane_record(member->compute, member->done);
        lane_wait_event(member->lane, member->done);
        bool last = i + 1 == member->scenario->collectives;
        if (last && member->scenario->delivers)
            TRY(lane_deliver(member->lane, &member->arrived, member->memory,
                             sizeof member->arrived));
        if (member->absent && last) break;
        lane_label(member->lane, label);
        TRY(comm_barrier(member->used, member->lane));
        lane_label(member->lane, NULL);
    }
    return NULL;
}

/* Once a lane is aborted, what is behind its collective runs to its end. */
static status_t wait_for_both(struct member *member)
{
    status_t status = lane_wait(member->lane, WAIT_MS);
    ck_assert(!lane_is_running(member->lane) && !cuda_lane(member->lane)->busy);
    TRY(status);
    return lane_wait(member->compute, WAIT_MS);
}

static status_t pass(struct recording *recording, enum recording_pass kind, struct member *member)
{
    TRY(recording_begin(recording, kind));
    TRY(recording_end(recording, walk(member)));
    return kind == RECORDING_REPLAY ? wait_for_both(member) : NULL;
}

/* Makes the ranks begin together. */
static status_t meet(struct member *member)
{
    TRY(comm_barrier(member->group, member->lane));
    return wait_for_both(member);
}

static void begin_taking_time(struct member *member)
{
    const struct scenario *scenario = member->scenario;
    if (comm_rank(member->group) == 1) atomic_store(&member->each_ms, scenario->each_ms);
    atomic_store(&member->until_ns, clock_monotonic_ns() + scenario->longest_ms * 1000000);
}

static void *quit_later(void *argument)
{
    struct member *member = argument;
    clock_sleep_ms(50);
    comm_abort(member->group, "the test wants it");
    return NULL;
}

/* A capture in which NCCL does not end its part. Then nothing was left on the lanes. */
static status_t run_stuck(struct member *member, struct recording **recording)
{
    struct lane_queue *lanes[] = {member->compute, member->lane};
    pthread_t thread;
    TRY(meet(member));
    TRY(recording_new(member->device, lanes, 2, recording));
    TRY(pass(*recording, RECORDING_MEASURE, member));
    bool quits = member->scenario->quits;
    if (quits) ck_assert_int_eq(pthread_create(&thread, NULL, quit_later, member), 0);
    status_t status = pass(*recording, RECORDING_CAPTURE, member);
    if (quits) pthread_join(thread, NULL);
    status_free(wait_for_both(member));
    return status;
}

/* The first replay takes no time: it leaves the graph's events as a previous step does. */
static status_t run_recorded(struct member *member, struct recording **recording)
{
    struct lane_queue *lanes[] = {member->compute, member->lane};
    bool absent = member->absent;
    member->absent = false;
    TRY(recording_new(member->device, lanes, 2, recording));
    TRY(pass(*recording, RECORDING_MEASURE, member));
    TRY(pass(*recording, RECORDING_CAPTURE, member));
    TRY(pass(*recording, RECORDING_REPLAY, member));
    TRY(meet(member));
    if (absent) return NULL;
    begin_taking_time(member);
    return pass(*recording, RECORDING_REPLAY, member);
}

/* Rank 1 does not take part in the first replay. The other one's has delivered; what waits for the
 * rest of it, a second replay or its end, finds that it hangs. */
static status_t run_ahead(struct member *member, struct recording **recording)
{
    struct lane_queue *lanes[] = {member->compute, member->lane};
    bool absent = member->absent, delivered = false;
    member->absent = false;
    TRY(recording_new(member->device, lanes, 2, recording));
    TRY(pass(*recording, RECORDING_MEASURE, member));
    TRY(pass(*recording, RECORDING_CAPTURE, member));
    TRY(meet(member));
    if (absent) return NULL;
    TRY(recording_begin(*recording, RECORDING_REPLAY));
    TRY(recording_end(*recording, walk(member)));
    TRY(recording_wait(*recording, WAIT_MS, &delivered));
    ck_assert(delivered);
    if (!member->scenario->replayed) return wait_for_both(member);
    TRY(recording_begin(*recording, RECORDING_REPLAY));
    TRY(recording_end(*recording, walk(member)));
    status_t status = recording_wait(*recording, WAIT_MS, &delivered);
    ck_assert(!delivered);
    return status_first(status, wait_for_both(member));
}

static status_t run(struct member *member)
{
    TRY(meet(member));
    begin_taking_time(member);
    TRY(walk(member));
    return wait_for_both(member);
}

static status_t enter(struct comm *comm, struct member *member)
{
    const int ranks[] = {0, 1};
    TRY(device_open("cuda:0", 1, &member->device));
    TRY(cuda_fixture_join(member->device, comm_rank(comm), comm_world(comm), &member->group));
    TRY(comm_split(member->group, ranks, 2, &member->part));
    member->used = member->scenario->of_part ? member->part : member->group;
    member->absent = member->scenario->peer_is_absent && comm_rank(comm) == 1;
    TRY(lane_open(member->device, LANE_COMPUTE, &member->compute));
    TRY(lane_open(member->device, LANE_COMM, &member->lane));
    TRY(device_allocate(member->device, 256, &member->memory));
    return event_new(member->device, &member->done);
}

static status_t play(struct comm *comm, void *argument)
{
    struct member member = {.scenario = argument};
    struct recording *recording = NULL;
    status_t status = enter(comm, &member);
    if (status == NULL)
        status = member.scenario->stuck      ? run_stuck(&member, &recording)
                 : member.scenario->delivers ? run_ahead(&member, &recording)
                 : member.scenario->replayed ? run_recorded(&member, &recording)
                                             : run(&member);
    if (member.lane != NULL) lane_close(member.lane);
    if (member.compute != NULL) lane_close(member.compute);
    event_free(member.done);
    recording_free(recording);
    device_release(member.device, member.memory);
    comm_free(member.part);
    comm_free(member.group);
    device_close(member.device);
    return status;
}

static void expect_success(struct scenario *scenario)
{
    struct group_result results[GROUP_MAX];
    cuda_fixture_timeout_ms = TIMEOUT_MS;
    group_run(GROUP_LOCAL, 2, WAIT_MS, play, scenario, results);
    for (int r = 0; r < 2; r++)
        ck_assert_msg(results[r].code == STATUS_OK, "rank %d: %s", r, results[r].message);
}

TESTS_BELOW(.timeout = 240, .set_up = cuda_fixture_set_up, .tear_down = cuda_fixture_tear_down);

/* More arithmetic than the deadline before a collective, and after one. */
LOOP_TEST(long_compute, 0, 2)
{
    struct scenario scenario = {.replayed = _i,
                                .of_part = _i,
                                .collectives = 2,
                                .longest_ms = 2 * TIMEOUT_MS + 300};
    expect_success(&scenario);
}

/* A peer that is late for each of many collectives, but never by the whole deadline. */
LOOP_TEST(slow_peer, 0, 2)
{
    struct scenario scenario = {.replayed = _i, .collectives = 5, .each_ms = TIMEOUT_MS / 3};
    expect_success(&scenario);
}

/* A peer that never comes: detected in time after the arithmetic, with the collective's name. */
LOOP_TEST(absent_peer, 0, 4)
{
    struct group_result results[GROUP_MAX];
    struct scenario scenario = {.replayed = _i & 1,
                                .of_part = _i & 2,
                                .collectives = 2,
                                .longest_ms = _i & 2 ? TIMEOUT_MS + 500 : 0,
                                .peer_is_absent = true};
    cuda_fixture_timeout_ms = TIMEOUT_MS;
    int64_t begin = clock_monotonic_ns();
    group_run(GROUP_LOCAL, 2, WAIT_MS, play, &scenario, results);
    double seconds = (double)(clock_monotonic_ns() - begin) / 1e9;
    ck_assert_int_eq(results[0].code, STATUS_DEADLINE_EXCEEDED);
    /* The preceding barriers: one to meet, one or two of the walk; in a replay, one or two
     * walks. */
    int number = scenario.of_part ? (scenario.replayed ? 3 : 2) : (scenario.replayed ? 4 : 3);
    char expected[200];
    snprintf(expected, sizeof expected,
             "%s: barrier number %d was not done within %d ms of its start on this rank", label,
             number, TIMEOUT_MS);
    ck_assert_str_eq(results[0].message, expected);
    ck_assert_double_ge(seconds, (double)(scenario.longest_ms + TIMEOUT_MS) / 1e3);
    ck_assert_double_lt(seconds, WAIT_MS / 1e3 - 5);
}

/* NCCL's thread is still at work on a captured collective when the deadline passes, or the group is
 * aborted: it is ended before the capture, and the communicator waits for no graph. */
LOOP_TEST(stuck_in_capture, 0, 4)
{
    enum { SHORT_MS = 400 };
    struct group_result results[GROUP_MAX];
    struct scenario scenario = {.stuck = true,
                                .of_part = _i & 1,
                                .quits = _i & 2,
                                .collectives = 2};
    cuda_fixture_timeout_ms = scenario.quits ? WAIT_MS : SHORT_MS;
    nccl_stub_hang(2); /* of one rank; the other's capture needs no peer */
    group_run(GROUP_LOCAL, 2, WAIT_MS, play, &scenario, results);
    nccl_stub_hang(0);
    const char *expected = scenario.quits ? "ncclAllReduce: the group was aborted"
                                          : "ncclAllReduce: not done within 400 ms";
    int stuck = strstr(results[0].message, expected) != NULL ? 0 : 1;
    ck_assert_int_eq(results[stuck].code,
                     scenario.quits ? STATUS_ABORTED : STATUS_DEADLINE_EXCEEDED);
    ck_assert_ptr_nonnull(strstr(results[stuck].message, expected));
    ck_assert_int_eq(nccl_stub_unfreed(), 0);
}

/* In the part of a replay that still runs when the host has its delivery: the next replay, or the
 * wait for this one, reports the collective, though the second launch has enqueued it again. */
LOOP_TEST(absent_in_tail, 0, 4)
{
    struct group_result results[GROUP_MAX];
    struct scenario scenario = {.delivers = true,
                                .replayed = _i & 1,
                                .of_part = _i & 2,
                                .collectives = 1,
                                .peer_is_absent = true};
    enum { SHORT_MS = 1500 };
    cuda_fixture_timeout_ms = SHORT_MS;
    int64_t begin = clock_monotonic_ns();
    group_run(GROUP_LOCAL, 2, WAIT_MS, play, &scenario, results);
    ck_assert_int_eq(results[0].code, STATUS_DEADLINE_EXCEEDED);
    char expected[200];
    snprintf(expected, sizeof expected,
             "%s: barrier number %d was not done within %d ms of its start on this rank", label,
             scenario.of_part ? 1 : 2, SHORT_MS);
    ck_assert_str_eq(results[0].message, expected);
    ck_assert_double_ge((double)(clock_monotonic_ns() - begin) / 1e9, SHORT_MS / 1e3);
    ck_assert_int_eq(nccl_stub_unfreed(), 0);
}
