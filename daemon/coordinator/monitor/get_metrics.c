/* GetMetrics; see monitor.h. All on the loop's thread. */
#include "coordinator/monitor/monitor.h"

#include "coordinator/calls/job_call.h"

enum {
    CHUNK_ROWS = 128,
    CHUNKS_AHEAD = 4, /* messages handed to gRPC ahead of the reader */
};

struct metrics_reader {
    struct job_call base;
    Fsdpd__V1__GetMetricsRequest request; /* without its id */
    uint64_t cursor;                      /* sequence of the last event read */
    uint32_t attempt;                     /* attempt of the events being read */
    uint64_t steps;                       /* steps read of this attempt */

    /* The chunk being built. */
    Fsdpd__V1__MetricsRow rows[CHUNK_ROWS];
    Fsdpd__V1__MetricsRow *pointers[CHUNK_ROWS];
    size_t count;
    uint64_t left_out;
};

static bool is_wanted(struct metrics_reader *reader, const job_event *event)
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
    case FSDPD__V1__JOB_EVENT__EVENT_SAMPLED:
    case FSDPD__V1__JOB_EVENT__EVENT_WRAP: return request->changes;
    default: return false;
    }
}

/* Sequences have no gaps except for metrics that the store has thinned. */
static bool take_event(void *user, const job_event *event)
{
    struct metrics_reader *reader = user;
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

static void send_chunk(struct metrics_reader *reader)
{
    Fsdpd__V1__GetMetricsResponse chunk = FSDPD__V1__GET_METRICS_RESPONSE__INIT;
    chunk.n_rows = reader->count;
    chunk.rows = reader->pointers;
    chunk.left_out = reader->left_out;
    if (chunk.n_rows > 0 || chunk.left_out > 0) rpc_call_send(reader->base.call, &chunk.base);
    for (size_t i = 0; i < reader->count; i++) message_free(reader->rows[i].event);
    reader->count = 0;
    reader->left_out = 0;
}

static void pump(struct job_call *own)
{
    struct metrics_reader *reader = (struct metrics_reader *)own;
    while (!own->over && rpc_call_queued(own->call) < CHUNKS_AHEAD) {
        uint64_t before = reader->cursor;
        struct store_event_query query = {.job = own->id,
                                          .after = reader->cursor,
                                          .limit = CHUNK_ROWS,
                                          .visit = take_event,
                                          .user = reader};
        status_t status = store_read_events(own->c->store, &query);
        send_chunk(reader);
        if (status != NULL || reader->cursor == before) job_call_finish(own, status);
    }
}

static const struct job_call_type metrics_calls = {.size = sizeof(struct metrics_reader),
                                                   .writable = pump};

static status_t check(struct coordinator *c, const char *id)
{
    int count = job_calls_count(c, &metrics_calls);
    if (count >= c->options.limits.watchers)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "%d readers of metrics are connected already",
                          count);
    return job_call_check_id(c, id);
}

void get_metrics_start(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__GetMetricsRequest *request = (const void *)message;
    status_t status = check(service, request->id);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct metrics_reader *reader = job_call_begin(&metrics_calls, call, service, request->id);
    reader->request = *request;
    pump(&reader->base);
}
