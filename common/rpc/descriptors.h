/*
 * An index of a serialised FileDescriptorSet: its files by name, the symbols they define, and their
 * imports. Keeps its own copy of the bytes. Pure; immutable once made.
 */
#ifndef FSDPD_RPC_DESCRIPTORS_H
#define FSDPD_RPC_DESCRIPTORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct descriptors;

enum descriptors_kind {
    DESCRIPTORS_MESSAGE,
    DESCRIPTORS_ENUM,
    DESCRIPTORS_SERVICE,
    DESCRIPTORS_MEMBER /* field, enum value, method, extension */
};

struct descriptors_symbol {
    char *name; /* full, without a leading dot */
    enum descriptors_kind kind;
    int file;
};

struct descriptors_file {
    char *name;
    const uint8_t *bytes; /* its FileDescriptorProto */
    size_t size;
    char **imports;
    int import_count, import_capacity;
};

/* INVALID_ARGUMENT if the bytes are not a FileDescriptorSet. An empty set is valid. */
status_t descriptors_new(const uint8_t *bytes, size_t size,
                         struct descriptors **descriptors) FSDPD_MUST_USE;
void descriptors_free(struct descriptors *descriptors);

int descriptors_file_count(const struct descriptors *descriptors);
const struct descriptors_file *descriptors_file(const struct descriptors *descriptors, int file);

/* -1 and NULL if there is none. */
int descriptors_find_file(const struct descriptors *descriptors, const char *name);
const struct descriptors_symbol *descriptors_find_symbol(const struct descriptors *descriptors,
                                                         const char *name);

/* Writes `file` and its direct and indirect imports to `order` (descriptors_file_count long);
 * returns their number. */
int descriptors_closure(const struct descriptors *descriptors, int file, int *order);

#endif
