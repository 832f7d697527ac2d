/* The job store: it returns what it stored, also after the process was killed in the middle of a
 * write. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "coordinator/store/store.h"
#include "store_fixture.h"
#include "tests/testing.h"

static struct store *open_store(void)
{
    struct store *store = NULL;
    status_t status = store_open(store_path, &store);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    return store;
}

/* A job with everything set. */
static job_message *make_job(const char *id)
{
    job_message *job = mem_alloc(sizeof *job);
    fsdpd__v1__job__init(job);
    message_set_text(&job->id, id);
    message_set_text(&job->name, "mnist");
    job->state = (Fsdpd__V1__JobState)JOB_QUEUED;
    job->reason = mem_alloc(sizeof *job->reason);
    fsdpd__v1__reason__init(job->reason);
    message_set_text(&job->reason->code, "QUEUED");
    message_set_text(&job->reason->message, "waits; \"quoted\" and ünicode");
    job->spec = mem_alloc(sizeof *job->spec);
    fsdpd__v1__job_spec__init(job->spec);
    message_set_text(&job->spec->name, "mnist");
    job->spec->workers = 2;
    job->plan = mem_alloc(sizeof *job->plan);
    fsdpd__v1__plan__init(job->plan);
    job->plan->hash = UINT64_MAX;
    job->plan->peak_bytes = 1u << 31;
    job->metrics = mem_alloc(sizeof *job->metrics);
    fsdpd__v1__metrics__init(job->metrics);
    job->metrics->loss = 0.1;
    job->n_workers = 2;
    job->workers = mem_alloc_array(2, sizeof *job->workers);
    job->workers[0] = mem_strdup("host/cpu:0");
    job->workers[1] = mem_strdup("host/cpu:1");
    job->attempt = 3;
    job->step = 7;
    job->steps = UINT64_MAX;
    message_set_time(&job->submit_time, 1);
    message_set_time(&job->start_time, 2);
    message_set_time(&job->finish_time, 3);
    message_set_time(&job->state_time, 4);
    return job;
}

static job_event make_event(uint64_t sequence, Fsdpd__V1__StateChange *change)
{
    fsdpd__v1__state_change__init(change);
    change->state = FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING;
    job_event event = FSDPD__V1__JOB_EVENT__INIT;
    event.sequence = sequence;
    event.event_case = FSDPD__V1__JOB_EVENT__EVENT_STATE;
    event.state = change;
    return event;
}

static void insert(struct store *store, const char *id)
{
    job_message *job = make_job(id);
    Fsdpd__V1__StateChange change;
    job_event event = make_event(1, &change);
    expect_ok(store_insert_job(store, job, &event));
    message_free(job);
}

static void add_loss(struct store *store, const job_message *job, uint64_t sequence, bool durable,
                     double loss)
{
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    metrics.step = sequence;
    metrics.loss = loss;
    job_event event = FSDPD__V1__JOB_EVENT__INIT;
    event.sequence = sequence;
    event.event_case = FSDPD__V1__JOB_EVENT__EVENT_METRICS;
    event.metrics = &metrics;
    expect_ok(store_update_job(store, job, &event, durable));
}

static void add_metrics(struct store *store, const job_message *job, uint64_t sequence,
                        bool durable)
{
    add_loss(store, job, sequence, durable, 0);
}

TESTS_BELOW(.timeout = 60, .set_up = store_set_up, .tear_down = store_tear_down);

/* Jobs of an array and the record that counts them: all or nothing. */
TEST(jobs_are_inserted_together_with_a_change)
{
    struct store *store = open_store();
    insert(store, "a");
    insert(store, "a-2");
    job_message *array = make_job("a"), *first = make_job("a-1"), *second = make_job("a-2"),
                *read = NULL;
    Fsdpd__V1__StateChange change;
    job_event event = make_event(1, &change);
    const struct store_new_job jobs[] = {{first, &event}, {second, &event}};
    const struct store_change counted = {.job = array, .durable = true, .report = -1};
    array->step = 77;
    expect_error(store_insert_jobs(store, jobs, 2, &counted), STATUS_ALREADY_EXISTS, "a-2");
    expect_error(store_get_job(store, "a-1", &read), STATUS_NOT_FOUND, "a-1");
    expect_ok(store_get_job(store, "a", &read));
    ck_assert_uint_ne(read->step, 77);
    message_free(read);
    expect_ok(store_insert_jobs(store, jobs, 1, &counted));
    store_close(store);
    store = open_store();
    expect_ok(store_get_job(store, "a-1", &read));
    message_free(read);
    expect_ok(store_get_job(store, "a", &read));
    ck_assert_uint_eq(read->step, 77);
    message_free(read);
    message_free(array);
    message_free(first);
    message_free(second);
    store_close(store);
}

TEST(round_trip)
{
    struct store *store = open_store();
    job_message *job = make_job("mnist-1"), *read = NULL;
    Fsdpd__V1__StateChange change;
    job_event event = make_event(1, &change);
    expect_ok(store_insert_job(store, job, &event));
    /* An insertion, and a read over another connection, keep all of it. */
    store_close(store);
    store = open_store();
    expect_ok(store_get_job(store, "mnist-1", &read));
    ck_assert(message_equal(job, read));
    message_free(read);

    job->state = (Fsdpd__V1__JobState)JOB_FAILED;
    message_set_text(&job->reason->code, "WORKER_LOST");
    job->attempt = 4;
    job->step = UINT64_MAX;
    job->metrics->loss = 0.05;
    message_set_time(&job->finish_time, INT64_MAX / 2);
    free(job->workers[--job->n_workers]);
    event = make_event(2, &change);
    expect_ok(store_update_job(store, job, &event, true));
    expect_ok(store_get_job(store, "mnist-1", &read));
    ck_assert(message_equal(job, read));
    message_free(read);

    expect_error(store_insert_job(store, job, &event), STATUS_ALREADY_EXISTS, "mnist-1");
    expect_error(store_get_job(store, "mnist-2", &read), STATUS_NOT_FOUND, "mnist-2");
    message_set_text(&job->id, "mnist-2");
    expect_error(store_update_job(store, job, NULL, true), STATUS_NOT_FOUND, "mnist-2");
    message_free(job);
    store_close(store);
}

TEST(a_refused_event_leaves_the_job_as_it_was)
{
    struct store *store = open_store();
    insert(store, "mnist-1");
    job_message *job = NULL, *read = NULL;
    expect_ok(store_get_job(store, "mnist-1", &job));
    job->step = 999;
    Fsdpd__V1__StateChange change;
    job_event event = make_event(1, &change); /* a sequence already in use */
    expect_error(store_update_job(store, job, &event, true), STATUS_INTERNAL, "store.db");
    expect_ok(store_get_job(store, "mnist-1", &read));
    ck_assert_uint_eq(read->step, 7);
    message_free(job);
    message_free(read);
    store_close(store);
}

TEST(changes_of_several_jobs)
{
    struct store *store = open_store();
    job_message *jobs[3] = {make_job("mnist-1"), make_job("mnist-2"), make_job("mnist-3")};
    struct store_change changes[3];
    insert(store, "mnist-1");
    insert(store, "mnist-2");
    for (int i = 0; i < 3; i++) {
        jobs[i]->step = 100;
        changes[i] = (struct store_change){.job = jobs[i], .durable = i == 1, .report = 10 + i};
    }
    uint64_t report = 0;
    for (int count = 3; count >= 2; count--) { /* the third is missing: then none changes */
        status_t status = store_apply_all(store, changes, count);
        if (count == 3) expect_error(status, STATUS_NOT_FOUND, "mnist-3");
        else expect_ok(status);
        for (int i = 0; i < 2; i++) {
            job_message *read = NULL;
            expect_ok(store_get_job(store, jobs[i]->id, &read));
            ck_assert_uint_eq(read->step, count == 3 ? 7 : 100);
            message_free(read);
            expect_ok(store_get_report(store, jobs[i]->id, &report));
            ck_assert_uint_eq(report, count == 3 ? 0 : 10 + (uint64_t)i);
        }
    }
    for (int i = 0; i < 3; i++) message_free(jobs[i]);
    store_close(store);
}

TEST(ids_count_per_name_and_step_over_chosen_ones)
{
    struct store *store = open_store();
    char *id = NULL;
    expect_ok(store_next_id(store, "mnist", &id));
    ck_assert_str_eq(id, "mnist-1");
    free(id);
    insert(store, "mnist-1");
    insert(store, "mnist-3");
    expect_ok(store_next_id(store, "mnist", &id));
    ck_assert_str_eq(id, "mnist-4"); /* two jobs: 3 is next, and taken */
    free(id);
    expect_ok(store_next_id(store, "other", &id));
    ck_assert_str_eq(id, "other-1");
    free(id);
    store_close(store);
}

struct ids {
    char text[256];
};

static status_t add_id(void *user, const job_message *job)
{
    struct ids *ids = user;
    strcat(strcat(ids->text, job->id), " ");
    return NULL;
}

static status_t refuse(void *user, const job_message *job)
{
    (void)user;
    return status_new(STATUS_ABORTED, "not %s", job->id);
}

static bool add_first(void *user, const char *id)
{
    struct ids *ids = user;
    strcat(strcat(ids->text, id), " ");
    return false;
}

struct reader {
    struct ids *ids;
    struct store *store;
};

/* Reads the job during the iteration over the ids. */
static bool read_and_add(void *user, const char *id)
{
    struct reader *reader = user;
    job_message *job = NULL;
    expect_ok(store_get_job(reader->store, id, &job));
    expect_ok(add_id(reader->ids, job));
    message_free(job);
    return true;
}

TEST(lists)
{
    struct store *store = open_store();
    for (int i = 1; i <= 3; i++) {
        char *id = mem_printf("mnist-%d", i);
        insert(store, id);
        free(id);
    }
    job_message *job = NULL;
    expect_ok(store_get_job(store, "mnist-2", &job));
    job->state = (Fsdpd__V1__JobState)JOB_SUCCEEDED;
    expect_ok(store_update_job(store, job, NULL, true));
    message_free(job);

    struct ids ids = {""};
    struct store_job_query query = {.visit = add_id, .user = &ids};
    expect_ok(store_each_job(store, &query));
    ck_assert_str_eq(ids.text, "mnist-1 mnist-2 mnist-3 ");
    ids.text[0] = '\0';
    expect_ok(store_each_id(store, read_and_add, &(struct reader){&ids, store}));
    ck_assert_str_eq(ids.text, "mnist-3 mnist-2 mnist-1 ");
    ids.text[0] = '\0';
    expect_ok(store_each_id(store, add_first, &ids));
    ck_assert_str_eq(ids.text, "mnist-3 ");
    uint64_t counts[JOB_CANCELLED + 1] = {0};
    expect_ok(store_count_states(store, counts));
    ck_assert_uint_eq(counts[JOB_QUEUED], 2);
    ck_assert_uint_eq(counts[JOB_SUCCEEDED], 1);
    ck_assert_uint_eq(counts[JOB_FAILED], 0);
    ids.text[0] = '\0';
    query.active_only = true;
    expect_ok(store_each_job(store, &query));
    ck_assert_str_eq(ids.text, "mnist-1 mnist-3 ");
    query.visit = refuse;
    expect_error(store_each_job(store, &query), STATUS_ABORTED, "mnist-1");
    store_close(store);
}

TEST(state_dict)
{
    struct store *store = open_store();
    insert(store, "mnist-1");
    struct store_weights kept = {.step = 938, .proved = true, .sums = "sums"}, found;
    expect_error(store_get_state_dict(store, "mnist-1", &found), STATUS_NOT_FOUND, "mnist-1");
    expect_error(store_set_state_dict(store, "mnist-9", &kept), STATUS_NOT_FOUND, "mnist-9");
    expect_ok(store_set_state_dict(store, "mnist-1", &kept));
    expect_ok(store_get_state_dict(store, "mnist-1", &found));
    ck_assert_uint_eq(found.step, 938);
    ck_assert(found.proved);
    ck_assert_mem_eq(found.sums, kept.sums, sizeof kept.sums);
    job_message *job = NULL;
    expect_ok(store_get_job(store, "mnist-1", &job));
    ck_assert(job->has_state_dict);
    expect_ok(store_update_job(store, job, NULL, true)); /* does not forget it */
    message_free(job);
    expect_ok(store_get_state_dict(store, "mnist-1", &found));
    ck_assert(found.proved);
    expect_ok(store_drop_state_dict(store, "mnist-1"));
    expect_error(store_get_state_dict(store, "mnist-1", &found), STATUS_NOT_FOUND, "mnist-1");
    kept.proved = false; /* none of the former ones is left */
    expect_ok(store_set_state_dict(store, "mnist-1", &kept));
    expect_ok(store_get_state_dict(store, "mnist-1", &found));
    ck_assert(!found.proved);
    store_close(store);
}

struct sequences {
    uint64_t list[64];
    int count, limit;
};

static bool add_sequence(void *user, const job_event *event)
{
    struct sequences *sequences = user;
    sequences->list[sequences->count++] = event->sequence;
    return sequences->count != sequences->limit;
}

static void check_events(struct store *store, uint64_t after, uint64_t skip, int limit,
                         const char *expected)
{
    struct sequences found = {.limit = -1};
    struct store_event_query query = {.job = "mnist-1",
                                      .after = after,
                                      .skip_metrics = skip,
                                      .limit = limit,
                                      .visit = add_sequence,
                                      .user = &found};
    expect_ok(store_read_events(store, &query));
    char text[256] = "";
    for (int i = 0; i < found.count; i++) sprintf(text + strlen(text), "%d ", (int)found.list[i]);
    ck_assert_str_eq(text, expected);
}

TEST(events)
{
    struct store *store = open_store();
    insert(store, "mnist-1");
    insert(store, "mnist-2");
    job_message *job = NULL;
    expect_ok(store_get_job(store, "mnist-1", &job));
    for (uint64_t i = 2; i <= 10; i++) {
        Fsdpd__V1__StateChange change;
        job_event event = make_event(i, &change);
        if (i == 6) expect_ok(store_update_job(store, job, &event, true));
        else add_metrics(store, job, i, false);
    }
    check_events(store, 0, 0, 100, "1 2 3 4 5 6 7 8 9 10 ");
    check_events(store, 8, 0, 100, "9 10 ");
    check_events(store, 10, 0, 100, "");
    check_events(store, 1, 0, 3, "2 3 4 ");
    check_events(store, 2, 8, 100, "6 9 10 ");

    struct sequences two = {.limit = 2};
    struct store_event_query query = {.job = "mnist-1",
                                      .limit = 100,
                                      .visit = add_sequence,
                                      .user = &two};
    expect_ok(store_read_events(store, &query));
    ck_assert_int_eq(two.count, 2);

    job_event *found = NULL;
    expect_ok(store_find_metrics(store, "mnist-1", UINT64_MAX, &found));
    ck_assert_uint_eq(found->sequence, 10);
    message_free(found);
    expect_ok(store_find_metrics(store, "mnist-1", 6, &found)); /* the sixth reports a state */
    ck_assert_uint_eq(found->sequence, 5);
    ck_assert_uint_eq(found->metrics->step, 5);
    message_free(found);
    expect_ok(store_find_metrics(store, "mnist-1", 0, &found));
    ck_assert_ptr_null(found);
    expect_ok(store_find_metrics(store, "nobody", UINT64_MAX, &found));
    ck_assert_ptr_null(found);

    uint64_t last = 0, metrics = 0;
    expect_ok(store_count_events(store, "mnist-1", &last, &metrics));
    ck_assert_uint_eq(last, 10);
    ck_assert_uint_eq(metrics, 8);
    expect_ok(store_count_events(store, "mnist-2", &last, &metrics));
    ck_assert_uint_eq(last, 1);
    expect_ok(store_count_events(store, "nobody", &last, &metrics));
    ck_assert_uint_eq(last, 0);
    message_free(job);
    store_close(store);
}

enum { CURVE = 3000, KEPT = 64, SPIKE = 777, DIP = 1234, ODD = 1600 };

/* Falls and wobbles; with one peak, one dip, and one loss that is not a number. */
static double loss_of(uint64_t step)
{
    if (step == SPIKE) return 50;
    if (step == DIP) return -50;
    return step == ODD ? NAN : 10.0 / (double)step + 0.1 * (double)(step * 7 % 11);
}

struct losses {
    uint64_t count, first, last, gap;
    bool spike, dip, odd;
};

static bool add_seen(void *user, const job_event *event)
{
    struct losses *seen = user;
    const uint64_t step = event->sequence - 1;
    if (event->event_case != FSDPD__V1__JOB_EVENT__EVENT_METRICS) return true;
    if (seen->count++ == 0) seen->first = step;
    if (step - seen->last > seen->gap) seen->gap = step - seen->last;
    seen->last = step;
    seen->spike |= step == SPIKE;
    seen->dip |= step == DIP;
    seen->odd |= step == ODD;
    return true;
}

/* However often it is thinned, and wherever its extremes are. */
TEST(a_thinned_curve_keeps_its_extremes)
{
    struct store *store = open_store();
    insert(store, "mnist-1");
    job_message *job = NULL;
    expect_ok(store_get_job(store, "mnist-1", &job));
    uint64_t count = 0;
    for (uint64_t step = 1; step <= CURVE; step++) {
        add_loss(store, job, step + 1, false, loss_of(step));
        if (++count <= KEPT + KEPT / 8) continue;
        expect_ok(store_thin_metrics(store, "mnist-1", KEPT, &count));
        ck_assert_uint_eq(count, KEPT);
    }
    struct losses seen = {0};
    struct store_event_query query = {.job = "mnist-1",
                                      .limit = -1,
                                      .visit = add_seen,
                                      .user = &seen};
    expect_ok(store_read_events(store, &query));
    ck_assert_uint_eq(seen.count, count);
    ck_assert_uint_eq(seen.first, 1);
    ck_assert_uint_eq(seen.last, CURVE);
    ck_assert(seen.spike && seen.dip && seen.odd);
    ck_assert_uint_le(seen.gap, 2 * CURVE / (KEPT / 4)); /* of two stretches */
    uint64_t last = 0, metrics = 0, before = count;
    expect_ok(store_count_events(store, "mnist-1", &last, &metrics));
    ck_assert_uint_eq(metrics, count);
    expect_ok(store_thin_metrics(store, "mnist-1", count, &count)); /* few enough already */
    ck_assert_uint_eq(count, before);
    message_free(job);
    store_close(store);
}

/* With the fewest that may be kept: extremes of two stretches, two of shorter ones, the first and the
 * latest. */
TEST(few_events_are_kept_of_a_thinned_curve)
{
    struct store *store = open_store();
    insert(store, "mnist-1");
    job_message *job = NULL;
    expect_ok(store_get_job(store, "mnist-1", &job));
    for (uint64_t i = 2; i <= 40; i++) {
        Fsdpd__V1__StateChange change;
        job_event event = make_event(i, &change);
        if (i == 6) expect_ok(store_update_job(store, job, &event, true));
        else add_loss(store, job, i, false, i % 8 == 3 || i % 8 == 4 ? NAN : 1.0 / (double)i);
    }
    for (int again = 0; again < 2; again++) {
        uint64_t left = 0;
        expect_ok(store_thin_metrics(store, "mnist-1", 16, &left));
        check_events(store, 0, 0, 100, "1 2 3 6 11 15 16 19 27 31 32 34 35 36 37 38 39 40 ");
        ck_assert_uint_eq(left, 16);
    }
    message_free(job);
    store_close(store);
}

/*
 * A child inserts jobs and metrics as fast as it can and reports after each what is durable; it is
 * killed at some moment. Everything that it reported must be there, and the file must be whole.
 */
static _Noreturn void write_until_killed(int reported)
{
    struct store *store = open_store();
    for (uint32_t number = 1;; number++) {
        char *id = mem_printf("mnist-%u", number);
        insert(store, id);
        job_message *job = NULL;
        expect_ok(store_get_job(store, id, &job));
        for (uint64_t i = 2; i < 8; i++) add_metrics(store, job, i, i == 7);
        message_free(job);
        free(id);
        if (write(reported, &number, sizeof number) != sizeof number) _exit(1);
    }
}

TEST(killed_while_writing)
{
    uint32_t seen = 0;
    for (int round = 0; round < 8; round++) {
        int ends[2];
        ck_assert_int_eq(pipe(ends), 0);
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) write_until_killed(ends[1]);
        close(ends[1]);
        uint32_t reported = 0, number = 0;
        ck_assert_int_eq(read(ends[0], &reported, sizeof reported),
                         sizeof reported); /* it has begun */
        clock_sleep_ms(3 + 7 * round);
        kill(child, SIGKILL);
        int how = 0;
        ck_assert_int_eq(waitpid(child, &how, 0), child);
        ck_assert(WIFSIGNALED(how));
        while (read(ends[0], &number, sizeof number) == sizeof number) reported = number;
        close(ends[0]);

        struct store *store = open_store();
        for (uint32_t i = 1; i <= reported; i++) {
            char *id = mem_printf("mnist-%u", i);
            job_message *job = NULL;
            uint64_t last = 0, metrics = 0;
            expect_ok(store_get_job(store, id, &job));
            expect_ok(store_count_events(store, id, &last, &metrics));
            ck_assert_uint_eq(last, 7);
            ck_assert_uint_eq(metrics, 6);
            message_free(job);
            free(id);
        }
        insert(store, "after");
        store_close(store);
        seen += reported;
        store_remove();
    }
    ck_assert_uint_ge(seen, 8);
}

static void add_usage(void *user, const struct store_usage *usage)
{
    buf_printf(user, "%s %lld %lld\n", usage->user, (long long)usage->worker_ms,
               (long long)usage->time_ms);
}

TEST(usage_of_users)
{
    const struct store_usage first[] = {{"bob", 1, 10}, {"ada", 2, 10}}, second = {"bob", 3, 20};
    struct buf text = {0};
    struct store *store = open_store();
    expect_ok(store_set_usage(store, first, 2));
    expect_ok(store_set_usage(store, &second, 1));
    store_close(store);
    store = open_store();
    expect_ok(store_each_usage(store, add_usage, &text));
    ck_assert_str_eq(buf_text(&text), "ada 2 10\nbob 3 20\n");
    buf_deinit(&text);
    store_close(store);
}

static void note_token(void *user, const struct store_token *token)
{
    struct buf *text = user;
    buf_printf(text, "%s %d %s %d %d%s; ", token->name, (int)token->role - 1, token->by,
               (int)token->issued_ms, (int)token->expires_ms, token->job);
}

static void expect_tokens(struct store *store, const unsigned char *hash, const char *expected)
{
    struct buf text = {0};
    expect_ok(store_each_token(store, hash, note_token, &text));
    ck_assert_str_eq(buf_text(&text), expected);
    buf_deinit(&text);
}

/* Reading them leaves no transaction open, with which the log could not be copied at the end. */
TEST(retries)
{
    const struct store_retries kept = {.failures = 2, .machine_failures = 1};
    struct store *store = open_store();
    struct store_retries read = {9, 9};
    expect_ok(store_get_retries(store, "mnist-1", &read));
    ck_assert(read.failures == 0 && read.machine_failures == 0);
    insert(store, "mnist-1");
    job_message *job = make_job("mnist-1");
    expect_ok(
        store_apply(store, &(struct store_change){.job = job, .report = -1, .retries = &kept}));
    message_free(job);
    AUTO_FREE char *log = mem_printf("%s-wal", store_path);
    ck_assert_int_eq(access(log, F_OK), 0);
    for (int i = 0; i < 2; i++) {
        expect_ok(store_get_retries(store, "mnist-1", &read));
        ck_assert(read.failures == 2 && read.machine_failures == 1);
        store_close(store);
        if (i == 0) ck_assert_int_ne(access(log, F_OK), 0);
        store = open_store();
    }
    store_close(store);
}

#define ROLE(word) FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_##word

TEST(tokens)
{
    static const unsigned char hashes[3][STORE_TOKEN_HASH] = {{1}, {2}, {2, 0, 3}};
    static const unsigned char other[STORE_TOKEN_HASH] = {3};
    static const struct store_token ann = {"ann", ROLE(USER), "olga", 10, 20, ""},
                                    late = {"ann", ROLE(USER), "root", 15, 40, ""},
                                    olga = {"olga", ROLE(OPERATOR), "root", 20, 30, ""},
                                    link = {"mnist-1", ROLE(OBSERVER), "olga", 25, 28, "mnist-1"};
    struct store *store = open_store();
    int removed = -1;
    expect_tokens(store, NULL, "");
    expect_ok(store_add_token(store, hashes[0], &ann));
    expect_ok(store_add_token(store, hashes[1], &late));
    expect_tokens(store, NULL, "ann 0 olga 10 20; ann 0 root 15 40; ");
    expect_ok(store_add_token(store, hashes[2], &olga)); /* the first has expired */
    store_close(store);
    store = open_store();
    expect_tokens(store, NULL, "ann 0 root 15 40; olga 1 root 20 30; ");
    expect_tokens(store, hashes[2], "olga 1 root 20 30; ");
    expect_tokens(store, hashes[0], "");
    expect_ok(store_add_token(store, other, &link));
    expect_tokens(store, other, "mnist-1 2 olga 25 28mnist-1; ");
    expect_ok(store_remove_tokens(store, "ann", &removed));
    ck_assert_int_eq(removed, 1);
    expect_ok(store_remove_tokens(store, "ann", &removed));
    ck_assert_int_eq(removed, 0);
    expect_tokens(store, hashes[1], "");
    store_close(store);
}

TEST(files_that_are_no_store)
{
    struct store *store = NULL;
    static const char garbage[8192] = "this is not a database, whatever its name says";
    expect_ok(file_write_atomic(store_path, garbage, sizeof garbage, 0600));
    expect_error(store_open(store_path, &store), STATUS_DATA_LOSS, store_path);

    store_remove();
    store = open_store();
    for (int i = 0; i < 50; i++) {
        char *id = mem_printf("mnist-%d", i);
        insert(store, id);
        free(id);
    }
    store_close(store);
    struct buf bytes = {0};
    expect_ok(file_read(store_path, 1 << 26, &bytes));
    ck_assert_uint_gt(bytes.length, 16384);
    memset(bytes.data + 4096, 0x5a, bytes.length - 8192); /* every page except the first and last */
    expect_ok(file_write_atomic(store_path, bytes.data, bytes.length, 0600));
    buf_deinit(&bytes);
    store = NULL;
    expect_error(store_open(store_path, &store), STATUS_DATA_LOSS, store_path);
    ck_assert_ptr_null(store);
    expect_error(store_open("/nonexistent/directory/store.db", &store), STATUS_PERMISSION_DENIED,
                 "/nonexistent");
}
