/* CIFAR's binary files; see image_formats.h. */
#include "data/image_formats.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/file.h"

enum { SIDE = 32, CHANNELS = 3, IMAGE_BYTES = CHANNELS * SIDE * SIDE };

struct cifar_kind {
    const char *train[5], *test; /* the training files that exist follow each other */
    int labels;                  /* bytes before the image; the last one is the label */
};
static const struct cifar_kind kinds[] = {
    {{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
      "data_batch_5.bin"},
     "test_batch.bin",
     1},
    {{"train.bin"}, "test.bin", 2},
};

static status_t add_file(const char *root, const char *directory, const char *name, int labels,
                         struct image_set *set)
{
    int number = set->file_count;
    struct data_file *file = &set->files[number];
    char *path = file_path_join(directory, name);
    status_t status = data_file_open(root, path, file);
    free(path);
    TRY(status);
    set->file_count++;
    int64_t record = labels + IMAGE_BYTES, count = file->size / record;
    if (file->size % record != 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its %" PRId64 " bytes are not whole records of %" PRId64, file->path,
                          file->size, record);
    set->parts[set->part_count++] = (struct image_part){.count = count,
                                                        .images = number,
                                                        .targets = number,
                                                        .image_at = labels,
                                                        .image_stride = record,
                                                        .target_at = labels - 1,
                                                        .target_stride = record};
    set->count += count;
    return NULL;
}

static status_t add_files(const char *root, const char *directory, bool test,
                          const struct cifar_kind *kind, struct image_set *set)
{
    if (test) return add_file(root, directory, kind->test, kind->labels, set);
    for (int i = 0; i < 5 && kind->train[i] != NULL; i++) {
        status_t status = add_file(root, directory, kind->train[i], kind->labels, set);
        bool ended = i > 0 && status_code(status) == STATUS_NOT_FOUND;
        if (!ended) TRY(status);
        status_free(ended ? status : NULL);
        if (ended) break;
    }
    return NULL;
}

static status_t add_any(const char *root, const char *directory, bool test, struct image_set *set)
{
    status_t status = add_files(root, directory, test, &kinds[0], set);
    if (status_code(status) != STATUS_NOT_FOUND) return status;
    status_t other = add_files(root, directory, test, &kinds[1], set);
    bool neither = status_code(other) == STATUS_NOT_FOUND; /* names CIFAR-10's */
    status_free(neither ? other : status);
    return neither ? status : other;
}

status_t cifar_open(const char *root, const char *directory, bool test, int64_t classes,
                    struct image_set *set)
{
    struct image_set opened = {.channels = CHANNELS,
                               .height = SIDE,
                               .width = SIDE,
                               .pixel = NPY_U8,
                               .target = NPY_U8,
                               .classes = classes};
    status_t status = add_any(root, directory, test, &opened);
    if (status != NULL) {
        image_set_close(&opened);
        return status;
    }
    *set = opened;
    return NULL;
}
