/*
 * What happens to an image between its file and the model: bytes become 0 to 1, then the image is
 * resized (bilinear, as PyTorch's interpolate without antialiasing), a crop of it with a border of
 * zeros is taken, it is flipped, and normalised. Crop and flip are drawn from the seed, the epoch
 * and the sample's number, so they are the same at any number of workers. Pure.
 */
#ifndef FSDPD_DATA_IMAGE_TRANSFORM_H
#define FSDPD_DATA_IMAGE_TRANSFORM_H

#include <stdbool.h>
#include <stdint.h>

struct image_transform {
    int64_t height, width; /* resized to; 0: as stored */
    double mean, std;
    int64_t crop_padding; /* zeros on each side; 0: no crop */
    bool flip;
};

/* Where the crop begins, from -crop_padding to crop_padding, and whether it is flipped. */
struct image_draw {
    int64_t y, x;
    bool flip;
};

struct image_draw image_draw(const struct image_transform *transform, uint64_t seed, uint32_t epoch,
                             int64_t sample);

/* Resizes planes (channels, height, width) to (channels, to_height, to_width). */
void image_resize(int64_t channels, int64_t height, int64_t width, const float *from,
                  int64_t to_height, int64_t to_width, float *to);

/* Crops, flips and normalises planes (channels, height, width). */
void image_place(const struct image_transform *transform, const struct image_draw *draw,
                 int64_t channels, int64_t height, int64_t width, const float *from, float *to);

#endif
