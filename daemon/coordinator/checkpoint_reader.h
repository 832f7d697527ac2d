/*
 * The weights of a job that no worker holds: a checkpoint of its, found below the job's directory
 * of checkpoints, verified, and read as a state_dict in pieces. Made and asked on the loop; what
 * takes the disk's time is done in parts, each by one call of checkpoint_reader_work on a thread of
 * libuv's, while the loop leaves the reader alone.
 */
#ifndef FSDPD_COORDINATOR_CHECKPOINT_READER_H
#define FSDPD_COORDINATOR_CHECKPOINT_READER_H

#include "coordinator/internal.h"

struct checkpoint_reader;

/* `step` 0: the newest one. `none` is the error if the job has no checkpoint at all; taken over. */
struct checkpoint_reader *checkpoint_reader_new(const struct coordinator *c, const job_message *job,
                                                uint64_t step, status_t none);
void checkpoint_reader_free(struct checkpoint_reader *reader); /* accepts NULL */

/*
 * The next part: the checkpoint is found and opened; then some of its files are compared with their
 * sums; then, into `chunk` of `size` bytes (a multiple of 8), come the file's next ones, *count of
 * them; 0 before that, and at the end.
 */
status_t checkpoint_reader_work(struct checkpoint_reader *reader, void *chunk, size_t size,
                                size_t *count) FSDPD_MUST_USE;

/* Which one it is, and the bytes of the state_dict; NULL and 0 before it is open. */
const Fsdpd__V1__Checkpoint *checkpoint_reader_found(const struct checkpoint_reader *reader);
uint64_t checkpoint_reader_bytes(const struct checkpoint_reader *reader);

#endif
