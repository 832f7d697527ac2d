/* The header of a state_dict's file, the same from a running job and from a checkpoint. Pure. */
#ifndef FSDPD_CHECKPOINT_STATE_HEADER_H
#define FSDPD_CHECKPOINT_STATE_HEADER_H

#include "hf/safetensors.h"

/* Appends it for entries of names and dims, whose values (f32) follow in their order. Sets what
 * else entries have; their dtype is then a constant. The metadata holds format=pt, step, job. */
void state_header_write(struct buf *out, struct safetensors_entry *entries, int count,
                        uint64_t step, const char *job);

#endif
