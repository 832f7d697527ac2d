/* GetHistory: those of a job's events that concern its states. */
#include "coordinator/api/handlers.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/core/list_page.h"
#include "proto/message.h"

enum { ENTRIES_MAX = 10000, EVENTS_READ = 1000 };

/* The newest entries, of those before the page's limit. */
struct history {
    struct list_page page; /* by the sequence number of the event */
    Fsdpd__V1__HistoryEntry **entries;
    uint64_t *sequences; /* of the entries */
    size_t count, capacity, sequence_capacity, most;
    uint64_t cursor;
    bool more;
};

static size_t entry_bytes(const Fsdpd__V1__HistoryEntry *entry)
{
    return fsdpd__v1__history_entry__get_packed_size(entry) + 16;
}

static void drop_oldest(struct history *history)
{
    struct list_page *page = &history->page;
    page->bytes -= entry_bytes(history->entries[0]);
    page->left_out++;
    message_free(history->entries[0]);
    size_t rest = --history->count;
    memmove(history->entries, history->entries + 1, rest * sizeof *history->entries);
    memmove(history->sequences, history->sequences + 1, rest * sizeof *history->sequences);
}

static bool add_event(void *user, const job_event *event)
{
    struct history *history = user;
    struct list_page *page = &history->page;
    history->cursor = event->sequence;
    history->more = page->after == NULL || (int64_t)event->sequence < page->after_number;
    if (!history->more) return false;
    if (event->event_case != FSDPD__V1__JOB_EVENT__EVENT_STATE) return true;
    const Fsdpd__V1__StateChange *change = event->state;
    Fsdpd__V1__HistoryEntry view = FSDPD__V1__HISTORY_ENTRY__INIT;
    view.time = event->time;
    view.state = change->state;
    view.reason = change->reason;
    view.attempt = change->attempt;
    view.step = change->step;
    view.by = change->by;
    view.diagnosis = change->diagnosis;
    page->bytes += entry_bytes(&view);
    while (history->count > 0 && (history->count == history->most || page->bytes > LIST_PAGE_BYTES))
        drop_oldest(history);
    MEM_GROW(history->entries, history->count, history->capacity);
    MEM_GROW(history->sequences, history->count, history->sequence_capacity);
    history->sequences[history->count] = event->sequence;
    history->entries[history->count++] = message_copy(&view);
    return true;
}

static status_t read_history(struct coordinator *c, const char *id, struct history *history)
{
    job_message *stored = NULL;
    TRY(store_get_job(c->store, id, &stored));
    message_free(stored);
    for (history->more = true; history->more;) {
        history->more = false;
        struct store_event_query query = {.job = id,
                                          .after = history->cursor,
                                          .skip_metrics = INT64_MAX,
                                          .limit = EVENTS_READ,
                                          .visit = add_event,
                                          .user = history};
        TRY(store_read_events(c->store, &query));
    }
    history->page.count = history->count;
    return NULL;
}

static void reply(struct rpc_call *call, const struct history *history)
{
    Fsdpd__V1__GetHistoryResponse response = FSDPD__V1__GET_HISTORY_RESPONSE__INIT;
    response.n_entries = history->count;
    response.entries = history->entries;
    response.left_out = history->page.left_out;
    int64_t oldest = history->count > 0 ? (int64_t)history->sequences[0] : 0;
    response.next_page_token = list_page_next(&history->page, oldest, "");
    rpc_call_reply(call, &response.base);
    free(response.next_page_token);
}

void api_get_history(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__GetHistoryRequest *request = (const void *)message;
    struct history history = {.most = ENTRIES_MAX};
    status_t status =
        list_page_begin(&history.page, request->page_size, request->page_token, false);
    if (request->page_size > 0 && request->page_size < ENTRIES_MAX)
        history.most = request->page_size;
    if (status == NULL) status = read_history(service, request->id, &history);
    if (status != NULL) rpc_call_finish(call, status);
    else reply(call, &history);
    for (size_t i = 0; i < history.count; i++) message_free(history.entries[i]);
    free(history.entries);
    free(history.sequences);
}
