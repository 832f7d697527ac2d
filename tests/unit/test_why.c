/* The paragraph of `fsdpctl why`: of made-up facts, then of a coordinator's jobs. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/scheduler/why.h"
#include "test_queue_world.h"
#include "tests/testing.h"

/* ---- pure ---- */

static struct why_job others[] = {
    {.id = "gpt-1", .owner = "bob", .state = JOB_RUNNING, .workers = 2, .priority = 5},
    {.id = "gpt-2", .owner = "bob", .state = JOB_QUEUED, .reserved = 1},
    {.id = "c-1", .owner = "", .workers = 1},
    {.id = "d-1", .owner = "dan", .workers = 1},
    {.id = "e-1", .owner = "eve", .workers = 1}};

static void expect(const struct why *facts, int state, const char *code, const char *reason,
                   const char *expected)
{
    struct why why = *facts;
    char *workers[] = {(char *)"host/cpu:0", (char *)"host/cpu:1"};
    Fsdpd__V1__Reason made = FSDPD__V1__REASON__INIT;
    job_spec spec = FSDPD__V1__JOB_SPEC__INIT;
    job_message job = FSDPD__V1__JOB__INIT;
    made.code = (char *)code;
    made.message = (char *)reason;
    spec.device = (char *)"cpu";
    job.id = (char *)"mnist-3";
    job.owner = job.held_by = (char *)"alice";
    job.state = (Fsdpd__V1__JobState)state;
    job.reason = &made;
    job.spec = &spec;
    job.steps = 100;
    if (state != JOB_QUEUED && strcmp(code, "NEVER") != 0) {
        job.attempt = 1;
        job.step = 40;
        job.workers = workers;
        job.n_workers = 2;
    }
    why.job = &job;
    AUTO(buf_deinit) struct buf text = {0};
    why_describe(&why, &text);
    ck_assert_str_eq(buf_text(&text), expected);
}

TEST(a_queued_job_is_explained_by_its_reason)
{
    struct why none = {0};
    expect(&none, JOB_QUEUED, "HELD", "held by alice",
           "mnist-3 of alice is QUEUED with priority 0. alice holds it: it starts only after "
           "fsdpctl release mnist-3.");
    struct why waits = {.awaited = {.items = others, .count = 2}};
    expect(&waits, JOB_QUEUED, "WAITING_FOR_JOB", "waits for gpt-1 and 1 more job",
           "mnist-3 of alice is QUEUED with priority 0. It has no place in the queue yet, as it "
           "waits for gpt-1 of bob "
           "(RUNNING) and gpt-2 of bob (QUEUED): jobs of after must succeed, jobs of after_any "
           "only end.");
    expect(&none, JOB_QUEUED, "WAITING_FOR_WORKERS",
           "no worker is attached; it is planned when one comes",
           "mnist-3 of alice is QUEUED with priority 0. no worker is attached; it is planned when "
           "one comes.");
    expect(&none, JOB_QUEUED, "RESIZING", "waits at most 60 s",
           "mnist-3 of alice is QUEUED with priority 0. waits at most 60 s.");
    struct why retried = {.retry_seconds = 4};
    expect(
        &retried, JOB_QUEUED, "WORKER_LOST", "rank 1 was lost",
        "mnist-3 of alice is QUEUED with priority 0. rank 1 was lost. It can start again in 4 s.");
    struct why unsaved = {.unsaved = true};
    expect(&unsaved, JOB_QUEUED, "QUEUED", "-",
           "mnist-3 of alice is QUEUED with priority 0. fsdpd could not write its last change to "
           "the store, whose disk "
           "may be full: it starts once that succeeds.");
    struct why draining = {.draining = true, .unsaved = true};
    expect(&draining, JOB_QUEUED, "QUEUED", "-",
           "mnist-3 of alice is QUEUED with priority 0. fsdpd shuts down, and starts nothing until "
           "it is back.");
}

TEST(a_place_names_the_jobs_before_it_and_those_that_have_the_workers)
{
    struct why next = {.standing = {.position = 1, .workers = 4, .attached = 4, .idle = 1},
                       .holders = {.items = others, .count = 2}};
    expect(&next, JOB_QUEUED, "QUEUED", "1st; waits for 3 of 4 cpu workers",
           "mnist-3 of alice is QUEUED with priority 0. It is the 1st of the jobs that wait for "
           "cpu workers. It needs 4 "
           "workers at once, and 1 is idle for it: those are kept until it has enough. Of the 4 "
           "cpu workers that are "
           "attached, these jobs have some: gpt-1 of bob (2) and gpt-2 of bob (1, idle, with a "
           "part of its state).");
    struct why behind = {
        .standing = {.position = 6, .behind = true, .workers = 1, .attached = 1, .drained = 2},
        .before = {.items = others, .count = 5},
        .holders = {.items = others + 2, .count = 1}};
    expect(&behind, JOB_QUEUED, "QUEUED", "6th",
           "mnist-3 of alice is QUEUED with priority 0. It is the 6th of the jobs that wait for "
           "cpu workers, after gpt-1 "
           "of bob (priority 5), gpt-2 of bob, c-1 and 2 more jobs. It needs 1 worker at once, and "
           "starts after the jobs "
           "before it, even if it would fit sooner. Of the 1 cpu worker that is attached, these "
           "jobs have some: c-1 (1). "
           "2 more are drained.");
    struct why_job users[] = {{.id = "a-1", .owner = "bob", .usage = 5400e3},
                              {.id = "a-2", .owner = "bob", .usage = 5400e3},
                              {.id = "a-3", .owner = "alice", .usage = 7200e3},
                              {.id = "a-4", .owner = "eve", .usage = 36, .priority = 1},
                              {.id = "a-5", .owner = "dan", .usage = 36}};
    struct why shares = {.standing = {.position = 6, .behind = true, .workers = 1, .attached = 2},
                         .before = {.items = users, .count = 5},
                         .half_life_ms = 7 * 24 * 3600e3,
                         .usage = 7200e3};
    expect(&shares, JOB_QUEUED, "QUEUED", "6th",
           "mnist-3 of alice is QUEUED with priority 0. It is the 6th of the jobs that wait for "
           "cpu workers, after a-1 of bob, a-2 of bob, a-3 of alice and 2 more jobs. It needs 1 "
           "worker at once, and starts after the jobs before it, even if it would fit sooner. By "
           "fair share (half-life 168 h), jobs of alice have used 2.00 worker hours, those of bob 1.50 "
           "worker hours, of dan 0.00 worker hours.");
    struct why large = {.standing = {.position = 1, .workers = 8, .attached = 4}};
    expect(&large, JOB_QUEUED, "WAITING_FOR_WORKERS", "1st; needs 8 cpu workers, 4 are attached",
           "mnist-3 of alice is QUEUED with priority 0. It waits for workers: 1st; needs 8 cpu "
           "workers, 4 are attached. "
           "Until then it is passed over, and delays no other job.");
}

TEST(other_jobs_are_explained_by_what_they_do_or_how_they_ended)
{
    struct why none = {0};
    expect(&none, JOB_RUNNING, "RUNNING", "training",
           "mnist-3 of alice is RUNNING. Attempt 1 has 2 workers, the first of them host/cpu:0; 40 "
           "of 100 steps are done.");
    expect(&none, JOB_RUNNING, "SAVING", "rank 0: the disk is full",
           "mnist-3 of alice is RUNNING. Attempt 1 has 2 workers, the first of them host/cpu:0; 40 "
           "of 100 steps are "
           "done. rank 0: the disk is full.");
    expect(&none, JOB_PAUSED, "PAUSED", "paused by alice",
           "mnist-3 of alice is PAUSED. paused by alice. It keeps 40 of 100 steps in its "
           "checkpoint, has no workers, and "
           "waits for fsdpctl resume mnist-3.");
    expect(&none, JOB_SUCCEEDED, "DONE", "all steps are done",
           "mnist-3 of alice is SUCCEEDED. It ended in attempt 1 after 40 of 100 steps.");
    expect(&none, JOB_FAILED, "WORKER_LOST", "rank 1 was lost",
           "mnist-3 of alice is FAILED. It ended in attempt 1 after 40 of 100 steps: rank 1 was "
           "lost.");
    expect(
        &none, JOB_CANCELLED, "NEVER", "cancelled by alice before it started",
        "mnist-3 of alice is CANCELLED. It never started: cancelled by alice before it started.");
}

/* ---- a coordinator ---- */

static struct world world;

static void set_up(void)
{
    world_init(&world);
}

static void tear_down(void)
{
    world_deinit(&world);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(the_daemon_explains_jobs_that_wait_run_and_are_over)
{
    struct fake fake;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    char *running = queue_submit_priority(&world, 1, 0);
    queue_expect_start(&world, &fake, 1, running);
    char *next = queue_submit_priority(&world, 1, 3), *last = queue_submit_priority(&world, 1, 0);
    char *dependent;
    job_spec spec = *world_spec(1);
    spec.after = &running;
    spec.n_after = 1;
    dependent = queue_submit(&world, &spec, NULL);
    queue_expect_why(&world, running,
                     " is RUNNING. Attempt 1 has 1 worker, the first of them host/cpu:0; 0 of "
                     "100 steps are done.");
    queue_expect_why(&world, next,
                     " is QUEUED with priority 3. It is the 1st of the jobs that wait for cpu "
                     "workers. It needs 1 worker "
                     "at once, and 0 are idle for it. Of the 1 cpu worker that is attached, these "
                     "jobs have some: mnist-1 of ");
    queue_expect_why(&world, last,
                     "It is the 2nd of the jobs that wait for cpu workers, after mnist-2 of ");
    queue_expect_why(
        &world, last,
        " (priority 3). It needs 1 worker at once, and starts after the jobs before it");
    queue_expect_why(&world, dependent, "as it waits for mnist-1 of ");
    queue_end_job(&world, &fake, running, STATUS_OK);
    queue_expect_why(&world, running,
                     " is SUCCEEDED. It ended in attempt 1 after 100 of 100 steps.");
    Fsdpd__V1__ExplainJobRequest request = FSDPD__V1__EXPLAIN_JOB_REQUEST__INIT;
    request.id = (char *)"mnist-9";
    expect_status(world_call(&world, &control_explain_job, &request, NULL), STATUS_NOT_FOUND,
                  "there is no job mnist-9");
    fake_deinit(&fake);
    free(running);
    free(next);
    free(last);
    free(dependent);
}
