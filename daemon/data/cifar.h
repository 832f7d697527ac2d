/*
 * CIFAR's binary files (https://www.cs.toronto.edu/~kriz/cifar.html), read as they are: records of
 * a label and 3 x 32 x 32 bytes. CIFAR-10 has data_batch_1.bin to data_batch_5.bin and
 * test_batch.bin; CIFAR-100 has train.bin and test.bin, with a coarse label, which is not used,
 * before the fine one. Files may be hostile: INVALID_ARGUMENT names the file.
 */
#ifndef FSDPD_DATA_CIFAR_H
#define FSDPD_DATA_CIFAR_H

#include "data/image_set.h"

/* Opens the files in `directory`: those to test with, or those to train on. Fewer batches than five
 * are possible. Links must not lead out of `root` (NULL: no root). */
status_t cifar_open(const char *root, const char *directory, bool test, int64_t classes,
                    struct image_set *set) FSDPD_MUST_USE;

#endif
