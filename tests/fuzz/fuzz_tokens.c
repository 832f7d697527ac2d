/*
 * Files of tokens: a byte with the encoding and one with the vocabulary, then the file.
 */
#include "scratch.h"
#include "data/token_file.h"

static void read_all(const struct token_file *file, int64_t vocabulary)
{
    status_t whole = token_file_check(file, 0, file->count, vocabulary);
    int32_t ids[16];
    bool failed = false;
    for (int64_t at = 0; at < file->count && !failed; at += 16) {
        int64_t count = file->count - at < 16 ? file->count - at : 16;
        status_t status = token_file_read(file, at, count, vocabulary, ids);
        failed = status != NULL;
        for (int64_t i = 0; i < count && !failed; i++)
            FUZZ_CHECK(ids[i] >= 0 && ids[i] < vocabulary, "id %d", ids[i]);
        if (failed) fuzz_expect_user_error(status);
    }
    FUZZ_CHECK(failed == (whole != NULL), "the check and the reading differ");
    status_free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    enum token_encoding encoding = (enum token_encoding)(data[0] % (TOKENS_NPY + 1));
    int64_t vocabulary = data[1] < 128 ? data[1] + 1 : INT64_C(1) << (data[1] - 128) % 32;
    if (vocabulary > INT32_MAX) vocabulary = INT32_MAX;
    struct token_file file;
    status_t status = token_file_open(NULL, scratch_write(data + 2, size - 2), encoding, &file);
    if (status != NULL) {
        scratch_expect_user_error(status);
        return 0;
    }
    FUZZ_CHECK(file.count > 0 && file.data.size == (int64_t)size - 2, "%lld tokens",
               (long long)file.count);
    read_all(&file, vocabulary);
    token_file_close(&file);
    return 0;
}
