/*
 * Messages of earlier versions of fsdpd, rewritten as this version writes them: record_upgrade()
 * and record_move(), SQL functions for the steps of the schema.
 *
 * Until schema 6, a spec named every value, and proto3 left out those that are 0: now 0 has to be
 * given, as what is absent has a default. Until schema 7, the choices of a job were texts; their
 * enums have other tags, so the texts are unknown fields now. Until schema 8, times were
 * milliseconds.
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "coordinator/store/store_internal.h"
#include "spec/spec.h"

/* The text of a field that is unknown now; the caller frees it. */
static char *unknown_text(const ProtobufCMessageUnknownField *old)
{
    size_t skip = 0; /* of the text's length, a varint */
    while (skip < old->len && old->data[skip] >= 0x80) skip++;
    if (skip >= old->len) return mem_strdup("");
    return mem_strndup((const char *)old->data + skip + 1, old->len - skip - 1);
}

/* A list of texts becomes a message with that list, which may be empty. */
static void move_types(ProtobufCMessage *wrap, uint32_t tag, Fsdpd__V1__ModuleTypes **types)
{
    for (unsigned i = 0; i < wrap->n_unknown_fields; i++) {
        const ProtobufCMessageUnknownField *old = &wrap->unknown_fields[i];
        if (old->tag != tag || old->wire_type != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) continue;
        if (*types == NULL) {
            *types = mem_alloc(sizeof **types);
            fsdpd__v1__module_types__init(*types);
        }
        Fsdpd__V1__ModuleTypes *list = *types;
        list->types = mem_resize_array(list->types, list->n_types + 1, sizeof *list->types);
        list->types[list->n_types++] = unknown_text(old);
    }
}

static void drop_unknown(ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->n_unknown_fields; i++) free(message->unknown_fields[i].data);
    free(message->unknown_fields);
    message->unknown_fields = NULL;
    message->n_unknown_fields = 0;
}

/* Texts that became enums or switches: the message, the text's tag, the field now. */
static const struct {
    const ProtobufCMessageDescriptor *message;
    uint32_t tag;
    const char *field;
} words[] = {
    {&fsdpd__v1__data_spec__descriptor, 1, "format"},
    {&fsdpd__v1__data_spec__descriptor, 24, "encoding"},
    {&fsdpd__v1__data_spec__descriptor, 25, "tokenizer"},
    {&fsdpd__v1__data_spec__descriptor, 26, "objective"},
    {&fsdpd__v1__data_spec__descriptor, 30, "windows"},
    {&fsdpd__v1__train_spec__descriptor, 23, "clip_grad_norm_type"},
    {&fsdpd__v1__train_spec__descriptor, 24, "non_finite"},
    {&fsdpd__v1__optimizer_spec__descriptor, 1, "type"},
    {&fsdpd__v1__schedule_spec__descriptor, 1, "type"},
    {&fsdpd__v1__fsdp_spec__descriptor, 1, "strategy"},
    {&fsdpd__v1__fsdp_spec__descriptor, 3, "backward_prefetch"},
    {&fsdpd__v1__fsdp_spec__descriptor, 24, "transport"},
    {&fsdpd__v1__precision_spec__descriptor, 1, "param_dtype"},
    {&fsdpd__v1__precision_spec__descriptor, 2, "reduce_dtype"},
    {&fsdpd__v1__wrap_spec__descriptor, 1, "policy"},
    {&fsdpd__v1__wrap_unit__descriptor, 2, "strategy"},
    {&fsdpd__v1__wrap_unit__descriptor, 5, "param_dtype"},
    {&fsdpd__v1__wrap_unit__descriptor, 6, "reduce_dtype"},
    {&fsdpd__v1__wrap_unit__descriptor, 7, "cpu_offload"},
    {&fsdpd__v1__plan__descriptor, 2, "strategy"},
};

static void set_word(ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
                     const char *word)
{
    char *member = (char *)message + field->offset;
    if (field->type == PROTOBUF_C_TYPE_ENUM) {
        *(int *)(void *)member = spec_word_value(field->descriptor, word);
        return;
    }
    *(protobuf_c_boolean *)(void *)member = strcmp(word, "true") == 0;
    *(uint32_t *)(void *)((char *)message + field->quantifier_offset) = field->id;
}

static void move_word(ProtobufCMessage *message, const ProtobufCMessageUnknownField *old)
{
    if (old->wire_type != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) return;
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (words[i].message != message->descriptor || words[i].tag != old->tag) continue;
        AUTO_FREE char *word = unknown_text(old);
        set_word(message,
                 protobuf_c_message_descriptor_get_field_by_name(message->descriptor,
                                                                 words[i].field),
                 word);
    }
}

/* A time in milliseconds. */
static void move_time(const ProtobufCMessageUnknownField *old, uint32_t tag,
                      Google__Protobuf__Timestamp **time)
{
    if (old->tag != tag || old->wire_type != PROTOBUF_C_WIRE_TYPE_VARINT) return;
    uint64_t ms = 0;
    for (size_t i = 0; i < old->len && i < 10; i++)
        ms |= (uint64_t)(old->data[i] & 0x7f) << (7 * i);
    message_set_time(time, (int64_t)ms);
}

static void move_field(ProtobufCMessage *message, const ProtobufCMessageUnknownField *old)
{
    move_word(message, old);
    if (message->descriptor == &fsdpd__v1__job_event__descriptor)
        move_time(old, 2, &((Fsdpd__V1__JobEvent *)(void *)message)->time);
    else if (message->descriptor == &fsdpd__v1__checkpoint__descriptor)
        move_time(old, 5, &((Fsdpd__V1__Checkpoint *)(void *)message)->time);
    else if (message->descriptor == &fsdpd__v1__diagnosis__descriptor)
        move_time(old, 4, &((Fsdpd__V1__Diagnosis *)(void *)message)->time);
}

static void move_fields(ProtobufCMessage *message);

static void move_fields_of_field(ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    char *member = (char *)message + field->offset;
    const void *quantifier = (char *)message + field->quantifier_offset;
    bool one_of = field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF;
    if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        ProtobufCMessage **items = *(ProtobufCMessage ***)(void *)member;
        for (size_t i = 0; i < *(const size_t *)quantifier; i++) move_fields(items[i]);
    } else if (!one_of || *(const uint32_t *)quantifier == field->id) {
        ProtobufCMessage *part = *(ProtobufCMessage **)(void *)member;
        if (part != NULL) move_fields(part);
    }
}

/* In a message and all of its parts. */
static void move_fields(ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->n_unknown_fields; i++)
        move_field(message, &message->unknown_fields[i]);
    if (message->descriptor == &fsdpd__v1__wrap_spec__descriptor) {
        Fsdpd__V1__WrapSpec *wrap = (Fsdpd__V1__WrapSpec *)(void *)message;
        move_types(message, 12, &wrap->force_leaf);
        move_types(message, 13, &wrap->exclude);
    }
    drop_unknown(message);
    for (unsigned i = 0; i < message->descriptor->n_fields; i++)
        if (message->descriptor->fields[i].type == PROTOBUF_C_TYPE_MESSAGE)
            move_fields_of_field(message, &message->descriptor->fields[i]);
}

/* The record as this version writes it; what is no message stays as it is. */
static void upgrade(sqlite3_context *context, sqlite3_value *record,
                    const ProtobufCMessageDescriptor *type, bool give)
{
    const void *bytes = sqlite3_value_blob(record);
    size_t size = (size_t)sqlite3_value_bytes(record);
    ProtobufCMessage *message =
        bytes == NULL ? NULL : protobuf_c_message_unpack(type, NULL, size, bytes);
    if (message == NULL) {
        sqlite3_result_value(context, record);
        return;
    }
    move_fields(message);
    if (give) spec_mark_given((job_spec *)(void *)message);
    uint8_t *packed = message_pack(message, &size);
    sqlite3_result_blob64(context, packed, size, free);
    message_free(message);
}

/* record_upgrade(SPEC) */
static void record_upgrade(sqlite3_context *context, int count, sqlite3_value **values)
{
    (void)count;
    upgrade(context, values[0], &fsdpd__v1__job_spec__descriptor, true);
}

/* record_move(TYPE, RECORD) */
static void record_move(sqlite3_context *context, int count, sqlite3_value **values)
{
    static const struct {
        const char *name;
        const ProtobufCMessageDescriptor *type;
    } types[] = {{"spec", &fsdpd__v1__job_spec__descriptor},
                 {"plan", &fsdpd__v1__plan__descriptor},
                 {"event", &fsdpd__v1__job_event__descriptor},
                 {"checkpoint", &fsdpd__v1__checkpoint__descriptor}};
    const char *name = (const char *)sqlite3_value_text(values[0]);
    (void)count;
    for (size_t i = 0; i < COUNT_OF(types); i++)
        if (strcmp(name, types[i].name) == 0) upgrade(context, values[1], types[i].type, false);
}

status_t store_add_upgrade(sqlite3 *database, const char *path)
{
    int flags = SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS;
    int code = sqlite3_create_function_v2(database, "record_upgrade", 1, flags, NULL,
                                          record_upgrade, NULL, NULL, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_create_function_v2(database, "record_move", 2, flags, NULL, record_move,
                                          NULL, NULL, NULL);
    return code == SQLITE_OK ? NULL : store_sqlite_error(database, path, "open");
}
