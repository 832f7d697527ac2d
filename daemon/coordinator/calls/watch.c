/*
 * Watchers; see calls.h. A watcher is a cursor into the job's events in the store, so it needs no
 * queue of its own: the disk holds what it has not read yet. Sequence numbers have no gaps, so a
 * gap between two events sent is exactly the number of metrics that the watcher missed, because the
 * store thinned them or because the watcher was too slow.
 */
#include "coordinator/calls/calls.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/calls/access.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/jobs/attempt_run.h"

enum { WATCH_QUEUE = 64 }; /* messages handed to gRPC ahead of the reader */

struct watcher {
    struct job_call base;
    uint64_t cursor;       /* sequence of the last event sent or skipped */
    uint64_t skip_metrics; /* skip metrics up to this sequence */
    bool live;             /* has caught up once: from then on it must keep up */
    char *cancels_by;      /* who the job is for, which ends if the watcher leaves; or NULL */
};

static void send_event(struct watcher *watcher, const job_event *event)
{
    if (event->sequence > watcher->cursor + 1) {
        Fsdpd__V1__Dropped dropped = FSDPD__V1__DROPPED__INIT;
        dropped.metrics = event->sequence - watcher->cursor - 1;
        job_event gap = FSDPD__V1__JOB_EVENT__INIT;
        gap.sequence = event->sequence - 1;
        gap.time = event->time;
        gap.steps = event->steps;
        gap.event_case = FSDPD__V1__JOB_EVENT__EVENT_DROPPED;
        gap.dropped = &dropped;
        rpc_call_send(watcher->base.call, &gap.base);
    }
    rpc_call_send(watcher->base.call, &event->base);
    watcher->cursor = event->sequence;
}

static bool send_stored(void *user, const job_event *event)
{
    send_event(user, event);
    return true;
}

static void pump(struct job_call *own)
{
    struct watcher *watcher = (struct watcher *)own;
    struct coordinator *c = own->c;
    while (!own->over && rpc_call_queued(own->call) < WATCH_QUEUE / 2) {
        uint64_t last = own->job != NULL ? own->job->sequence : 0;
        if (own->job != NULL && watcher->cursor >= last) {
            watcher->live = true;
            return;
        }
        uint64_t lag = (uint64_t)c->options.limits.watch_lag;
        if (watcher->live && last > lag && last - lag > watcher->skip_metrics)
            watcher->skip_metrics = last - lag; /* it may have some of these already */
        uint64_t before = watcher->cursor;
        struct store_event_query query = {.job = own->id,
                                          .after = watcher->cursor,
                                          .skip_metrics = watcher->skip_metrics,
                                          .limit = WATCH_QUEUE - rpc_call_queued(own->call),
                                          .visit = send_stored,
                                          .user = watcher};
        status_t status = store_read_events(c->store, &query);
        if (status != NULL) job_call_finish(own, status);
        else if (watcher->cursor == before && own->job == NULL) job_call_finish(own, NULL);
        else if (watcher->cursor == before) return; /* the store refused the event; it comes live */
    }
}

/* A watcher of a job that is over reads to the last event. */
static void on_attempt_over(struct job_call *own, struct job *job)
{
    (void)job;
    if (own->job == NULL) pump(own);
}

/* A call that fsdpd ended itself has not been left: its client comes back. */
static void on_closed(struct job_call *own)
{
    AUTO_FREE char *by = ((struct watcher *)own)->cancels_by;
    struct coordinator *c = own->c;
    struct job *job = own->over ? NULL : own->job;
    job_call_free(own);
    if (by == NULL || job == NULL) return;
    log_event(LOG_INFO, "watcher_left", "job=%s by=%s", job->message->id, by);
    c->actor = by;
    job_cancel(job, by);
    c->actor = NULL;
}

static const struct job_call_type watch_calls = {.size = sizeof(struct watcher),
                                                 .writable = pump,
                                                 .attempt_over = on_attempt_over,
                                                 .closed = on_closed};

int watch_count(const struct coordinator *c)
{
    return job_calls_count(c, &watch_calls);
}

static status_t check(struct coordinator *c, const struct rpc_call *call,
                      const Fsdpd__V1__WatchJobRequest *request)
{
    const struct job *job = jobs_find(c, request->id);
    int count = watch_count(c);
    if (count >= c->options.limits.watchers)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "%d watchers are connected already", count);
    if (request->cancel_if_left && job != NULL)
        TRY(access_check(rpc_call_peer(call), job->message, "cancel"));
    return job_call_check_id(c, request->id);
}

void watch_start(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__WatchJobRequest *request = (const void *)message;
    status_t status = check(service, call, request);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct watcher *watcher = job_call_begin(&watch_calls, call, service, request->id);
    watcher->cursor = request->after_sequence > INT64_MAX ? INT64_MAX : request->after_sequence;
    if (request->cancel_if_left) watcher->cancels_by = mem_strdup(access_user(call));
    pump(&watcher->base);
}

void watch_send_event(struct job *job, const job_event *event)
{
    struct watcher *watcher = NULL;
    while ((watcher = job_calls_next(job->c, &watch_calls, job, watcher)) != NULL) {
        bool next = watcher->cursor + 1 == event->sequence;
        if (next && rpc_call_queued(watcher->base.call) < WATCH_QUEUE) send_event(watcher, event);
        else pump(&watcher->base);
    }
}

void watch_wake(struct job *job)
{
    struct job_call *own = NULL;
    while ((own = job_calls_next(job->c, &watch_calls, job, own)) != NULL) pump(own);
}
