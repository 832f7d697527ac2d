/* Rows of tokens; see token_rows.h. */
#include "train/token_rows.h"

#include <string.h>

static void fill_none(int64_t length, int32_t *tokens, int32_t *targets)
{
    memset(tokens, 0, (size_t)length * sizeof *tokens);
    for (int64_t i = 0; i < length; i++) targets[i] = -1;
}

static status_t fill(const void *user, int64_t row, void *input, int32_t *targets, int64_t *samples)
{
    const struct token_rows *rows = user;
    int32_t *tokens = input;
    int64_t length = rows->windows->length;
    int64_t number = (row / rows->batch * rows->world + rows->rank) * rows->batch +
                     row % rows->batch; /* among all ranks' */
    *samples = 0;
    if (rows->limit > 0 && number >= rows->limit) {
        fill_none(length, tokens, targets);
        return NULL;
    }
    if (rows->limit > 0) {
        int64_t each = rows->windows->count / rows->limit,
                rest = rows->windows->count % rows->limit;
        number = number * each + number * rest / rows->limit;
    }
    int64_t place = windows_place(rows->windows, number);
    TRY(token_file_read(rows->file, place, length, rows->vocabulary, tokens));
    if (rows->masking != NULL) {
        *samples = masking_apply(rows->masking, number, length, tokens, targets);
        return NULL;
    }
    memcpy(targets, tokens + 1, (size_t)(length - 1) * sizeof *targets);
    TRY(token_file_read(rows->file, place + length, 1, rows->vocabulary, &targets[length - 1]));
    *samples = length;
    return NULL;
}

struct rows token_rows_source(const struct token_rows *rows)
{
    size_t length = (size_t)rows->windows->length;
    return (struct rows){.input_bytes = length * sizeof(int32_t),
                         .targets = length,
                         .fill = fill,
                         .user = rows};
}
