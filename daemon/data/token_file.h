/*
 * Files of token ids, read on demand and never kept: those of llm.c (a header of 256 int32, then
 * uint16 or uint32), NumPy's (.npy), Megatron-LM's (.bin, with an index .idx), the raw uint16 of
 * nanoGPT, and plain text, whose bytes are the ids. All are little-endian. The files may be
 * hostile: sizes are checked before anything is read, and every error names the file:
 * INVALID_ARGUMENT for its content, FAILED_PRECONDITION if another process truncated it or wrote to
 * it since it was opened (data_file.h).
 */
#ifndef FSDPD_DATA_TOKEN_FILE_H
#define FSDPD_DATA_TOKEN_FILE_H

#include "data/npy.h"

enum token_encoding {
    TOKENS_AUTO, /* detects files of llm.c and NumPy by their start, and Megatron's by their index;
                  * others are raw uint16 */
    TOKENS_LLMC,
    TOKENS_UINT16,
    TOKENS_UINT32,
    TOKENS_BYTES, /* plain text */
    TOKENS_NPY,   /* one dimension */
};

struct token_file {
    struct data_file data;
    int64_t first_byte; /* of the first id */
    int64_t count;      /* ids, at least 1 */
    int width;          /* bytes of an id: 1, 2 or 4 */
    bool guessed;       /* nothing says that the ids are uint16 */
};

/* Links must not lead out of `root` (NULL: no root). */
status_t token_file_open(const char *root, const char *path, enum token_encoding encoding,
                         struct token_file *file) FSDPD_MUST_USE;
/* The elements of an array as tokens. The array must stay open; do not close the token file. */
status_t token_file_from_npy(const struct npy *npy, struct token_file *file) FSDPD_MUST_USE;
void token_file_close(struct token_file *file); /* accepts a zeroed one */

/* Whether the file's first ids suit a vocabulary: they are below it, and where the width is
 * guessed, uint16 can hold all of it, and the ids do not look like uint32. INVALID_ARGUMENT says
 * what to set. */
status_t token_file_check_start(const struct token_file *file, int64_t vocabulary) FSDPD_MUST_USE;

/* Reads ids `first` to `first` + `count` - 1. INVALID_ARGUMENT with the place of the first id that
 * is not below `vocabulary`. After an error, part of `ids` may have been written. */
status_t token_file_read(const struct token_file *file, int64_t first, int64_t count,
                         int64_t vocabulary, int32_t *ids) FSDPD_MUST_USE;

/* The same check without a copy. */
status_t token_file_check(const struct token_file *file, int64_t first, int64_t count,
                          int64_t vocabulary) FSDPD_MUST_USE;

#endif
