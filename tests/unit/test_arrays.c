/* Arrays: their jobs are made once each, at most at_once of them run, and changes of an array are
 * changes of its jobs. A coordinator with workers that exist only as links. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/scheduler/queue.h"
#include "spec/spec.h"
#include "test_queue_world.h"
#include "tests/testing.h"

/* ---- the rule ---- */

TEST(an_array_starts_as_many_jobs_as_may_run_at_once)
{
    struct queue_array array = {.id = "a", .at_once = 2, .running = 1};
    struct queue_item items[] = {{.kind = "cpu", .workers = 1, .array = &array},
                                 {.kind = "cpu", .workers = 1, .array = &array},
                                 {.kind = "cpu", .workers = 2}};
    struct queue_fleet fleet = {.kind = "cpu", .attached = 4, .expected = 4, .idle = 3};
    queue_decide(items, 3, &fleet, 1);
    ck_assert_int_eq(items[0].standing.decision, QUEUE_START);
    ck_assert_int_eq(items[1].standing.decision, QUEUE_WAIT_ARRAY);
    ck_assert_int_eq(items[2].standing.decision, QUEUE_START); /* it delays no other job */
    ck_assert_int_eq(array.running, 2);
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

#define FILE_TEXT                                                                                  \
    "name: sweep\nmodel: {file: net.yaml}\ndata: {dir: d}\ntrain:\n  seed: ${index}\n"             \
    "labels: {team: v, part: \"p${index}\"}\nsave_model: false\n"

static status_t try_submit(const char *more, bool hold, const char *id, char **made)
{
    AUTO_FREE char *text = mem_printf("%s%s\n", FILE_TEXT, more);
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    Fsdpd__V1__JobFile file = FSDPD__V1__JOB_FILE__INIT;
    Fsdpd__V1__JobFile__FilesEntry net = FSDPD__V1__JOB_FILE__FILES_ENTRY__INIT, *files = &net;
    net.key = (char *)"net.yaml";
    net.value = (char *)"modules: {}\n";
    file.text = text;
    file.files = &files;
    file.n_files = 1;
    request.job_file = &file;
    request.hold = hold;
    request.id = (char *)id;
    void *response = NULL;
    TRY(world_call(&world, &control_submit_job, &request, &response));
    *made = mem_strdup(((job_message *)response)->id);
    message_free(response);
    return NULL;
}

static char *submit(const char *more, bool hold)
{
    char *id = NULL;
    expect_ok(try_submit(more, hold, "", &id));
    return id;
}

static Fsdpd__V1__ArrayJobs jobs_of(const char *id)
{
    job_message *job = world_job(&world, id);
    ck_assert_ptr_nonnull(job->array_jobs);
    Fsdpd__V1__ArrayJobs jobs = *job->array_jobs;
    message_free(job);
    return jobs;
}

/* The ids of listed jobs, the newest first, up to `most`; "" for none. */
static char *list(const char *array, const char *name, bool fold, enum job_state state)
{
    Fsdpd__V1__ListJobsRequest request = FSDPD__V1__LIST_JOBS_REQUEST__INIT;
    Fsdpd__V1__JobState states[] = {(Fsdpd__V1__JobState)state};
    request.array = (char *)array;
    request.name = (char *)name;
    request.fold = fold;
    request.states = states;
    request.n_states = state != 0;
    void *response = NULL;
    expect_ok(world_call(&world, &control_list_jobs, &request, &response));
    const Fsdpd__V1__ListJobsResponse *found = response;
    struct buf ids = {0};
    for (size_t i = 0; i < found->n_jobs; i++)
        buf_printf(&ids, "%s%s", i > 0 ? " " : "", found->jobs[i]->id);
    ck_assert_uint_eq(found->left_out, 0);
    message_free(response);
    return buf_take(&ids);
}

static void expect_list(const char *array, const char *name, bool fold, enum job_state state,
                        const char *expected)
{
    AUTO_FREE char *found = list(array, name, fold, state);
    ck_assert_str_eq(found != NULL ? found : "", expected);
}

/* A page of one job says how many others match. */
static void expect_left_out(const char *array, uint32_t expected)
{
    Fsdpd__V1__ListJobsRequest request = FSDPD__V1__LIST_JOBS_REQUEST__INIT;
    request.array = (char *)array;
    request.page_size = 1;
    void *response = NULL;
    expect_ok(world_call(&world, &control_list_jobs, &request, &response));
    const Fsdpd__V1__ListJobsResponse *found = response;
    ck_assert_uint_eq(found->n_jobs, 1);
    ck_assert_uint_eq(found->left_out, expected);
    message_free(response);
}

static status_t with_id(const struct rpc_method *method, const char *id)
{
    Fsdpd__V1__HoldJobRequest request = FSDPD__V1__HOLD_JOB_REQUEST__INIT;
    request.base.descriptor = method->request;
    request.id = (char *)id;
    return world_call(&world, method, &request, NULL);
}

/* fsdpd ends while jobs are made: when it is back, it makes the others, none twice. */
TEST(each_index_has_its_job_once)
{
    world_start(&world);
    char *id = submit("array: {indices: \"0-134\"}", true);
    ck_assert_str_eq(id, "sweep-1");
    for (uint32_t made = 0; made < 135; made = jobs_of(id).made) {
        WAIT(&world, jobs_of(id).made > made);
        world_stop(&world);
        world_start(&world);
    }
    Fsdpd__V1__ArrayJobs jobs = jobs_of(id);
    ck_assert_uint_eq(jobs.jobs, 135);
    ck_assert_uint_eq(jobs.queued, 135);
    ck_assert_uint_eq(jobs.failed, 0);
    AUTO_FREE char *all = list(id, "", false, 0);
    int count = 1;
    for (const char *c = all; *c != '\0'; c++) count += *c == ' ';
    ck_assert_int_eq(count, 135);
    job_message *job = world_job(&world, "sweep-1-77");
    ck_assert_str_eq(job->name, "sweep-77");
    ck_assert_uint_eq(job->spec->train->seed, 77);
    ck_assert_str_eq(job->spec->labels[0]->value, "p77");
    ck_assert_str_eq(job->reason->code, "HELD"); /* with its array */
    message_free(job);
    queue_expect_why(&world, "sweep-1-77",
                     ", with its array sweep-1: it starts only after fsdpctl release sweep-1.");
    queue_expect_why(&world, id, "It is an array, and is over when all of its jobs are: held by ");
    free(id);
}

TEST(at_most_so_many_run_at_once)
{
    struct fake fakes[3];
    static const char *const ids[] = {"host/cpu:0", "host/cpu:1", "host/cpu:2"};
    world_start(&world);
    for (int i = 0; i < 3; i++) fake_attach(&world, &fakes[i], ids[i], i + 1);
    char *id = submit("array: {indices: \"1-3\", at_once: 2}", false);
    WAIT(&world, jobs_of(id).running == 2);
    world_check_reason(&world, "sweep-1-3", JOB_QUEUED, "ARRAY_LIMIT",
                       "array sweep-1 runs as many jobs as it may at once: 2");
    queue_expect_why(&world, "sweep-1-3", "It starts when a job of its array is over");
    int plans = fakes[0].plans + fakes[1].plans + fakes[2].plans;
    ck_assert_int_eq(plans, 1); /* the seed changes no plan */
    char *other = queue_submit_priority(&world, 1, 0);
    WAIT(&world, world_job_is(&world, other, JOB_STARTING)); /* it is delayed by no array */
    struct fake *first = NULL, *others = NULL;
    for (int i = 0; i < 3; i++) WAIT(&world, fakes[i].assignments == 1);
    for (int i = 0; i < 3; i++)
        if (strcmp(fakes[i].assignment->job, "sweep-1-1") == 0) first = &fakes[i];
        else if (strcmp(fakes[i].assignment->job, other) == 0) others = &fakes[i];
    ck_assert_ptr_nonnull(others);
    fake_started(first, 42);
    WAIT(&world, world_job_is(&world, "sweep-1-1", JOB_RUNNING));
    queue_end_job(&world, first, "sweep-1-1", STATUS_INTERNAL);
    WAIT(&world, world_job_is(&world, "sweep-1-3", JOB_STARTING));
    WAIT(&world, fakes[0].assignments + fakes[1].assignments + fakes[2].assignments == 4);
    for (int i = 0; i < 3; i++)
        if (&fakes[i] != others) {
            AUTO_FREE char *job = mem_strdup(fakes[i].assignment->job);
            fake_started(&fakes[i], 42);
            WAIT(&world, world_job_is(&world, job, JOB_RUNNING));
            queue_end_job(&world, &fakes[i], job, STATUS_OK);
        }
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "JOBS_FAILED", "1 of 3 jobs failed");
    queue_expect_why(&world, id,
                     " is FAILED. It is an array, whose jobs are over: 1 of 3 jobs failed.");
    for (int i = 0; i < 3; i++) fake_deinit(&fakes[i]);
    free(other);
    free(id);
}

TEST(a_list_folds_what_is_listed_by_the_array)
{
    world_start(&world);
    char *id = submit("array: {indices: \"1-3\"}", true);
    WAIT(&world, jobs_of(id).made == 3);
    expect_list("", "", true, 0, "sweep-1");
    expect_list("", "", false, 0, "sweep-1 sweep-1-1 sweep-1-2 sweep-1-3");
    expect_list(id, "", true, 0, "sweep-1-1 sweep-1-2 sweep-1-3");
    expect_list("", "sweep-1-3", true, 0, "sweep-1-3");
    expect_left_out("", 3);
    expect_left_out(id, 2);
    expect_ok(with_id(&control_cancel_job, "sweep-1-2"));
    expect_list("", "", true, JOB_CANCELLED, "sweep-1-2"); /* the array is not in this state */
    expect_status(with_id(&control_forget_job, "sweep-1-2"), STATUS_FAILED_PRECONDITION,
                  "of array sweep-1, which is not over");
    expect_ok(with_id(&control_cancel_job, id));
    WAIT(&world, world_job_is(&world, id, JOB_CANCELLED));
    expect_status(with_id(&control_forget_job, id), STATUS_FAILED_PRECONDITION, "forget its jobs");
    for (int i = 2; i <= 3; i++) {
        AUTO_FREE char *job = mem_printf("sweep-1-%d", i);
        expect_ok(with_id(&control_forget_job, job));
    }
    expect_list("", "", true, 0, "sweep-1");
    free(id);
}

TEST(a_change_of_an_array_is_one_of_its_jobs)
{
    world_start(&world);
    char *id = submit("array: {indices: \"1-60\"}", false);
    WAIT(&world, jobs_of(id).made == 60);
    expect_ok(with_id(&control_hold_job, id));
    world_check_reason(&world, "sweep-1-60", JOB_QUEUED, "HELD", "with its array sweep-1");
    expect_ok(with_id(&control_hold_job, "sweep-1-5"));
    expect_ok(with_id(&control_release_job, id));
    world_check_reason(&world, "sweep-1-60", JOB_QUEUED, "WAITING_FOR_WORKERS", "no worker is");
    world_check_reason(&world, "sweep-1-5", JOB_QUEUED, "WAITING_FOR_WORKERS", "no worker is");
    Fsdpd__V1__SetPriorityRequest request = FSDPD__V1__SET_PRIORITY_REQUEST__INIT;
    request.id = id;
    request.priority = 7;
    expect_ok(world_call(&world, &control_set_priority, &request, NULL));
    expect_status(with_id(&control_pause_job, id), STATUS_FAILED_PRECONDITION,
                  "is an array: pause its jobs");
    Fsdpd__V1__ResumeJobRequest resume = FSDPD__V1__RESUME_JOB_REQUEST__INIT;
    resume.id = id;
    expect_status(world_call(&world, &control_resume_job, &resume, NULL),
                  STATUS_FAILED_PRECONDITION, "is an array: resume its jobs");
    world_stop(&world);
    world_start(&world);
    job_message *job = world_job(&world, "sweep-1-60");
    ck_assert_int_eq(job->priority, 7);
    message_free(job);
    expect_ok(with_id(&control_cancel_job, id));
    /* It is being cancelled, or is over by now. */
    expect_status(with_id(&control_hold_job, id), STATUS_FAILED_PRECONDITION, "sweep-1 is ");
    world_stop(&world); /* in the middle of it */
    world_start(&world);
    WAIT(&world, world_job_is(&world, id, JOB_CANCELLED));
    expect_list(id, "", false, JOB_QUEUED, "");
    world_check_reason(&world, id, JOB_CANCELLED, "CANCELLED", ": 0 of 60 jobs had succeeded");
    free(id);
}

TEST(an_id_of_another_job_fails_its_index_only)
{
    world_start(&world);
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    request.id = (char *)"sweep-1-2";
    expect_ok(world_call(&world, &control_submit_job, &request, NULL));
    char *id = submit("array: {indices: \"1-3\"}", true);
    WAIT(&world, jobs_of(id).made == 3);
    ck_assert_uint_eq(jobs_of(id).failed, 1);
    ck_assert_uint_eq(jobs_of(id).queued, 2);
    world_check_reached(&world, id, "INDEX_TAKEN",
                        "index 2 has no job: job sweep-1-2 already exists");
    world_stop(&world);
    world_start(&world);
    ck_assert_uint_eq(jobs_of(id).failed, 1);
    free(id);
}

TEST(a_submission_checks_every_index)
{
    char *id = NULL;
    world_start(&world);
    expect_status(try_submit("array: {indices: \"99,1001\"}\npriority: ${index}", false, "", &id),
                  STATUS_INVALID_ARGUMENT,
                  "index 1001: job.yaml:9: priority: expected an integer from -1000 to 1000");
    expect_status(try_submit("array: {indices: \"1-2\"}\nafter: \"no-${index}\"", false, "", &id),
                  STATUS_NOT_FOUND, "index 1: after: there is no job no-1");
    expect_status(try_submit("array: {indices: \"7,1000\"}", false,
                             "a-name-of-sixty-one-characters-which-leaves-no-room-for-indices-0",
                             &id),
                  STATUS_INVALID_ARGUMENT, "id: expected");
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    Fsdpd__V1__ArraySpec array = FSDPD__V1__ARRAY_SPEC__INIT;
    array.indices = (char *)"1-2";
    job_spec spec = *world_spec(1);
    spec.array = &array;
    request.spec = &spec;
    expect_status(world_call(&world, &control_submit_job, &request, NULL), STATUS_INVALID_ARGUMENT,
                  "array: expected a job file");
}

/* A job that waits for an array waits for all of its jobs; the jobs of one may wait for others. */
TEST(jobs_wait_for_arrays)
{
    world_start(&world);
    char *first = submit("array: {indices: \"1-2\"}", true);
    WAIT(&world, jobs_of(first).made == 2);
    char *second = submit("array: {indices: \"1-2\"}\nafter: \"sweep-1-${index}\"", false);
    WAIT(&world, jobs_of(second).made == 2);
    job_spec spec = *world_spec(1);
    spec.after = &first;
    spec.n_after = 1;
    char *last = queue_submit(&world, &spec, NULL);
    world_check_reason(&world, last, JOB_QUEUED, "WAITING_FOR_JOB", "waits for sweep-1");
    world_check_reason(&world, "sweep-2-2", JOB_QUEUED, "WAITING_FOR_JOB", "waits for sweep-1-2");
    expect_ok(with_id(&control_cancel_job, "sweep-1-2"));
    WAIT(&world, world_job_is(&world, "sweep-2-2", JOB_CANCELLED));
    ck_assert(world_job_is(&world, "sweep-2-1", JOB_QUEUED));
    expect_ok(with_id(&control_cancel_job, "sweep-1-1"));
    WAIT(&world, world_job_is(&world, last, JOB_CANCELLED));
    WAIT(&world, world_job_is(&world, second, JOB_CANCELLED));
    free(first);
    free(second);
    free(last);
}

static bool waits_for_room(const char *id)
{
    job_message *job = world_job(&world, id);
    bool waits = strstr(job->reason->message, "2 not made yet (the limits") != NULL;
    message_free(job);
    return waits;
}

/* More jobs than may be active are made when others are over. */
TEST(an_array_keeps_to_the_limits_of_jobs)
{
    world.options.limits.jobs_active = 3;
    world_start(&world);
    char *id = submit("array: {indices: \"1-5\"}", true);
    WAIT(&world, jobs_of(id).made == 3);
    WAIT(&world, waits_for_room(id));
    expect_ok(with_id(&control_cancel_job, "sweep-1-1"));
    WAIT(&world, jobs_of(id).made == 4);
    free(id);
}
