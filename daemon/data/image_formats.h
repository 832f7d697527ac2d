/* The formats of images; image_rows.h opens what a directory has. */
#ifndef FSDPD_DATA_IMAGE_FORMATS_H
#define FSDPD_DATA_IMAGE_FORMATS_H

#include "data/image_set.h"

/*
 * The idx format of MNIST (http://yann.lecun.com/exdb/mnist): a big-endian header, then bytes;
 * gzipped or not. Files may be hostile: every error is INVALID_ARGUMENT naming the file.
 */
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

/*
 * CIFAR's binary files (https://www.cs.toronto.edu/~kriz/cifar.html), read as they are: records of
 * a label and 3 x 32 x 32 bytes. CIFAR-10 has data_batch_1.bin to data_batch_5.bin and
 * test_batch.bin; CIFAR-100 has train.bin and test.bin, with a coarse label, which is not used,
 * before the fine one. Files may be hostile: INVALID_ARGUMENT names the file.
 */
/* Opens the files in `directory`: those to test with, or those to train on. Fewer batches than five
 * are possible. Links must not lead out of `root` (NULL: no root). */
status_t cifar_open(const char *root, const char *directory, bool test, int64_t classes,
                    struct image_set *set) FSDPD_MUST_USE;

/*
 * Images and targets in .npy files: of a dataset directory of kind images, or two files alone.
 * Images are (N, C, H, W), (N, H, W, C) or (N, H, W), or rows of a table (N, columns), of uint8 or
 * float32; targets are integers, or float32 for a model with numbers.
 * Files may be hostile: INVALID_ARGUMENT names the file. Links must not lead out of `root` (NULL:
 * no root). The caller closes the sets, also after an error.
 */
/* Opens <directory>/<split>.images.npy and <split>.targets.npy; of a model with several inputs
 * <split>.NAME.npy of each, and targets unless it compares samples. Without a word about the
 * layout, a last dimension of at most 4 beside a second one above 4 is that of the channels. */
status_t image_arrays_open(const char *root, const char *directory, const char *split,
                           struct image_targets wanted, struct image_set *set) FSDPD_MUST_USE;

/* Opens a dataset directory (dataset_dir.h). `validation` may be NULL. */
status_t image_arrays_open_dataset(const char *root, const char *directory,
                                   struct image_targets wanted, bool check, struct image_set *train,
                                   struct image_set *validation) FSDPD_MUST_USE;

#endif
