/* Targets in an array; see row_parts.h. */
#include "data/row_parts.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { PIECE = 1024 };

static status_t read_classes(const struct target_array *array, int64_t first, int64_t count,
                             int32_t *targets, int64_t *counted)
{
    unsigned char bytes[PIECE * 8];
    const struct npy *npy = array->npy;
    TRY(npy_read(npy, first, count, bytes));
    for (int64_t i = 0; i < count; i++) {
        int64_t value = npy_integer(npy->type, bytes + i * npy_type_width(npy->type));
        bool ignored = value < 0 && array->may_ignore && npy->type != NPY_U64;
        if (!ignored && (value < 0 || value >= array->classes))
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: label %" PRId64 " is %" PRId64
                              ", but the model's classes are 0 to %" PRId64,
                              npy->file.path, first + i, value, array->classes - 1);
        targets[i] = ignored ? -1 : (int32_t)value;
        *counted += !ignored;
    }
    return NULL;
}

static status_t read_numbers(const struct target_array *array, int64_t first, int64_t count,
                             int32_t *targets, int64_t *counted)
{
    TRY(npy_read(array->npy, first, count, targets));
    for (int64_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, &targets[i], sizeof value);
        if (isinf(value))
            return status_new(STATUS_INVALID_ARGUMENT, "%s: target %" PRId64 " is %f",
                              array->npy->file.path, first + i, (double)value);
        if (isnan(value)) targets[i] = -1;
        else (*counted)++;
    }
    return NULL;
}

status_t target_array_read(const struct target_array *array, int64_t first, int64_t count,
                           int32_t *targets, int64_t *counted)
{
    *counted = 0;
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t now = count - done < PIECE ? count - done : PIECE;
        if (array->npy->type == NPY_F32)
            TRY(read_numbers(array, first + done, now, targets + done, counted));
        else TRY(read_classes(array, first + done, now, targets + done, counted));
    }
    return NULL;
}

status_t target_array_count(const struct target_array *array, int64_t first, int64_t count,
                            int64_t *counted)
{
    int32_t piece[PIECE];
    *counted = 0;
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t now = count - done < PIECE ? count - done : PIECE, more = 0;
        TRY(target_array_read(array, first + done, now, piece, &more));
        *counted += more;
    }
    return NULL;
}
