/* Messages of any type: bytes, copies and their end. */
#ifndef FSDPD_PROTO_MESSAGE_H
#define FSDPD_PROTO_MESSAGE_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "google/protobuf/timestamp.pb-c.h"

/* A new message on the heap: struct *x = MESSAGE_NEW(x, its_type__init). Free with message_free. */
#define MESSAGE_NEW(message, init)                                                                 \
    ((message) = mem_alloc(sizeof *(message)), init(message), (message))

/* The packed bytes; the caller frees them. Never NULL, also for an empty message. */
uint8_t *message_pack(const void *message, size_t *size);

/* A deep copy; free it with message_free. */
void *message_copy(const void *message);

/* The name of an enum's value without the prefix that all of its values have: "RUNNING" of
 * JOB_STATE_RUNNING. NULL if it is unknown. */
const char *message_enum_name(const ProtobufCEnumDescriptor *type, int value);

/* A point in time in milliseconds since the Unix epoch; 0: absent (NULL). */
int64_t message_time_ms(const Google__Protobuf__Timestamp *time);

/* Fills in `time` and returns it; NULL for 0. */
Google__Protobuf__Timestamp *message_time(Google__Protobuf__Timestamp *time, int64_t ms);

/* Sets a field of a message on the heap, which owns it. */
void message_set_time(Google__Protobuf__Timestamp **field, int64_t ms);

/* Frees an unpacked or copied message; accepts NULL. */
void message_free(void *message);

#endif
