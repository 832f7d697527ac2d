/* The safetensors format; see safetensors.h. JSON is written by hand, because we choose the order
 * of the entries, and read with jansson. */
#include "hf/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"

enum { PREFIX = 8, HEADER_MAX = 100000000 };

static const struct {
    const char *name;
    unsigned size;
} dtypes[] = {
    {"BOOL", 1}, {"U8", 1},   {"I8", 1},      {"I16", 2},     {"U16", 2},
    {"F16", 2},  {"BF16", 2}, {"I32", 4},     {"U32", 4},     {"F32", 4},
    {"F64", 8},  {"I64", 8},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U64", 8},
};

/* 0 for an unknown dtype. */
static unsigned element_size(const char *dtype)
{
    for (size_t i = 0; i < COUNT_OF(dtypes); i++)
        if (strcmp(dtypes[i].name, dtype) == 0) return dtypes[i].size;
    return 0;
}

static void write_string(struct buf *out, const char *text)
{
    buf_add_char(out, '"');
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') buf_printf(out, "\\%c", c);
        else if (c < 0x20) buf_printf(out, "\\u%04x", c);
        else buf_add_char(out, *text);
    }
    buf_add_char(out, '"');
}

static void write_entry(struct buf *out, const struct safetensors_entry *entry)
{
    write_string(out, entry->name);
    buf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", entry->dtype);
    for (int i = 0; i < entry->dim_count; i++)
        buf_printf(out, "%s%" PRId64, i ? "," : "", entry->dims[i]);
    buf_printf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", entry->begin, entry->end);
}

void safetensors_write_header(struct buf *out, struct safetensors_entry *entries, int count,
                              const struct safetensors_metadata *metadata, int metadata_count)
{
    struct buf json = {0};
    buf_add_char(&json, '{');
    if (metadata_count > 0) {
        buf_add_text(&json, "\"__metadata__\":{");
        for (int i = 0; i < metadata_count; i++) {
            if (i > 0) buf_add_char(&json, ',');
            write_string(&json, metadata[i].key);
            buf_add_char(&json, ':');
            write_string(&json, metadata[i].value);
        }
        buf_add_char(&json, '}');
    }
    uint64_t end = 0;
    for (int i = 0; i < count; i++) {
        uint64_t bytes = element_size(entries[i].dtype);
        for (int d = 0; d < entries[i].dim_count; d++) bytes *= (uint64_t)entries[i].dims[d];
        entries[i].begin = end;
        entries[i].end = end += bytes;
        if (json.length > 1) buf_add_char(&json, ',');
        write_entry(&json, &entries[i]);
    }
    buf_add_char(&json, '}');
    while (json.length % 8 != 0) buf_add_char(&json, ' ');

    unsigned char size[PREFIX];
    for (int i = 0; i < PREFIX; i++) size[i] = (unsigned char)((uint64_t)json.length >> 8 * i);
    buf_add(out, size, sizeof size);
    buf_add(out, json.data, json.length);
    buf_deinit(&json);
}

void safetensors_header_deinit(struct safetensors_header *header)
{
    for (int i = 0; i < header->count; i++) {
        free(header->entries[i].name);
        free(header->entries[i].dtype);
    }
    free(header->entries);
    *header = (struct safetensors_header){0};
}

static status_t refuse(const char *name, const char *why)
{
    return status_new(STATUS_INVALID_ARGUMENT, "safetensors: \"%s\": %s", name, why);
}

static status_t read_metadata(json_t *value)
{
    if (!json_is_object(value)) return refuse("__metadata__", "expected an object");
    const char *key;
    json_t *text;
    json_object_foreach(value, key,
                        text) if (!json_is_string(text)) return refuse("__metadata__",
                                                                       "expected strings only");
    return NULL;
}

/* The shape, and *elements. */
static status_t read_shape(const char *name, json_t *shape, struct safetensors_entry *entry,
                           uint64_t *elements)
{
    if (!json_is_array(shape)) return refuse(name, "expected \"shape\" to be an array");
    if (json_array_size(shape) > TENSOR_MAX_DIMS)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "safetensors: \"%s\": %zu dimensions, at most %d are possible", name,
                          json_array_size(shape), TENSOR_MAX_DIMS);
    entry->dim_count = (int)json_array_size(shape);
    uint64_t total = 1;
    bool empty = false;
    for (int i = 0; i < entry->dim_count; i++) {
        json_t *dim = json_array_get(shape, (size_t)i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return refuse(name, "expected the dimensions in \"shape\" to be counts");
        entry->dims[i] = json_integer_value(dim);
        if (entry->dims[i] == 0) {
            empty = true;
            continue;
        }
        if (total > (uint64_t)TENSOR_MAX_ELEMENTS / (uint64_t)entry->dims[i])
            return refuse(name, "the tensor is larger than any that is possible");
        total *= (uint64_t)entry->dims[i];
    }
    *elements = empty ? 0 : total;
    return NULL;
}

static status_t read_offsets(const char *name, json_t *offsets, uint64_t data_bytes,
                             struct safetensors_entry *entry)
{
    json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return refuse(name, "expected \"data_offsets\" to be [begin, end]");
    entry->begin = (uint64_t)json_integer_value(begin);
    entry->end = (uint64_t)json_integer_value(end);
    if (entry->end > data_bytes)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "safetensors: \"%s\" ends at byte %" PRIu64
                          " of the data, but the file has only %" PRIu64 " bytes of it",
                          name, entry->end, data_bytes);
    return NULL;
}

static status_t read_entry(const char *name, json_t *value, uint64_t data_bytes,
                           struct safetensors_entry *entry)
{
    json_t *dtype = json_object_get(value, "dtype");
    json_t *shape = json_object_get(value, "shape");
    json_t *offsets = json_object_get(value, "data_offsets");
    if (dtype == NULL || shape == NULL || offsets == NULL || json_object_size(value) != 3)
        return refuse(name, "expected dtype, shape and data_offsets");
    if (!json_is_string(dtype) || element_size(json_string_value(dtype)) == 0)
        return refuse(name, "unknown dtype");
    uint64_t elements = 0;
    TRY(read_shape(name, shape, entry, &elements));
    TRY(read_offsets(name, offsets, data_bytes, entry));
    uint64_t bytes = elements * element_size(json_string_value(dtype));
    if (entry->end - entry->begin != bytes)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "safetensors: \"%s\": its shape takes %" PRIu64
                          " bytes, its data_offsets give %" PRIu64,
                          name, bytes, entry->end - entry->begin);
    entry->name = mem_strdup(name);
    entry->dtype = mem_strdup(json_string_value(dtype));
    return NULL;
}

static int compare_entries(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static status_t check_tiling(const struct safetensors_header *header, uint64_t data_bytes)
{
    uint64_t end = 0;
    for (int i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        if (entry->begin != end)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "safetensors: \"%s\" begins at byte %" PRIu64
                              " of the data, %s: expected %" PRIu64,
                              entry->name, entry->begin,
                              entry->begin < end ? "inside another tensor" : "after a gap", end);
        end = entry->end;
    }
    if (end != data_bytes)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "safetensors: the tensors end at byte %" PRIu64
                          " of the data, the file at %" PRIu64,
                          end, data_bytes);
    return NULL;
}

static status_t read_entries(json_t *root, uint64_t data_bytes, struct safetensors_header *header)
{
    header->entries = mem_alloc_array(json_object_size(root) + 1, sizeof *header->entries);
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value)
    {
        if (strcmp(name, "__metadata__") == 0) {
            TRY(read_metadata(value));
            continue;
        }
        TRY(read_entry(name, value, data_bytes, &header->entries[header->count]));
        header->count++;
    }
    qsort(header->entries, (size_t)header->count, sizeof *header->entries, compare_entries);
    return check_tiling(header, data_bytes);
}

static uint64_t little_endian(const unsigned char *bytes)
{
    uint64_t value = 0;
    for (int i = PREFIX - 1; i >= 0; i--) value = value << 8 | bytes[i];
    return value;
}

static status_t need(size_t size, uint64_t wanted, uint64_t *needed)
{
    if (size >= wanted) return NULL;
    *needed = wanted;
    return status_new(STATUS_OUT_OF_RANGE,
                      "safetensors: the header takes %" PRIu64 " bytes, %zu were given", wanted,
                      size);
}

status_t safetensors_read_header(const void *bytes, size_t size, uint64_t file_size,
                                 struct safetensors_header *header, uint64_t *needed)
{
    if (file_size < PREFIX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "safetensors: a file of %" PRIu64 " bytes is too short for a header",
                          file_size);
    TRY(need(size, PREFIX, needed));
    uint64_t length = little_endian(bytes);
    if (length > HEADER_MAX || length > file_size - PREFIX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "safetensors: a header of %" PRIu64 " bytes in a file of %" PRIu64
                          " (at most %d are possible)",
                          length, file_size, HEADER_MAX);
    TRY(need(size, PREFIX + length, needed));
    const char *text = (const char *)bytes + PREFIX;
    if (length == 0 || text[0] != '{')
        return status_new(STATUS_INVALID_ARGUMENT, "safetensors: the header is not a JSON object");
    json_error_t error;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "safetensors: the header is not JSON: %s",
                          error.text);
    struct safetensors_header read = {.data_offset = PREFIX + length};
    status_t status = read_entries(root, file_size - PREFIX - length, &read);
    json_decref(root);
    if (status != NULL) {
        safetensors_header_deinit(&read);
        return status;
    }
    *header = read;
    return NULL;
}
