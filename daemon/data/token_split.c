/* Tokens as rows; see token_split.h. */
#include "data/token_split.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/dataset_dir.h"

enum { MASK_BLOCK = 1 << 16 };

/* The last token of a document is only a target, if the targets are the next tokens. */
static int64_t document_length(const struct token_split *split, int64_t begin, int64_t end)
{
    bool next = split->labels.npy == NULL && !split->ends;
    return end - begin - (next && (split->texts <= 1 || split->prefers));
}

static int64_t document_targets(const struct token_split *split, int64_t begin, int64_t end)
{
    int64_t count = document_length(split, begin, end);
    return count < split->length ? count : split->length;
}

/* What a row of `length` has room for of two texts: of the first one, less of the second one. */
static int64_t cut_first(int64_t length, int64_t first, int64_t second)
{
    int64_t rest = length - second, half = length / 2, most = rest > half ? rest : half;
    return first < most ? first : most;
}

/* Of one text of a packed pair, of `count` tokens; of a pair that cannot count, nothing. */
static status_t share_row(const struct token_split *split, int64_t number, int64_t *count)
{
    int64_t begin = 0, end = 0, other;
    TRY(dataset_document(split->documents, number ^ 1, split->file->count, &begin, &end));
    other = document_targets(split, begin, end);
    bool second = number % 2 == 1;
    if (*count == 0 || other == 0) *count = 0;
    else if (!second) *count = cut_first(split->length, *count, other);
    else {
        int64_t left = split->length - cut_first(split->length, other, *count);
        if (*count > left) *count = left;
    }
    return NULL;
}

/* Finds a document, and the number of its tokens that a row takes. */
static status_t find_document(const struct token_split *split, int64_t number, int64_t *begin,
                              int64_t *count)
{
    int64_t end = 0;
    TRY(dataset_document(split->documents, number, split->file->count, begin, &end));
    *count = document_targets(split, *begin, end);
    return split->packed && split->prefers ? share_row(split, number, count) : NULL;
}

static status_t pack(struct token_split *split, bool shuffle, uint64_t seed)
{
    int64_t each = split->prefers ? 2 : 1, documents = (split->documents->count - 1) / each;
    AUTO_FREE uint32_t *lengths = malloc((size_t)documents * sizeof *lengths);
    if (lengths == NULL)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "no memory for the lengths of %" PRId64 " documents", documents);
    status_t status = NULL;
    for (int64_t d = 0; d < documents && status == NULL; d++) {
        lengths[d] = 0;
        for (int64_t k = 0; k < each && status == NULL; k++) {
            int64_t begin = 0, count = 0;
            status = find_document(split, d * each + k, &begin, &count);
            lengths[d] += (uint32_t)count;
        }
    }
    if (status == NULL)
        status = packing_make(lengths, documents, split->length, shuffle, seed, &split->packing);
    return status;
}

status_t token_split_cut(struct token_split *split, int64_t length, int64_t extra, bool shuffle,
                         uint64_t seed)
{
    split->length = length;
    if (split->packed) {
        TRY(pack(split, shuffle, seed));
        return windows_init(&split->windows, 0, split->packing.rows, 1, 0, shuffle, seed);
    }
    int64_t texts = split->texts > 1 ? split->texts : 1;
    if (split->documents != NULL) /* windows of one: an order of the documents, or of pairs */
        return windows_init(&split->windows, 0, (split->documents->count - 1) / texts, 1, 0,
                            shuffle, seed);
    return windows_init(&split->windows, split->first, split->count, length, extra, shuffle, seed);
}

void token_split_close(struct token_split *split)
{
    packing_free(&split->packing);
}

/* Counts the tokens from `place` on, of `count`, that the mask allows as targets, into *samples;
 * the other `targets` (may be NULL) become -1. */
static status_t apply_mask(const struct npy *mask, int64_t place, int64_t count, int32_t *targets,
                           int64_t *samples)
{
    uint8_t block[MASK_BLOCK];
    *samples = count;
    if (mask == NULL) return NULL;
    for (int64_t done = 0; done < count; done += MASK_BLOCK) {
        int64_t now = count - done < MASK_BLOCK ? count - done : MASK_BLOCK;
        TRY(npy_read(mask, place + done, now, block));
        for (int64_t i = 0; i < now; i++) {
            if (block[i] != 0) continue;
            if (targets != NULL) targets[done + i] = -1;
            (*samples)--;
        }
    }
    return NULL;
}

/* Reads `count` tokens of a text from `place` on, of which only the end has a target. */
static status_t read_end(const struct token_split *split, int64_t place, int64_t count,
                         int64_t vocabulary, int32_t *tokens, int32_t *targets, int64_t *samples)
{
    int64_t last = count - 1;
    *samples = count > 0;
    if (count == 0) return NULL;
    TRY(token_file_read(split->file, place, count, vocabulary, tokens));
    while (last > 0 && tokens[last] == split->padding) last--;
    for (int64_t i = 0; i < count; i++) targets[i] = i == last ? 0 : -1;
    return NULL;
}

/* Reads `count` tokens from `place` on, and their targets. */
static status_t read_targets(const struct token_split *split, int64_t place, int64_t count,
                             int64_t vocabulary, int32_t *tokens, int32_t *targets,
                             int64_t *samples)
{
    *samples = 0;
    if (split->ends) return read_end(split, place, count, vocabulary, tokens, targets, samples);
    if (count == 0) return NULL;
    TRY(token_file_read(split->file, place, count, vocabulary, tokens));
    memcpy(targets, tokens + 1, (size_t)(count - 1) * sizeof *targets);
    TRY(token_file_read(split->file, place + count, 1, vocabulary, &targets[count - 1]));
    return apply_mask(split->mask, place + 1, count, targets, samples);
}

/* A document no longer fits where it was packed. */
static status_t changed(const struct token_split *split, int64_t number)
{
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: document %" PRId64 " is longer than at the start of the job",
                      split->documents->file.path, number);
}

/* The row at `place` holds documents document_of(split, place, 0) and so on. */
static int64_t documents_of_row(const struct token_split *split, int64_t place)
{
    const uint32_t *first = split->packing.first;
    if (!split->packed) return 1;
    return (split->prefers ? 2 : 1) * (int64_t)(first[place + 1] - first[place]);
}

/* Of pairs, what is packed is a pair. */
static int64_t document_of(const struct token_split *split, int64_t place, int64_t k)
{
    const struct packing *packing = &split->packing;
    if (!split->packed) return place;
    if (!split->prefers) return packing->documents[packing->first[place] + k];
    return 2 * (int64_t)packing->documents[packing->first[place] + k / 2] + k % 2;
}

/* The first text of a pair, until the second one is read. */
struct packed_pair {
    int64_t at;
    bool counts;
};

/* A pair counts with its second text; of one that does not, no target is left. */
static int64_t count_pair(struct packed_pair *pair, int64_t k, int64_t at, int32_t *targets,
                          int64_t count, int64_t counted)
{
    if (k % 2 == 0) *pair = (struct packed_pair){at, counted > 0};
    if (k % 2 == 0) return 0;
    if (pair->counts && counted > 0) return 1;
    for (int64_t i = pair->at; i < at + count; i++) targets[i] = -1;
    return 0;
}

static status_t read_documents(const struct token_split *split, int64_t place, int64_t vocabulary,
                               int32_t *tokens, int32_t *targets, int64_t *samples)
{
    int64_t documents = documents_of_row(split, place), at = 0;
    struct packed_pair pair = {0};
    bool pairs = split->packed && split->prefers;
    *samples = 0;
    for (int64_t k = 0; k < documents; k++) {
        int64_t number = document_of(split, place, k), begin = 0, count = 0, counted = 0;
        TRY(find_document(split, number, &begin, &count));
        if (count > split->length - at) return changed(split, number);
        TRY(read_targets(split, begin, count, vocabulary, tokens + at, targets + at, &counted));
        *samples += pairs ? count_pair(&pair, k, at, targets, count, counted) : counted;
        at += count;
    }
    for (; at < split->length; at++) {
        tokens[at] = split->padding;
        targets[at] = -1;
    }
    return NULL;
}

/* Reads a document from its start, and fills up the window behind it. */
static status_t read_window(const struct token_split *split, int64_t number, int64_t vocabulary,
                            int32_t *tokens, int64_t *begin, int64_t *count)
{
    TRY(find_document(split, number, begin, count));
    TRY(token_file_read(split->file, *begin, *count, vocabulary, tokens));
    for (int64_t at = *count; at < split->length; at++) tokens[at] = split->padding;
    return NULL;
}

static status_t read_labelled(const struct token_split *split, int64_t number, int64_t vocabulary,
                              int32_t *tokens, int32_t *targets, int64_t *samples)
{
    int64_t begin = 0, count = 0, width = split->label_width;
    TRY(read_window(split, number, vocabulary, tokens, &begin, &count));
    if (!split->token_labels)
        return target_array_read(&split->labels, number * width, width, targets, samples);
    for (int64_t at = count; at < split->length; at++) targets[at] = -1;
    return target_array_read(&split->labels, begin, count, targets, samples);
}

static status_t read_texts(const struct token_split *split, int64_t place, int64_t vocabulary,
                           int32_t *tokens, int32_t *targets, int64_t *samples)
{
    int64_t begin = 0, count = 0;
    for (int64_t k = 0; k < split->texts; k++)
        TRY(read_window(split, place * split->texts + k, vocabulary, tokens + k * split->length,
                        &begin, &count));
    memset(targets, 0, (size_t)split->targets * sizeof *targets);
    *samples = 1;
    return NULL;
}

static status_t read_pair(const struct token_split *split, int64_t place, int64_t vocabulary,
                          int32_t *tokens, int32_t *targets, int64_t *samples)
{
    int64_t length = split->length, counted[2];
    for (int k = 0; k < 2; k++)
        TRY(read_documents(split, 2 * place + k, vocabulary, tokens + k * length,
                           targets + k * length, &counted[k]));
    *samples = counted[0] > 0 && counted[1] > 0;
    for (int64_t i = 0; i < 2 * length && *samples == 0; i++) targets[i] = -1;
    return NULL;
}

status_t token_split_starts(const struct token_split *split, int64_t row, int32_t *starts)
{
    int64_t place = windows_place(&split->windows, row), at = 0;
    int64_t documents = documents_of_row(split, place);
    for (int64_t k = 0; k < documents; k++) {
        int64_t number = document_of(split, place, k), begin = 0, count = 0, first = at;
        TRY(find_document(split, number, &begin, &count));
        if (count > split->length - at) return changed(split, number);
        for (; at < first + count; at++) starts[at] = (int32_t)first;
    }
    for (; at < split->length; at++) starts[at] = (int32_t)at;
    return NULL;
}

status_t token_split_read(const struct token_split *split, int64_t row, int64_t vocabulary,
                          int32_t *tokens, int32_t *targets, int64_t *samples)
{
    int64_t place = windows_place(&split->windows, row);
    if (split->labels.npy != NULL)
        return read_labelled(split, place, vocabulary, tokens, targets, samples);
    if (split->prefers && !split->packed)
        return read_pair(split, place, vocabulary, tokens, targets, samples);
    if (split->texts > 1) return read_texts(split, place, vocabulary, tokens, targets, samples);
    if (split->documents != NULL)
        return read_documents(split, place, vocabulary, tokens, targets, samples);
    if (targets == NULL)
        return token_file_read(split->file, place, split->length, vocabulary, tokens);
    return read_targets(split, place, split->length, vocabulary, tokens, targets, samples);
}

/* Between what a row has at the first token of each document and what documents have: reads `from`,
 * or writes `to`. */
static status_t move_packed(const struct token_split *split, int64_t place, float *sums,
                            const float *from, float *to)
{
    int64_t at = 0;
    for (int64_t k = 0; k < documents_of_row(split, place); k++) {
        int64_t number = document_of(split, place, k), begin = 0, count = 0;
        TRY(find_document(split, number, &begin, &count));
        if (count > split->length - at) return changed(split, number);
        if (to != NULL) to[number] = sums[at];
        else sums[at] = from[number];
        at += count;
    }
    return NULL;
}

status_t token_split_reference(const struct token_split *split, int64_t row, float *sums)
{
    if (split->reference == NULL) return NULL;
    int64_t place = windows_place(&split->windows, row);
    if (split->packed) return move_packed(split, place, sums, split->reference, NULL);
    for (int k = 0; k < 2; k++) sums[k] = split->reference[2 * place + k];
    return NULL;
}

status_t token_split_put_reference(const struct token_split *split, int64_t row, const float *sums,
                                   float *reference)
{
    int64_t place = windows_place(&split->windows, row);
    if (split->packed) return move_packed(split, place, (float *)sums, NULL, reference);
    for (int k = 0; k < 2; k++) reference[2 * place + k] = sums[k];
    return NULL;
}

/* Counts a document's targets, `count` tokens from `begin` on; classes of documents all count. */
static status_t count_targets(const struct token_split *split, int64_t number, int64_t begin,
                              int64_t count, int64_t *samples)
{
    const struct target_array *labels = &split->labels;
    int64_t width = split->label_width;
    *samples = !split->ends || count > 0;
    if (split->ends || (split->texts > 1 && !split->prefers)) return NULL;
    if (labels->npy == NULL) return apply_mask(split->mask, begin + 1, count, NULL, samples);
    if (split->token_labels) return target_array_count(labels, begin, count, samples);
    if (labels->npy->type != NPY_F32) return NULL;
    return target_array_count(labels, number * width, width, samples);
}

static status_t measure_document(const struct token_split *split, int64_t number,
                                 struct token_measure *measure)
{
    int64_t begin = 0, end = 0, samples = 0;
    TRY(dataset_document(split->documents, number, split->file->count, &begin, &end));
    int64_t count = 0;
    TRY(find_document(split, number, &begin, &count));
    TRY(count_targets(split, number, begin, count, &samples));
    measure->filled += count;
    measure->counted += samples;
    measure->cut += count > 0 && document_length(split, begin, end) > count;
    measure->packed += split->packed && count > 0;
    return NULL;
}

status_t token_split_measure(const struct token_split *split, struct token_measure *measure)
{
    bool first = false; /* whether the last document has a target that counts */
    measure->rows += split->windows.count;
    if (split->documents == NULL) {
        int64_t filled = split->windows.count * split->length, samples = 0;
        TRY(apply_mask(split->mask, split->first + 1, filled, NULL, &samples));
        measure->filled += filled;
        measure->counted += samples;
        return NULL;
    }
    for (int64_t d = 0; d < split->documents->count - 1; d++) {
        int64_t before = measure->counted;
        TRY(measure_document(split, d, measure));
        if (!split->prefers) continue;
        bool counts = measure->counted > before; /* a pair counts once, with its second document */
        measure->counted = before + (counts && first && d % 2 == 1);
        first = counts;
    }
    return NULL;
}
