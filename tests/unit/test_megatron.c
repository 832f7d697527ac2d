/* Megatron-LM's token files: found by their index, read as one stream, and refused if it lies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/tree.h"
#include "data/token_file.h"
#include "tests/testing.h"

static char dir[64], tokens_path[96], index_path[96];

static void set_up(void)
{
    strcpy(dir, "/tmp/fsdpd-test-megatron-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(tokens_path, sizeof tokens_path, "%s/corpus.bin", dir);
    snprintf(index_path, sizeof index_path, "%s/corpus.idx", dir);
}

static void tear_down(void)
{
    status_t status = tree_remove(dir);
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

TESTS_BELOW(.set_up = set_up, .tear_down = tear_down);

struct writer {
    unsigned char bytes[256];
    size_t size;
};

static void put(struct writer *writer, uint64_t value, int width)
{
    for (int i = 0; i < width; i++) writer->bytes[writer->size++] = (unsigned char)(value >> 8 * i);
}

static void write_file(const char *path, const struct writer *writer)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(writer->bytes, 1, writer->size, file), writer->size);
    fclose(file);
}

/* Three sequences in two documents: 5, 0 and 7 tokens. */
static const int lengths[] = {5, 0, 7};
enum { SEQUENCES = 3, COUNT = 12 };

/* An index; `damage` is the number of a row below. */
static struct writer make_index(int code, int width, int damage)
{
    struct writer out = {0};
    memcpy(out.bytes, damage == 1 ? "MMIDIDX\1" : "MMIDIDX\0", 9);
    out.size = 9;
    put(&out, damage == 2 ? 2 : 1, 8);
    put(&out, damage == 3 ? 5 : (uint64_t)code, 1);
    put(&out, damage == 4 ? UINT64_MAX / 12 : SEQUENCES, 8);
    put(&out, 3, 8);
    for (int i = 0; i < SEQUENCES; i++)
        put(&out,
            (uint32_t)(damage == 5 && i == 2   ? 8
                       : damage == 6 && i == 1 ? -1
                       : damage == 7 && i == 2 ? 6
                                               : lengths[i]),
            4);
    int64_t at = 0;
    for (int i = 0; i < SEQUENCES; at += lengths[i++] * width)
        put(&out, (uint64_t)(damage == 8 && i == 2 ? at + width : at), 8);
    const uint64_t borders[] = {0, damage == 9 ? 4 : 2, 3};
    for (int i = 0; i < 3; i++) put(&out, borders[i], 8);
    if (damage == 10) out.size--;
    if (damage == 11) out.size = 20;
    return out;
}

static void write_corpus(int code, int width, int damage)
{
    struct writer tokens = {0}, index = make_index(code, width, damage);
    for (uint64_t i = 0; i < COUNT; i++) put(&tokens, 10 * i, width);
    write_file(tokens_path, &tokens);
    write_file(index_path, &index);
}

LOOP_TEST(reads, 0, 3)
{
    static const struct {
        int code, width;
    } kinds[] = {{8, 2}, {4, 4}, {1, 1}};
    write_corpus(kinds[_i].code, kinds[_i].width, 0);
    struct token_file file;
    int32_t ids[COUNT];
    status_t status = token_file_open(dir, tokens_path, TOKENS_AUTO, &file);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_int_eq(file.count, COUNT);
    ck_assert_int_eq(file.width, kinds[_i].width);
    ck_assert_ptr_null(token_file_read(&file, 0, COUNT, 200, ids));
    for (int i = 0; i < COUNT; i++) ck_assert_int_eq(ids[i], 10 * i);
    token_file_close(&file);
}

static const char *const damages[] = {
    [2] = "version 2 of Megatron's index; expected 1",
    [3] = "tokens of type 5; expected 1 (uint8), 4 (int32) or 8 (uint16)",
    [4] = "promises 1537228672809129301 sequences",
    [5] = "sequence 2 has 8 tokens; expected 0 to 7",
    [6] = "sequence 1 has -1 tokens; expected 0 to 7",
    [7] = "its sequences take 22 bytes of tokens, but there are 24",
    [8] = "sequence 2 begins at byte 12; expected 10",
    [9] = "document border 1 is sequence 4; expected 0 to 3",
    [10] = "which do not make a file of 93 bytes",
    [11] = "cut short: the header of Megatron's index takes 34 bytes, there are 20",
};

LOOP_TEST(refuses, 2, COUNT_OF(damages))
{
    write_corpus(8, 2, _i);
    struct token_file file;
    status_t status = token_file_open(NULL, tokens_path, TOKENS_AUTO, &file);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_msg(strstr(status_message(status), damages[_i]) != NULL, "%s",
                  status_message(status));
    ck_assert_ptr_nonnull(strstr(status_message(status), index_path));
    status_free(status);
}

/* Another program's .idx, or another encoding in the job file: raw tokens. */
LOOP_TEST(others, 0, 2)
{
    write_corpus(4, 4, _i == 0 ? 1 : 0);
    struct token_file file;
    ck_assert_ptr_null(
        token_file_open(NULL, tokens_path, _i == 0 ? TOKENS_AUTO : TOKENS_UINT16, &file));
    ck_assert_int_eq(file.count, 2 * COUNT);
    token_file_close(&file);
}
