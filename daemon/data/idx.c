/* The idx format; see image_formats.h. */
#include "data/image_formats.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "data/generator.h"
#include "data/gzip_files.h"

enum { MAX_DIMS = 3 };

struct idx_kind {
    const char *what;
    uint32_t magic;
    int dim_count;
};
static const struct idx_kind images_kind = {"images", 0x00000803, 3};
static const struct idx_kind labels_kind = {"labels", 0x00000801, 1};

static uint32_t big_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static status_t read_dims(const struct data_file *file, const struct idx_kind *kind,
                          struct unzip *unzip, uint32_t dims[static MAX_DIMS], uint64_t *total)
{
    unsigned char header[4 + 4 * MAX_DIMS];
    size_t size = 4 + 4 * (size_t)kind->dim_count, count;
    TRY(unzip_read(unzip, header, size, &count));
    if (count >= 4 && big_endian(header) != kind->magic)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: an idx file of %s starts with 0x%08x, this one with 0x%08x",
                          file->path, kind->what, kind->magic, big_endian(header));
    if (count < size)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: cut short: its header takes %zu bytes, there are %zu", file->path,
                          size, count);
    *total = 1;
    for (int i = 0; i < kind->dim_count; i++) {
        dims[i] = big_endian(header + 4 + 4 * i);
        if (dims[i] == 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: dimension %d of its header is 0: there are no %s", file->path, i,
                              kind->what);
        if (*total > IDX_MAX_BYTES / dims[i])
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: its header promises more than %" PRIu64
                              " bytes, which is the limit",
                              file->path, IDX_MAX_BYTES);
        *total *= dims[i];
    }
    if (dims[0] >= PERMUTATION_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %u %s: at most %u are possible", file->path,
                          dims[0], kind->what, PERMUTATION_MAX - 1);
    *total += size;
    return NULL;
}

static status_t check_size(const struct data_file *file, bool compressed, uint64_t size)
{
    uint64_t found = (uint64_t)file->size;
    if (!compressed && found != size)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %s: its header promises %" PRIu64 " bytes, the file has %" PRIu64,
                          file->path, found < size ? "cut short" : "too long", size, found);
    if (compressed && size / UNZIP_MAX_RATIO > found)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its header promises %" PRIu64
                          " bytes, which cannot come out of a gzip file of %" PRIu64,
                          file->path, size, found);
    return NULL;
}

/* Reads the dimensions; checks the size of the data they require against the file's. */
static status_t read_header(const struct data_file *file, const struct idx_kind *kind,
                            uint32_t dims[static MAX_DIMS], uint64_t *unpacked_bytes)
{
    struct unzip *unzip = NULL;
    uint64_t size = 0;
    TRY(unzip_open(file, &unzip));
    status_t status = read_dims(file, kind, unzip, dims, &size);
    bool compressed = unzip_is_compressed(unzip);
    unzip_close(unzip);
    TRY(status);
    *unpacked_bytes = compressed ? size : 0;
    return check_size(file, compressed, size);
}

/* Opens the file, or the one with ".gz". */
static status_t open_file(const char *root, const char *directory, const char *name,
                          struct data_file *file)
{
    AUTO_FREE char *path = file_path_join(directory, name);
    status_t status = data_file_open(root, path, file);
    if (status_code(status) == STATUS_NOT_FOUND) {
        free(path);
        path = mem_printf("%s/%s.gz", directory, name);
        status_free(status);
        status = data_file_open(root, path, file);
        if (status_code(status) == STATUS_NOT_FOUND) {
            status_free(status);
            status =
                status_new(STATUS_NOT_FOUND, "%s has neither %s nor %s.gz", directory, name, name);
        }
    }
    return status;
}

static status_t add_file(const char *root, const char *directory, const char *name,
                         const struct idx_kind *kind, struct image_set *set,
                         uint32_t dims[static MAX_DIMS])
{
    int number = set->file_count;
    TRY(open_file(root, directory, name, &set->files[number]));
    set->file_count++;
    return read_header(&set->files[number], kind, dims, &set->unpacked_bytes[number]);
}

static status_t open_both(const char *root, const char *directory, const char *prefix,
                          struct image_set *set)
{
    char name[64];
    uint32_t images[MAX_DIMS], labels[MAX_DIMS];
    snprintf(name, sizeof name, "%s-images-idx3-ubyte", prefix);
    TRY(add_file(root, directory, name, &images_kind, set, images));
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", prefix);
    TRY(add_file(root, directory, name, &labels_kind, set, labels));
    if (images[0] != labels[0])
        return status_new(STATUS_INVALID_ARGUMENT, "%s has %u images but %s has %u labels",
                          set->files[0].path, images[0], set->files[1].path, labels[0]);
    set->count = images[0];
    set->channels = 1;
    set->height = images[1];
    set->width = images[2];
    set->part_count = 1;
    set->parts[0] = (struct image_part){.count = images[0],
                                        .images = 0,
                                        .targets = 1,
                                        .image_at = 16,
                                        .image_stride = set->height * set->width,
                                        .target_at = 8,
                                        .target_stride = 1};
    return NULL;
}

status_t idx_open(const char *root, const char *directory, enum idx_split split, int64_t classes,
                  struct image_set *set)
{
    struct image_set opened = {.pixel = NPY_U8, .target = NPY_U8, .classes = classes};
    status_t status = open_both(root, directory, split == IDX_TRAIN ? "train" : "t10k", &opened);
    if (status != NULL) {
        image_set_close(&opened);
        return status;
    }
    *set = opened;
    return NULL;
}
