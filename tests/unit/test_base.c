/* Parameters in 8 and in 4 bits against bitsandbytes (tests/parity/base.txt), byte for byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "digest/digest.h"
#include "kernels/kernels.h"
#include "tests/testing.h"

TESTS_BELOW(.timeout = 60);

struct expected { /* a line: sums of the codes, the scales, the values, and of NF4 of their scales
                   */
    size_t n;
    char codes[DIGEST_DIGITS + 1], scales[DIGEST_DIGITS + 1], f32[DIGEST_DIGITS + 1],
        bf16[DIGEST_DIGITS + 1], second[DIGEST_DIGITS + 1];
    unsigned mean;
};

static void read_numbers(struct buf *text)
{
    const char *root = getenv("srcdir");
    char *path = file_path_join(root != NULL ? root : ".", "tests/parity/base.txt");
    status_t status = file_read(path, 1 << 20, text);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    free(path);
}

/* As in make_base_numbers.py. */
static float *draw(size_t n)
{
    float *values = mem_alloc_array(n, sizeof *values);
    uint64_t state = n;
    for (size_t i = 0; i < n; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        values[i] = ((float)(state >> 40) - (1 << 23)) / (1 << 23) / (float)(1 << i / 500 % 7);
    }
    return values;
}

static void expect_sum(const void *bytes, size_t size, const char *expected, const char *what,
                       size_t n)
{
    struct digest sum;
    char digits[DIGEST_DIGITS + 1];
    digest_of(bytes, size, &sum);
    ck_assert_msg(strcmp(digest_format(&sum, digits), expected) == 0, "%zu values: other %s", n,
                  what);
}

static void expect_values(const struct expected *it, const float *packed,
                          void (*unpack)(size_t, const float *, float *, uint16_t *))
{
    float *values = mem_alloc_array(it->n, sizeof *values);
    uint16_t *rounded = mem_alloc_array(it->n, sizeof *rounded);
    unpack(it->n, packed, values, NULL);
    expect_sum(values, it->n * sizeof *values, it->f32, "values", it->n);
    unpack(it->n, packed, NULL, rounded);
    expect_sum(rounded, it->n * sizeof *rounded, it->bf16, "values in bf16", it->n);
    free(values);
    free(rounded);
}

static void check_int8(const struct expected *it)
{
    size_t blocks = (it->n + KERNEL_PACKED_BLOCK - 1) / KERNEL_PACKED_BLOCK;
    float *values = draw(it->n), *scales = mem_alloc_array(blocks, sizeof *scales);
    float *packed = mem_alloc_array(blocks * KERNEL_PACKED_WORDS, sizeof *packed);
    uint8_t *codes = mem_alloc(blocks * KERNEL_PACKED_BLOCK);
    kernel_int8_pack(it->n, values, packed);
    for (size_t b = 0; b < blocks; b++) {
        scales[b] = packed[b * KERNEL_PACKED_WORDS];
        memcpy(codes + b * KERNEL_PACKED_BLOCK, packed + b * KERNEL_PACKED_WORDS + 1,
               KERNEL_PACKED_BLOCK);
    }
    expect_sum(codes, it->n, it->codes, "codes", it->n);
    expect_sum(scales, blocks * sizeof *scales, it->scales, "scales", it->n);
    expect_values(it, packed, kernel_int8_unpack);
    free(values);
    free(scales);
    free(packed);
    free(codes);
}

/* The mean is that of bitsandbytes, whose sum PyTorch rounds otherwise. */
static void check_mean(const struct expected *it, const float *most, size_t blocks, float *mean)
{
    double sum = 0;
    for (size_t b = 0; b < blocks; b++) sum += (double)most[b];
    memcpy(mean, &it->mean, sizeof *mean);
    ck_assert_double_eq_tol((float)(sum / (double)blocks), *mean, *mean * 0x1p-22);
}

static void check_nf4(const struct expected *it)
{
    enum { BLOCKS = KERNEL_NF4_GROUP / KERNEL_NF4_BLOCK };
    size_t blocks = (it->n + KERNEL_NF4_BLOCK - 1) / KERNEL_NF4_BLOCK;
    size_t groups = (blocks + BLOCKS - 1) / BLOCKS;
    float *values = draw(it->n), *most = mem_alloc_array(blocks, sizeof *most), mean;
    float *packed = mem_alloc_array(groups * KERNEL_NF4_WORDS, sizeof *packed);
    float *second = mem_alloc_array(groups, sizeof *second);
    uint8_t *codes = mem_alloc(blocks * KERNEL_NF4_BLOCK / 2), *scales = mem_alloc(groups * BLOCKS);
    for (size_t b = 0; b < blocks; b++) {
        size_t left = it->n - b * KERNEL_NF4_BLOCK;
        uint8_t *to = kernel_nf4_codes(packed + b / BLOCKS * KERNEL_NF4_WORDS, b % BLOCKS);
        most[b] = kernel_nf4_pack(left < KERNEL_NF4_BLOCK ? left : KERNEL_NF4_BLOCK,
                                  values + b * KERNEL_NF4_BLOCK, to);
        memcpy(codes + b * KERNEL_NF4_BLOCK / 2, to, KERNEL_NF4_BLOCK / 2);
    }
    check_mean(it, most, blocks, &mean);
    for (size_t g = 0; g < groups; g++) {
        float *group = packed + g * KERNEL_NF4_WORDS;
        size_t left = blocks - g * BLOCKS;
        kernel_nf4_scale(left < BLOCKS ? left : BLOCKS, most + g * BLOCKS, mean, group);
        second[g] = group[1];
        memcpy(scales + g * BLOCKS, group + 2, BLOCKS);
    }
    expect_sum(codes, (it->n + 1) / 2, it->codes, "codes", it->n);
    expect_sum(scales, blocks, it->scales, "scales", it->n);
    expect_sum(second, groups * sizeof *second, it->second, "scales of scales", it->n);
    expect_values(it, packed, kernel_nf4_unpack);
    free(values);
    free(most);
    free(packed);
    free(second);
    free(codes);
    free(scales);
}

/* However many threads share the blocks. */
LOOP_TEST(bases_are_those_of_bitsandbytes, 1, 3)
{
    struct buf text = {0};
    int seen[2] = {0};
    read_numbers(&text);
    kernels_set_threads(_i);
    for (const char *line = buf_text(&text); line != NULL; line = strchr(line + 1, '\n')) {
        struct expected it;
        if (sscanf(line, " int8 %zu %64s %64s %64s %64s", &it.n, it.codes, it.scales, it.f32,
                   it.bf16) == 5) {
            check_int8(&it);
            seen[0]++;
        }
        if (sscanf(line, " nf4 %zu %64s %64s %64s %64s %64s %x", &it.n, it.codes, it.scales, it.f32,
                   it.bf16, it.second, &it.mean) == 7) {
            check_nf4(&it);
            seen[1]++;
        }
    }
    ck_assert_int_eq(seen[0], 4);
    ck_assert_int_eq(seen[1], 4);
    buf_deinit(&text);
}
