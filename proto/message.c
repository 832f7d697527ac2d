/* Messages of any type; see message.h. */
#include "proto/message.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

uint8_t *message_pack(const void *message, size_t *size)
{
    *size = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = mem_alloc(*size + 1);
    protobuf_c_message_pack(message, bytes);
    return bytes;
}

void *message_copy(const void *message)
{
    size_t size = 0;
    uint8_t *bytes = message_pack(message, &size);
    void *copy = protobuf_c_message_unpack(((const ProtobufCMessage *)message)->descriptor, NULL,
                                           size, bytes);
    free(bytes);
    if (copy == NULL) abort(); /* packed bytes always unpack: memory has run out */
    return copy;
}

const char *message_enum_name(const ProtobufCEnumDescriptor *type, int value)
{
    const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value(type, value);
    const char *zero = protobuf_c_enum_descriptor_get_value(type, 0)->name;
    return found ? found->name + strlen(zero) - strlen("UNSPECIFIED") : NULL;
}

int64_t message_time_ms(const Google__Protobuf__Timestamp *time)
{
    /* Of a client or a peer: any number. */
    int64_t most = INT64_MAX / 1000 - 1;
    if (time == NULL || time->seconds < -most || time->seconds > most) return 0;
    return time->seconds * 1000 + time->nanos / 1000000;
}

Google__Protobuf__Timestamp *message_time(Google__Protobuf__Timestamp *time, int64_t ms)
{
    google__protobuf__timestamp__init(time);
    if (ms == 0) return NULL;
    int64_t rest = (ms % 1000 + 1000) % 1000; /* nanos count forward, also before the epoch */
    time->seconds = (ms - rest) / 1000;
    time->nanos = (int32_t)rest * 1000000;
    return time;
}

void message_set_time(Google__Protobuf__Timestamp **field, int64_t ms)
{
    Google__Protobuf__Timestamp time;
    if (*field != NULL) message_free(*field);
    *field = message_time(&time, ms) != NULL ? message_copy(&time) : NULL;
}

void message_free(void *message)
{
    if (message != NULL) protobuf_c_message_free_unpacked(message, NULL);
}
