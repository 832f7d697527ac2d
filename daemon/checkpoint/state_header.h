/* The entries of a state_dict and the header of its file, the same from a running job and from a
 * checkpoint: written, and checked. Pure. */
#ifndef FSDPD_CHECKPOINT_STATE_HEADER_H
#define FSDPD_CHECKPOINT_STATE_HEADER_H

#include "hf/safetensors.h"

/* A name of a state_dict, and where the units have its values; a tied parameter's values have
 * several names. */
struct state_entry {
    char *name;
    int dim_count;
    int64_t dims[TENSOR_MAX_DIMS];
    bool count;     /* a 64-bit integer in two elements (model.h), a scalar in the file */
    int unit;       /* that has the values, f32 */
    int64_t offset; /* in its flat parameter, elements */
};

int64_t state_entry_elements(const struct state_entry *entry);
void state_entries_free(struct state_entry *entries, int count); /* accepts NULL */

/*
 * Appends the header of a file whose values follow in the order of the entries; returns the size of
 * the whole file. Nothing in it depends on anything but names, types and shapes, so that equal
 * weights make equal files: the metadata holds format=pt.
 */
uint64_t state_header_write(struct buf *out, const struct state_entry *entries, int count);

/* Makes an entry of a file a 64-bit integer, of the bytes of two numbers. */
void state_header_count(struct safetensors_entry *entry);

/*
 * Whether the first `size` bytes of a file of `total` bytes begin a state_dict of a model with this
 * many parameters (0: not known). INVALID_ARGUMENT: they are not a header whose tensors fill the
 * file, a tensor is neither F32 nor I64, or there are too few values, or too many: a tied parameter
 * comes again under each of its names, in the same shape. OUT_OF_RANGE: *needed bytes of the file
 * are.
 */
status_t state_header_check(const void *bytes, size_t size, uint64_t total, uint64_t parameters,
                            uint64_t *needed) FSDPD_MUST_USE;

#endif
