/*
 * A job's images: finds out what a directory has, and opens it. In this order: dataset.json with
 * kind images (docs/datasets.md); train.images.npy and train.targets.npy, likewise for validation;
 * CIFAR's binary files (data_batch_1.bin and so on, or train.bin); idx files.
 */
#ifndef FSDPD_DATA_IMAGE_FILES_H
#define FSDPD_DATA_IMAGE_FILES_H

#include "data/image_set.h"
#include "setup/job.h"

/*
 * Opens the images to train on and, if the job evaluates, those to test with; `wanted` is what
 * the model has. NOT_FOUND if the directory has no images, or none to test with. With `check`, also
 * compares digests. The caller closes both sets, also after an error.
 */
status_t image_files_open(const struct train_job *job, struct image_targets wanted, bool check,
                          struct image_set *train, struct image_set *test) FSDPD_MUST_USE;

#endif
