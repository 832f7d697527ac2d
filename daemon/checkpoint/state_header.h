/* The header of a state_dict's file, the same from a running job and from a checkpoint: written,
 * and checked. Pure. */
#ifndef FSDPD_CHECKPOINT_STATE_HEADER_H
#define FSDPD_CHECKPOINT_STATE_HEADER_H

#include "hf/safetensors.h"

/* Appends the header for entries of names and dims, whose values (f32) follow in their order. Sets
 * the other members of entries; their dtype is F32 unless they have one. The metadata holds
 * format=pt, step, job. */
void state_header_write(struct buf *out, struct safetensors_entry *entries, int count,
                        uint64_t step, const char *job);

/* Before that: makes the entry a 64-bit integer, of the bytes of two numbers. */
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
