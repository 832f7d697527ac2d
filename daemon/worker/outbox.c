/* Reports that wait for their acknowledgement; see outbox.h. */
#include "worker/outbox.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "spec/metric_curves.h"

static bool is_of(const Fsdpd__V1__WorkerMessage *message, const char *job, uint32_t attempt)
{
    return message->event->attempt == attempt && strcmp(message->event->job, job) == 0;
}

static bool is_metrics(const Fsdpd__V1__WorkerMessage *message)
{
    return message->event->event_case == FSDPD__V1__ATTEMPT_EVENT__EVENT_METRICS;
}

static bool is_logs(const Fsdpd__V1__WorkerMessage *message)
{
    return message->event->event_case == FSDPD__V1__ATTEMPT_EVENT__EVENT_LOGS;
}

/* Answers to a peer that no longer exists once the stream has ended. */
static bool is_of_the_stream(const Fsdpd__V1__WorkerMessage *message)
{
    return message->event->event_case == FSDPD__V1__ATTEMPT_EVENT__EVENT_TRACE ||
           message->event->event_case == FSDPD__V1__ATTEMPT_EVENT__EVENT_EVALUATION ||
           message->event->event_case == FSDPD__V1__ATTEMPT_EVENT__EVENT_PULL_FAILED;
}

/* Drops an eighth of the metrics reports, none that is an extreme of a curve, nor the last; the
 * report after a dropped one has the number. */
static void thin(struct outbox *outbox, int keep)
{
    AUTO(metric_reports_deinit) struct metric_reports all = {0};
    uint64_t number = 0, dropped = 0;
    for (int i = 0; i < outbox->count; i++) {
        const Fsdpd__V1__AttemptEvent *event = outbox->messages[i]->event;
        number += event->thinned + 1;
        if (is_metrics(outbox->messages[i])) metric_reports_add(&all, number, event->metrics);
    }
    metric_reports_thin(&all, (size_t)(keep - keep / 8));
    int kept = 0;
    const struct metric_point *point = all.points;
    for (int i = 0; i < outbox->count; i++) {
        Fsdpd__V1__WorkerMessage *message = outbox->messages[i];
        if (is_metrics(message) && !point++->stays) {
            dropped += 1 + message->event->thinned;
            fsdpd__v1__worker_message__free_unpacked(message, NULL);
            continue;
        }
        message->event->thinned += dropped;
        dropped = 0;
        outbox->messages[kept++] = message;
    }
    outbox->metrics -= outbox->count - kept;
    outbox->count = kept;
}

/* Drops the older half of the log lines; the first remaining one has the number of missing
 * lines. */
static void thin_logs(struct outbox *outbox)
{
    uint64_t dropped = 0;
    int kept = 0, seen = 0, drop = outbox->logs / 2;
    for (int i = 0; i < outbox->count; i++) {
        Fsdpd__V1__WorkerMessage *message = outbox->messages[i];
        if (is_logs(message) && seen++ < drop) {
            dropped += message->event->logs->n_lines + message->event->logs->dropped;
            fsdpd__v1__worker_message__free_unpacked(message, NULL);
            continue;
        }
        if (is_logs(message)) {
            message->event->logs->dropped += dropped;
            dropped = 0;
        }
        outbox->messages[kept++] = message;
    }
    outbox->logs -= outbox->count - kept;
    outbox->count = kept;
}

void outbox_add(struct outbox *outbox, Fsdpd__V1__WorkerMessage *message, bool *kept)
{
    *kept = !is_of_the_stream(message);
    if (!*kept) return;
    if (outbox->job == NULL || !is_of(message, outbox->job, outbox->attempt)) {
        free(outbox->job);
        outbox->job = mem_strdup(message->event->job);
        outbox->attempt = message->event->attempt;
        outbox->last = 0;
    }
    message->event->report = ++outbox->last;
    MEM_GROW(outbox->messages, outbox->count, outbox->capacity);
    outbox->messages[outbox->count++] = message;
    outbox->metrics += is_metrics(message);
    outbox->logs += is_logs(message);
    if (outbox->logs > OUTBOX_LOGS) thin_logs(outbox);
    const int keep = outbox->keep > 0 ? outbox->keep : OUTBOX_METRICS;
    if (outbox->metrics > keep) thin(outbox, keep);
}

void outbox_acknowledge(struct outbox *outbox, const char *job, uint32_t attempt, uint64_t report)
{
    int kept = 0;
    for (int i = 0; i < outbox->count; i++) {
        Fsdpd__V1__WorkerMessage *message = outbox->messages[i];
        if (!is_of(message, job, attempt) || message->event->report > report) {
            outbox->messages[kept++] = message;
            continue;
        }
        outbox->metrics -= is_metrics(message);
        outbox->logs -= is_logs(message);
        fsdpd__v1__worker_message__free_unpacked(message, NULL);
    }
    outbox->count = kept;
}

/* Uses shallow copies: the caller owns only the list and its entries. */
static void list_metrics(Fsdpd__V1__UnrecordedReports *list, Fsdpd__V1__Metrics *metrics,
                         uint64_t thinned, uint64_t step)
{
    if (metrics == NULL || metrics->step > step) return;
    Fsdpd__V1__UnrecordedMetrics *entry = mem_alloc(sizeof *entry);
    fsdpd__v1__unrecorded_metrics__init(entry);
    entry->metrics = metrics;
    entry->thinned = thinned;
    list->metrics = mem_resize_array(list->metrics, list->n_metrics + 1, sizeof *list->metrics);
    list->metrics[list->n_metrics++] = entry;
}

static void list_all(const struct outbox *outbox, const char *job, uint32_t attempt, uint64_t step,
                     Fsdpd__V1__UnrecordedReports *list)
{
    for (int i = 0; i < outbox->count; i++) {
        const Fsdpd__V1__AttemptEvent *event = outbox->messages[i]->event;
        if (!is_of(outbox->messages[i], job, attempt)) continue;
        const Fsdpd__V1__UnrecordedReports *found = NULL;
        if (event->event_case == FSDPD__V1__ATTEMPT_EVENT__EVENT_STARTED)
            found = event->started->unrecorded;
        for (size_t m = 0; found != NULL && m < found->n_metrics; m++)
            list_metrics(list, found->metrics[m]->metrics, found->metrics[m]->thinned, step);
        if (is_metrics(outbox->messages[i]))
            list_metrics(list, event->metrics, event->thinned, step);
    }
}

void outbox_pack_metrics(const struct outbox *outbox, const char *job, uint32_t attempt,
                         uint64_t step, struct buf *out)
{
    Fsdpd__V1__UnrecordedReports list = FSDPD__V1__UNRECORDED_REPORTS__INIT;
    list_all(outbox, job, attempt, step, &list);
    size_t size = fsdpd__v1__unrecorded_reports__get_packed_size(&list);
    if (list.n_metrics > 0) {
        AUTO_FREE uint8_t *bytes = mem_alloc(size);
        fsdpd__v1__unrecorded_reports__pack(&list, bytes);
        buf_add(out, bytes, size);
    }
    for (size_t i = 0; i < list.n_metrics; i++) free(list.metrics[i]);
    free(list.metrics);
}

const Fsdpd__V1__AttemptEvent *outbox_next_attempt(const struct outbox *outbox, int *position)
{
    while (*position < outbox->count) {
        const Fsdpd__V1__AttemptEvent *event = outbox->messages[(*position)++]->event;
        bool seen = false;
        for (int i = 0; i < *position - 1 && !seen; i++)
            seen = is_of(outbox->messages[i], event->job, event->attempt);
        if (!seen) return event;
    }
    return NULL;
}

void outbox_deinit(struct outbox *outbox)
{
    for (int i = 0; i < outbox->count; i++)
        fsdpd__v1__worker_message__free_unpacked(outbox->messages[i], NULL);
    free(outbox->messages);
    free(outbox->job);
    *outbox = (struct outbox){0};
}
