/* history: the states of a job with their reasons and times. */
#include "base/array.h"
#include "base/clock.h"
#include "lists.h"
#include "proto/message.h"
#include "report.h"

static void add_row(struct table *table, const Fsdpd__V1__HistoryEntry *entry, bool colour)
{
    char text[32];
    table_add(table, clock_format_wall(message_time_ms(entry->time), text));
    table_add(table, report_state(entry->state));
    table_style(table, report_state_style(entry->state, colour));
    table_addf(table, "%u", entry->attempt);
    table_addf(table, "%llu", (unsigned long long)entry->step);
    table_add(table, entry->by[0] ? entry->by : "-");
    table_add(table, entry->reason ? entry->reason->code : "");
    table_add(table, report_reason(entry->reason));
}

void report_history(const Fsdpd__V1__GetHistoryResponse *history, const struct view *view,
                    struct buf *out)
{
    static const struct table_column columns[] = {
        {.title = "TIME"},
        {.title = "STATE"},
        {.title = "ATTEMPT", .right = true, .drop = 2},
        {.title = "STEP", .right = true},
        {.title = "BY", .drop = 1},
        {.title = "CODE", .drop = 3},
        {.title = "REASON"},
    };
    AUTO(table_deinit)
    struct table table = {.columns = columns, .column_count = COUNT_OF(columns), .whole = true};
    for (size_t i = 0; i < history->n_entries; i++)
        add_row(&table, history->entries[i], view->colour);
    table_print(&table, view->width, 0, out);
}

static void report(const ProtobufCMessage *response, const struct view *view, struct buf *out)
{
    report_history((const void *)response, view, out);
}

int verb_history(struct client *client)
{
    Fsdpd__V1__GetHistoryRequest request = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    request.id = (char *)client->options.arguments[0];
    return lists_print(client, &control_get_history, &request.base, LIST_FROM_NEWEST, report);
}
