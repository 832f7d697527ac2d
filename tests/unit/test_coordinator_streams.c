/* Watching and pulling: what a stream's client gets, fast or slow, present or disconnected. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "hf/safetensors.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

static struct world world;
static struct fake fakes[2];
static char *id;

static void set_up(void)
{
    world_init(&world);
}

static void tear_down(void)
{
    world_deinit_running(&world, fakes, 2, id);
}

/* Starts a job on two workers and waits until it is RUNNING. */
static void start_running(bool save_model)
{
    world_start(&world);
    fake_attach(&world, &fakes[0], "host/cpu:0", 1000);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(2);
    request.spec->save_model = save_model;
    void *response = NULL;
    expect_ok(world_call(&world, &control_submit_job, &request, &response));
    id = mem_strdup(((job_message *)response)->id);
    message_free(response);
    for (int r = 0; r < 2; r++) {
        WAIT(&world, fakes[r].assignments == 1);
        fake_started(&fakes[r], 42);
    }
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
}

static void end_job(enum status_code code, enum job_state state)
{
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], code, "as the test said");
    WAIT(&world, world_job_is(&world, id, state));
}

/* ---- watching ---- */

static void watch(struct listener *listener, uint64_t after, bool paused)
{
    Fsdpd__V1__WatchJobRequest request = FSDPD__V1__WATCH_JOB_REQUEST__INIT;
    request.id = id;
    request.after_sequence = after;
    listener_open(&world, listener, &control_watch_job, &request, paused);
}

static const job_event *event_at(const struct listener *listener, int i)
{
    ck_assert_int_lt(i, listener->count);
    return listener->messages[i];
}

/*
 * The kinds of all events in order: q, s, r, S, F, C for states, m, e, and d for dropped metrics.
 * Also checks that sequences from `first` on rise without an unannounced gap.
 */
static char *kinds(const struct listener *listener, uint64_t first, uint64_t *dropped)
{
    static const char states[] = "?qsrpSFC";
    char *text = mem_alloc((size_t)listener->count + 1);
    uint64_t next = first;
    *dropped = 0;
    for (int i = 0; i < listener->count; i++) {
        const job_event *event = event_at(listener, i);
        switch (event->event_case) {
        case FSDPD__V1__JOB_EVENT__EVENT_STATE: text[i] = states[event->state->state]; break;
        case FSDPD__V1__JOB_EVENT__EVENT_METRICS: text[i] = 'm'; break;
        case FSDPD__V1__JOB_EVENT__EVENT_EPOCH: text[i] = 'e'; break;
        case FSDPD__V1__JOB_EVENT__EVENT_DROPPED:
            text[i] = 'd';
            *dropped += event->dropped->metrics;
            ck_assert_uint_eq(event->sequence, next + event->dropped->metrics - 1);
            next = event->sequence;
            break;
        default: text[i] = '?'; break;
        }
        ck_assert_uint_eq(event->sequence, next);
        next++;
    }
    return text;
}

static void check_kinds(const struct listener *listener, uint64_t first, const char *expected)
{
    uint64_t dropped = 0;
    char *text = kinds(listener, first, &dropped);
    ck_assert_str_eq(text, expected);
    ck_assert_uint_eq(dropped, 0);
    free(text);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(watch_replays_and_continues_live)
{
    start_running(false);
    fake_metrics(&fakes[0], 1, 0.5);
    struct listener all, rest;
    watch(&all, 0, false);
    WAIT(&world, all.count == 4);
    check_kinds(&all, 1, "qsrm");
    ck_assert_uint_eq(event_at(&all, 1)->state->attempt, 1);
    ck_assert_str_eq(event_at(&all, 2)->state->reason->code, "RUNNING");
    ck_assert_double_eq(event_at(&all, 3)->metrics->loss, 0.5);
    ck_assert_uint_eq(event_at(&all, 3)->steps, 100);
    watch(&rest, 3, false); /* resumed */
    WAIT(&world, rest.count == 1);
    fake_epoch(&fakes[0], 1);
    fake_metrics(&fakes[0], 2, 0.4);
    WAIT(&world, all.count == 6 && rest.count == 3);
    ck_assert(!all.closed);
    end_job(STATUS_OK, JOB_SUCCEEDED);
    WAIT(&world, all.closed && rest.closed);
    expect_ok(all.status);
    expect_ok(rest.status);
    check_kinds(&all, 1, "qsrmemS");
    check_kinds(&rest, 4, "memS");
    listener_deinit(&all);
    listener_deinit(&rest);

    /* The same when it is over, also after a restart. */
    for (int i = 0; i < 2; i++) {
        watch(&all, 0, false);
        WAIT(&world, all.closed);
        expect_ok(all.status);
        check_kinds(&all, 1, "qsrmemS");
        listener_deinit(&all);
        watch(&rest, 7, false);
        WAIT(&world, rest.closed);
        expect_ok(rest.status);
        ck_assert_int_eq(rest.count, 0);
        listener_deinit(&rest);
        watch(&rest, UINT64_MAX, false);
        WAIT(&world, rest.closed);
        expect_ok(rest.status);
        ck_assert_int_eq(rest.count, 0);
        listener_deinit(&rest);
        for (int r = 0; r < 2 && i == 0; r++) fake_deinit(&fakes[r]);
        fakes[0].world = fakes[1].world = NULL;
        world_stop(&world);
        world_start(&world);
    }
    free(id);
    id = mem_strdup("nobody-1");
    watch(&all, 0, false);
    WAIT(&world, all.closed);
    ck_assert_int_eq(status_code(all.status), STATUS_NOT_FOUND);
    listener_deinit(&all);
}

TEST(watch_of_a_restarting_coordinator)
{
    start_running(false);
    struct listener all;
    watch(&all, 0, false);
    WAIT(&world, all.count == 3);
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
    fakes[0].world = fakes[1].world = NULL;
    world_stop(&world);
    ck_assert(all.closed);
    listener_deinit(&all);
    world_start(&world);
    watch(&all, 3, false);
    WAIT(&world, all.closed);
    expect_ok(all.status);
    ck_assert_int_ge(all.count, 1);
    ck_assert_int_eq(event_at(&all, all.count - 1)->state->state, JOB_FAILED);
    listener_deinit(&all);
}

TEST(slow_watcher_misses_metrics_and_knows_how_many)
{
    enum { METRICS = 20000 };
    world.options.limits.watch_lag = 300;
    start_running(false);
    struct listener slow, fast;
    watch(&slow, 0, true);
    watch(&fast, 0, false);
    WAIT(&world, fast.count == 3);
    listener_resume(&slow);
    WAIT(&world, slow.count == 3); /* it has caught up, and now stops reading */
    slow.paused = true;
    for (int i = 1; i <= METRICS; i++) {
        fake_metrics(&fakes[0], (uint64_t)i, 1.0 / i);
        if (i == METRICS / 2) fake_epoch(&fakes[0], 1);
        if (i % 100 == 0) fake_heartbeat(&fakes[1], 0);
        if (i % 100 == 0) WAIT(&world, fast.count >= 3 + i - 90);
    }
    fake_epoch(&fakes[0], 2);
    end_job(STATUS_OK, JOB_SUCCEEDED);
    WAIT(&world, fast.closed);
    uint64_t dropped = 0;
    char *text = kinds(&fast, 1, &dropped);
    ck_assert_uint_eq(dropped, 0); /* it is not affected by the other one */
    ck_assert_int_eq(fast.count, 3 + METRICS + 2 + 1);
    free(text);

    ck_assert_int_lt(slow.count, METRICS);
    ck_assert(!slow.closed);
    listener_resume(&slow);
    WAIT(&world, slow.closed);
    expect_ok(slow.status);
    text = kinds(&slow, 1, &dropped); /* checks that the gaps are reported exactly */
    ck_assert_msg(dropped > 100, "dropped %d of them", (int)dropped);
    int epochs = 0, states = 0, metrics = 0;
    for (char *kind = text; *kind; kind++) {
        epochs += *kind == 'e';
        metrics += *kind == 'm';
        states += strchr("qsrS", *kind) != NULL;
    }
    ck_assert_int_eq(epochs, 2);
    ck_assert_int_eq(states, 4);
    ck_assert_uint_eq((uint64_t)metrics + dropped, METRICS);
    ck_assert_int_eq(text[strlen(text) - 1], 'S');
    free(text);
    listener_deinit(&slow);
    listener_deinit(&fast);
}

TEST(old_metrics_are_thinned)
{
    enum { METRICS = 400, KEPT = 40 };
    world.options.limits.metrics_kept = KEPT;
    start_running(false);
    fake_epoch(&fakes[0], 1);
    for (int i = 1; i <= METRICS; i++) fake_metrics(&fakes[0], (uint64_t)i, 0);
    end_job(STATUS_OK, JOB_SUCCEEDED);
    struct listener all;
    watch(&all, 0, false);
    WAIT(&world, all.closed);
    uint64_t dropped = 0;
    char *text = kinds(&all, 1, &dropped);
    const uint64_t left = METRICS - dropped;
    ck_assert_msg(left >= KEPT / 2 && left <= KEPT + KEPT / 8 + 1, "%d are left", (int)left);
    ck_assert_int_eq(strncmp(text, "qsremd", 6), 0);
    ck_assert_uint_eq(event_at(&all, all.count - 2)->metrics->step, METRICS);
    /* Thinned evenly: the first is there, no gap is much longer than necessary, the latest are all
     * there. */
    uint64_t before = 0;
    for (int i = 0; i < all.count; i++) {
        if (event_at(&all, i)->event_case != FSDPD__V1__JOB_EVENT__EVENT_METRICS) continue;
        uint64_t step = event_at(&all, i)->metrics->step;
        if (before == 0) ck_assert_uint_eq(step, 1);
        ck_assert_uint_le(step - before, step > METRICS - KEPT / 4 ? 1 : 32);
        before = step;
    }
    free(text);
    listener_deinit(&all);
}

TEST(watchers_that_vanish)
{
    world.options.limits.watchers = 3;
    start_running(false);
    struct listener watchers[4];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) watch(&watchers[i], 0, i == 2);
        for (int i = 0; i < 2; i++) WAIT(&world, watchers[i].count == 3);
        watch(&watchers[3], 0, false);
        WAIT(&world, watchers[3].closed);
        ck_assert_int_eq(status_code(watchers[3].status), STATUS_RESOURCE_EXHAUSTED);
        for (int i = 0; i < 4; i++) {
            if (watchers[i].stream != NULL) rpc_stream_cancel(watchers[i].stream);
            fake_metrics(&fakes[0], 1, 1);
            WAIT(&world, watchers[i].closed);
            listener_deinit(&watchers[i]);
        }
        world_run(&world, 50); /* the server learns of it */
        for (int i = 0; i < 2; i++) fakes[i].cancels = 0;
        free(id);
        for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_OK, "");
        id = world_submit(&world, 2);
        for (int r = 0; r < 2; r++) {
            WAIT(&world, fakes[r].assignments == 2 + round);
            fake_started(&fakes[r], 42);
        }
        WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
    }
}

static void leave_watch(char *job)
{
    struct listener listener;
    Fsdpd__V1__WatchJobRequest request = FSDPD__V1__WATCH_JOB_REQUEST__INIT;
    request.id = job;
    request.cancel_if_left = true;
    listener_open(&world, &listener, &control_watch_job, &request, false);
    WAIT(&world, listener.count > 0);
    rpc_stream_cancel(listener.stream);
    WAIT(&world, listener.closed);
    listener_deinit(&listener);
}

/* If the job is for them: a queued one ends at once, and a running one by an order. */
TEST(watchers_that_leave_cancel_their_job)
{
    start_running(false);
    char *queued = world_submit(&world, 2);
    leave_watch(queued);
    WAIT(&world, world_job_is(&world, queued, JOB_CANCELLED));
    world_check_by(&world, queued, "CANCELLED", true);
    free(queued);
    leave_watch(id);
    WAIT(&world, fakes[0].cancels == 1 && fakes[1].cancels == 1);
    end_job(STATUS_CANCELLED, JOB_CANCELLED);
}

/* ---- pulling ---- */

static void pull(struct listener *listener, bool paused)
{
    Fsdpd__V1__PullStateDictRequest request = FSDPD__V1__PULL_STATE_DICT_REQUEST__INIT;
    request.id = id;
    listener_open(&world, listener, &control_pull_state_dict, &request, paused);
}

static uint8_t byte_at(uint64_t offset)
{
    return (uint8_t)(offset * 31 + (offset >> 11) * 7 + (offset >> 20));
}

enum { MODEL_VALUES = 1 << 20 }; /* of world_plan */

static struct buf header; /* start of a file */

/* One tensor of this number of values; the job's plan has MODEL_VALUES. Returns the file's size. */
static uint64_t make_header(const char *dtype, int64_t values)
{
    char name[] = "weight", *type = mem_strdup(dtype);
    struct safetensors_entry entry = {.name = name,
                                      .dtype = type,
                                      .dim_count = 1,
                                      .dims = {values}};
    buf_clear(&header);
    safetensors_write_header(&header, &entry, 1, NULL, 0);
    free(type);
    return header.length + entry.end;
}

static void fill(uint8_t *bytes, size_t size, uint64_t offset)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] =
            offset + i < header.length ? (uint8_t)header.data[offset + i] : byte_at(offset + i);
}

/* Checks that the chunks form a file of `total` bytes of `step`. */
static void check_pulled(const struct listener *listener, uint64_t total, uint64_t step)
{
    uint64_t offset = 0;
    uint8_t *expected = mem_alloc(1 << 20);
    for (int i = 0; i < listener->count; i++) {
        const Fsdpd__V1__PullStateDictResponse *chunk = listener->messages[i];
        ck_assert_uint_eq(chunk->total_size, i == 0 ? total : 0);
        ck_assert_uint_eq(chunk->step, i == 0 ? step : 0);
        ck_assert_uint_le(chunk->data.len, 1 << 20);
        fill(expected, chunk->data.len, offset);
        ck_assert_msg(chunk->data.len == 0 || /* the first, or a sign of life */
                          memcmp(chunk->data.data, expected, chunk->data.len) == 0,
                      "a byte is wrong");
        offset += chunk->data.len;
    }
    free(expected);
    ck_assert_uint_eq(offset, total);
}

static void upload_all(struct upload_call *upload, uint64_t total, size_t piece)
{
    uint8_t *bytes = mem_alloc(piece);
    for (uint64_t offset = 0; offset < total; offset += piece) {
        size_t size = total - offset < piece ? (size_t)(total - offset) : piece;
        fill(bytes, size, offset);
        upload_send(upload, bytes, size);
    }
    free(bytes);
    upload_close(upload);
}

TEST(pull_of_a_running_job)
{
    start_running(false);
    struct listener first, second;
    struct upload_call upload;
    pull(&first, false);
    pull(&second, false); /* waits for the first: a pull costs the ranks a snapshot */
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].pulls == 1);
    ck_assert_uint_eq(fakes[0].pull, fakes[1].pull);
    world_run(&world, 50);
    ck_assert_int_eq(fakes[0].pulls, 1);

    uint64_t pulls[2] = {fakes[0].pull, 0};
    upload_open(&fakes[0], &upload, fakes[0].pull, 1000001, 17);
    upload_all(&upload, 1000001, 99999);
    WAIT(&world, upload.closed && first.closed);
    expect_ok(upload.status);
    ck_assert(upload.answered);
    expect_ok(first.status);
    check_pulled(&first, 1000001, 17);
    upload_deinit(&upload);

    WAIT(&world, fakes[1].pulls == 2);
    pulls[1] = fakes[0].pull;
    ck_assert_uint_ne(pulls[0], pulls[1]);
    ck_assert_uint_eq(fakes[0].order_sequence, 2);
    upload_open(&fakes[0], &upload, pulls[1], 10, 18);
    upload_all(&upload, 10, 10);
    WAIT(&world, upload.closed && second.closed);
    check_pulled(&second, 10, 18);
    upload_deinit(&upload);
    listener_deinit(&first);
    listener_deinit(&second);

    /* An upload without a request, or a second one, is refused. */
    upload_open(&fakes[0], &upload, pulls[1], 10, 18);
    WAIT(&world, upload.closed);
    ck_assert_int_eq(status_code(upload.status), STATUS_CANCELLED);
    upload_deinit(&upload);
    ck_assert(world_job_is(&world, id, JOB_RUNNING));
}

TEST(slow_reader_slows_the_worker_down)
{
    enum { CHUNKS = 48, CHUNK = 1 << 20 };
    start_running(false);
    struct listener slow;
    struct upload_call upload;
    pull(&slow, true);
    WAIT(&world, fakes[0].pulls == 1);
    upload_open(&fakes[0], &upload, fakes[0].pull, (uint64_t)CHUNKS * CHUNK, 5);
    upload_all(&upload, (uint64_t)CHUNKS * CHUNK, CHUNK);
    WAIT(&world, rpc_stream_queued(upload.stream) < CHUNKS);
    world_run(&world, 700);
    /* The worker has sent what fits in between: the relay's queue and gRPC's windows. */
    int accepted = CHUNKS - rpc_stream_queued(upload.stream);
    ck_assert_int_gt(accepted, 0);
    ck_assert_msg(accepted < 24, "%d of %d chunks were accepted although the client reads nothing",
                  accepted, CHUNKS);
    ck_assert(!upload.closed && !slow.closed);
    fake_metrics(&fakes[0], 9, 0.5); /* training is not delayed by it */
    listener_resume(&slow);
    WAIT(&world, slow.closed && upload.closed);
    expect_ok(slow.status);
    expect_ok(upload.status);
    check_pulled(&slow, (uint64_t)CHUNKS * CHUNK, 5);
    listener_deinit(&slow);
    upload_deinit(&upload);
}

static void check_end(struct listener *listener, enum status_code code, const char *words)
{
    WAIT(&world, listener->closed);
    status_t status = listener->status;
    listener->status = NULL;
    expect_status(status, code, words);
    listener_deinit(listener);
}

/* A client that reads nothing for too long loses its pull, so that the ranks' next one can
 * begin. */
TEST(client_that_stalls)
{
    enum { CHUNKS = 48, CHUNK = 1 << 20 };
    world.options.limits.pull_idle_ms = 700;
    start_running(false);
    struct listener stalled;
    struct upload_call upload;
    pull(&stalled, true);
    WAIT(&world, fakes[0].pulls == 1);
    upload_open(&fakes[0], &upload, fakes[0].pull, (uint64_t)CHUNKS * CHUNK, 5);
    upload_all(&upload, (uint64_t)CHUNKS * CHUNK, CHUNK);
    WAIT(&world, upload.closed);
    expect_status(upload.status, STATUS_DEADLINE_EXCEEDED, "the client read nothing");
    upload.status = NULL;
    upload_deinit(&upload);
    listener_resume(&stalled);
    check_end(&stalled, STATUS_DEADLINE_EXCEEDED, "the client read nothing");
}

TEST(client_that_vanishes)
{
    start_running(false);
    struct listener gone, next;
    struct upload_call upload;
    /* Before the upload begins. */
    pull(&gone, false);
    WAIT(&world, fakes[0].pulls == 1);
    rpc_stream_cancel(gone.stream);
    WAIT(&world, gone.closed);
    listener_deinit(&gone);
    world_run(&world, 50);
    upload_open(&fakes[0], &upload, fakes[0].pull, 10, 1);
    WAIT(&world, upload.closed);
    ck_assert_int_eq(status_code(upload.status), STATUS_CANCELLED);
    upload_deinit(&upload);

    /* In the middle of it. */
    pull(&gone, false);
    WAIT(&world, fakes[0].pulls == 2);
    upload_open(&fakes[0], &upload, fakes[0].pull, 8 << 20, 1);
    uint8_t *bytes = mem_alloc(1 << 20);
    fill(bytes, 1 << 20, 0);
    for (int i = 0; i < 3; i++) upload_send(&upload, bytes, 1 << 20);
    free(bytes);
    WAIT(&world, gone.count >= 1);
    rpc_stream_cancel(gone.stream);
    WAIT(&world, upload.closed);
    ck_assert_int_eq(status_code(upload.status), STATUS_CANCELLED);
    WAIT(&world, gone.closed);
    listener_deinit(&gone);
    upload_deinit(&upload);

    /* Others are unaffected: the job runs, and the next pull works. */
    ck_assert(world_job_is(&world, id, JOB_RUNNING));
    pull(&next, false);
    WAIT(&world, fakes[0].pulls == 3);
    upload_open(&fakes[0], &upload, fakes[0].pull, 10, 2);
    upload_all(&upload, 10, 3);
    WAIT(&world, next.closed && upload.closed);
    check_pulled(&next, 10, 2);
    listener_deinit(&next);
    upload_deinit(&upload);
}

TEST(pulls_that_fail)
{
    world.options.limits.pull_start_ms = 1000;
    start_running(false);
    struct listener listener;
    struct upload_call upload;
    pull(&listener, false);
    WAIT(&world, fakes[1].pulls == 1);
    fake_pull_failed(&fakes[1], fakes[1].pull, "no memory for a snapshot");
    check_end(&listener, STATUS_RESOURCE_EXHAUSTED, "no memory for a snapshot");

    pull(&listener, false); /* no rank answers */
    check_end(&listener, STATUS_DEADLINE_EXCEEDED, "rank 0");

    pull(&listener, false); /* too short */
    WAIT(&world, fakes[0].pulls == 3);
    upload_open(&fakes[0], &upload, fakes[0].pull, 100, 1);
    upload_all(&upload, 99, 99);
    check_end(&listener, STATUS_DATA_LOSS, "99 of 100");
    WAIT(&world, upload.closed);
    ck_assert_int_eq(status_code(upload.status), STATUS_DATA_LOSS);
    upload_deinit(&upload);

    pull(&listener, false); /* too long */
    WAIT(&world, fakes[0].pulls == 4);
    upload_open(&fakes[0], &upload, fakes[0].pull, 100, 1);
    upload_all(&upload, 101, 101);
    check_end(&listener, STATUS_INVALID_ARGUMENT, "does not fit");
    WAIT(&world, upload.closed);
    upload_deinit(&upload);

    pull(&listener, false); /* the upload is interrupted */
    WAIT(&world, fakes[0].pulls == 5);
    upload_open(&fakes[0], &upload, fakes[0].pull, 100, 1);
    upload_send(&upload, "abc", 3);
    WAIT(&world, listener.count == 1);
    rpc_stream_cancel(upload.stream);
    check_end(&listener, STATUS_ABORTED, "was interrupted");
    WAIT(&world, upload.closed);
    upload_deinit(&upload);

    struct listener waiting; /* the job fails */
    pull(&listener, false);
    WAIT(&world, fakes[0].pulls == 6);
    pull(&waiting, false);
    world_run(&world, 30);
    end_job(STATUS_INTERNAL, JOB_FAILED);
    check_end(&listener, STATUS_ABORTED, "FAILED");
    check_end(&waiting, STATUS_ABORTED, "FAILED");
    pull(&listener, false);
    check_end(&listener, STATUS_FAILED_PRECONDITION, "kept no state_dict");

    free(id);
    id = world_submit(&world, 9);
    pull(&listener, false);
    check_end(&listener, STATUS_FAILED_PRECONDITION, "QUEUED");
    free(id);
    id = mem_strdup("nobody");
    pull(&listener, false);
    check_end(&listener, STATUS_NOT_FOUND, "nobody");
}

/* ---- the final state_dict ---- */

static void check_no_half_file(void)
{
    char *half = mem_printf("%s/state/jobs/%s/state_dict.safetensors.tmp", world.directory, id);
    char *sums = mem_printf("%s.sums", half);
    ck_assert_int_ne(access(half, F_OK), 0);
    ck_assert_int_ne(access(sums, F_OK), 0);
    free(sums);
    free(half);
}

TEST(final_state_dict_is_kept)
{
    const uint64_t total = make_header("F32", MODEL_VALUES);
    start_running(true);
    struct upload_call upload;
    upload_open(&fakes[0], &upload, 0, total, FAKE_STEPS);
    fake_finished(&fakes[1], STATUS_OK, "");
    upload_all(&upload, total, 999999);
    WAIT(&world, upload.closed);
    expect_ok(upload.status);
    upload_deinit(&upload);
    struct listener listener;
    pull(&listener, false); /* ordered, and then the job ends: it gets the kept file */
    WAIT(&world, fakes[0].pulls == 1);
    fake_finished(&fakes[0], STATUS_OK, "");
    WAIT(&world, listener.closed);
    expect_ok(listener.status);
    check_pulled(&listener, total, 100);
    listener_deinit(&listener);
    WAIT(&world, world_job_is(&world, id, JOB_SUCCEEDED));
    check_no_half_file();

    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
    fakes[0].world = fakes[1].world = NULL;
    world_stop(&world); /* available after a restart, for fast and slow readers */
    world_start(&world);
    job_message *job = world_job(&world, id);
    ck_assert(job->has_state_dict);
    message_free(job);
    for (int slow = 0; slow < 2; slow++) {
        pull(&listener, slow);
        if (slow) world_run(&world, 200);
        if (slow) listener_resume(&listener);
        WAIT(&world, listener.closed);
        expect_ok(listener.status);
        check_pulled(&listener, total, 100);
        listener_deinit(&listener);
    }
    pull(&listener, true); /* disconnects while the file is being read */
    rpc_stream_cancel(listener.stream);
    WAIT(&world, listener.closed);
    listener_deinit(&listener);

    char *path = mem_printf("%s/state/jobs/%s/state_dict.safetensors", world.directory, id);
    ck_assert_int_eq(unlink(path), 0);
    free(path);
    pull(&listener, false);
    check_end(&listener, STATUS_NOT_FOUND, "state_dict.safetensors");
}

TEST(final_uploads_that_fail)
{
    start_running(true);
    struct upload_call upload;
    const uint64_t total = make_header("F32", MODEL_VALUES);
    upload_open(&fakes[0], &upload, 0, total, FAKE_STEPS); /* too short */
    upload_all(&upload, total - 1, 1 << 20);
    WAIT(&world, upload.closed);
    ck_assert_int_eq(status_code(upload.status), STATUS_DATA_LOSS);
    upload_deinit(&upload);
    check_no_half_file();
    upload_open(&fakes[0], &upload, 0, UINT64_MAX, 100); /* more than the model can have */
    WAIT(&world, upload.closed);
    ck_assert_int_eq(status_code(upload.status), STATUS_INVALID_ARGUMENT);
    upload_deinit(&upload);
    fakes[0].assignment->attempt = 7; /* another attempt's */
    upload_open(&fakes[0], &upload, 0, 1000, 100);
    WAIT(&world, upload.closed);
    ck_assert_int_eq(status_code(upload.status), STATUS_ABORTED);
    upload_deinit(&upload);
    fakes[0].assignment->attempt = 1;

    /* Cut off in the middle, after the ranks have finished: the job must not count as succeeded. */
    upload_open(&fakes[0], &upload, 0, 1000, 100);
    upload_send(&upload, "abc", 3);
    world_run(&world, 50);
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_OK, "");
    world_run(&world, 100);
    ck_assert(world_job_is(&world, id, JOB_RUNNING));
    rpc_stream_cancel(upload.stream);
    WAIT(&world, upload.closed);
    upload_deinit(&upload);
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    job_message *job = world_job(&world, id);
    ck_assert_str_eq(job->reason->code, "STATE_DICT_LOST");
    ck_assert(!job->has_state_dict);
    message_free(job);
    world_run(&world, 50);
    check_no_half_file();
}

static const struct {
    const char *dtype;
    int64_t values;
    uint64_t step;
    const char *words;
} refused[] = {
    {NULL, MODEL_VALUES, FAKE_STEPS, "safetensors: a header of"},
    {"BF16", MODEL_VALUES * 2, FAKE_STEPS, "has the type BF16, expected F32"},
    {"F32", MODEL_VALUES - 1, FAKE_STEPS, "its tensors have 1048575 values"},
    {"F32", MODEL_VALUES + 1, FAKE_STEPS, "its tensors have 1048577 values"},
    {"F32", MODEL_VALUES, FAKE_STEPS - 1, "it belongs to step 99, but the job's last step is 100"},
};

/* Rank 0 reports success, but has uploaded something other than the job's state_dict. */
LOOP_TEST(final_weights_are_refused, 0, COUNT_OF(refused))
{
    const char *dtype = refused[_i].dtype;
    uint64_t total = make_header(dtype != NULL ? dtype : "F32", refused[_i].values);
    if (dtype == NULL) buf_clear(&header);
    start_running(true);
    struct upload_call upload;
    upload_open(&fakes[0], &upload, 0, total, refused[_i].step);
    uint8_t *bytes = mem_alloc(4096);
    fill(bytes, 4096, 0);
    upload_send(&upload, bytes, 4096);
    free(bytes);
    WAIT(&world, upload.closed);
    ck_assert_int_eq(status_code(upload.status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(status_message(upload.status), refused[_i].words));
    upload_deinit(&upload);
    check_no_half_file();
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_OK, "");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    job_message *job = world_job(&world, id);
    ck_assert_str_eq(job->reason->code, "STATE_DICT_REFUSED");
    ck_assert_msg(strstr(job->reason->message, refused[_i].words) != NULL, "%s",
                  job->reason->message);
    ck_assert(!job->has_state_dict);
    message_free(job);
}

/* A rank that reports success before the job's last step, or after it. */
LOOP_TEST(success_at_another_step, 0, 4)
{
    start_running(false);
    fakes[_i % 2].finished_at = _i < 2 ? FAKE_STEPS - 1 : FAKE_STEPS + 1;
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_OK, "");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    job_message *job = world_job(&world, id);
    ck_assert_str_eq(job->reason->code, "WRONG_STEP");
    char *words = mem_printf("it reports success at step %d, but the job's last step "
                             "is 100",
                             _i < 2 ? 99 : 101);
    ck_assert_msg(strstr(job->reason->message, words) != NULL, "%s", job->reason->message);
    free(words);
    message_free(job);
}

TEST(streams_end_with_the_daemon)
{
    start_running(true);
    struct listener watcher, puller;
    struct upload_call upload, final;
    watch(&watcher, 0, false);
    pull(&puller, false);
    WAIT(&world, fakes[0].pulls == 1 && watcher.count == 3);
    upload_open(&fakes[0], &upload, fakes[0].pull, 1000, 1);
    upload_send(&upload, "abc", 3);
    upload_open(&fakes[0], &final, 0, 1000, FAKE_STEPS);
    upload_send(&final, "abc", 3);
    WAIT(&world, puller.count == 1);
    world_stop(&world); /* the ranks never answer: it still ends within its limits */
    ck_assert(watcher.closed && puller.closed && upload.closed && final.closed);
    ck_assert_int_ne(status_code(puller.status), STATUS_OK);
    check_no_half_file();
    listener_deinit(&watcher);
    listener_deinit(&puller);
    upload_deinit(&upload);
    upload_deinit(&final);
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
    fakes[0].world = fakes[1].world = NULL;
}
