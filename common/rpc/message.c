/*
 * Messages between protobuf-c and gRPC byte buffers, and the queue of outgoing messages. Bytes from
 * the wire are hostile: decoding has a memory budget, because two bytes on the wire can become
 * hundreds in memory, and strings must be UTF-8, because clients in other languages reject any
 * other bytes that we would pass on.
 */
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "rpc/message.h"

/* Memory budget of a decoded message. */
enum { DECODED_MAX = 4 * RPC_MESSAGE_MAX };

struct rpc_outbox_item {
    grpc_byte_buffer *buffer;
    struct rpc_outbox_item *next;
};

grpc_byte_buffer *rpc_message_pack(const ProtobufCMessage *message)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

static void *budget_alloc(void *data, size_t size)
{
    size_t *left = data;
    if (size > *left) return NULL;
    *left -= size;
    return malloc(size ? size : 1);
}

static void budget_free(void *data, void *memory)
{
    (void)data;
    free(memory);
}

static bool text_is_utf8(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    while (*c) {
        if (*c < 0x80) {
            c++;
            continue;
        }
        int more = *c >= 0xc2 && *c < 0xe0   ? 1
                   : (*c & 0xf0) == 0xe0     ? 2
                   : *c >= 0xf0 && *c < 0xf5 ? 3
                                             : 0;
        if (more == 0) return false;
        /* The second byte reveals overlong forms, surrogates and values beyond U+10FFFF. */
        unsigned char low = *c == 0xe0 ? 0xa0 : *c == 0xf0 ? 0x90 : 0x80;
        unsigned char high = *c == 0xed ? 0x9f : *c == 0xf4 ? 0x8f : 0xbf;
        if (c[1] < low || c[1] > high) return false;
        for (int i = 2; i <= more; i++)
            if ((c[i] & 0xc0) != 0x80) return false;
        c += more + 1;
    }
    return true;
}

static bool strings_are_utf8(const ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (field->type != PROTOBUF_C_TYPE_STRING && field->type != PROTOBUF_C_TYPE_MESSAGE)
            continue;
        const char *member = (const char *)message + field->offset;
        const void *const *values = (const void *const *)member;
        size_t count = 1;
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            values = *(const void *const *const *)member;
            memcpy(&count, (const char *)message + field->quantifier_offset, sizeof count);
        } else if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
            /* The member is a union: only the selected field may be read. */
            uint32_t chosen;
            memcpy(&chosen, (const char *)message + field->quantifier_offset, sizeof chosen);
            if (chosen != field->id) continue;
        }
        for (size_t k = 0; k < count; k++) {
            if (values[k] == NULL) continue;
            if (field->type == PROTOBUF_C_TYPE_STRING ? !text_is_utf8(values[k])
                                                      : !strings_are_utf8(values[k]))
                return false;
        }
    }
    return true;
}

ProtobufCMessage *rpc_message_unpack(const ProtobufCMessageDescriptor *descriptor,
                                     grpc_byte_buffer *buffer)
{
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, buffer)) return NULL;
    grpc_slice bytes = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    size_t budget = DECODED_MAX;
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
    ProtobufCMessage *message =
        protobuf_c_message_unpack(descriptor, &allocator, GRPC_SLICE_LENGTH(bytes),
                                  GRPC_SLICE_START_PTR(bytes));
    grpc_slice_unref(bytes);
    if (message && !strings_are_utf8(message)) {
        protobuf_c_message_free_unpacked(message, NULL);
        message = NULL;
    }
    return message;
}

/* The field of a response that consists of one message; NULL if it has other fields. */
static const ProtobufCFieldDescriptor *only_message(const ProtobufCMessageDescriptor *response)
{
    const ProtobufCFieldDescriptor *field = response->fields;
    bool one = response->n_fields == 1 && field->type == PROTOBUF_C_TYPE_MESSAGE &&
               field->label != PROTOBUF_C_LABEL_REPEATED;
    return one ? field : NULL;
}

static void *alloc_message(const ProtobufCMessageDescriptor *descriptor)
{
    void *message = mem_alloc(descriptor->sizeof_message);
    protobuf_c_message_init(descriptor, message);
    return message;
}

grpc_byte_buffer *rpc_response_pack(const ProtobufCMessageDescriptor *response,
                                    const ProtobufCMessage *message)
{
    const ProtobufCFieldDescriptor *field = only_message(response);
    if (message->descriptor == response) return rpc_message_pack(message);
    if (field == NULL || message->descriptor != field->descriptor) return NULL;
    AUTO_FREE char *wrapper = alloc_message(response);
    memcpy(wrapper + field->offset, &message, sizeof message);
    return rpc_message_pack((const ProtobufCMessage *)(void *)wrapper);
}

ProtobufCMessage *rpc_response_unpack(const ProtobufCMessageDescriptor *response,
                                      grpc_byte_buffer *buffer)
{
    const ProtobufCFieldDescriptor *field = only_message(response);
    ProtobufCMessage *message = rpc_message_unpack(response, buffer), *inner;
    if (message == NULL || field == NULL) return message;
    char *member = (char *)message + field->offset;
    memcpy(&inner, member, sizeof inner);
    memset(member, 0, sizeof inner);
    protobuf_c_message_free_unpacked(message, NULL);
    return inner != NULL ? inner : alloc_message(field->descriptor); /* absent: all defaults */
}

void rpc_outbox_push(struct rpc_outbox *outbox, grpc_byte_buffer *buffer)
{
    struct rpc_outbox_item *item = mem_alloc(sizeof *item);
    item->buffer = buffer;
    if (outbox->last) outbox->last->next = item;
    else outbox->first = item;
    outbox->last = item;
    outbox->count++;
}

grpc_byte_buffer *rpc_outbox_pop(struct rpc_outbox *outbox)
{
    struct rpc_outbox_item *item = outbox->first;
    if (item == NULL) return NULL;
    outbox->first = item->next;
    if (outbox->first == NULL) outbox->last = NULL;
    outbox->count--;
    grpc_byte_buffer *buffer = item->buffer;
    free(item);
    return buffer;
}

void rpc_outbox_clear(struct rpc_outbox *outbox)
{
    for (grpc_byte_buffer *buffer; (buffer = rpc_outbox_pop(outbox)) != NULL;)
        grpc_byte_buffer_destroy(buffer);
}
