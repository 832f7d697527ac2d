/* TraceJob: refusals, the steps that ranks send to the client, and clients and jobs that
 * disappear. */
#include <stdlib.h>
#include <string.h>

#include "test_coordinator_world.h"
#include "tests/testing.h"

static struct world world;
static struct fake fakes[2];
static struct listener listener;
static char *id;

static void set_up(void)
{
    world_init(&world);
    world_start(&world);
    id = world_start_running(&world, fakes);
}

static void tear_down(void)
{
    world_deinit_running(&world, fakes, 2, id);
}

static void open_trace(struct listener *stream, const char *job, uint32_t steps)
{
    Fsdpd__V1__TraceJobRequest request = FSDPD__V1__TRACE_JOB_REQUEST__INIT;
    request.id = (char *)job;
    request.steps = steps;
    listener_open(&world, stream, &control_trace_job, &request, false);
}

static void expect_refused(const char *job, uint32_t steps, enum status_code code,
                           const char *words)
{
    struct listener refused = {0};
    open_trace(&refused, job, steps);
    WAIT(&world, refused.closed);
    ck_assert_int_eq(refused.count, 0);
    expect_status(refused.status, code, words);
    refused.status = NULL;
    listener_deinit(&refused);
}

static const Fsdpd__V1__TraceChunk *chunk_at(int i)
{
    ck_assert_int_lt(i, listener.count);
    return listener.messages[i];
}

/* Starts a trace and waits until all ranks have its order. */
static void start_trace(uint32_t steps)
{
    open_trace(&listener, id, steps);
    WAIT(&world, fakes[0].trace_steps == steps && fakes[1].trace_steps == steps);
    ck_assert_uint_eq(fakes[0].trace, fakes[1].trace);
    WAIT(&world, listener.count == 1);
    ck_assert_uint_eq(chunk_at(0)->n_workers, 2);
    ck_assert_str_eq(chunk_at(0)->workers[1], "host/cpu:1");
}

/* The client disconnects, unless it has its answer. */
static void end_trace(void)
{
    if (!listener.closed) rpc_stream_cancel(listener.stream);
    WAIT(&world, listener.closed);
    listener_deinit(&listener);
}

/* A rank sends one step, with a wrong rank, which the coordinator corrects. */
static void send_step(int rank, uint64_t number, bool last)
{
    Fsdpd__V1__TraceStep step = FSDPD__V1__TRACE_STEP__INIT;
    Fsdpd__V1__TraceStep *steps[] = {&step};
    Fsdpd__V1__TraceChunk chunk = FSDPD__V1__TRACE_CHUNK__INIT;
    step.step = number;
    chunk.rank = 7;
    chunk.n_steps = 1;
    chunk.steps = steps;
    chunk.last = last;
    fake_trace(&fakes[rank], fakes[rank].trace, &chunk, STATUS_OK, "");
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(refusals)
{
    expect_refused(id, 0, STATUS_INVALID_ARGUMENT, "steps: expected 1 to 1000, found 0");
    expect_refused(id, 1001, STATUS_INVALID_ARGUMENT, "steps: expected 1 to 1000, found 1001");
    expect_refused("other-1", 1, STATUS_NOT_FOUND, "other-1");
    char *queued = world_submit(&world, 2);
    expect_refused(queued, 1, STATUS_FAILED_PRECONDITION,
                   "is QUEUED; only a running job can be traced");
    free(queued);
    start_trace(3);
    expect_refused(id, 1, STATUS_FAILED_PRECONDITION, "is being traced already");
    ck_assert_uint_eq(fakes[0].trace_steps, 3); /* it led to no order */
    end_trace();
}

TEST(all_ranks)
{
    start_trace(2);
    send_step(1, 5, false);
    send_step(1, 6, true);
    WAIT(&world, listener.count == 3);
    send_step(1, 7, true); /* after its last one: ignored */
    send_step(0, 5, false);
    WAIT(&world, listener.count == 4);
    ck_assert(!listener.closed);
    send_step(0, 6, true);
    WAIT(&world, listener.closed);
    expect_ok(listener.status);
    ck_assert_int_eq(listener.count, 5);
    static const struct {
        uint32_t rank;
        uint64_t step;
        bool last;
    } expected[] = {{1, 5, false}, {1, 6, true}, {0, 5, false}, {0, 6, true}};
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_eq(chunk_at(i + 1)->rank, expected[i].rank);
        ck_assert_uint_eq(chunk_at(i + 1)->steps[0]->step, expected[i].step);
        ck_assert_int_eq(chunk_at(i + 1)->last, expected[i].last);
    }
    listener.status = NULL;
    end_trace();
    /* and the next one is another trace */
    uint64_t before = fakes[0].trace;
    start_trace(4);
    ck_assert_uint_gt(fakes[0].trace, before);
    end_trace();
}

TEST(rank_that_cannot)
{
    start_trace(2);
    send_step(0, 5, true);
    fake_trace(&fakes[1], fakes[1].trace + 1, NULL, STATUS_INTERNAL, "of another trace");
    fake_trace(&fakes[1], fakes[1].trace, NULL, STATUS_RESOURCE_EXHAUSTED, "too many");
    WAIT(&world, listener.closed);
    expect_status(listener.status, STATUS_RESOURCE_EXHAUSTED, "rank 1 of job ");
    listener.status = NULL;
    end_trace();
}

/* The job ends before all ranks have sent everything. */
TEST(job_that_ends)
{
    start_trace(2);
    send_step(0, 5, true);
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_INTERNAL, "broke");
    WAIT(&world, listener.closed);
    expect_status(listener.status, STATUS_ABORTED, "ended (FAILED) before it was traced");
    listener.status = NULL;
    end_trace();
    expect_refused(id, 1, STATUS_FAILED_PRECONDITION, "is FAILED; only a running job");
}

/* Steps for a client that has disconnected are dropped, and another may trace at once. */
TEST(client_that_leaves)
{
    start_trace(2);
    uint64_t before = fakes[0].trace;
    end_trace();
    world_run(&world, 50);
    send_step(0, 5, true);
    send_step(1, 5, true);
    start_trace(5);
    ck_assert_uint_gt(fakes[0].trace, before);
    send_step(0, 9, true);
    send_step(1, 9, true);
    WAIT(&world, listener.closed);
    expect_ok(listener.status);
    ck_assert_int_eq(listener.count, 3);
    listener.status = NULL;
    end_trace();
}
