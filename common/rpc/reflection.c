/*
 * The standard reflection service, under its v1alpha and v1 names (otherwise identical). It answers
 * from an index of the server's descriptor set; see descriptors.c. It reads a stream's next request
 * only after the last answer has been sent, so a client that does not read cannot make answers pile
 * up. Everything runs on the loop's thread.
 */
#include <stdlib.h>

#include "base/array.h"
#include "base/mem.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "rpc/descriptors.h"
#include "rpc/server_internal.h"

typedef Grpc__Reflection__V1alpha__ServerReflectionRequest Request;
typedef Grpc__Reflection__V1alpha__ServerReflectionResponse Response;
typedef Grpc__Reflection__V1alpha__ServiceResponse Service;

#define REQUEST(name) GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##name
#define RESPONSE(name)                                                                             \
    GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##name

struct rpc_reflection {
    struct descriptors *descriptors;
    const char **services; /* point into the index */
    int service_count;
};

status_t rpc_reflection_new(const char *const *services, int count, const uint8_t *descriptor_set,
                            size_t size, struct rpc_reflection **reflection_out)
{
    struct descriptors *descriptors;
    TRY(descriptors_new(descriptor_set, size, &descriptors));
    struct rpc_reflection *reflection = mem_alloc(sizeof *reflection);
    reflection->descriptors = descriptors;
    reflection->services = mem_alloc_array((size_t)count, sizeof *reflection->services);
    for (int i = 0; i < count; i++) {
        const struct descriptors_symbol *symbol = descriptors_find_symbol(descriptors, services[i]);
        if (symbol && symbol->kind == DESCRIPTORS_SERVICE)
            reflection->services[reflection->service_count++] = symbol->name;
    }
    *reflection_out = reflection;
    return NULL;
}

void rpc_reflection_free(struct rpc_reflection *reflection)
{
    if (reflection == NULL) return;
    descriptors_free(reflection->descriptors);
    free(reflection->services);
    free(reflection);
}

static void send_error(struct rpc_call *call, Response *response, enum status_code code,
                       const char *text)
{
    Grpc__Reflection__V1alpha__ErrorResponse error =
        GRPC__REFLECTION__V1ALPHA__ERROR_RESPONSE__INIT;
    error.error_code = (int32_t)code;
    error.error_message = (char *)text;
    response->message_response_case = RESPONSE(ERROR_RESPONSE);
    response->error_response = &error;
    rpc_call_send(call, &response->base);
}

static void send_not_found(struct rpc_call *call, Response *response, const char *what,
                           const char *name)
{
    AUTO_FREE char *text = mem_printf("there is no %s \"%s\"", what, name);
    send_error(call, response, STATUS_NOT_FOUND, text);
}

/* The file and everything it imports, itself first. */
static void send_file(struct rpc_reflection *reflection, struct rpc_call *call, Response *response,
                      int file)
{
    int total = descriptors_file_count(reflection->descriptors);
    AUTO_FREE int *order = mem_alloc_array((size_t)total, sizeof *order);
    int count = descriptors_closure(reflection->descriptors, file, order);
    AUTO_FREE ProtobufCBinaryData *bytes = mem_alloc_array((size_t)count, sizeof *bytes);
    for (int i = 0; i < count; i++) {
        const struct descriptors_file *item = descriptors_file(reflection->descriptors, order[i]);
        bytes[i] = (ProtobufCBinaryData){.len = item->size, .data = (uint8_t *)item->bytes};
    }
    Grpc__Reflection__V1alpha__FileDescriptorResponse files =
        GRPC__REFLECTION__V1ALPHA__FILE_DESCRIPTOR_RESPONSE__INIT;
    files.n_file_descriptor_proto = (size_t)count;
    files.file_descriptor_proto = bytes;
    response->message_response_case = RESPONSE(FILE_DESCRIPTOR_RESPONSE);
    response->file_descriptor_response = &files;
    rpc_call_send(call, &response->base);
}

static void send_services(struct rpc_reflection *reflection, struct rpc_call *call,
                          Response *response)
{
    size_t count = (size_t)reflection->service_count;
    AUTO_FREE Service *services = mem_alloc_array(count, sizeof *services);
    AUTO_FREE Service **pointers = mem_alloc_array(count, sizeof *pointers);
    for (size_t i = 0; i < count; i++) {
        services[i] = (Service)GRPC__REFLECTION__V1ALPHA__SERVICE_RESPONSE__INIT;
        services[i].name = (char *)reflection->services[i];
        pointers[i] = &services[i];
    }
    Grpc__Reflection__V1alpha__ListServiceResponse list =
        GRPC__REFLECTION__V1ALPHA__LIST_SERVICE_RESPONSE__INIT;
    list.n_service = count;
    list.service = pointers;
    response->message_response_case = RESPONSE(LIST_SERVICES_RESPONSE);
    response->list_services_response = &list;
    rpc_call_send(call, &response->base);
}

/* proto3 messages have no extensions, so the list is empty for every known message. */
static void send_extensions(struct rpc_reflection *reflection, struct rpc_call *call,
                            Response *response, const char *type)
{
    const struct descriptors_symbol *symbol =
        descriptors_find_symbol(reflection->descriptors, type);
    if (symbol == NULL || symbol->kind != DESCRIPTORS_MESSAGE) {
        send_not_found(call, response, "message", type);
        return;
    }
    Grpc__Reflection__V1alpha__ExtensionNumberResponse numbers =
        GRPC__REFLECTION__V1ALPHA__EXTENSION_NUMBER_RESPONSE__INIT;
    numbers.base_type_name = (char *)symbol->name;
    response->message_response_case = RESPONSE(ALL_EXTENSION_NUMBERS_RESPONSE);
    response->all_extension_numbers_response = &numbers;
    rpc_call_send(call, &response->base);
}

static void answer(struct rpc_reflection *reflection, struct rpc_call *call, const Request *request)
{
    Response response = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__INIT;
    response.valid_host = request->host;
    response.original_request = (Request *)request;
    switch (request->message_request_case) {
    case REQUEST(FILE_BY_FILENAME): {
        int file = descriptors_find_file(reflection->descriptors, request->file_by_filename);
        if (file < 0) send_not_found(call, &response, "file", request->file_by_filename);
        else send_file(reflection, call, &response, file);
        return;
    }
    case REQUEST(FILE_CONTAINING_SYMBOL): {
        const struct descriptors_symbol *symbol =
            descriptors_find_symbol(reflection->descriptors, request->file_containing_symbol);
        if (symbol) send_file(reflection, call, &response, symbol->file);
        else send_not_found(call, &response, "symbol", request->file_containing_symbol);
        return;
    }
    case REQUEST(FILE_CONTAINING_EXTENSION):
        send_error(call, &response, STATUS_NOT_FOUND, "no such extension");
        return;
    case REQUEST(ALL_EXTENSION_NUMBERS_OF_TYPE):
        send_extensions(reflection, call, &response, request->all_extension_numbers_of_type);
        return;
    case REQUEST(LIST_SERVICES): send_services(reflection, call, &response); return;
    default:
        send_error(call, &response, STATUS_INVALID_ARGUMENT, "the request has no known field");
        return;
    }
}

static void on_start(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    (void)request;
    (void)service;
    rpc_call_read(call);
}

static void on_message(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    if (message) answer(service, call, (const Request *)message);
    else rpc_call_finish(call, NULL);
}

static void on_writable(struct rpc_call *call, void *service)
{
    (void)service;
    rpc_call_read(call);
}

static const struct rpc_method info_v1alpha = {
    .path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    .kind = RPC_BIDIRECTIONAL,
    .request = &grpc__reflection__v1alpha__server_reflection_request__descriptor,
    .response = &grpc__reflection__v1alpha__server_reflection_response__descriptor,
};

static const struct rpc_method info_v1 = {
    .path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    .kind = RPC_BIDIRECTIONAL,
    .request = &grpc__reflection__v1alpha__server_reflection_request__descriptor,
    .response = &grpc__reflection__v1alpha__server_reflection_response__descriptor,
};

const struct rpc_handler rpc_reflection_handlers[] = {
    {.method = &info_v1alpha,
     .on_start = on_start,
     .on_message = on_message,
     .on_writable = on_writable},
    {.method = &info_v1,
     .on_start = on_start,
     .on_message = on_message,
     .on_writable = on_writable},
};
const int rpc_reflection_handler_count = COUNT_OF(rpc_reflection_handlers);
