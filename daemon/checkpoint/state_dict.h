/*
 * The full state_dict of a sharded model, streamed: each rank copies its shards at a step boundary
 * (a snapshot), training continues, and the snapshot's values are gathered on rank 0, which hands
 * the bytes of a safetensors file to a sink. The file has the model's order, not the units'. Each
 * gather has entries that follow each other in the model and in one unit; rank 0 thus holds at most
 * one unit beyond the shards. What is kept in another type than f32 stays in it until it is sent: a
 * rank then also holds its part of that gather in f32, or, of what it has alone, a piece of 1 MiB.
 */
#ifndef FSDPD_CHECKPOINT_STATE_DICT_H
#define FSDPD_CHECKPOINT_STATE_DICT_H

#include "checkpoint/state_header.h"
#include "fsdp/plan.h"
#include "runtime/executor.h"

/* One rank's shards at one step: host copies, independent of the executor once taken, or (borrowed)
 * the executor's own arrays. */
struct snapshot;

/* Cannot fail: if this rank had no memory for the copies, streaming the snapshot does, on every
 * rank that takes part in that. */
struct snapshot *snapshot_take(struct executor *executor, uint64_t step);
/* The same with the average of the parameters in their place, where there is one (train.ema). */
struct snapshot *snapshot_take_average(struct executor *executor, uint64_t step);
/* The same without a copy of what the host can read, for the end of training: until the snapshot is
 * freed, the executor must live and its arrays must not change. */
struct snapshot *snapshot_borrow(struct executor *executor, uint64_t step);
void snapshot_free(struct snapshot *snapshot); /* accepts NULL */
/* Why it has no values: streaming it fails on all ranks. NULL if it has them. */
status_t snapshot_failure(const struct snapshot *snapshot);
/* Whether streaming it takes a communicator: its values are spread over the ranks. */
bool snapshot_is_sharded(const struct snapshot *snapshot);

/* What this rank allocates while it streams the state_dict of such a plan. */
uint64_t state_dict_stream_bytes(const struct plan *plan);

/* Takes the file's bytes in order, in pieces of at most 1 MiB; may block (backpressure). An error
 * stops the stream on rank 0 and comes back from state_dict_stream. */
struct state_dict_sink {
    status_t (*begin)(void *user, uint64_t total_size, uint64_t step);
    status_t (*write)(void *user, const void *bytes, size_t size);
    void *user;
};

/*
 * Every rank calls this with its snapshot of the same step and a communicator of its own (never the
 * executor's); only rank 0 uses `sink`. Names, shapes, their order and (through each parameter's
 * own bytes) values are PyTorch's state_dict; a tied parameter appears under each of its names. The
 * file depends on the weights alone: units, strategy and ranks leave no trace in it. With world 1
 * `comm` may be NULL. Ranks first tell each other whether all have what it takes; if one has not,
 * its failure is that of all of them. If rank 0's sink fails, rank 0 still takes part in the
 * remaining gathers, so that the others end. After some failures of `comm` the lane is closed, and
 * *lane NULL.
 */
status_t state_dict_stream(const struct snapshot *snapshot, struct comm *comm,
                           struct lane_queue **lane,
                           const struct state_dict_sink *sink) FSDPD_MUST_USE;

/* The entries of a model's state_dict, in the model's order, and where a plan's units have their
 * values. Pure. */

/* `*count` entries, for state_entries_free. A tied parameter has the place of its owner's values;
 * the copies of a reference have none. The order is PyTorch's, whatever the units (model/model.h).
 */
struct state_entry *state_entries_list(const struct plan *plan, int *count);

#endif
