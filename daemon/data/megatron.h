/*
 * The index (.idx) of Megatron-LM's token files: beside NAME.bin, which holds only tokens, NAME.idx
 * has their type, the lengths and places of sequences, and which sequences begin documents. We read
 * the stream of tokens; the index must describe all of it, in order and without gaps. Files may be
 * hostile: errors are INVALID_ARGUMENT and name the file and the place.
 */
#ifndef FSDPD_DATA_MEGATRON_H
#define FSDPD_DATA_MEGATRON_H

#include <stdbool.h>

#include "data/data_file.h"

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

#endif
