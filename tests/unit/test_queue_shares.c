/*
 * What users may have, and what they have had: quotas, and fair share. A real coordinator with
 * workers that are fakes: the test speaks for them.
 */
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "coordinator/store/store.h"
#include "test_queue_fakes.h"
#include "tests/testing.h"

static void set_up(void)
{
    world_init(&world);
    world_start(&world);
    attached = 0;
}

static char *submit(uint32_t workers, int priority)
{
    return queue_submit_priority(&world, workers, priority);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

/* ---- quotas ---- */

static void set_quota(int workers, int64_t bytes)
{
    struct coordinator_options options = world.options;
    options.limits.quota_workers = workers;
    options.limits.quota_kept_bytes = bytes;
    world_reload(&world, &options);
}

/* The second job of the user waits, without a place, and delays nothing; one that is too large for
 * the quota is refused. */
TEST(a_quota_of_workers)
{
    attach(4);
    set_quota(3, 0);
    char *first = submit(2, 0);
    start_attempt(first, 1, 2);
    char *second = submit(2, 5), *third = submit(1, 0);
    start_attempt(third, 1, 1); /* it fits, and comes before */
    job_message *job = world_job(&world, second);
    ck_assert_str_eq(job->reason->code, "QUOTA");
    ck_assert_uint_eq(job->queue_position, 0);
    AUTO_FREE char *words = mem_printf("needs 2 workers, and jobs of %s have 3 of the 3 that "
                                       "queue.quota.workers allows",
                                       job->owner);
    ck_assert_str_eq(job->reason->message, words);
    message_free(job);
    ck_assert_int_eq(count_ranks(first, 1), 2); /* it preempts none */
    ck_assert_int_eq(fakes[0].pauses + fakes[1].pauses + fakes[2].pauses, 0);
    status_t refused = NULL;
    queue_submit(&world, world_spec(4), &refused);
    expect_status(refused, STATUS_INVALID_ARGUMENT,
                  "workers: expected at most 3, the daemon's queue.quota.workers, found 4");
    finish(third, 1);
    finish(first, 1);
    start_attempt(second, 1, 2);
    free(first), free(second), free(third);
}

/* Both want four workers, the quota has five, and six are idle: one grows by one, once. */
TEST(two_elastic_jobs_do_not_grow_past_the_quota)
{
    attach(2);
    set_quota(5, 0);
    char *one = submit_elastic(4, 1, 0);
    Fsdpd__V1__ResizeJobRequest resize = FSDPD__V1__RESIZE_JOB_REQUEST__INIT;
    resize.id = one;
    resize.workers = 2;
    expect_ok(world_call(&world, &control_resize_job, &resize, NULL));
    start_attempt(one, 1, 2);
    set_quota(3, 0);
    resize.workers = 4;
    expect_status(world_call(&world, &control_resize_job, &resize, NULL), STATUS_INVALID_ARGUMENT,
                  "workers: expected at most 3, the daemon's queue.quota.workers, found 4");
    set_quota(5, 0);
    attach(4);
    char *two = submit_elastic(4, 1, 0);
    resize.id = two;
    resize.workers = 2;
    expect_ok(world_call(&world, &control_resize_job, &resize, NULL));
    start_attempt(two, 1, 2);
    attach(6);
    struct coordinator_options options = world.options;
    options.limits.quota_workers = 4;
    world_reload(&world, &options);
    resize.workers = 4;
    expect_ok(world_call(&world, &control_resize_job, &resize, NULL));
    resize.id = one;
    expect_ok(world_call(&world, &control_resize_job, &resize, NULL));
    world_check_reason(&world, one, JOB_RUNNING, "RUNNING", "training on 2 workers");
    set_quota(5, 0);
    WAIT(&world, is_ordered_to_leave(one, 1) || is_ordered_to_leave(two, 1));
    bool first = is_ordered_to_leave(one, 1);
    world_run(&world, 50);
    ck_assert(!is_ordered_to_leave(first ? two : one, 1));
    leave(first ? one : two, 1);
    start_attempt(first ? one : two, 2, 3);
    world_run(&world, 50);
    ck_assert(!is_ordered_to_leave(first ? two : one, 1));
    free(one), free(two);
}

static status_t resume_with(const char *id, uint32_t workers)
{
    job_spec spec = *world_spec(workers);
    Fsdpd__V1__ResumeJobRequest request = FSDPD__V1__RESUME_JOB_REQUEST__INIT;
    request.id = (char *)id;
    request.spec = &spec;
    return world_call(&world, &control_resume_job, &request, NULL);
}

/* A paused job that is resumed with other settings is checked as a new one. */
TEST(a_resume_is_checked)
{
    attach(3);
    set_quota(2, 0);
    char *id = submit(2, 0);
    start_attempt(id, 1, 2);
    struct listener pausing;
    Fsdpd__V1__PauseJobRequest pause = FSDPD__V1__PAUSE_JOB_REQUEST__INIT;
    pause.id = id;
    listener_open(&world, &pausing, &control_pause_job, &pause, false);
    WAIT(&world, is_ordered_to_leave(id, 1));
    leave(id, 1);
    WAIT(&world, world_job_is(&world, id, JOB_PAUSED));
    expect_status(resume_with(id, 3), STATUS_INVALID_ARGUMENT,
                  "workers: expected at most 2, the daemon's queue.quota.workers, found 3");
    ck_assert(world_job_is(&world, id, JOB_PAUSED));
    set_quota(2, 1000);
    expect_status(resume_with(id, 1), STATUS_RESOURCE_EXHAUSTED,
                  "those that are not will keep 0 at most, and the daemon's "
                  "queue.quota.kept_bytes is 1000");
    ck_assert(world_job_is(&world, id, JOB_PAUSED));
    set_quota(2, 0);
    expect_ok(resume_with(id, 1));
    start_attempt(id, 2, 1);
    listener_deinit(&pausing);
    free(id);
}

/* What a job that is over keeps counts until it is forgotten, also after a restart. */
TEST(a_quota_of_kept_bytes)
{
    enum { ALLOWANCE = 1 << 20, KEPT = 3 << 20 };
    status_t refused = NULL;
    attach(1);
    set_quota(0, 5 * ALLOWANCE / 2);
    char *first = submit(1, 0);
    start_attempt(first, 1, 1);
    char *second = submit(1, 0);
    queue_submit(&world, world_spec(1), &refused);
    expect_status(refused, STATUS_RESOURCE_EXHAUSTED, "are over keep 0, those that are not");
    expect_ok(world_cancel(&world, second));
    AUTO_FREE char *directory = mem_printf("%s/state/jobs/%s", world.directory, first);
    AUTO_FREE char *weights = mem_printf("%s/state_dict.safetensors", directory);
    AUTO_FREE char *bytes = mem_alloc(KEPT);
    expect_ok(file_make_directory(directory, 0750));
    expect_ok(file_write_atomic(weights, bytes, KEPT, 0640));
    finish(first, 1);
    for (int round = 0; round < 2; round++) { /* counted as it ended, and from the store */
        queue_submit(&world, world_spec(1), &refused);
        expect_status(refused, STATUS_RESOURCE_EXHAUSTED, "are over keep 3145728, those that");
        world_stop(&world);
        WAIT(&world, fakes[0].closed);
        world_start(&world);
        set_quota(0, 5 * ALLOWANCE / 2);
    }
    Fsdpd__V1__ForgetJobRequest forget = FSDPD__V1__FORGET_JOB_REQUEST__INIT;
    forget.id = first;
    expect_ok(world_call(&world, &control_forget_job, &forget, NULL));
    free(queue_submit(&world, world_spec(1), NULL));
    free(first), free(second);
}

/* ---- fair share ---- */

static void take_usage(void *user, const struct store_usage *usage)
{
    *(int64_t *)user += usage->worker_ms;
}

/* The usage in the store of a coordinator that has ended. */
static int64_t read_usage(void)
{
    AUTO_FREE char *path = mem_printf("%s/state/store.db", world.directory);
    struct store *store = NULL;
    int64_t usage = 0;
    expect_ok(store_open(path, &store));
    expect_ok(store_each_usage(store, take_usage, &usage));
    store_close(store);
    return usage;
}

/* Two workers count twice, a restart forgets nothing, and a job that runs meanwhile still
 * counts. */
TEST(usage_survives_a_restart)
{
    world_stop(&world);
    world.options.limits.fair_share_ms = 3600000;
    world_start(&world);
    attach(2);
    char *id = submit(2, 0);
    int64_t from = clock_monotonic_ns();
    start_attempt(id, 1, 2);
    world_run(&world, 100);
    world_stop(&world);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].closed);
    int64_t most = (clock_monotonic_ns() - from) / 1000000 * 2, first = read_usage();
    ck_assert_int_ge(first, 190);
    ck_assert_int_le(first, most + 2);
    world_start(&world);
    for (int r = 0; r < 2; r++) fake_attach_again(&fakes[r], 1000 + r, true, 0, NULL, 0);
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
    world_run(&world, 100);
    finish(id, 1);
    world_stop(&world);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].closed);
    ck_assert_int_ge(read_usage(), first + 190);
    world_start(&world);
    free(id);
}
