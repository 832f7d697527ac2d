/* Rows of images; see image_rows.h. */
#include "data/image_rows.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/sampler.h"

static status_t fill_values(struct image_rows *rows)
{
    double mean = rows->transform.mean, std = rows->transform.std;
    for (int byte = 0; byte < 256; byte++) {
        float value = ((float)byte / 255.0f - (float)mean) / (float)std;
        if (!isfinite(value))
            return status_new(STATUS_INVALID_ARGUMENT,
                              "data.normalize: (%d / 255 - %g) / %g is not a finite number", byte,
                              mean, std);
        rows->values[byte] = value;
    }
    return NULL;
}

status_t image_rows_init(struct image_rows *rows, const struct image_set *set,
                         const struct image_transform *transform, uint64_t seed, bool augment)
{
    *rows = (struct image_rows){.set = set, .transform = *transform, .seed = seed};
    if (rows->transform.height == 0) rows->transform.height = set->height;
    if (rows->transform.width == 0) rows->transform.width = set->width;
    if (!augment) {
        rows->transform.crop_padding = 0;
        rows->transform.flip = false;
    }
    return fill_values(rows);
}

static int64_t row_pixels(const struct image_rows *rows)
{
    return rows->set->channels * rows->transform.height * rows->transform.width;
}

/* All numbers of a row. */
static int64_t row_numbers(const struct image_rows *rows)
{
    return rows->set->row > 0 ? rows->set->row : row_pixels(rows);
}

static bool resizes(const struct image_rows *rows)
{
    return rows->transform.height != rows->set->height || rows->transform.width != rows->set->width;
}

/* Whether a stored byte's place in the row is its place in the file. */
static bool is_plain(const struct image_rows *rows)
{
    const struct image_set *set = rows->set;
    return set->pixel == NPY_U8 && (!set->channels_last || set->channels == 1) && !resizes(rows) &&
           rows->transform.crop_padding == 0 && !rows->transform.flip;
}

static status_t fill_plain(const struct image_rows *rows, uint32_t sample, float *out,
                           int32_t *target)
{
    int64_t pixels = row_pixels(rows);
    /* The bytes go where their last floats will be, which no earlier float overwrites. */
    uint8_t *bytes = (uint8_t *)(out + pixels) - pixels;
    TRY(image_set_read(rows->set, sample, bytes, target));
    for (int64_t i = 0; i < pixels; i++) out[i] = rows->values[bytes[i]];
    return NULL;
}

static float pixel(const struct image_set *set, const void *stored, int64_t place)
{
    if (set->pixel == NPY_U8) return (float)((const uint8_t *)stored)[place] / 255.0f;
    return ((const float *)stored)[place];
}

/* Writes planes (channels, height, width) of the image as stored. */
static status_t decode(const struct image_rows *rows, uint32_t sample, const void *stored,
                       float *planes)
{
    const struct image_set *set = rows->set;
    int64_t plane = set->height * set->width, number;
    for (int64_t c = 0; c < set->channels; c++) {
        for (int64_t i = 0; i < plane; i++) {
            int64_t place = set->channels_last ? i * set->channels + c : c * plane + i;
            float value = pixel(set, stored, place);
            if (!isfinite(value)) {
                const char *path = image_set_place(set, sample, &number);
                return status_new(STATUS_INVALID_ARGUMENT,
                                  "%s: image %" PRId64 " has a pixel that is %f", path, number,
                                  (double)value);
            }
            *planes++ = value;
        }
    }
    return NULL;
}

/* `planes` and `resized` are scratch memory for an image as stored, and as in a row. */
static status_t fill_transformed(const struct image_rows *rows, uint32_t sample, void *stored,
                                 float *planes, float *resized, float *out, int32_t *target)
{
    const struct image_set *set = rows->set;
    const struct image_transform *transform = &rows->transform;
    TRY(image_set_read(set, sample, stored, target));
    TRY(decode(rows, sample, stored, planes));
    const float *from = planes;
    if (resizes(rows)) {
        image_resize(set->channels, set->height, set->width, planes, transform->height,
                     transform->width, resized);
        from = resized;
    }
    const struct image_draw draw = image_draw(transform, rows->seed, rows->epoch, sample);
    image_place(transform, &draw, set->channels, transform->height, transform->width, from, out);
    return NULL;
}

static status_t fill_any(const struct image_rows *rows, uint32_t sample, float *out,
                         int32_t *target)
{
    if (is_plain(rows)) return fill_plain(rows, sample, out, target);
    size_t pixels = (size_t)image_set_pixels(rows->set);
    size_t resized = resizes(rows) ? (size_t)row_pixels(rows) : 0;
    AUTO_FREE float *scratch = malloc((2 * pixels + resized) * sizeof *scratch);
    if (scratch == NULL)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "no memory for an image of %zu pixels",
                          pixels);
    return fill_transformed(rows, sample, scratch, scratch + pixels, scratch + 2 * pixels, out,
                            target);
}

static status_t fill(const void *user, int64_t row, void *input, int32_t *target, int64_t *samples)
{
    const struct image_rows *rows = user;
    uint32_t sample = rows->order[row];
    int64_t targets = image_set_targets(rows->set);
    for (int64_t i = 0; i < targets; i++) target[i] = -1;
    *samples = 0;
    if (sample == SAMPLE_NONE) {
        memset(input, 0, (size_t)row_numbers(rows) * sizeof(float));
        return NULL;
    }
    TRY(fill_any(rows, sample, (float *)input + rows->set->image_start, target));
    TRY(image_set_read_columns(rows->set, sample, input));
    for (int64_t i = 0; i < targets; i++) *samples += target[i] != -1;
    return NULL;
}

struct rows image_rows_source(const struct image_rows *rows)
{
    return (struct rows){.input_bytes = (size_t)row_numbers(rows) * sizeof(float),
                         .targets = (size_t)image_set_targets(rows->set),
                         .fill = fill,
                         .user = rows};
}
