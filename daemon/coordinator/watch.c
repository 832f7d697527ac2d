/*
 * Watchers; see watch.h. A watcher is a cursor into the job's events in the store, so it needs no
 * queue of its own: what it has not read yet is on the disk. Sequence numbers have no gaps, so a
 * gap between two events that it is sent is exactly the number of metrics that it missed, because
 * the store has thinned them or because the watcher was too slow.
 */
#include "coordinator/watch.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { WATCH_QUEUE = 64 }; /* messages handed to gRPC ahead of the reader */

struct watcher {
    struct coordinator *c;
    struct rpc_call *call;
    char *id;
    struct job *job;       /* NULL when it is over */
    uint64_t cursor;       /* sequence of the last event sent or passed over */
    uint64_t skip_metrics; /* metrics up to this are passed over */
    bool live;             /* has caught up once: from then on it must keep up */
    bool finished;
};

static void send_event(struct watcher *watcher, const job_event *event)
{
    if (event->sequence > watcher->cursor + 1) {
        Fsdpd__V1__Dropped dropped = FSDPD__V1__DROPPED__INIT;
        dropped.metrics = event->sequence - watcher->cursor - 1;
        job_event gap = FSDPD__V1__JOB_EVENT__INIT;
        gap.sequence = event->sequence - 1;
        gap.time_ms = event->time_ms;
        gap.steps = event->steps;
        gap.event_case = FSDPD__V1__JOB_EVENT__EVENT_DROPPED;
        gap.dropped = &dropped;
        rpc_call_send(watcher->call, &gap.base);
    }
    rpc_call_send(watcher->call, &event->base);
    watcher->cursor = event->sequence;
}

static bool send_stored(void *user, const job_event *event)
{
    send_event(user, event);
    return true;
}

static void finish(struct watcher *watcher, status_t status)
{
    if (watcher->finished) {
        status_free(status);
        return;
    }
    watcher->finished = true;
    rpc_call_finish(watcher->call, status);
}

static void pump(struct watcher *watcher)
{
    struct coordinator *c = watcher->c;
    while (!watcher->finished && rpc_call_queued(watcher->call) < WATCH_QUEUE / 2) {
        uint64_t last = watcher->job != NULL ? watcher->job->sequence : 0;
        if (watcher->job != NULL && watcher->cursor >= last) {
            watcher->live = true;
            return;
        }
        uint64_t lag = (uint64_t)c->options.limits.watch_lag;
        if (watcher->live && last > lag && last - lag > watcher->skip_metrics &&
            last - watcher->cursor > lag)
            watcher->skip_metrics = last - lag;
        uint64_t before = watcher->cursor;
        struct store_event_query query = {.job = watcher->id,
                                          .after = watcher->cursor,
                                          .skip_metrics = watcher->skip_metrics,
                                          .limit = WATCH_QUEUE - rpc_call_queued(watcher->call),
                                          .visit = send_stored,
                                          .user = watcher};
        status_t status = store_read_events(c->store, &query);
        if (status != NULL) finish(watcher, status);
        else if (watcher->cursor == before && watcher->job == NULL) finish(watcher, NULL);
        else if (watcher->cursor == before) return; /* the store refused it; it comes live */
    }
}

void watch_start(struct rpc_call *call, const Fsdpd__V1__WatchJobRequest *request,
                 struct coordinator *c)
{
    status_t status = NULL;
    struct job *job = jobs_find(c, request->id);
    if (c->watcher_count >= c->options.limits.watchers) {
        status = status_new(STATUS_RESOURCE_EXHAUSTED, "%d watchers are connected already",
                            c->watcher_count);
    } else if (job == NULL) {
        job_message *message = NULL;
        status = store_get_job(c->store, request->id, &message);
        message_free(message);
    }
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct watcher *watcher = mem_alloc(sizeof *watcher);
    watcher->c = c;
    watcher->call = call;
    watcher->id = mem_strdup(request->id);
    watcher->job = job != NULL && !job_state_is_over(job->message->state) ? job : NULL;
    watcher->cursor = request->after_sequence > INT64_MAX ? INT64_MAX : request->after_sequence;
    rpc_call_set_user(call, watcher);
    MEM_GROW(c->watchers, c->watcher_count, c->watcher_capacity);
    c->watchers[c->watcher_count++] = watcher;
    pump(watcher);
}

void watch_writable(struct rpc_call *call)
{
    struct watcher *watcher = rpc_call_user(call);
    if (watcher != NULL) pump(watcher);
}

void watch_closed(struct coordinator *c, struct rpc_call *call)
{
    struct watcher *watcher = rpc_call_user(call);
    if (watcher == NULL) return;
    for (int i = 0; i < c->watcher_count; i++)
        if (c->watchers[i] == watcher) LIST_REMOVE(c->watchers, c->watcher_count, i);
    free(watcher->id);
    free(watcher);
}

void watch_tell(struct job *job, const job_event *event)
{
    struct coordinator *c = job->c;
    for (int i = 0; i < c->watcher_count; i++) {
        struct watcher *watcher = c->watchers[i];
        if (watcher->job != job || watcher->finished) continue;
        bool next = watcher->cursor + 1 == event->sequence;
        if (next && rpc_call_queued(watcher->call) < WATCH_QUEUE) send_event(watcher, event);
        else pump(watcher);
    }
}

void watch_wake(struct job *job)
{
    struct coordinator *c = job->c;
    for (int i = 0; i < c->watcher_count; i++)
        if (c->watchers[i]->job == job) pump(c->watchers[i]);
}

void watch_over(struct job *job)
{
    struct coordinator *c = job->c;
    for (int i = 0; i < c->watcher_count; i++) {
        struct watcher *watcher = c->watchers[i];
        if (watcher->job != job) continue;
        watcher->job = NULL;
        pump(watcher);
    }
}

void watch_close(struct coordinator *c)
{
    for (int i = 0; i < c->watcher_count; i++)
        finish(c->watchers[i], status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down"));
}
