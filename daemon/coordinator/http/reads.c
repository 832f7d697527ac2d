/*
 * What clients read with GET, as JSON: methods of Control that change nothing, called as over gRPC.
 * The answer of a method that streams is a stream of events (text/event-stream), one for each
 * message; it ends with the event "end", or "error" with the error.
 */
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "coordinator/api/api.h"
#include "coordinator/http/http_checks.h"
#include "coordinator/http/routes.h"
#include "print/json.h"
#include "proto/message.h"

struct http_reading {
    struct http_request *request;
    const struct rpc_method *method;
    struct rpc_call *call;
    bool begun; /* its stream */
    bool over;
};

/* ---- the request ---- */

struct http_query {
    ProtobufCMessage *message;
    const char *parameters; /* those that the route allows */
};

static status_t wrong(const char *name, const char *expected, const char *found)
{
    return status_new(STATUS_INVALID_ARGUMENT, "%s: expected %s, found %.80s", name, expected,
                      found);
}

static status_t set_number(const ProtobufCFieldDescriptor *field, const char *text, void *member)
{
    int64_t value = 0;
    bool narrow = field->type == PROTOBUF_C_TYPE_UINT32;
    if (!text_parse_i64(text, &value) || value < 0 || (narrow && value > UINT32_MAX))
        return wrong(field->name, "a whole number", text);
    if (narrow) *(uint32_t *)member = (uint32_t)value;
    else *(uint64_t *)member = (uint64_t)value;
    return NULL;
}

/* A parameter is a field of the method's request. */
static status_t set_parameter(void *user, const char *name, const char *text)
{
    struct http_query *filled = user;
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(filled->message->descriptor, name);
    if (field == NULL || filled->parameters == NULL || !http_allows(filled->parameters, name))
        return status_new(STATUS_INVALID_ARGUMENT, "%.80s: expected one of the parameters %s", name,
                          filled->parameters != NULL ? filled->parameters : "(none)");
    void *member = (char *)filled->message + field->offset;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING: message_set_text(member, text); return NULL;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_UINT64: return set_number(field, text, member);
    case PROTOBUF_C_TYPE_BOOL:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
            return wrong(name, "true or false", text);
        *(protobuf_c_boolean *)member = text[0] == 't';
        return NULL;
    default: return status_new(STATUS_INTERNAL, "%s: no parameter can have its type", name);
    }
}

/* The caller frees *message. */
static status_t make_request(const struct http_request *request, ProtobufCMessage **message)
{
    const struct http_route *route = http_route(request);
    ProtobufCMessage *made = mem_alloc(route->method->request->sizeof_message);
    protobuf_c_message_init(route->method->request, made);
    struct http_query filled = {.message = made, .parameters = route->parameters};
    status_t status = http_each_parameter(request, set_parameter, &filled);
    const ProtobufCFieldDescriptor *id =
        protobuf_c_message_descriptor_get_field_by_name(made->descriptor, "id");
    if (id != NULL) message_set_text((void *)((char *)made + id->offset), http_part(request));
    if (status == NULL) *message = made;
    else message_free(made);
    return status;
}

/* ---- the answer ---- */

static void on_drained(void *user)
{
    const struct http_reading *reading = user;
    if (reading->call != NULL) rpc_call_drained(reading->call);
}

static void begin_stream(struct http_reading *reading)
{
    if (!reading->begun) http_stream(reading->request, "text/event-stream", on_drained);
    reading->begun = true;
}

static void add_event(struct http_reading *reading, const char *event, const struct buf *data)
{
    AUTO(buf_deinit) struct buf text = {0};
    begin_stream(reading);
    if (event != NULL) buf_printf(&text, "event: %s\n", event);
    buf_printf(&text, "data: %s\n\n", buf_text(data));
    http_stream_add(reading->request, &text);
}

static void on_message(void *user, const ProtobufCMessage *message)
{
    struct http_reading *reading = user;
    struct buf text = {0};
    json_add_message(&text, message, -1);
    if (reading->method->kind == RPC_UNARY) {
        buf_add_char(&text, '\n');
        http_answer(reading->request, MHD_HTTP_OK, "application/json", &text);
        return;
    }
    add_event(reading, NULL, &text);
    buf_deinit(&text);
}

static void on_finished(void *user, status_t status)
{
    struct http_reading *reading = user;
    reading->over = true;
    if (status != NULL && !reading->begun) {
        http_refuse(reading->request, status);
        return;
    }
    if (reading->method->kind == RPC_UNARY) return;
    AUTO(buf_deinit) struct buf data = {0};
    if (status != NULL) http_add_error(&data, status);
    else buf_add_text(&data, "{}");
    add_event(reading, status != NULL ? "error" : "end", &data);
    http_stream_end(reading->request);
    status_free(status);
}

static void leave(void *user)
{
    struct http_reading *reading = user;
    rpc_call_leave(reading->call);
    free(reading);
}

void reads_answer(struct http_request *request)
{
    ProtobufCMessage *message = NULL;
    const bool streams = http_route(request)->method->kind != RPC_UNARY;
    status_t status = streams ? http_check_streams(request) : NULL;
    if (status == NULL) status = make_request(request, &message);
    if (status != NULL) {
        http_refuse(request, status);
        return;
    }
    struct rpc_service services[API_SERVICES];
    api_services(http_coordinator(request), services);
    struct http_reading *reading = mem_alloc(sizeof *reading);
    reading->request = request;
    reading->method = http_route(request)->method;
    reading->call = rpc_call_begin(&services[0], reading->method, http_peer(request), message,
                                   &(struct rpc_receiver){on_message, on_finished, reading});
    message_free(message);
    if (streams && !reading->over) begin_stream(reading);
    if (reading->over && !reading->begun) leave(reading);
    else http_hold(request, leave, reading);
}
