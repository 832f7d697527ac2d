/* DiagnoseJob, and the diagnoses that the coordinator takes before a deadline. */
#include <stdlib.h>
#include <string.h>

#include "test_coordinator_world.h"
#include "tests/testing.h"

static struct world world;
static struct fake fakes[2];
static char *id;

static void start(void)
{
    world_start(&world);
    id = world_start_running(&world, fakes);
}

static void set_up(void)
{
    world_init(&world);
    world.options.limits.heartbeat_ms = 600000; /* the test sends them */
    world.options.limits.silence_ms = 600000;
    world.options.limits.peer_timeout_ms = 600000;
}

static void tear_down(void)
{
    world_deinit_running(&world, fakes, 2, id);
}

TESTS_BELOW(.set_up = set_up, .tear_down = tear_down);

static void ask(struct listener *call, const char *job, bool stacks)
{
    Fsdpd__V1__DiagnoseJobRequest request = FSDPD__V1__DIAGNOSE_JOB_REQUEST__INIT;
    request.id = (char *)job;
    request.without_stacks = !stacks;
    listener_open(&world, call, &control_diagnose_job, &request, false);
}

static const Fsdpd__V1__Diagnosis *answer_of(struct listener *call)
{
    WAIT(&world, call->closed);
    expect_ok(call->status);
    call->status = NULL;
    ck_assert_int_eq(call->count, 1);
    return (const Fsdpd__V1__Diagnosis *)call->messages[0];
}

static void expect_refused(const char *job, enum status_code code, const char *words)
{
    struct listener call = {0};
    ask(&call, job, true);
    WAIT(&world, call.closed);
    expect_status(call.status, code, words);
    call.status = NULL;
    listener_deinit(&call);
}

TEST(every_rank_is_asked_and_the_one_that_does_not_wait_is_blamed)
{
    struct listener call = {0};
    start();
    ask(&call, id, true);
    WAIT(&world, fakes[0].diagnoses == 1 && fakes[1].diagnoses == 1);
    ck_assert(fakes[0].stacks);
    fake_diagnosis(&fakes[1], 6, false);
    fake_diagnosis(&fakes[0], 7, true);
    const Fsdpd__V1__Diagnosis *diagnosis = answer_of(&call);
    ck_assert_uint_eq(diagnosis->n_ranks, 2);
    ck_assert_str_eq(diagnosis->ranks[0]->worker, "host/cpu:0");
    ck_assert_str_eq(diagnosis->ranks[1]->link, "attached");
    ck_assert_uint_eq(diagnosis->n_ranks_to_blame, 1);
    ck_assert_uint_eq(diagnosis->ranks_to_blame[0], 1);
    ck_assert_msg(strstr(diagnosis->verdict, "rank 1 (host/cpu:1) has not entered all_gather") !=
                      NULL,
                  "%s", diagnosis->verdict);
    listener_deinit(&call);
}

TEST(a_rank_that_does_not_answer_is_described_without_its_help)
{
    struct listener call = {0};
    start();
    fake_heartbeat_at(&fakes[1], 5, 6, false);
    ask(&call, id, false);
    WAIT(&world, fakes[0].diagnoses == 1 && fakes[1].diagnoses == 1);
    ck_assert(!fakes[0].stacks);
    fake_diagnosis(&fakes[0], 7, true);
    const Fsdpd__V1__Diagnosis *diagnosis = answer_of(&call);
    ck_assert(!diagnosis->ranks[1]->answered);
    ck_assert_uint_eq(diagnosis->ranks[1]->collectives, 6);
    ck_assert_uint_eq(diagnosis->step, 5);
    ck_assert_int_eq(diagnosis->cause, FSDPD__V1__DIAGNOSIS__CAUSE__CAUSE_SILENT);
    listener_deinit(&call);
}

TEST(after_a_restart_ranks_that_have_not_come_back_are_named)
{
    struct listener call = {0};
    start();
    world_stop(&world);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].closed);
    world_start(&world);
    ask(&call, id, true);
    const Fsdpd__V1__Diagnosis *diagnosis = answer_of(&call);
    ck_assert_str_eq(diagnosis->ranks[1]->link, "has not attached again since fsdpd was restarted");
    ck_assert(!diagnosis->ranks[1]->answered);
    listener_deinit(&call);
}

TEST(calls_at_the_same_time_share_a_diagnosis_unless_it_lacks_the_stacks)
{
    struct listener first = {0}, second = {0}, third = {0};
    start();
    ask(&first, id, false);
    WAIT(&world, fakes[0].diagnoses == 1 && fakes[1].diagnoses == 1);
    ask(&second, id, false);
    ask(&third, id, true);
    expect_refused("none-1", STATUS_NOT_FOUND, "none-1"); /* so those have arrived */
    ck_assert_int_eq(fakes[0].diagnoses, 1);
    fake_diagnosis(&fakes[0], 7, true);
    fake_diagnosis(&fakes[1], 6, false);
    answer_of(&first);
    answer_of(&second);
    WAIT(&world, fakes[0].diagnoses == 2 && fakes[1].diagnoses == 2);
    ck_assert(fakes[1].stacks && !third.closed);
    fake_diagnosis(&fakes[0], 7, true);
    fake_diagnosis(&fakes[1], 6, false);
    answer_of(&third);
    listener_deinit(&first);
    listener_deinit(&second);
    listener_deinit(&third);
}

TEST(an_answer_to_an_earlier_request_does_not_count)
{
    struct listener call = {0};
    start();
    ask(&call, id, true);
    WAIT(&world, fakes[0].diagnoses == 1 && fakes[1].diagnoses == 1);
    fakes[1].diagnosis--;
    fake_diagnosis(&fakes[1], 9, true);
    fakes[1].diagnosis++;
    fake_diagnosis(&fakes[1], 6, false);
    fake_diagnosis(&fakes[0], 7, true);
    ck_assert_uint_eq(answer_of(&call)->ranks[1]->collectives, 6);
    listener_deinit(&call);
}

TEST(the_end_of_the_attempt_ends_the_call)
{
    struct listener call = {0};
    start();
    ask(&call, id, true);
    WAIT(&world, fakes[0].diagnoses == 1 && fakes[1].diagnoses == 1);
    fake_finished(&fakes[0], STATUS_OK, "");
    fake_finished(&fakes[1], STATUS_OK, "");
    WAIT(&world, call.closed);
    expect_status(call.status, STATUS_ABORTED, "ended (SUCCEEDED) before it was diagnosed");
    call.status = NULL;
    listener_deinit(&call);
    expect_refused(id, STATUS_FAILED_PRECONDITION, "does not run");
}

TEST(a_diagnosis_before_the_deadline_goes_into_the_history)
{
    world.options.limits.peer_timeout_ms = 200;
    start();
    fake_heartbeat_at(&fakes[0], 5, 7, true);
    WAIT(&world, fakes[0].diagnoses == 1 && fakes[1].diagnoses == 1); /* at half of it */
    fake_diagnosis(&fakes[0], 7, true);
    fake_diagnosis(&fakes[1], 6, false);
    fake_finished(&fakes[0], STATUS_DEADLINE_EXCEEDED, "rank 1 did not answer in time");
    fake_finished(&fakes[1], STATUS_ABORTED, "the attempt is over");
    WAIT(&world, !world_job_is(&world, id, JOB_RUNNING));
    Fsdpd__V1__GetHistoryRequest request = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    void *response;
    request.id = id;
    expect_ok(world_call(&world, &control_get_history, &request, &response));
    const Fsdpd__V1__GetHistoryResponse *history = response;
    bool found = false;
    for (size_t i = 0; i < history->n_entries; i++) {
        const Fsdpd__V1__HistoryEntry *entry = history->entries[i];
        if (entry->diagnosis == NULL) continue;
        found = true;
        ck_assert_uint_eq(entry->diagnosis->ranks_to_blame[0], 1);
        ck_assert_ptr_nonnull(strstr(entry->reason->message, entry->diagnosis->verdict));
    }
    ck_assert(found);
    message_free(response);
}

/* Both ranks have done `steps` more steps, which took rank 1 `factor` times as long as rank 0. The
 * coordinator has all of that when this returns: the answers come after the heartbeats. */
static void run_steps(uint64_t *step, uint64_t steps, double factor)
{
    struct listener call = {0};
    int asked = fakes[1].diagnoses;
    *step += steps;
    fakes[0].own_us += steps * 1000;
    fakes[1].own_us += (uint64_t)(factor * (double)steps * 1000);
    fake_heartbeat(&fakes[0], *step);
    fake_heartbeat(&fakes[1], *step);
    ask(&call, id, false);
    WAIT(&world, fakes[0].diagnoses > asked && fakes[1].diagnoses > asked);
    fake_diagnosis(&fakes[0], 7, true);
    fake_diagnosis(&fakes[1], 6, false);
    answer_of(&call);
    listener_deinit(&call);
}

static double slowdown_of_rank_1(void)
{
    job_message *job = world_job(&world, id);
    double slowdown = job->n_slow_ranks > 0 ? job->slow_ranks[0]->slowdown : 0;
    if (job->n_slow_ranks > 0) ck_assert_uint_eq(job->slow_ranks[0]->rank, 1);
    message_free(job);
    return slowdown;
}

TEST(a_rank_that_is_slow_over_fifty_steps_is_named_until_it_recovers)
{
    uint64_t step = 0;
    world.options.limits.heartbeat_ms = 1;
    start();
    run_steps(&step, 1, 1);
    world_run(&world, 20); /* longer than five heartbeats */
    run_steps(&step, 49, 2);
    ck_assert_double_eq(slowdown_of_rank_1(), 0);
    run_steps(&step, 1, 2);
    ck_assert_double_eq_tol(slowdown_of_rank_1(), 2, 0.01);
    world_check_reached(&world, id, "SLOW_RANK",
                        "rank 1 (host/cpu:1) takes 0.002 s for its own part of a step, 2.00 times");
    world_run(&world, 20);
    run_steps(&step, 50, 1.4); /* not slow enough to be named, too slow to have recovered */
    ck_assert_double_eq_tol(slowdown_of_rank_1(), 1.4, 0.01);
    world_run(&world, 20);
    run_steps(&step, 50, 1.1);
    ck_assert_double_eq(slowdown_of_rank_1(), 0);
    world_check_reached(&world, id, "SLOW_RANK_RECOVERED", "rank 1 (host/cpu:1)");
}

/* Nothing can be many times as long as no time. */
TEST(no_rank_is_slow_while_the_median_rank_takes_no_time)
{
    uint64_t step = 0;
    world.options.limits.heartbeat_ms = 1;
    start();
    run_steps(&step, 1, 1);
    world_run(&world, 20);
    fakes[0].own_us -= 50 * 1000; /* what run_steps adds */
    run_steps(&step, 50, 3);
    ck_assert_double_eq(slowdown_of_rank_1(), 0);
}
