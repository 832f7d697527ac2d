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

enum { IMAGE_SET_FILES_MAX = 8 };

/* Consecutive samples; places and distances in bytes. */
struct image_part {
    int64_t count;
    int images, targets; /* of the set's files; may be the same */
    int64_t image_at, image_stride, target_at, target_stride;
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
    /* Gzipped files: their decompressed sizes (0: not gzipped), and from image_set_prepare on their
     * copies. */
    uint64_t unpacked_bytes[IMAGE_SET_FILES_MAX];
    struct unpacked unpacked[IMAGE_SET_FILES_MAX];
};

/* What a model's targets are: classes, or that many numbers. */
struct image_targets {
    int64_t classes, numbers; /* numbers: 0 for classes */
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

/* The file that holds a sample's image, and the sample's number in it, for messages. */
const char *image_set_place(const struct image_set *set, int64_t sample, int64_t *number);

#endif
