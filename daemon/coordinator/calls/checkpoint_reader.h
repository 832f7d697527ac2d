/*
 * Reads the weights of a job that no worker holds: finds one of its checkpoints below the job's
 * checkpoint directory, verifies it, and returns it as a state_dict in pieces. The loop creates and
 * queries the reader. Disk work is split into parts: each part is one call of
 * checkpoint_reader_work on a libuv thread, and the loop does not touch the reader meanwhile.
 */
#ifndef FSDPD_COORDINATOR_CHECKPOINT_READER_H
#define FSDPD_COORDINATOR_CHECKPOINT_READER_H

#include "coordinator/core/internal.h"

struct checkpoint_reader;

/* Bytes to verify per part: few enough that several readers share the threads. */
enum { CHECKPOINT_READER_PART = 16 << 20 };

/* `step` 0: the newest checkpoint. `average`: of its weights, in their place. `none` is the error
 * if the job has no checkpoint at all; the reader takes ownership of it. */
struct checkpoint_reader *checkpoint_reader_new(const struct coordinator *c, const job_message *job,
                                                uint64_t step, bool average, status_t none);
void checkpoint_reader_free(struct checkpoint_reader *reader); /* accepts NULL */

/*
 * Runs the next part. The first finds and opens the checkpoint; the following ones compare its
 * files with their checksums; the rest read the state_dict's next *count bytes into `chunk` of
 * `size` bytes (a multiple of 8). *count is 0 until the first read, and at the end.
 */
status_t checkpoint_reader_work(struct checkpoint_reader *reader, void *chunk, size_t size,
                                size_t *count) FSDPD_MUST_USE;

/* From now on, damaged checkpoints are passed over; the reader is of use only to find the newest
 * whole one, which it has read when it is verified. */
void checkpoint_reader_pass_damage(struct checkpoint_reader *reader);
bool checkpoint_reader_is_verified(const struct checkpoint_reader *reader);

/* Compares the reports in a checkpoint that is verified, which no pull needs, with their sum. */
status_t checkpoint_reader_check_reports(const struct checkpoint_reader *reader) FSDPD_MUST_USE;

/* The checkpoint that was found, and the size of its state_dict; NULL and 0 before it is open. */
const Fsdpd__V1__Checkpoint *checkpoint_reader_found(const struct checkpoint_reader *reader);
uint64_t checkpoint_reader_bytes(const struct checkpoint_reader *reader);

#endif
