/* Directories of images; see image_rows.h. */
#include "data/image_rows.h"

#include "base/file.h"
#include "data/image_formats.h"

static bool has_file(const struct train_job *job, const char *name)
{
    AUTO(data_file_close) struct data_file file = {0};
    AUTO_FREE char *path = file_path_join(job->data_dir, name);
    status_t status = data_file_open(job->data_root, path, &file);
    bool has = status_code(status) != STATUS_NOT_FOUND; /* another error is found again later */
    status_free(status);
    return has;
}

static status_t check_has_classes(const struct train_job *job, struct image_targets wanted)
{
    if (wanted.numbers == 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: the model has 'targets', but the images in %s have classes",
                      job->model_file, job->data_dir);
}

static status_t open_idx(const struct train_job *job, struct image_targets wanted,
                         struct image_set *train, struct image_set *test)
{
    TRY(check_has_classes(job, wanted));
    TRY(idx_open(job->data_root, job->data_dir, IDX_TRAIN, wanted.classes, train));
    if (!job->evaluate) return NULL;
    return idx_open(job->data_root, job->data_dir, IDX_TEST, wanted.classes, test);
}

static status_t open_cifar(const struct train_job *job, struct image_targets wanted,
                           struct image_set *train, struct image_set *test)
{
    TRY(check_has_classes(job, wanted));
    TRY(cifar_open(job->data_root, job->data_dir, false, wanted.classes, train));
    if (!job->evaluate) return NULL;
    return cifar_open(job->data_root, job->data_dir, true, wanted.classes, test);
}

static status_t open_arrays(const struct train_job *job, struct image_targets wanted,
                            struct image_set *train, struct image_set *test)
{
    TRY(image_arrays_open(job->data_root, job->data_dir, "train", wanted, train));
    if (!job->evaluate) return NULL;
    return image_arrays_open(job->data_root, job->data_dir, "validation", wanted, test);
}

/* What is done to pictures is for the first of several inputs that is not of tokens. */
static status_t check_transform(const struct train_job *job, const struct model *named)
{
    const struct image_transform *transform = &job->transform;
    const struct model_input *first = model_first_image(named);
    bool changes = transform->mean != 0 || transform->std != 1 || transform->crop_padding > 0 ||
                   transform->flip || transform->height > 0;
    char shape[128];
    if (!changes || first->type.dim_count > 1) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: data.resize, data.augment and data.normalize are for the first input "
                      "that is not tokens, but '%s' is %s, which is no picture",
                      job->model_file, first->name, tensor_format_shape(&first->type, shape));
}

status_t image_files_open(const struct train_job *job, struct image_targets wanted, bool check,
                          struct image_set *train, struct image_set *test)
{
    if (wanted.named != NULL && (job->image_format == IMAGES_IDX || has_file(job, "dataset.json")))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: a model with several inputs reads arrays of their names "
                          "(data.format: images, without dataset.json), for instance train.%s.npy",
                          job->data_dir, wanted.named->inputs[0].name);
    if (wanted.named != NULL) {
        TRY(check_transform(job, wanted.named));
        return open_arrays(job, wanted, train, test);
    }
    if (job->image_format == IMAGES_IDX) return open_idx(job, wanted, train, test);
    if (has_file(job, "dataset.json"))
        return image_arrays_open_dataset(job->data_root, job->data_dir, wanted, check, train,
                                         job->evaluate ? test : NULL);
    if (has_file(job, "train.images.npy")) return open_arrays(job, wanted, train, test);
    if (has_file(job, "data_batch_1.bin") || has_file(job, "train.bin"))
        return open_cifar(job, wanted, train, test);
    if (has_file(job, "train-images-idx3-ubyte") || has_file(job, "train-images-idx3-ubyte.gz"))
        return open_idx(job, wanted, train, test);
    return status_new(STATUS_NOT_FOUND,
                      "%s has no images: expected dataset.json, train.images.npy, "
                      "data_batch_1.bin, train.bin, or train-images-idx3-ubyte",
                      job->data_dir);
}
