/* Logs of jobs; see logs.h. */
#include "coordinator/logs.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/jobs.h"
#include "coordinator/log_files.h"

enum {
    CHUNK_LINES = 128,
    CHUNKS_AHEAD = 4,    /* messages handed to gRPC ahead of the reader */
    REPORT_LINES = 1024, /* of one message of a worker, at most */
    TAIL_MAX = 1 << 20,
    COMPLAIN_MS = 60000, /* between two complaints that logs cannot be written */
};

struct log_reader {
    struct coordinator *c;
    struct rpc_call *call;
    char *job;
    struct log_query query;
    bool follow, finished;
    bool told_removed;

    /* The chunk that is being made. */
    Fsdpd__V1__LogLine lines[CHUNK_LINES];
    Fsdpd__V1__LogLine *pointers[CHUNK_LINES];
    size_t count;
};

static char *directory_of(const struct coordinator *c, const char *job)
{
    return coordinator_job_path(c, job, "log");
}

/* ---- writing ---- */

static void pump(struct log_reader *reader);

static void tell_readers(struct coordinator *c, const char *job)
{
    for (int i = 0; i < c->log_reader_count; i++)
        if (strcmp(c->log_readers[i]->job, job) == 0) pump(c->log_readers[i]);
}

static void append(struct coordinator *c, const char *job, const struct log_line *lines,
                   size_t count)
{
    if (count == 0) return;
    char *directory = directory_of(c, job);
    status_t status =
        log_files_append(directory, (uint64_t)c->options.limits.log_bytes, lines, count);
    free(directory);
    if (status == NULL) {
        tell_readers(c, job);
        return;
    }
    /* Training is worth more than its log. */
    int64_t now = coordinator_now();
    if (c->log_complaint_at != 0 && now - c->log_complaint_at < COMPLAIN_MS) {
        status_free(status);
        return;
    }
    c->log_complaint_at = now;
    log_status(LOG_WARNING, "log_not_kept", status_wrap(status, "job %s", job));
}

static const char *known_level(const char *level)
{
    static const char *const names[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
    for (int i = 0; i < 4; i++)
        if (strcmp(level, names[i]) == 0) return names[i];
    return "INFO";
}

/* Late lines of a job that is no longer kept would bring its directory back. */
static bool is_kept(struct coordinator *c, const char *job)
{
    if (jobs_find(c, job) != NULL) return true;
    char *directory = directory_of(c, job);
    bool kept = access(directory, F_OK) == 0;
    free(directory);
    return kept;
}

void logs_report(struct coordinator *c, const char *job, uint32_t attempt, int rank,
                 const Fsdpd__V1__LogReport *report)
{
    if (!is_kept(c, job)) return;
    size_t most = report->n_lines < REPORT_LINES ? report->n_lines : REPORT_LINES;
    struct log_line *lines = mem_alloc_array(most + 1, sizeof *lines);
    size_t count = 0;
    char *dropped = NULL;
    uint64_t left_out = report->dropped + (report->n_lines - most);
    if (left_out > 0) {
        dropped = mem_printf("log_lines_dropped count=%llu", (unsigned long long)left_out);
        lines[count++] = (struct log_line){.time_ms = clock_wall_ms(),
                                           .attempt = attempt,
                                           .rank = rank,
                                           .level = "WARNING",
                                           .text = dropped};
    }
    for (size_t i = 0; i < most; i++)
        lines[count++] = (struct log_line){.time_ms = report->lines[i]->time_ms,
                                           .attempt = attempt,
                                           .rank = rank,
                                           .level = known_level(report->lines[i]->level),
                                           .text = report->lines[i]->text};
    append(c, job, lines, count);
    free(dropped);
    free(lines);
}

void logs_note(struct coordinator *c, const char *job, uint32_t attempt, const char *level,
               const char *text)
{
    const struct log_line line = {
        .time_ms = clock_wall_ms(), .attempt = attempt, .rank = -1, .level = level, .text = text};
    append(c, job, &line, 1);
}

/* ---- reading ---- */

static void finish(struct log_reader *reader, status_t status)
{
    if (reader->finished) {
        status_free(status);
        return;
    }
    reader->finished = true;
    rpc_call_finish(reader->call, status);
}

static void take_line(void *user, const struct log_line *line)
{
    struct log_reader *reader = user;
    Fsdpd__V1__LogLine *message = &reader->lines[reader->count];
    fsdpd__v1__log_line__init(message);
    message->position = line->position;
    message->time_ms = line->time_ms;
    message->attempt = line->attempt;
    message->rank = line->rank;
    message->level = mem_strdup(line->level);
    message->text = mem_strdup(line->text);
    reader->pointers[reader->count++] = message;
}

static void send_chunk(struct log_reader *reader)
{
    Fsdpd__V1__LogChunk chunk = FSDPD__V1__LOG_CHUNK__INIT;
    chunk.n_lines = reader->count;
    chunk.lines = reader->pointers;
    chunk.older_removed = reader->query.older_removed && !reader->told_removed;
    reader->told_removed |= chunk.older_removed;
    if (chunk.n_lines > 0 || chunk.older_removed) rpc_call_send(reader->call, &chunk.base);
    for (size_t i = 0; i < reader->count; i++) {
        free(reader->lines[i].level);
        free(reader->lines[i].text);
    }
    reader->count = 0;
}

static bool job_is_active(struct coordinator *c, const char *id)
{
    const struct job *job = jobs_find(c, id);
    return job != NULL && !job_state_is_over(job->message->state);
}

static void pump(struct log_reader *reader)
{
    while (!reader->finished && rpc_call_queued(reader->call) < CHUNKS_AHEAD) {
        bool active = job_is_active(reader->c, reader->job); /* before: what it wrote is read */
        status_t status = log_files_read(&reader->query);
        send_chunk(reader);
        if (status != NULL) finish(reader, status);
        else if (reader->query.at_end && reader->follow && active) return;
        else if (reader->query.at_end) finish(reader, NULL);
    }
}

static status_t check(struct coordinator *c, const Fsdpd__V1__GetLogsRequest *request)
{
    if (c->log_reader_count >= c->options.limits.watchers)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "%d readers of logs are connected already",
                          c->log_reader_count);
    if (request->rank < -1)
        return status_new(STATUS_INVALID_ARGUMENT, "rank: -1 or more expected, found %d",
                          request->rank);
    if (request->tail > TAIL_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "tail: at most %d lines, found %u", TAIL_MAX,
                          request->tail);
    if (jobs_find(c, request->id) != NULL) return NULL;
    job_message *stored = NULL;
    status_t status = store_get_job(c->store, request->id, &stored);
    message_free(stored);
    return status;
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
    struct log_reader *reader = mem_alloc(sizeof *reader);
    reader->c = c;
    reader->call = call;
    reader->job = mem_strdup(request->id);
    reader->follow = request->follow;
    reader->query = (struct log_query){.directory = directory_of(c, request->id),
                                       .filter = {.attempt = request->attempt,
                                                  .one_rank = request->one_rank,
                                                  .rank = request->rank,
                                                  .since_ms = request->since_ms},
                                       .position = request->after_position,
                                       .limit = CHUNK_LINES,
                                       .visit = take_line,
                                       .user = reader};
    reader->told_removed = request->tail > 0; /* who asks for the last lines misses none */
    rpc_call_set_user(call, reader);
    MEM_GROW(c->log_readers, c->log_reader_count, c->log_reader_capacity);
    c->log_readers[c->log_reader_count++] = reader;
    if (request->tail > 0 && request->after_position == 0)
        status = log_files_tail(reader->query.directory, &reader->query.filter, request->tail,
                                &reader->query.position);
    if (status != NULL) finish(reader, status);
    else pump(reader);
}

void logs_writable(struct rpc_call *call, void *service)
{
    (void)service;
    struct log_reader *reader = rpc_call_user(call);
    if (reader != NULL) pump(reader);
}

void logs_closed(struct rpc_call *call, bool cancelled, void *service)
{
    (void)cancelled;
    struct coordinator *c = service;
    struct log_reader *reader = rpc_call_user(call);
    if (reader == NULL) return;
    for (int i = 0; i < c->log_reader_count; i++)
        if (c->log_readers[i] == reader) LIST_REMOVE(c->log_readers, c->log_reader_count, i);
    free((char *)reader->query.directory);
    free(reader->job);
    free(reader);
}

void logs_job_over(struct coordinator *c, const char *job)
{
    for (int i = 0; i < c->log_reader_count; i++) {
        struct log_reader *reader = c->log_readers[i];
        if (strcmp(reader->job, job) != 0) continue;
        reader->follow = false;
        pump(reader);
    }
}

void logs_close(struct coordinator *c)
{
    for (int i = 0; i < c->log_reader_count; i++)
        finish(c->log_readers[i], status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down"));
}
