/* Rows of tokens; see token_rows.h. */
#include "data/token_rows.h"

struct row_place {
    int64_t number; /* among the rows of all ranks */
    int source;
    int64_t own; /* among the source's rows */
};

static void fill_none(const struct token_rows *rows, int32_t *tokens, int32_t *targets)
{
    for (int64_t i = 0; i < rows->length; i++) tokens[i] = rows->padding;
    for (int64_t i = 0; i < rows->targets; i++) targets[i] = -1;
}

/* Finds which of its source's rows this rank's row `row` is; false if it is beyond the limit. */
static bool find_row(const struct token_rows *rows, int64_t row, struct row_place *place)
{
    int64_t number = (row / rows->batch * rows->world + rows->rank) * rows->batch +
                     row % rows->batch; /* among the rows of all ranks */
    if (rows->share.samples > 0) number = batch_share_find(&rows->share, row, 0);
    if (number < 0 || (rows->limit > 0 && number >= rows->limit)) return false;
    if (rows->limit > 0) {
        int64_t all = rows->mixture->order.count, each = all / rows->limit,
                rest = all % rows->limit;
        number = number * each + number * rest / rows->limit;
    }
    place->number = number;
    mixture_find(rows->mixture, number, &place->source, &place->own);
    return true;
}

static status_t fill_starts(const void *user, int64_t row, int32_t *starts)
{
    const struct token_rows *rows = user;
    struct row_place place = {0};
    if (find_row(rows, row, &place))
        return token_split_starts(rows->splits[place.source], place.own, starts);
    for (int64_t i = 0; i < rows->length; i++) starts[i] = (int32_t)i;
    return NULL;
}

static status_t fill_reference(const void *user, int64_t row, float *sums)
{
    const struct token_rows *rows = user;
    struct row_place place = {0};
    if (find_row(rows, row, &place))
        return token_split_reference(rows->splits[place.source], place.own, sums);
    return NULL;
}

static status_t fill(const void *user, int64_t row, void *input, int32_t *targets, int64_t *samples)
{
    const struct token_rows *rows = user;
    int32_t *tokens = input;
    struct row_place place = {0};
    *samples = 0;
    if (!find_row(rows, row, &place)) {
        fill_none(rows, tokens, targets);
        return NULL;
    }
    TRY(token_split_read(rows->splits[place.source], place.own, rows->vocabulary, tokens,
                         rows->masking != NULL ? NULL : targets, samples));
    if (rows->masking != NULL)
        *samples = masking_apply(rows->masking, place.number, rows->length, tokens, targets);
    return NULL;
}

struct rows token_rows_source(const struct token_rows *rows)
{
    size_t length = (size_t)rows->length;
    return (struct rows){.input_bytes = length * sizeof(int32_t),
                         .targets = (size_t)rows->targets,
                         .fill = fill,
                         .fill_starts = rows->packed ? fill_starts : NULL,
                         .references = (size_t)rows->references,
                         .fill_reference = fill_reference,
                         .user = rows};
}
