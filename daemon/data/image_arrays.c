/* Images in arrays; see image_formats.h. */
#include "data/image_formats.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/file.h"
#include "base/mem.h"
#include "data/dataset_dir.h"
#include "data/generator.h"

enum { CHANNELS_MAX = 4 }; /* in a last dimension, unless a dataset says its layout */

/* `numbers`: that the model has for targets; 0: it has classes. */
static status_t check_targets(const struct npy *targets, int64_t numbers)
{
    char text[96], wanted[96];
    bool real = targets->type == NPY_F32;
    int64_t found = targets->count / targets->dims[0];
    if (numbers == 0 ? targets->dim_count == 1 && !real
                     : targets->dim_count <= 2 && real && found == numbers)
        return NULL;
    if (numbers > 1) snprintf(wanted, sizeof wanted, "(N, %" PRId64 ") of float32", numbers);
    else snprintf(wanted, sizeof wanted, "(N,) of %s", numbers > 0 ? "float32" : "integers");
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: expected targets %s for a model with '%s', found %s of %s",
                      targets->file.path, wanted, numbers > 0 ? "targets" : "classes",
                      npy_format_shape(targets->dim_count, targets->dims, text),
                      npy_type_name(targets->type));
}

static status_t check_images(const struct npy *images, const struct npy *targets, int64_t numbers)
{
    char text[96];
    if (images->dim_count < 2 || images->dim_count > 4 ||
        (images->type != NPY_U8 && images->type != NPY_F32))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: expected images (N, C, H, W), (N, H, W, C) or (N, H, W), or rows "
                          "(N, columns), of uint8 or float32, found %s of %s",
                          images->file.path,
                          npy_format_shape(images->dim_count, images->dims, text),
                          npy_type_name(images->type));
    bool alone = targets->count == 0;
    if (!alone) TRY(check_targets(targets, numbers));
    if (!alone && images->dims[0] != targets->dims[0])
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s has %" PRId64 " images but %s has %" PRId64 " targets",
                          images->file.path, images->dims[0], targets->file.path, targets->dims[0]);
    if (images->dims[0] < PERMUTATION_MAX) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %" PRId64 " images: at most %u are possible",
                      images->file.path, images->dims[0], PERMUTATION_MAX - 1);
}

static void set_shape(const struct npy *images, enum dataset_layout layout, struct image_set *set)
{
    const int64_t *dims = images->dims;
    set->count = dims[0];
    set->channels_last = false;
    if (images->dim_count < 4) {
        set->channels = 1;
        set->height = images->dim_count == 3 ? dims[1] : 1;
        set->width = dims[images->dim_count - 1];
        return;
    }
    set->channels_last =
        layout == DATASET_NHWC ||
        (layout == DATASET_LAYOUT_UNKNOWN && dims[3] <= CHANNELS_MAX && dims[1] > CHANNELS_MAX);
    set->channels = set->channels_last ? dims[3] : dims[1];
    set->height = set->channels_last ? dims[1] : dims[2];
    set->width = set->channels_last ? dims[2] : dims[3];
}

/* Takes the arrays' files; `targets` may be zeroed: there are none. */
static status_t make_set(struct npy *images, struct npy *targets, enum dataset_layout layout,
                         struct image_targets wanted, struct image_set *set)
{
    bool has_targets = targets->count > 0;
    TRY(check_images(images, targets, wanted.numbers));
    *set = (struct image_set){.pixel = images->type,
                              .target = targets->type,
                              .classes = wanted.classes,
                              .numbers = wanted.numbers,
                              .files = {images->file, targets->file},
                              .file_count = has_targets ? 2 : 1,
                              .part_count = 1};
    set_shape(images, layout, set);
    set->parts[0] = (struct image_part){.count = set->count,
                                        .images = 0,
                                        .targets = has_targets ? 1 : -1,
                                        .image_at = images->first_byte,
                                        .image_stride = (int64_t)image_set_row_bytes(set),
                                        .target_at = targets->first_byte};
    if (has_targets)
        set->parts[0].target_stride =
            npy_type_width(targets->type) * (targets->count / targets->dims[0]);
    images->file = targets->file = (struct data_file){0};
    return NULL;
}

static status_t open_array(const char *root, const char *directory, const char *split,
                           const char *array, struct npy *npy)
{
    AUTO_FREE char *name = mem_printf("%s.%s.npy", split, array),
                   *path = file_path_join(directory, name);
    return npy_open(root, path, npy);
}

static status_t check_columns(const struct npy *array, const struct model_input *input,
                              int64_t samples)
{
    const struct tensor_type *type = &input->type;
    bool tokens = type->dtype == DTYPE_I32, number = array->type == NPY_F32;
    bool fits = tokens ? !number : number || array->type == NPY_U8;
    fits = fits && array->dim_count == type->dim_count + 1 && array->dims[0] == samples;
    for (int i = 1; fits && i < array->dim_count; i++) fits = array->dims[i] == type->dims[i - 1];
    char text[96], shape[128];
    if (fits) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: expected %" PRId64
                      " samples %s of %s for the input '%s', found %s of %s",
                      array->file.path, samples, tensor_format_shape(type, shape),
                      tokens ? "integers" : "uint8 or float32", input->name,
                      npy_format_shape(array->dim_count, array->dims, text),
                      npy_type_name(array->type));
}

static status_t add_columns(const char *root, const char *directory, const char *split,
                            const struct model *model, const struct model_input *input,
                            struct image_set *set)
{
    struct npy array = {0};
    status_t status = open_array(root, directory, split, input->name, &array);
    if (status == NULL) status = check_columns(&array, input, set->count);
    if (status == NULL) {
        set->columns[set->column_count++] =
            (struct image_columns){.file = set->file_count,
                                   .first_byte = array.first_byte,
                                   .count = tensor_element_count(&input->type),
                                   .type = array.type,
                                   .vocabulary =
                                       input->type.dtype == DTYPE_I32 ? model->vocabulary : 0,
                                   .start = input->start};
        set->files[set->file_count++] = array.file;
        array.file = (struct data_file){0};
    }
    npy_close(&array);
    return status;
}

/* The first of several inputs that is not of tokens is the images; the others are columns. */
static status_t open_others(const char *root, const char *directory, const char *split,
                            const struct model *model, struct image_set *set)
{
    const struct model_input *images = model_first_image(model);
    set->row = tensor_element_count(&model->input);
    set->image_start = images->start;
    for (int i = 0; i < model->input_count; i++)
        if (&model->inputs[i] != images)
            TRY(add_columns(root, directory, split, model, &model->inputs[i], set));
    return NULL;
}

status_t image_arrays_open(const char *root, const char *directory, const char *split,
                           struct image_targets wanted, struct image_set *set)
{
    const struct model *named = wanted.named;
    struct npy images = {0}, targets = {0};
    const char *name = named != NULL ? model_first_image(named)->name : "images";
    status_t status = open_array(root, directory, split, name, &images);
    if (status == NULL && (named == NULL || named->target != TARGET_PAIR))
        status = open_array(root, directory, split, "targets", &targets);
    if (status == NULL) status = make_set(&images, &targets, DATASET_LAYOUT_UNKNOWN, wanted, set);
    npy_close(&images);
    npy_close(&targets);
    if (status == NULL && named != NULL) status = open_others(root, directory, split, named, set);
    return status;
}

static status_t make_split(struct dataset_dir *dir, enum dataset_split_name name,
                           struct image_targets wanted, struct image_set *set)
{
    struct dataset_array *arrays = dir->splits[name].arrays;
    struct npy *images = &arrays[DATASET_ARRAY_IMAGES].npy;
    if (images->file.path == NULL)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s has no split to validate with; expected one, or train.evaluate: "
                          "false",
                          dir->path);
    struct npy *targets = &arrays[DATASET_ARRAY_TARGETS].npy;
    if (dir->classes == 0 && targets->type != NPY_F32)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: it has no key 'classes', which targets of integers need", dir->path);
    return make_set(images, targets, dir->layout, wanted, set);
}

static status_t make_splits(struct dataset_dir *dir, struct image_targets wanted,
                            struct image_set *train, struct image_set *validation)
{
    if (dir->kind != DATASET_IMAGES)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its kind is tokens; read it with data.format: dataset", dir->path);
    if (wanted.numbers == 0 && dir->classes > wanted.classes)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: it has %" PRId64 " classes, but the model has %" PRId64, dir->path,
                          dir->classes, wanted.classes);
    wanted.classes = dir->classes;
    TRY(make_split(dir, DATASET_TRAIN, wanted, train));
    return validation != NULL ? make_split(dir, DATASET_VALIDATION, wanted, validation) : NULL;
}

status_t image_arrays_open_dataset(const char *root, const char *directory,
                                   struct image_targets wanted, bool check, struct image_set *train,
                                   struct image_set *validation)
{
    struct dataset_dir dir = {0};
    TRY(dataset_dir_open(root, directory, check, &dir));
    status_t status = make_splits(&dir, wanted, train, validation);
    dataset_dir_close(&dir);
    return status;
}
