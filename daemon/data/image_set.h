/*
 * Images with targets in files, which are read sample by sample, so nothing of them is held
 * in memory and the ranks of a host share the page cache. The function that opens a set
 * (image_formats.h) fills it in; after that it is immutable, and any thread may read it.
 */
#ifndef FSDPD_DATA_IMAGE_SET_H
#define FSDPD_DATA_IMAGE_SET_H

#include <stdbool.h>

#include "data/gzip_files.h"
#include "data/npy.h"
#include "model/model.h"

enum { IMAGE_SET_FILES_MAX = 8, IMAGE_SET_COLUMNS_MAX = 6 };

/* Consecutive samples; places and distances in bytes. */
struct image_part {
    int64_t count;
    int images, targets; /* of the set's files; may be the same. targets -1: each is 0 */
    int64_t image_at, image_stride, target_at, target_stride;
};

/* Another input of a model that has several: numbers of each sample, in one file. */
struct image_columns {
    int file;
    int64_t first_byte, count; /* count: of numbers for a sample */
    enum npy_type type;        /* NPY_U8 or NPY_F32; of ids any integers */
    int64_t vocabulary;        /* ids are below it; 0: these are none */
    int64_t start;             /* the place of the first in a row */
};

struct image_set {
    int64_t count, channels, height, width;
    bool channels_last;          /* stored (height, width, channels); else channels first */
    enum npy_type pixel, target; /* NPY_U8 or NPY_F32; any type, NPY_F32 for numbers */
    int64_t classes;             /* targets are 0 to classes - 1; of classes only */
    int64_t numbers;             /* that a sample has for targets; 0: it has a class */
    struct data_file files[IMAGE_SET_FILES_MAX];
    int file_count;
    struct image_part parts[IMAGE_SET_FILES_MAX];
    int part_count;
    /* Of a model with several inputs: what a row has beside its image, how long it is, and where
     * its image is. */
    struct image_columns columns[IMAGE_SET_COLUMNS_MAX];
    int column_count;
    int64_t row, image_start; /* row 0: it is the image */
    /* Gzipped files: their decompressed sizes (0: not gzipped), and from image_set_prepare on their
     * copies. */
    uint64_t unpacked_bytes[IMAGE_SET_FILES_MAX];
    struct unpacked unpacked[IMAGE_SET_FILES_MAX];
};

/* What a model's targets are: classes, or that many numbers. */
struct image_targets {
    int64_t classes, numbers;  /* numbers: 0 for classes */
    const struct model *named; /* whose inputs are arrays of these names; NULL: it has one input */
};

/* Makes the set readable: decompresses its gzipped files, and checks every target.
 * INVALID_ARGUMENT names the file and the sample. */
status_t image_set_prepare(struct image_set *set) FSDPD_MUST_USE;
void image_set_close(struct image_set *set); /* accepts a zeroed one */

int64_t image_set_pixels(const struct image_set *set);   /* of a sample, all channels */
size_t image_set_row_bytes(const struct image_set *set); /* of a sample's image, as stored */

/* The elements of `target` below: one class, or the bits of numbers. */
static inline int64_t image_set_targets(const struct image_set *set)
{
    return set->numbers > 0 ? set->numbers : 1;
}

/* Reads a sample as stored; a number that is NaN, which does not count, is -1 (row_parts.h).
 * FAILED_PRECONDITION if a file changed since it was opened. */
status_t image_set_read(const struct image_set *set, int64_t sample, void *image,
                        int32_t *target) FSDPD_MUST_USE;

/* Reads what a row has beside its image, into it. INVALID_ARGUMENT for ids that are not below the
 * vocabulary, and numbers that are not finite, with the file and the sample. */
status_t image_set_read_columns(const struct image_set *set, int64_t sample,
                                float *row) FSDPD_MUST_USE;

/* The file that holds a sample's image, and the sample's number in it, for messages. */
const char *image_set_place(const struct image_set *set, int64_t sample, int64_t *number);

#endif
