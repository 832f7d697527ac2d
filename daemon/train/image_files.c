/* Directories of images; see image_files.h. */
#include "train/image_files.h"

#include <stdlib.h>

#include "base/file.h"
#include "train/cifar.h"
#include "train/idx.h"
#include "train/image_arrays.h"

static bool has_file(const struct train_job *job, const char *name)
{
    struct data_file file = {0};
    char *path = file_path_join(job->data_dir, name);
    status_t status = data_file_open(job->data_root, path, &file);
    free(path);
    bool has = status_code(status) != STATUS_NOT_FOUND; /* another error is found again later */
    status_free(status);
    data_file_close(&file);
    return has;
}

static status_t open_idx(const struct train_job *job, int64_t classes, struct image_set *train,
                         struct image_set *test)
{
    TRY(idx_open(job->data_root, job->data_dir, IDX_TRAIN, classes, train));
    return job->evaluate ? idx_open(job->data_root, job->data_dir, IDX_TEST, classes, test) : NULL;
}

static status_t open_cifar(const struct train_job *job, int64_t classes, struct image_set *train,
                           struct image_set *test)
{
    TRY(cifar_open(job->data_root, job->data_dir, false, classes, train));
    return job->evaluate ? cifar_open(job->data_root, job->data_dir, true, classes, test) : NULL;
}

static status_t open_arrays(const struct train_job *job, int64_t classes, struct image_set *train,
                            struct image_set *test)
{
    TRY(image_arrays_open(job->data_root, job->data_dir, "train", classes, train));
    if (!job->evaluate) return NULL;
    return image_arrays_open(job->data_root, job->data_dir, "validation", classes, test);
}

status_t image_files_open(const struct train_job *job, int64_t classes, bool check,
                          struct image_set *train, struct image_set *test)
{
    if (job->image_format == IMAGES_IDX) return open_idx(job, classes, train, test);
    if (has_file(job, "dataset.json"))
        return image_arrays_open_dataset(job->data_root, job->data_dir, classes, check, train,
                                         job->evaluate ? test : NULL);
    if (has_file(job, "train.images.npy")) return open_arrays(job, classes, train, test);
    if (has_file(job, "data_batch_1.bin") || has_file(job, "train.bin"))
        return open_cifar(job, classes, train, test);
    if (has_file(job, "train-images-idx3-ubyte") || has_file(job, "train-images-idx3-ubyte.gz"))
        return open_idx(job, classes, train, test);
    return status_new(STATUS_NOT_FOUND,
                      "%s has no images: expected dataset.json, train.images.npy, "
                      "data_batch_1.bin, train.bin, or train-images-idx3-ubyte",
                      job->data_dir);
}
