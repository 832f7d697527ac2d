/* Follows the pages of a list; see lists.h. Requests and responses of lists are alike
 * (control.proto): the first field of a response has the rows. */
#include "lists.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "exit.h"
#include "print/json.h"
#include "proto/message.h"

/* A field, which the message has. */
static void *member(ProtobufCMessage *message, const char *name)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message->descriptor, name);
    return (char *)message + field->offset;
}

struct list_rows {
    size_t *count;
    ProtobufCMessage ***rows;
};

static struct list_rows rows_of(ProtobufCMessage *response)
{
    const ProtobufCFieldDescriptor *field = &response->descriptor->fields[0];
    char *base = (char *)response;
    return (struct list_rows){(void *)(base + field->quantifier_offset),
                              (void *)(base + field->offset)};
}

/* Moves the rows of `page` to `whole`: behind its rows, or before them. Frees the page. */
static void join(ProtobufCMessage *whole, ProtobufCMessage *page, bool before)
{
    struct list_rows to = rows_of(whole), from = rows_of(page);
    struct list_rows first = before ? from : to, second = before ? to : from;
    size_t count = *first.count + *second.count;
    ProtobufCMessage **rows = mem_alloc_array(count + 1, sizeof *rows);
    for (size_t i = 0; i < count; i++)
        rows[i] = i < *first.count ? (*first.rows)[i] : (*second.rows)[i - *first.count];
    free(*to.rows);
    *to.rows = rows;
    *to.count = count;
    *from.count = 0;
    message_free(page);
}

/* How many rows the last page left out, for lists that say it. */
static void set_left_out(ProtobufCMessage *whole, ProtobufCMessage *last)
{
    if (protobuf_c_message_descriptor_get_field_by_name(whole->descriptor, "left_out") == NULL)
        return;
    memcpy(member(whole, "left_out"), member(last, "left_out"), sizeof(uint32_t));
}

/* Takes the page into *whole. True if another page is to come, which the request is then for. */
static bool take(ProtobufCMessage **whole, ProtobufCMessage *page, ProtobufCMessage *request,
                 enum list_order order)
{
    uint32_t *size = member(request, "page_size");
    char **token = member(request, "page_token"), **next = member(page, "next_page_token");
    size_t count = *rows_of(page).count;
    bool wants_more = *size == 0 || count < *size;
    if (*size > 0) *size -= wants_more ? (uint32_t)count : 0;
    bool more = (*next)[0] != '\0' && wants_more;
    if (*token != protobuf_c_empty_string) free(*token);
    *token = more ? mem_strdup(*next) : (char *)protobuf_c_empty_string;
    if (*whole == NULL) {
        *whole = page;
    } else {
        set_left_out(*whole, page);
        join(*whole, page, order == LIST_FROM_NEWEST);
    }
    return more;
}

status_t lists_read(struct session *session, const struct rpc_method *method,
                    ProtobufCMessage *request, enum list_order order, ProtobufCMessage **response)
{
    ProtobufCMessage *whole = NULL, *page = NULL;
    status_t status;
    do {
        status = session_call(session, method, request, false, &page);
    } while (status == NULL && take(&whole, page, request, order));
    if (status == NULL) *response = whole;
    else message_free(whole);
    return status;
}

bool lists_call(struct client *client, const struct rpc_method *method, ProtobufCMessage *request,
                enum list_order order, ProtobufCMessage **response, int *exit_code)
{
    struct session *session;
    if (!client_open(client, &session, exit_code)) return false;
    status_t status = lists_read(session, method, request, order, response);
    session_free(session);
    if (status == NULL) return true;
    *exit_code = output_error(status);
    return false;
}

int lists_print(struct client *client, const struct rpc_method *method, ProtobufCMessage *request,
                enum list_order order, lists_report *report)
{
    ProtobufCMessage *response;
    int code;
    if (!lists_call(client, method, request, order, &response, &code)) return code;
    struct buf text = {0};
    struct list_rows list = rows_of(response);
    struct view view = client_view(client);
    if (client->options.format == FORMAT_JSON) json_add_list(&text, *list.rows, *list.count);
    else report(response, &view, &text);
    output_print(&text);
    message_free(response);
    return EXIT_DONE;
}
