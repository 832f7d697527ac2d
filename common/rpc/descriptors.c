/*
 * The index of a FileDescriptorSet; see descriptors.h. A small parser of protobuf's wire format
 * reads only the fields of google/protobuf/descriptor.proto that carry names. It checks every
 * length against the remaining bytes and limits nesting.
 */
#include "rpc/descriptors.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { NESTING_MAX = 64 };

struct descriptors {
    uint8_t *bytes;
    struct descriptors_file *files;
    int file_count, file_capacity;
    struct descriptors_symbol *symbols; /* sorted by name once complete */
    int symbol_count, symbol_capacity;
};

/* A run of wire format, and one field of it. */
struct wire {
    const uint8_t *at, *end;
};
struct wire_field {
    uint32_t number;
    bool delimited; /* a string or a message, in `value`; other kinds are skipped */
    struct wire value;
};

static bool read_varint(struct wire *wire, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && wire->at < wire->end; shift += 7) {
        uint8_t byte = *wire->at++;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

static bool skip(struct wire *wire, uint64_t count)
{
    if (count > (uint64_t)(wire->end - wire->at)) return false;
    wire->at += count;
    return true;
}

/* False at the end and on malformed input; *valid distinguishes the two. */
static bool next_field(struct wire *wire, struct wire_field *field, bool *valid)
{
    if (wire->at == wire->end) return false;
    uint64_t key, length;
    bool good = read_varint(wire, &key) && key >> 3 != 0 && key >> 3 < 1u << 29;
    field->number = (uint32_t)(key >> 3);
    field->delimited = (key & 7) == 2;
    if (good) switch (key & 7) {
        case 0: good = read_varint(wire, &length); break;
        case 1: good = skip(wire, 8); break;
        case 5: good = skip(wire, 4); break;
        case 2:
            good = read_varint(wire, &length);
            field->value.at = wire->at;
            good = good && skip(wire, length);
            field->value.end = wire->at;
            break;
        default: good = false;
        }
    if (!good) *valid = false;
    return good;
}

static char *text_of(const struct wire_field *field)
{
    return mem_strndup((const char *)field->value.at, (size_t)(field->value.end - field->value.at));
}

/* The string with this field number in a message, or NULL. */
static char *find_text(struct wire wire, uint32_t number, bool *valid)
{
    char *text = NULL;
    for (struct wire_field field; next_field(&wire, &field, valid);) {
        if (!field.delimited || field.number != number) continue;
        free(text);
        text = text_of(&field);
    }
    return text;
}

static char *qualify(const char *scope, const char *name)
{
    return scope[0] ? mem_printf("%s.%s", scope, name) : mem_strdup(name);
}

/* Takes ownership of `name`. */
static void add_symbol(struct descriptors *descriptors, char *name, enum descriptors_kind kind)
{
    MEM_GROW(descriptors->symbols, descriptors->symbol_count, descriptors->symbol_capacity);
    descriptors->symbols[descriptors->symbol_count++] =
        (struct descriptors_symbol){.name = name,
                                    .kind = kind,
                                    .file = descriptors->file_count - 1};
}

/* Every descriptor has its name in field 1. Returns the full name, the scope of nested descriptors,
 * or NULL. */
static char *add_named(struct descriptors *descriptors, struct wire wire, const char *scope,
                       enum descriptors_kind kind, bool *valid)
{
    AUTO_FREE char *name = find_text(wire, 1, valid);
    if (name == NULL) return NULL;
    char *full = qualify(scope, name);
    add_symbol(descriptors, mem_strdup(full), kind);
    return full;
}

/* Enums and services: named members in field 2. Enum values are in the enclosing scope, not inside
 * the enum. */
static void add_members(struct descriptors *descriptors, struct wire wire, const char *scope,
                        enum descriptors_kind kind, bool *valid)
{
    AUTO_FREE char *full = add_named(descriptors, wire, scope, kind, valid);
    if (full == NULL) return;
    for (struct wire_field field; next_field(&wire, &field, valid);)
        if (field.delimited && field.number == 2)
            free(add_named(descriptors, field.value, kind == DESCRIPTORS_ENUM ? scope : full,
                           DESCRIPTORS_MEMBER, valid));
}

static void add_message(struct descriptors *descriptors, struct wire wire, const char *scope,
                        int depth, bool *valid)
{
    if (depth > NESTING_MAX) *valid = false;
    AUTO_FREE char *full =
        *valid ? add_named(descriptors, wire, scope, DESCRIPTORS_MESSAGE, valid) : NULL;
    if (full == NULL) return;
    for (struct wire_field field; next_field(&wire, &field, valid);) {
        if (!field.delimited) continue;
        if (field.number == 2 || field.number == 6 || field.number == 8)
            free(add_named(descriptors, field.value, full, DESCRIPTORS_MEMBER, valid));
        else if (field.number == 3) add_message(descriptors, field.value, full, depth + 1, valid);
        else if (field.number == 4)
            add_members(descriptors, field.value, full, DESCRIPTORS_ENUM, valid);
    }
}

static void add_file(struct descriptors *descriptors, struct wire wire, bool *valid)
{
    MEM_GROW(descriptors->files, descriptors->file_count, descriptors->file_capacity);
    struct descriptors_file *file = &descriptors->files[descriptors->file_count++];
    *file = (struct descriptors_file){.bytes = wire.at, .size = (size_t)(wire.end - wire.at)};
    char *name = find_text(wire, 1, valid);
    file->name = name ? name : mem_strdup("");
    AUTO_FREE char *package = find_text(wire, 2, valid);
    const char *scope = package ? package : "";
    for (struct wire_field field; next_field(&wire, &field, valid);) {
        if (!field.delimited) continue;
        if (field.number == 3) {
            MEM_GROW(file->imports, file->import_count, file->import_capacity);
            file->imports[file->import_count++] = text_of(&field);
        } else if (field.number == 4) {
            add_message(descriptors, field.value, scope, 0, valid);
        } else if (field.number == 5) {
            add_members(descriptors, field.value, scope, DESCRIPTORS_ENUM, valid);
        } else if (field.number == 6) {
            add_members(descriptors, field.value, scope, DESCRIPTORS_SERVICE, valid);
        } else if (field.number == 7) {
            free(add_named(descriptors, field.value, scope, DESCRIPTORS_MEMBER, valid));
        }
    }
}

static int compare_symbols(const void *a, const void *b)
{
    return strcmp(((const struct descriptors_symbol *)a)->name,
                  ((const struct descriptors_symbol *)b)->name);
}

status_t descriptors_new(const uint8_t *bytes, size_t size, struct descriptors **descriptors_out)
{
    struct descriptors *descriptors = mem_alloc(sizeof *descriptors);
    descriptors->bytes = mem_dup(bytes, size);
    struct wire wire = {descriptors->bytes, descriptors->bytes + size};
    bool valid = true;
    for (struct wire_field field; next_field(&wire, &field, &valid);)
        if (field.delimited && field.number == 1) add_file(descriptors, field.value, &valid);
    if (!valid) {
        descriptors_free(descriptors);
        return status_new(
            STATUS_INVALID_ARGUMENT,
            "the descriptor set for reflection is not a serialised FileDescriptorSet");
    }
    if (descriptors->symbol_count > 0)
        qsort(descriptors->symbols, (size_t)descriptors->symbol_count, sizeof *descriptors->symbols,
              compare_symbols);
    *descriptors_out = descriptors;
    return NULL;
}

void descriptors_free(struct descriptors *descriptors)
{
    for (int i = 0; i < descriptors->file_count; i++) {
        struct descriptors_file *file = &descriptors->files[i];
        for (int k = 0; k < file->import_count; k++) free(file->imports[k]);
        free(file->imports);
        free(file->name);
    }
    for (int i = 0; i < descriptors->symbol_count; i++) free(descriptors->symbols[i].name);
    free(descriptors->files);
    free(descriptors->symbols);
    free(descriptors->bytes);
    free(descriptors);
}

int descriptors_file_count(const struct descriptors *descriptors)
{
    return descriptors->file_count;
}

const struct descriptors_file *descriptors_file(const struct descriptors *descriptors, int file)
{
    return &descriptors->files[file];
}

int descriptors_find_file(const struct descriptors *descriptors, const char *name)
{
    for (int i = 0; i < descriptors->file_count; i++)
        if (strcmp(descriptors->files[i].name, name) == 0) return i;
    return -1;
}

const struct descriptors_symbol *descriptors_find_symbol(const struct descriptors *descriptors,
                                                         const char *name)
{
    if (descriptors->symbol_count == 0) return NULL;
    struct descriptors_symbol key = {.name = (char *)name};
    return bsearch(&key, descriptors->symbols, (size_t)descriptors->symbol_count,
                   sizeof *descriptors->symbols, compare_symbols);
}

int descriptors_closure(const struct descriptors *descriptors, int file, int *order)
{
    int count = 0;
    order[count++] = file;
    for (int done = 0; done < count; done++) {
        const struct descriptors_file *item = &descriptors->files[order[done]];
        for (int i = 0; i < item->import_count; i++) {
            int import = descriptors_find_file(descriptors, item->imports[i]);
            bool known = import < 0;
            for (int k = 0; k < count && !known; k++) known = order[k] == import;
            if (!known) order[count++] = import;
        }
    }
    return count;
}
