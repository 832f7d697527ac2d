/*
 * The queue: the order of jobs, the workers that a job gets, jobs that wait for others, deadlines,
 * filters of lists, histories. Decisions first, then a real coordinator with workers that exist
 * only as links (test_coordinator_world.h).
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "coordinator/scheduler/placement.h"
#include "coordinator/scheduler/queue.h"
#include "test_queue_world.h"
#include "tests/testing.h"

/* ---- decisions ---- */

struct queued_job {
    int workers, priority;
};

/* One letter per item: start, its turn, workers; then its position and the number of jobs of higher
 * priority before it. */
static void check_queue(const struct queued_job *queued_jobs, int count, int attached, int expected,
                        int idle, const char *answer)
{
    struct queue_item items[8];
    for (int i = 0; i < count; i++)
        items[i] = (struct queue_item){.kind = "cpu",
                                       .workers = queued_jobs[i].workers,
                                       .priority = queued_jobs[i].priority};
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

#define QUEUED_JOBS(...)                                                                           \
    (struct queued_job[]){__VA_ARGS__}, (int)(sizeof((struct queued_job[]){__VA_ARGS__}) / 8)

TEST(decisions)
{
    check_queue(QUEUED_JOBS({2, 0}), 2, 2, 2, "s10");
    check_queue(QUEUED_JOBS({2, 0}, {2, 0}), 2, 2, 2, "s10 t10");
    check_queue(QUEUED_JOBS({2, 0}, {2, 0}), 4, 4, 4, "s10 s10");
    check_queue(QUEUED_JOBS({1, 0}, {1, 0}, {1, 0}), 2, 2, 2, "s10 s10 t10");
    /* Small jobs behind a large one do not starve it ... */
    check_queue(QUEUED_JOBS({3, 0}, {1, 0}, {1, 0}), 3, 3, 2, "t10 t20 t30");
    /* ... unless it is larger than the whole cluster. */
    check_queue(QUEUED_JOBS({4, 0}, {1, 0}, {1, 0}), 3, 3, 3, "w10 s20 s20");
    /* Workers that are being started count as existing, but not as idle. */
    check_queue(QUEUED_JOBS({2, 0}, {1, 0}), 1, 2, 1, "t10 t20");
    check_queue(QUEUED_JOBS({1, 0}), 0, 0, 0, "w10");
    /* Of those before it, some may have a higher priority. */
    check_queue(QUEUED_JOBS({2, 5}, {1, 5}, {1, 0}, {1, 0}, {1, -1}), 2, 2, 1,
                "t10 t20 t32 t42 t54");

    struct queue_item items[] = {{.kind = "cuda", .workers = 1},
                                 {.kind = "cpu", .workers = 1},
                                 {.kind = "tpu", .workers = 1}};
    struct queue_fleet fleets[] = {{.kind = "cpu", .expected = 1, .idle = 1},
                                   {.kind = "cuda", .expected = 1, .idle = 0}};
    queue_decide(items, 3, fleets, 2);
    ck_assert_int_eq(items[0].standing.decision, QUEUE_WAIT_TURN); /* delays no other kind */
    ck_assert_int_eq(items[1].standing.decision, QUEUE_START);
    ck_assert_int_eq(items[2].standing.decision, QUEUE_WAIT_WORKERS);
}

/* A job that may have more workers than it needs takes what is idle, before those behind it. */
TEST(elastic_jobs_take_what_is_idle)
{
    static const struct {
        int idle, left;
        enum queue_decision first, second;
    } cases[] = {{1, 1, QUEUE_WAIT_TURN, QUEUE_WAIT_TURN},
                 {2, 0, QUEUE_START, QUEUE_WAIT_TURN},
                 {4, 0, QUEUE_START, QUEUE_WAIT_TURN},
                 {6, 1, QUEUE_START, QUEUE_START}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct queue_item items[] = {{.kind = "cpu", .workers = 2, .most = 4},
                                     {.kind = "cpu", .workers = 1}};
        struct queue_fleet fleet = {.kind = "cpu", .expected = 8, .idle = cases[i].idle};
        queue_decide(items, 2, &fleet, 1);
        ck_assert_int_eq(items[0].standing.decision, cases[i].first);
        ck_assert_int_eq(items[1].standing.decision, cases[i].second);
        ck_assert_int_eq(fleet.idle, cases[i].left);
    }
}

/* Whatever exists, is idle or reserved: a job that waits misses at least one worker, and not more
 * than it needs. */
static void check_turn(const struct standing *standing)
{
    AUTO(buf_deinit) struct buf text = {0};
    queue_describe_turn(standing, "cpu", &text);
    const char *reason = strstr(buf_text(&text), "; ");
    ck_assert_ptr_nonnull(reason);
    int first = 0, second = 0;
    char plural[2] = "", verb[4] = "";
    if (sscanf(reason, "; waits for %d of %d cpu worker%1s", &first, &second, plural) >= 2) {
        ck_assert_msg(first >= 1 && first <= second, "%s", reason);
        ck_assert_str_eq(plural, second == 1 ? "" : "s");
    } else if (sscanf(reason, "; needs %d cpu worker%1[s], %d %3s attached", &first, plural,
                      &second, verb) == 4 ||
               sscanf(reason, "; needs %d cpu worker, %d %3s attached", &first, &second, verb) ==
                   3) {
        ck_assert_msg(second >= 0 && first > second, "%s", reason);
        ck_assert_str_eq(plural, first == 1 ? "" : "s");
        ck_assert_str_eq(verb, second == 1 ? "is" : "are");
    } else if (sscanf(reason, "; needs %d cpu workers, and of the %*d that are attached only %d",
                      &first, &second) == 2) {
        ck_assert_msg(first > second && second >= 1, "%s", reason);
    } else {
        ck_assert_int_eq(sscanf(reason, "; %d job%1[s] are before it", &first, plural) +
                             sscanf(reason, "; %d job is before it", &first),
                         first == 1 ? 2 : 3);
        ck_assert_msg(first >= 1, "%s", reason);
    }
}

TEST(reasons_of_all_small_queues)
{
    enum { MOST = 4, CASES = 5 * 5 * 5 * 4 * 4 * 4 * 3 };
    int waiting = 0;
    for (int n = 0; n < CASES; n++) {
        int attached = n % 5, idle = n / 5 % 5, starting = n / 25 % 5, reserved = n / 125 % 4;
        int cut = n / 8000;
        if (idle + reserved > attached || (cut > 0 && cut >= attached)) continue;
        struct queue_item items[] = {
            {.kind = "cpu", .workers = n / 500 % 4 + 1, .most = MOST, .reserved = reserved},
            {.kind = "cpu", .workers = n / 2000 % 4 + 1}};
        struct queue_fleet fleet = {.kind = "cpu",
                                    .attached = attached,
                                    .expected = attached + starting,
                                    .idle = idle,
                                    .cut = cut,
                                    .cut_idle = cut < idle ? cut : 0};
        queue_decide(items, 2, &fleet, 1);
        ck_assert_int_ge(fleet.idle, 0);
        for (int i = 0; i < 2; i++) {
            if (items[i].standing.decision == QUEUE_START) continue;
            check_turn(&items[i].standing);
            waiting++;
        }
    }
    ck_assert_int_gt(waiting, 1000);
}

/* All of an elastic job's workers are expected, one still starts: the job waits for that one, not
 * for fewer than none of its least. */
TEST(a_reason_while_a_worker_starts)
{
    struct queue_item item = {.kind = "cpu", .workers = 4, .most = 4};
    struct queue_fleet fleet = {.kind = "cpu", .attached = 3, .expected = 4, .idle = 3};
    queue_decide(&item, 1, &fleet, 1);
    AUTO(buf_deinit) struct buf text = {0};
    queue_describe_turn(&item.standing, "cpu", &text);
    ck_assert_str_eq(buf_text(&text), "1st; needs 4 cpu workers, 3 are attached");
}

TEST(ordinals)
{
    static const struct {
        int number;
        const char *text;
    } cases[] = {{1, "1st"},     {2, "2nd"},     {3, "3rd"},    {4, "4th"},
                 {11, "11th"},   {12, "12th"},   {13, "13th"},  {21, "21st"},
                 {101, "101st"}, {111, "111th"}, {102, "102nd"}};
    char text[16];
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        ck_assert_str_eq(queue_ordinal(cases[i].number, text), cases[i].text);
}

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

TEST(placement)
{
    check_placement("a/0", 1, "a/0");
    check_placement("a/1 a/0 a/10 a/2", 4, "a/0 a/1 a/2 a/10");
    /* One host, if one has enough: the one with the fewest workers to spare. */
    check_placement("a/0 a/1 a/2 b/0 b/1 c/0", 2, "b/0 b/1");
    check_placement("a/0 a/1 a/2 b/0 b/1 c/0", 1, "c/0");
    check_placement("a/0 a/1 a/2 b/0 b/1 c/0", 3, "a/0 a/1 a/2");
    /* As few hosts as possible: the largest, and the smallest that has the rest. */
    check_placement("a/0 b/0 b/1 b/2 c/0 c/1", 4, "a/0 b/0 b/1 b/2");
    check_placement("a/0 b/0 b/1 b/2 c/0 c/1", 5, "b/0 b/1 b/2 c/0 c/1");
    check_placement("a/0 b/0 b/1 b/2 c/0 c/1", 6, "a/0 b/0 b/1 b/2 c/0 c/1");
    check_placement("h10/0 h9/0 h2/0", 3, "h2/0 h9/0 h10/0");
}

/* ---- workers that cannot reach each other ---- */

static unsigned cut_pairs; /* a bit for each of 5 * 5 */

static int number_of(const struct placement_worker *worker)
{
    return worker->id[0] - '0';
}

static bool is_cut(const struct placement_worker *worker, const struct placement_worker *other)
{
    return cut_pairs >> (5 * number_of(worker) + number_of(other)) & 1;
}

static bool is_apart(unsigned left)
{
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < i; j++)
            if ((left >> i & 1) && (left >> j & 1) && (cut_pairs >> (5 * i + j) & 1)) return false;
    return true;
}

/* How much is left of those workers: the first `needed` count most. */
static int worth(unsigned left, int count, int needed)
{
    int sum = 0;
    for (int i = 0; i < count; i++)
        if (left >> i & 1) sum += i < needed ? 10 : 1;
    return sum;
}

static void check_apart(int count, int needed)
{
    static const char *const ids[] = {"0", "1", "2", "3", "4"};
    struct placement_worker workers[5];
    for (int i = 0; i < count; i++) workers[i] = (struct placement_worker){ids[i], ids[i], NULL};
    int first = needed, best = 0;
    for (unsigned left = 0; left < 1U << count; left++)
        if (is_apart(left) && worth(left, count, needed) > best) best = worth(left, count, needed);
    int kept = placement_keep_apart(workers, count, &first, is_cut);
    unsigned left = 0;
    for (int i = 0; i < kept; i++) {
        ck_assert(i == 0 || number_of(&workers[i]) > number_of(&workers[i - 1]));
        ck_assert_int_eq(number_of(&workers[i]) < needed, i < first);
        left |= 1U << number_of(&workers[i]);
    }
    ck_assert(is_apart(left));
    ck_assert_int_eq(worth(left, count, needed), best);
}

TEST(workers_apart_in_all_small_cases)
{
    enum { PAIRS = 10 };
    for (unsigned pairs = 0; pairs < 1U << PAIRS; pairs++) {
        cut_pairs = 0;
        for (int i = 0, bit = 0; i < 5; i++)
            for (int j = 0; j < i; j++, bit++)
                if (pairs >> bit & 1) cut_pairs |= 1U << (5 * i + j) | 1U << (5 * j + i);
        for (int count = 0; count <= 5; count++)
            for (int needed = 0; needed <= count; needed++) check_apart(count, needed);
    }
}

TEST(the_first_end_of_a_pair_stays)
{
    struct placement_worker workers[] = {{"a", "0", NULL}, {"b", "1", NULL}, {"c", "2", NULL}};
    int needed = 0;
    cut_pairs = 1U << (5 * 0 + 2) | 1U << (5 * 2 + 0);
    ck_assert_int_eq(placement_keep_apart(workers, 3, &needed, is_cut), 2);
    ck_assert_str_eq(workers[0].host, "a");
    ck_assert_str_eq(workers[1].host, "b");
}

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

static char *submit_after(const char *after, const char *after_any, status_t *refused)
{
    job_spec spec = *world_spec(1);
    char *jobs[] = {(char *)after}, *any[] = {(char *)after_any};
    if (after != NULL) spec.n_after = 1, spec.after = jobs;
    if (after_any != NULL) spec.n_after_any = 1, spec.after_any = any;
    return queue_submit(&world, &spec, refused);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(priorities)
{
    struct fake fake;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    char *running = queue_submit_priority(&world, 1, 0);
    queue_expect_start(&world, &fake, 1, running);
    char *low = queue_submit_priority(&world, 1, -3), *old = queue_submit_priority(&world, 1, 0);
    char *young = queue_submit_priority(&world, 1, 0), *high = queue_submit_priority(&world, 1, 7);
    queue_expect_position(&world, running, 0);
    queue_expect_position(&world, high, 1);
    queue_expect_position(&world, old, 2);
    queue_expect_position(&world, young, 3);
    queue_expect_position(&world, low, 4);
    world_check_reason(&world, high, JOB_QUEUED, "QUEUED", "1st; waits for 1 of 1 cpu worker");
    world_check_reason(&world, old, JOB_QUEUED, "QUEUED",
                       "2nd; 1 job is before it, 1 of higher priority");
    world_check_reason(&world, young, JOB_QUEUED, "QUEUED",
                       "3rd; 2 jobs are before it, 1 of higher priority");
    char *large = queue_submit_priority(&world, 2, 0);
    world_check_reason(&world, large, JOB_QUEUED, "WAITING_FOR_WORKERS",
                       "4th; needs 2 cpu workers, 1 is attached");
    queue_end_job(&world, &fake, running, STATUS_OK);
    queue_expect_start(&world, &fake, 2, high);
    queue_end_job(&world, &fake, high, STATUS_OK);
    queue_expect_start(&world, &fake, 3, old);
    queue_end_job(&world, &fake, old, STATUS_OK);
    queue_expect_start(&world, &fake, 4, young);
    queue_end_job(&world, &fake, young, STATUS_OK);
    queue_expect_start(&world, &fake, 5, low);

    /* The large one gets its workers when there are enough, before later jobs. */
    struct fake second;
    char *later = queue_submit_priority(&world, 1, 0);
    fake_attach(&world, &second, "host/cpu:1", 2);
    world_check_reason(&world, large, JOB_QUEUED, "QUEUED", "1st; waits for 1 of 2 cpu workers");
    world_check_reason(&world, later, JOB_QUEUED, "QUEUED", "2nd; 1 job is before it");
    queue_end_job(&world, &fake, low, STATUS_OK);
    WAIT(&world, second.assignments == 1);
    ck_assert_str_eq(second.assignment->job, large);
    WAIT(&world, fake.assignments == 6);
    fake_deinit(&fake);
    fake_deinit(&second);
    free(running), free(low), free(old), free(young), free(high), free(large), free(later);
}

TEST(one_host)
{
    struct fake fakes[4];
    static const char *const ids[] = {"b/cpu:0", "a/cpu:0", "b/cpu:1", "c/cpu:0"};
    world_start(&world);
    for (int i = 0; i < 4; i++) fake_attach(&world, &fakes[i], ids[i], i + 1);
    char *id = queue_submit_priority(&world, 2, 0);
    WAIT(&world, fakes[0].assignments == 1 && fakes[2].assignments == 1);
    ck_assert_uint_eq(fakes[0].assignment->rank, 0);
    ck_assert_uint_eq(fakes[2].assignment->rank, 1);
    for (int i = 0; i < 4; i++) fake_deinit(&fakes[i]);
    free(id);
}

TEST(dependencies)
{
    struct fake fake;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    status_t refused = NULL;
    submit_after("nothing-1", NULL, &refused);
    expect_status(refused, STATUS_NOT_FOUND, "after: there is no job nothing-1");
    submit_after(NULL, "nothing-1", &refused);
    expect_status(refused, STATUS_NOT_FOUND, "after_any: there is no job nothing-1");

    char *first = queue_submit_priority(&world, 1, 0);
    queue_expect_start(&world, &fake, 1, first);
    char *second = submit_after(first, NULL, NULL), *third = submit_after(second, NULL, NULL);
    char *whatever = submit_after(NULL, second, NULL);
    world_check_reason(&world, second, JOB_QUEUED, "WAITING_FOR_JOB", "waits for mnist-1");
    queue_expect_position(&world, second, 0);
    char *free_one = queue_submit_priority(&world, 1, -9);
    queue_expect_position(&world, free_one, 1); /* those that wait for jobs are not before it */
    queue_end_job(&world, &fake, first, STATUS_OK);
    queue_expect_start(&world, &fake, 2, second);
    queue_end_job(&world, &fake, second, STATUS_INTERNAL);
    world_check_reason(&world, third, JOB_CANCELLED, "DEPENDENCY_FAILED",
                       "job mnist-2, which it depends on, is FAILED");
    queue_expect_start(&world, &fake, 3, whatever);
    submit_after(second, NULL, &refused);
    expect_status(refused, STATUS_FAILED_PRECONDITION, "job mnist-2 is FAILED");
    char *late = submit_after(first, second, NULL);
    queue_expect_position(&world, late, 1);

    /* Cancelling the head of a chain cancels all of it. */
    char *a = submit_after(whatever, NULL, NULL), *b = submit_after(a, NULL, NULL);
    char *c = submit_after(b, NULL, NULL);
    expect_ok(world_cancel(&world, a));
    world_check_reason(&world, b, JOB_CANCELLED, "DEPENDENCY_FAILED", "is CANCELLED");
    world_check_reason(&world, c, JOB_CANCELLED, "DEPENDENCY_FAILED", "job mnist-8,");
    fake_deinit(&fake);
    free(first), free(second), free(third), free(whatever), free(free_one), free(late);
    free(a), free(b), free(c);
}

TEST(dependencies_after_a_restart)
{
    struct fake fake;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    char *first = queue_submit_priority(&world, 2, 0); /* there is one worker: it waits */
    char *second = submit_after(first, NULL, NULL), *third = submit_after(second, first, NULL);
    world_stop(&world);
    fake_deinit(&fake);
    world_start(&world);
    world_check_reason(&world, second, JOB_QUEUED, "WAITING_FOR_JOB", "waits for mnist-1");
    world_check_reason(&world, third, JOB_QUEUED, "WAITING_FOR_JOB",
                       "waits for mnist-2 and 1 more job");
    expect_ok(world_cancel(&world, first));
    world_check_reason(&world, second, JOB_CANCELLED, "DEPENDENCY_FAILED", "mnist-1");
    world_check_reason(&world, third, JOB_CANCELLED, "DEPENDENCY_FAILED", "mnist-2");
    free(first), free(second), free(third);
}

static char *submit_deadline(const char *start, const char *finish, status_t *refused)
{
    job_spec spec = *world_spec(1);
    Fsdpd__V1__DeadlineSpec deadline = FSDPD__V1__DEADLINE_SPEC__INIT;
    if (start != NULL) deadline.start = (char *)start;
    if (finish != NULL) deadline.finish = (char *)finish;
    spec.deadline = &deadline;
    return queue_submit(&world, &spec, refused);
}

TEST(deadlines)
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
    queue_expect_start(&world, &fake, 1, running);
    char *waiting = submit_deadline("0.2s", NULL, NULL);
    clock_format_wall(clock_wall_ms() + 200, at);
    char *timed = submit_deadline(NULL, at, NULL);
    char *patient = submit_deadline("1h", "2h", NULL);
    WAIT(&world, world_job_is(&world, waiting, JOB_FAILED));
    world_check_reason(&world, waiting, JOB_FAILED, "DEADLINE_EXCEEDED",
                       "it was not started within 0.2s of its submission");
    WAIT(&world, world_job_is(&world, timed, JOB_FAILED));
    world_check_reason(&world, timed, JOB_FAILED, "DEADLINE_EXCEEDED", "it was not over by 20");
    WAIT(&world, fake.cancels == 1); /* the running one gets the order to end */
    world_check_reason(&world, running, JOB_RUNNING, "CANCELLING", "within 0.7s");
    fake_finished(&fake, STATUS_CANCELLED, "");
    WAIT(&world, world_job_is(&world, running, JOB_FAILED));
    world_check_reason(&world, running, JOB_FAILED, "DEADLINE_EXCEEDED",
                       "it was not over within 0.7s of its submission; it ended at step");
    queue_expect_start(&world, &fake, 2, patient);
    job_message *job = world_job(&world, patient);
    int64_t submitted = message_time_ms(job->submit_time);
    ck_assert_int_eq(message_time_ms(job->start_by), submitted + 3600000);
    ck_assert_int_eq(message_time_ms(job->finish_by), submitted + 7200000);
    message_free(job);
    fake_deinit(&fake);
    free(running), free(waiting), free(timed), free(patient);
}

TEST(histories)
{
    struct fake fake;
    world_start(&world);
    char *id = NULL;
    fake_attach(&world, &fake, "host/cpu:0", 1);
    id = queue_submit_priority(&world, 1, 0);
    queue_expect_start(&world, &fake, 1, id);
    for (int i = 1; i <= 20; i++) fake_metrics(&fake, (uint64_t)i, 0.5);
    queue_end_job(&world, &fake, id, STATUS_OK);
    for (int restarted = 0; restarted < 2; restarted++) {
        Fsdpd__V1__GetHistoryRequest request = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
        request.id = id;
        void *response = NULL;
        expect_ok(world_call(&world, &control_get_history, &request, &response));
        const Fsdpd__V1__GetHistoryResponse *history = response;
        static const int states[] = {JOB_QUEUED, JOB_STARTING, JOB_RUNNING, JOB_SUCCEEDED};
        ck_assert_uint_eq(history->n_entries, 4);
        for (int i = 0; i < 4; i++) {
            const Fsdpd__V1__HistoryEntry *entry = history->entries[i];
            ck_assert_int_eq(entry->state, states[i]);
            ck_assert_int_eq((int)entry->attempt, i > 0);
            int64_t before = i > 0 ? message_time_ms(history->entries[i - 1]->time) : 1;
            ck_assert_int_ge(message_time_ms(entry->time), before);
        }
        ck_assert_str_eq(history->entries[3]->reason->code, "DONE");
        ck_assert_uint_ge(history->entries[3]->step, 20);
        message_free(response);
        request.id = (char *)"nothing-1";
        expect_status(world_call(&world, &control_get_history, &request, NULL), STATUS_NOT_FOUND,
                      "nothing-1");
        if (restarted) break;
        fake_deinit(&fake);
        world_stop(&world);
        world_start(&world);
    }
    free(id);
}

static uint32_t count_listed(const Fsdpd__V1__ListJobsRequest *request, uint32_t *left_out)
{
    void *response = NULL;
    expect_ok(world_call(&world, &control_list_jobs, request, &response));
    const Fsdpd__V1__ListJobsResponse *list = response;
    uint32_t count = (uint32_t)list->n_jobs;
    if (left_out != NULL) *left_out = list->left_out;
    message_free(response);
    return count;
}

TEST(filters)
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
        ids[i] = queue_submit(&world, &spec, NULL);
    }
    expect_ok(world_cancel(&world, ids[0]));
    Fsdpd__V1__ListJobsRequest request = FSDPD__V1__LIST_JOBS_REQUEST__INIT;
    Fsdpd__V1__ListJobsRequest__LabelsEntry first =
        FSDPD__V1__LIST_JOBS_REQUEST__LABELS_ENTRY__INIT;
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
    expect_status(world_call(&world, &control_list_jobs, &request, NULL), STATUS_INVALID_ARGUMENT,
                  "labels");
    request.n_labels = 0;
    Fsdpd__V1__JobState states[] = {FSDPD__V1__JOB_STATE__JOB_STATE_CANCELLED,
                                    FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING};
    request.states = states;
    request.n_states = 2;
    ck_assert_uint_eq(count_listed(&request, NULL), 1);
    request.n_states = 0;
    request.name = (char *)"gp?";
    ck_assert_uint_eq(count_listed(&request, NULL), 2);
    request.name = (char *)"*-1";
    ck_assert_uint_eq(count_listed(&request, NULL), 2); /* ids, too */
    request.name = (char *)"";
    request.owner = (char *)"unknown user";
    ck_assert_uint_eq(count_listed(&request, NULL), 0);
    request.owner = (char *)"";
    request.page_size = 2;
    uint32_t left_out = 0;
    ck_assert_uint_eq(count_listed(&request, &left_out), 2);
    ck_assert_uint_eq(left_out, 3);
    request.states[0] = (Fsdpd__V1__JobState)99;
    request.n_states = 1;
    expect_status(world_call(&world, &control_list_jobs, &request, NULL), STATUS_INVALID_ARGUMENT,
                  "99");
    fake_deinit(&fake);
    for (int i = 0; i < 5; i++) free(ids[i]);
}

/* The same job, whatever the order of a map, and with or without an empty section. */
TEST(repeated_submission)
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
    expect_ok(world_call(&world, &control_submit_job, &request, NULL));
    labels[0] = &b;
    labels[1] = &a;
    Fsdpd__V1__DeadlineSpec deadline = FSDPD__V1__DEADLINE_SPEC__INIT;
    spec.deadline = &deadline;
    expect_ok(world_call(&world, &control_submit_job, &request, NULL));
    a.value = (char *)"x";
    expect_status(world_call(&world, &control_submit_job, &request, NULL), STATUS_ALREADY_EXISTS,
                  "mine");
    Fsdpd__V1__ListJobsRequest list = FSDPD__V1__LIST_JOBS_REQUEST__INIT;
    ck_assert_uint_eq(count_listed(&list, NULL), 1);
    fake_deinit(&fake);
}

TEST(jobs_per_user)
{
    struct fake fake;
    world.options.limits.jobs_per_user = 2;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    free(queue_submit_priority(&world, 9, 0));
    char *id = queue_submit_priority(&world, 9, 0);
    status_t refused = NULL;
    queue_submit(&world, world_spec(9), &refused);
    expect_status(refused, STATUS_RESOURCE_EXHAUSTED, "the limit per user");
    expect_ok(world_cancel(&world, id));
    free(id);
    free(queue_submit_priority(&world, 9, 0));
    fake_deinit(&fake);
}

TEST(a_long_queue_is_checked_less_often)
{
    const int64_t second = 1000 * 1000 * 1000;
    static const struct {
        int64_t took, ago;
        bool continues, checked;
    } cases[] = {
        {1000, second / 10, false, true},      /* a short queue, at each tick */
        {60000000, second / 10, false, false}, /* a long one */
        {60000000, second / 10, true, true},   /* with an array whose jobs are being made */
        {60000000, 2 * second + 1, false, true}, {10 * second, 2 * second + 1, false, true},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        static struct coordinator c;
        c.queue_changed = false;
        c.queue_took_ns = cases[i].took;
        c.queue_continues = cases[i].continues;
        c.queue_placed_ns = clock_monotonic_ns() - cases[i].ago;
        bool due = queue_check(&c);
        ck_assert_int_eq(due, cases[i].checked && !cases[i].continues);
        ck_assert_msg(c.queue_changed == cases[i].checked && !c.queue_continues, "case %zu", i);
    }
}
