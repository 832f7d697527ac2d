/* model.safetensors.index.json: which file of a directory has which tensor. Pure. */
#ifndef FSDPD_HF_INDEX_H
#define FSDPD_HF_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

enum { HF_FILES_MAX = 99999 }; /* a shard's number has that many digits */

#define HF_SHARD_BYTES UINT64_C(5000000000) /* default limit of a file's tensors */

struct hf_index {
    char **files; /* each once, in the order of their first entries */
    int file_count;
    struct hf_index_entry {
        char *name;
        int file;
    } * entries; /* in the order of the index */
    int entry_count;
};

/* Hostile input: file names must be of files beside the index. `file` is for messages. */
status_t hf_index_read(const char *json, size_t length, const char *file,
                       struct hf_index *index) FSDPD_MUST_USE;
void hf_index_deinit(struct hf_index *index);

/* The index for tensors of `total_size` bytes; `entries` and `files` as above. */
void hf_index_write(const struct hf_index *index, uint64_t total_size, struct buf *out);

/* "model-00001-of-00003.safetensors"; "model.safetensors" for a single file. The caller frees
 * it. */
char *hf_shard_name(int number, int count);

#endif
