/*
 * The queue: who is before whom, which workers a job gets, jobs that wait for others, deadlines,
 * filters of lists, histories. Decisions first, then a real coordinator with workers that exist only
 * as links (test_coordinator_world.h).
 */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "coordinator/access.h"
#include "coordinator/placement.h"
#include "coordinator/queue.h"
#include "test_coordinator_world.h"

/* ---- decisions ---- */

struct wish {
    int workers, priority;
};

/* One letter per item: start, its turn, workers; then its position and how many of higher priority
 * are before it. */
static void check_queue(const struct wish *wishes, int count, int attached, int expected, int idle,
                        const char *answer)
{
    struct queue_item items[8];
    for (int i = 0; i < count; i++)
        items[i] = (struct queue_item){.kind = "cpu",
                                       .workers = wishes[i].workers,
                                       .priority = wishes[i].priority};
    struct queue_fleet fleet = {.kind = "cpu",
                                .attached = attached,
                                .expected = expected,
                                .idle = idle};
    queue_decide(items, count, &fleet, 1);
    char text[64] = "";
    for (int i = 0; i < count; i++) {
        const struct standing *standing = &items[i].standing;
        size_t length = strlen(text);
        snprintf(text + length, sizeof text - length, "%s%c%d%d", i ? " " : "",
                 standing->decision == QUEUE_START       ? 's'
                 : standing->decision == QUEUE_WAIT_TURN ? 't'
                                                         : 'w',
                 standing->position, standing->higher);
    }
    ck_assert_str_eq(text, answer);
}

#define WISHES(...) (struct wish[]){__VA_ARGS__}, (int)(sizeof((struct wish[]){__VA_ARGS__}) / 8)

START_TEST(test_decisions)
{
    check_queue(WISHES({2, 0}), 2, 2, 2, "s10");
    check_queue(WISHES({2, 0}, {2, 0}), 2, 2, 2, "s10 t10");
    check_queue(WISHES({2, 0}, {2, 0}), 4, 4, 4, "s10 s10");
    check_queue(WISHES({1, 0}, {1, 0}, {1, 0}), 2, 2, 2, "s10 s10 t10");
    /* A large one is not starved by small ones behind it ... */
    check_queue(WISHES({3, 0}, {1, 0}, {1, 0}), 3, 3, 2, "t10 t20 t30");
    /* ... unless it is larger than all that there is. */
    check_queue(WISHES({4, 0}, {1, 0}, {1, 0}), 3, 3, 3, "w10 s20 s20");
    /* Workers that are being started count as existing, but not as idle. */
    check_queue(WISHES({2, 0}, {1, 0}), 1, 2, 1, "t10 t20");
    check_queue(WISHES({1, 0}), 0, 0, 0, "w10");
    /* Of those before it, some may have a higher priority. */
    check_queue(WISHES({2, 5}, {1, 5}, {1, 0}, {1, 0}, {1, -1}), 2, 2, 1,
                "t10 t20 t32 t42 t54");

    struct queue_item items[] = {{.kind = "cuda", .workers = 1},
                                 {.kind = "cpu", .workers = 1},
                                 {.kind = "tpu", .workers = 1}};
    struct queue_fleet fleets[] = {{.kind = "cpu", .expected = 1, .idle = 1},
                                   {.kind = "cuda", .expected = 1, .idle = 0}};
    queue_decide(items, 3, fleets, 2);
    ck_assert_int_eq(items[0].standing.decision, QUEUE_WAIT_TURN); /* holds up no other kind */
    ck_assert_int_eq(items[1].standing.decision, QUEUE_START);
    ck_assert_int_eq(items[2].standing.decision, QUEUE_WAIT_WORKERS);
}
END_TEST

START_TEST(test_ordinals)
{
    static const struct {
        int number;
        const char *text;
    } cases[] = {{1, "1st"},   {2, "2nd"},   {3, "3rd"},     {4, "4th"},     {11, "11th"},
                 {12, "12th"}, {13, "13th"}, {21, "21st"},   {101, "101st"}, {111, "111th"},
                 {102, "102nd"}};
    char text[16];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        ck_assert_str_eq(queue_ordinal(cases[i].number, text), cases[i].text);
}
END_TEST

/* "a/0 a/1 b/0": host and id of those chosen. `idle` in any order, likewise. */
static void check_placement(const char *idle, int count, const char *answer)
{
    struct placement_worker workers[16];
    char names[16][8], text[128] = "";
    int found = 0;
    for (const char *at = idle; *at != '\0'; at += *at == ' ') {
        size_t length = strcspn(at, " ");
        memcpy(names[found], at, length);
        names[found][length] = '\0';
        char *slash = strchr(names[found], '/');
        *slash = '\0';
        workers[found] = (struct placement_worker){names[found], slash + 1, NULL};
        found++;
        at += length;
    }
    placement_choose(workers, found, count);
    for (int i = 0; i < count; i++) {
        size_t length = strlen(text);
        snprintf(text + length, sizeof text - length, "%s%s/%s", i ? " " : "", workers[i].host,
                 workers[i].id);
    }
    ck_assert_str_eq(text, answer);
}

START_TEST(test_placement)
{
    check_placement("a/0", 1, "a/0");
    check_placement("a/1 a/0 a/10 a/2", 4, "a/0 a/1 a/2 a/10");
    /* One host, if one has enough: the one with the least to spare. */
    check_placement("a/0 a/1 a/2 b/0 b/1 c/0", 2, "b/0 b/1");
    check_placement("a/0 a/1 a/2 b/0 b/1 c/0", 1, "c/0");
    check_placement("a/0 a/1 a/2 b/0 b/1 c/0", 3, "a/0 a/1 a/2");
    /* As few as can be: the largest, and the smallest that has the rest. */
    check_placement("a/0 b/0 b/1 b/2 c/0 c/1", 4, "a/0 b/0 b/1 b/2");
    check_placement("a/0 b/0 b/1 b/2 c/0 c/1", 5, "b/0 b/1 b/2 c/0 c/1");
    check_placement("a/0 b/0 b/1 b/2 c/0 c/1", 6, "a/0 b/0 b/1 b/2 c/0 c/1");
    check_placement("h10/0 h9/0 h2/0", 3, "h2/0 h9/0 h10/0");
}
END_TEST

/* ---- a real one ---- */

static struct world world;

static void set_up(void)
{
    world_init(&world);
}

static void tear_down(void)
{
    world_deinit(&world);
}

/* Submits what `spec` says; NULL for a refusal, whose status is in *refused. */
static char *submit(const job_spec *spec, status_t *refused)
{
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = (job_spec *)spec;
    void *response = NULL;
    status_t status = world_call(&world, &test_submit, &request, &response);
    if (refused != NULL) *refused = status;
    else expect_ok(status);
    if (status != NULL) return NULL;
    char *id = mem_strdup(((job_message *)response)->id);
    message_free(response);
    return id;
}

static char *submit_priority(uint32_t workers, int priority)
{
    job_spec spec = *world_spec(workers);
    spec.priority = priority;
    return submit(&spec, NULL);
}

static char *submit_after(const char *after, const char *after_any, status_t *refused)
{
    job_spec spec = *world_spec(1);
    char *jobs[] = {(char *)after}, *any[] = {(char *)after_any};
    if (after != NULL) spec.n_after = 1, spec.after = jobs;
    if (after_any != NULL) spec.n_after_any = 1, spec.after_any = any;
    return submit(&spec, refused);
}

/* The fake has been given this job, and starts it. */
static void expect_start(struct fake *fake, int assignments, const char *id)
{
    WAIT(&world, fake->assignments == assignments);
    ck_assert_str_eq(fake->assignment->job, id);
    fake_started(fake, 42);
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
}

static void end_job(struct fake *fake, const char *id, enum status_code code)
{
    fake_finished(fake, code, code == STATUS_OK ? "" : "it broke");
    WAIT(&world, world_job_is(&world, id, code == STATUS_OK ? JOB_SUCCEEDED : JOB_FAILED));
}

static void expect_position(const char *id, uint32_t position)
{
    job_message *job = world_job(&world, id);
    ck_assert_msg(job->queue_position == position, "%s is %u: %s", id, job->queue_position,
                  job->reason->message);
    message_free(job);
}

START_TEST(test_priorities)
{
    struct fake fake;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    char *running = submit_priority(1, 0);
    expect_start(&fake, 1, running);
    char *low = submit_priority(1, -3), *old = submit_priority(1, 0);
    char *young = submit_priority(1, 0), *high = submit_priority(1, 7);
    expect_position(running, 0);
    expect_position(high, 1);
    expect_position(old, 2);
    expect_position(young, 3);
    expect_position(low, 4);
    world_check_reason(&world, high, JOB_QUEUED, "QUEUED", "1st; waits for 1 of 1 cpu worker");
    world_check_reason(&world, old, JOB_QUEUED, "QUEUED",
                       "2nd; 1 job is before it, 1 of higher priority");
    world_check_reason(&world, young, JOB_QUEUED, "QUEUED",
                       "3rd; 2 jobs are before it, 1 of higher priority");
    char *large = submit_priority(2, 0);
    world_check_reason(&world, large, JOB_QUEUED, "WAITING_FOR_WORKERS",
                       "4th; needs 2 cpu workers, 1 is attached");
    end_job(&fake, running, STATUS_OK);
    expect_start(&fake, 2, high);
    end_job(&fake, high, STATUS_OK);
    expect_start(&fake, 3, old);
    end_job(&fake, old, STATUS_OK);
    expect_start(&fake, 4, young);
    end_job(&fake, young, STATUS_OK);
    expect_start(&fake, 5, low);

    /* The large one gets its workers when there are enough, before what comes later. */
    struct fake second;
    char *later = submit_priority(1, 0);
    fake_attach(&world, &second, "host/cpu:1", 2);
    world_check_reason(&world, large, JOB_QUEUED, "QUEUED", "1st; waits for 1 of 2 cpu workers");
    world_check_reason(&world, later, JOB_QUEUED, "QUEUED", "2nd; 1 job is before it");
    end_job(&fake, low, STATUS_OK);
    WAIT(&world, second.assignments == 1);
    ck_assert_str_eq(second.assignment->job, large);
    ck_assert_int_eq(fake.assignments, 6);
    fake_deinit(&fake);
    fake_deinit(&second);
    free(running), free(low), free(old), free(young), free(high), free(large), free(later);
}
END_TEST

START_TEST(test_one_host)
{
    struct fake fakes[4];
    static const char *const ids[] = {"b/cpu:0", "a/cpu:0", "b/cpu:1", "c/cpu:0"};
    world_start(&world);
    for (int i = 0; i < 4; i++) fake_attach(&world, &fakes[i], ids[i], i + 1);
    char *id = submit_priority(2, 0);
    WAIT(&world, fakes[0].assignments == 1 && fakes[2].assignments == 1);
    ck_assert_uint_eq(fakes[0].assignment->rank, 0);
    ck_assert_uint_eq(fakes[2].assignment->rank, 1);
    for (int i = 0; i < 4; i++) fake_deinit(&fakes[i]);
    free(id);
}
END_TEST

START_TEST(test_dependencies)
{
    struct fake fake;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    status_t refused = NULL;
    submit_after("nothing-1", NULL, &refused);
    expect_status(refused, STATUS_NOT_FOUND, "after: there is no job nothing-1");
    submit_after(NULL, "nothing-1", &refused);
    expect_status(refused, STATUS_NOT_FOUND, "after_any: there is no job nothing-1");

    char *first = submit_priority(1, 0);
    expect_start(&fake, 1, first);
    char *second = submit_after(first, NULL, NULL), *third = submit_after(second, NULL, NULL);
    char *whatever = submit_after(NULL, second, NULL);
    world_check_reason(&world, second, JOB_QUEUED, "WAITING_FOR_JOB", "waits for mnist-1");
    expect_position(second, 0);
    char *free_one = submit_priority(1, -9);
    expect_position(free_one, 1); /* those that wait for jobs are not before it */
    end_job(&fake, first, STATUS_OK);
    expect_start(&fake, 2, second);
    end_job(&fake, second, STATUS_INTERNAL);
    world_check_reason(&world, third, JOB_CANCELLED, "DEPENDENCY_FAILED",
                       "job mnist-2, after which it was to start, is FAILED");
    expect_start(&fake, 3, whatever);
    submit_after(second, NULL, &refused);
    expect_status(refused, STATUS_FAILED_PRECONDITION, "job mnist-2 is FAILED");
    char *late = submit_after(first, second, NULL);
    expect_position(late, 1);

    /* Cancelling the head of a chain takes all of it along. */
    char *a = submit_after(whatever, NULL, NULL), *b = submit_after(a, NULL, NULL);
    char *c = submit_after(b, NULL, NULL);
    expect_ok(world_cancel(&world, a));
    world_check_reason(&world, b, JOB_CANCELLED, "DEPENDENCY_FAILED", "is CANCELLED");
    world_check_reason(&world, c, JOB_CANCELLED, "DEPENDENCY_FAILED", "job mnist-8,");
    fake_deinit(&fake);
    free(first), free(second), free(third), free(whatever), free(free_one), free(late);
    free(a), free(b), free(c);
}
END_TEST

START_TEST(test_dependencies_after_a_restart)
{
    struct fake fake;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    char *first = submit_priority(2, 0); /* there is one worker: it waits */
    char *second = submit_after(first, NULL, NULL), *third = submit_after(second, first, NULL);
    world_stop(&world);
    fake_deinit(&fake);
    world_start(&world);
    world_check_reason(&world, second, JOB_QUEUED, "WAITING_FOR_JOB", "waits for mnist-1");
    world_check_reason(&world, third, JOB_QUEUED, "WAITING_FOR_JOB", "waits for mnist-2 and 1 more job");
    expect_ok(world_cancel(&world, first));
    world_check_reason(&world, second, JOB_CANCELLED, "DEPENDENCY_FAILED", "mnist-1");
    world_check_reason(&world, third, JOB_CANCELLED, "DEPENDENCY_FAILED", "mnist-2");
    free(first), free(second), free(third);
}
END_TEST

static char *submit_deadline(const char *start, const char *finish, status_t *refused)
{
    job_spec spec = *world_spec(1);
    Fsdpd__V1__DeadlineSpec deadline = FSDPD__V1__DEADLINE_SPEC__INIT;
    if (start != NULL) deadline.start = (char *)start;
    if (finish != NULL) deadline.finish = (char *)finish;
    spec.deadline = &deadline;
    return submit(&spec, refused);
}

START_TEST(test_deadlines)
{
    struct fake fake;
    char at[32];
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    status_t refused = NULL;
    submit_deadline("2001-01-01T00:00:00Z", NULL, &refused);
    expect_status(refused, STATUS_INVALID_ARGUMENT, "deadline.start: 2001-01-01T00:00:00Z has");
    submit_deadline(NULL, "2001-01-01T00:00:00Z", &refused);
    expect_status(refused, STATUS_INVALID_ARGUMENT, "deadline.finish: 2001-01-01T00:00:00Z has");
    submit_deadline("2h", "1h", &refused);
    expect_status(refused, STATUS_INVALID_ARGUMENT, "expected a time before deadline.finish (1h)");

    char *running = submit_deadline("0.2s", "0.7s", NULL);
    expect_start(&fake, 1, running);
    char *waiting = submit_deadline("0.2s", NULL, NULL);
    clock_format_wall(clock_wall_ms() + 200, at);
    char *timed = submit_deadline(NULL, at, NULL);
    char *patient = submit_deadline("1h", "2h", NULL);
    WAIT(&world, world_job_is(&world, waiting, JOB_FAILED));
    world_check_reason(&world, waiting, JOB_FAILED, "DEADLINE_EXCEEDED",
                       "it was not started within 0.2s of its submission");
    WAIT(&world, world_job_is(&world, timed, JOB_FAILED));
    world_check_reason(&world, timed, JOB_FAILED, "DEADLINE_EXCEEDED", "it was not over by 20");
    WAIT(&world, fake.cancels == 1); /* the one that runs is asked to end */
    world_check_reason(&world, running, JOB_RUNNING, "CANCELLING", "within 0.7s");
    fake_finished(&fake, STATUS_CANCELLED, "");
    WAIT(&world, world_job_is(&world, running, JOB_FAILED));
    world_check_reason(&world, running, JOB_FAILED, "DEADLINE_EXCEEDED",
                       "it was not over within 0.7s of its submission; it ended at step");
    expect_start(&fake, 2, patient);
    job_message *job = world_job(&world, patient);
    ck_assert_int_eq(job->start_by_ms, job->submitted_ms + 3600000);
    ck_assert_int_eq(job->finish_by_ms, job->submitted_ms + 7200000);
    message_free(job);
    fake_deinit(&fake);
    free(running), free(waiting), free(timed), free(patient);
}
END_TEST

START_TEST(test_histories)
{
    struct fake fake;
    world_start(&world);
    char *id = NULL;
    fake_attach(&world, &fake, "host/cpu:0", 1);
    id = submit_priority(1, 0);
    expect_start(&fake, 1, id);
    for (int i = 1; i <= 20; i++) fake_metrics(&fake, (uint64_t)i, 0.5);
    end_job(&fake, id, STATUS_OK);
    for (int restarted = 0; restarted < 2; restarted++) {
        Fsdpd__V1__GetHistoryRequest request = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
        request.id = id;
        void *response = NULL;
        expect_ok(world_call(&world, &test_history, &request, &response));
        const Fsdpd__V1__History *history = response;
        static const int states[] = {JOB_QUEUED, JOB_STARTING, JOB_RUNNING, JOB_SUCCEEDED};
        ck_assert_uint_eq(history->n_entries, 4);
        for (int i = 0; i < 4; i++) {
            const Fsdpd__V1__HistoryEntry *entry = history->entries[i];
            ck_assert_int_eq(entry->state, states[i]);
            ck_assert_int_eq((int)entry->attempt, i > 0);
            if (i > 0) ck_assert_int_ge(entry->time_ms, history->entries[i - 1]->time_ms);
        }
        ck_assert_str_eq(history->entries[3]->reason->code, "DONE");
        ck_assert_uint_ge(history->entries[3]->step, 20);
        message_free(response);
        request.id = (char *)"nothing-1";
        expect_status(world_call(&world, &test_history, &request, NULL), STATUS_NOT_FOUND, "nothing-1");
        if (restarted) break;
        fake_deinit(&fake);
        world_stop(&world);
        world_start(&world);
    }
    free(id);
}
END_TEST

static uint32_t count_listed(const Fsdpd__V1__ListJobsRequest *request, uint32_t *left_out)
{
    void *response = NULL;
    expect_ok(world_call(&world, &test_list, request, &response));
    const Fsdpd__V1__ListJobsResponse *list = response;
    uint32_t count = (uint32_t)list->n_jobs;
    if (left_out != NULL) *left_out = list->left_out;
    message_free(response);
    return count;
}

START_TEST(test_filters)
{
    struct fake fake;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    char *ids[5];
    for (int i = 0; i < 5; i++) {
        job_spec spec = *world_spec(9); /* none of them starts */
        Fsdpd__V1__JobSpec__LabelsEntry team = FSDPD__V1__JOB_SPEC__LABELS_ENTRY__INIT, run = team;
        Fsdpd__V1__JobSpec__LabelsEntry *labels[] = {&team, &run};
        team.key = (char *)"team";
        team.value = (char *)(i < 2 ? "vision" : "nlp");
        run.key = (char *)"run";
        run.value = (char *)(i % 2 ? "odd" : "even");
        spec.n_labels = 2;
        spec.labels = labels;
        spec.name = (char *)(i < 3 ? "mnist" : "gpt");
        ids[i] = submit(&spec, NULL);
    }
    expect_ok(world_cancel(&world, ids[0]));
    Fsdpd__V1__ListJobsRequest request = FSDPD__V1__LIST_JOBS_REQUEST__INIT;
    Fsdpd__V1__ListJobsRequest__LabelsEntry first = FSDPD__V1__LIST_JOBS_REQUEST__LABELS_ENTRY__INIT;
    Fsdpd__V1__ListJobsRequest__LabelsEntry second = first, *labels[] = {&first, &second};
    ck_assert_uint_eq(count_listed(&request, NULL), 5);
    request.labels = labels;
    request.n_labels = 1;
    first.key = (char *)"team";
    first.value = (char *)"vision";
    ck_assert_uint_eq(count_listed(&request, NULL), 2);
    first.value = (char *)"n*";
    ck_assert_uint_eq(count_listed(&request, NULL), 3);
    request.n_labels = 2;
    second.key = (char *)"run";
    second.value = (char *)"odd";
    ck_assert_uint_eq(count_listed(&request, NULL), 1);
    second.value = (char *)"";
    ck_assert_uint_eq(count_listed(&request, NULL), 0);
    second.key = (char *)"../x";
    expect_status(world_call(&world, &test_list, &request, NULL), STATUS_INVALID_ARGUMENT, "labels");
    request.n_labels = 0;
    Fsdpd__V1__JobState states[] = {FSDPD__V1__JOB_STATE__CANCELLED, FSDPD__V1__JOB_STATE__RUNNING};
    request.states = states;
    request.n_states = 2;
    ck_assert_uint_eq(count_listed(&request, NULL), 1);
    request.n_states = 0;
    request.name = (char *)"gp?";
    ck_assert_uint_eq(count_listed(&request, NULL), 2);
    request.name = (char *)"*-1";
    ck_assert_uint_eq(count_listed(&request, NULL), 2); /* ids, too */
    request.name = (char *)"";
    request.owner = (char *)"nobody at all";
    ck_assert_uint_eq(count_listed(&request, NULL), 0);
    request.owner = (char *)"";
    request.limit = 2;
    uint32_t left_out = 0;
    ck_assert_uint_eq(count_listed(&request, &left_out), 2);
    ck_assert_uint_eq(left_out, 3);
    request.states[0] = (Fsdpd__V1__JobState)99;
    request.n_states = 1;
    expect_status(world_call(&world, &test_list, &request, NULL), STATUS_INVALID_ARGUMENT, "99");
    fake_deinit(&fake);
    for (int i = 0; i < 5; i++) free(ids[i]);
}
END_TEST

/* The same job, whatever the order that a map came in, and with or without an empty section. */
START_TEST(test_repeated_submission)
{
    struct fake fake;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    job_spec spec = *world_spec(9);
    Fsdpd__V1__JobSpec__LabelsEntry a = FSDPD__V1__JOB_SPEC__LABELS_ENTRY__INIT, b = a;
    Fsdpd__V1__JobSpec__LabelsEntry *labels[] = {&a, &b};
    a.key = (char *)"a";
    b.key = (char *)"b";
    spec.n_labels = 2;
    spec.labels = labels;
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = &spec;
    request.id = (char *)"mine";
    expect_ok(world_call(&world, &test_submit, &request, NULL));
    labels[0] = &b;
    labels[1] = &a;
    Fsdpd__V1__DeadlineSpec deadline = FSDPD__V1__DEADLINE_SPEC__INIT;
    spec.deadline = &deadline;
    expect_ok(world_call(&world, &test_submit, &request, NULL));
    a.value = (char *)"x";
    expect_status(world_call(&world, &test_submit, &request, NULL), STATUS_ALREADY_EXISTS, "mine");
    Fsdpd__V1__ListJobsRequest list = FSDPD__V1__LIST_JOBS_REQUEST__INIT;
    ck_assert_uint_eq(count_listed(&list, NULL), 1);
    fake_deinit(&fake);
}
END_TEST

static status_t hold(const char *id, void **response)
{
    Fsdpd__V1__HoldJobRequest request = FSDPD__V1__HOLD_JOB_REQUEST__INIT;
    request.id = (char *)id;
    return world_call(&world, &test_hold, &request, response);
}

static status_t release(const char *id)
{
    Fsdpd__V1__ReleaseJobRequest request = FSDPD__V1__RELEASE_JOB_REQUEST__INIT;
    request.id = (char *)id;
    return world_call(&world, &test_release, &request, NULL);
}

static status_t set_priority(const char *id, int priority)
{
    Fsdpd__V1__SetPriorityRequest request = FSDPD__V1__SET_PRIORITY_REQUEST__INIT;
    request.id = (char *)id;
    request.priority = priority;
    return world_call(&world, &test_priority, &request, NULL);
}

START_TEST(test_hold_and_release)
{
    struct fake fake;
    void *response = NULL;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    char *running = submit_priority(1, 0);
    expect_start(&fake, 1, running);
    expect_status(hold(running, NULL), STATUS_FAILED_PRECONDITION, "only a queued job can be held");
    char *first = submit_priority(1, 0), *second = submit_priority(1, 0);
    expect_ok(hold(first, &response));
    job_message *job = response;
    ck_assert_str_ne(job->owner, "");
    ck_assert_str_eq(job->held_by, job->owner); /* this process did both */
    ck_assert_str_eq(job->reason->code, "HELD");
    ck_assert_uint_eq(job->queue_position, 0);
    char *reason = mem_printf("held by %s", job->owner);
    message_free(job);
    expect_ok(hold(first, NULL)); /* again */
    expect_position(second, 1);

    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    request.hold = true;
    expect_ok(world_call(&world, &test_submit, &request, NULL));
    world_check_reason(&world, "mnist-4", JOB_QUEUED, "HELD", reason);

    /* It stays held through a restart, and is known to be. */
    end_job(&fake, running, STATUS_OK);
    expect_start(&fake, 2, second);
    end_job(&fake, second, STATUS_OK);
    fake_deinit(&fake);
    world_stop(&world);
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    world_check_reason(&world, first, JOB_QUEUED, "HELD", reason);
    ck_assert_int_eq(fake.assignments, 0);
    expect_ok(release("mnist-4"));
    expect_start(&fake, 1, "mnist-4");
    expect_ok(release(first));
    expect_ok(release(first)); /* again */
    expect_position(first, 1);
    end_job(&fake, "mnist-4", STATUS_OK);
    expect_start(&fake, 2, first);
    end_job(&fake, first, STATUS_OK);
    expect_status(hold(first, NULL), STATUS_FAILED_PRECONDITION, "is over already");
    expect_status(hold("nothing-1", NULL), STATUS_NOT_FOUND, "nothing-1");

    Fsdpd__V1__GetHistoryRequest asked = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    asked.id = first;
    expect_ok(world_call(&world, &test_history, &asked, &response));
    const Fsdpd__V1__History *history = response;
    struct buf codes = {0};
    for (size_t i = 0; i < history->n_entries; i++) {
        buf_printf(&codes, "%s ", history->entries[i]->reason->code);
        bool users = i <= 2; /* submitted, held, released */
        ck_assert_msg((history->entries[i]->by[0] != '\0') == users, "%zu", i);
    }
    ck_assert_str_eq(buf_text(&codes), "QUEUED HELD QUEUED STARTING RUNNING DONE ");
    buf_deinit(&codes);
    message_free(response);
    fake_deinit(&fake);
    free(running), free(first), free(second), free(reason);
}
END_TEST

START_TEST(test_changed_priority)
{
    struct fake fake;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    char *running = submit_priority(1, 0);
    expect_start(&fake, 1, running);
    char *first = submit_priority(1, 0), *second = submit_priority(1, 0);
    expect_ok(set_priority(second, 9));
    expect_position(second, 1);
    expect_position(first, 2);
    expect_status(set_priority(second, 1001), STATUS_INVALID_ARGUMENT, "-1000 to 1000, found 1001");
    expect_ok(set_priority(running, 3)); /* counts if it is queued again */
    world_check_reason(&world, running, JOB_RUNNING, "RUNNING", "training");
    fake_deinit(&fake);
    world_stop(&world);
    world_start(&world);
    job_message *job = world_job(&world, second);
    ck_assert_int_eq(job->priority, 9);
    ck_assert_int_eq(job->spec->priority, 0); /* as it was submitted */
    ck_assert_uint_eq(job->queue_position, 1);
    message_free(job);
    free(running), free(first), free(second);
}
END_TEST

START_TEST(test_ownership)
{
    job_message job = FSDPD__V1__JOB__INIT;
    struct rpc_peer peer = {.kind = RPC_PEER_UNIX, .name = "bob", .roles = RPC_USER};
    job.id = (char *)"mnist-1";
    job.owner = (char *)"alice";
    expect_status(access_check(&peer, &job, "hold"), STATUS_PERMISSION_DENIED,
                  "job mnist-1 belongs to alice: only its owner or an operator may hold it, and "
                  "you are bob");
    peer.name = "alice";
    expect_ok(access_check(&peer, &job, "hold"));
    peer.name = "bob";
    peer.roles = RPC_USER | RPC_OPERATOR;
    expect_ok(access_check(&peer, &job, "hold"));
    peer.roles = RPC_WORKER;
    expect_status(access_check(&peer, &job, "hold"), STATUS_PERMISSION_DENIED, "alice");
    job.owner = (char *)""; /* of an older fsdpd */
    peer.roles = RPC_USER;
    peer.name = "";
    expect_status(access_check(&peer, &job, "hold"), STATUS_PERMISSION_DENIED, "operator");
}
END_TEST

static status_t drain(const char *worker, bool now)
{
    Fsdpd__V1__DrainWorkersRequest request = FSDPD__V1__DRAIN_WORKERS_REQUEST__INIT;
    request.worker = (char *)worker;
    request.now = now;
    return world_call(&world, &test_drain, &request, NULL);
}

static status_t undrain(const char *worker)
{
    Fsdpd__V1__UndrainWorkersRequest request = FSDPD__V1__UNDRAIN_WORKERS_REQUEST__INIT;
    request.worker = (char *)worker;
    return world_call(&world, &test_undrain, &request, NULL);
}

static void expect_worker(const char *id, const char *state)
{
    Fsdpd__V1__ListWorkersRequest request = FSDPD__V1__LIST_WORKERS_REQUEST__INIT;
    void *response = NULL;
    expect_ok(world_call(&world, &test_workers, &request, &response));
    const Fsdpd__V1__ListWorkersResponse *list = response;
    for (size_t i = 0; i < list->n_workers; i++) {
        const Fsdpd__V1__Worker *worker = list->workers[i];
        if (strcmp(worker->id, id) != 0) continue;
        ck_assert_str_eq(worker->state, state);
        bool drained = strncmp(state, "drain", 5) == 0;
        ck_assert_int_eq(worker->drained, drained);
        ck_assert_int_eq(worker->drained_by[0] != '\0', drained);
        ck_assert_int_eq(worker->drained_ms > 0, drained);
    }
    message_free(response);
}

START_TEST(test_drains)
{
    struct fake fakes[3];
    static const char *const ids[] = {"a/cpu:0", "b/cpu:0", "b/cpu:1"};
    world_start(&world);
    for (int i = 0; i < 3; i++) fake_attach(&world, &fakes[i], ids[i], i + 1);
    expect_status(drain("c", false), STATUS_NOT_FOUND, "no worker c is attached");
    expect_status(drain("", false), STATUS_INVALID_ARGUMENT, "worker: expected the id");
    char *first = submit_priority(1, 0);
    expect_start(&fakes[0], 1, first);
    expect_ok(drain("a/cpu:0", false));
    expect_ok(drain("a/cpu:0", false)); /* again */
    expect_worker("a/cpu:0", "draining");
    char *second = submit_priority(2, 0), *third = submit_priority(1, 0);
    WAIT(&world, fakes[1].assignments == 1 && fakes[2].assignments == 1);
    world_check_reason(&world, third, JOB_QUEUED, "QUEUED", "1st; waits for 1 of 1 cpu worker");
    end_job(&fakes[0], first, STATUS_OK);
    expect_worker("a/cpu:0", "drained");
    world_run(&world, 50);
    ck_assert_int_eq(fakes[0].assignments, 1);

    /* Through a restart; and a host, with what attaches later. */
    expect_ok(drain("b", false));
    for (int i = 0; i < 3; i++) fake_deinit(&fakes[i]);
    world_stop(&world);
    world_start(&world);
    fake_attach(&world, &fakes[0], "a/cpu:0", 1);
    fake_attach(&world, &fakes[1], "b/cpu:7", 2);
    expect_worker("a/cpu:0", "drained");
    expect_worker("b/cpu:7", "drained");
    world_check_reason(&world, third, JOB_QUEUED, "WAITING_FOR_WORKERS",
                       "1st; needs 1 cpu worker, 0 are attached and 2 drained");
    expect_status(undrain("b/cpu:7"), STATUS_FAILED_PRECONDITION, "undrain b");
    expect_ok(undrain("b"));
    expect_ok(undrain("b")); /* again */
    expect_start(&fakes[1], 1, third);
    expect_worker("b/cpu:7", "busy");

    /* At once: the attempt ends at a step boundary. */
    expect_ok(drain("b", true));
    WAIT(&world, fakes[1].cancels == 1);
    fake_finished(&fakes[1], STATUS_CANCELLED, "");
    WAIT(&world, !world_job_is(&world, third, JOB_RUNNING));
    Fsdpd__V1__GetHistoryRequest asked = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    asked.id = third;
    void *response = NULL;
    expect_ok(world_call(&world, &test_history, &asked, &response));
    const Fsdpd__V1__History *history = response;
    bool told = false;
    for (size_t i = 0; i < history->n_entries; i++)
        told = told || strcmp(history->entries[i]->reason->code, "WORKER_DRAINED") == 0;
    ck_assert(told);
    message_free(response);
    fake_deinit(&fakes[0]);
    fake_deinit(&fakes[1]);
    free(first), free(second), free(third);
}
END_TEST

START_TEST(test_jobs_per_user)
{
    struct fake fake;
    world.options.limits.jobs_per_user = 2;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    free(submit_priority(9, 0));
    char *id = submit_priority(9, 0);
    status_t refused = NULL;
    submit(world_spec(9), &refused);
    expect_status(refused, STATUS_RESOURCE_EXHAUSTED, "the limit per user");
    expect_ok(world_cancel(&world, id));
    free(id);
    free(submit_priority(9, 0));
    fake_deinit(&fake);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("queue");
    TCase *parts = tcase_create("parts");
    tcase_add_test(parts, test_decisions);
    tcase_add_test(parts, test_ordinals);
    tcase_add_test(parts, test_placement);
    tcase_add_test(parts, test_ownership);
    suite_add_tcase(suite, parts);
    TCase *whole = tcase_create("whole");
    tcase_add_checked_fixture(whole, set_up, tear_down);
    tcase_set_timeout(whole, 60);
    tcase_add_test(whole, test_priorities);
    tcase_add_test(whole, test_one_host);
    tcase_add_test(whole, test_dependencies);
    tcase_add_test(whole, test_dependencies_after_a_restart);
    tcase_add_test(whole, test_deadlines);
    tcase_add_test(whole, test_histories);
    tcase_add_test(whole, test_filters);
    tcase_add_test(whole, test_repeated_submission);
    tcase_add_test(whole, test_jobs_per_user);
    tcase_add_test(whole, test_drains);
    tcase_add_test(whole, test_hold_and_release);
    tcase_add_test(whole, test_changed_priority);
    suite_add_tcase(suite, whole);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
