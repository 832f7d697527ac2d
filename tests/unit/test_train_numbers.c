/*
 * Random numbers, sample order, learning rates, pixels and initial parameters against PyTorch's:
 * tests/parity/numbers.txt, printed by tests/parity/make_numbers.py. The test must understand and
 * match every line of the file.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/mem.h"
#include "data/generator.h"
#include "data/image_rows.h"
#include "data/sampler.h"
#include "setup/init.h"
#include "setup/tune_schedule.h"
#include "tests/testing.h"
#include "train/schedule.h"

enum { MAX_WORDS = 12 };

struct line {
    char *words[MAX_WORDS];
    int count, number;
};

static double number(const struct line *line, int word)
{
    ck_assert_int_lt(word, line->count);
    return strtod(line->words[word], NULL);
}

static uint64_t count(const struct line *line, int word)
{
    ck_assert_int_lt(word, line->count);
    return strtoull(line->words[word], NULL, 10);
}

/* Compares with the sum in `word` and the first values after it. */
static void expect(const struct line *line, int word, const void *values, size_t n)
{
    const uint32_t *bits = values;
    for (int i = word + 1; i < line->count; i++) {
        uint32_t first = (uint32_t)strtoul(line->words[i], NULL, 16);
        ck_assert_msg(bits[i - word - 1] == first, "line %d, %s: value %d is %08x, not %08x",
                      line->number, line->words[0], i - word - 1, bits[i - word - 1], first);
    }
    unsigned long sum = crc32(0, values, (uInt)(n * 4));
    ck_assert_msg(sum == strtoul(line->words[word], NULL, 16), "line %d, %s: some value differs",
                  line->number, line->words[0]);
}

static void check_fill(const struct line *line)
{
    struct generator generator;
    generator_seed(&generator, count(line, 1));
    size_t n = count(line, 2);
    float *values = mem_alloc_array(n, sizeof *values);
    if (line->words[0][0] == 'u')
        generator_fill_uniform(&generator, n, values, number(line, 3), number(line, 4));
    else if (line->words[0][0] == 'n')
        generator_fill_normal(&generator, n, values, number(line, 3), number(line, 4));
    else generator_fill_permutation(&generator, (uint32_t)n, (uint32_t *)values);
    expect(line, 5, values, n);
    free(values);
}

static void check_sequence(const struct line *line)
{
    struct generator generator;
    float values[23];
    generator_seed(&generator, 99);
    generator_fill_normal(&generator, 1, values, 0, 1); /* leaves a second value behind */
    generator_seed(&generator, count(line, 1));
    generator_fill_normal(&generator, 1, values, 0, 1);
    generator_fill_normal(&generator, 1, values + 1, 0, 1);
    generator_fill_normal(&generator, 3, values + 2, 0, 1);
    generator_fill_normal(&generator, 16, values + 5, 0, 1);
    generator_fill_normal(&generator, 2, values + 21, 0, 1);
    expect(line, 5, values, 23);
}

static void check_sampler(const struct line *line)
{
    struct sampler sampler;
    ck_assert_ptr_null(sampler_init(&sampler, (int64_t)count(line, 1), (int)count(line, 2),
                                    (int)count(line, 3), count(line, 5) != 0, false));
    size_t n = (size_t)sampler_count(&sampler);
    uint32_t *order = mem_alloc_array(n, sizeof *order);
    sampler_fill(&sampler, (uint32_t)count(line, 4), order);
    expect(line, 6, order, n);
    free(order);
    sampler_deinit(&sampler);
}

static void check_rate(const struct line *line)
{
    struct train_job job = {.schedule.kind = SCHEDULE_STEP,
                            .schedule.step_size = (uint32_t)count(line, 2),
                            .schedule.gamma = number(line, 3)};
    double rate = number(line, 1);
    for (uint32_t epoch = 1; epoch < count(line, 4); epoch++)
        rate = schedule_next_rate(&job.schedule, epoch, rate);
    ck_assert_msg(rate == strtod(line->words[5], NULL), "line %d: %a", line->number, rate);
}

/* In double, but PyTorch multiplies from step to step. */
static void check_factor(const struct line *line)
{
    const char *kind = line->words[1];
    struct train_job job = {.schedule.warmup_steps = count(line, 2),
                            .schedule.warmup_start_factor = number(line, 3),
                            .schedule.end_factor = number(line, 5)};
    if (strcmp(kind, "linear") == 0) job.schedule.kind = SCHEDULE_LINEAR;
    if (strcmp(kind, "cosine") == 0) job.schedule.kind = SCHEDULE_COSINE;
    double expected = number(line, 7);
    uint64_t step = count(line, 6);
    double found = 0.5 * schedule_factor(&job.schedule, step, (double)step, (double)count(line, 4));
    ck_assert_msg(fabs(found - expected) <= 1e-14, "line %d: %a", line->number, found);
    /* The same with the end given, in a longer job. */
    job.schedule.total_steps = count(line, 4);
    ck_assert(found == 0.5 * schedule_factor(&job.schedule, step, 7, 1000));
}

static struct optimizer_step step_of_line(const struct line *line)
{
    const char *kind = line->words[1];
    struct optimizer_step step = {.kind = OPTIMIZER_SGD,
                                  .lr = number(line, 2),
                                  .weight_decay = number(line, 3),
                                  .eps = 1e-8};
    if (strcmp(kind, "adadelta") == 0) {
        step.kind = OPTIMIZER_ADADELTA;
        step.rho = number(line, 4);
        step.eps = number(line, 5);
    } else if (strcmp(kind, "adagrad") == 0) {
        step.kind = OPTIMIZER_ADAGRAD;
        step.lr_decay = number(line, 4);
        step.eps = number(line, 5);
    } else if (kind[0] == 'a' || strcmp(kind, "lion") == 0 || strcmp(kind, "radam") == 0) {
        ck_assert(plan_optimizer_find(kind, &step.kind));
        step.beta1 = number(line, 4);
        step.beta2 = number(line, 5);
    } else {
        step.momentum = number(line, 4);
        step.dampening = number(line, 5);
        step.nesterov = strcmp(kind, "nesterov") == 0;
    }
    return step;
}

static void check_optimizer(const struct line *line)
{
    enum { N = 1000 };
    static float parameter[N], gradient[N], slot[2][N];
    float *const slots[] = {slot[0], slot[1]};
    const float stats[PLAN_STATS_COUNT] = {[PLAN_STAT_TARGETS] = 1, [PLAN_STAT_COUNTED] = 1};
    struct optimizer_step step = step_of_line(line);
    struct generator generator;
    struct device *device;
    struct lane_queue *lane;
    ck_assert_ptr_null(device_open("cpu", 1, &device));
    ck_assert_ptr_null(lane_open(device, LANE_COMPUTE, &lane));
    generator_seed(&generator, 17);
    generator_fill_normal(&generator, N, parameter, 0, 1);
    memset(slot, 0, sizeof slot);
    for (step.taken = 0; step.taken < 20; step.taken++) {
        generator_seed(&generator, 100 + step.taken);
        generator_fill_normal(&generator, N, gradient, 0, 0.3);
        ck_assert_ptr_null(
            lane_optimize(lane, &step, N, parameter, NULL, gradient, slots, stats, false));
        ck_assert_ptr_null(lane_wait(lane, 10000));
    }
    expect(line, 6, parameter, N);
    lane_close(lane);
    device_close(device);
}

static void check_pixels(const struct line *line)
{
    uint8_t bytes[257] = {[256] = 3}; /* the image, then its label */
    for (int i = 0; i < 256; i++) bytes[i] = (uint8_t)i;
    char path[] = "/tmp/fsdpd-test-numbers-XXXXXX";
    int fd = mkstemp(path);
    ck_assert(fd >= 0 && unlink(path) == 0 && write(fd, bytes, sizeof bytes) == sizeof bytes);
    struct image_set set = {.count = 1,
                            .channels = 1,
                            .height = 16,
                            .width = 16,
                            .classes = 10,
                            .file_count = 1,
                            .files = {{.path = mem_strdup(path), .fd = fd, .size = sizeof bytes}},
                            .part_count = 1,
                            .parts = {{1, 0, 0, 0, 256, 256, 1}}};
    struct stat info;
    ck_assert_int_eq(fstat(fd, &info), 0);
    set.files[0].changed = info.st_mtim;
    const uint32_t order[] = {0};
    struct image_rows rows;
    ck_assert_ptr_null(
        image_rows_init(&rows, &set,
                        &(struct image_transform){.mean = number(line, 1), .std = number(line, 2)},
                        1, true));
    rows.order = order;
    struct rows source = image_rows_source(&rows);
    float pixels[256];
    int32_t target;
    int64_t samples;
    ck_assert_ptr_null(source.fill(source.user, 0, pixels, &target, &samples));
    ck_assert(target == 3 && samples == 1);
    expect(line, 3, pixels, 256);
    image_set_close(&set);
}

static struct parameter parameter(enum init_kind init, double bound, int order, int dim_count,
                                  const int64_t *dims)
{
    return (struct parameter){.type = tensor_type_make(DTYPE_F32, dim_count, dims),
                              .tied_to = -1,
                              .init = init,
                              .bound = bound,
                              .init_order = order};
}

struct collected {
    float *values;
    const size_t *offsets;
    const struct model *model;
    int calls;
};

static status_t collect(void *user, int index, struct parameter_part piece, const float *values)
{
    struct collected *collected = user;
    memcpy(collected->values + collected->offsets[index] + piece.offset, values,
           (size_t)piece.count * sizeof *values);
    if (piece.offset == 0) collected->calls++;
    return NULL;
}

static status_t draw(const struct model *model, uint64_t seed, struct collected *collected)
{
    return init_draw(model, seed, &(struct init_target){.set = collect, .user = collected});
}

#define SHAPE(...)                                                                                 \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[])                         \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* The tutorial's network; bounds are 1/sqrt(fan_in), as constructors of Conv2d and Linear give
 * them. */
static void check_initial(const struct line *line)
{
    const double conv1 = 1.0 / 3, conv2 = 0.058925565098878960, fc1 = 0.010416666666666666,
                 fc2 = 0.088388347648318447;
    struct parameter parameters[] = {
        parameter(INIT_UNIFORM, conv1, 0, SHAPE(32, 1, 3, 3)),
        parameter(INIT_UNIFORM, conv1, 1, SHAPE(32)),
        parameter(INIT_UNIFORM, conv2, 2, SHAPE(64, 32, 3, 3)),
        parameter(INIT_UNIFORM, conv2, 3, SHAPE(64)),
        parameter(INIT_UNIFORM, fc1, 4, SHAPE(128, 9216)),
        parameter(INIT_UNIFORM, fc1, 5, SHAPE(128)),
        parameter(INIT_UNIFORM, fc2, 6, SHAPE(10, 128)),
        parameter(INIT_UNIFORM, fc2, 7, SHAPE(10)),
    };
    const size_t offsets[] = {0, 288, 320, 18752, 18816, 1198464, 1198592, 1199872};
    const struct model model = {.parameters = parameters, .parameter_count = 8};
    float *values = mem_alloc_array(1199882, sizeof *values);
    struct collected collected = {values, offsets, &model, 0};
    ck_assert_ptr_null(draw(&model, count(line, 1), &collected));
    ck_assert_int_eq(collected.calls, 8);
    expect(line, 2, values, 1199882);
    free(values);
}

/* Numbered in another order than drawn, with a tied parameter in between. */
static void check_tied(const struct line *line)
{
    const double bound = 0.31622776601683794;
    struct parameter parameters[] = {
        parameter(INIT_NORMAL, 1, 0, SHAPE(20, 10)),
        parameter(INIT_ONES, 0, 2, SHAPE(10)),
        parameter(INIT_ZEROS, 0, 3, SHAPE(10)),
        parameter(INIT_UNIFORM, bound, 1, SHAPE(20, 10)),
        parameter(INIT_UNIFORM, bound, 4, SHAPE(3, 10)),
        parameter(INIT_UNIFORM, bound, 5, SHAPE(3)),
    };
    parameters[3].tied_to = 0;
    const size_t offsets[] = {0, 200, 210, SIZE_MAX, 220, 250};
    const struct model model = {.parameters = parameters, .parameter_count = 6};
    float values[253];
    struct collected collected = {values, offsets, &model, 0};
    ck_assert_ptr_null(draw(&model, count(line, 1), &collected));
    ck_assert_int_eq(collected.calls, 5);
    expect(line, 2, values, 253);
}

static const struct {
    const char *name;
    void (*check)(const struct line *line);
    int least; /* cases in the file */
} checks[] = {
    {"uniform", check_fill, 84},
    {"normal", check_fill, 84},
    {"randperm", check_fill, 28},
    {"sampler", check_sampler, 80},
    {"rate", check_rate, 24},
    {"factor", check_factor, 300},
    {"optimizer", check_optimizer, 12},
    {"pixels", check_pixels, 3},
    {"initial", check_initial, 2},
    {"tied", check_tied, 1},
    {"normal_sequence", check_sequence, 1},
};
enum { CHECKS = COUNT_OF(checks) };

static void run_line(char *text, int line_number, int seen[CHECKS])
{
    struct line line = {.number = line_number};
    for (char *word = strtok(text, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        ck_assert_int_lt(line.count, MAX_WORDS);
        line.words[line.count++] = word;
    }
    for (int i = 0; i < CHECKS; i++)
        if (strcmp(checks[i].name, line.words[0]) == 0) {
            checks[i].check(&line);
            seen[i]++;
            return;
        }
    ck_abort_msg("line %d: no test for %s", line_number, line.words[0]);
}

TESTS_BELOW(.timeout = 60);

TEST(numbers_of_pytorch)
{
    const char *srcdir = getenv("srcdir");
    char *path = mem_printf("%s/tests/parity/numbers.txt", srcdir ? srcdir : ".");
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    char text[512];
    int seen[CHECKS] = {0}, line_number = 0;
    while (fgets(text, sizeof text, file) != NULL) run_line(text, ++line_number, seen);
    for (int i = 0; i < CHECKS; i++)
        ck_assert_msg(seen[i] >= checks[i].least, "%d cases of %s, expected %d", seen[i],
                      checks[i].name, checks[i].least);
    fclose(file);
    free(path);
}

TEST(generator_words)
{
    struct generator generator;
    generator_seed(&generator, 5489);
    uint32_t word = 0;
    for (int i = 0; i < 10000; i++) word = generator_random(&generator);
    ck_assert_uint_eq(word, 4123659995u); /* as the C++ standard requires of mt19937 */
    generator_seed(&generator, 1);
    uint64_t first = generator_random(&generator), second = generator_random(&generator);
    generator_seed(&generator, 1);
    ck_assert_uint_eq(generator_random64(&generator), first << 32 | second);
}

static void expect_same_next(struct generator *a, struct generator *b)
{
    for (int i = 0; i < 2 * TWISTER_WORDS; i++)
        ck_assert_uint_eq(generator_random(a), generator_random(b));
}

TEST(generator_skips)
{
    static const int counts[] = {0,    1,    623,  624,     625,     1247,    1248,
                                 1249, 5000, 4711, 5111185, 5111186, 5120000, 6123457};
    static const int before[] = {0, 1, 600, 624};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        struct generator slow, fast;
        generator_seed(&slow, 5489 + i);
        for (int k = 0; k < before[i % COUNT_OF(before)]; k++) generator_random(&slow);
        fast = slow;
        for (int k = 0; k < counts[i]; k++) generator_random(&slow);
        generator_skip(&fast, (uint64_t)counts[i]);
        expect_same_next(&slow, &fast);
    }
}

/* From 2^23 words, which are also computed one by one, to 2^63. */
TEST(skips_add_up)
{
    struct generator twice, once;
    generator_seed(&twice, 7);
    for (int i = 0; i < 1 << 23; i++) generator_random(&twice);
    for (int bit = 23; bit < 63; bit++) {
        generator_seed(&once, 7);
        generator_skip(&once, UINT64_C(1) << bit);
        struct generator copy = once;
        expect_same_next(&copy, &twice);
        generator_skip(&once, UINT64_C(1) << bit);
        twice = once;
    }
}

TEST(sampler_marks_repeats)
{
    /* Over all ranks an evaluation sees each sample once. */
    for (int world = 1; world <= 8; world++) {
        int seen[11] = {0}, none = 0;
        for (int rank = 0; rank < world; rank++) {
            struct sampler sampler;
            ck_assert_ptr_null(sampler_init(&sampler, 11, world, rank, true, true));
            uint32_t order[11];
            sampler_fill(&sampler, 3, order);
            for (int i = 0; i < sampler_count(&sampler); i++) {
                if (order[i] == SAMPLE_NONE) none++;
                else seen[order[i]]++;
            }
            ck_assert_int_eq(sampler_count(&sampler), (11 + world - 1) / world);
            sampler_deinit(&sampler);
        }
        for (int i = 0; i < 11; i++) ck_assert_int_eq(seen[i], 1);
        ck_assert_int_eq(none, (11 + world - 1) / world * world - 11);
    }
}

TEST(sampler_refuses)
{
    struct sampler sampler;
    const int64_t bad[] = {0, -1, PERMUTATION_MAX, INT64_MAX};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        status_t status = sampler_init(&sampler, bad[i], 1, 0, true, false);
        ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
        status_free(status);
    }
}

static status_t refuse(void *user, int index, struct parameter_part piece, const float *values)
{
    (void)piece;
    (void)values;
    ++*(int *)user;
    return index == 1 ? status_new(STATUS_ABORTED, "enough") : NULL;
}

TEST(init_stops_at_an_error)
{
    struct parameter parameters[] = {parameter(INIT_ONES, 0, 0, SHAPE(2)),
                                     parameter(INIT_ONES, 0, 1, SHAPE(2)),
                                     parameter(INIT_ONES, 0, 2, SHAPE(2))};
    const struct model model = {.parameters = parameters, .parameter_count = 3};
    int calls = 0;
    status_t status = init_draw(&model, 1, &(struct init_target){.set = refuse, .user = &calls});
    ck_assert_int_eq(status_code(status), STATUS_ABORTED);
    ck_assert_int_eq(calls, 2);
    status_free(status);
}

/* ---- Parts of initial values ---- */

struct wish {
    struct parameter_part parts[5];
    const float *expected;
    const size_t *offsets; /* by parameter, in it */
    int64_t got[5];
};

static struct parameter_part find_part(void *user, int parameter)
{
    return ((struct wish *)user)->parts[parameter];
}

static status_t compare(void *user, int index, struct parameter_part piece, const float *values)
{
    struct wish *wish = user;
    ck_assert_int_eq(piece.offset, wish->parts[index].offset + wish->got[index]);
    wish->got[index] += piece.count;
    ck_assert_mem_eq(wish->expected + wish->offsets[index] + (size_t)piece.offset, values,
                     (size_t)piece.count * sizeof *values);
    return NULL;
}

static void draw_parts(const struct model *model, struct wish *wish)
{
    ck_assert_ptr_null(init_draw(model, 3, &(struct init_target){find_part, compare, wish}));
    for (int p = 0; p < model->parameter_count; p++)
        ck_assert_int_eq(wish->got[p], wish->parts[p].count);
}

TEST(a_reference_begins_as_its_original)
{
    struct parameter parameters[] = {
        parameter(INIT_NORMAL, 1, 0, SHAPE(9, 5)), parameter(INIT_NORMAL, 1, 1, SHAPE(7)),
        parameter(INIT_UNIFORM, 1, 2, SHAPE(40)),  parameter(INIT_NORMAL, 1, 1, SHAPE(7)),
        parameter(INIT_UNIFORM, 1, 2, SHAPE(40)),
    };
    const size_t offsets[] = {0, 45, 52, 92, 99};
    const struct model plain = {.parameters = parameters, .parameter_count = 3};
    const struct model copied = {.parameters = parameters, .parameter_count = 5};
    parameters[3].reference = parameters[4].reference = true;
    parameters[3].of = 1;
    parameters[4].of = 2;
    float expected[92], values[139];
    ck_assert_ptr_null(draw(&plain, 3, &(struct collected){expected, offsets, &plain, 0}));
    ck_assert_ptr_null(draw(&copied, 3, &(struct collected){values, offsets, &copied, 0}));
    ck_assert_mem_eq(values, expected, sizeof expected);
    ck_assert_mem_eq(values + 92, values + 45, 47 * sizeof *values);
}

/* Every part of small parameters, with the tail of normal_, a zero row and fewer than 16 values;
 * and of one that has several pieces. */
TEST(parts_of_initial_values)
{
    struct parameter parameters[] = {
        parameter(INIT_NORMAL, 1, 0, SHAPE(9, 5)),      parameter(INIT_NORMAL, 1, 1, SHAPE(7)),
        parameter(INIT_UNIFORM, 1, 2, SHAPE(40)),       parameter(INIT_CONSTANT, 3, 4, SHAPE(40)),
        parameter(INIT_NORMAL, 2, 3, SHAPE(600007, 1)),
    };
    parameters[0].has_zero_row = true;
    parameters[0].zero_row = 6;
    const size_t offsets[] = {0, 45, 52, 92, 132};
    const struct model model = {.parameters = parameters, .parameter_count = 5};
    float *values = mem_alloc_array(132 + 600007, sizeof *values);
    struct collected collected = {values, offsets, &model, 0};
    ck_assert_ptr_null(draw(&model, 3, &collected));
    struct generator generator;
    generator_seed(&generator, 3);
    float expected[45];
    generator_fill_normal(&generator, 45, expected, 0, 1);
    for (int i = 30; i < 35; i++) expected[i] = 0;
    ck_assert_mem_eq(values, expected, sizeof expected);
    for (int64_t begin = 0; begin <= 45; begin++)
        for (int64_t end = begin; end <= 45; end++) {
            struct wish wish = {.parts = {{begin, end - begin},
                                          {begin % 7, end % 7 > begin % 7},
                                          {begin % 40, (end - begin) % (41 - begin % 40)},
                                          {begin % 40, (end - begin) % (41 - begin % 40)},
                                          {600007 - 50 + begin, end - begin}},
                                .expected = values,
                                .offsets = offsets};
            if (begin == 0) wish.parts[4].count += end * 13000; /* pieces */
            if (begin == 0) wish.parts[4].offset = 7;
            draw_parts(&model, &wish);
        }
    free(values);
}

/* A shard of what has no place in memory. The second parameter's values are those that follow. */
TEST(part_of_a_huge_parameter)
{
    const int64_t huge = INT64_C(1) << 40, at = huge / 3 * 2 / 16 * 16;
    struct parameter parameters[] = {parameter(INIT_NORMAL, 1, 0, SHAPE(huge)),
                                     parameter(INIT_UNIFORM, 1, 1, SHAPE(32))};
    const struct model model = {.parameters = parameters, .parameter_count = 2};
    float expected[64];
    struct generator generator;
    generator_seed(&generator, 3);
    for (int i = 0; i < 16; i++) generator_skip(&generator, (uint64_t)at / 16);
    generator_fill_normal(&generator, 32, expected, 0, 1);
    for (int i = 0; i < 32; i++) generator_skip(&generator, (uint64_t)(huge - at - 32) / 32);
    generator_fill_uniform(&generator, 32, expected + 32, -1, 1);
    struct wish wish = {.parts = {{at, 32}, {0, 32}},
                        .expected = expected,
                        .offsets = (size_t[]){(size_t)-at, 32}};
    draw_parts(&model, &wish);
}

/* A position in the data that another group's steps reached: the completed fraction counts, and the
 * warm-up does not start again. */
TEST(schedule_of_places)
{
    struct train_job job = {.schedule.kind = SCHEDULE_LINEAR, .schedule.end_factor = 0.2};
    ck_assert(schedule_factor(&job.schedule, 100, 50, 500) ==
              schedule_factor(&job.schedule, 100, 100, 1000));
    ck_assert(fabs(schedule_factor(&job.schedule, 100, 250, 500) - 0.6) < 1e-12);
    ck_assert(schedule_factor(&job.schedule, 100, 500, 500) == 0.2);
    job.schedule.warmup_steps = 80;
    ck_assert(schedule_factor(&job.schedule, 79, 40, 500) < 1);
    ck_assert(schedule_factor(&job.schedule, 80, 40, 500) == 1 &&
              schedule_factor(&job.schedule, 120, 80, 500) == 1);
    ck_assert(fabs(schedule_factor(&job.schedule, 400, 290, 500) - 0.6) < 1e-12);
    job.schedule.total_steps = 480; /* counts steps, wherever they are */
    ck_assert(fabs(schedule_factor(&job.schedule, 280, 3, 500) - 0.6) < 1e-12);
}

/* Trials take at most a twentieth of the steps, and at most 200 steps. */
TEST(tune_schedules)
{
    ck_assert_int_eq(tune_schedule(199, 3).count, 0);
    ck_assert_int_eq(tune_schedule(200, 3).count, 2);
    ck_assert_int_eq(tune_schedule(300, 3).count, 3);
    ck_assert_int_eq(tune_schedule(1000000, 1).count, 0);
    for (uint64_t steps = 0; steps < 10000; steps += 7) {
        for (int count = 1; count <= 4; count++) {
            const struct tune_schedule schedule = tune_schedule(steps, count);
            uint64_t all = (uint64_t)(schedule.count * (schedule.warm + schedule.measured));
            ck_assert_int_le(schedule.count, count);
            ck_assert_uint_le(all * 20, steps);
            ck_assert_uint_le(all, TUNE_STEPS_MAX);
            ck_assert(schedule.count == 0 || schedule.measured >= 3);
            ck_assert_int_le(schedule.measured, TUNE_MEASURED_MAX);
        }
    }
}

TEST(constant_rate)
{
    const struct train_job job = {.schedule.kind = SCHEDULE_CONSTANT};
    ck_assert(schedule_next_rate(&job.schedule, 1, 0.3) == 0.3);
    ck_assert(schedule_factor(&job.schedule, 5, 5, 10) == 1);
}

/* After its end a schedule stays there; schedules without an end have warm-up, too. */
TEST(schedule_ends)
{
    struct train_job job = {.schedule.kind = SCHEDULE_COSINE,
                            .schedule.total_steps = 10,
                            .schedule.end_factor = 0.1};
    for (uint64_t step = 10; step < 40; step++)
        ck_assert(schedule_factor(&job.schedule, step, 1, 50) == 0.1);
    job.schedule.kind = SCHEDULE_STEP;
    job.schedule.warmup_steps = 4;
    ck_assert(schedule_factor(&job.schedule, 0, 0, 50) == 0 &&
              schedule_factor(&job.schedule, 1, 1, 50) == 0.25);
    ck_assert(schedule_factor(&job.schedule, 4, 4, 50) == 1 &&
              schedule_factor(&job.schedule, 45, 45, 50) == 1);
}

/* A warm-up may be as long as the job, or longer: the rate rises until the end, then is the end's.
 */
TEST(warmup_longer_than_the_job)
{
    static const enum schedule_kind kinds[] = {SCHEDULE_CONSTANT, SCHEDULE_STEP, SCHEDULE_LINEAR,
                                               SCHEDULE_COSINE};
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        struct train_job job = {.schedule.kind = kinds[k],
                                .schedule.warmup_steps = 8,
                                .schedule.end_factor = 0.1};
        for (uint64_t step = 0; step < 8; step++)
            ck_assert(schedule_factor(&job.schedule, step, (double)step, 4) == (double)step / 8);
        double after = k < 2 ? 1 : 0.1;
        ck_assert(schedule_factor(&job.schedule, 8, 8, 4) == after);
        ck_assert(schedule_factor(&job.schedule, 8, 8, 8) == after);
    }
}
