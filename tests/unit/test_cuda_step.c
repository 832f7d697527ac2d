/*
 * The CUDA kernels at the end of a step, and kernels that serve others, under their emulation:
 * optimizers (the CPU's bits), norms, the gate, sums of columns, and rounding in place. The lengths
 * are odd, some exceed a grid, and addresses are aligned and unaligned.
 */
#include "kernel_fixture.h"
#include "kernels/bfloat16.h"
#include "kernels/muon.h"
#include "tests/testing.h"

static const size_t lengths[] = {1, 3, 4, 255, 1000, 2048, 2049, 4099, 20001};
enum { LENGTHS = 9, MOST = 20001 };

static struct cuda_launch launch = {.processors = 2};

/* A copy of `values` at an address with an offset of some floats. */
struct shard {
    struct area area;
    float *values;
};

static struct shard shard_of(const float *values, size_t n, size_t off)
{
    struct shard shard = {.area = area_new(n * sizeof(float), off * sizeof(float))};
    shard.values = (float *)shard.area.memory;
    memcpy(shard.values, values, n * sizeof(float));
    return shard;
}

static void check_shard(struct shard *shard, const float *expected, size_t n, const char *what)
{
    ck_assert_msg(area_edges_whole(&shard->area), "%s: written beyond %zu", what, n);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(memcmp(&shard->values[i], &expected[i], sizeof(float)) == 0,
                      "%s: %zu of %zu is %.9g, the CPU's %.9g", what, i, n, shard->values[i],
                      expected[i]);
    area_free(&shard->area);
}

/* One optimizer step on the CPU and on CUDA. `kind`: 0 Adadelta, 1 SGD, 2 Adam, 3 Lion, 4
 * Adagrad, 5 Muon, 6 the average, 7 Muon's momentum, of the parameter as its gradient, 8 RAdam. */
static void compare_step(struct random *random, int kind, size_t n, size_t off, bool gated,
                         bool skipped)
{
    static float param[MOST], grad[MOST], first[MOST], second[MOST];
    fill_random(random, param, (int64_t)n);
    fill_random(random, grad, (int64_t)n);
    for (size_t i = 0; i < n; i++) {
        first[i] = random_float(random) * random_float(random);
        first[i] *= first[i];
        second[i] = fabsf(random_float(random));
    }
    float decay = random_bool(random) ? 0 : 0.01f, scale = random_bool(random) ? 1 : 0.37f;
    struct shard p = shard_of(param, n, off), a = shard_of(first, n, off);
    struct shard b = shard_of(second, n, off);
    float skip = skipped ? 1 : 0, targets = scale * 64, counted = skipped ? 0 : 64;
    struct cuda_gate_in gate = {.skipped = &skip, .scale = &scale};
    struct cuda_gate_in mean = {.targets = &targets, .counted = &counted};
    const struct cuda_gate_in *in = gated ? &gate : &mean;
    float given = 99; /* the statistics' counts */
    struct area rounded = area_new(n * sizeof(uint16_t), off * sizeof(uint16_t));
    uint16_t *copy = random_bool(random) ? (uint16_t *)rounded.memory : NULL;
    static uint16_t expected[MOST];
    kernel_f32_to_bf16(n, expected, param);
    memcpy(rounded.memory, expected, n * sizeof(uint16_t));
    int error = 0;
    if (kind == 0) {
        struct adadelta_args args = {1, 0.9f, 1e-6f, decay, scale, (float)(1 - 0.9)};
        if (!skipped) kernel_adadelta(n, param, grad, first, second, &args);
        args.grad_scale = given;
        error = cuda_adadelta(&launch, n, p.values, copy, grad, a.values, b.values, &args, in);
    } else if (kind == 1) {
        struct sgd_args args = {.lr = 0.1f,
                                .momentum = random_bool(random) ? 0.9f : 0,
                                .one_minus_dampening = random_bool(random) ? 1 : 0.75f,
                                .weight_decay = decay,
                                .grad_scale = scale,
                                .nesterov = random_bool(random),
                                .first_step = random_bool(random)};
        if (!skipped) kernel_sgd(n, param, grad, args.momentum != 0 ? first : NULL, &args);
        args.grad_scale = given;
        error = cuda_sgd(&launch, n, p.values, copy, grad, args.momentum != 0 ? a.values : NULL,
                         &args, in);
    } else if (kind == 2) {
        struct adam_args args = {.beta1 = 0.9f,
                                 .one_minus_beta1 = (float)(1 - 0.9),
                                 .beta2 = 0.999f,
                                 .one_minus_beta2 = (float)(1 - 0.999),
                                 .eps = 1e-8f,
                                 .weight_decay = random_bool(random) ? decay : 0,
                                 .shrink = random_bool(random) ? 1 : 0.9999f,
                                 .corrected_lr = 0.003f,
                                 .corrected_root = 0.2f,
                                 .grad_scale = scale};
        if (!skipped) kernel_adam(n, param, grad, first, second, &args);
        args.grad_scale = given;
        error = cuda_adam(&launch, n, p.values, copy, grad, a.values, b.values, &args, in);
    } else if (kind == 3) {
        struct lion_args args = {0.003f, 0.9f, (float)(1 - 0.9), 0.99f, (float)(1 - 0.99),
                                 1,      scale};
        if (random_bool(random)) args.shrink = 0.9999f;
        if (!skipped) kernel_lion(n, param, grad, first, &args);
        args.grad_scale = given;
        error = cuda_lion(&launch, n, p.values, copy, grad, a.values, &args, in);
    } else if (kind == 4) {
        struct adagrad_args args = {.decayed_lr = 0.01f,
                                    .eps = 1e-10f,
                                    .weight_decay = decay,
                                    .grad_scale = scale};
        if (!skipped) kernel_adagrad(n, param, grad, first, &args);
        args.grad_scale = given;
        error = cuda_adagrad(&launch, n, p.values, copy, grad, a.values, &args, in);
    } else if (kind == 5) {
        struct muon_args args = {.lr = 0.02f, .shrink = random_bool(random) ? 1 : 0.9999f};
        if (!skipped) kernel_muon(n, param, grad, first, &args);
        error = cuda_muon(&launch, n, p.values, copy, grad, a.values, &args, in);
    } else if (kind == 8) {
        struct radam_args args = {
            0.003f, 0.9f, (float)(1 - 0.9), 0.999f, (float)(1 - 0.999), 1e-8f, decay, 0.3f, 0.2f,
            0,      scale};
        if (random_bool(random)) args.rectified = 0.6f;
        if (!skipped) kernel_radam(n, param, grad, first, second, &args);
        args.grad_scale = given;
        error = cuda_radam(&launch, n, p.values, copy, grad, a.values, b.values, &args, in);
    } else if (kind == 7) {
        struct muon_args args = {.momentum = random_bool(random) ? 0.95f : 0.25f,
                                 .grad_scale = scale,
                                 .nesterov = random_bool(random)};
        args.one_minus_momentum = 1 - args.momentum;
        if (!skipped) kernel_muon_momentum(n, param, first, &args);
        args.grad_scale = given;
        copy = NULL;
        error = cuda_muon_momentum(&launch, n, p.values, a.values, &args, in);
    } else {
        struct average_args args = {random_bool(random) ? 1 : random_bool(random) ? 0.7f : 0.01f};
        if (!skipped) kernel_average(n, first, grad, &args);
        copy = NULL;
        error = cuda_average(&launch, n, a.values, grad, &args, in);
    }
    static const char *const names[] = {"adadelta", "sgd",     "adam",     "lion", "adagrad",
                                        "muon",     "average", "momentum", "radam"};
    ck_assert_int_eq(error, 0);
    if (copy != NULL) kernel_f32_to_bf16(n, expected, param);
    ck_assert_msg(area_edges_whole(&rounded), "%s: the copy is written beyond %zu", names[kind], n);
    ck_assert_mem_eq(rounded.memory, expected, n * sizeof(uint16_t));
    area_free(&rounded);
    check_shard(&p, param, n, names[kind]);
    check_shard(&a, first, n, names[kind]);
    check_shard(&b, second, n, names[kind]);
}

TESTS_BELOW(.timeout = 120);

LOOP_TEST(optimizers, 0, 9)
{
    struct random random = {(uint64_t)_i + 1};
    for (int l = RACES ? LENGTHS - 1 : 0; l < LENGTHS; l++)
        for (int off = 0; off < (RACES ? 1 : 2); off++) {
            compare_step(&random, _i, lengths[l], (size_t)off, false, false);
            compare_step(&random, _i, lengths[l], (size_t)off, true, false);
        }
    compare_step(&random, _i, 1000, 0, true, true);
    compare_step(&random, _i, 1000, 0, false, true);
}

/* ---- arrays in bf16 ---- */

/* An optimizer's arguments, by the kinds above. */
struct halved {
    int kind;
    struct adadelta_args adadelta;
    struct sgd_args sgd;
    struct adam_args adam;
    struct lion_args lion;
    struct adagrad_args adagrad;
};

static void step_wide(const void *user, size_t n, float *param, const float *grad,
                      float *const *slots)
{
    const struct halved *it = user;
    if (it->kind == 0) kernel_adadelta(n, param, grad, slots[0], slots[1], &it->adadelta);
    else if (it->kind == 1) kernel_sgd(n, param, grad, slots[0], &it->sgd);
    else if (it->kind == 2) kernel_adam(n, param, grad, slots[0], slots[1], &it->adam);
    else if (it->kind == 3) kernel_lion(n, param, grad, slots[0], &it->lion);
    else kernel_adagrad(n, param, grad, slots[0], &it->adagrad);
}

static int step_on_cuda(const struct cuda_launch *on, const struct halved *it, size_t n,
                        void *param, uint16_t *copy, const float *grad, void *const *slots,
                        const struct cuda_gate_in *in)
{
    if (it->kind == 0)
        return cuda_adadelta(on, n, param, copy, grad, slots[0], slots[1], &it->adadelta, in);
    if (it->kind == 1) return cuda_sgd(on, n, param, copy, grad, slots[0], &it->sgd, in);
    if (it->kind == 2)
        return cuda_adam(on, n, param, copy, grad, slots[0], slots[1], &it->adam, in);
    if (it->kind == 3) return cuda_lion(on, n, param, copy, grad, slots[0], &it->lion, in);
    return cuda_adagrad(on, n, param, copy, grad, slots[0], &it->adagrad, in);
}

/* An array of either type, and a copy of it for CUDA at an address that is off by some elements. */
struct either {
    bool half;
    size_t n;
    _Alignas(16) float wide[MOST];
    _Alignas(16) uint16_t halves[MOST];
    struct area area;
};

static void *fill(struct either *array, struct random *random, bool half, size_t n, size_t off)
{
    size_t size = half ? sizeof(uint16_t) : sizeof(float);
    array->half = half, array->n = n;
    fill_random(random, array->wide, (int64_t)n);
    for (size_t i = 0; i < n; i++) array->wide[i] = fabsf(array->wide[i]);
    kernel_f32_to_bf16(n, array->halves, array->wide);
    array->area = area_new(n * size, off * size);
    memcpy(array->area.memory, half ? (void *)array->halves : (void *)array->wide, n * size);
    return array->area.memory;
}

static void expect_equal(struct either *array, const char *what)
{
    size_t size = array->half ? sizeof(uint16_t) : sizeof(float);
    ck_assert_msg(area_edges_whole(&array->area), "%s: written beyond %zu", what, array->n);
    const void *expected = array->half ? (void *)array->halves : (void *)array->wide;
    ck_assert_msg(memcmp(array->area.memory, expected, array->n * size) == 0,
                  "%s of %zu differ from the CPU's", what, array->n);
    area_free(&array->area);
}

/* `types`: 1, the parameters are bf16; 2, Adam's averages; 3, both. */
static void compare_halves(struct random *random, int kind, int types, size_t n, size_t off,
                           bool live)
{
    static struct either param, slots[2];
    static float grad[MOST];
    struct halved it = {.kind = kind,
                        .adadelta = {1, 0.9f, 1e-6f, 0.01f, 0.37f, (float)(1 - 0.9)},
                        .sgd = {.lr = 0.1f,
                                .momentum = 0.9f * (float)(n % 2),
                                .one_minus_dampening = 1,
                                .grad_scale = 0.37f},
                        .adam = {.beta1 = 0.9f,
                                 .one_minus_beta1 = (float)(1 - 0.9),
                                 .beta2 = 0.999f,
                                 .one_minus_beta2 = (float)(1 - 0.999),
                                 .eps = 1e-8f,
                                 .shrink = 0.9999f,
                                 .corrected_lr = 0.003f,
                                 .corrected_root = 0.2f,
                                 .grad_scale = 0.37f},
                        .lion = {.lr = 0.003f, .beta1 = 0.9f, .shrink = 1, .grad_scale = 0.37f},
                        .adagrad = {.decayed_lr = 0.01f, .eps = 1e-10f, .grad_scale = 0.37f}};
    bool half = types != 2, packs = types != 1;
    const uint64_t step = UINT64_C(0x123456789a), other = 7;
    const struct cuda_halves halves = {.param = half,
                                       .slots = packs,
                                       .seed = UINT64_C(0xfedcba9876543210),
                                       .first = UINT64_C(0x5000000000) + 8,
                                       .parameter = 11,
                                       .step = live ? other : step,
                                       .live = live ? &step : NULL};
    const struct cuda_launch on = {.processors = 2, .halves = &halves};
    float scale = 0.37f, skip = 0;
    const struct cuda_gate_in gate = {.skipped = &skip, .scale = &scale};
    fill_random(random, grad, (int64_t)n);
    if (n > 700) grad[5] = NAN, grad[650] = 3e38f, grad[651] = INFINITY;
    void *p = fill(&param, random, half, n, off), *s[2];
    for (int k = 0; k < 2; k++) s[k] = fill(&slots[k], random, packs, n, off);
    struct kernel_halves cpu = {.n = n,
                                .grad = grad,
                                .seed = halves.seed,
                                .step = step,
                                .parameter = halves.parameter,
                                .first = halves.first,
                                .update = step_wide,
                                .user = &it};
    if (half) cpu.half_param = param.halves;
    else cpu.param = param.wide;
    for (int k = 0; k < 2; k++) {
        if (packs) cpu.half_slots[k] = slots[k].halves;
        else cpu.slots[k] = slots[k].wide;
    }
    kernel_step_halves(&cpu);
    static uint16_t copy[MOST + 8];
    bool copies = types == 2;
    copy[n] = 77;
    ck_assert_int_eq(step_on_cuda(&on, &it, n, p, copies ? copy : NULL, grad, s, &gate), 0);
    for (size_t i = 0; i < n && copies; i++)
        ck_assert_uint_eq(copy[i], bfloat16_from_f32(((float *)p)[i]));
    ck_assert_uint_eq(copy[n], 77);
    expect_equal(&param, "parameters");
    expect_equal(&slots[0], "first slots");
    expect_equal(&slots[1], "second slots");
}

LOOP_TEST(halves, 0, 7)
{
    static const int kinds[] = {0, 1, 2, 2, 2, 3, 4}, types[] = {1, 1, 1, 2, 3, 1, 1};
    struct random random = {71 + (uint64_t)_i};
    for (int l = RACES ? LENGTHS - 1 : 0; l < LENGTHS; l++)
        for (int off = 0; off < (RACES ? 1 : 2); off++)
            compare_halves(&random, kinds[_i], types[_i], lengths[l], (size_t)off, l % 2);
}

enum { PACKED_MOST = (MOST / KERNEL_PACKED_BLOCK + 1) * KERNEL_PACKED_WORDS };

static void compare_packed(struct random *random, size_t n, size_t off, bool skipped)
{
    static float param[MOST], grad[MOST], first[PACKED_MOST], second[PACKED_MOST];
    size_t words = (n + KERNEL_PACKED_BLOCK - 1) / KERNEL_PACKED_BLOCK * KERNEL_PACKED_WORDS;
    memset(first, 0, sizeof first);
    memset(second, 0, sizeof second);
    fill_random(random, param, (int64_t)n);
    struct shard p = shard_of(param, n, off), a = shard_of(first, words, off);
    struct shard b = shard_of(second, words, off);
    struct area rounded = area_new(n * sizeof(uint16_t), off * sizeof(uint16_t));
    static uint16_t expected[MOST];
    kernel_f32_to_bf16(n, expected, param);
    memcpy(rounded.memory, expected, n * sizeof(uint16_t));
    for (int step = 0; step < 3; step++) {
        struct adam_args args = {.beta1 = 0.9f,
                                 .one_minus_beta1 = (float)(1 - 0.9),
                                 .beta2 = 0.999f,
                                 .one_minus_beta2 = (float)(1 - 0.999),
                                 .eps = 1e-8f,
                                 .shrink = 0.9999f,
                                 .corrected_lr = 0.003f,
                                 .corrected_root = 0.2f,
                                 .grad_scale = 0.37f};
        float skip = skipped && step == 2 ? 1 : 0, scale = args.grad_scale;
        struct cuda_gate_in gate = {.skipped = &skip, .scale = &scale};
        fill_random(random, grad, (int64_t)n);
        for (size_t i = 0; i < n; i++)
            if (i / KERNEL_PACKED_BLOCK % 3 == 1) grad[i] = 0; /* blocks whose scale is 0 */
        if (step == 1 && n > 7) grad[3] = NAN, grad[7] = INFINITY;
        if (skip == 0) kernel_adam_packed(n, param, grad, first, second, &args);
        args.grad_scale = 99;
        int error = cuda_adam_packed(&launch, n, p.values, (uint16_t *)rounded.memory, grad,
                                     a.values, b.values, &args, &gate);
        ck_assert_int_eq(error, 0);
    }
    /* of numbers that are none, either device has its own bits */
    for (size_t i = 0; i < n; i++) {
        if (isnan(param[i]) && isnan(p.values[i])) p.values[i] = param[i];
    }
    kernel_f32_to_bf16(n, expected, param);
    ck_assert_msg(area_edges_whole(&rounded), "the copy is written beyond %zu", n);
    for (size_t i = 0; i < n; i++)
        ck_assert(isnan(param[i]) || ((uint16_t *)rounded.memory)[i] == expected[i]);
    area_free(&rounded);
    check_shard(&p, param, n, "packed: parameters");
    check_shard(&a, first, words, "packed: averages");
    check_shard(&b, second, words, "packed: averages of squares");
}

TEST(packed_averages)
{
    struct random random = {5};
    for (int l = RACES ? LENGTHS - 1 : 0; l < LENGTHS; l++)
        for (int off = 0; off < (RACES ? 1 : 2); off++)
            compare_packed(&random, lengths[l], (size_t)off, false);
    compare_packed(&random, 1000, 0, true);
}

/* The code of each of the 65,536 steps between -1 and 1, and of squares between 0 and 1. */
TEST(packed_codes)
{
    enum { STEPS = 1 << 16, EACH = KERNEL_PACKED_BLOCK - 1, BLOCKS = STEPS / EACH + 1 };
    enum { COUNT = BLOCKS * KERNEL_PACKED_BLOCK, WORDS = BLOCKS * KERNEL_PACKED_WORDS };
    static float grad[COUNT], param[2][COUNT], first[2][WORDS], second[2][WORDS];
    for (int i = 0; i < COUNT; i++) {
        int block = i / KERNEL_PACKED_BLOCK, place = i % KERNEL_PACKED_BLOCK;
        int step = block * EACH + place < STEPS ? block * EACH + place : STEPS - 1;
        grad[i] = place == EACH ? 1 : 2 * (float)step / (STEPS - 1) - 1;
    }
    const struct adam_args args = {.one_minus_beta1 = 1,
                                   .one_minus_beta2 = 1,
                                   .eps = 1e-8f,
                                   .shrink = 1,
                                   .corrected_lr = 1,
                                   .corrected_root = 1,
                                   .grad_scale = 1};
    float targets = 1, counted = 1;
    const struct cuda_gate_in mean = {.targets = &targets, .counted = &counted};
    kernel_adam_packed(COUNT, param[0], grad, first[0], second[0], &args);
    int error =
        cuda_adam_packed(&launch, COUNT, param[1], NULL, grad, first[1], second[1], &args, &mean);
    ck_assert_int_eq(error, 0);
    ck_assert_mem_eq(first[0], first[1], sizeof first[0]);
    ck_assert_mem_eq(second[0], second[1], sizeof second[0]);
    ck_assert_mem_eq(param[0], param[1], sizeof param[0]);
}

/* What blocks of frozen parameters stand for, of int8 and of nf4. */
static void compare_base(struct random *random, bool nf4, bool low, size_t n, size_t off)
{
    enum { WORDS = 2 * KERNEL_NF4_WORDS + MOST / 2 };
    static float values[MOST], packed[WORDS], expected[MOST];
    static uint16_t halves[MOST];
    size_t size = low ? sizeof(uint16_t) : sizeof(float);
    fill_random(random, values, (int64_t)n);
    for (size_t at = 0; at < n && nf4; at += KERNEL_NF4_BLOCK) {
        size_t block = at / KERNEL_NF4_BLOCK, number = block % KERNEL_PACKED_BLOCK;
        static float most[KERNEL_PACKED_BLOCK];
        float *group = packed + block / KERNEL_PACKED_BLOCK * KERNEL_NF4_WORDS;
        most[number] = kernel_nf4_pack(n - at < KERNEL_NF4_BLOCK ? n - at : KERNEL_NF4_BLOCK,
                                       values + at, kernel_nf4_codes(group, number));
        kernel_nf4_scale(number + 1, most, 0.25f, group);
    }
    if (!nf4) kernel_int8_pack(n, values, packed);
    (nf4 ? kernel_nf4_unpack : kernel_int8_unpack)(n, packed, low ? NULL : expected,
                                                   low ? halves : NULL);
    struct area area = area_new(n * size, off * size);
    int error = (nf4 ? cuda_nf4_unpack : cuda_int8_unpack)(&launch, low ? DTYPE_BF16 : DTYPE_F32, n,
                                                           packed, area.memory);
    ck_assert_int_eq(error, 0);
    ck_assert(area_edges_whole(&area));
    ck_assert_mem_eq(area.memory, low ? (void *)halves : expected, n * size);
    area_free(&area);
}

TEST(frozen_blocks)
{
    struct random random = {6};
    for (int l = RACES ? LENGTHS - 1 : 0; l < LENGTHS; l++)
        for (int way = 0; way < 8; way++)
            compare_base(&random, way % 2, way / 2 % 2, lengths[l], (size_t)way / 4);
}

/* The last length keeps every thread of the most blocks busy more than once. */
LOOP_TEST(norms, 0, LENGTHS + 1)
{
    enum { LONG = 9 * 131072 + 1035 };
    struct random random = {7 + (uint64_t)_i};
    static float memory[LONG + 8];
    double parts[CUDA_NORM_PARTS];
    float *values = memory + (16 - (uintptr_t)memory % 16) % 16 / sizeof(float);
    size_t n = _i < LENGTHS ? lengths[_i] : LONG;
    fill_random(&random, values, (int64_t)n);
    double total = 3, again = 3, largest = 0.25, first = 3 + kernel_sum_squares(n, values);
    ck_assert_int_eq(cuda_norm(&launch, false, n, values, parts, &total), 0);
    ck_assert_double_eq_tol(total, first, 1e-12 * first);
    ck_assert_int_eq(cuda_norm(&launch, true, n, values, parts, &largest), 0);
    ck_assert_double_eq(largest, fmax(0.25, kernel_max_abs(n, values)));
    struct cuda_launch wide = {.processors = 132};
    emulation_set_seed(n);
    memmove(values + 1, values, n * sizeof *values);
    ck_assert_int_eq(cuda_norm(&wide, false, n, values + 1, parts, &again), 0);
    ck_assert_msg(memcmp(&total, &again, sizeof total) == 0,
                  "a norm depends on the device or the address");
    values[1 + n / 2] = NAN;
    ck_assert_int_eq(cuda_norm(&launch, true, n, values + 1, parts, &largest), 0);
    ck_assert(isnan(largest));
}

/* A matrix over its norm, in place or elsewhere, as kernel_orthogonalize begins; one of zeros stays
 * what it is. */
LOOP_TEST(matrix_over_its_norm, 0, LENGTHS)
{
    static float values[MOST], expected[MOST];
    struct random random = {21 + (uint64_t)_i};
    size_t n = lengths[_i];
    double squares = 0;
    for (int zeros = 0; zeros < 2; zeros++) {
        if (zeros == 0) fill_random(&random, values, (int64_t)n);
        else memset(values, 0, sizeof values);
        squares = kernel_sum_squares(n, values);
        float norm = fmaxf((float)sqrt(squares), KERNEL_MUON_EPS);
        for (size_t i = 0; i < n; i++) expected[i] = values[i] / norm;
        struct shard apart = shard_of(expected, n, 1), here = shard_of(values, n, 0);
        memset(apart.values, 0xff, n * sizeof(float));
        ck_assert_int_eq(cuda_muon_normalize(&launch, n, apart.values, values, &squares), 0);
        ck_assert_int_eq(cuda_muon_normalize(&launch, n, here.values, here.values, &squares), 0);
        check_shard(&apart, expected, n, "a matrix over its norm");
        check_shard(&here, expected, n, "a matrix over its norm, in place");
    }
}

/* The messages of step_cpu.c, again. */
/* ---- Adafactor ---- */

/* A stack of matrices that some ranks cut anywhere; some have no element of it. */
struct stack {
    int64_t matrices, height, width;
    int ranks;
};
static const struct stack stacks[] = {{1, 70, 300, 3}, {1, 300, 9, 1},  {5, 3, 3, 4},
                                      {2, 40, 33, 5},  {1, 1, 1000, 2}, {1, 90, 40, 36}};
enum { STACKS = 6, STACK_MOST = 21000, RANKS_MOST = 36, SUMS_MOST = 2 * 1001 };

static void expect_doubles(const double *found, const double *expected, int64_t n, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(fabs(found[i] - expected[i]) <= 1e-13 * fabs(expected[i]),
                      "%s: %lld of %lld is %.17g, not %.17g", what, (long long)i, (long long)n,
                      found[i], expected[i]);
}

static struct cuda_factor_part part_of(const struct kernel_factor *of)
{
    int64_t first = of->first / of->width, end = (of->first + of->count - 1) / of->width + 1;
    int64_t column = first / of->height * of->width;
    return (struct cuda_factor_part){first, end - first, column,
                                     ((end - 1) / of->height + 1) * of->width - column};
}

/* From every rank's sums of its part to those of the whole, and from these to updates: the sums are
 * the CPU's but for the order in which doubles are added, and what follows has its bits. */
LOOP_TEST(factors, 0, STACKS)
{
    static float grad[STACK_MOST], param[STACK_MOST], found[STACK_MOST + 4];
    static float states[2][SUMS_MOST], factors[2][SUMS_MOST];
    static double sent[RANKS_MOST * SUMS_MOST], own[SUMS_MOST], sums[SUMS_MOST], whole[SUMS_MOST];
    const struct stack *it = &stacks[_i];
    struct random random = {31 + (uint64_t)_i};
    int64_t n = it->matrices * it->height * it->width, rows = n / it->width,
            columns = n / it->height;
    const struct kernel_factor all = {.count = n, .height = it->height, .width = it->width};
    const struct factor_args args = {0.3f, 0.7f, 1e-6f, 1e-9f, 0.01, 1e-3, 1};
    float scale = 0.37f, skip = 0;
    const struct cuda_gate_in gate = {.skipped = &skip, .scale = &scale};
    fill_random(&random, grad, n);
    fill_random(&random, param, n);
    kernel_factor_sums(&all, grad, scale, whole, whole + rows);

    struct cuda_factor_part parts[RANKS_MOST];
    int count = 0;
    double *at = sent;
    for (int r = 0; r < it->ranks; r++) {
        struct kernel_factor piece = all;
        piece.first = n * r / it->ranks, piece.count = n * (r + 1) / it->ranks - piece.first;
        memset(own, 0xff, sizeof own);
        const float *mine = grad + piece.first;
        ck_assert_int_eq(cuda_factor_sums(&launch, &piece, mine, own, own + rows, &gate), 0);
        const struct cuda_factor_part part = parts[count++] = part_of(&piece);
        memcpy(at, own + part.first_row, (size_t)part.rows * sizeof *at);
        at += part.rows;
        memcpy(at, own + rows + part.first_column, (size_t)part.columns * sizeof *at);
        at += part.columns;
    }
    ck_assert_int_eq(cuda_factor_collect(&launch, parts, count, sent, sums, rows, columns, &gate),
                     0);
    expect_doubles(sums, whole, rows + columns, "sums");

    for (int64_t i = 0; i < rows + columns; i++)
        states[0][i] = states[1][i] = fabsf(random_float(&random));
    ck_assert_int_eq(cuda_factor_renew(&launch, &all, whole, states[0], factors[0], &args, &gate),
                     0);
    for (int64_t i = 0; i < rows + columns; i++) {
        float mean = (float)(whole[i] / (double)(i < rows ? it->width : it->height));
        states[1][i] = kernel_lerp(states[1][i], mean, args.weight, args.rest);
        factors[1][i] = states[1][i];
    }
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0;
        int64_t first = i / it->height * it->height;
        for (int64_t k = 0; k < it->height; k++) sum += states[1][first + k];
        factors[1][i] /= fmaxf((float)(sum / (double)it->height), args.least_mean);
    }
    ck_assert_mem_eq(states[0], states[1], (size_t)(rows + columns) * sizeof(float));
    ck_assert_mem_eq(factors[0], factors[1], (size_t)(rows + columns) * sizeof(float));

    double norm_parts[CUDA_NORM_PARTS], totals[2 * RANKS_MOST], updated = 0, squares = 0;
    int64_t off = _i % 2; /* an address that is not aligned */
    memcpy(found + off, grad, (size_t)n * sizeof *found);
    for (int r = 0; r < it->ranks; r++) {
        struct kernel_factor piece = all;
        piece.first = n * r / it->ranks, piece.count = n * (r + 1) / it->ranks - piece.first;
        int error = cuda_factor_update(&launch, &piece, found + off + piece.first,
                                       param + piece.first, factors[0], factors[0] + rows, &args,
                                       norm_parts, totals + (size_t)2 * (size_t)r, &gate);
        ck_assert_int_eq(error, 0);
        updated += totals[2 * r], squares += totals[2 * r + 1];
    }
    kernel_factor_update(&all, grad, scale, factors[1], factors[1] + rows, args.least);
    ck_assert_mem_eq(found + off, grad, (size_t)n * sizeof *found);
    const double expected[] = {kernel_sum_squares((size_t)n, grad),
                               kernel_sum_squares((size_t)n, param)};
    expect_doubles(&updated, &expected[0], 1, "updates");
    expect_doubles(&squares, &expected[1], 1, "parameters");

    const struct cuda_factor_totals of = {totals, 2, n, it->ranks};
    double root = sqrt(squares / (double)n), length = sqrt(updated / (double)n);
    float rate = (float)(fmax(args.eps2, root) * args.rate / fmax(1, length / args.clip));
    ck_assert_int_eq(cuda_factor_scale(&launch, (size_t)n, found + off, &of, &args, &gate), 0);
    for (int64_t i = 0; i < n; i++) ck_assert(found[off + i] == grad[i] * rate);

    /* A skipped step changes nothing, whatever was sent. */
    skip = 1;
    memcpy(states[1], states[0], sizeof states[0]);
    memcpy(grad, found + off, (size_t)n * sizeof *grad);
    ck_assert_int_eq(cuda_factor_renew(&launch, &all, whole, states[0], factors[0], &args, &gate),
                     0);
    ck_assert_int_eq(cuda_factor_update(&launch, &all, found + off, param, factors[0],
                                        factors[0] + rows, &args, norm_parts, totals, &gate),
                     0);
    ck_assert_mem_eq(states[0], states[1], sizeof states[0]);
    ck_assert_mem_eq(found + off, grad, (size_t)n * sizeof *found);
}

/* Of vectors, with the variance of each element. */
LOOP_TEST(variances, 0, LENGTHS)
{
    static float grad[MOST], param[MOST], variance[MOST];
    struct random random = {41 + (uint64_t)_i};
    size_t n = lengths[_i];
    const struct factor_args args = {0.6f, 0.4f, 1e-6f, 1e-9f, 0.01, 1e-3, 1};
    float scale = 0.37f, skip = 0;
    const struct cuda_gate_in gate = {.skipped = &skip, .scale = &scale};
    fill_random(&random, grad, (int64_t)n);
    fill_random(&random, param, (int64_t)n);
    for (size_t i = 0; i < n; i++) variance[i] = fabsf(random_float(&random));
    struct shard values = shard_of(grad, n, (size_t)_i % 2), state = shard_of(variance, n, 1);
    double parts[CUDA_NORM_PARTS], totals[2];
    ck_assert_int_eq(cuda_variance_update(&launch, n, values.values, param, state.values, &args,
                                          parts, totals, &gate),
                     0);
    kernel_variance_update(n, grad, scale, variance, args.weight, args.rest, args.least);
    const double expected[] = {kernel_sum_squares(n, grad), kernel_sum_squares(n, param)};
    expect_doubles(totals, expected, 2, "a vector's sums");
    check_shard(&values, grad, n, "updates");
    check_shard(&state, variance, n, "variances");
}

TEST(gate)
{
    static const double totals[] = {3, 6};
    float loss = 1.5f, targets = 3, counted = 6, norm, scale, skipped;
    struct cuda_gate_args args = {.max_norm = 1};
    const struct cuda_gate_stats stats = {.loss = &loss,
                                          .targets = &targets,
                                          .counted = &counted,
                                          .norm = &norm,
                                          .scale = &scale,
                                          .skipped = &skipped};
    ck_assert_int_eq(cuda_gate(&launch, &args, totals, 2, &stats), 0);
    ck_assert_float_eq(norm, 1.5f);
    ck_assert_float_eq(scale, (float)(0.5 * (double)(1 / (1.5f + 1e-6f))));
    ck_assert_float_eq(skipped, 0);
    args.largest = true;
    args.max_norm = 0;
    ck_assert_int_eq(cuda_gate(&launch, &args, totals, 2, &stats), 0);
    ck_assert_float_eq(norm, 3);
    ck_assert_float_eq(scale, 0.5f);
    loss = INFINITY;
    ck_assert_int_eq(cuda_gate(&launch, &args, totals, 2, &stats), 0);
    ck_assert(skipped == 1 && scale == 0);
    loss = 1, args.skip = true;
    ck_assert_int_eq(cuda_gate(&launch, &args, totals, 2, &stats), 0);
    ck_assert(skipped == 1 && norm == 3);
    args.skip = false, counted = 0;
    ck_assert_int_eq(cuda_gate(&launch, &args, totals, 2, &stats), 0);
    ck_assert(skipped == 1 && scale == 0 && norm == 0);
}

TEST(rounding_in_place)
{
    struct random random = {9};
    static float values[MOST + 1], given[MOST + 1];
    for (int l = 0; l < LENGTHS; l++) {
        size_t n = lengths[l];
        fill_random(&random, given, (int64_t)n);
        memcpy(values, given, n * sizeof(float));
        values[n] = 77;
        ck_assert_int_eq(cuda_pack_bf16(&launch, n, values), 0);
        const uint16_t *packed = (const uint16_t *)values;
        for (size_t i = 0; i < n; i++) ck_assert_uint_eq(packed[i], bfloat16_from_f32(given[i]));
        ck_assert_float_eq(values[n], 77);
        memcpy(values, given, n * sizeof(float));
        ck_assert_int_eq(cuda_round_in_place(&launch, n, values), 0);
        for (size_t i = 0; i < n; i++)
            ck_assert_float_eq(values[i], bfloat16_to_f32(bfloat16_from_f32(given[i])));
    }
}

/* Several numbers at a time where addresses and number allow it, with the same bits. */
TEST(rounding)
{
    struct random random = {8};
    static _Alignas(16) float given[MOST + 4], back[MOST + 2];
    static _Alignas(16) uint16_t rounded[MOST + 5];
    fill_random(&random, given, MOST + 4);
    for (int l = 0; l < 2 * LENGTHS; l++)
        for (size_t off = 0; off < 4; off++) {
            size_t n = l < LENGTHS ? lengths[l] : lengths[l - LENGTHS] / 4 * 4;
            uint16_t *out = rounded + (off == 3 ? 0 : off);
            out[n] = 77;
            ck_assert_int_eq(cuda_f32_to_bf16(&launch, n, out, given + off), 0);
            for (size_t i = 0; i < n; i++)
                ck_assert_uint_eq(out[i], bfloat16_from_f32(given[off + i]));
            ck_assert_uint_eq(out[n], 77);
            if (off > 1) continue;
            back[off + n] = 77;
            ck_assert_int_eq(cuda_bf16_to_f32(&launch, n, back + off, out), 0);
            for (size_t i = 0; i < n; i++)
                ck_assert_float_eq(back[off + i], bfloat16_to_f32(out[i]));
            ck_assert_float_eq(back[off + n], 77);
        }
}

/* In rank order, like the CPU's communicators. */
TEST(parts)
{
    enum { PARTS = 5 };
    struct random random = {10};
    static uint16_t parts[PARTS * MOST];
    static float found[MOST], expected[MOST];
    for (int l = 0; l < LENGTHS; l++) {
        size_t n = lengths[l];
        const uint16_t *at[PARTS];
        for (size_t i = 0; i < PARTS * n; i++) parts[i] = bfloat16_from_f32(random_float(&random));
        for (int p = 0; p < PARTS; p++) at[p] = parts + (size_t)p * n;
        kernel_sum_ordered_bf16(n, expected, at, PARTS, 1);
        ck_assert_int_eq(cuda_sum_parts_bf16(&launch, n, found, parts, PARTS), 0);
        ck_assert_int_eq(memcmp(found, expected, n * sizeof(float)), 0);
    }
}

TEST(flat)
{
    struct random random = {11};
    static float a[MOST], b[MOST], sum[MOST];
    for (int l = 0; l < LENGTHS; l++) {
        size_t n = lengths[l];
        fill_random(&random, a, (int64_t)n);
        fill_random(&random, b, (int64_t)n);
        memcpy(sum, a, sizeof sum);
        kernel_add(n, sum, b);
        ck_assert_int_eq(cuda_add(&launch, n, a, b), 0);
        ck_assert_int_eq(memcmp(a, sum, n * sizeof(float)), 0);
    }
}

/* A column's sum in the order that only the number of rows determines: chunks of rows, every eighth
 * row of a chunk, those sums, the chunks likewise. */
static float sum_in_order(int64_t rows, int64_t stride, const float *column)
{
    enum { LEAST = 64, MOST_CHUNKS = 256, WAYS = 8 };
    int64_t chunk = (rows + MOST_CHUNKS - 1) / MOST_CHUNKS;
    if (chunk < LEAST) chunk = LEAST;
    float chunks[WAYS] = {0}, total = 0;
    for (int64_t first = 0, number = 0; first < rows; first += chunk, number++) {
        float ways[WAYS] = {0}, sum = 0;
        for (int64_t row = first; row < first + chunk && row < rows; row++)
            ways[(row - first) % WAYS] += column[row * stride];
        for (int way = 0; way < WAYS; way++) sum += ways[way];
        chunks[number % WAYS] += sum;
    }
    for (int way = 0; way < WAYS; way++) total += chunks[way];
    return total;
}

/* Sums of columns, 16 bytes of a row at a time where addresses and strides allow it: the same bits
 * either way, nothing between the rows is used, nothing beside the sums written. */
TEST(column_sums)
{
    enum { BIGGEST = 700 * 272 };
    static const struct {
        int64_t rows, columns, stride;
    } sizes[] = {{1, 1, 1},     {5, 8, 8},       {70, 24, 24},  {700, 257, 257},
                 {9, 300, 304}, {700, 263, 272}, {65, 768, 768}};
    struct random random = {17};
    for (size_t c = RACES ? COUNT_OF(sizes) - 2 : 0; c < COUNT_OF(sizes); c++)
        for (int way = 0; way < 8; way++) {
            bool low = way % 2 != 0, add = way / 2 % 2 != 0, off = way / 4 != 0;
            int64_t rows = sizes[c].rows, columns = sizes[c].columns, stride = sizes[c].stride;
            size_t size = low ? sizeof(uint16_t) : sizeof(float);
            int64_t count = (rows - 1) * stride + columns;
            static float exact[BIGGEST];
            struct area values = area_new((size_t)count * size, off ? size : 0);
            struct area sums = area_new((size_t)columns * sizeof(float), 0);
            struct area workspace = area_new(cuda_column_sum_bytes(rows, columns), 0);
            float *sum = (float *)sums.memory;
            for (int64_t i = 0; i < count; i++) {
                bool gap = i % stride >= columns;
                uint16_t bits = gap ? 0xffff : bfloat16_from_f32(random_float(&random));
                exact[i] = low ? bfloat16_to_f32(bits) : gap ? NAN : random_float(&random);
                if (low) ((uint16_t *)values.memory)[i] = bits;
                else ((float *)values.memory)[i] = exact[i];
            }
            for (int64_t i = 0; i < columns && add; i++) sum[i] = (float)i;
            ck_assert_int_eq(cuda_column_sum_apart(&launch, low ? DTYPE_BF16 : DTYPE_F32,
                                                   values.memory, rows, columns, stride, sum, add,
                                                   workspace.memory),
                             0);
            ck_assert(area_edges_whole(&sums) && area_edges_whole(&workspace));
            for (int64_t i = 0; i < columns; i++) {
                float expected = sum_in_order(rows, stride, exact + i) + (add ? (float)i : 0);
                ck_assert_msg(sum[i] == expected, "column %d of (%d, %d), way %d: %.9g, not %.9g",
                              (int)i, (int)rows, (int)columns, way, sum[i], expected);
            }
            area_free(&values);
            area_free(&sums);
            area_free(&workspace);
        }
}
