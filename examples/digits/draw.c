/*
 * fsdpd-digits: draws handwriting-like digits and writes them as the four files of MNIST, for
 * machines without a network and for tests. Each image is one digit's strokes (lines and arcs of
 * ellipses), bent a little, scaled, sheared, turned and moved at random, drawn with a pen of random
 * thickness, and covered with noise. The same arguments give the same files.
 *
 *     fsdpd-digits --seed 1 --train 10000 --test 2000 -o DIR
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

enum { SIDE = 28, PIXELS = SIDE * SIDE, CLASSES = 10, MAX_IMAGES = 1000000 };

/* Strokes live in a box from (0, 0), top left, to (1, 1). An arc runs from one angle to another, in
 * degrees, 0 to the right and 90 down, so growing angles go clockwise. */
struct stroke {
    int digit;
    enum { LINE, ARC } kind;
    float x, y;       /* a line's start; an arc's centre */
    float to_x, to_y; /* a line's end; an arc's radii */
    float from, to;   /* an arc's angles */
    float chance;     /* that it is drawn at all; 0 means always */
};

static const struct stroke strokes[] = {
    {.digit = 0, ARC, 0.50f, 0.50f, 0.30f, 0.42f, 0, 360, 0},
    {.digit = 1, LINE, 0.50f, 0.08f, 0.50f, 0.92f, 0, 0, 0},
    {.digit = 1, LINE, 0.34f, 0.22f, 0.50f, 0.08f, 0, 0, 0.7f},
    {.digit = 2, ARC, 0.50f, 0.30f, 0.27f, 0.22f, 180, 380, 0},
    {.digit = 2, LINE, 0.75f, 0.38f, 0.22f, 0.92f, 0, 0, 0},
    {.digit = 2, LINE, 0.22f, 0.92f, 0.80f, 0.92f, 0, 0, 0},
    {.digit = 3, ARC, 0.47f, 0.29f, 0.25f, 0.21f, 200, 450, 0},
    {.digit = 3, ARC, 0.47f, 0.71f, 0.28f, 0.21f, 270, 520, 0},
    {.digit = 4, LINE, 0.60f, 0.08f, 0.18f, 0.62f, 0, 0, 0},
    {.digit = 4, LINE, 0.18f, 0.62f, 0.85f, 0.62f, 0, 0, 0},
    {.digit = 4, LINE, 0.62f, 0.32f, 0.62f, 0.92f, 0, 0, 0},
    {.digit = 5, LINE, 0.75f, 0.08f, 0.30f, 0.08f, 0, 0, 0},
    {.digit = 5, LINE, 0.30f, 0.08f, 0.27f, 0.46f, 0, 0, 0},
    {.digit = 5, ARC, 0.48f, 0.65f, 0.27f, 0.26f, 220, 510, 0},
    {.digit = 6, ARC, 0.75f, 0.66f, 0.50f, 0.58f, 265, 180, 0},
    {.digit = 6, ARC, 0.50f, 0.68f, 0.25f, 0.24f, 0, 360, 0},
    {.digit = 7, LINE, 0.20f, 0.10f, 0.80f, 0.10f, 0, 0, 0},
    {.digit = 7, LINE, 0.80f, 0.10f, 0.42f, 0.92f, 0, 0, 0},
    {.digit = 7, LINE, 0.42f, 0.50f, 0.76f, 0.50f, 0, 0, 0.3f},
    {.digit = 8, ARC, 0.50f, 0.29f, 0.21f, 0.20f, 0, 360, 0},
    {.digit = 8, ARC, 0.50f, 0.71f, 0.26f, 0.22f, 0, 360, 0},
    {.digit = 9, ARC, 0.50f, 0.32f, 0.24f, 0.23f, 0, 360, 0},
    {.digit = 9, LINE, 0.74f, 0.32f, 0.60f, 0.92f, 0, 0, 0},
};

/* SplitMix64 (Steele, Lea and Flood, 2014). */
static uint64_t draw_bits(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static float draw_between(uint64_t *state, float low, float high)
{
    return low + (high - low) * (float)(draw_bits(state) >> 40) * 0x1p-24f;
}

/* How one image differs from the strokes of the table. */
struct hand {
    float bend_x, bend_y, phase_x, phase_y; /* a slow wave along the other axis */
    float matrix[2][2], move_x, move_y;     /* box, centred, to pixels */
    float radius, ink, noise;               /* pen, brightness, amplitude of the noise */
};

static struct hand draw_hand(uint64_t *state)
{
    struct hand hand;
    hand.bend_x = draw_between(state, -0.07f, 0.07f);
    hand.bend_y = draw_between(state, -0.07f, 0.07f);
    hand.phase_x = draw_between(state, 0, 6.2831853f);
    hand.phase_y = draw_between(state, 0, 6.2831853f);
    float angle = draw_between(state, -0.28f, 0.28f); /* radians */
    float shear = draw_between(state, -0.3f, 0.3f);
    float width = draw_between(state, 16, 23), height = draw_between(state, 17, 23);
    float c = cosf(angle), s = sinf(angle);
    hand.matrix[0][0] = c * width;
    hand.matrix[0][1] = (c * shear - s) * height;
    hand.matrix[1][0] = s * width;
    hand.matrix[1][1] = (s * shear + c) * height;
    hand.move_x = SIDE / 2.0f + draw_between(state, -2.5f, 2.5f);
    hand.move_y = SIDE / 2.0f + draw_between(state, -2.5f, 2.5f);
    hand.radius = draw_between(state, 0.6f, 1.7f);
    hand.ink = draw_between(state, 0.7f, 1);
    hand.noise = draw_between(state, 0.02f, 0.25f);
    return hand;
}

struct point {
    float x, y;
};

static struct point place(const struct hand *hand, float x, float y)
{
    float bent_x = x - 0.5f + hand->bend_x * sinf(5 * y + hand->phase_x);
    float bent_y = y - 0.5f + hand->bend_y * sinf(5 * x + hand->phase_y);
    return (struct point){
        hand->matrix[0][0] * bent_x + hand->matrix[0][1] * bent_y + hand->move_x,
        hand->matrix[1][0] * bent_x + hand->matrix[1][1] * bent_y + hand->move_y,
    };
}

static float distance_to_segment(float x, float y, struct point a, struct point b)
{
    float along_x = b.x - a.x, along_y = b.y - a.y;
    float length = along_x * along_x + along_y * along_y;
    float t = length > 0 ? ((x - a.x) * along_x + (y - a.y) * along_y) / length : 0;
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    return hypotf(x - a.x - t * along_x, y - a.y - t * along_y);
}

/* Draws a segment with a round pen: a pixel takes the ink of the nearest stroke. */
static void draw_segment(const struct hand *hand, struct point a, struct point b,
                         float image[SIDE][SIDE])
{
    float reach = hand->radius + 1;
    int top = (int)floorf(fminf(a.y, b.y) - reach), bottom = (int)ceilf(fmaxf(a.y, b.y) + reach);
    int left = (int)floorf(fminf(a.x, b.x) - reach), right = (int)ceilf(fmaxf(a.x, b.x) + reach);
    for (int y = top < 0 ? 0 : top; y < SIDE && y <= bottom; y++)
        for (int x = left < 0 ? 0 : left; x < SIDE && x <= right; x++) {
            float distance = distance_to_segment((float)x + 0.5f, (float)y + 0.5f, a, b);
            float cover = fminf(fmaxf(hand->radius + 0.5f - distance, 0), 1) * hand->ink;
            image[y][x] = fmaxf(image[y][x], cover);
        }
}

static void draw_stroke(const struct hand *hand, const struct stroke *stroke,
                        float image[SIDE][SIDE])
{
    enum { STEPS = 12 };
    struct point last = {0};
    for (int i = 0; i <= STEPS; i++) {
        float t = (float)i / STEPS, x, y;
        if (stroke->kind == LINE) {
            x = stroke->x + t * (stroke->to_x - stroke->x);
            y = stroke->y + t * (stroke->to_y - stroke->y);
        } else {
            float angle = (stroke->from + t * (stroke->to - stroke->from)) * 0.017453293f;
            x = stroke->x + stroke->to_x * cosf(angle);
            y = stroke->y + stroke->to_y * sinf(angle);
        }
        struct point next = place(hand, x, y);
        if (i > 0) draw_segment(hand, last, next, image);
        last = next;
    }
}

static void draw_digit(uint64_t *state, int digit, unsigned char pixels[PIXELS])
{
    float image[SIDE][SIDE] = {0};
    struct hand hand = draw_hand(state);
    for (size_t i = 0; i < COUNT_OF(strokes); i++) {
        if (strokes[i].digit != digit) continue;
        if (strokes[i].chance > 0 && draw_between(state, 0, 1) >= strokes[i].chance) continue;
        draw_stroke(&hand, &strokes[i], image);
    }
    for (int i = 0; i < PIXELS; i++) {
        float value = image[i / SIDE][i % SIDE];
        value += hand.noise * draw_between(state, -1, 1);
        pixels[i] = (unsigned char)lrintf(fminf(fmaxf(value, 0), 1) * 255);
    }
}

static void put_big_endian(unsigned char *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++) bytes[i] = (unsigned char)(value >> (24 - 8 * i));
}

static status_t write_file(const char *directory, const char *prefix, const char *suffix,
                           const unsigned char *bytes, size_t size)
{
    char *path = mem_printf("%s/%s-%s", directory, prefix, suffix);
    status_t status = file_write_atomic(path, bytes, size, 0644);
    free(path);
    return status;
}

/* Draws `count` digits and writes the two files of one split. */
static status_t write_split(const char *directory, const char *prefix, uint64_t seed, size_t count)
{
    enum { IMAGES_HEADER = 16, LABELS_HEADER = 8 };
    size_t images_size = IMAGES_HEADER + count * PIXELS, labels_size = LABELS_HEADER + count;
    unsigned char *images = mem_alloc(images_size), *labels = mem_alloc(labels_size);
    put_big_endian(images, 0x803);
    put_big_endian(images + 4, (uint32_t)count);
    put_big_endian(images + 8, SIDE);
    put_big_endian(images + 12, SIDE);
    put_big_endian(labels, 0x801);
    put_big_endian(labels + 4, (uint32_t)count);
    uint64_t state = seed;
    for (size_t i = 0; i < count; i++) {
        int digit = (int)(draw_bits(&state) % CLASSES);
        labels[LABELS_HEADER + i] = (unsigned char)digit;
        draw_digit(&state, digit, images + IMAGES_HEADER + i * PIXELS);
    }
    status_t status = write_file(directory, prefix, "images-idx3-ubyte", images, images_size);
    if (status == NULL)
        status = write_file(directory, prefix, "labels-idx1-ubyte", labels, labels_size);
    free(images);
    free(labels);
    return status;
}

static void print_usage(FILE *out)
{
    fprintf(out, "Usage: fsdpd-digits [--seed N] [--train N] [--test N] -o DIR\n"
                 "Draws digits and writes them to DIR as the four files of MNIST.\n"
                 "  --seed N       the same seed gives the same files (default 1)\n"
                 "  --train N      images to train with, 1 to 1000000 (default 10000)\n"
                 "  --test N       images to test with (default 2000)\n"
                 "  -o, --output DIR  made if it is missing\n");
}

static int64_t parse_count(const char *name, const char *text, int64_t low, int64_t high)
{
    int64_t value;
    if (!text_parse_i64(text, &value) || value < low || value > high) {
        fprintf(stderr,
                "fsdpd-digits: --%s %s: expected a number from %" PRId64 " to %" PRId64 "\n", name,
                text, low, high);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"seed", required_argument, NULL, 's'}, {"train", required_argument, NULL, 't'},
        {"test", required_argument, NULL, 'e'}, {"output", required_argument, NULL, 'o'},
        {"help", no_argument, NULL, 'h'},       {0},
    };
    int64_t seed = 1, train = 10000, test = 2000;
    const char *directory = NULL;
    int option;
    while ((option = getopt_long(argc, argv, "o:h", options, NULL)) != -1) {
        switch (option) {
        case 's': seed = parse_count("seed", optarg, 0, INT64_MAX); break;
        case 't': train = parse_count("train", optarg, 1, MAX_IMAGES); break;
        case 'e': test = parse_count("test", optarg, 1, MAX_IMAGES); break;
        case 'o': directory = optarg; break;
        case 'h': print_usage(stdout); return 0;
        default: print_usage(stderr); return 2;
        }
    }
    if (directory == NULL || optind != argc) {
        print_usage(stderr);
        return 2;
    }
    /* The two splits come from different streams: the test set does not depend on the train set's
     * size. */
    uint64_t base = (uint64_t)seed * 2;
    status_t status = file_make_directory(directory, 0755);
    if (status == NULL) status = write_split(directory, "train", draw_bits(&base), (size_t)train);
    if (status == NULL) status = write_split(directory, "t10k", draw_bits(&base), (size_t)test);
    if (status != NULL) {
        fprintf(stderr, "fsdpd-digits: %s\n", status_message(status));
        status_free(status);
        return 1;
    }
    return 0;
}
