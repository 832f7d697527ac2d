/* GetLogs and GetMetrics: the ranks' reports reach the disk and the readers, slow ones, too. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

static struct world world;
static struct fake fakes[2];
static char *id;

static void set_up(void)
{
    world_init(&world);
    world.options.limits.watchers = 4;
    world_start(&world);
    id = world_start_running(&world, fakes);
}

static void tear_down(void)
{
    world_deinit_running(&world, fakes, 2, id);
}

static void send_line(struct fake *fake, const char *text, uint64_t dropped)
{
    Fsdpd__V1__LogLine line = FSDPD__V1__LOG_LINE__INIT, *lines[] = {&line};
    Google__Protobuf__Timestamp time;
    line.time = message_time(&time, INT64_C(1769862896789));
    line.level = FSDPD__V1__LOG_LEVEL__LOG_LEVEL_INFO;
    line.text = (char *)text;
    line.rank = 99; /* the coordinator knows the real one */
    Fsdpd__V1__LogReport report = FSDPD__V1__LOG_REPORT__INIT;
    report.n_lines = 1;
    report.lines = lines;
    report.dropped = dropped;
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_LOGS;
    event.logs = &report;
    event.job = fake->assignment->job;
    event.attempt = fake->assignment->attempt;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_EVENT;
    message.event = &event;
    rpc_stream_send(fake->stream, &message.base);
}

static void open_logs(struct listener *listener, int rank, bool follow, bool paused)
{
    Fsdpd__V1__GetLogsRequest request = FSDPD__V1__GET_LOGS_REQUEST__INIT;
    request.id = id;
    request.one_rank = rank >= -1;
    if (rank >= -1) request.rank = rank;
    request.follow = follow;
    listener_open(&world, listener, &control_get_logs, &request, paused);
}

static size_t lines_in(const struct listener *listener)
{
    size_t count = 0;
    for (int i = 0; i < listener->count; i++)
        count += ((const Fsdpd__V1__GetLogsResponse *)listener->messages[i])->n_lines;
    return count;
}

/* "rank text|" of all received lines; the caller frees it. */
static char *text_of(const struct listener *listener)
{
    struct buf text = {0};
    uint64_t position = 0;
    for (int i = 0; i < listener->count; i++) {
        const Fsdpd__V1__GetLogsResponse *chunk = listener->messages[i];
        for (size_t k = 0; k < chunk->n_lines; k++) {
            ck_assert_uint_gt(chunk->lines[k]->position, position);
            position = chunk->lines[k]->position;
            buf_printf(&text, "%d %s|", chunk->lines[k]->rank, chunk->lines[k]->text);
        }
    }
    return buf_take(&text);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(lines)
{
    send_line(&fakes[0], "one", 0);
    send_line(&fakes[1], "two", 7);
    send_line(&fakes[0], "three\nfour", 0);
    for (int rank = 0; rank < 2; rank++) {
        struct listener listener;
        const char *expected =
            rank == 0 ? "0 one|0 three?four|" : "1 log_lines_dropped count=7|1 two|";
        char *text = NULL;
        do { /* until all have come */
            free(text);
            open_logs(&listener, rank, false, false);
            WAIT(&world, listener.closed);
            expect_ok(listener.status);
            listener.status = NULL;
            text = text_of(&listener);
            listener_deinit(&listener);
        } while (strlen(text) < strlen(expected));
        ck_assert_str_eq(text, expected);
        free(text);
    }
}

/* A late reader and one that leaves delay no other; both ends see every line once. */
TEST(followers)
{
    enum { LINES = 3000 };
    struct listener fast, slow, gone;
    open_logs(&fast, 0, true, false);
    open_logs(&slow, 0, true, true);
    open_logs(&gone, 0, true, true);
    for (int i = 0; i < LINES; i++) {
        char text[32];
        snprintf(text, sizeof text, "line %d", i);
        send_line(&fakes[0], text, 0);
        if (i == LINES / 2) {
            WAIT(&world, lines_in(&fast) > 10);
            rpc_stream_cancel(gone.stream);
        }
    }
    WAIT(&world, lines_in(&fast) == LINES);
    WAIT(&world, gone.closed);
    ck_assert_uint_lt(lines_in(&slow), LINES);
    expect_ok(world_cancel(&world, id));
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].cancels > 0);
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_CANCELLED, "");
    WAIT(&world, fast.closed);
    listener_resume(&slow);
    WAIT(&world, slow.closed);
    expect_ok(fast.status);
    expect_ok(slow.status);
    fast.status = slow.status = NULL;
    char *a = text_of(&fast), *b = text_of(&slow);
    ck_assert_str_eq(a, b);
    ck_assert_ptr_nonnull(strstr(a, "|0 line 2999|"));
    free(a);
    free(b);
    listener_deinit(&fast);
    listener_deinit(&slow);
    listener_deinit(&gone);
}

/* fsdpd itself logs what happens to the job, even if no rank logs anything. */
TEST(notes)
{
    struct listener listener;
    open_logs(&listener, -1, false, false);
    WAIT(&world, listener.closed);
    char *text = text_of(&listener);
    ck_assert_ptr_nonnull(strstr(text, "-1 job_state state=QUEUED"));
    ck_assert_ptr_nonnull(strstr(text, "-1 job_state state=RUNNING"));
    free(text);
    listener_deinit(&listener);
}

TEST(refusals)
{
    Fsdpd__V1__GetLogsRequest request = FSDPD__V1__GET_LOGS_REQUEST__INIT;
    struct listener refused, readers[4];
    const struct {
        const char *job;
        int32_t rank;
        uint32_t tail;
        enum status_code code;
        const char *words;
    } cases[] = {
        {"nobody", 0, 0, STATUS_NOT_FOUND, "nobody"},
        {"../../etc", 0, 0, STATUS_NOT_FOUND, "etc"},
        {id, -2, 0, STATUS_INVALID_ARGUMENT, "rank"},
        {id, 0, UINT32_MAX, STATUS_INVALID_ARGUMENT, "tail"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        request.id = (char *)cases[i].job;
        request.rank = cases[i].rank;
        request.tail = cases[i].tail;
        listener_open(&world, &refused, &control_get_logs, &request, false);
        WAIT(&world, refused.closed);
        expect_status(refused.status, cases[i].code, cases[i].words);
        refused.status = NULL;
        listener_deinit(&refused);
    }
    for (int i = 0; i < 4; i++) {
        open_logs(&readers[i], -2, true, false);
        WAIT(&world, readers[i].count > 0);
    }
    open_logs(&refused, -2, true, false);
    WAIT(&world, refused.closed);
    expect_status(refused.status, STATUS_RESOURCE_EXHAUSTED, "4 readers");
    refused.status = NULL;
    listener_deinit(&refused);
    world_stop(&world); /* they end with it */
    for (int i = 0; i < 4; i++) {
        WAIT(&world, readers[i].closed);
        listener_deinit(&readers[i]);
    }
}

static char *metrics_text(uint32_t every, bool changes)
{
    Fsdpd__V1__GetMetricsRequest request = FSDPD__V1__GET_METRICS_REQUEST__INIT;
    struct listener listener;
    request.id = id;
    request.every = every;
    request.changes = changes;
    listener_open(&world, &listener, &control_get_metrics, &request, false);
    WAIT(&world, listener.closed);
    expect_ok(listener.status);
    listener.status = NULL;
    struct buf text = {0};
    for (int i = 0; i < listener.count; i++) {
        const Fsdpd__V1__GetMetricsResponse *chunk = listener.messages[i];
        ck_assert_uint_eq(chunk->left_out, 0);
        for (size_t k = 0; k < chunk->n_rows; k++) {
            const job_event *event = chunk->rows[k]->event;
            if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_METRICS)
                buf_printf(&text, "%u:%d ", chunk->rows[k]->attempt, (int)event->metrics->step);
            else
                buf_add_text(&text, event->epoch != NULL &&
                                            event->event_case == FSDPD__V1__JOB_EVENT__EVENT_EPOCH
                                        ? "e "
                                        : "s ");
        }
    }
    listener_deinit(&listener);
    return buf_take(&text);
}

TEST(metrics)
{
    for (uint64_t step = 1; step <= 5; step++) fake_metrics(&fakes[0], step, 1);
    fake_epoch(&fakes[0], 1);
    char *text = NULL;
    do {
        free(text);
        text = metrics_text(0, false);
    } while (strchr(text, 'e') == NULL);
    ck_assert_str_eq(text, "1:1 1:2 1:3 1:4 1:5 e ");
    free(text);
    text = metrics_text(2, false);
    ck_assert_str_eq(text, "1:1 1:3 1:5 e ");
    free(text);
    text = metrics_text(5, true);
    ck_assert_ptr_nonnull(strstr(text, "s s s "));
    ck_assert_ptr_nonnull(strstr(text, "1:1 e "));
    free(text);
}
