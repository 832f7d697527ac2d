/*
 * Errors as programs read them: a google.rpc.Status in the trailing metadata, with the status's
 * code and message again and, from what is known about it (struct status_details), ErrorInfo,
 * BadRequest and PreconditionFailure. Pure functions.
 */
#include <grpc/slice.h>
#include <stdio.h>

#include "base/mem.h"
#include "google/rpc/error_details.pb-c.h"
#include "google/rpc/status.pb-c.h"
#include "proto/message.h"
#include "rpc/server_internal.h"

/* Adds `message` to the details; it is packed at once. */
static void add_detail(Google__Rpc__Status *status, const ProtobufCMessage *message)
{
    Google__Protobuf__Any *any = MESSAGE_NEW(any, google__protobuf__any__init);
    any->type_url = mem_printf("type.googleapis.com/%s", message->descriptor->name);
    any->value.len = protobuf_c_message_get_packed_size(message);
    any->value.data = mem_alloc(any->value.len + 1);
    protobuf_c_message_pack(message, any->value.data);
    status->details =
        mem_resize_array(status->details, status->n_details + 1, sizeof *status->details);
    status->details[status->n_details++] = any;
}

static void add_info(Google__Rpc__Status *out, status_t status, const struct status_details *about)
{
    Google__Rpc__ErrorInfo info = GOOGLE__RPC__ERROR_INFO__INIT;
    Google__Rpc__ErrorInfo__MetadataEntry entries[2] = {
        GOOGLE__RPC__ERROR_INFO__METADATA_ENTRY__INIT,
        GOOGLE__RPC__ERROR_INFO__METADATA_ENTRY__INIT};
    Google__Rpc__ErrorInfo__MetadataEntry *metadata[2] = {&entries[0], &entries[1]};
    char line[16];
    snprintf(line, sizeof line, "%d", about->line);
    info.metadata = metadata;
    if (about->line > 0) {
        metadata[info.n_metadata]->key = (char *)"line";
        metadata[info.n_metadata++]->value = line;
    }
    if (about->subject != NULL) {
        metadata[info.n_metadata]->key = (char *)"subject";
        metadata[info.n_metadata++]->value = (char *)about->subject;
    }
    bool field = about->field != NULL && status_code(status) == STATUS_INVALID_ARGUMENT;
    info.reason = (char *)(about->reason != NULL ? about->reason
                           : field               ? "INVALID_FIELD"
                                                 : status_code_name(status_code(status)));
    info.domain = (char *)"fsdpd";
    add_detail(out, &info.base);
}

static void add_field(Google__Rpc__Status *out, const char *field)
{
    Google__Rpc__BadRequest request = GOOGLE__RPC__BAD_REQUEST__INIT;
    Google__Rpc__BadRequest__FieldViolation violation =
        GOOGLE__RPC__BAD_REQUEST__FIELD_VIOLATION__INIT;
    Google__Rpc__BadRequest__FieldViolation *violations[] = {&violation};
    violation.field = (char *)field;
    violation.description = out->message;
    request.n_field_violations = 1;
    request.field_violations = violations;
    add_detail(out, &request.base);
}

static void add_precondition(Google__Rpc__Status *out, const struct status_details *about)
{
    Google__Rpc__PreconditionFailure failure = GOOGLE__RPC__PRECONDITION_FAILURE__INIT;
    Google__Rpc__PreconditionFailure__Violation violation =
        GOOGLE__RPC__PRECONDITION_FAILURE__VIOLATION__INIT;
    Google__Rpc__PreconditionFailure__Violation *violations[] = {&violation};
    violation.type = (char *)about->reason;
    if (about->subject != NULL) violation.subject = (char *)about->subject;
    violation.description = out->message;
    failure.n_violations = 1;
    failure.violations = violations;
    add_detail(out, &failure.base);
}

bool rpc_details_pack(status_t status, size_t text, size_t room, grpc_slice *out)
{
    struct status_details about = status_about(status);
    Google__Rpc__Status *message = MESSAGE_NEW(message, google__rpc__status__init);
    message->code = (int32_t)status_code(status);
    message->message = mem_strndup(status_message(status), text);
    add_info(message, status, &about);
    if (about.field != NULL) add_field(message, about.field);
    if (about.reason != NULL && status_code(status) == STATUS_FAILED_PRECONDITION)
        add_precondition(message, &about);
    size_t size = protobuf_c_message_get_packed_size(&message->base);
    bool fits = (size + 2) / 3 * 4 <= room; /* in base64 */
    if (fits) {
        *out = grpc_slice_malloc(size);
        protobuf_c_message_pack(&message->base, GRPC_SLICE_START_PTR(*out));
    }
    protobuf_c_message_free_unpacked(&message->base, NULL);
    return fits;
}
