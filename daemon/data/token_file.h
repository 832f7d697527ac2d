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

#include <stdbool.h>

#include "base/status.h"
#include "data/data_file.h"
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

/* ---- megatron.c ---- */

/*
 * The index (.idx) of Megatron-LM's token files: beside NAME.bin, which holds only tokens, NAME.idx
 * has their type, the lengths and places of sequences, and which sequences begin documents. We read
 * the stream of tokens; the index must describe all of it, in order and without gaps. Files may be
 * hostile: errors are INVALID_ARGUMENT and name the file and the place.
 */

struct megatron {
    int width;     /* bytes per token: 1, 2 or 4 */
    int64_t count; /* tokens */
};

/* Checks all of the index of a .bin of `bytes` bytes. */
status_t megatron_parse(const struct data_file *index, int64_t bytes,
                        struct megatron *megatron) FSDPD_MUST_USE;

/* Parses the index beside `tokens`; *found is false if it has none, or one of another kind. Links
 * must not lead out of `root` (NULL: no root). */
status_t megatron_find(const char *root, const struct data_file *tokens, bool *found,
                       struct megatron *megatron) FSDPD_MUST_USE;

/* ---- token_paths.c ---- */

/* Finds the files that a path of tokens names: itself, or those that its last part matches
 * (shards-*.bin). */

/* All of them stay open while a job runs. */
enum { TOKEN_PATHS_MAX = 512 };

struct token_paths {
    char **paths;
    int count; /* at least 1 */
};

/* Whether the last part contains *, ? or [. */
bool token_path_is_pattern(const char *path);

/* Sorted by name. Links must not lead out of `root` (NULL: no root). NOT_FOUND if no file
 * matches. */
status_t token_paths_find(const char *root, const char *path,
                          struct token_paths *paths) FSDPD_MUST_USE;
void token_paths_deinit(struct token_paths *paths); /* accepts a zeroed one */

#endif
