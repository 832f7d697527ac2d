/* Transforms of images; see image_transform.h. */
#include "data/image_transform.h"

/* A step of splitmix64 (Steele, Lea and Flood, 2014). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

struct image_draw image_draw(const struct image_transform *transform, uint64_t seed, uint32_t epoch,
                             int64_t sample)
{
    uint64_t state = seed;
    state = next_random(&state) ^ epoch;
    state = next_random(&state) ^ (uint64_t)sample;
    uint64_t places = 2 * (uint64_t)transform->crop_padding + 1;
    struct image_draw draw = {0};
    draw.y = (int64_t)(next_random(&state) % places) - transform->crop_padding;
    draw.x = (int64_t)(next_random(&state) % places) - transform->crop_padding;
    draw.flip = transform->flip && (next_random(&state) & 1) != 0;
    return draw;
}

/* The two source places that a target place lies between, and the second one's share. */
struct between {
    int64_t first, second;
    float share;
};

static struct between between(int64_t place, int64_t from, int64_t to)
{
    float scale = (float)from / (float)to, at = ((float)place + 0.5f) * scale - 0.5f;
    if (at < 0) at = 0;
    int64_t first = (int64_t)at;
    if (first > from - 1) first = from - 1;
    return (struct between){first, first + (first < from - 1), at - (float)first};
}

void image_resize(int64_t channels, int64_t height, int64_t width, const float *from,
                  int64_t to_height, int64_t to_width, float *to)
{
    for (int64_t c = 0; c < channels; c++, from += height * width) {
        for (int64_t y = 0; y < to_height; y++) {
            const struct between v = between(y, height, to_height);
            const float *above = from + v.first * width, *below = from + v.second * width;
            for (int64_t x = 0; x < to_width; x++) {
                const struct between h = between(x, width, to_width);
                float left = 1 - h.share, top = 1 - v.share;
                *to++ = top * (left * above[h.first] + h.share * above[h.second]) +
                        v.share * (left * below[h.first] + h.share * below[h.second]);
            }
        }
    }
}

void image_place(const struct image_transform *transform, const struct image_draw *draw,
                 int64_t channels, int64_t height, int64_t width, const float *from, float *to)
{
    float mean = (float)transform->mean, std = (float)transform->std;
    for (int64_t c = 0; c < channels; c++, from += height * width) {
        for (int64_t y = 0; y < height; y++) {
            int64_t row = y + draw->y;
            for (int64_t x = 0; x < width; x++) {
                int64_t column = (draw->flip ? width - 1 - x : x) + draw->x;
                bool inside = row >= 0 && row < height && column >= 0 && column < width;
                float value = inside ? from[row * width + column] : 0;
                *to++ = (value - mean) / std;
            }
        }
    }
}
