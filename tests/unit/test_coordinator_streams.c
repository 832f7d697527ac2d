/* Watching and pulling: what a stream's client gets, fast or slow, present or gone. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "test_coordinator_world.h"

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

/* A job on two workers that is RUNNING. */
static void start_running(bool save_model)
{
    world_start(&world);
    fake_attach(&world, &fakes[0], "host/cpu:0", 1000);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(2);
    request.spec->save_model = save_model;
    void *response = NULL;
    expect_ok(world_call(&world, &test_submit, &request, &response));
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
    listener_open(&world, listener, &test_watch, &request, paused);
}

static const job_event *event_at(const struct listener *listener, int i)
{
    ck_assert_int_lt(i, listener->count);
    return listener->messages[i];
}

/*
 * The kinds of all events in order: q, s, r, S, F, C for states, m, e, and d for dropped metrics.
 * Also checks that sequences rise without a gap that is not announced, which makes `first` to the
 * end.
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

START_TEST(test_watch_replays_and_goes_on_live)
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

    /* And when it is over, also after a restart. */
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
END_TEST

START_TEST(test_watch_of_a_restarting_coordinator)
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
END_TEST

START_TEST(test_slow_watcher_misses_metrics_and_knows_how_many)
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
    ck_assert_uint_eq(dropped, 0); /* the other's slowness is not its */
    ck_assert_int_eq(fast.count, 3 + METRICS + 2 + 1);
    free(text);

    ck_assert_int_lt(slow.count, METRICS);
    ck_assert(!slow.closed);
    listener_resume(&slow);
    WAIT(&world, slow.closed);
    expect_ok(slow.status);
    text = kinds(&slow, 1, &dropped); /* checks that the gaps are told exactly */
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
END_TEST

START_TEST(test_old_metrics_are_thinned)
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
    ck_assert_uint_ge(dropped, METRICS - 2 * KEPT);
    ck_assert_uint_le(dropped, METRICS - KEPT);
    ck_assert_int_eq(strncmp(text, "qsremd", 6), 0);
    ck_assert_uint_eq(event_at(&all, all.count - 2)->metrics->step, METRICS);
    /* Evenly: the first is there, no gap is much longer than it must be, the latest are all there.
     */
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
END_TEST

START_TEST(test_watchers_that_vanish)
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
        world_run(&world, 50); /* the server hears of it */
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
END_TEST

/* ---- pulling ---- */

static void pull(struct listener *listener, bool paused)
{
    Fsdpd__V1__PullStateDictRequest request = FSDPD__V1__PULL_STATE_DICT_REQUEST__INIT;
    request.id = id;
    listener_open(&world, listener, &test_pull, &request, paused);
}

static uint8_t byte_at(uint64_t offset)
{
    return (uint8_t)(offset * 31 + (offset >> 11) * 7 + (offset >> 20));
}

static void fill(uint8_t *bytes, size_t size, uint64_t offset)
{
    for (size_t i = 0; i < size; i++) bytes[i] = byte_at(offset + i);
}

/* The chunks make up a file of `total` bytes of `step`. */
static void check_pulled(const struct listener *listener, uint64_t total, uint64_t step)
{
    uint64_t offset = 0;
    for (int i = 0; i < listener->count; i++) {
        const Fsdpd__V1__StateDictChunk *chunk = listener->messages[i];
        ck_assert_uint_eq(chunk->total_size, i == 0 ? total : 0);
        ck_assert_uint_eq(chunk->step, i == 0 ? step : 0);
        ck_assert_uint_le(chunk->data.len, 1 << 20);
        for (size_t b = 0; b < chunk->data.len; b++)
            if (chunk->data.data[b] != byte_at(offset + b)) ck_abort_msg("a byte is wrong");
        offset += chunk->data.len;
    }
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

START_TEST(test_pull_of_a_running_job)
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

    /* An upload that nobody asked for, or asks for again, is turned away. */
    upload_open(&fakes[0], &upload, pulls[1], 10, 18);
    WAIT(&world, upload.closed);
    ck_assert_int_eq(status_code(upload.status), STATUS_CANCELLED);
    upload_deinit(&upload);
    ck_assert(world_job_is(&world, id, JOB_RUNNING));
}
END_TEST

START_TEST(test_slow_reader_slows_the_worker_down)
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
    /* What has left the worker is what fits in between: the relay's queue and gRPC's windows. */
    int accepted = CHUNKS - rpc_stream_queued(upload.stream);
    ck_assert_int_gt(accepted, 0);
    ck_assert_msg(accepted < 24, "%d of %d chunks were taken though nobody reads", accepted,
                  CHUNKS);
    ck_assert(!upload.closed && !slow.closed);
    fake_metrics(&fakes[0], 9, 0.5); /* training is not held up by it */
    listener_resume(&slow);
    WAIT(&world, slow.closed && upload.closed);
    expect_ok(slow.status);
    expect_ok(upload.status);
    check_pulled(&slow, (uint64_t)CHUNKS * CHUNK, 5);
    listener_deinit(&slow);
    upload_deinit(&upload);
}
END_TEST

START_TEST(test_client_that_vanishes)
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

    /* Nobody is hurt: the job runs, and the next pull works. */
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
END_TEST

static void check_end(struct listener *listener, enum status_code code, const char *words)
{
    WAIT(&world, listener->closed);
    status_t status = listener->status;
    listener->status = NULL;
    expect_status(status, code, words);
    listener_deinit(listener);
}

START_TEST(test_pulls_that_fail)
{
    world.options.limits.pull_start_ms = 1000;
    start_running(false);
    struct listener listener;
    struct upload_call upload;
    pull(&listener, false);
    WAIT(&world, fakes[1].pulls == 1);
    fake_pull_failed(&fakes[1], fakes[1].pull, "no memory for a snapshot");
    check_end(&listener, STATUS_RESOURCE_EXHAUSTED, "no memory for a snapshot");

    pull(&listener, false); /* nobody answers */
    check_end(&listener, STATUS_DEADLINE_EXCEEDED, "rank 0");

    pull(&listener, false); /* too little */
    WAIT(&world, fakes[0].pulls == 3);
    upload_open(&fakes[0], &upload, fakes[0].pull, 100, 1);
    upload_all(&upload, 99, 99);
    check_end(&listener, STATUS_DATA_LOSS, "99 of 100");
    WAIT(&world, upload.closed);
    ck_assert_int_eq(status_code(upload.status), STATUS_DATA_LOSS);
    upload_deinit(&upload);

    pull(&listener, false); /* too much */
    WAIT(&world, fakes[0].pulls == 4);
    upload_open(&fakes[0], &upload, fakes[0].pull, 100, 1);
    upload_all(&upload, 101, 101);
    check_end(&listener, STATUS_INVALID_ARGUMENT, "does not fit");
    WAIT(&world, upload.closed);
    upload_deinit(&upload);

    pull(&listener, false); /* the upload breaks off */
    WAIT(&world, fakes[0].pulls == 5);
    upload_open(&fakes[0], &upload, fakes[0].pull, 100, 1);
    upload_send(&upload, "abc", 3);
    WAIT(&world, listener.count == 1);
    rpc_stream_cancel(upload.stream);
    check_end(&listener, STATUS_ABORTED, "broke off");
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
END_TEST

/* ---- the final state_dict ---- */

static void check_no_half_file(void)
{
    char *half = mem_printf("%s/state/jobs/%s/state_dict.safetensors.tmp", world.directory, id);
    ck_assert_int_ne(access(half, F_OK), 0);
    free(half);
}

START_TEST(test_final_state_dict_is_kept)
{
    enum { TOTAL = 3 * (1 << 20) + 12345 };
    start_running(true);
    struct upload_call upload;
    upload_open(&fakes[0], &upload, 0, TOTAL, 100);
    fake_finished(&fakes[1], STATUS_OK, "");
    upload_all(&upload, TOTAL, 1 << 20);
    WAIT(&world, upload.closed);
    expect_ok(upload.status);
    upload_deinit(&upload);
    struct listener listener;
    pull(&listener, false); /* ordered, and then the job ends: it gets the kept file */
    WAIT(&world, fakes[0].pulls == 1);
    fake_finished(&fakes[0], STATUS_OK, "");
    WAIT(&world, listener.closed);
    expect_ok(listener.status);
    check_pulled(&listener, TOTAL, 100);
    listener_deinit(&listener);
    WAIT(&world, world_job_is(&world, id, JOB_SUCCEEDED));
    check_no_half_file();

    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
    fakes[0].world = fakes[1].world = NULL;
    world_stop(&world); /* it is there after a restart, for fast and slow readers */
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
        check_pulled(&listener, TOTAL, 100);
        listener_deinit(&listener);
    }
    pull(&listener, true); /* gone while the file is being read */
    rpc_stream_cancel(listener.stream);
    WAIT(&world, listener.closed);
    listener_deinit(&listener);

    char *path = mem_printf("%s/state/jobs/%s/state_dict.safetensors", world.directory, id);
    ck_assert_int_eq(unlink(path), 0);
    free(path);
    pull(&listener, false);
    check_end(&listener, STATUS_NOT_FOUND, "state_dict.safetensors");
}
END_TEST

START_TEST(test_final_uploads_that_fail)
{
    start_running(true);
    struct upload_call upload;
    upload_open(&fakes[0], &upload, 0, 1000, 100); /* too little */
    upload_all(&upload, 999, 500);
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

    /* Cut off in the middle, after the ranks have finished: the job must not count as done. */
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
END_TEST

START_TEST(test_streams_end_with_the_daemon)
{
    start_running(true);
    struct listener watcher, puller;
    struct upload_call upload, final;
    watch(&watcher, 0, false);
    pull(&puller, false);
    WAIT(&world, fakes[0].pulls == 1 && watcher.count == 3);
    upload_open(&fakes[0], &upload, fakes[0].pull, 1000, 1);
    upload_send(&upload, "abc", 3);
    upload_open(&fakes[0], &final, 0, 1000, 1);
    upload_send(&final, "abc", 3);
    WAIT(&world, puller.count == 1);
    world_stop(&world); /* the ranks never answer: within its limits it ends all the same */
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
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator streams");
    TCase *tests = tcase_create("streams");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_watch_replays_and_goes_on_live);
    tcase_add_test(tests, test_watch_of_a_restarting_coordinator);
    tcase_add_test(tests, test_slow_watcher_misses_metrics_and_knows_how_many);
    tcase_add_test(tests, test_old_metrics_are_thinned);
    tcase_add_test(tests, test_watchers_that_vanish);
    tcase_add_test(tests, test_pull_of_a_running_job);
    tcase_add_test(tests, test_slow_reader_slows_the_worker_down);
    tcase_add_test(tests, test_client_that_vanishes);
    tcase_add_test(tests, test_pulls_that_fail);
    tcase_add_test(tests, test_final_state_dict_is_kept);
    tcase_add_test(tests, test_final_uploads_that_fail);
    tcase_add_test(tests, test_streams_end_with_the_daemon);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
