/*
 * Elastic jobs in the queue: which running jobs give workers to a waiting one, what each of them
 * has afterwards, and when they get them back. The workers are fakes: the test speaks for them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "test_queue_world.h"
#include "tests/testing.h"

enum { WORKERS = 6 };

static struct world world;
static struct fake fakes[WORKERS];
static int attached;

static void set_up(void)
{
    world_init(&world);
    world.options.shrink_elastic = true;
    world_start(&world);
    attached = 0;
}

static void tear_down(void)
{
    for (int i = 0; i < attached; i++) fake_deinit(&fakes[i]);
    world_deinit(&world);
}

static void attach(int count)
{
    static const char *const ids[WORKERS] = {"host/cpu:0", "host/cpu:1", "host/cpu:2",
                                             "host/cpu:3", "host/cpu:4", "host/cpu:5"};
    for (; attached < count; attached++)
        fake_attach(&world, &fakes[attached], ids[attached], 1000 + attached);
}

static char *submit_elastic(uint32_t workers, uint32_t least, int priority)
{
    job_spec spec = *world_spec(workers);
    Fsdpd__V1__TrainSpec train = *spec.train;
    Fsdpd__V1__ElasticSpec elastic = FSDPD__V1__ELASTIC_SPEC__INIT;
    train._global_batch_case = FSDPD__V1__TRAIN_SPEC___GLOBAL_BATCH_GLOBAL_BATCH;
    train.global_batch = 24;
    elastic._min_workers_case = FSDPD__V1__ELASTIC_SPEC___MIN_WORKERS_MIN_WORKERS;
    elastic.min_workers = least;
    elastic._max_workers_case = FSDPD__V1__ELASTIC_SPEC___MAX_WORKERS_MAX_WORKERS;
    elastic.max_workers = workers;
    spec.train = &train;
    spec.elastic = &elastic;
    spec.priority = priority;
    return queue_submit(&world, &spec, NULL);
}

/* The number of fakes whose latest assignment is this attempt of the job. */
static int count_ranks(const char *id, uint32_t attempt)
{
    int count = 0;
    for (int i = 0; i < attached; i++) {
        const Fsdpd__V1__Assignment *assignment = fakes[i].assignment;
        count += assignment != NULL && strcmp(assignment->job, id) == 0 &&
                 assignment->attempt == attempt;
    }
    return count;
}

static bool runs(const struct fake *fake, const char *id, uint32_t attempt)
{
    return fake->assignment != NULL && strcmp(fake->assignment->job, id) == 0 &&
           fake->assignment->attempt == attempt;
}

/* This attempt of the job has that many ranks, which begin to train. */
static void start_attempt(const char *id, uint32_t attempt, int ranks)
{
    WAIT(&world, count_ranks(id, attempt) == ranks);
    for (int i = 0; i < attached; i++)
        if (runs(&fakes[i], id, attempt)) {
            ck_assert_uint_eq(fakes[i].assignment->world, (uint32_t)ranks);
            fake_started(&fakes[i], 42);
        }
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
}

/* Every rank has the order to save and to end. */
static bool is_ordered_to_leave(const char *id, uint32_t attempt)
{
    int ordered = 0;
    for (int i = 0; i < attached; i++)
        ordered += runs(&fakes[i], id, attempt) && fakes[i].pauses > 0;
    return ordered > 0 && ordered == count_ranks(id, attempt);
}

/* The ranks have saved and end. */
static void leave(const char *id, uint32_t attempt)
{
    for (int i = 0; i < attached; i++) {
        if (!runs(&fakes[i], id, attempt)) continue;
        fakes[i].pauses = 0;
        fake_ended(&fakes[i], STATUS_CANCELLED, "PAUSED", "");
    }
}

static void finish(const char *id, uint32_t attempt)
{
    for (int i = 0; i < attached; i++)
        if (runs(&fakes[i], id, attempt)) fake_finished(&fakes[i], STATUS_OK, "");
    WAIT(&world, world_job_is(&world, id, JOB_SUCCEEDED));
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
        expect_ok(coordinator_reload(world.coordinator, &options));
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
