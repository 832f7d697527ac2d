/* For tests: the files of dataset directories, written one by one so that they may be
 * inconsistent. */
#ifndef FSDPD_TESTS_DATASET_FILES_H
#define FSDPD_TESTS_DATASET_FILES_H

#include "base/buf.h"
#include "digest/digest.h"

struct dataset_sum {
    char digits[DIGEST_DIGITS + 1];
};

void dataset_write_bytes(const char *directory, const char *name, const struct buf *bytes);
void dataset_write_text(const char *directory, const char *name, const char *text);

/* An .npy of format 1.0 with this dictionary. */
void dataset_make_npy(const char *dictionary, const void *data, size_t size, struct buf *out);

/* Writes one of `count` elements of `width` bytes, and returns its checksum. */
struct dataset_sum dataset_write_npy(const char *directory, const char *name, const char *descr,
                                     const void *data, size_t count, size_t width);

/* Appends the array's entry in dataset.json to `json`. */
void dataset_add_array(struct buf *json, const char *name, const char *file, const char *type,
                       size_t count, const struct dataset_sum *sum);

#endif
