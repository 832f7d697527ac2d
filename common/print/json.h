/*
 * Any message of the API as JSON, by its descriptor: the API's field names, enums by name, 64-bit
 * integers as numbers, bytes in base64, numbers that JSON lacks (NaN, infinities) as null. Every
 * field is written, also when it has its default, so a script can rely on it; messages that are not
 * there are null. Maps are objects. Two exceptions: of a oneof only the part that is set; and
 * figures of a test that was not made (Metrics, EpochEnd: test_loss, accuracy, ... without
 * `evaluated`) are left out.
 */
#ifndef FSDPD_PRINT_JSON_H
#define FSDPD_PRINT_JSON_H

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"

/* `indent` is the column that the message starts in; -1 writes everything on one line. No line end
 * after it. NULL is null. */
void json_add_message(struct buf *out, const ProtobufCMessage *message, int indent);

/* An array of messages, the same way. */
void json_add_messages(struct buf *out, const ProtobufCMessage *const *messages, size_t count,
                       int indent);

/* A string in quotes; what is not UTF-8 becomes U+FFFD. */
void json_add_string(struct buf *out, const char *text);

void json_add_number(struct buf *out, double value);

#endif
