/*
 * See http_reads.h. The table of routes and reads.c are the coordinator's; what these call is here:
 * a request, and an API that answers with the input's bytes, at once and once more later.
 */
#include "http_reads.h"

#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/api/api.h"
#include "coordinator/http/http_checks.h"
#include "coordinator/http/routes.h"
#include "proto/message.h"

struct http_request {
    const struct http_route *route;
    char *part, *parameters;
    const uint8_t *reply;
    size_t reply_size;
    int answers; /* also refusals */
    bool streams, ended;
    struct buf text;
    struct rpc_call *call;
    void (*over)(void *user);
    void *user;
};

struct rpc_call {
    struct http_request *request;
    struct rpc_receiver receiver;
    ProtobufCMessage *reply;
};

static struct http_request *current;
static const struct http_site *served; /* http.listen's */

/* ---- what routes.c calls ---- */

status_t http_listen(struct coordinator *c, const struct http_site *site)
{
    static struct http_site kept;
    (void)c;
    kept = *site;
    served = &kept;
    return NULL;
}

#define ANSWERS_NOTHING(name)                                                                      \
    void name(struct http_request *request)                                                        \
    {                                                                                              \
        (void)request;                                                                             \
    }
ANSWERS_NOTHING(monitoring_metrics)
ANSWERS_NOTHING(monitoring_livez)
ANSWERS_NOTHING(monitoring_readyz)
ANSWERS_NOTHING(completions_complete)
ANSWERS_NOTHING(completions_models)
ANSWERS_NOTHING(pages_live)
ANSWERS_NOTHING(pages_style)
ANSWERS_NOTHING(pages_script)
ANSWERS_NOTHING(pages_lists)
ANSWERS_NOTHING(pages_job)

/* ---- what reads.c calls ---- */

struct coordinator *http_coordinator(const struct http_request *request)
{
    (void)request;
    return NULL;
}

const struct rpc_peer *http_peer(const struct http_request *request)
{
    (void)request;
    return NULL;
}

const struct http_route *http_route(const struct http_request *request)
{
    return request->route;
}

const char *http_part(const struct http_request *request)
{
    return request->part != NULL ? request->part : "";
}

status_t http_each_parameter(const struct http_request *request,
                             status_t (*visit)(void *user, const char *name, const char *value),
                             void *user)
{
    char *rest = request->parameters;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *name = strsep(&line, "=");
        TRY(visit(user, name, line != NULL ? line : ""));
    }
    return NULL;
}

status_t http_check_streams(const struct http_request *request)
{
    (void)request;
    return NULL;
}

void http_answer(struct http_request *request, unsigned code, const char *type, struct buf *text)
{
    FUZZ_CHECK(code == 200 && http_type_is_json(type), "%u, %s", code, type);
    request->answers++;
    buf_add(&request->text, text->data, text->length);
    buf_deinit(text);
}

void http_refuse(struct http_request *request, status_t status)
{
    request->answers++;
    fuzz_expect_user_error(status);
}

void http_stream(struct http_request *request, const char *type, void (*drained)(void *user))
{
    FUZZ_CHECK(strcmp(type, "text/event-stream") == 0 && drained != NULL, "%s", type);
    request->answers++;
    request->streams = true;
}

void http_stream_add(struct http_request *request, struct buf *text)
{
    FUZZ_CHECK(request->streams && !request->ended, "%s", buf_text(text));
    buf_add(&request->text, text->data, text->length);
}

void http_stream_end(struct http_request *request)
{
    request->ended = true;
}

void http_add_error(struct buf *out, status_t status)
{
    buf_printf(out, "{\"code\": %d}", (int)status_code(status));
}

void http_hold(struct http_request *request, void (*over)(void *user), void *user)
{
    request->over = over;
    request->user = user;
}

void api_services(void *user, struct rpc_service services[API_SERVICES])
{
    (void)user, (void)services;
}

/* ---- the API ---- */

static bool is_unset(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    const char *bytes = (const char *)message;
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        return *(const size_t *)(bytes + field->quantifier_offset) == 0;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING: return **(char *const *)(bytes + field->offset) == '\0';
    case PROTOBUF_C_TYPE_MESSAGE: return *(void *const *)(bytes + field->offset) == NULL;
    case PROTOBUF_C_TYPE_BOOL: return !*(const protobuf_c_boolean *)(bytes + field->offset);
    case PROTOBUF_C_TYPE_UINT32: return *(const uint32_t *)(bytes + field->offset) == 0;
    default: return *(const uint64_t *)(bytes + field->offset) == 0;
    }
}

/* A request sets the id of its path, and what its route allows. */
static void check_request(const struct http_request *request, const ProtobufCMessage *message)
{
    const struct http_route *route = request->route;
    FUZZ_CHECK(message->descriptor == route->method->request, "%s", route->path);
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (strcmp(field->name, "id") == 0) {
            const char *id = *(char *const *)((const char *)message + field->offset);
            FUZZ_CHECK(strcmp(id, request->part) == 0, "%s", id);
        } else if (route->parameters == NULL || !http_allows(route->parameters, field->name)) {
            FUZZ_CHECK(is_unset(message, field), "%s: %s", route->path, field->name);
        }
    }
}

/* As the library does, which unwraps a response of one message. NULL: the bytes are none. */
static ProtobufCMessage *read_reply(const struct http_request *request)
{
    const ProtobufCMessageDescriptor *type = request->route->method->response;
    if (type->n_fields == 1 && type->fields[0].type == PROTOBUF_C_TYPE_MESSAGE &&
        type->fields[0].label != PROTOBUF_C_LABEL_REPEATED)
        type = type->fields[0].descriptor;
    return protobuf_c_message_unpack(type, NULL, request->reply_size, request->reply);
}

static void finish(const struct rpc_call *call)
{
    status_t status = call->reply == NULL || call->request->reply_size % 2 == 0
                          ? status_new(STATUS_UNAVAILABLE, "%s", http_part(call->request))
                          : NULL;
    call->receiver.finished(call->receiver.user, status);
}

struct rpc_call *rpc_call_begin(const struct rpc_service *service, const struct rpc_method *method,
                                const struct rpc_peer *peer, const ProtobufCMessage *message,
                                const struct rpc_receiver *receiver)
{
    (void)service, (void)peer;
    struct rpc_call *call = mem_alloc(sizeof *call);
    *call =
        (struct rpc_call){.request = current, .receiver = *receiver, .reply = read_reply(current)};
    check_request(current, message);
    current->call = call;
    if (call->reply != NULL) receiver->message(receiver->user, call->reply);
    if (call->reply == NULL) finish(call);
    else if (method->kind == RPC_UNARY) receiver->finished(receiver->user, NULL);
    return call;
}

void rpc_call_drained(struct rpc_call *call)
{
    (void)call;
}

void rpc_call_leave(struct rpc_call *call)
{
    call->request->call = NULL;
    if (call->reply != NULL) protobuf_c_message_free_unpacked(call->reply, NULL);
    free(call);
}

/* ---- the answer ---- */

static void check_json(const char *text, size_t size)
{
    json_error_t error;
    json_t *root = json_loadb(text, size, JSON_DECODE_INT_AS_REAL, &error);
    FUZZ_CHECK(root != NULL, "%s: %.*s", error.text, (int)size, text);
    json_decref(root);
}

/* A browser must see the events that were sent, whatever texts they have. */
static void check_events(char *text)
{
    static const char kind[] = "event: ", data[] = "data: ";
    for (char *end; (end = strstr(text, "\n\n")) != NULL; text = end + 2) {
        *end = '\0';
        if (strncmp(text, kind, strlen(kind)) == 0) text = strchr(text, '\n') + 1;
        FUZZ_CHECK(strncmp(text, data, strlen(data)) == 0, "%s", text);
        text += strlen(data);
        FUZZ_CHECK(strpbrk(text, "\r\n") == NULL, "%s", text);
        check_json(text, strlen(text));
    }
    FUZZ_CHECK(text[0] == '\0', "%s", text);
}

static void answer(struct http_request *request)
{
    current = request;
    reads_answer(request);
    FUZZ_CHECK(request->answers == 1, "%s: %d", request->route->path, request->answers);
    if (request->over != NULL) {
        struct rpc_call *call = request->call;
        if (request->streams && !request->ended) {
            call->receiver.message(call->receiver.user, call->reply);
            finish(call);
        }
        request->over(request->user);
    }
    FUZZ_CHECK(request->call == NULL && request->streams == request->ended, "%s",
               request->route->path);
    if (request->streams) check_events((char *)buf_text(&request->text));
    else if (request->text.length > 0) check_json(request->text.data, request->text.length);
    buf_deinit(&request->text);
}

void fuzz_http_read(char *text, size_t size)
{
    static struct coordinator c = {.options.http_listen = "localhost:1"};
    static char none[] = "";
    if (served == NULL && routes_listen(&c, NULL) != NULL) abort();
    char *end = strstr(text, "\n\n"), *path = text;
    struct http_request request = {.parameters = none};
    if (end != NULL) {
        request.reply = (const uint8_t *)end + 2;
        request.reply_size = size - (size_t)(end + 2 - text);
        *end = '\0';
    }
    char *line = strchr(path, '\n');
    if (line != NULL) {
        *line = '\0';
        request.parameters = line + 1;
    }
    for (int i = 0; i < served->route_count; i++) {
        if (!http_path_matches(served->routes[i].path, path, &request.part)) continue;
        FUZZ_CHECK(request.route == NULL, "%s: %s and %s", path, request.route->path,
                   served->routes[i].path);
        request.route = &served->routes[i];
    }
    if (request.route != NULL && request.route->method != NULL) answer(&request);
    free(request.part);
}
