/*
 * Any API message as JSON, by its descriptor: the API's field names, enums by their words as
 * spec_word has them ("RUNNING", "full_shard"; null if unspecified), times in the format of RFC
 * 3339, 64-bit integers as numbers, bytes in base64, numbers that JSON lacks (NaN, infinities) as
 * null. Every field is written, even with its default value, so scripts can rely on it; missing
 * messages are null. Maps are objects. Only the set member of a oneof is written, and an `optional`
 * field only if it is present.
 */
#ifndef FSDPD_PRINT_JSON_H
#define FSDPD_PRINT_JSON_H

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"

/* `indent` is the column where the message starts; -1 writes everything on one line. No newline at
 * the end. NULL is null. */
void json_add_message(struct buf *out, const ProtobufCMessage *message, int indent);

/* An array of messages, the same way. `messages`: the field, an array of pointers to them. */
void json_add_messages(struct buf *out, const void *messages, size_t count, int indent);

/* The same as a whole document: from column 0, with a newline at the end. */
void json_add_document(struct buf *out, const ProtobufCMessage *message);
void json_add_list(struct buf *out, const void *messages, size_t count);

/* A quoted string; invalid UTF-8 becomes U+FFFD. */
void json_add_string(struct buf *out, const char *text);

void json_add_number(struct buf *out, double value);

#endif
