/*
 * The safetensors format (https://github.com/huggingface/safetensors): 8 bytes little-endian header
 * size, a JSON header padded with spaces to a multiple of 8, then the tensors' bytes, tiling the
 * rest exactly.
 */
#ifndef FSDPD_HF_SAFETENSORS_H
#define FSDPD_HF_SAFETENSORS_H

#include "base/buf.h"
#include "base/status.h"
#include "ops/tensor.h"

struct safetensors_entry {
    char *name;
    char *dtype; /* "F32" */
    int dim_count;
    int64_t dims[TENSOR_MAX_DIMS];
    uint64_t begin, end; /* bytes, relative to the data's start */
};

struct safetensors_metadata { /* one entry of __metadata__ */
    const char *key, *value;
};

/* Appends the size and the header for entries whose data follows in this order (computes and stores
 * begin and end). */
void safetensors_write_header(struct buf *out, struct safetensors_entry *entries, int count,
                              const struct safetensors_metadata *metadata, int metadata_count);

struct safetensors_header {
    struct safetensors_entry *entries; /* in order of their data */
    int count;
    uint64_t data_offset; /* of the data in the file */
};

/*
 * Reads the header from the first bytes of a file of `file_size` bytes; `bytes` must hold at least
 * 8 + header size bytes (otherwise OUT_OF_RANGE, with the number in *needed). The input is hostile:
 * gaps, overlaps, sizes beyond the file, duplicate names and wrong shapes are INVALID_ARGUMENT.
 */
status_t safetensors_read_header(const void *bytes, size_t size, uint64_t file_size,
                                 struct safetensors_header *header,
                                 uint64_t *needed) FSDPD_MUST_USE;
void safetensors_header_deinit(struct safetensors_header *header);

#endif
