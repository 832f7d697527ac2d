/* model.safetensors.index.json: which tensor is in which of a directory's files. Pure. */
#ifndef FSDPD_HF_INDEX_H
#define FSDPD_HF_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

enum { HF_FILES_MAX = 99999 }; /* that is how many digits a shard's number has */

#define HF_SHARD_BYTES UINT64_C(5000000000) /* of one file's tensors at most, if nobody says more  \
                                             */

struct hf_index {
    char **files; /* sorted, each once */
    int file_count;
    struct hf_index_entry {
        char *name;
        int file;
    } * entries; /* in the order of the index */
    int entry_count;
};

/* Hostile input: names of files are those of files beside the index. `file` is for messages. */
status_t hf_index_read(const char *json, size_t length, const char *file,
                       struct hf_index *index) FSDPD_MUST_USE;
void hf_index_deinit(struct hf_index *index);

/* The index of tensors of `total_size` bytes; `entries` and `files` as above. */
void hf_index_write(const struct hf_index *index, uint64_t total_size, struct buf *out);

/* "model-00001-of-00003.safetensors"; "model.safetensors" if there is one. The caller frees it. */
char *hf_shard_name(int number, int count);

#endif
