/* Files of tokens, whole and broken; windows, masks, and the ranks' rows of a batch. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/tree.h"
#include "data/loader.h"
#include "data/token_data.h"
#include "tests/testing.h"

static char path[64];

static void set_up(void)
{
    strcpy(path, "/tmp/fsdpd-test-tokens-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

static void tear_down(void)
{
    unlink(path);
}

static void write_file(const struct buf *bytes)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    if (bytes->length > 0)
        ck_assert_uint_eq(fwrite(bytes->data, 1, bytes->length, file), bytes->length);
    fclose(file);
}

static void put(struct buf *out, uint32_t value, int width)
{
    for (int i = 0; i < width; i++) buf_add_char(out, (char)(value >> 8 * i));
}

enum { COUNT = 1000 };

/* Token i is i; `header` false: nanoGPT's format. */
static struct buf make_file(bool header, uint32_t magic, uint32_t version, uint32_t count,
                            int width)
{
    struct buf out = {0};
    if (header) {
        put(&out, magic, 4);
        put(&out, version, 4);
        put(&out, count, 4);
        put(&out, (uint32_t)width, 4);
        for (int i = 4; i < 256; i++) put(&out, 7, 4);
    }
    for (uint32_t i = 0; i < COUNT; i++) put(&out, i, width);
    return out;
}

static void write_plain(int width)
{
    struct buf bytes = make_file(false, 0, 0, 0, width);
    write_file(&bytes);
    buf_deinit(&bytes);
}

static const struct {
    uint32_t magic, version;
    int width;
    enum token_encoding encoding;
} good[] = {
    {0, 0, 2, TOKENS_AUTO},        {0, 0, 2, TOKENS_UINT16},       {0, 0, 4, TOKENS_UINT32},
    {20240520, 1, 2, TOKENS_AUTO}, {20240520, 1, 2, TOKENS_LLMC},  {20240801, 7, 4, TOKENS_AUTO},
    {20240801, 7, 4, TOKENS_LLMC}, {278895051, 1, 2, TOKENS_AUTO}, {278895051, 1, 4, TOKENS_LLMC},
};

TESTS_BELOW(.set_up = set_up, .tear_down = tear_down);

LOOP_TEST(reads, 0, COUNT_OF(good))
{
    struct buf bytes =
        make_file(good[_i].magic != 0, good[_i].magic, good[_i].version, COUNT, good[_i].width);
    write_file(&bytes);
    buf_deinit(&bytes);
    struct token_file file;
    ck_assert_ptr_null(token_file_open(NULL, path, good[_i].encoding, &file));
    ck_assert_int_eq(file.count, COUNT);
    int32_t ids[COUNT];
    ck_assert_ptr_null(token_file_read(&file, 0, COUNT, COUNT, ids));
    for (int i = 0; i < COUNT; i++) ck_assert_int_eq(ids[i], i);
    ck_assert_ptr_null(token_file_read(&file, 998, 2, COUNT, ids));
    ck_assert(ids[0] == 998 && ids[1] == 999);
    ck_assert_ptr_null(token_file_check(&file, 0, 500, 500));
    status_t status = token_file_check(&file, 0, COUNT, 500);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    int byte = 500 * good[_i].width + (good[_i].magic != 0 ? 1024 : 0);
    char *expected =
        mem_printf("%s: token 500 (byte %d) is 500, but the model's vocabulary has the "
                   "ids 0 to 499%s",
                   path, byte,
                   good[_i].magic == 0 && good[_i].encoding == TOKENS_AUTO
                       ? "; nothing says that its tokens are uint16: if they are not, set "
                         "data.encoding"
                       : "");
    ck_assert_str_eq(status_message(status), expected);
    free(expected);
    status_free(status);
    token_file_close(&file);
}

/* Changes to an open file: reported, with the place, without a crash. */
LOOP_TEST(changed_file, 0, 3)
{
    static const char *const words[] = {
        "was cut while it was read: it had 2000 bytes, and now there is none at 1000",
        "changed while it was read: it had 2000 bytes, now 2002",
        "was written to while it was read",
    };
    write_plain(2);
    struct token_file file;
    ck_assert_ptr_null(token_file_open(NULL, path, TOKENS_UINT16, &file));
    int32_t ids[COUNT];
    ck_assert_ptr_null(token_file_read(&file, 0, COUNT, COUNT, ids));
    if (_i == 0) ck_assert_int_eq(truncate(path, 1000), 0);
    if (_i == 1) ck_assert_int_eq(truncate(path, 2002), 0);
    const struct timespec times[] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000}};
    if (_i == 2) ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
    for (int check = 0; check < 2; check++) {
        status_t status = check ? token_file_check(&file, 0, COUNT, COUNT)
                                : token_file_read(&file, 0, COUNT, COUNT, ids);
        ck_assert_int_eq(status_code(status), STATUS_FAILED_PRECONDITION);
        ck_assert_msg(strstr(status_message(status), words[_i]) != NULL, "%s",
                      status_message(status));
        ck_assert_ptr_nonnull(strstr(status_message(status), path));
        status_free(status);
    }
    token_file_close(&file);
}

TEST(reads_text)
{
    struct buf bytes = {0};
    buf_add_text(&bytes, "To be, or not \xff");
    write_file(&bytes);
    struct token_file file;
    ck_assert_ptr_null(token_file_open(NULL, path, TOKENS_BYTES, &file));
    ck_assert_int_eq(file.count, (int64_t)bytes.length);
    int32_t ids[15];
    ck_assert_ptr_null(token_file_read(&file, 0, 15, 256, ids));
    ck_assert(ids[0] == 'T' && ids[14] == 255);
    status_t status = token_file_check(&file, 0, 15, 255);
    ck_assert_ptr_nonnull(strstr(status_message(status), "token 14 (byte 14) is 255"));
    status_free(status);
    token_file_close(&file);
    buf_deinit(&bytes);
}

/* A number beyond int32 is not a valid id. */
TEST(large_ids)
{
    struct buf bytes = {0};
    put(&bytes, 5, 4);
    put(&bytes, 0xffffffff, 4);
    write_file(&bytes);
    buf_deinit(&bytes);
    struct token_file file;
    ck_assert_ptr_null(token_file_open(NULL, path, TOKENS_UINT32, &file));
    status_t status = token_file_check(&file, 0, 2, INT32_MAX);
    ck_assert_ptr_nonnull(strstr(status_message(status), "token 1 (byte 4) is 4294967295"));
    status_free(status);
    token_file_close(&file);
}

static const struct {
    uint32_t magic, version, count;
    int width, cut; /* bytes less, or more if negative */
    enum token_encoding encoding;
    const char *message;
} bad[] = {
    {0, 0, 0, 2, 1, TOKENS_AUTO, "1999 bytes are not a whole number of tokens of 2 bytes"},
    {0, 0, 0, 4, 2, TOKENS_UINT32, "3998 bytes are not a whole number of tokens of 4 bytes"},
    {0, 0, 0, 2, 2000, TOKENS_AUTO, "is empty"},
    {0, 0, 0, 2, 2000, TOKENS_BYTES, "is empty"},
    {0, 0, 0, 2, 0, TOKENS_LLMC,
     "starts with 20240520, 20240801 or 278895051, this one with 65536"},
    {20240520, 2, COUNT, 2, 0, TOKENS_AUTO, "version 2 of its format (20240520) is not known"},
    {20240801, 1, COUNT, 4, 0, TOKENS_AUTO, "version 1 of its format (20240801) is not known"},
    {20240520, 1, COUNT, 2, 1, TOKENS_AUTO, "cut short: its header promises 1000 tokens of 2"},
    {20240520, 1, COUNT, 2, -1, TOKENS_AUTO, "too long: its header promises 1000 tokens of 2"},
    {20240520, 1, COUNT, 4, 0, TOKENS_AUTO, "too long"},
    {20240801, 7, COUNT, 2, 0, TOKENS_AUTO, "cut short"},
    {20240801, 7, 0x7fffffff, 4, 0, TOKENS_AUTO, "cut short"},
    {20240801, 7, 0xffffffff, 4, 0, TOKENS_AUTO, "promises -1 tokens"},
    {20240520, 1, COUNT, 2, 2001, TOKENS_AUTO, "the header of llm.c takes 1024 bytes"},
    {20240520, 1, COUNT, 2, 3021, TOKENS_LLMC, "the header of llm.c takes 1024 bytes"},
    {20240520, 1, 0, 2, 2000, TOKENS_AUTO, "has no tokens"},
    {278895051, 1, COUNT, 3, 0, TOKENS_AUTO, "its header promises tokens of 3 bytes"},
};

LOOP_TEST(refuses, 0, COUNT_OF(bad))
{
    struct buf bytes =
        make_file(bad[_i].magic != 0, bad[_i].magic, bad[_i].version, bad[_i].count, bad[_i].width);
    for (int i = bad[_i].cut; i < 0; i++) buf_add_char(&bytes, 0);
    if (bad[_i].cut > 0) bytes.length -= (size_t)bad[_i].cut;
    write_file(&bytes);
    buf_deinit(&bytes);
    struct token_file file;
    status_t status = token_file_open(NULL, path, bad[_i].encoding, &file);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_msg(strstr(status_message(status), bad[_i].message) != NULL, "%s",
                  status_message(status));
    ck_assert_ptr_nonnull(strstr(status_message(status), path));
    status_free(status);
}

TEST(refuses_what_is_no_file)
{
    struct token_file file;
    status_t status = token_file_open(NULL, "/nonexistent", TOKENS_AUTO, &file);
    ck_assert_int_eq(status_code(status), STATUS_NOT_FOUND);
    status_free(status);
    status = token_file_open(NULL, "/tmp", TOKENS_AUTO, &file);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    status_free(status);
}

/* Windows. */

/* An epoch's windows: inside the data, none twice or overlapping, covering all except the shift. */
static void check_epoch(const struct windows *windows, int64_t first, int64_t tokens, int64_t extra,
                        int64_t epoch)
{
    char *taken = mem_alloc((size_t)tokens);
    for (int64_t i = 0; i < windows->count; i++) {
        int64_t place = windows_place(windows, epoch * windows->count + i) - first;
        ck_assert_int_ge(place, 0);
        ck_assert_int_le(place + windows->length + extra, tokens);
        for (int64_t k = 0; k < windows->length; k++) ck_assert_int_eq(taken[place + k]++, 0);
    }
    free(taken);
}

TEST(windows)
{
    static const struct {
        int64_t tokens, length, extra;
    } sizes[] = {{2, 1, 1},    {65, 64, 1},  {64, 64, 0},  {128, 64, 1},
                 {200, 64, 1}, {1000, 7, 1}, {4097, 64, 1}};
    for (size_t s = 0; s < COUNT_OF(sizes); s++)
        for (int shuffle = 0; shuffle < 2; shuffle++)
            for (uint64_t seed = 0; seed < 5; seed++) {
                struct windows windows;
                ck_assert_ptr_null(windows_init(&windows, 10, sizes[s].tokens, sizes[s].length,
                                                sizes[s].extra, shuffle, seed));
                int64_t most = (sizes[s].tokens - sizes[s].extra) / sizes[s].length;
                ck_assert_int_ge(windows.count, most > 1 && shuffle ? most - 1 : most);
                for (int64_t epoch = 0; epoch < 6; epoch++)
                    check_epoch(&windows, 10, sizes[s].tokens, sizes[s].extra, epoch);
            }
}

/* Orders and shifts differ by seed and epoch, and all shifts occur. */
TEST(windows_differ)
{
    struct windows a, b, plain;
    ck_assert_ptr_null(windows_init(&a, 0, 10000, 10, 1, true, 1));
    ck_assert_ptr_null(windows_init(&b, 0, 10000, 10, 1, true, 2));
    ck_assert_ptr_null(windows_init(&plain, 5, 10000, 10, 1, false, 1));
    int same_seed = 0, same_epoch = 0, sorted = 0;
    for (int64_t i = 0; i < a.count; i++) {
        same_seed += windows_place(&a, i) / 10 == windows_place(&b, i) / 10;
        same_epoch += windows_place(&a, i) / 10 == windows_place(&a, a.count + i) / 10;
        sorted += i > 0 && windows_place(&a, i) > windows_place(&a, i - 1);
    }
    ck_assert_int_lt(same_seed, 10);
    ck_assert_int_lt(same_epoch, 10);
    ck_assert(abs(sorted - 499) < 60);
    int shifts[10] = {0};
    for (int64_t epoch = 0; epoch < 200; epoch++) shifts[windows_place(&a, epoch * a.count) % 10]++;
    for (int i = 0; i < 10; i++) ck_assert_int_gt(shifts[i], 3);
    for (int64_t i = 0; i < 2 * plain.count; i++)
        ck_assert_int_eq(windows_place(&plain, i), 5 + i % plain.count * 10);
}

TEST(too_few_tokens)
{
    struct windows windows;
    status_t status = windows_init(&windows, 0, 64, 64, 1, true, 1);
    ck_assert_str_eq(status_message(status),
                     "64 tokens are too few for one window of 64 and the token after it");
    status_free(status);
    status = windows_init(&windows, 0, 0, 1, 0, true, 1);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    status_free(status);
}

/* Masks. */

TEST(masks)
{
    enum { LENGTH = 64, ROWS = 2000, TOKEN = 9, MASK = 63, VOCABULARY = 64 };
    const struct masking masking = {.probability = 0.15,
                                    .mask_token = MASK,
                                    .vocabulary = VOCABULARY,
                                    .seed = 3};
    struct masking other = masking, validation = masking;
    other.seed = 4;
    validation.validation = true;
    double guesses = 0, hidden = 0, kept = 0, differ = 0, differ_too = 0;
    for (int64_t row = 0; row < ROWS; row++) {
        int32_t tokens[4][LENGTH], targets[4][LENGTH];
        const struct masking *by[] = {&masking, &masking, &other, &validation};
        int64_t count = 0;
        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < LENGTH; i++) tokens[k][i] = TOKEN;
            int64_t found = masking_apply(by[k], row, LENGTH, tokens[k], targets[k]);
            if (k == 0) count = found;
        }
        ck_assert_mem_eq(tokens[0], tokens[1], sizeof tokens[0]);
        ck_assert_mem_eq(targets[0], targets[1], sizeof targets[0]);
        differ += memcmp(targets[0], targets[2], sizeof targets[0]) != 0;
        differ_too += memcmp(targets[0], targets[3], sizeof targets[0]) != 0;
        for (int i = 0; i < LENGTH; i++) {
            ck_assert(tokens[0][i] >= 0 && tokens[0][i] < VOCABULARY);
            if (targets[0][i] < 0) {
                ck_assert_int_eq(tokens[0][i], TOKEN);
                continue;
            }
            ck_assert_int_eq(targets[0][i], TOKEN);
            count--;
            guesses++;
            hidden += tokens[0][i] == MASK;
            kept += tokens[0][i] == TOKEN;
        }
        ck_assert_int_eq(count, 0);
    }
    ck_assert(fabs(guesses / (ROWS * LENGTH) - 0.15) < 0.005);
    ck_assert(fabs(hidden / guesses - 0.8) < 0.02);
    ck_assert(fabs(kept / guesses - 0.1) < 0.02);
    ck_assert(differ > ROWS * 0.99 && differ_too > ROWS * 0.99);
}

/* The ranks' rows. */

static struct train_job make_job(int world, uint32_t batch_size)
{
    return (struct train_job){.data_format = DATA_TOKENS,
                              .data_path = path,
                              .validation_fraction = 0.1,
                              .token_encoding = TOKENS_AUTO,
                              .batch_size = batch_size,
                              .shuffle = true,
                              .evaluate = true,
                              .seed = 5,
                              .world = world};
}

/* What a plan refuses of files whose type nothing says, or that the vocabulary contradicts. */
static const struct {
    int width;
    enum token_encoding encoding;
    int64_t vocabulary;
    const char *message; /* NULL: accepted */
} suits[] = {
    {2, TOKENS_AUTO, 1 << 16, NULL},
    {2, TOKENS_AUTO, (1 << 16) + 1, "has 65537 ids, more than uint16 can hold: set data.encoding"},
    {2, TOKENS_UINT16, 151936, NULL},
    {4, TOKENS_AUTO, 151936, "has 151936 ids, more than uint16 can hold: set data.encoding"},
    {4, TOKENS_AUTO, 50257, "every second of its first 2000 tokens is 0, as in uint32"},
    {4, TOKENS_UINT32, 50257, NULL},
    {4, TOKENS_UINT32, 151936, NULL},
    {4, TOKENS_UINT16, 50257, NULL}, /* the job says so: they may be right */
    {2, TOKENS_UINT32, 151936,
     "token 1 (byte 4) is 196610, but the model's vocabulary has the ids"},
    {2, TOKENS_AUTO, 500, "is 500, but the model's vocabulary has the ids 0 to 499; nothing says"},
    {2, TOKENS_UINT16, 500, "is 500, but the model's vocabulary has the ids 0 to 499"},
};

LOOP_TEST(types_that_suit, 0, COUNT_OF(suits))
{
    write_plain(suits[_i].width);
    char other[sizeof path];
    strcpy(other, path);
    set_up(); /* an acceptable file, with the other one to validate */
    for (int validates = 0; validates < 2; validates++) {
        struct buf bytes = {0};
        struct train_job job = make_job(1, 2);
        job.token_encoding = suits[_i].encoding;
        job.data_path = validates ? path : other;
        job.validation_path = validates ? other : NULL;
        for (int i = 0; i < 100; i++) put(&bytes, 3, suits[_i].encoding == TOKENS_UINT32 ? 4 : 2);
        write_file(&bytes);
        buf_deinit(&bytes);
        struct token_data data;
        status_t status =
            token_data_open(&job, &(struct token_model){.vocabulary = suits[_i].vocabulary}, 9,
                            false, &data);
        if (suits[_i].message == NULL) {
            ck_assert_msg(status == NULL, "%s", status_message(status));
            token_data_close(&data);
            continue;
        }
        ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
        ck_assert_msg(strstr(status_message(status), suits[_i].message) != NULL, "%s",
                      status_message(status));
        status_free(status);
    }
    unlink(other);
}

/* Rows `row` to `row` + `count` - 1 of all ranks together, in their order. */
static void collect(const struct train_job *job, bool validation, int64_t batches, int64_t context,
                    int32_t *inputs, int32_t *targets)
{
    struct token_data data;
    ck_assert_ptr_null(
        token_data_open(job, &(struct token_model){.vocabulary = COUNT}, context, true, &data));
    for (int rank = 0; rank < job->world; rank++) {
        struct token_rows rows = token_data_rows(&data, job, rank, validation);
        struct rows source = token_rows_source(&rows);
        struct loader *loader;
        ck_assert_ptr_null(loader_new(&source, job->batch_size, &loader));
        loader_start(loader, 0, batches * job->batch_size);
        for (int64_t b = 0; b < batches; b++) {
            struct batch batch;
            bool more;
            ck_assert_ptr_null(loader_next(loader, &batch, &more));
            ck_assert(more);
            size_t each = (size_t)(job->batch_size * context);
            size_t at = (size_t)(b * job->world + rank) * each;
            memcpy(inputs + at, batch.input, each * sizeof *inputs);
            memcpy(targets + at, batch.target, each * sizeof *targets);
        }
        loader_free(loader);
    }
    token_data_close(&data);
}

LOOP_TEST(worlds_see_the_same, 0, 4)
{
    enum { ROWS = 240, CONTEXT = 7, ELEMENTS = ROWS * CONTEXT };
    static const int worlds[] = {1, 2, 3, 4};
    static int32_t inputs[4][ELEMENTS], targets[4][ELEMENTS];
    bool validation = _i & 1, masked = _i & 2;
    write_plain(2);
    for (int w = 0; w < 4; w++) {
        struct train_job job = make_job(worlds[w], 12 / (uint32_t)worlds[w]);
        job.masked = masked;
        job.mask_probability = 0.3;
        collect(&job, validation, ROWS / 12, CONTEXT, inputs[w], targets[w]);
        ck_assert_mem_eq(inputs[0], inputs[w], sizeof inputs[0]);
        ck_assert_mem_eq(targets[0], targets[w], sizeof targets[0]);
    }
    int64_t counted = 0;
    for (int i = 0; i < ELEMENTS; i++) {
        if (targets[0][i] < 0) continue;
        counted++;
        if (masked) continue;
        ck_assert_int_eq(targets[0][i], inputs[0][i] + 1); /* token i of the file is i */
        ck_assert_int_eq(validation, inputs[0][i] >= 900);
    }
    if (masked) ck_assert(counted > 20);
    else ck_assert_int_eq(counted, validation ? 14 * CONTEXT : ELEMENTS);
}

/* Shards: every window of every file once per epoch, in a separate order, the same for every world;
 * none crosses from one file to the next. */
TEST(shards)
{
    enum { SHARDS = 3, CONTEXT = 10, EACH = 9, ROWS = SHARDS * EACH, SIZE = 10 * CONTEXT };
    static int32_t inputs[3][ROWS * CONTEXT], targets[3][ROWS * CONTEXT];
    char directory[] = "/tmp/fsdpd-test-shards-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(directory));
    for (int s = 0; s < SHARDS; s++) {
        struct buf bytes = {0};
        for (uint32_t i = 0; i < SIZE; i++) put(&bytes, 300 * (uint32_t)s + i, 2);
        snprintf(path, sizeof path, "%s/part-%d.bin", directory, s);
        write_file(&bytes);
        buf_deinit(&bytes);
    }
    snprintf(path, sizeof path, "%s/part-*.bin", directory);
    static const int worlds[] = {1, 3, 9};
    for (int w = 0; w < 3; w++) {
        struct train_job job = make_job(worlds[w], 9 / (uint32_t)worlds[w]);
        job.evaluate = false;
        job.validation_fraction = 0;
        collect(&job, false, 3, CONTEXT, inputs[w], targets[w]);
        ck_assert_mem_eq(inputs[0], inputs[w], sizeof inputs[0]);
    }
    int seen[SHARDS][SIZE] = {{0}}, rows[SHARDS] = {0}, moved = 0;
    for (int row = 0; row < ROWS; row++) {
        const int32_t *input = &inputs[0][row * CONTEXT];
        int shard = input[0] / 300, first = input[0] % 300;
        for (int i = 0; i < CONTEXT; i++) {
            ck_assert_int_eq(input[i], input[0] + i);
            ck_assert_int_eq(targets[0][row * CONTEXT + i], input[i] + 1);
            ck_assert_int_eq(seen[shard][first + i]++, 0);
        }
        rows[shard]++;
        moved += shard != row / EACH;
    }
    for (int s = 0; s < SHARDS; s++) ck_assert_int_eq(rows[s], EACH);
    ck_assert_int_gt(moved, 5);
    struct train_job job = make_job(1, 2);
    snprintf(path, sizeof path, "%s/none-*.bin", directory);
    struct token_data data;
    status_t status =
        token_data_open(&job, &(struct token_model){.vocabulary = COUNT}, CONTEXT, true, &data);
    ck_assert_int_eq(status_code(status), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(status_message(status), "has no file that matches none-*.bin"));
    status_free(status);
    status = tree_remove(directory);
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

/* A part of the validation windows: spread over all of them, the same ones every time. */
TEST(part_of_the_validation)
{
    write_plain(2);
    struct train_job job = make_job(1, 2);
    job.evaluate_batches = 2;
    int32_t inputs[6 * 7], targets[6 * 7];
    collect(&job, true, 3, 7, inputs, targets);
    for (int row = 0; row < 4; row++) ck_assert_int_eq(inputs[row * 7], 900 + 14 * row / 4 * 7);
    for (int i = 4 * 7; i < 6 * 7; i++) ck_assert(inputs[i] == 0 && targets[i] == -1);
    job.batch_size = 1; /* the same, divided differently */
    job.accumulation_steps = 2;
    collect(&job, true, 6, 7, inputs, targets);
    for (int row = 0; row < 4; row++) ck_assert_int_eq(inputs[row * 7], 900 + 14 * row / 4 * 7);
    ck_assert_int_eq(targets[4 * 7], -1);
}

/* An error of the loader's threads is reported in the batch's place, and again. */
TEST(error_while_loading)
{
    write_plain(2);
    struct train_job job = make_job(1, 4);
    job.shuffle = false;
    struct token_data data;
    ck_assert_ptr_null(
        token_data_open(&job, &(struct token_model){.vocabulary = COUNT}, 9, false, &data));
    data.model.vocabulary = 500; /* as of an id that is not among a longer file's first */
    struct token_rows rows = token_data_rows(&data, &job, 0, false);
    struct rows source = token_rows_source(&rows);
    struct loader *loader;
    ck_assert_ptr_null(loader_new(&source, 4, &loader));
    loader_start(loader, 0, 400);
    struct batch batch;
    bool more;
    for (int b = 0; b < 13; b++) ck_assert_ptr_null(loader_next(loader, &batch, &more));
    for (int again = 0; again < 2; again++) {
        status_t status = loader_next(loader, &batch, &more);
        ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(status_message(status), "token 500 (byte 1000) is 500"));
        status_free(status);
    }
    loader_start(loader, 0, 400);
    ck_assert_ptr_null(loader_next(loader, &batch, &more));
    loader_free(loader);
    token_data_close(&data);
    status_t status =
        token_data_open(&job, &(struct token_model){.vocabulary = 500}, 9, true, &data);
    ck_assert_ptr_nonnull(strstr(status_message(status), "token 500 (byte 1000) is 500"));
    status_free(status);
}

static void expect_refusal(const struct train_job *job, int64_t context, const char *message)
{
    struct token_data data;
    status_t status =
        token_data_open(job, &(struct token_model){.vocabulary = COUNT}, context, true, &data);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_msg(strstr(status_message(status), message) != NULL, "%s", status_message(status));
    status_free(status);
}

TEST(data_refused)
{
    write_plain(2);
    struct train_job job = make_job(1, 2);
    expect_refusal(&job, 100, "data for validation: 100 tokens are too few for one window of 100");
    expect_refusal(&job, 900, "data for training: 900 tokens are too few for one window of 900");
    job.validation_fraction = 0;
    expect_refusal(&job, 10, "data.validation_fraction: 0 leaves nothing to validate with");
    job.validation_fraction = 0.1;
    job.masked = true;
    job.mask_token = COUNT;
    expect_refusal(&job, 10, "data.mask_token: expected an id of the model's vocabulary, 0 to 999");
}

TEST(accumulation)
{
    struct train_job job = make_job(2, 6);
    uint32_t steps = 0;
    ck_assert_ptr_null(token_data_accumulation(&job, 64, &steps));
    ck_assert_uint_eq(steps, 1);
    job.accumulation_steps = 3;
    ck_assert_ptr_null(token_data_accumulation(&job, 64, &steps));
    ck_assert_uint_eq(steps, 3);
    job.accumulation_steps = 1;
    job.batch_tokens = 768 * 40;
    ck_assert_ptr_null(token_data_accumulation(&job, 64, &steps));
    ck_assert_uint_eq(steps, 40);
    job.batch_tokens = 1000;
    status_t status = token_data_accumulation(&job, 64, &steps);
    ck_assert_str_eq(status_message(status),
                     "train.batch_tokens: expected a multiple of the 768 tokens that 2 ranks of 6 "
                     "windows of 64 take at once; the nearest to 1000 are 768 or 1536");
    status_free(status);
    job.batch_tokens = 7;
    status = token_data_accumulation(&job, 64, &steps);
    ck_assert_ptr_nonnull(strstr(status_message(status), "the nearest to 7 is 768"));
    status_free(status);
}
