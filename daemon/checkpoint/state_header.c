/* The header of a state_dict's file; see state_header.h. */
#include "checkpoint/state_header.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void state_header_count(struct safetensors_entry *entry)
{
    static char dtype[] = "I64";
    entry->dtype = dtype;
    entry->dim_count = 0;
}

void state_header_write(struct buf *out, struct safetensors_entry *entries, int count,
                        uint64_t step, const char *job)
{
    static char dtype[] = "F32";
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, step);
    const struct safetensors_metadata metadata[] = {{"format", "pt"}, {"step", text}, {"job", job}};
    for (int i = 0; i < count; i++)
        if (entries[i].dtype == NULL) entries[i].dtype = dtype;
    safetensors_write_header(out, entries, count, metadata, 3);
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
    struct safetensors_header header;
    TRY(safetensors_read_header(bytes, size, total, &header, needed));
    status_t status = check_entries(&header, parameters);
    safetensors_header_deinit(&header);
    return status;
}
