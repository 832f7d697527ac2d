/*
 * A part of a token file as rows: windows cut from the stream of its tokens, or one document each,
 * or packed with several. A mask may select the tokens to predict. Immutable; any thread may read
 * rows.
 */
#ifndef FSDPD_DATA_TOKEN_SPLIT_H
#define FSDPD_DATA_TOKEN_SPLIT_H

#include "data/npy.h"
#include "data/packing.h"
#include "data/row_parts.h"
#include "data/token_file.h"
#include "data/windows.h"

struct token_split {
    const struct token_file *file;
    int64_t first, count;        /* the part's tokens in the file */
    const struct npy *documents; /* NULL: rows are windows; otherwise documents, from token 0 on */
    const struct npy *mask;      /* NULL: every token is a target */
    /* Other targets than the next tokens, if there are any: of each token, or `label_width` of each
     * document. Rows are then documents. */
    struct target_array labels;
    bool token_labels;
    int64_t label_width;
    int64_t texts;               /* documents of a row, each in a part of its own; 0 or 1: one */
    int64_t targets;             /* of a row with texts, each 0 */
    bool prefers;                /* two texts, of which the first is preferred: every token has a
                                  * target, and a pair counts if both have one that does. If packed,
                                  * rows have such pairs, one behind the other */
    bool ends;                   /* and such a text has no next token, but a target, 0, at its last
                                  * token that is not padding */
    int32_t padding;             /* the token that fills up rows of documents */
    int64_t length;              /* tokens per row, or with texts per text */
    bool packed;                 /* rows hold several documents */
    struct windows windows;      /* their number is the split's rows per epoch; or of documents */
    struct packing packing;      /* if packed: the rows that the windows select */
    const float *reference;      /* if it prefers: by document, what the reference made of it; NULL:
                                  * it is not known */
};

/* All members except the windows and the packing must be set. `extra`: see windows_init. A packed
 * split reads the boundaries of all documents, and must be closed, even after an error. */
status_t token_split_cut(struct token_split *split, int64_t length, int64_t extra, bool shuffle,
                         uint64_t seed) FSDPD_MUST_USE;

void token_split_close(struct token_split *split); /* accepts a zeroed one */

/*
 * Reads row `row`: split->length tokens, and for each the next one as its target, or -1 if that
 * must not be predicted; *samples is the number of targets. With labels, these are the targets.
 * With texts, the row has split->texts times as many tokens and one target, 0, unless it prefers:
 * then *samples is the number of pairs that count, and no target of another is left. A longer
 * document is cut, and of a packed pair that is longer than a row the longer one, or both to half a
 * row; a shorter row is padded. INVALID_ARGUMENT for a token that is not below `vocabulary`, and
 * for a document out of place. With `targets` NULL, reads the tokens alone.
 */
status_t token_split_read(const struct token_split *split, int64_t row, int64_t vocabulary,
                          int32_t *tokens, int32_t *targets, int64_t *samples) FSDPD_MUST_USE;

/* Writes where the document of each of row `row`'s tokens starts in the row, if the split is
 * packed. Each token of padding is a document of its own. */
status_t token_split_starts(const struct token_split *split, int64_t row,
                            int32_t *starts) FSDPD_MUST_USE;

/* Of a split that prefers: copies what the reference made of row `row`'s documents, by the order in
 * which the loss has them, if packed at the place of each one's first token; without
 * split->reference nothing. */
status_t token_split_reference(const struct token_split *split, int64_t row,
                               float *sums) FSDPD_MUST_USE;

/* Conversely puts them into `reference`, which is as split->reference. */
status_t token_split_put_reference(const struct token_split *split, int64_t row, const float *sums,
                                   float *reference) FSDPD_MUST_USE;

/* Sums over an epoch of rows. */
struct token_measure {
    int64_t rows;    /* number of rows, of `length` tokens each */
    int64_t filled;  /* tokens that have a next one: all except padding */
    int64_t counted; /* targets that count */
    int64_t cut;     /* documents that are longer than a row */
    int64_t packed;  /* documents in packed rows */
};

/* Adds the split's numbers to *measure. Reads boundaries and mask once. */
status_t token_split_measure(const struct token_split *split,
                             struct token_measure *measure) FSDPD_MUST_USE;

#endif
