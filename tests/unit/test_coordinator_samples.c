/* SampleJob: tokens that reach the client as they are drawn, the queue of calls and their share of
 * a job's time, and clients and ranks that disappear. */
#include "base/clock.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

static struct world world;
static struct fake fakes[2];
static struct listener first, second;
static char *id;

static void set_up(void)
{
    world_init(&world);
    world.options.limits.samples_waiting = 1;
    world.options.limits.sample_share = 10;
    world_start(&world);
    id = world_start_running(&world, fakes);
}

static void tear_down(void)
{
    world_deinit_running(&world, fakes, 2, id);
}

static void open_sample(struct listener *stream)
{
    Fsdpd__V1__SampleJobRequest request = FSDPD__V1__SAMPLE_JOB_REQUEST__INIT;
    Fsdpd__V1__Sample sample = FSDPD__V1__SAMPLE__INIT;
    Fsdpd__V1__Tokens prompt = FSDPD__V1__TOKENS__INIT, *prompts[] = {&prompt};
    prompt.n_tokens = 1;
    prompt.tokens = (uint32_t[]){5};
    sample.n_prompts = 1;
    sample.prompts = prompts;
    request.id = id;
    request.sample = &sample;
    request.stream = true;
    listener_open(&world, stream, &control_sample_job, &request, false);
}

/* Waits until both ranks have that many orders. */
static void await_orders(int count)
{
    WAIT(&world, fakes[0].evaluations == count && fakes[1].evaluations == count);
}

/* Rank 0 has drawn; it took that many seconds. */
static void sampled_in(double seconds)
{
    Fsdpd__V1__Sampled sampled = FSDPD__V1__SAMPLED__INIT;
    sampled.seconds = seconds;
    fake_sampled(&fakes[0], &sampled, STATUS_OK, "");
}

static void evaluated_in(double seconds)
{
    Fsdpd__V1__Validation validation = FSDPD__V1__VALIDATION__INIT;
    validation.seconds = seconds;
    fake_evaluated(&fakes[0], &validation);
}

static const Fsdpd__V1__SampleJobResponse *message_at(const struct listener *stream, int i)
{
    ck_assert_int_lt(i, stream->count);
    return stream->messages[i];
}

static void expect_end(struct listener *stream, enum status_code code, const char *words)
{
    WAIT(&world, stream->closed);
    if (code == STATUS_OK) expect_ok(stream->status);
    else expect_status(stream->status, code, words);
    stream->status = NULL;
    listener_deinit(stream);
}

static void leave(struct listener *stream)
{
    rpc_stream_cancel(stream->stream);
    WAIT(&world, stream->closed);
    listener_deinit(stream);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(tokens_arrive_as_they_are_drawn)
{
    open_sample(&first);
    await_orders(1);
    for (uint32_t token = 7; token < 10; token++) {
        fake_drawn(&fakes[0], token);
        WAIT(&world, first.count == (int)token - 6);
        const Fsdpd__V1__SampleJobResponse *message = message_at(&first, first.count - 1);
        ck_assert_ptr_null(message->sampled);
        ck_assert_uint_eq(message->n_drawn, 1);
        ck_assert_uint_eq(message->drawn[0]->n_tokens, 1);
        ck_assert_uint_eq(message->drawn[0]->tokens[0], token);
    }
    sampled_in(0.01);
    WAIT(&world, first.closed);
    ck_assert_int_eq(first.count, 4);
    ck_assert_ptr_nonnull(message_at(&first, 3)->sampled);
    expect_end(&first, STATUS_OK, "");
}

TEST(calls_wait_for_their_turn)
{
    struct listener third = {0};
    open_sample(&first);
    await_orders(1);
    open_sample(&second);
    world_run(&world, 20);
    open_sample(&third);
    expect_end(&third, STATUS_RESOURCE_EXHAUSTED,
               "1 samples wait for their turn already, and at most 1 may (limits.samples_waiting)");
    ck_assert_int_eq(fakes[0].evaluations, 1);
    fake_sampled(&fakes[0], NULL, STATUS_RESOURCE_EXHAUSTED, "it needs 9 GB, and 2 GB are left");
    expect_end(&first, STATUS_RESOURCE_EXHAUSTED, "it needs 9 GB, and 2 GB are left");
    await_orders(2);
    sampled_in(0.01);
    expect_end(&second, STATUS_OK, "");
}

static void open_evaluation(struct listener *stream)
{
    Fsdpd__V1__EvaluateJobRequest request = FSDPD__V1__EVALUATE_JOB_REQUEST__INIT;
    request.id = id;
    listener_open(&world, stream, &control_evaluate_job, &request, false);
}

/* But not for another one, which may take long. */
TEST(an_evaluation_waits_for_samples)
{
    struct listener third = {0};
    open_sample(&first);
    await_orders(1);
    open_evaluation(&second);
    world_run(&world, 20);
    open_evaluation(&third);
    expect_end(&third, STATUS_FAILED_PRECONDITION, "is being evaluated already");
    ck_assert_int_eq(fakes[0].evaluations, 1);
    sampled_in(0.01);
    expect_end(&first, STATUS_OK, "");
    await_orders(2);
    fake_sampled(&fakes[0], NULL, STATUS_NOT_FOUND, "no such data");
    expect_end(&second, STATUS_NOT_FOUND, "no such data");
}

/* A tenth of the time, beyond a burst of a second. */
TEST(calls_have_a_share_of_the_time)
{
    open_sample(&first);
    await_orders(1);
    open_sample(&second);
    sampled_in(0.15);
    expect_end(&first, STATUS_OK, "");
    ck_assert_int_eq(fakes[0].evaluations, 1);
    await_orders(2);
    ck_assert_double_ge(fakes[0].evaluation_waited, 0.3);
    sampled_in(0.01);
    expect_end(&second, STATUS_OK, "");
}

/* The same share: what evaluates keeps training as long as what samples. */
TEST(evaluations_count_as_samples_do)
{
    open_evaluation(&first);
    await_orders(1);
    open_sample(&second);
    evaluated_in(0.15);
    expect_end(&first, STATUS_OK, "");
    ck_assert_int_eq(fakes[0].evaluations, 1);
    await_orders(2);
    ck_assert_double_ge(fakes[0].evaluation_waited, 0.3);
    open_evaluation(&first);
    int64_t began = clock_monotonic_ns();
    sampled_in(0.05);
    expect_end(&second, STATUS_OK, "");
    ck_assert_int_eq(fakes[0].evaluations, 2);
    await_orders(3);
    ck_assert_int_ge(clock_monotonic_ns() - began, 300000000);
    evaluated_in(0.01);
    expect_end(&first, STATUS_OK, "");
}

/* The ranks stop, and the next call has its turn. One that leaves the queue leads to no order. */
TEST(clients_that_leave)
{
    open_sample(&first);
    await_orders(1);
    uint64_t stopped = fakes[0].evaluation;
    open_sample(&second);
    world_run(&world, 20);
    leave(&second);
    open_sample(&second);
    world_run(&world, 20);
    leave(&first);
    await_orders(2);
    for (int r = 0; r < 2; r++) ck_assert_uint_eq(fakes[r].evaluation_stopped, stopped);
    sampled_in(0.01);
    expect_end(&second, STATUS_OK, "");
    ck_assert_uint_eq(fakes[0].evaluation_stopped, stopped);
}

TEST(ranks_that_are_away)
{
    open_sample(&first);
    await_orders(1);
    open_sample(&second);
    world_run(&world, 20);
    fake_detach(&fakes[1]);
    expect_end(&first, STATUS_UNAVAILABLE, "the link to rank 1 of job ");
    expect_end(&second, STATUS_UNAVAILABLE, "the link to rank 1 of job ");
    open_sample(&first);
    expect_end(&first, STATUS_UNAVAILABLE, "waits for rank 1 (host/cpu:1)");
}
