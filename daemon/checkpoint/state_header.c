/* The header of a state_dict's file; see state_header.h. */
#include "checkpoint/state_header.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int64_t state_entry_elements(const struct state_entry *entry)
{
    int64_t elements = 1;
    for (int d = 0; d < entry->dim_count; d++) elements *= entry->dims[d];
    return elements;
}

void state_entries_free(struct state_entry *entries, int count)
{
    for (int i = 0; i < count; i++) free(entries[i].name);
    free(entries);
}

void state_header_count(struct safetensors_entry *entry)
{
    static char dtype[] = "I64";
    entry->dtype = dtype;
    entry->dim_count = 0;
}

uint64_t state_header_write(struct buf *out, const struct state_entry *entries, int count)
{
    static char dtype[] = "F32";
    static const struct safetensors_metadata metadata[] = {{"format", "pt"}};
    AUTO_FREE struct safetensors_entry *in_file =
        mem_alloc_array((size_t)count + 1, sizeof *in_file);
    for (int i = 0; i < count; i++) {
        in_file[i] = (struct safetensors_entry){.name = entries[i].name,
                                                .dtype = dtype,
                                                .dim_count = entries[i].dim_count};
        memcpy(in_file[i].dims, entries[i].dims, sizeof in_file[i].dims);
        if (entries[i].count) state_header_count(&in_file[i]);
    }
    size_t before = out->length;
    safetensors_write_header(out, in_file, count, metadata, 1);
    return out->length - before + (count > 0 ? in_file[count - 1].end : 0);
}

static int compare_shapes(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;
    if (x->dim_count != y->dim_count) return x->dim_count < y->dim_count ? -1 : 1;
    return memcmp(x->dims, y->dims, (size_t)x->dim_count * sizeof *x->dims);
}

static uint64_t count_values(const struct safetensors_entry *entry)
{
    return (entry->end - entry->begin) / sizeof(float);
}

static status_t check_entries(struct safetensors_header *header, uint64_t parameters)
{
    uint64_t values = 0, repeated = 0; /* repeated: at most, of tied parameters */
    if (header->count > 1)             /* no order is needed any more */
        qsort(header->entries, (size_t)header->count, sizeof *header->entries, compare_shapes);
    for (int i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        if (strcmp(entry->dtype, "F32") != 0 && strcmp(entry->dtype, "I64") != 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "\"%.100s\" has the type %.20s, expected F32 or I64", entry->name,
                              entry->dtype);
        values += count_values(entry);
        if (i > 0 && compare_shapes(entry - 1, entry) == 0) repeated += count_values(entry);
    }
    if (parameters == 0 || (values >= parameters && values - parameters <= repeated)) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "its tensors have %" PRIu64 " values, the job's model has %" PRIu64, values,
                      parameters);
}

status_t state_header_check(const void *bytes, size_t size, uint64_t total, uint64_t parameters,
                            uint64_t *needed)
{
    AUTO(safetensors_header_deinit) struct safetensors_header header = {0};
    TRY(safetensors_read_header(bytes, size, total, &header, needed));
    return check_entries(&header, parameters);
}
