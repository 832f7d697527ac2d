/*
 * The idx format of MNIST (http://yann.lecun.com/exdb/mnist): a big-endian header, then bytes;
 * gzipped or not, which the content decides and not the name. The files may be hostile: nothing is
 * allocated before sizes are checked, and every error is INVALID_ARGUMENT naming the file.
 */
#ifndef FSDPD_TRAIN_IDX_H
#define FSDPD_TRAIN_IDX_H

#include <stdbool.h>

#include "train/dataset.h"

/* A set of images larger than this is refused: it is held in memory. */
#define IDX_MAX_BYTES (UINT64_C(16) << 30)

enum idx_split { IDX_TRAIN, IDX_TEST };

/*
 * Reads <directory>/train-images-idx3-ubyte and train-labels-idx1-ubyte (or t10k-...), each with or
 * without ".gz". NOT_FOUND names what is missing; a label of `class_count` or more is refused with
 * its place. With `headers_only` the sizes are checked and no data is read. No link leads out of
 * `root`; NULL: there is none.
 */
status_t idx_read_dataset(const char *root, const char *directory, enum idx_split split,
                          int64_t class_count, bool headers_only,
                          struct dataset *dataset) FSDPD_MUST_USE;

#endif
