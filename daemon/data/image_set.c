/* Images in files; see image_set.h. */
#include "data/image_set.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

int64_t image_set_pixels(const struct image_set *set)
{
    return set->channels * set->height * set->width;
}

size_t image_set_row_bytes(const struct image_set *set)
{
    return (size_t)image_set_pixels(set) * (size_t)npy_type_width(set->pixel);
}

static const struct data_file *file_of(const struct image_set *set, int number)
{
    const struct unpacked *unpacked = &set->unpacked[number];
    return unpacked->path != NULL ? &unpacked->file : &set->files[number];
}

static const struct image_part *part_of(const struct image_set *set, int64_t sample,
                                        int64_t *number)
{
    const struct image_part *part = set->parts;
    for (; sample >= part->count; part++) sample -= part->count;
    *number = sample;
    return part;
}

static status_t read_numbers(const struct image_set *set, const struct data_file *file,
                             int64_t place, int64_t number, int32_t *target)
{
    TRY(data_file_read(file, target, (size_t)set->numbers * sizeof *target, place));
    for (int64_t i = 0; i < set->numbers; i++) {
        float value;
        memcpy(&value, &target[i], sizeof value);
        if (isinf(value))
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: target %" PRId64 " of image %" PRId64 " is %f", file->path, i,
                              number, (double)value);
        if (isnan(value)) target[i] = -1;
    }
    return NULL;
}

static status_t read_target(const struct image_set *set, const struct image_part *part,
                            int64_t number, int32_t *target)
{
    *target = 0;
    if (part->targets < 0) return NULL;
    if (set->numbers > 0)
        return read_numbers(set, file_of(set, part->targets),
                            part->target_at + number * part->target_stride, number, target);
    unsigned char bytes[8];
    const struct data_file *file = file_of(set, part->targets);
    TRY(data_file_read(file, bytes, (size_t)npy_type_width(set->target),
                       part->target_at + number * part->target_stride));
    int64_t value = npy_integer(set->target, bytes);
    if (value < 0 || value >= set->classes)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: label %" PRId64 " is %" PRId64
                          ", but the model's classes are 0 to %" PRId64,
                          file->path, number, value, set->classes - 1);
    *target = (int32_t)value;
    return NULL;
}

status_t image_set_prepare(struct image_set *set)
{
    for (int f = 0; f < set->file_count; f++)
        if (set->unpacked_bytes[f] > 0 && set->unpacked[f].path == NULL)
            TRY(unpacked_open(&set->files[f], set->unpacked_bytes[f], &set->unpacked[f]));
    AUTO_FREE int32_t *target = mem_alloc_array((size_t)image_set_targets(set), sizeof *target);
    status_t status = NULL;
    for (int p = 0; p < set->part_count; p++)
        for (int64_t i = 0; i < set->parts[p].count && status == NULL; i++)
            status = read_target(set, &set->parts[p], i, target);
    return status;
}

void image_set_close(struct image_set *set)
{
    for (int f = 0; f < set->file_count; f++) {
        unpacked_close(&set->unpacked[f]);
        data_file_close(&set->files[f]);
    }
    *set = (struct image_set){0};
}

status_t image_set_read(const struct image_set *set, int64_t sample, void *image, int32_t *target)
{
    int64_t number;
    const struct image_part *part = part_of(set, sample, &number);
    const struct data_file *file = file_of(set, part->images);
    TRY(data_file_read(file, image, image_set_row_bytes(set),
                       part->image_at + number * part->image_stride));
    TRY(data_file_check_unchanged(file));
    TRY(read_target(set, part, number, target));
    bool others = part->targets >= 0 && part->targets != part->images;
    return others ? data_file_check_unchanged(file_of(set, part->targets)) : NULL;
}

static status_t read_element(const struct image_columns *columns, const char *path, int64_t sample,
                             const unsigned char *bytes, float *number)
{
    if (columns->vocabulary > 0) {
        int64_t id = npy_integer(columns->type, bytes);
        *number = (float)id;
        if (id >= 0 && id < columns->vocabulary) return NULL;
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: sample %" PRId64 " has the token %" PRId64
                          ", but the model's vocabulary is 0 to %" PRId64,
                          path, sample, id, columns->vocabulary - 1);
    }
    *number = (float)bytes[0] / 255.0f;
    if (columns->type == NPY_U8) return NULL;
    memcpy(number, bytes, sizeof *number);
    if (isfinite(*number)) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: sample %" PRId64 " has a number that is %f",
                      path, sample, (double)*number);
}

static status_t read_columns(const struct image_set *set, const struct image_columns *columns,
                             int64_t sample, float *numbers)
{
    enum { PIECE = 512 };
    unsigned char bytes[PIECE * 8];
    const struct data_file *file = file_of(set, columns->file);
    int64_t width = npy_type_width(columns->type), first = sample * columns->count;
    for (int64_t done = 0; done < columns->count; done += PIECE) {
        int64_t now = columns->count - done < PIECE ? columns->count - done : PIECE;
        TRY(data_file_read(file, bytes, (size_t)(now * width),
                           columns->first_byte + (first + done) * width));
        for (int64_t i = 0; i < now; i++)
            TRY(read_element(columns, file->path, sample, bytes + i * width, &numbers[done + i]));
    }
    return data_file_check_unchanged(file);
}

status_t image_set_read_columns(const struct image_set *set, int64_t sample, float *row)
{
    for (int i = 0; i < set->column_count; i++)
        TRY(read_columns(set, &set->columns[i], sample, row + set->columns[i].start));
    return NULL;
}

const char *image_set_place(const struct image_set *set, int64_t sample, int64_t *number)
{
    return file_of(set, part_of(set, sample, number)->images)->path;
}
