/* Watchers; see load.h. Each counts its job's events and measures the age of the reports. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fsdpd/v1/methods.h"
#include "load.h"

struct load_watcher {
    struct load *load;
    struct rpc_channel *channel;
    struct load_job *job;
    double began_ms; /* older events are history, which arrives all at once */
    uint64_t sequence, metrics;
    bool over, closed;
};

static void on_message(struct rpc_stream *stream, const ProtobufCMessage *base, void *user)
{
    struct load_watcher *watcher = user;
    struct load *load = watcher->load;
    const Fsdpd__V1__JobEvent *event = (const Fsdpd__V1__JobEvent *)base;
    bool dropped = event->event_case == FSDPD__V1__JOB_EVENT__EVENT_DROPPED;
    if (dropped) load->watch_missed += event->dropped->metrics;
    else if (event->sequence != watcher->sequence + 1)
        load_fail(load, "a watcher of %s got event %llu after %llu", watcher->job->id,
                  (unsigned long long)event->sequence, (unsigned long long)watcher->sequence);
    watcher->sequence = event->sequence;
    load->watch_events++;
    if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_METRICS) {
        watcher->metrics++;
        double made_ms = event->metrics->train_seconds * 1000;
        if (made_ms >= watcher->began_ms) samples_add(&load->watch_ms, load_now_ms() - made_ms);
    }
    if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_STATE)
        watcher->over = event->state->state >= FSDPD__V1__JOB_STATE__JOB_STATE_SUCCEEDED;
    rpc_stream_read(stream);
}

static void on_closed(struct rpc_stream *stream, status_t status, void *user)
{
    (void)stream;
    struct load_watcher *watcher = user;
    struct load *load = watcher->load;
    if (status_code(status) != STATUS_CANCELLED) {
        if (status != NULL)
            load_fail(load, "a watcher of %s was cut off: %s", watcher->job->id,
                      status_message(status));
        else if (!watcher->over)
            load_fail(load, "a watcher of %s did not see its end", watcher->job->id);
        else if (load->watch_missed == 0 && watcher->metrics != watcher->job->metrics)
            load_fail(load, "a watcher of %s saw %llu of %llu reports", watcher->job->id,
                      (unsigned long long)watcher->metrics,
                      (unsigned long long)watcher->job->metrics);
    }
    status_free(status);
    if (!watcher->closed) load->watchers_closed++;
    watcher->closed = true;
}

void load_watchers_start(struct load *load, int count)
{
    static const struct rpc_stream_callbacks callbacks = {.on_message = on_message,
                                                          .on_closed = on_closed};
    load->watchers = mem_alloc_array((size_t)count, sizeof *load->watchers);
    load->watcher_count = count;
    int job = 0;
    for (int i = 0; i < count; i++) {
        while (!load->jobs[job % load->job_count].running) job++;
        struct load_watcher *watcher = &load->watchers[i];
        *watcher = (struct load_watcher){.load = load,
                                         .job = &load->jobs[job++ % load->job_count],
                                         .began_ms = load_now_ms()};
        watcher->channel = load_connect(load);
        Fsdpd__V1__WatchJobRequest request = FSDPD__V1__WATCH_JOB_REQUEST__INIT;
        request.id = watcher->job->id;
        struct rpc_stream *stream = rpc_stream_open(watcher->channel, &control_watch_job,
                                                    &request.base, 0, true, &callbacks, watcher);
        rpc_stream_read(stream);
    }
}

static void on_channel_closed(void *user)
{
    ((struct load *)user)->open--;
}

void load_watchers_close(struct load *load)
{
    for (int i = 0; i < load->watcher_count; i++)
        rpc_channel_close(load->watchers[i].channel, on_channel_closed, load);
}
