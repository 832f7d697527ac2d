/* Rows of images; see image_rows.h. */
#include "train/image_rows.h"

#include <math.h>
#include <string.h>

#include "train/sampler.h"

status_t image_rows_init(struct image_rows *rows, const struct dataset *set, double mean,
                         double std)
{
    rows->set = set;
    rows->order = NULL;
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

static status_t fill(const void *user, int64_t row, void *input, int32_t *target, int64_t *samples)
{
    const struct image_rows *rows = user;
    const struct dataset *set = rows->set;
    uint32_t sample = rows->order[row];
    float *out = input;
    int64_t pixels = set->height * set->width;
    *samples = sample != SAMPLE_NONE;
    *target = -1;
    if (sample == SAMPLE_NONE) {
        memset(out, 0, (size_t)pixels * sizeof *out);
        return NULL;
    }
    const uint8_t *in = set->images + (int64_t)sample * pixels;
    for (int64_t i = 0; i < pixels; i++) out[i] = rows->values[in[i]];
    *target = set->labels[sample];
    return NULL;
}

struct rows image_rows_source(const struct image_rows *rows)
{
    return (struct rows){.input_bytes =
                             (size_t)(rows->set->height * rows->set->width) * sizeof(float),
                         .targets = 1,
                         .fill = fill,
                         .user = rows};
}
