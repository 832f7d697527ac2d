/* Data for TensorBoard and Prometheus: the bytes of event files, totals, escapes. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/jobs/tensorboard.h"
#include "coordinator/monitor/monitor.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

/* Written by hand in TensorFlow's layout: the checksums are of an independent implementation. */
TEST(event_bytes)
{
    struct buf out = {0};
    tensorboard_add_version(&out, 1.5);
    static const uint8_t version[] = {
        0x18, 0,   0,   0,   0,   0,   0,   0,    0xa3, 0x7f, 0x4b, 0x22,
        0x09, 0,   0,   0,   0,   0,   0,   0xf8, 0x3f, 0x1a, 0x0d, 'b',
        'r',  'a', 'i', 'n', '.', 'E', 'v', 'e',  'n',  't',  ':',  '2',
    };
    ck_assert_uint_eq(out.length, sizeof version + 4);
    ck_assert_mem_eq(out.data, version, sizeof version);
    buf_clear(&out);
    struct tensorboard_scalar scalars[] = {{"a/b", 0.5}, {"c", -2}};
    tensorboard_add_scalars(&out, 2, 300, scalars, 2);
    static const uint8_t event[] = {
        0x09, 0,    0,    0,    0,   0,    0,   0,    0x40,                /* wall time */
        0x10, 0xac, 0x02,                                                  /* step */
        0x2a, 0x16,                                                        /* summary */
        0x0a, 0x0a, 0x0a, 0x03, 'a', '/',  'b', 0x15, 0,    0,    0, 0x3f, /* values */
        0x0a, 0x08, 0x0a, 0x01, 'c', 0x15, 0,   0,    0,    0xc0,
    };
    ck_assert_uint_eq(out.length, 12 + sizeof event + 4);
    ck_assert_mem_eq(out.data + 12, event, sizeof event);
    buf_clear(&out);
    tensorboard_add_text(&out, 2, 300, "a", "5 -> 7");
    static const uint8_t text[] = {
        0x09, 0,    0,    0,    0,    0,    0,    0,    0x40,      /* wall time */
        0x10, 0xac, 0x02,                                          /* step */
        0x2a, 0x1d, 0x0a, 0x1b, 0x0a, 0x01, 'a',                   /* summary, value */
        0x4a, 0x08, 0x0a, 0x06, 0x0a, 0x04, 't',  'e',  'x',  't', /* its plugin */
        0x42, 0x0c, 0x08, 0x07, 0x12, 0x00, 0x42, 0x06, '5',  ' ', '-', '>', ' ', '7', /* tensor */
    };
    ck_assert_uint_eq(out.length, 12 + sizeof text + 4);
    ck_assert_mem_eq(out.data + 12, text, sizeof text);
    buf_deinit(&out);
}

TEST(totals)
{
    Fsdpd__V1__Collective gather = FSDPD__V1__COLLECTIVE__INIT;
    gather.kind = (char *)"all_gather";
    gather.bytes = 10;
    Fsdpd__V1__Collective *collectives[] = {&gather};
    Fsdpd__V1__Plan plan = FSDPD__V1__PLAN__INIT;
    plan.n_collectives = 1;
    plan.collectives = collectives;
    job_spec spec = FSDPD__V1__JOB_SPEC__INIT;
    spec.workers = 3;
    job_message job = FSDPD__V1__JOB__INIT;
    job.plan = &plan;
    job.spec = &spec;
    struct job_totals totals = {0};
    Fsdpd__V1__Metrics report = FSDPD__V1__METRICS__INIT;
    report.step = 10;
    report.step_seconds = 0.5;
    report.samples_per_second = 64;
    report.exposed_communication_seconds = 0.1;
    job_totals_add(&totals, &job, &report);
    job_totals_add(&totals, &job, &report); /* the same report again adds nothing */
    ck_assert_uint_eq(totals.steps, 10);
    ck_assert_double_eq(totals.samples, 320);
    ck_assert_double_eq_tol(totals.seconds, 5, 1e-9);
    ck_assert_double_eq_tol(totals.exposed_seconds, 1, 1e-9);
    ck_assert_double_eq(totals.ops[0].bytes, 300);
    /* Another plan: the bytes sent so far remain. */
    gather.bytes = 1;
    report.step = 12;
    job_totals_add(&totals, &job, &report);
    ck_assert_double_eq(totals.ops[0].bytes, 306);
    ck_assert_int_eq(totals.op_count, 1);
    report.step = 11; /* a rank that was set back: counters never fall */
    job_totals_add(&totals, &job, &report);
    ck_assert_uint_eq(totals.steps, 12);
    report.step = 13;
    report.step_seconds = 0; /* unknown */
    job_totals_add(&totals, &job, &report);
    ck_assert_uint_eq(totals.steps, 12);
    ck_assert_uint_eq(totals.step, 13);
}

static struct world world;

static void set_up(void)
{
    world_init(&world);
}

static void tear_down(void)
{
    world_deinit(&world);
}

static long long size_of_store(const char *suffix)
{
    struct stat file;
    char *path = mem_printf("%s/store.db%s", world.options.state_dir, suffix);
    ck_assert_int_eq(stat(path, &file), 0);
    free(path);
    return file.st_size;
}

TESTS_BELOW(.timeout = 30, .set_up = set_up, .tear_down = tear_down);

TEST(exposition)
{
    world_start(&world);
    struct fake fakes[2];
    char *id = world_start_running(&world, fakes);
    struct buf text = {0};
    metrics_write(world.coordinator, &text);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "\nfsdpd_workers{state=\"busy\"} 2\n"));
    char *line = mem_printf("\nfsdpd_job_state{job_id=\"%s\",state=\"RUNNING\"} 1\n", id);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), line));
    free(line);
    ck_assert_ptr_null(strstr(buf_text(&text), "fsdpd_loss")); /* nothing is known yet */
    fake_metrics(&fakes[0], 5, 0.25);
    line = mem_printf("\nfsdpd_loss{job_id=\"%s\"} 0.25\n", id);
    do {
        world_run(&world, 20);
        buf_clear(&text);
        metrics_write(world.coordinator, &text);
    } while (strstr(buf_text(&text), line) == NULL);
    const char *why = "";
    ck_assert(metrics_is_ready(world.coordinator, &why));
    ck_assert_ptr_null(why);
    free(line);
    fake_validation(&fakes[0], 5, NAN);
    fake_metrics(&fakes[0], 6, NAN);
    line = mem_printf("\nfsdpd_loss{job_id=\"%s\"} NaN\n", id);
    do {
        world_run(&world, 20);
        buf_clear(&text);
        metrics_write(world.coordinator, &text);
    } while (strstr(buf_text(&text), line) == NULL);
    ck_assert_ptr_null(strstr(buf_text(&text), "fsdpd_validation_loss")); /* a mean of nothing */
    free(line);
    line = mem_printf("\nfsdpd_memory_bytes{job_id=\"%s\",kind=\"peak\"} 4096\n", id);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), line));
    free(line);
    fake_held_out(&fakes[0], "prose", 6, 3);
    fake_held_out(&fakes[0], "code", 6, 1.5);
    fake_held_out(&fakes[0], "code", 8, 1.25); /* in the place of the last one */
    line = mem_printf("\nfsdpd_validation_loss{job_id=\"%s\",set=\"prose\"} 3\n"
                      "fsdpd_validation_loss{job_id=\"%s\",set=\"code\"} 1.25\n",
                      id, id);
    do {
        world_run(&world, 20);
        buf_clear(&text);
        metrics_write(world.coordinator, &text);
    } while (strstr(buf_text(&text), line) == NULL);
    ck_assert_ptr_null(strstr(buf_text(&text), "} 1.5\n"));
    free(line);
    ck_assert_int_gt(size_of_store("-wal"), 0);
    line = mem_printf("\nfsdpd_store_bytes %lld\n", size_of_store("") + size_of_store("-wal"));
    ck_assert_ptr_nonnull(strstr(buf_text(&text), line));
    free(line);
    buf_deinit(&text);
    expect_ok(world_cancel(&world, id));
    for (int i = 0; i < 2; i++) fake_finished(&fakes[i], STATUS_CANCELLED, "cancelled");
    WAIT(&world, world_job_is(&world, id, JOB_CANCELLED));
    free(id);
    for (int i = 0; i < 2; i++) {
        fake_detach(&fakes[i]);
        fake_deinit(&fakes[i]);
    }
    world_stop(&world);
}

/* The exposition, once it has the line. */
static void expect_line(const char *line)
{
    struct buf text = {0};
    do {
        world_run(&world, 20);
        buf_clear(&text);
        metrics_write(world.coordinator, &text);
    } while (strstr(buf_text(&text), line) == NULL);
    buf_deinit(&text);
}

TEST(time_of_the_newest_checkpoint_survives_a_restart)
{
    world.options.limits.reattach_ms = 60000;
    world_start(&world);
    struct fake fakes[2];
    char *id = world_start_running(&world, fakes);
    struct buf text = {0};
    metrics_write(world.coordinator, &text);
    ck_assert_ptr_null(strstr(buf_text(&text), "fsdpd_checkpoint_time_seconds"));
    buf_deinit(&text);
    char *line = mem_printf("\nfsdpd_checkpoint_time_seconds{job_id=\"%s\"} 1700000004\n", id);
    fake_checkpoint(&fakes[0], 0, 2, STATUS_OK, "", NULL);
    fake_checkpoint(&fakes[0], 0, 4, STATUS_OK, "", NULL);
    fake_checkpoint(&fakes[0], 0, 6, STATUS_RESOURCE_EXHAUSTED, "disk full", NULL);
    expect_line(line);
    for (int i = 0; i < 2; i++) fake_detach(&fakes[i]);
    world_stop(&world);
    for (int i = 0; i < 2; i++) fake_deinit(&fakes[i]);
    world_start(&world);
    expect_line(line);
    free(line);
    free(id);
}

static bool reason_is(const char *id, const char *code)
{
    job_message *job = world_job(&world, id);
    bool is = strcmp(job->reason->code, code) == 0;
    message_free(job);
    return is;
}

static double step_age(const char *id)
{
    struct buf text = {0};
    metrics_write(world.coordinator, &text);
    char *line = mem_printf("\nfsdpd_step_age_seconds{job_id=\"%s\"} ", id);
    const char *found = strstr(buf_text(&text), line);
    ck_assert_ptr_nonnull(found);
    double age = strtod(found + strlen(line), NULL);
    free(line);
    buf_deinit(&text);
    return age;
}

/* Two ranks that have done 29 steps. */
static char *run_steps(struct fake fakes[2])
{
    world.options.limits.heartbeat_ms = 100;
    world_start(&world);
    char *id = world_start_running(&world, fakes);
    for (uint64_t step = 1; step < 30; step++) {
        for (int r = 0; r < 2; r++) fake_heartbeat_at(&fakes[r], step, 10 * step, r == 0);
        world_run(&world, 10);
    }
    ck_assert(reason_is(id, "RUNNING"));
    return id;
}

/* A stalled step: rank 0 waits in a collective, and rank 1 (0) does not, (1) is a collective
 * behind, or (2) is silent. */
LOOP_TEST(step_that_stands_still, 0, 3)
{
    struct fake fakes[2];
    char *id = run_steps(fakes);
    while (!reason_is(id, "STALLED")) {
        fake_heartbeat_at(&fakes[0], 29, 300, true);
        if (_i < 2) fake_heartbeat_at(&fakes[1], 29, _i == 0 ? 300 : 299, _i == 1);
        world_run(&world, 20);
    }
    world_check_reason(&world, id, JOB_RUNNING, "STALLED", "step 29 has not advanced since 2");
    world_check_reason(&world, id, JOB_RUNNING, "STALLED",
                       _i == 2 ? "Z: waits for rank 1 (host/cpu:1), which is silent; a step usually"
                               : "Z: waits for rank 1 (host/cpu:1); a step usually takes ");
    ck_assert_double_gt(step_age(id), 0.5);
    fake_heartbeat_at(&fakes[0], 30, 310, false);
    WAIT(&world, reason_is(id, "RUNNING"));
    world_check_reason(&world, id, JOB_RUNNING, "RUNNING", "training on 2 workers");
    world_deinit_running(&world, fakes, 2, id);
    world_init(&world); /* for the end of the test */
}

/* An evaluation that moves is no stall, however long it takes; nor is one whose version does not
 * say where it is. One that stays at a batch is, until it moves. */
LOOP_TEST(evaluation_that_stands_still, 0, 2)
{
    struct fake fakes[2];
    char *id = run_steps(fakes);
    const uint64_t moves = _i == 0; /* or the version does not say */
    uint64_t batch = moves;
    for (int i = 0; i < 30; i++) { /* longer than five heartbeats */
        fake_heartbeat_evaluating(&fakes[0], 29, batch += moves);
        world_run(&world, 50);
        ck_assert(reason_is(id, "RUNNING"));
    }
    if (_i == 0) {
        while (!reason_is(id, "STALLED")) {
            for (int r = 0; r < 2; r++) fake_heartbeat_evaluating(&fakes[r], 29, batch);
            world_run(&world, 20);
        }
        world_check_reason(&world, id, JOB_RUNNING, "STALLED",
                           "the evaluation after step 29 has not advanced since 2");
        fake_heartbeat_evaluating(&fakes[1], 29, batch + 1);
        WAIT(&world, reason_is(id, "RUNNING"));
    }
    world_deinit_running(&world, fakes, 2, id);
    world_init(&world); /* for the end of the test */
}

struct request {
    const char *address, *line;
    char answer[65536];
    _Atomic bool done;
};

static void *ask(void *argument)
{
    struct request *request = argument;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9464)};
    ck_assert_int_eq(inet_pton(AF_INET, request->address, &to.sin_addr), 1);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    AUTO_FREE char *text = mem_printf("%s HTTP/1.0\r\n\r\n", request->line);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    size_t length = 0;
    for (ssize_t more;
         (more = read(fd, request->answer + length, sizeof request->answer - 1 - length)) > 0;)
        length += (size_t)more;
    request->answer[length] = '\0';
    close(fd);
    request->done = true;
    return NULL;
}

TEST(requests_over_http)
{
    /* this process' own address of the loopback */
    const unsigned pid = (unsigned)getpid();
    static char address[32], listen_at[40];
    snprintf(address, sizeof address, "127.%u.%u.%u", 1 + (pid >> 16 & 63), pid >> 8 & 255,
             pid & 255);
    snprintf(listen_at, sizeof listen_at, "%s:9464", address);
    world.options.metrics_listen = listen_at;
    world_start(&world);
    static const struct {
        const char *line, *code, *body;
    } cases[] = {
        {"GET /", "200", "\r\n\r\nfsdpd: /metrics /livez /readyz\n"},
        {"GET /livez", "200", "\r\n\r\nok\n"},
        {"GET /readyz", "200", "\r\n\r\nok\n"},
        {"GET /metrics", "200", "\nfsdpd_workers{state=\"busy\"} 0\n"},
        {"HEAD /livez", "200", "\r\n\r\n"},
        {"GET /livez/", "404", "\r\n\r\nnot found\n"},
        {"POST /livez", "405", "\r\n\r\nonly GET and HEAD\n"},
        {"PUT /metrics", "405", "\r\n\r\nonly GET and HEAD\n"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        static struct request request;
        pthread_t thread;
        request = (struct request){.address = address, .line = cases[i].line};
        ck_assert_int_eq(pthread_create(&thread, NULL, ask, &request), 0);
        WAIT(&world, request.done);
        pthread_join(thread, NULL);
        ck_assert_msg(strncmp(request.answer + strlen("HTTP/1.1 "), cases[i].code, 3) == 0 &&
                          strstr(request.answer, cases[i].body) != NULL,
                      "%s: %s", cases[i].line, request.answer);
    }
}
