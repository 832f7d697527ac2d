/*
 * Elastic jobs in the queue: which running jobs give workers to a waiting one, what each of them
 * has afterwards, and when they get them back. The workers are fakes: the test speaks for them.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/mem.h"
#include "test_queue_fakes.h"
#include "tests/testing.h"

static void set_up(void)
{
    world_init(&world);
    world.options.shrink_elastic = true;
    world_start(&world);
    attached = 0;
}

static void resize(const char *id, uint32_t workers)
{
    Fsdpd__V1__ResizeJobRequest request = FSDPD__V1__RESIZE_JOB_REQUEST__INIT;
    request.id = (char *)id;
    request.workers = workers;
    expect_ok(world_call(&world, &control_resize_job, &request, NULL));
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

/* It makes room, runs beside the other, and has all workers again afterwards. */
TEST(shrinks_and_grows)
{
    attach(4);
    char *elastic = submit_elastic(4, 2, 0);
    start_attempt(elastic, 1, 4);
    char *other = queue_submit_priority(&world, 1, 5);
    WAIT(&world, is_ordered_to_leave(elastic, 1));
    world_check_reason(&world, elastic, JOB_RUNNING, "RESIZING",
                       "shrunk from 4 to 3 workers for mnist-2, which has a higher priority: takes "
                       "a checkpoint at its next step boundary, then continues");
    leave(elastic, 1);
    start_attempt(elastic, 2, 3);
    start_attempt(other, 1, 1);
    world_check_reached(&world, elastic, "RESIZING",
                        "shrunk from 4 to 3 workers for mnist-2, which has a higher priority; "
                        "continues from step ");
    world_check_reached(&world, elastic, "RUNNING", "; 4 workers before, 0 steps lost, ");
    world_check_by(&world, elastic, "RESIZING", false);
    finish(other, 1);
    WAIT(&world, is_ordered_to_leave(elastic, 2));
    leave(elastic, 2);
    start_attempt(elastic, 3, 4);
    world_check_reached(&world, elastic, "RESIZING", "resized from 3 to 4 workers");
    finish(elastic, 3);
    free(elastic), free(other);
}

/* Neither without the option (0), nor for a job of equal (1) or lower (2) priority, nor if there is
 * still no room with as few workers as possible (3). */
LOOP_TEST(does_not_shrink, 0, 4)
{
    static const struct {
        int workers, priority;
    } others[] = {{1, 5}, {1, 0}, {1, -5}, {3, 5}};
    if (_i == 0) {
        struct coordinator_options options = world.options;
        options.shrink_elastic = false;
        world_reload(&world, &options);
    }
    attach(4);
    char *elastic = submit_elastic(4, 2, 0);
    start_attempt(elastic, 1, 4);
    char *other = queue_submit_priority(&world, (uint32_t)others[_i].workers, others[_i].priority);
    world_check_reason(&world, other, JOB_QUEUED, "QUEUED", "1st; waits for ");
    world_run(&world, 50);
    world_check_reason(&world, elastic, JOB_RUNNING, "RUNNING", "training on 4 workers");
    finish(elastic, 1);
    start_attempt(other, 1, others[_i].workers);
    finish(other, 1);
    free(elastic), free(other);
}

/* The job of the lowest priority first, and of equals the youngest. */
LOOP_TEST(who_shrinks_first, 0, 2)
{
    attach(6);
    char *old = submit_elastic(3, 1, _i == 0 ? 1 : 0), *young = submit_elastic(3, 2, 1);
    char *first = _i == 0 ? young : old, *second = _i == 0 ? old : young;
    start_attempt(old, 1, 3);
    start_attempt(young, 1, 3);
    char *other = queue_submit_priority(&world, 3, 5);
    WAIT(&world, is_ordered_to_leave(first, 1) && is_ordered_to_leave(second, 1));
    world_check_reason(&world, old, JOB_RUNNING, "RESIZING",
                       "shrunk from 3 to 1 worker for mnist-3");
    world_check_reason(&world, young, JOB_RUNNING, "RESIZING",
                       "shrunk from 3 to 2 workers for mnist-3");
    leave(first, 1);
    start_attempt(first, 2, _i == 0 ? 2 : 1);
    leave(second, 1);
    start_attempt(second, 2, _i == 0 ? 1 : 2);
    start_attempt(other, 1, 3);
    expect_ok(world_cancel(&world, old));
    free(old), free(young), free(other);
}

/* One of the lowest priority is enough: the other keeps its workers. */
TEST(only_those_that_must_shrink)
{
    attach(6);
    char *low = submit_elastic(3, 1, 0), *high = submit_elastic(3, 1, 1);
    start_attempt(low, 1, 3);
    start_attempt(high, 1, 3);
    char *other = queue_submit_priority(&world, 2, 5);
    WAIT(&world, is_ordered_to_leave(low, 1));
    leave(low, 1);
    start_attempt(low, 2, 1);
    start_attempt(other, 1, 2);
    world_check_reason(&world, high, JOB_RUNNING, "RUNNING", "training on 3 workers");
    free(low), free(high), free(other);
}

/* Jobs of higher priority that wait for more than the room that was made do not take the workers
 * that the elastic job keeps. */
TEST(keeps_its_least)
{
    attach(4);
    char *elastic = submit_elastic(4, 2, 0);
    start_attempt(elastic, 1, 4);
    char *other = queue_submit_priority(&world, 2, 5), *next = queue_submit_priority(&world, 2, 5);
    WAIT(&world, is_ordered_to_leave(elastic, 1));
    leave(elastic, 1);
    start_attempt(elastic, 2, 2);
    start_attempt(other, 1, 2);
    world_check_reason(&world, next, JOB_QUEUED, "QUEUED", "1st; waits for 2 of 2 cpu workers");
    finish(other, 1);
    start_attempt(next, 1, 2);
    world_check_reason(&world, elastic, JOB_RUNNING, "RUNNING", "training on 2 workers");
    finish(next, 1);
    WAIT(&world, is_ordered_to_leave(elastic, 2));
    leave(elastic, 2);
    start_attempt(elastic, 3, 4);
    free(elastic), free(other), free(next);
}

/* The job for which it shrinks is cancelled meanwhile: it continues with all workers. */
TEST(nothing_to_shrink_for)
{
    attach(4);
    char *elastic = submit_elastic(4, 2, 0);
    start_attempt(elastic, 1, 4);
    char *other = queue_submit_priority(&world, 2, 5);
    WAIT(&world, is_ordered_to_leave(elastic, 1));
    expect_ok(world_cancel(&world, other));
    leave(elastic, 1);
    start_attempt(elastic, 2, 4);
    free(elastic), free(other);
}

/* The elastic job is cancelled while it shrinks. */
TEST(cancelled_while_it_shrinks)
{
    attach(4);
    char *elastic = submit_elastic(4, 2, 0);
    start_attempt(elastic, 1, 4);
    char *other = queue_submit_priority(&world, 2, 5);
    WAIT(&world, is_ordered_to_leave(elastic, 1));
    expect_ok(world_cancel(&world, elastic));
    leave(elastic, 1);
    WAIT(&world, world_job_is(&world, elastic, JOB_CANCELLED));
    world_check_by(&world, elastic, "CANCELLED", true);
    start_attempt(other, 1, 2);
    free(elastic), free(other);
}

/* A restarted coordinator carries the change out, and the history says why. */
TEST(restarted_while_it_shrinks)
{
    attach(4);
    char *elastic = submit_elastic(4, 2, 0);
    start_attempt(elastic, 1, 4);
    char *other = queue_submit_priority(&world, 2, 5);
    WAIT(&world, is_ordered_to_leave(elastic, 1));
    Fsdpd__V1__CheckpointOrder pause = FSDPD__V1__CHECKPOINT_ORDER__INIT;
    pause.number = fakes[0].checkpoint;
    pause.pause = true;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT, *tail = &order;
    order.job = elastic;
    order.attempt = 1;
    order.sequence = 1;
    order.order_case = FSDPD__V1__ORDER__ORDER_CHECKPOINT;
    order.checkpoint = &pause;
    world_stop(&world);
    for (int r = 0; r < 4; r++) WAIT(&world, fakes[r].closed);
    world_start(&world);
    for (int r = 0; r < 4; r++) fake_attach_again(&fakes[r], 1000 + r, true, 1, &tail, 1);
    world_check_reason(&world, elastic, JOB_RUNNING, "RESIZING", "shrunk from 4 to 2 workers");
    leave(elastic, 1);
    start_attempt(elastic, 2, 2);
    start_attempt(other, 1, 2);
    world_check_reached(&world, elastic, "RESIZING",
                        "shrunk from 4 to 2 workers for mnist-2, which has a higher priority; "
                        "continues from step ");
    free(elastic), free(other);
}

/* A worker is drained: that, and not a change of the job's size, is why it continues with three. */
TEST(a_worker_is_drained)
{
    attach(4);
    char *elastic = submit_elastic(4, 2, 0);
    start_attempt(elastic, 1, 4);
    Fsdpd__V1__DrainWorkersRequest drain = FSDPD__V1__DRAIN_WORKERS_REQUEST__INIT;
    drain.worker = (char *)"host/cpu:1";
    drain.now = true;
    expect_ok(world_call(&world, &control_drain_workers, &drain, NULL));
    WAIT(&world, is_ordered_to_leave(elastic, 1));
    leave(elastic, 1);
    start_attempt(elastic, 2, 3);
    ck_assert(!runs(&fakes[1], elastic, 2));
    world_check_reached(&world, elastic, "WORKER_DRAINED",
                        "worker host/cpu:1 was drained by ");
    finish(elastic, 2);
    free(elastic);
}

/* A worker that is away cannot save its shards: the job shrinks when it is back. */
TEST(does_not_shrink_while_a_worker_is_away)
{
    struct coordinator_options options = world.options;
    options.limits.reattach_ms = 3600000;
    world_reload(&world, &options);
    attach(4);
    char *elastic = submit_elastic(4, 2, 0);
    start_attempt(elastic, 1, 4);
    fake_detach(&fakes[3]);
    char *other = queue_submit_priority(&world, 1, 5);
    world_check_reason(&world, other, JOB_QUEUED, "QUEUED", "1st; waits for ");
    resize(elastic, 3);
    for (int r = 0; r < 3; r++) ck_assert_int_eq(fakes[r].checkpoints, 0);
    fake_attach_again(&fakes[3], 1003, true, 0, NULL, 0);
    WAIT(&world, is_ordered_to_leave(elastic, 1));
    leave(elastic, 1);
    start_attempt(elastic, 2, 3);
    start_attempt(other, 1, 1);
    free(elastic), free(other);
}

/* ---- workers of other hosts, and no directory that all of them share ---- */

static struct rpc_channel *local;

/* The coordinator serves TCP as well, and fakes that attach from now on use that. */
static void move_away(void)
{
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof place;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&place, size), 0);
    ck_assert_int_eq(listen(fd, 16), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&place, &size), 0);
    world_stop(&world);
    world.options.sockets[0] = fd;
    world.options.socket_count = 1;
    world.options.insecure_tcp = true;
    world_start(&world);
    local = world.channel;
    char *address = mem_printf("127.0.0.1:%d", ntohs(place.sin_port));
    expect_ok(rpc_channel_new(world.runtime, address,
                              &(struct rpc_channel_security){.insecure_tcp = true},
                              &world.channel));
    free(address);
}

static void on_closed(void *user)
{
    *(bool *)user = true;
}

static void set_up_remote(void)
{
    set_up();
    move_away();
    attach(4);
    struct rpc_channel *remote = world.channel;
    world.channel = local;
    local = remote;
}

static void tear_down_remote(void)
{
    bool closed = false;
    for (int i = 0; i < attached; i++) fake_deinit(&fakes[i]);
    attached = 0;
    rpc_channel_close(local, on_closed, &closed);
    WAIT(&world, closed);
    tear_down();
}

TESTS_BELOW(.timeout = 60, .set_up = set_up_remote, .tear_down = tear_down_remote);

/* Then a mirror or a parity is enough for one worker less at a time, and copies for any number;
 * without redundancy the job keeps its workers. */
LOOP_TEST(resizes_by_what_memory_has, 0, 4)
{
    static const struct {
        Fsdpd__V1__Redundancy redundancy;
        const char *code, *words;
    } cases[] = {
        {FSDPD__V1__REDUNDANCY__REDUNDANCY_NONE, "RUNNING", "training on 4 workers"},
        {FSDPD__V1__REDUNDANCY__REDUNDANCY_MIRROR, "RESIZING", "resized from 4 to 3 workers by "},
        {FSDPD__V1__REDUNDANCY__REDUNDANCY_PARITY, "RESIZING", "resized from 4 to 3 workers by "},
        {FSDPD__V1__REDUNDANCY__REDUNDANCY_REPLICA, "RESIZING", "resized from 4 to 2 workers by "},
    };
    char *elastic = submit_redundant(4, 1, 0, cases[_i].redundancy);
    start_attempt(elastic, 1, 4);
    resize(elastic, 2);
    world_check_reason(&world, elastic, JOB_RUNNING, cases[_i].code, cases[_i].words);
    if (_i > 0) WAIT(&world, is_ordered_to_leave(elastic, 1));
    free(elastic);
}

/* It gives no workers to a job of higher priority: they would come back one at a time. */
TEST(does_not_shrink_without_a_place_for_checkpoints)
{
    char *elastic = submit_redundant(4, 1, 0, FSDPD__V1__REDUNDANCY__REDUNDANCY_MIRROR);
    start_attempt(elastic, 1, 4);
    char *other = queue_submit_priority(&world, 2, 5);
    world_check_reason(&world, other, JOB_QUEUED, "QUEUED", "1st; waits for ");
    world_check_reason(&world, elastic, JOB_RUNNING, "RUNNING", "training on 4 workers");
    finish(elastic, 1);
    start_attempt(other, 1, 2);
    free(elastic), free(other);
}

/* ---- hosts that cannot reach each other ---- */

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

static void attach_hosts(void)
{
    static const char *const ids[] = {"a/cpu:0", "b/cpu:0", "c/cpu:0"};
    for (; attached < 3; attached++)
        fake_attach(&world, &fakes[attached], ids[attached], 1000 + attached);
}

/* The third worker could not connect to the first one. */
static void fail_to_connect(const char *id, uint32_t attempt)
{
    WAIT(&world, count_ranks(id, attempt) == 3);
    fakes[2].unreached = fakes[0].assignment->rank + 1;
    fake_finished(&fakes[2], STATUS_DEADLINE_EXCEEDED, "rank 2 cannot reach rank 0");
    fakes[2].unreached = 0;
    for (int i = 0; i < 2; i++) fake_finished(&fakes[i], STATUS_ABORTED, "rank 2 failed");
}

/* One listens, the other connects, with this result. */
static void answer_probe(int probes, enum status_code code)
{
    WAIT(&world, fakes[0].probes == probes);
    ck_assert_uint_eq(fakes[0].probe_port, 0);
    fake_probed(&fakes[0], STATUS_OK, 4711);
    WAIT(&world, fakes[2].probes == probes);
    ck_assert_uint_eq(fakes[2].probe_port, 4711);
    fake_probed(&fakes[2], code, 0);
}

static void check_unreachable(const char *first, const char *last)
{
    Fsdpd__V1__ListWorkersRequest request = FSDPD__V1__LIST_WORKERS_REQUEST__INIT;
    void *answer;
    expect_ok(world_call(&world, &control_list_workers, &request, &answer));
    const Fsdpd__V1__ListWorkersResponse *list = answer;
    const char *expected[] = {first, NULL, last};
    for (size_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(list->workers[i]->n_unreachable, expected[i] != NULL);
        if (expected[i] != NULL)
            ck_assert_str_eq(list->workers[i]->unreachable[0], expected[i]);
    }
    message_free(answer);
}

/* It continues without one end of the pair, and with it when both are seen to connect. */
TEST(a_job_without_one_end_of_a_pair)
{
    attach_hosts();
    char *id = submit_elastic(3, 2, 0);
    fail_to_connect(id, 1);
    start_attempt(id, 2, 2);
    ck_assert(runs(&fakes[0], id, 2) && runs(&fakes[1], id, 2));
    world_check_reached(&world, id, "RETRYING", "rank 2 cannot reach rank 0");
    check_unreachable("c", "a");
    answer_probe(1, STATUS_DEADLINE_EXCEEDED);
    answer_probe(2, STATUS_OK);
    WAIT(&world, is_ordered_to_leave(id, 2));
    check_unreachable(NULL, NULL);
    leave(id, 2);
    start_attempt(id, 3, 3);
    finish(id, 3);
    free(id);
}

static bool waits_for_workers(const char *id)
{
    job_message *job = world_job(&world, id);
    bool waits = strcmp(job->reason->code, "WAITING_FOR_WORKERS") == 0;
    message_free(job);
    return waits;
}

/* A job that needs both ends waits, others are placed apart, and its budget is untouched. */
TEST(jobs_apart_from_a_pair)
{
    attach_hosts();
    char *all = queue_submit_priority(&world, 3, 0);
    fail_to_connect(all, 1);
    WAIT(&world, waits_for_workers(all));
    world_check_reason(&world, all, JOB_QUEUED, "WAITING_FOR_WORKERS",
                       "1st; needs 3 cpu workers, and of the 3 that are attached only 2 can reach "
                       "each other: c and a cannot reach each other");
    char *two = queue_submit_priority(&world, 2, 0), *one = queue_submit_priority(&world, 1, 0);
    start_attempt(two, 1, 2);
    ck_assert(runs(&fakes[1], two, 1));
    start_attempt(one, 1, 1);
    finish(two, 1);
    finish(one, 1);
    answer_probe(1, STATUS_OK);
    start_attempt(all, 2, 3);
    finish(all, 2);
    free(all), free(two), free(one);
}
