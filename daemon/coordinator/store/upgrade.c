/*
 * Messages of earlier versions of fsdpd, rewritten as this version writes them: record_upgrade(),
 * an SQL function for the steps of the schema.
 *
 * Until schema 6, a spec named every value, and proto3 left out those that are 0: now 0 has to be
 * given, as what is absent has a default.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/store/store_internal.h"
#include "spec/spec.h"

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
        size_t skip = 0; /* of the text's length, a varint */
        while (skip < old->len && old->data[skip] >= 0x80) skip++;
        if (skip >= old->len) continue;
        Fsdpd__V1__ModuleTypes *list = *types;
        list->types = mem_resize_array(list->types, list->n_types + 1, sizeof *list->types);
        list->types[list->n_types++] =
            mem_strndup((const char *)old->data + skip + 1, old->len - skip - 1);
    }
}

static void drop_unknown(ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->n_unknown_fields; i++) free(message->unknown_fields[i].data);
    free(message->unknown_fields);
    message->unknown_fields = NULL;
    message->n_unknown_fields = 0;
}

static void upgrade_spec(Fsdpd__V1__JobSpec *spec)
{
    if (spec->fsdp != NULL && spec->fsdp->wrap != NULL) {
        Fsdpd__V1__WrapSpec *wrap = spec->fsdp->wrap;
        move_types(&wrap->base, 12, &wrap->force_leaf);
        move_types(&wrap->base, 13, &wrap->exclude);
        drop_unknown(&wrap->base);
    }
    spec_mark_given(spec);
}

/* record_upgrade(SPEC); what is no message stays as it is. */
static void record_upgrade(sqlite3_context *context, int count, sqlite3_value **values)
{
    (void)count;
    const void *bytes = sqlite3_value_blob(values[0]);
    size_t size = (size_t)sqlite3_value_bytes(values[0]);
    job_spec *spec = bytes == NULL ? NULL : fsdpd__v1__job_spec__unpack(NULL, size, bytes);
    if (spec == NULL) {
        sqlite3_result_value(context, values[0]);
        return;
    }
    upgrade_spec(spec);
    uint8_t *packed = message_pack(spec, &size);
    sqlite3_result_blob64(context, packed, size, free);
    message_free(spec);
}

status_t store_add_upgrade(sqlite3 *database, const char *path)
{
    int flags = SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS;
    int code = sqlite3_create_function_v2(database, "record_upgrade", 1, flags, NULL,
                                          record_upgrade, NULL, NULL, NULL);
    return code == SQLITE_OK ? NULL : store_sqlite_error(database, path, "open");
}
