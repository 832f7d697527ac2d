/* Logs of jobs; see calls.h. */
#include "coordinator/calls/calls.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/jobs/log_files.h"
#include "proto/message.h"
#include "spec/spec.h"

enum {
    CHUNK_LINES = 128,
    CHUNKS_AHEAD = 4, /* messages handed to gRPC ahead of the reader */
    TAIL_MAX = 1 << 20,
};

struct log_reader {
    struct job_call base;
    struct log_query query;
    bool follow;
    bool sent_removed;

    /* The chunk being built. */
    Fsdpd__V1__LogLine lines[CHUNK_LINES];
    Fsdpd__V1__LogLine *pointers[CHUNK_LINES];
    Google__Protobuf__Timestamp times[CHUNK_LINES];
    size_t count;
};

/* ---- reading ---- */

static void take_line(void *user, const struct log_line *line)
{
    struct log_reader *reader = user;
    Fsdpd__V1__LogLine *message = &reader->lines[reader->count];
    fsdpd__v1__log_line__init(message);
    message->position = line->position;
    message->time = message_time(&reader->times[reader->count], line->time_ms);
    message->attempt = line->attempt;
    message->rank = line->rank;
    int level = spec_word_value(&fsdpd__v1__log_level__descriptor, line->level);
    message->level = (Fsdpd__V1__LogLevel)level;
    message->text = mem_strdup(line->text);
    reader->pointers[reader->count++] = message;
}

static void send_chunk(struct log_reader *reader)
{
    Fsdpd__V1__GetLogsResponse chunk = FSDPD__V1__GET_LOGS_RESPONSE__INIT;
    chunk.n_lines = reader->count;
    chunk.lines = reader->pointers;
    chunk.older_removed = reader->query.older_removed && !reader->sent_removed;
    reader->sent_removed |= chunk.older_removed;
    if (chunk.n_lines > 0 || chunk.older_removed) rpc_call_send(reader->base.call, &chunk.base);
    for (size_t i = 0; i < reader->count; i++) free(reader->lines[i].text);
    reader->count = 0;
}

static void pump(struct job_call *own)
{
    struct log_reader *reader = (struct log_reader *)own;
    while (!own->over && rpc_call_queued(own->call) < CHUNKS_AHEAD) {
        bool active = own->job != NULL; /* read first, so that the job's last lines are included */
        reader->query.ended = !active;
        status_t status = log_files_read(&reader->query);
        send_chunk(reader);
        if (status != NULL) job_call_finish(own, status);
        else if (reader->query.at_end && reader->follow && active) return;
        else if (reader->query.at_end) job_call_finish(own, NULL);
    }
}

/* A reader of a job that is over reads to the end of the log. */
static void on_attempt_over(struct job_call *own, struct job *job)
{
    (void)job;
    if (own->job == NULL) pump(own);
}

static void on_closed(struct job_call *own)
{
    struct log_reader *reader = (struct log_reader *)own;
    free((char *)reader->query.directory);
    job_call_free(own);
}

static const struct job_call_type log_calls = {.size = sizeof(struct log_reader),
                                               .writable = pump,
                                               .attempt_over = on_attempt_over,
                                               .closed = on_closed};

void logs_wake(struct coordinator *c, const char *job)
{
    struct job_call *own = NULL;
    while ((own = job_calls_next(c, &log_calls, NULL, own)) != NULL)
        if (strcmp(own->id, job) == 0) pump(own);
}

static status_t check(struct coordinator *c, const Fsdpd__V1__GetLogsRequest *request)
{
    int count = job_calls_count(c, &log_calls);
    if (count >= c->options.limits.watchers)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "%d readers of logs are connected already",
                          count);
    if (request->rank < -1)
        return status_new(STATUS_INVALID_ARGUMENT, "rank: expected -1 or more, found %d",
                          request->rank);
    if (request->tail > TAIL_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "tail: expected at most %d lines, found %u",
                          TAIL_MAX, request->tail);
    return job_call_check_id(c, request->id);
}

void logs_start(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__GetLogsRequest *request = (const void *)message;
    status_t status = check(c, request);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct log_reader *reader = job_call_begin(&log_calls, call, c, request->id);
    reader->follow = request->follow;
    reader->query = (struct log_query){.directory = job_log_directory(c, request->id),
                                       .filter = {.attempt = request->attempt,
                                                  .one_rank = request->one_rank,
                                                  .rank = request->rank,
                                                  .since_ms = message_time_ms(request->since)},
                                       .position = request->after_position,
                                       .limit = CHUNK_LINES,
                                       .visit = take_line,
                                       .user = reader};
    reader->sent_removed = request->tail > 0; /* a reader of the last lines misses none */
    if (request->tail > 0 && request->after_position == 0)
        status = log_files_tail(reader->query.directory, &reader->query.filter, request->tail,
                                &reader->query.position);
    if (status != NULL) job_call_finish(&reader->base, status);
    else pump(&reader->base);
}
