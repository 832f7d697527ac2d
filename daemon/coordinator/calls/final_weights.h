/*
 * Validates the final state_dict that rank 0 uploads: a safetensors file whose tensors are all F32
 * and whose number of values matches the job's plan. The header is checked as it arrives, so an
 * invalid file is refused before it is written. Pure.
 */
#ifndef FSDPD_COORDINATOR_FINAL_WEIGHTS_H
#define FSDPD_COORDINATOR_FINAL_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "checkpoint/state_sums.h"

struct final_weights {
    uint64_t total, parameters; /* bytes of the file; values in the plan, 0: unknown */
    uint64_t needed;            /* header bytes needed so far */
    struct buf header;
    bool checked;
    struct safetensors_header layout; /* once it is checked */
};

void final_weights_begin(struct final_weights *weights, uint64_t total, uint64_t parameters);

/* Takes the file's next bytes. INVALID_ARGUMENT if they complete an invalid header; it states the
 * mistake. */
status_t final_weights_take(struct final_weights *weights, const void *bytes,
                            size_t size) FSDPD_MUST_USE;

void final_weights_deinit(struct final_weights *weights); /* accepts a zeroed one */

#endif
