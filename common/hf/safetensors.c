/* The safetensors format; see safetensors.h. Objects of jansson keep the order of their entries. */
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

void safetensors_write_header(struct buf *out, struct safetensors_entry *entries, int count,
                              const struct safetensors_metadata *metadata, int metadata_count)
{
    json_t *root = json_object(), *pairs = metadata_count > 0 ? json_object() : NULL;
    for (int i = 0; i < metadata_count; i++)
        json_object_set_new(pairs, metadata[i].key, json_string(metadata[i].value));
    json_object_set_new(root, "__metadata__", pairs); /* nothing for NULL */
    uint64_t end = 0;
    for (int i = 0; i < count; i++) {
        struct safetensors_entry *entry = &entries[i];
        json_t *shape = json_array();
        entry->begin = end;
        uint64_t bytes = element_size(entry->dtype);
        for (int d = 0; d < entry->dim_count; d++) {
            bytes *= (uint64_t)entry->dims[d];
            json_array_append_new(shape, json_integer(entry->dims[d]));
        }
        entry->end = end += bytes;
        json_object_set_new(root, entry->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", entry->dtype, "shape", shape,
                                      "data_offsets", (json_int_t)entry->begin, (json_int_t)end));
    }
    char *json = json_dumps(root, JSON_COMPACT);
    size_t length = round_up(strlen(json), 8);
    for (int i = 0; i < PREFIX; i++) buf_add_char(out, (char)((uint64_t)length >> 8 * i));
    buf_printf(out, "%-*s", (int)length, json);
    free(json);
    json_decref(root);
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

static status_t invalid(const char *message)
{
    return status_new(STATUS_INVALID_ARGUMENT, "%s", message);
}

/* __metadata__, if it is there. */
static status_t check_metadata(json_t *metadata)
{
    const char *key;
    json_t *text;
    bool good = metadata == NULL || json_is_object(metadata);
    json_object_foreach(metadata, key, text) good = good && json_is_string(text);
    return good ? NULL : invalid("\"__metadata__\": expected an object, with strings only");
}

/* The shape, and *elements. */
static status_t read_shape(const json_t *shape, struct safetensors_entry *entry, uint64_t *elements)
{
    const json_t *dim;
    size_t index;
    bool empty = false;
    *elements = 1;
    if (!json_is_array(shape)) return invalid("expected \"shape\" to be an array");
    if (json_array_size(shape) > TENSOR_MAX_DIMS)
        return status_new(STATUS_INVALID_ARGUMENT, "%zu dimensions, at most %d are possible",
                          json_array_size(shape), TENSOR_MAX_DIMS);
    json_array_foreach(shape, index, dim)
    {
        int64_t size = json_integer_value(dim);
        if (!json_is_integer(dim) || size < 0)
            return invalid("expected the dimensions in \"shape\" to be counts");
        entry->dims[entry->dim_count++] = size;
        if (size == 0) empty = true;
        else if (*elements > (uint64_t)(TENSOR_MAX_ELEMENTS / size))
            return invalid("the tensor is larger than any that is possible");
        else *elements *= (uint64_t)size;
    }
    if (empty) *elements = 0;
    return NULL;
}

static status_t read_entry(json_t *value, uint64_t data_bytes, struct safetensors_entry *entry)
{
    const char *dtype;
    json_t *shape;
    json_int_t begin, end;
    json_error_t error;
    uint64_t elements;
    if (json_unpack_ex(value, &error, JSON_STRICT, "{s:s, s:o, s:[I, I]}", "dtype", &dtype, "shape",
                       &shape, "data_offsets", &begin, &end) != 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected dtype, shape and data_offsets, [begin, end]: %s", error.text);
    if (element_size(dtype) == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "unknown dtype '%.60s'", dtype);
    TRY(read_shape(shape, entry, &elements));
    if (begin < 0 || end < begin) return invalid("expected \"data_offsets\" to be [begin, end]");
    if ((uint64_t)end > data_bytes)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "ends at byte %lld of the data, but the file has only %" PRIu64
                          " bytes of it",
                          (long long)end, data_bytes);
    if ((uint64_t)(end - begin) != elements * element_size(dtype))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "its shape takes %" PRIu64 " bytes, its data_offsets give %lld",
                          elements * element_size(dtype), (long long)(end - begin));
    entry->begin = (uint64_t)begin;
    entry->end = (uint64_t)end;
    entry->dtype = mem_strdup(dtype);
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
                              "\"%s\": begins at byte %" PRIu64
                              " of the data, %s: expected %" PRIu64,
                              entry->name, entry->begin,
                              entry->begin < end ? "inside another tensor" : "after a gap", end);
        end = entry->end;
    }
    if (end != data_bytes)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "the tensors end at byte %" PRIu64 " of the data, the file at %" PRIu64,
                          end, data_bytes);
    return NULL;
}

static status_t read_entries(json_t *root, uint64_t data_bytes, struct safetensors_header *header)
{
    header->entries = mem_alloc_array(json_object_size(root) + 1, sizeof *header->entries);
    const char *name;
    json_t *value;
    TRY(check_metadata(json_object_get(root, "__metadata__")));
    json_object_del(root, "__metadata__");
    json_object_foreach(root, name, value)
    {
        struct safetensors_entry *entry = &header->entries[header->count++];
        entry->name = mem_strdup(name);
        TRY(status_wrap(read_entry(value, data_bytes, entry), "\"%s\"", name));
    }
    qsort(header->entries, (size_t)header->count, sizeof *header->entries, compare_entries);
    return check_tiling(header, data_bytes);
}

status_t safetensors_read_header(const void *bytes, size_t size, uint64_t file_size,
                                 struct safetensors_header *header, uint64_t *needed)
{
    if (file_size < PREFIX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "safetensors: a file of %" PRIu64 " bytes is too short for a header",
                          file_size);
    uint64_t length = 0; /* of the header, once its bytes are there */
    for (int i = PREFIX - 1; i >= 0 && size >= PREFIX; i--)
        length = length << 8 | ((const unsigned char *)bytes)[i];
    if (length > HEADER_MAX || length > file_size - PREFIX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "safetensors: a header of %" PRIu64 " bytes in a file of %" PRIu64
                          " (at most %d are possible)",
                          length, file_size, HEADER_MAX);
    if (size < PREFIX + length) {
        *needed = PREFIX + length;
        return status_new(STATUS_OUT_OF_RANGE,
                          "safetensors: the header takes %" PRIu64 " bytes, %zu were given",
                          *needed, size);
    }
    const char *text = (const char *)bytes + PREFIX;
    if (length == 0 || text[0] != '{')
        return status_new(STATUS_INVALID_ARGUMENT, "safetensors: the header is not a JSON object");
    json_error_t error;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "safetensors: the header is not JSON: %s",
                          error.text);
    struct safetensors_header read = {.data_offset = PREFIX + length};
    status_t status =
        status_wrap(read_entries(root, file_size - PREFIX - length, &read), "safetensors");
    json_decref(root);
    if (status == NULL) *header = read;
    else safetensors_header_deinit(&read);
    return status;
}
