/*
 * Files of token ids, read where they are asked for and never kept: those of llm.c (a header of 256
 * int32, then uint16 or uint32), the raw uint16 of nanoGPT, and plain text, whose bytes are the
 * ids. All are little-endian. The files may be hostile: sizes are checked before anything is
 * touched, and every error names the file: INVALID_ARGUMENT for what is in it,
 * FAILED_PRECONDITION if somebody cut it or wrote to it since it was opened. Not mapped: of a
 * mapping, what another process cuts off would end this one.
 */
#ifndef FSDPD_TRAIN_TOKEN_FILE_H
#define FSDPD_TRAIN_TOKEN_FILE_H

#include <stdint.h>
#include <time.h>

#include "base/status.h"

enum token_encoding {
    TOKENS_AUTO, /* what starts as a file of llm.c is one, anything else raw uint16 */
    TOKENS_LLMC,
    TOKENS_UINT16,
    TOKENS_UINT32,
    TOKENS_BYTES, /* of a text */
};

struct token_file {
    char *path; /* NULL: not open */
    int fd;
    int64_t first_byte; /* of the first id */
    int64_t count;      /* ids, at least 1 */
    int width;          /* bytes of an id: 1, 2 or 4 */
    int64_t size;       /* of the file, bytes */
    struct timespec changed;
};

/* No link leads out of `root`; NULL: there is none. */
status_t token_file_open(const char *root, const char *path, enum token_encoding encoding,
                         struct token_file *file) FSDPD_MUST_USE;
void token_file_close(struct token_file *file); /* accepts a zeroed one */

/* Ids `first` to `first` + `count` - 1. INVALID_ARGUMENT with the place of the first id that is not
 * below `vocabulary`. After an error some of `ids` may be written. */
status_t token_file_read(const struct token_file *file, int64_t first, int64_t count,
                         int64_t vocabulary, int32_t *ids) FSDPD_MUST_USE;

/* The same check without a copy. */
status_t token_file_check(const struct token_file *file, int64_t first, int64_t count,
                          int64_t vocabulary) FSDPD_MUST_USE;

#endif
