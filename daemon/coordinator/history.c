/* GetMetrics; see history.h. All on the loop's thread. */
#include "coordinator/history.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/jobs.h"

enum {
    CHUNK_ROWS = 128,
    CHUNKS_AHEAD = 4, /* messages handed to gRPC ahead of the reader */
};

struct history_reader {
    struct coordinator *c;
    struct rpc_call *call;
    char *job;
    Fsdpd__V1__GetMetricsRequest request; /* without its id */
    uint64_t cursor;                      /* sequence of the last event that was looked at */
    uint32_t attempt;                     /* that the events belong to which are read now */
    uint64_t steps;                       /* of this attempt that were looked at */
    bool finished;

    /* The chunk that is being made. */
    Fsdpd__V1__MetricsRow rows[CHUNK_ROWS];
    Fsdpd__V1__MetricsRow *pointers[CHUNK_ROWS];
    size_t count;
    uint64_t left_out;
};

static void finish(struct history_reader *reader, status_t status)
{
    reader->finished = true;
    rpc_call_finish(reader->call, status);
}

static bool is_wanted(struct history_reader *reader, const job_event *event)
{
    const Fsdpd__V1__GetMetricsRequest *request = &reader->request;
    if (request->attempt != 0 && request->attempt != reader->attempt) return false;
    if (event->sequence <= request->after_sequence) return false;
    switch (event->event_case) {
    case FSDPD__V1__JOB_EVENT__EVENT_METRICS:
        return reader->steps++ % (request->every > 0 ? request->every : 1) == 0;
    case FSDPD__V1__JOB_EVENT__EVENT_EPOCH:
    case FSDPD__V1__JOB_EVENT__EVENT_VALIDATION: return true;
    case FSDPD__V1__JOB_EVENT__EVENT_STATE:
    case FSDPD__V1__JOB_EVENT__EVENT_WRAP: return request->changes;
    default: return false;
    }
}

/* Sequences have no gaps but for metrics that the store has thinned. */
static bool take_event(void *user, const job_event *event)
{
    struct history_reader *reader = user;
    if (event->sequence > reader->cursor + 1 && reader->cursor >= reader->request.after_sequence)
        reader->left_out += event->sequence - reader->cursor - 1;
    reader->cursor = event->sequence;
    if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_STATE &&
        event->state->attempt != reader->attempt) {
        reader->attempt = event->state->attempt;
        reader->steps = 0;
    }
    if (!is_wanted(reader, event)) return true;
    Fsdpd__V1__MetricsRow *row = &reader->rows[reader->count];
    fsdpd__v1__metrics_row__init(row);
    row->attempt = reader->attempt;
    row->event = message_copy(event);
    reader->pointers[reader->count++] = row;
    return true;
}

static void send_chunk(struct history_reader *reader)
{
    Fsdpd__V1__MetricsChunk chunk = FSDPD__V1__METRICS_CHUNK__INIT;
    chunk.n_rows = reader->count;
    chunk.rows = reader->pointers;
    chunk.left_out = reader->left_out;
    if (chunk.n_rows > 0 || chunk.left_out > 0) rpc_call_send(reader->call, &chunk.base);
    for (size_t i = 0; i < reader->count; i++) message_free(reader->rows[i].event);
    reader->count = 0;
    reader->left_out = 0;
}

static void pump(struct history_reader *reader)
{
    while (!reader->finished && rpc_call_queued(reader->call) < CHUNKS_AHEAD) {
        uint64_t before = reader->cursor;
        struct store_event_query query = {.job = reader->job,
                                          .after = reader->cursor,
                                          .limit = CHUNK_ROWS,
                                          .visit = take_event,
                                          .user = reader};
        status_t status = store_read_events(reader->c->store, &query);
        send_chunk(reader);
        if (status != NULL || reader->cursor == before) finish(reader, status);
    }
}

static status_t check(struct coordinator *c, const Fsdpd__V1__GetMetricsRequest *request)
{
    if (c->history_reader_count >= c->options.limits.watchers)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "%d readers of metrics are connected already",
                          c->history_reader_count);
    if (jobs_find(c, request->id) != NULL) return NULL;
    job_message *stored = NULL;
    status_t status = store_get_job(c->store, request->id, &stored);
    message_free(stored);
    return status;
}

void history_start(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__GetMetricsRequest *request = (const void *)message;
    status_t status = check(c, request);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct history_reader *reader = mem_alloc(sizeof *reader);
    reader->c = c;
    reader->call = call;
    reader->job = mem_strdup(request->id);
    reader->request = *request;
    rpc_call_set_user(call, reader);
    c->history_reader_count++;
    pump(reader);
}

void history_writable(struct rpc_call *call, void *service)
{
    (void)service;
    struct history_reader *reader = rpc_call_user(call);
    if (reader != NULL) pump(reader);
}

void history_closed(struct rpc_call *call, bool cancelled, void *service)
{
    (void)cancelled;
    struct coordinator *c = service;
    struct history_reader *reader = rpc_call_user(call);
    if (reader == NULL) return;
    c->history_reader_count--;
    free(reader->job);
    free(reader);
}
