/*
 * Preemption: which running jobs give all their workers to a waiting job, what they wait for
 * afterwards, and what a restarted coordinator knows of it. The workers are fakes: the test speaks
 * for them.
 */
#include "coordinator/scheduler/preempting.h"
#include "test_queue_fakes.h"
#include "tests/testing.h"

/* ---- the choice ---- */

/* "3 1": the numbers of those that are chosen, in order of the list; "": they are not enough. */
static void check_choice(const struct preempting_victim *jobs, int count, int workers,
                         const char *answer)
{
    struct preempting_victim victims[8];
    char text[32] = "";
    memcpy(victims, jobs, (size_t)count * sizeof *victims);
    int chosen = preempting_choose(victims, count, workers);
    for (int i = 0; i < count; i++) /* each is still there once */
        for (int v = 0, found = 0; v <= count; v++) {
            if (v < count) found += victims[v].lost_ms == jobs[i].lost_ms;
            else ck_assert_int_eq(found, 1);
        }
    for (int i = 0; i < count; i++)
        for (int v = 0; v < chosen; v++)
            if (victims[v].lost_ms == jobs[i].lost_ms)
                snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d",
                         text[0] != '\0' ? " " : "", i);
    ck_assert_str_eq(text, answer);
}

TEST(the_cheapest_victims)
{
    const struct preempting_victim jobs[] = {{.priority = 1, .lost_ms = 5, .workers = 2},
                                             {.priority = 0, .lost_ms = 30, .workers = 2},
                                             {.priority = 0, .lost_ms = 20, .workers = 4},
                                             {.priority = 0, .lost_ms = 10, .workers = 1}};
    check_choice(jobs, 4, 1, "3"); /* the lowest priority, and of these the least time */
    check_choice(jobs, 4, 2, "2"); /* the first two would do, but the second alone does, too */
    check_choice(jobs, 4, 5, "2 3");
    check_choice(jobs, 4, 6, "1 2");
    check_choice(jobs, 4, 7, "1 2 3");
    check_choice(jobs, 4, 9, "0 1 2 3");
    check_choice(jobs, 4, 10, ""); /* all together are too few: none */
    check_choice(jobs, 0, 1, "");
}

/* ---- a real one ---- */

static void set_up(void)
{
    world_init(&world);
    world.options.preempt = true;
    world.options.limits.preempt_ms = 3600000;
    world_start(&world);
    attached = 0;
}

static char *submit(uint32_t workers, int priority, uint32_t every_steps)
{
    job_spec spec = *world_spec(workers);
    Fsdpd__V1__CheckpointSpec checkpoint = *spec.checkpoint;
    checkpoint._every_steps_case = FSDPD__V1__CHECKPOINT_SPEC___EVERY_STEPS_EVERY_STEPS;
    checkpoint.every_steps = every_steps;
    spec.checkpoint = &checkpoint;
    spec.priority = priority;
    return queue_submit(&world, &spec, NULL);
}

static void allow_again(int milliseconds)
{
    struct coordinator_options options = world.options;
    options.limits.preempt_ms = milliseconds;
    world_reload(&world, &options);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

/* It saves, waits for its turn, and is not preempted again for a while. */
TEST(is_preempted_once)
{
    attach(2);
    char *low = submit(2, 0, 10);
    start_attempt(low, 1, 2);
    char *high = submit(2, 5, 10);
    WAIT(&world, is_ordered_to_leave(low, 1));
    world_check_reason(&world, low, JOB_RUNNING, "PREEMPTING",
                       "preempted for mnist-2, which has a higher priority: takes a checkpoint at "
                       "its next step boundary, then waits for its turn");
    leave(low, 1);
    start_attempt(high, 1, 2);
    world_check_reason(&world, low, JOB_QUEUED, "PREEMPTED",
                       "preempted for mnist-2, which has a higher priority; 1st; waits for 2 of 2 "
                       "cpu workers");
    world_check_reached(&world, low, "PREEMPTED", "which has a higher priority; continues from ");
    world_check_by(&world, low, "PREEMPTED", false);
    finish(high, 1);
    start_attempt(low, 2, 2);

    char *next = submit(1, 5, 10);
    world_check_reason(&world, next, JOB_QUEUED, "QUEUED", "1st; waits for 1 of 1 cpu worker");
    world_run(&world, 50);
    world_check_reason(&world, low, JOB_RUNNING, "RUNNING", "training on 2 workers");
    allow_again(0);
    WAIT(&world, is_ordered_to_leave(low, 2));
    leave(low, 2);
    start_attempt(next, 1, 1);
    free(low), free(high), free(next);
}

/* Neither without the option (0), nor for a job of equal (1) or lower (2) priority, nor if there is
 * no room even then (3), nor if it takes no checkpoints (4). */
LOOP_TEST(is_not_preempted, 0, 5)
{
    static const struct {
        int workers, priority;
    } others[] = {{1, 5}, {1, 0}, {1, -5}, {3, 5}, {1, 5}};
    if (_i == 0) {
        struct coordinator_options options = world.options;
        options.preempt = false;
        world_reload(&world, &options);
    }
    attach(3);
    char *same = submit(1, 5, 10), *low = submit(2, 0, _i == 4 ? 0 : 10);
    start_attempt(same, 1, 1);
    start_attempt(low, 1, 2);
    char *other = submit((uint32_t)others[_i].workers, others[_i].priority, 0);
    world_check_reason(&world, other, JOB_QUEUED, "QUEUED", "1st; waits for ");
    world_run(&world, 50);
    world_check_reason(&world, low, JOB_RUNNING, "RUNNING", "training on 2 workers");
    world_check_reason(&world, same, JOB_RUNNING, "RUNNING", "training on 1 worker");
    finish(same, 1);
    if (_i == 3) world_check_reason(&world, other, JOB_QUEUED, "QUEUED", "1st; waits for ");
    free(same), free(low), free(other);
}

/* Its checkpoint fails: it trains on, and is left alone for a while. */
TEST(trains_on_if_it_cannot_save)
{
    attach(2);
    char *low = submit(2, 0, 10), *high = NULL;
    start_attempt(low, 1, 2);
    high = submit(2, 5, 10);
    WAIT(&world, is_ordered_to_leave(low, 1));
    fake_checkpoint(&fakes[0], fakes[0].checkpoint, 3, STATUS_RESOURCE_EXHAUSTED, "no space", NULL);
    WAIT(&world, fakes[0].report == fakes[0].acknowledged);
    world_check_reason(&world, low, JOB_RUNNING, "RUNNING", "could not be preempted: no space");
    int before = fakes[0].checkpoints;
    world_run(&world, 50);
    ck_assert_int_eq(fakes[0].checkpoints, before);
    finish(low, 1);
    start_attempt(high, 1, 2);
    free(low), free(high);
}

/* An elastic job shrinks if that is enough, and is preempted if it is not. */
LOOP_TEST(an_elastic_job_shrinks_first, 2, 4)
{
    struct coordinator_options options = world.options;
    options.shrink_elastic = true;
    world_reload(&world, &options);
    attach(4);
    char *elastic = submit_elastic(4, 2, 0);
    start_attempt(elastic, 1, 4);
    char *other = submit((uint32_t)_i, 5, 0);
    if (_i == 2) {
        WAIT(&world, is_ordered_to_leave(elastic, 1));
        leave(elastic, 1);
        start_attempt(elastic, 2, 2);
        start_attempt(other, 1, 2);
    } else { /* it takes no checkpoints by its settings */
        world_check_reason(&world, other, JOB_QUEUED, "QUEUED", "1st; waits for ");
        world_check_reason(&world, elastic, JOB_RUNNING, "RUNNING", "training on 4 workers");
    }
    free(elastic), free(other);
}

/* What an elastic job cannot give up, another one does: that is preempted, and the first shrinks by
 * no more than is missing. */
TEST(one_shrinks_and_one_is_preempted)
{
    struct coordinator_options options = world.options;
    options.shrink_elastic = true;
    world_reload(&world, &options);
    attach(6);
    char *elastic = submit_elastic(4, 2, 0), *low = submit(2, 0, 10);
    start_attempt(elastic, 1, 4);
    start_attempt(low, 1, 2);
    char *other = submit(3, 5, 0);
    WAIT(&world, is_ordered_to_leave(elastic, 1) && is_ordered_to_leave(low, 1));
    world_check_reason(&world, elastic, JOB_RUNNING, "RESIZING", "shrunk from 4 to 3 workers");
    leave(elastic, 1);
    leave(low, 1);
    start_attempt(elastic, 2, 3);
    start_attempt(other, 1, 3);
    world_check_reason(&world, low, JOB_QUEUED, "PREEMPTED", "preempted for mnist-3, ");
    free(elastic), free(low), free(other);
}

/* Of two elastic jobs the one that saves by its settings is preempted, with all of its workers, and
 * the other one shrinks for the rest, by no more than that. */
TEST(one_of_two_elastic_jobs_is_preempted)
{
    struct coordinator_options options = world.options;
    options.shrink_elastic = true;
    world_reload(&world, &options);
    attach(6);
    char *shrinks = submit_elastic(3, 1, 0);
    Fsdpd__V1__ElasticSpec elastic = FSDPD__V1__ELASTIC_SPEC__INIT;
    elastic._min_workers_case = FSDPD__V1__ELASTIC_SPEC___MIN_WORKERS_MIN_WORKERS;
    elastic._max_workers_case = FSDPD__V1__ELASTIC_SPEC___MAX_WORKERS_MAX_WORKERS;
    elastic.min_workers = 2;
    elastic.max_workers = 3;
    elastic.redundancy = FSDPD__V1__REDUNDANCY__REDUNDANCY_NONE;
    job_spec spec = *world_spec(3);
    Fsdpd__V1__TrainSpec train = *spec.train;
    Fsdpd__V1__CheckpointSpec checkpoint = *spec.checkpoint;
    train._global_batch_case = FSDPD__V1__TRAIN_SPEC___GLOBAL_BATCH_GLOBAL_BATCH;
    train.global_batch = 24;
    checkpoint._every_steps_case = FSDPD__V1__CHECKPOINT_SPEC___EVERY_STEPS_EVERY_STEPS;
    checkpoint.every_steps = 10;
    spec.train = &train;
    spec.checkpoint = &checkpoint;
    spec.elastic = &elastic;
    char *saves = queue_submit(&world, &spec, NULL);
    start_attempt(shrinks, 1, 3);
    start_attempt(saves, 1, 3);
    char *other = submit(4, 5, 0);
    WAIT(&world, is_ordered_to_leave(saves, 1) && is_ordered_to_leave(shrinks, 1));
    world_check_reason(&world, shrinks, JOB_RUNNING, "RESIZING", "shrunk from 3 to 2 workers");
    leave(shrinks, 1);
    leave(saves, 1);
    start_attempt(shrinks, 2, 2);
    start_attempt(other, 1, 4);
    world_check_reason(&world, saves, JOB_QUEUED, "PREEMPTED", "preempted for mnist-3, ");
    free(saves), free(shrinks), free(other);
}

/* A coordinator that starts meanwhile carries the preemption out, and one that starts afterwards
 * still knows of it. */
TEST(restarts)
{
    attach(2);
    char *low = submit(2, 0, 10);
    start_attempt(low, 1, 2);
    fake_epoch(&fakes[0], 1); /* its history does not only have changes of its state */
    WAIT(&world, fakes[0].report == fakes[0].acknowledged);
    char *high = submit(2, 5, 10);
    WAIT(&world, is_ordered_to_leave(low, 1));
    Fsdpd__V1__CheckpointOrder pause = FSDPD__V1__CHECKPOINT_ORDER__INIT;
    pause.number = fakes[0].checkpoint;
    pause.pause = true;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT, *tail = &order;
    order.job = low;
    order.attempt = 1;
    order.sequence = 1;
    order.order_case = FSDPD__V1__ORDER__ORDER_CHECKPOINT;
    order.checkpoint = &pause;
    world_stop(&world);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].closed);
    world_start(&world);
    for (int r = 0; r < 2; r++) fake_attach_again(&fakes[r], 1000 + r, true, 1, &tail, 1);
    world_check_reason(&world, low, JOB_RUNNING, "PREEMPTING", "preempted for mnist-2");
    leave(low, 1);
    start_attempt(high, 1, 2);

    world_stop(&world);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].closed);
    world_start(&world);
    world_check_reason(&world, low, JOB_QUEUED, "WAITING_FOR_WORKERS",
                       "preempted for mnist-2, which has a higher priority; 1st; needs 2 cpu");
    for (int r = 0; r < 2; r++) fake_attach_again(&fakes[r], 1000 + r, true, 0, NULL, 0);
    finish(high, 1);
    start_attempt(low, 2, 2);
    char *next = submit(1, 5, 10);
    world_check_reason(&world, next, JOB_QUEUED, "QUEUED", "1st; waits for 1 of 1 cpu worker");
    world_run(&world, 50);
    world_check_reason(&world, low, JOB_RUNNING, "RUNNING", "training on 2 workers");
    free(low), free(high), free(next);
}
