/*
 * Attempts that outlive a broken link and a coordinator: workers return with their attempts, and
 * nothing is lost, doubled or mixed up. The workers are fakes: the test speaks for them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/jobs/attempt.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

static struct world world;
static struct fake fakes[2];
static char *id;

static void set_up(void)
{
    world_init(&world);
    world.options.limits.reattach_ms = 3000;
    world_start(&world);
    id = world_start_running(&world, fakes);
}

static void tear_down(void)
{
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
    free(id);
    world_deinit(&world);
}

/* A stop that lets the job run, and another coordinator on the same directories. */
static void restart(void)
{
    world_stop(&world);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].closed);
    world_start(&world);
}

static void check_running(const char *code)
{
    world_check_reason(&world, id, JOB_RUNNING, code, "");
}

/* Expects a watcher's metrics at these steps, as text, and no gap in the sequences. */
static void expect_metrics(const char *expected)
{
    struct listener all;
    Fsdpd__V1__WatchJobRequest request = FSDPD__V1__WATCH_JOB_REQUEST__INIT;
    request.id = id;
    listener_open(&world, &all, &control_watch_job, &request, false);
    WAIT(&world, all.closed);
    char text[512] = "";
    for (int i = 0; i < all.count; i++) {
        const job_event *event = all.messages[i];
        ck_assert_uint_eq(event->sequence, (uint64_t)i + 1);
        if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_METRICS)
            sprintf(text + strlen(text), "%d ", (int)event->metrics->step);
    }
    ck_assert_str_eq(text, expected);
    listener_deinit(&all);
}

static bool reason_is(const char *code)
{
    job_message *job = world_job(&world, id);
    bool is = strcmp(job->reason->code, code) == 0;
    message_free(job);
    return is;
}

static void end_without_error(void)
{
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_OK, "");
    WAIT(&world, world_job_is(&world, id, JOB_SUCCEEDED));
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(stop_and_start)
{
    fake_metrics(&fakes[0], 10, 0.5);
    fake_metrics(&fakes[0], 20, 0.4);
    WAIT(&world, fakes[0].acknowledged == 3); /* on the disk within a second */
    fake_metrics(&fakes[0], 30, 0.3);
    world_run(&world, 100);
    restart();
    ck_assert_int_eq(fakes[0].cancels + fakes[1].cancels, 0);
    check_running("REATTACHING");

    fake_attach_again(&fakes[1], 1001, true, 0, NULL, 0);
    check_running("REATTACHING");
    /* Reports in flight are repeated, and count once. */
    fakes[0].report = 2;
    fake_attach_again(&fakes[0], 1000, true, 0, NULL, 0);
    ck_assert_uint_eq(fakes[0].acknowledged, 4);
    check_running("RUNNING");
    fake_metrics(&fakes[0], 20, 0.4);
    fake_metrics(&fakes[0], 30, 0.3);
    fake_metrics(&fakes[0], 40, 0.2);
    end_without_error();
    expect_metrics("10 20 30 40 ");
    WAIT(&world, fakes[0].releases == 1 && fakes[1].releases == 1);
}

TEST(it_ended_meanwhile)
{
    restart();
    fake_attach_again(&fakes[0], 1000, false, 0, NULL, 0);
    fake_metrics(&fakes[0], 90, 0.1);
    fake_finished(&fakes[0], STATUS_OK, "");
    fake_attach_again(&fakes[1], 1001, false, 0, NULL, 0);
    check_running("RUNNING");
    fake_finished(&fakes[1], STATUS_OK, "");
    WAIT(&world, world_job_is(&world, id, JOB_SUCCEEDED));
    WAIT(&world, fakes[0].releases == 1 && fakes[1].releases == 1);
    expect_metrics("90 ");
    /* The workers are free. */
    char *next = world_submit(&world, 2);
    WAIT(&world, fakes[1].assignments == 2);
    free(next);
}

/* One rank ended and the other still runs; the store was full when they started. */
LOOP_TEST(one_rank_started_and_ended_meanwhile, 0, 2)
{
    end_without_error();
    free(id);
    id = world_submit(&world, 2);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].assignments == 2);
    restart();
    for (int r = 0; r < 2; r++) fake_attach_again(&fakes[r], 1000 + r, r == _i, 0, NULL, 0);
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
    end_without_error();
}

/* Metrics that are recorded already are not recorded again. */
LOOP_TEST(it_started_meanwhile, 0, 2)
{
    end_without_error();
    free(id);
    id = world_submit(&world, 2);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].assignments == 2);
    restart();
    for (int r = 0; r < 2; r++) fake_attach_again(&fakes[r], 1000 + r, true, 0, NULL, 0);
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
    if (_i > 0) fake_metrics(&fakes[0], 20, 0.1);
    fake_resumed_unrecorded(&fakes[0], 42, 20);
    fake_started(&fakes[1], 42);
    fake_metrics(&fakes[0], 21, 0.1);
    end_without_error();
    expect_metrics("20 21 ");
    world_check_reached(&world, id, "RUNNING", "training on 2 workers");
}

TEST(a_link_that_breaks)
{
    fake_metrics(&fakes[0], 10, 0.5);
    fake_detach(&fakes[1]);
    WAIT(&world, reason_is("REATTACHING"));
    world_check_reason(&world, id, JOB_RUNNING, "REATTACHING",
                       "waits for rank 1 (host/cpu:1) to attach again");
    ck_assert_int_eq(fakes[0].cancels_at_once, 0);
    fake_attach_again(&fakes[1], 1001, true, 0, NULL, 0);
    check_running("RUNNING");
    fake_metrics(&fakes[0], 20, 0.4);
    end_without_error();
    expect_metrics("10 20 ");
}

/* While the job starts, and while it is about to end, too. */
TEST(reasons_while_ranks_are_missing)
{
    end_without_error();
    free(id);
    id = world_submit(&world, 2);
    for (int r = 0; r < 2; r++) {
        WAIT(&world, fakes[r].assignments == 2);
        fakes[r].sets_up = true;
    }
    fake_detach(&fakes[1]);
    WAIT(&world, reason_is("REATTACHING"));
    fake_attach_again(&fakes[1], 1001, true, 0, NULL, 0);
    world_check_reason(&world, id, JOB_STARTING, "STARTING", "2 workers set up the job");
    restart();
    world_check_reason(&world, id, JOB_STARTING, "REATTACHING",
                       "rank 0 (host/cpu:0), rank 1 (host/cpu:1)");
    for (int r = 0; r < 2; r++) {
        fake_attach_again(&fakes[r], 1000 + r, true, 0, NULL, 0);
        if (r == 0) world_check_reason(&world, id, JOB_STARTING, "REATTACHING", "rank 1");
    }
    world_check_reason(&world, id, JOB_STARTING, "STARTING", "2 workers set up the job");
    for (int r = 0; r < 2; r++) fake_started(&fakes[r], 42);
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));

    fake_detach(&fakes[0]);
    WAIT(&world, reason_is("REATTACHING"));
    expect_ok(world_cancel(&world, id));
    world_check_reason(&world, id, JOB_RUNNING, "REATTACHING", "; then: cancelled by ");
    fakes[0].sets_up = false;
    fake_attach_again(&fakes[0], 1000, true, 0, NULL, 0);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].cancels == 1);
    world_check_reason(&world, id, JOB_RUNNING, "CANCELLING", "cancelled by ");
    world_check_by(&world, id, "CANCELLING", true);
    restart();
    world_check_reason(&world, id, JOB_RUNNING, "REATTACHING", "; then: cancelled by ");
    for (int r = 0; r < 2; r++) fake_attach_again(&fakes[r], 1000 + r, true, 0, NULL, 0);
    WAIT(&world, reason_is("CANCELLING"));
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_CANCELLED, "");
    WAIT(&world, world_job_is(&world, id, JOB_CANCELLED));
}

/* The new link arrives before the end of the old one is known. */
TEST(two_links_of_one_worker)
{
    struct rpc_stream *old = fakes[0].stream;
    fake_attach_again(&fakes[0], 1000, true, 0, NULL, 0);
    ck_assert(fakes[0].stream != old);
    world_run(&world, 50); /* the coordinator closes the old one */
    check_running("RUNNING");
    end_without_error();
}

/* 0: after a broken link; 1: after a restart. */
LOOP_TEST(a_restarted_worker, 0, 2)
{
    if (_i == 1) restart();
    else fake_detach(&fakes[1]);
    if (_i == 1) fake_attach_again(&fakes[0], 1000, true, 0, NULL, 0);
    message_free(fakes[1].assignment);
    status_free(fakes[1].status);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1002);
    WAIT(&world, fakes[0].cancels_at_once == 1);
    fake_finished(&fakes[0], STATUS_ABORTED, "");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "WORKER_LOST",
                       "rank 1 (host/cpu:1) was lost: it restarted");
}

/* An assignment that was in flight when the coordinator died, or (1) when the link broke. */
LOOP_TEST(an_assignment_that_did_not_arrive, 0, 2)
{
    end_without_error();
    free(id);
    id = world_submit(&world, 2);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].assignments == 2);
    if (_i == 1) fake_detach(&fakes[1]);
    else restart();
    fakes[0].sets_up = true;
    if (_i == 0) fake_attach_again(&fakes[0], 1000, true, 0, NULL, 0);
    message_free(fakes[1].assignment);
    status_free(fakes[1].status);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    WAIT(&world, fakes[0].cancels_at_once == 1);
    fake_finished(&fakes[0], STATUS_ABORTED, "");
    WAIT(&world, fakes[0].assignments == 3 && fakes[1].assignments == 1);
    ck_assert_uint_eq(fakes[1].assignment->attempt, 2);
    world_check_reached(&world, id, "RETRYING", "had not received its assignment");
    for (int r = 0; r < 2; r++) fake_started(&fakes[r], 42);
    end_without_error();
}

LOOP_TEST(a_worker_that_does_not_come_back, 0, 2)
{
    world.options.limits.reattach_ms = 300;
    world.options.limits.kill_ms = 60000; /* a rank that must stop has the test's whole duration */
    if (_i == 1) {
        restart();
        fake_attach_again(&fakes[0], 1000, true, 0, NULL, 0);
    } else {
        world_reload(&world, &world.options);
        fake_detach(&fakes[1]);
    }
    WAIT(&world, fakes[0].cancels_at_once == 1);
    fake_finished(&fakes[0], STATUS_ABORTED, "");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "WORKER_LOST",
                       _i == 1 ? "rank 1 (host/cpu:1) did not attach again within 0.3 s"
                               : "and did not attach again within 0.3 s");
    /* When it attaches late, it gets the order to stop, and is busy until it has stopped. */
    fake_attach_again(&fakes[1], 1001, true, 0, NULL, 0);
    WAIT(&world, fakes[1].releases == 1);
    char *next = world_submit(&world, 2);
    world_run(&world, 100);
    ck_assert_int_eq(fakes[1].assignments, 1);
    fake_finished(&fakes[1], STATUS_ABORTED, "");
    WAIT(&world, fakes[1].assignments == 2);
    free(next);
}

/* An order that only one rank had when the coordinator disappeared reaches the other one. */
LOOP_TEST(orders_that_one_rank_lacks, 0, 2)
{
    Fsdpd__V1__PullOrder pull = FSDPD__V1__PULL_ORDER__INIT;
    Fsdpd__V1__Order orders[2], *tail[2];
    for (int i = 0; i < 2; i++) {
        fsdpd__v1__order__init(&orders[i]);
        orders[i].job = id;
        orders[i].attempt = 1;
        orders[i].sequence = (uint64_t)i + 4;
        orders[i].order_case = FSDPD__V1__ORDER__ORDER_PULL;
        orders[i].pull = &pull;
        tail[i] = &orders[i];
    }
    pull.pull = 77;
    restart();
    /* _i: whether the rank with more orders comes first. */
    int first = _i == 1 ? 1 : 0;
    for (int k = 0; k < 2; k++) {
        int r = k == 0 ? first : 1 - first;
        fakes[r].order_sequence = 0;
        fake_attach_again(&fakes[r], 1000 + r, true, r == 1 ? 5 : 4, tail, r == 1 ? 2 : 1);
        if (k == 0) { /* ordered meanwhile: it must not take the number */
            expect_ok(world_cancel(&world, id));
            world_run(&world, 50);
            ck_assert_int_eq(fakes[first].cancels, 0);
        }
    }
    for (int r = 0; r < 2; r++) {
        WAIT(&world, fakes[r].cancels == 1);
        ck_assert_uint_eq(fakes[r].order_sequence, 6);
    }
    ck_assert_int_eq(fakes[0].pulls, 1);
    ck_assert_uint_eq(fakes[0].pull, 77);
    ck_assert_int_eq(fakes[1].pulls, 0);
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_CANCELLED, "");
    WAIT(&world, world_job_is(&world, id, JOB_CANCELLED));
}

/* An acknowledged cancellation is carried out, whether its order arrived (1) or not (0). */
LOOP_TEST(cancelled_before_the_restart, 0, 2)
{
    expect_ok(world_cancel(&world, id));
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].cancels == 1);
    Fsdpd__V1__CancelOrder cancel = FSDPD__V1__CANCEL_ORDER__INIT;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT, *tail = &order;
    order.job = id;
    order.attempt = 1;
    order.sequence = 1;
    order.order_case = FSDPD__V1__ORDER__ORDER_CANCEL;
    order.cancel = &cancel;
    restart();
    for (int r = 0; r < 2; r++)
        fake_attach_again(&fakes[r], 1000 + r, true, (uint64_t)_i, &tail, (size_t)_i);
    if (_i == 0)
        for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].cancels == 2);
    world_check_reason(&world, id, JOB_RUNNING, "CANCELLING", "");
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_CANCELLED, "");
    WAIT(&world, world_job_is(&world, id, JOB_CANCELLED));
    world_check_reason(&world, id, JOB_CANCELLED, "CANCELLED", "cancelled by ");
    world_check_by(&world, id, "CANCELLED", true);
}

/* How many orders ranks had when the store got this reason for their end; -1: it has not. */
static int64_t ordered_before;
static const char *awaited_code;
static const struct job_clients *real_clients;

static void note_event(struct job *job, const job_event *event)
{
    if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_STATE &&
        strcmp(event->state->reason->code, awaited_code) == 0 && ordered_before < 0)
        ordered_before = (int64_t)job->attempt->orders.last;
    real_clients->event(job, event);
}

/* A coordinator that is killed between the two must not find ranks that ended by an order of which
 * the store does not know why it was given. */
LOOP_TEST(stored_before_it_is_ordered, 0, 3)
{
    static const char *const codes[] = {"CANCELLING", "PAUSING", "VACATING"};
    awaited_code = codes[_i];
    ordered_before = -1;
    real_clients = world.coordinator->clients;
    struct job_clients clients = *real_clients;
    clients.event = note_event;
    world.coordinator->clients = &clients;
    struct listener pause_call;
    Fsdpd__V1__PauseJobRequest pause = FSDPD__V1__PAUSE_JOB_REQUEST__INIT;
    pause.id = id;
    Fsdpd__V1__DrainWorkersRequest drain = FSDPD__V1__DRAIN_WORKERS_REQUEST__INIT;
    drain.worker = (char *)"host/cpu:1";
    drain.now = true;
    if (_i == 0) expect_ok(world_cancel(&world, id));
    if (_i == 1) listener_open(&world, &pause_call, &control_pause_job, &pause, false);
    if (_i == 2) expect_ok(world_call(&world, &control_drain_workers, &drain, NULL));
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].cancels + fakes[r].pauses == 1);
    ck_assert_int_eq(ordered_before, 0);
    world.coordinator->clients = real_clients;
    if (_i != 1) return;
    for (int r = 0; r < 2; r++) fake_ended(&fakes[r], STATUS_CANCELLED, "PAUSED", "");
    WAIT(&world, pause_call.closed);
    listener_deinit(&pause_call);
}

/* The first coordinator was killed before it stored the cancellation, and ranks have the order. A
 * second request is stored, too, although there is nothing left to order. */
TEST(cancelled_again_after_the_restart)
{
    Fsdpd__V1__CancelOrder cancel = FSDPD__V1__CANCEL_ORDER__INIT;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT, *tail = &order;
    order.job = id;
    order.attempt = 1;
    order.sequence = 1;
    order.order_case = FSDPD__V1__ORDER__ORDER_CANCEL;
    order.cancel = &cancel;
    restart();
    for (int r = 0; r < 2; r++) fake_attach_again(&fakes[r], 1000 + r, true, 1, &tail, 1);
    expect_ok(world_cancel(&world, id));
    world_check_reason(&world, id, JOB_RUNNING, "CANCELLING", "cancelled by ");
    restart();
    for (int r = 0; r < 2; r++) fake_attach_again(&fakes[r], 1000 + r, false, 0, NULL, 0);
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_CANCELLED, "");
    WAIT(&world, world_job_is(&world, id, JOB_CANCELLED));
}

/* A rank was lost, and the job would be tried again: its user does not want that. */
TEST(cancelled_while_the_attempt_ends)
{
    end_without_error();
    free(id);
    job_spec spec = *world_spec(2);
    Fsdpd__V1__RetrySpec retry = FSDPD__V1__RETRY_SPEC__INIT;
    retry.machine_failures = 3;
    spec.retry = &retry;
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = &spec;
    void *response = NULL;
    expect_ok(world_call(&world, &control_submit_job, &request, &response));
    id = mem_strdup(((job_message *)response)->id);
    message_free(response);
    for (int r = 0; r < 2; r++) {
        WAIT(&world, fakes[r].assignments == 2);
        fake_started(&fakes[r], 42);
    }
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
    fake_finished(&fakes[1], STATUS_UNAVAILABLE, "its link broke");
    WAIT(&world, fakes[0].cancels_at_once == 1);
    expect_ok(world_cancel(&world, id));
    fake_finished(&fakes[0], STATUS_ABORTED, "");
    WAIT(&world, world_job_is(&world, id, JOB_CANCELLED));
    world_check_by(&world, id, "CANCELLED", true);
}

/* A user's pause in progress continues after a restart, whether its order arrived (1) or not (0);
 * also one that then fails (2), or is cancelled by its user (3). */
LOOP_TEST(paused_before_the_restart, 0, 4)
{
    struct listener pause_call;
    Fsdpd__V1__PauseJobRequest request = FSDPD__V1__PAUSE_JOB_REQUEST__INIT;
    request.id = id;
    listener_open(&world, &pause_call, &control_pause_job, &request, false);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].pauses == 1);
    Fsdpd__V1__CheckpointOrder pause = FSDPD__V1__CHECKPOINT_ORDER__INIT;
    pause.number = fakes[0].checkpoint;
    pause.pause = true;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT, *tail = &order;
    order.job = id;
    order.attempt = 1;
    order.sequence = 1;
    order.order_case = FSDPD__V1__ORDER__ORDER_CHECKPOINT;
    order.checkpoint = &pause;
    size_t had = _i == 0 ? 0 : 1;
    restart();
    WAIT(&world, pause_call.closed);
    listener_deinit(&pause_call);
    world_check_reason(&world, id, JOB_RUNNING, "REATTACHING", "; then: takes a checkpoint");
    if (_i == 1) { /* and one more coordinator */
        restart();
        world_check_reason(&world, id, JOB_RUNNING, "REATTACHING", "rank 0");
    }
    for (int r = 0; r < 2; r++) fake_attach_again(&fakes[r], 1000 + r, true, had, &tail, had);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].pauses == 2); /* some may lack it */
    check_running("PAUSING");
    if (_i == 2) {
        fake_checkpoint(&fakes[0], fakes[0].checkpoint, 7, STATUS_RESOURCE_EXHAUSTED, "disk full",
                        NULL);
        WAIT(&world, !reason_is("PAUSING"));
        world_check_reason(&world, id, JOB_RUNNING, "RUNNING", "could not be paused: disk full");
        world_check_by(&world, id, "RUNNING", false);
        end_without_error();
        world_check_by(&world, id, "DONE", false);
        return;
    }
    if (_i == 3) expect_ok(world_cancel(&world, id));
    for (int r = 0; r < 2; r++) fake_ended(&fakes[r], STATUS_CANCELLED, "PAUSED", "");
    WAIT(&world, world_job_is(&world, id, _i == 3 ? JOB_CANCELLED : JOB_PAUSED));
    world_check_by(&world, id, _i == 3 ? "CANCELLED" : "PAUSED", true);
}

/* After a restart the reason of an attempt's end is known: with a checkpoint (0), at once (1), and
 * cancelled when the order did not arrive (2), with the ranks back without it; at once, which the
 * store does not know, as the disk was full (3). */
LOOP_TEST(drained_before_the_restart, 0, 4)
{
    Fsdpd__V1__DrainWorkersRequest request = FSDPD__V1__DRAIN_WORKERS_REQUEST__INIT;
    request.worker = (char *)"host/cpu:1";
    request.now = true;
    expect_ok(world_call(&world, &control_drain_workers, &request, NULL));
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].pauses == 1);
    bool known = _i == 1 || _i == 2; /* that they end at once */
    if (known) {
        expect_ok(world_call(&world, &control_drain_workers, &request, NULL));
        for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].cancels == 1);
    }
    Fsdpd__V1__CheckpointOrder pause = FSDPD__V1__CHECKPOINT_ORDER__INIT;
    pause.number = fakes[0].checkpoint;
    pause.pause = true;
    Fsdpd__V1__CancelOrder cancel = FSDPD__V1__CANCEL_ORDER__INIT;
    Fsdpd__V1__Order orders[2], *tail[2] = {&orders[0], &orders[1]};
    for (int i = 0; i < 2; i++) {
        fsdpd__v1__order__init(&orders[i]);
        orders[i].job = id;
        orders[i].attempt = 1;
        orders[i].sequence = (uint64_t)i + 1;
    }
    orders[0].order_case = FSDPD__V1__ORDER__ORDER_CHECKPOINT;
    orders[0].checkpoint = &pause;
    orders[1].order_case = FSDPD__V1__ORDER__ORDER_CANCEL;
    orders[1].cancel = &cancel;
    size_t had = _i == 1 ? 2 : _i == 2 ? 0 : 1;
    restart();
    for (int r = 0; r < 2; r++) fake_attach_again(&fakes[r], 1000 + r, true, had, tail, had);
    world_check_reason(&world, id, JOB_RUNNING, known ? "CANCELLING" : "VACATING",
                       "worker host/cpu:1 was drained by ");
    if (_i == 2)
        for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].cancels == 2);
    for (int r = 0; r < 2; r++)
        if (_i == 0) fake_ended(&fakes[r], STATUS_CANCELLED, "PAUSED", "");
        else fake_finished(&fakes[r], STATUS_CANCELLED, "");
    int end = _i == 0 ? JOB_QUEUED : JOB_FAILED; /* machines may not fail it */
    WAIT(&world, world_job_is(&world, id, end));
    Fsdpd__V1__GetHistoryRequest asked = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    asked.id = id;
    void *response = NULL;
    expect_ok(world_call(&world, &control_get_history, &asked, &response));
    const Fsdpd__V1__GetHistoryResponse *history = response;
    bool recorded = false;
    for (size_t i = 0; i < history->n_entries; i++) {
        const Fsdpd__V1__Reason *reason = history->entries[i]->reason;
        recorded =
            recorded || (strcmp(reason->code, "WORKER_DRAINED") == 0 &&
                         strncmp(reason->message, "worker host/cpu:1 was drained by ", 33) == 0);
    }
    ck_assert(recorded);
    message_free(response);
    world_check_by(&world, id, "WORKER_DRAINED", true);
}

/* A change of units ordered before, and done after, is in the job's record. */
TEST(units_that_changed_meanwhile)
{
    Fsdpd__V1__WrapSpec wrap = FSDPD__V1__WRAP_SPEC__INIT;
    wrap.policy = FSDPD__V1__WRAP_POLICY__WRAP_POLICY_SIZE;
    Fsdpd__V1__ModuleTypes none = FSDPD__V1__MODULE_TYPES__INIT;
    wrap.force_leaf = wrap.exclude = &none;
    wrap.min_num_params = 20000;
    wrap._min_num_params_case = FSDPD__V1__WRAP_SPEC___MIN_NUM_PARAMS_MIN_NUM_PARAMS;
    Fsdpd__V1__SetWrapOrder change = FSDPD__V1__SET_WRAP_ORDER__INIT;
    change.change = 9;
    change.wrap = &wrap;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT, *tail = &order;
    order.job = id;
    order.attempt = 1;
    order.sequence = 1;
    order.order_case = FSDPD__V1__ORDER__ORDER_WRAP;
    order.wrap = &change;
    restart();
    for (int r = 0; r < 2; r++) fake_attach_again(&fakes[r], 1000 + r, true, 1, &tail, 1);
    fakes[0].wrap = 9;
    fake_wrap(&fakes[0], 7, STATUS_OK, "");
    job_message *job = NULL;
    do {
        message_free(job);
        world_run(&world, 20);
        job = world_job(&world, id);
    } while (job->chosen == NULL);
    ck_assert_int_eq(job->chosen->wrap->policy, FSDPD__V1__WRAP_POLICY__WRAP_POLICY_SIZE);
    message_free(job);
    end_without_error();
}

/* Metrics that the worker had to thin are a gap that watchers see. */
TEST(thinned_metrics)
{
    fake_detach(&fakes[0]);
    fake_attach_again(&fakes[0], 1000, true, 0, NULL, 0);
    fake_thinned(&fakes[0], 30, 5);
    end_without_error();
    struct listener all;
    Fsdpd__V1__WatchJobRequest request = FSDPD__V1__WATCH_JOB_REQUEST__INIT;
    request.id = id;
    listener_open(&world, &all, &control_watch_job, &request, false);
    WAIT(&world, all.closed);
    uint64_t dropped = 0;
    for (int i = 0; i < all.count; i++) {
        const job_event *event = all.messages[i];
        if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_DROPPED)
            dropped += event->dropped->metrics;
    }
    ck_assert_uint_eq(dropped, 5);
    listener_deinit(&all);
}

/* An upgrade: the previous version's worker finishes its attempt, then leaves. */
TEST(another_version)
{
    restart();
    fakes[0].version = fakes[1].version = "0.0.1";
    for (int r = 0; r < 2; r++) fake_attach_again(&fakes[r], 1000 + r, true, 0, NULL, 0);
    ck_assert(fakes[0].welcome && fakes[1].welcome);
    check_running("RUNNING");
    ck_assert(!fakes[0].drained);
    end_without_error();
    WAIT(&world, fakes[0].drained && fakes[1].drained);
    /* Without an attempt of ours it is refused. */
    fake_detach(&fakes[0]);
    fake_attach_again(&fakes[0], 1000, false, 0, NULL, 0);
    WAIT(&world, fakes[0].closed);
    expect_status(fakes[0].status, STATUS_FAILED_PRECONDITION, "0.0.1");
    fakes[0].status = NULL;
}

TEST(heartbeats_are_answered)
{
    fake_heartbeat(&fakes[0], 5);
    WAIT(&world, fakes[0].heartbeats_answered == 1);
    end_without_error();
}
