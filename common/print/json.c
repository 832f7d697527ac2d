/* Messages as JSON; see json.h. Pure functions. */
#include "print/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "proto/message.h"
#include "spec/spec.h"

static void new_line(struct buf *out, int indent)
{
    if (indent < 0) return;
    buf_printf(out, "\n%*s", indent, "");
}

static int deeper(int indent)
{
    return indent < 0 ? indent : indent + 2;
}

/* Of most texts, each character. */
static bool is_plain(char c)
{
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
}

void json_add_string(struct buf *out, const char *text)
{
    buf_add_char(out, '"');
    while (*text != '\0') {
        size_t plain = 0;
        while (is_plain(text[plain])) plain++;
        buf_add(out, text, plain);
        text += plain;
        if (*text == '\0') break;
        uint32_t character = 0;
        int length = utf8_decode(text, &character);
        if (length == 0) buf_add_text(out, "\\ufffd");
        else if (*text == '"' || *text == '\\') buf_printf(out, "\\%c", *text);
        else if (*text == '\n') buf_add_text(out, "\\n");
        else if (*text == '\t') buf_add_text(out, "\\t");
        else if (utf8_is_control(character)) buf_printf(out, "\\u%04x", character);
        else buf_add(out, text, (size_t)length);
        text += length ? length : 1;
    }
    buf_add_char(out, '"');
}

void json_add_number(struct buf *out, double value)
{
    char text[32];
    if (!isfinite(value)) {
        buf_add_text(out, "null");
        return;
    }
    if (value > 0 && value < 1e15 && value == floor(value)) { /* as below, but cheap */
        buf_printf(out, "%.0f", value);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    buf_add_text(out, text);
}

static void add_bytes(struct buf *out, const ProtobufCBinaryData *bytes)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    buf_add_char(out, '"');
    for (size_t i = 0; i < bytes->len; i += 3) {
        size_t left = bytes->len - i;
        uint32_t group = (uint32_t)bytes->data[i] << 16 |
                         (left > 1 ? (uint32_t)bytes->data[i + 1] << 8 : 0) |
                         (left > 2 ? (uint32_t)bytes->data[i + 2] : 0);
        buf_add_char(out, letters[group >> 18]);
        buf_add_char(out, letters[group >> 12 & 63]);
        buf_add_char(out, left > 1 ? letters[group >> 6 & 63] : '=');
        buf_add_char(out, left > 2 ? letters[group & 63] : '=');
    }
    buf_add_char(out, '"');
}

static void add_enum(struct buf *out, const ProtobufCEnumDescriptor *descriptor, int number)
{
    const char *word = spec_word(descriptor, number);
    if (word != NULL) json_add_string(out, word);
    else if (number == 0) buf_add_text(out, "null");
    else buf_printf(out, "%d", number); /* of a newer API */
}

static void add_value(struct buf *out, const ProtobufCFieldDescriptor *field, const void *member,
                      int indent)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32: buf_printf(out, "%" PRId32, *(const int32_t *)member); break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64: buf_printf(out, "%" PRId64, *(const int64_t *)member); break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32: buf_printf(out, "%" PRIu32, *(const uint32_t *)member); break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64: buf_printf(out, "%" PRIu64, *(const uint64_t *)member); break;
    case PROTOBUF_C_TYPE_FLOAT: json_add_number(out, (double)*(const float *)member); break;
    case PROTOBUF_C_TYPE_DOUBLE: json_add_number(out, *(const double *)member); break;
    case PROTOBUF_C_TYPE_BOOL:
        buf_add_text(out, *(const protobuf_c_boolean *)member ? "true" : "false");
        break;
    case PROTOBUF_C_TYPE_ENUM: add_enum(out, field->descriptor, *(const int *)member); break;
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = *(char *const *)member;
        json_add_string(out, text ? text : "");
        break;
    }
    case PROTOBUF_C_TYPE_BYTES: add_bytes(out, member); break;
    case PROTOBUF_C_TYPE_MESSAGE:
        json_add_message(out, *(ProtobufCMessage *const *)member, indent);
        break;
    }
}

static size_t element_size(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE: return 8;
    case PROTOBUF_C_TYPE_BOOL: return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE: return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES: return sizeof(ProtobufCBinaryData);
    default: return 4;
    }
}

/* protobuf-c has no maps: they are lists of a generated message "<Field>Entry" with key and
 * value. */
static bool is_map(const ProtobufCFieldDescriptor *field)
{
    if (field->type != PROTOBUF_C_TYPE_MESSAGE) return false;
    const ProtobufCMessageDescriptor *entry = field->descriptor;
    size_t length = strlen(entry->short_name);
    return length > 5 && strcmp(entry->short_name + length - 5, "Entry") == 0 &&
           entry->n_fields == 2 && strcmp(entry->fields[0].name, "key") == 0 &&
           entry->fields[0].type == PROTOBUF_C_TYPE_STRING &&
           strcmp(entry->fields[1].name, "value") == 0;
}

static void add_map(struct buf *out, ProtobufCMessage *const *items, size_t count, int indent)
{
    buf_add_char(out, '{');
    for (size_t i = 0; i < count; i++) {
        const ProtobufCFieldDescriptor *fields = items[i]->descriptor->fields;
        if (i > 0) buf_add_char(out, ',');
        new_line(out, deeper(indent));
        add_value(out, &fields[0], (const char *)items[i] + fields[0].offset, deeper(indent));
        buf_add_text(out, indent < 0 ? ":" : ": ");
        add_value(out, &fields[1], (const char *)items[i] + fields[1].offset, deeper(indent));
    }
    if (count > 0) new_line(out, indent);
    buf_add_char(out, '}');
}

static void add_repeated(struct buf *out, const ProtobufCFieldDescriptor *field,
                         const ProtobufCMessage *message, int indent)
{
    size_t count =
        *(const size_t *)(const void *)((const char *)message + field->quantifier_offset);
    const char *items = *(char *const *)(const void *)((const char *)message + field->offset);
    if (is_map(field)) {
        add_map(out, (ProtobufCMessage *const *)(const void *)items, count, indent);
        return;
    }
    buf_add_char(out, '[');
    for (size_t i = 0; i < count; i++) {
        if (i > 0) buf_add_char(out, ',');
        new_line(out, deeper(indent));
        add_value(out, field, items + i * element_size(field->type), deeper(indent));
    }
    if (count > 0) new_line(out, indent);
    buf_add_char(out, ']');
}

static bool is_left_out(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    if (!(field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)) return false;
    const char *set = (const char *)message + field->quantifier_offset;
    return *(const uint32_t *)(const void *)set != field->id;
}

/* In the format of RFC 3339, as protobuf's JSON has it. */
static void add_time(struct buf *out, const Google__Protobuf__Timestamp *time)
{
    char text[32];
    json_add_string(out, clock_format_wall(message_time_ms(time), text));
}

void json_add_message(struct buf *out, const ProtobufCMessage *message, int indent)
{
    if (message == NULL) {
        buf_add_text(out, "null");
        return;
    }
    if (message->descriptor == &google__protobuf__timestamp__descriptor) {
        add_time(out, (const Google__Protobuf__Timestamp *)(const void *)message);
        return;
    }
    bool first = true;
    buf_add_char(out, '{');
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (is_left_out(message, field)) continue;
        if (!first) buf_add_char(out, ',');
        first = false;
        new_line(out, deeper(indent));
        json_add_string(out, field->name);
        buf_add_text(out, indent < 0 ? ":" : ": ");
        if (field->label == PROTOBUF_C_LABEL_REPEATED)
            add_repeated(out, field, message, deeper(indent));
        else add_value(out, field, (const char *)message + field->offset, deeper(indent));
    }
    if (!first) new_line(out, indent);
    buf_add_char(out, '}');
}

void json_add_messages(struct buf *out, const void *messages, size_t count, int indent)
{
    const ProtobufCMessage *const *items = messages;
    buf_add_char(out, '[');
    for (size_t i = 0; i < count; i++) {
        if (i > 0) buf_add_char(out, ',');
        new_line(out, deeper(indent));
        json_add_message(out, items[i], deeper(indent));
    }
    if (count > 0) new_line(out, indent);
    buf_add_char(out, ']');
}

void json_add_document(struct buf *out, const ProtobufCMessage *message)
{
    json_add_message(out, message, 0);
    buf_add_char(out, '\n');
}

void json_add_list(struct buf *out, const void *messages, size_t count)
{
    json_add_messages(out, messages, count, 0);
    buf_add_char(out, '\n');
}
