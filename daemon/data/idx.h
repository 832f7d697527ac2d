/*
 * The idx format of MNIST (http://yann.lecun.com/exdb/mnist): a big-endian header, then bytes;
 * gzipped or not. Files may be hostile: every error is INVALID_ARGUMENT naming the file.
 */
#ifndef FSDPD_DATA_IDX_H
#define FSDPD_DATA_IDX_H

#include "data/image_set.h"

/* Larger sets are rejected. */
#define IDX_MAX_BYTES (UINT64_C(1) << 40)

enum idx_split { IDX_TRAIN, IDX_TEST };

/*
 * Opens <directory>/train-images-idx3-ubyte and train-labels-idx1-ubyte (or t10k-...), each with or
 * without ".gz", and reads their headers. NOT_FOUND names the missing file. `classes` is the
 * model's. Links must not lead out of `root` (NULL: no root).
 */
status_t idx_open(const char *root, const char *directory, enum idx_split split, int64_t classes,
                  struct image_set *set) FSDPD_MUST_USE;

#endif
