/*
 * Targets in an array, as a batch has them: classes as i32, or numbers as f32. Those that do not
 * count are -1, which as f32 is a NaN.
 */
#ifndef FSDPD_DATA_TARGET_ARRAY_H
#define FSDPD_DATA_TARGET_ARRAY_H

#include "data/npy.h"
#include "model/model.h"

struct target_array {
    const struct npy *npy; /* integers, or NPY_F32 for numbers; NULL: there is none */
    int64_t classes;       /* of integers: they are below it */
    bool may_ignore;       /* of integers: negative ones do not count; otherwise they are refused */
};

/*
 * Reads elements `first` to `first` + `count` - 1; *counted is how many of them count.
 * INVALID_ARGUMENT names the file and the element for a class that the model does not have, and for
 * a number that is infinite; one that is NaN does not count.
 */
status_t target_array_read(const struct target_array *array, int64_t first, int64_t count,
                           int32_t *targets, int64_t *counted) FSDPD_MUST_USE;

/* The same without the values. */
status_t target_array_count(const struct target_array *array, int64_t first, int64_t count,
                            int64_t *counted) FSDPD_MUST_USE;

#endif
