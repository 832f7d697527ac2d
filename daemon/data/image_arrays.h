/*
 * Images and targets in .npy files: of a dataset directory of kind images, or two files alone.
 * Images are (N, C, H, W), (N, H, W, C) or (N, H, W), or rows of a table (N, columns), of uint8 or
 * float32; targets are integers, or float32 for a model with numbers.
 * Files may be hostile: INVALID_ARGUMENT names the file. Links must not lead out of `root` (NULL:
 * no root). The caller closes the sets, also after an error.
 */
#ifndef FSDPD_DATA_IMAGE_ARRAYS_H
#define FSDPD_DATA_IMAGE_ARRAYS_H

#include "data/image_set.h"

/* Opens <directory>/<split>.images.npy and <split>.targets.npy. Without a word about the layout, a
 * last dimension of at most 4 beside a second one above 4 is that of the channels. */
status_t image_arrays_open(const char *root, const char *directory, const char *split,
                           struct image_targets wanted, struct image_set *set) FSDPD_MUST_USE;

/* Opens a dataset directory (dataset_dir.h). `validation` may be NULL. */
status_t image_arrays_open_dataset(const char *root, const char *directory,
                                   struct image_targets wanted, bool check, struct image_set *train,
                                   struct image_set *validation) FSDPD_MUST_USE;

#endif
