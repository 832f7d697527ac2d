/*
 * AdamW with its state in 8 bits against bitsandbytes (tests/parity/blocks.txt), byte for byte; and
 * where that state lies (fsdp/slots.h), against a count of every element.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "digest/digest.h"
#include "fsdp/units.h"
#include "kernels/kernels.h"
#include "runtime/step_args.h"
#include "tests/testing.h"

TESTS_BELOW(.timeout = 60);

static void read_numbers(struct buf *text)
{
    const char *root = getenv("srcdir");
    char *path = file_path_join(root != NULL ? root : ".", "tests/parity/blocks.txt");
    status_t status = file_read(path, 1 << 20, text);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    free(path);
}

TEST(maps_are_those_of_bitsandbytes)
{
    struct buf text = {0};
    read_numbers(&text);
    int seen[2] = {0};
    for (const char *line = buf_text(&text); line != NULL; line = strchr(line + 1, '\n')) {
        int is_signed, at = 0;
        if (sscanf(line, " map %d%n", &is_signed, &at) != 1) continue;
        float values[256];
        kernel_packed_map(is_signed != 0, values);
        for (int i = 0; i < 16; i++) {
            unsigned expected, found;
            int more = 0;
            ck_assert_int_eq(sscanf(line + at, "%x%n", &expected, &more), 1);
            at += more;
            memcpy(&found, &values[seen[is_signed]++], sizeof found);
            ck_assert_msg(found == expected, "map %d, code %d: %08x, not %08x", is_signed,
                          seen[is_signed] - 1, found, expected);
        }
    }
    ck_assert_int_eq(seen[0], 256);
    ck_assert_int_eq(seen[1], 256);
    buf_deinit(&text);
}

/* As in make_block_numbers.py. */
static float fraction(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((float)(*state >> 40) - (1 << 23)) / (1 << 23);
}

static void draw(uint64_t *state, size_t n, bool gradients, float *values)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = fraction(state);
        if (gradients) values[i] *= i % 5 == 4 ? 0 : 1 / (float)(1 << i % 17);
    }
}

static void expect_sum(const void *bytes, size_t size, const char *expected, const char *what,
                       int step)
{
    struct digest sum;
    char digits[DIGEST_DIGITS + 1];
    digest_of(bytes, size, &sum);
    ck_assert_msg(strcmp(digest_format(&sum, digits), expected) == 0, "step %d: other %s", step,
                  what);
}

/* The codes and the scales of a slot, each together. */
static void expect_state(const float *slot, size_t n, const char *codes, const char *scales,
                         int step)
{
    size_t blocks = (n + KERNEL_PACKED_BLOCK - 1) / KERNEL_PACKED_BLOCK;
    uint8_t *all = mem_alloc(blocks * KERNEL_PACKED_BLOCK);
    float *each = mem_alloc_array(blocks, sizeof *each);
    for (size_t b = 0; b < blocks; b++) {
        each[b] = slot[b * KERNEL_PACKED_WORDS];
        memcpy(all + b * KERNEL_PACKED_BLOCK, slot + b * KERNEL_PACKED_WORDS + 1,
               KERNEL_PACKED_BLOCK);
    }
    expect_sum(all, n, codes, "codes", step);
    expect_sum(each, blocks * sizeof *each, scales, "scales", step);
    free(all);
    free(each);
}

struct trained { /* one tensor of the file */
    size_t n;
    uint64_t draws;
    float *param, *grad, *slots[2];
};

static void train_step(struct trained *it, int step, int threads)
{
    const struct optimizer_step settings = {.kind = OPTIMIZER_ADAMW,
                                            .lr = 0.01,
                                            .beta1 = 0.9,
                                            .beta2 = 0.999,
                                            .eps = 1e-8,
                                            .weight_decay = 0.1,
                                            .taken = (uint64_t)step};
    const struct adam_args args = step_adam_args(&settings, 1);
    kernels_set_threads(threads);
    draw(&it->draws, it->n, true, it->grad);
    kernel_adam_packed(it->n, it->param, it->grad, it->slots[0], it->slots[1], &args);
}

/* The first values: a step rounds them, below 1, by at most 2^-24, as does bitsandbytes. */
static void expect_values(const struct trained *it, const char *text)
{
    for (int i = 0; i < 32; i++) {
        double expected;
        int more = 0;
        ck_assert_int_eq(sscanf(text, "%lf%n", &expected, &more), 1);
        text += more;
        ck_assert_double_eq_tol(it->param[i], expected, 50 * 0x1p-23);
    }
}

static void forget(struct trained *it)
{
    free(it->param);
    free(it->grad);
    for (int s = 0; s < 2; s++) free(it->slots[s]);
    *it = (struct trained){0};
}

/* However many threads share the blocks; test_optimizer_loops has the instruction sets. */
LOOP_TEST(steps_are_those_of_bitsandbytes, 1, 3)
{
    struct buf text = {0};
    struct trained it = {0};
    int steps = 0, ends = 0;
    read_numbers(&text);
    for (const char *line = buf_text(&text); line != NULL; line = strchr(line + 1, '\n')) {
        char sums[4][DIGEST_DIGITS + 1];
        size_t n;
        int step, at = 0;
        if (sscanf(line, " values %zu%n", &n, &at) == 1) {
            expect_values(&it, line + at);
            forget(&it);
            ends++;
        }
        if (sscanf(line, " step %zu %d %64s %64s %64s %64s", &n, &step, sums[0], sums[1], sums[2],
                   sums[3]) != 6)
            continue;
        if (step == 0) {
            it = (struct trained){.n = n, .draws = n};
            it.param = mem_alloc_array(n, sizeof(float));
            it.grad = mem_alloc_array(n, sizeof(float));
            for (int s = 0; s < 2; s++)
                it.slots[s] = mem_alloc_array((n / KERNEL_PACKED_BLOCK + 1) * KERNEL_PACKED_WORDS,
                                              sizeof(float));
            draw(&it.draws, n, false, it.param);
        }
        train_step(&it, step, _i);
        for (int s = 0; s < 2; s++)
            expect_state(it.slots[s], n, sums[2 * s], sums[2 * s + 1], step);
        steps++;
    }
    ck_assert_int_eq(steps, 100);
    ck_assert_int_eq(ends, 2);
    buf_deinit(&text);
}

/* Parameters of these sizes, and what a walk over all elements says of every part. */
LOOP_TEST(parts_have_whole_blocks, 1, 8)
{
    static const int64_t sizes[] = {10, 4096, 4095, 7000, 3, 256 * 40, 5000};
    struct slot_layout layout = {0};
    int64_t offsets[7], end = 0, word = 0;
    for (int p = 0; p < 7; p++) {
        bool packs = slot_packs(sizes[p]);
        offsets[p] = (int64_t)round_up((size_t)end, packs ? SLOT_BLOCK : FLAT_ALIGN_ELEMENTS);
        end = packs ? offsets[p] + (int64_t)round_up((size_t)sizes[p], SLOT_BLOCK)
                    : offsets[p] + sizes[p];
        if (packs) slot_layout_add(&layout, offsets[p], sizes[p]);
    }
    int64_t shard = (int64_t)round_up((size_t)((end + _i - 1) / _i), SLOT_BLOCK), longest = 0;
    slot_layout_end(&layout, shard, _i);
    for (int64_t e = 0, p = 0, begin = 0; e <= shard * _i; e++) {
        if (e % shard == 0) {
            ck_assert_int_eq(slot_part(&layout, (int)(e / shard)), word);
            if (word - begin > longest) longest = word - begin;
            begin = word;
        }
        while (p < 6 && e >= offsets[p + 1]) p++;
        bool packed = slot_packs(sizes[p]) &&
                      e < offsets[p] + (int64_t)round_up((size_t)sizes[p], SLOT_BLOCK);
        if (!packed || (e - offsets[p]) % SLOT_BLOCK == 0) {
            ck_assert_int_eq(slot_at(&layout, e), word);
            if (e < shard * _i) ck_assert_int_eq(slot_part_of(&layout, word), e / shard);
        }
        if (e == offsets[p])
            ck_assert_int_eq(slot_words(&layout, offsets[p], sizes[p]),
                             packed ? (sizes[p] + 255) / 256 * 65 : sizes[p]);
        word += !packed ? 1 : (e - offsets[p]) % SLOT_BLOCK == 0 ? SLOT_BLOCK_WORDS : 0;
    }
    ck_assert_int_eq(layout.words, longest);
    struct slot_layout plain = slot_layout_of(&layout, -1);
    ck_assert_int_eq(plain.words, shard);
    ck_assert_int_eq(slot_at(&plain, 5000), 5000);
    slot_layout_deinit(&layout);
}

enum { HALVES = 1 << 14 };

static void set_values(const void *user, size_t n, float *param, const float *grad,
                       float *const *slots)
{
    const float *value = user;
    (void)param;
    (void)grad;
    for (size_t i = 0; i < n; i++) slots[1][i] = *value;
}

/* Elements from `first` on of a parameter that a step sets to `value`. */
static void step_halves(float value, uint64_t step, uint64_t first, size_t n, uint16_t *slot)
{
    static float values[HALVES];
    struct kernel_halves halves = {.n = n,
                                   .param = values,
                                   .grad = values,
                                   .half_slots = {NULL, slot},
                                   .seed = 7,
                                   .step = step,
                                   .parameter = 3,
                                   .first = first,
                                   .update = set_values,
                                   .user = &value};
    kernel_step_halves(&halves);
}

/* 30 % of the way between two values of bf16: 30 % of the elements become the upper one. */
TEST(rounding_is_unbiased_and_by_element)
{
    static uint16_t slot[3][HALVES];
    int up = 0, other = 0;
    step_halves(-1 - 0.3F / 128, 0, 0, HALVES, slot[0]);
    step_halves(-1 - 0.3F / 128, 1, 0, HALVES, slot[1]);
    for (int i = 0; i < HALVES; i++) {
        ck_assert(slot[0][i] == 0xbf80 || slot[0][i] == 0xbf81);
        up += slot[0][i] == 0xbf81;
        other += slot[0][i] != slot[1][i];
    }
    ck_assert_double_eq_tol(up / (double)HALVES, 0.3, 0.02); /* 5 standard deviations */
    ck_assert_double_eq_tol(other / (double)HALVES, 2 * 0.3 * 0.7, 0.02);
    for (size_t first = 8; first < HALVES; first *= 5) {
        kernels_set_threads((int)(first % 3) + 1);
        step_halves(-1 - 0.3F / 128, 0, first, HALVES - first, slot[2]);
        ck_assert_mem_eq(slot[2], slot[0] + first, (HALVES - first) * sizeof(uint16_t));
    }
}

TEST(rounding_keeps_what_bf16_has_and_what_is_no_number)
{
    static const struct {
        uint32_t bits;
        uint16_t rounded;
    } cases[] = {{0x3f810000, 0x3f81}, {0, 0},
                 {0x80000000, 0x8000}, {0x7f800000, 0x7f80},
                 {0xff800000, 0xff80}, {0x7f7fffff, 0x7f7f},
                 {0x7f800001, 0x7fc0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        float value;
        uint16_t slot[8];
        memcpy(&value, &cases[i].bits, sizeof value);
        step_halves(value, 5, 64, 8, slot);
        for (int e = 0; e < 8; e++) ck_assert_uint_eq(slot[e], cases[i].rounded);
    }
}

TEST(parts_in_bf16_have_half_the_words)
{
    struct slot_layout layout = {.halves = true};
    slot_layout_end(&layout, 24, 3);
    ck_assert_int_eq(layout.words, 12);
    ck_assert_int_eq(slot_part(&layout, 2), 24);
    ck_assert_int_eq(slot_part_of(&layout, 23), 1);
    ck_assert_int_eq(slot_at(&layout, 40), 20);
    ck_assert_int_eq(slot_words(&layout, 0, 5), 3);
    ck_assert_int_eq(slot_layout_of(&layout, 2).words, 24); /* an average, in f32 */
}

/* Every element of every part is in one run, of int8 and nf4 those of parameters only; runs are
 * where slot_at says, and behind each other. */
LOOP_TEST(runs_of_a_base_cover_its_parts, 1, 4)
{
    const int64_t sizes[] = {100, 5000, 18432, 70, 16384};
    for (enum base_dtype base = BASE_BF16; base <= BASE_FILE; base++) {
        struct slot_layout layout = {.base = base};
        int64_t block = base_block(base), end = 0, seen = 0, plain = 0;
        bool tight = base == BASE_INT8 || base == BASE_NF4;
        for (int p = 0; p < 5; p++) {
            bool packs = base != BASE_BF16 && base_packs(2, sizes[p]);
            if (base == BASE_FILE) packs = p != 1;
            int64_t align = packs && base != BASE_FILE ? block : FLAT_ALIGN_ELEMENTS;
            int64_t offset = (int64_t)round_up((size_t)end, (size_t)align);
            end = offset + (packs ? (int64_t)round_up((size_t)sizes[p], (size_t)align) : sizes[p]);
            if (packs) slot_layout_add(&layout, offset, sizes[p]);
            else if (tight) slot_layout_add_shaped(&layout, offset, sizes[p], sizes[p]);
        }
        int64_t shard =
            (int64_t)round_up((size_t)((end + _i - 1) / _i), (size_t)(block > 8 ? block : 8));
        if (base == BASE_BF16) slot_layout_add(&layout, 0, shard * _i);
        slot_layout_end(&layout, shard, _i);
        for (int part = 0; part < _i; part++) {
            struct slot_run *runs;
            int64_t from = 0, word = 0;
            int count = slot_find_runs(&layout, part, &runs);
            for (int r = 0; r < count; r++) {
                ck_assert(tight ? runs[r].from >= from : runs[r].from == from);
                ck_assert_int_eq(runs[r].word, word);
                ck_assert_int_eq(slot_at(&layout, part * shard + runs[r].from),
                                 slot_part(&layout, part) + word);
                from = runs[r].from + runs[r].count;
                word +=
                    runs[r].packed ? runs[r].count / block * base_block_words(base) : runs[r].count;
                if (runs[r].packed) seen += runs[r].count;
                else plain += runs[r].count;
            }
            ck_assert(tight ? from <= shard : from == shard);
            ck_assert_int_eq(word, slot_part(&layout, part + 1) - slot_part(&layout, part));
            ck_assert_int_le(word, layout.words);
            free(runs);
        }
        ck_assert_int_eq(seen, base == BASE_BF16   ? shard * _i
                               : base == BASE_FILE ? 100 + 18432 + 70 + 16384
                               : base == BASE_INT8 ? 5120 + 18432 + 16384
                                                   : 16384 * 4);
        if (tight) ck_assert_int_eq(plain, 100 + 70);
        ck_assert_int_eq(slot_layout_of(&layout, -1).words, layout.words);
        slot_layout_deinit(&layout);
    }
}
