/* Messages of any type: bytes, copies and their end. */
#ifndef FSDPD_PROTO_MESSAGE_H
#define FSDPD_PROTO_MESSAGE_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

/* The packed bytes; the caller frees them. Never NULL, also for an empty message. */
uint8_t *message_pack(const void *message, size_t *size);

/* A deep copy; free it with message_free. */
void *message_copy(const void *message);

/* The name of an enum's value without the prefix that all of its values have: "RUNNING" of
 * JOB_STATE_RUNNING. NULL if it is unknown. */
const char *message_enum_name(const ProtobufCEnumDescriptor *type, int value);

/* Frees an unpacked or copied message; accepts NULL. */
void message_free(void *message);

#endif
