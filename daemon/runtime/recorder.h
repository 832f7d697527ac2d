/*
 * How a program moves from individually enqueued calls to a replayed recording (runtime/device.h).
 * The first run enqueues calls, as libraries load and select algorithms in it. Before the second
 * run the program is recorded; each rank reports success in its statistics, because NCCL requires
 * that all ranks record a collective or none. From the third run on it is replayed, or never; but if
 * something outside disturbed the recording on some ranks, and no rank cannot record, all record
 * once more. Both ways have the same results.
 *
 * If recording collectives blocks until the peers do (comm_enqueue_needs_peers), a rank that cannot
 * record would leave the others waiting. Then the second run only measures and reports; the third
 * records, which all ranks can as far as they know. A failure among the calls of this recording
 * ends the step.
 */
#ifndef FSDPD_RUNTIME_RECORDER_H
#define FSDPD_RUNTIME_RECORDER_H

#include "runtime/device.h"

enum recorder_state {
    RECORDER_WARMUP,
    RECORDER_MEASURING, /* only if comm_enqueue_needs_peers */
    RECORDER_RECORDING,
    RECORDER_REPLAYING,
    RECORDER_OFF
};

/* All zeros at first. */
struct recorder {
    enum recorder_state state;
    bool needs_peers;            /* set before the first run */
    struct recording *recording; /* NULL before it is measured */
    bool captured;
    bool disturbed; /* the recording that failed: it may succeed the second time */
    bool repeated;  /* it was tried a second time, on all ranks */
};

/* Enqueues the whole program, the same at every call. */
struct recorder_walk {
    status_t (*enqueue)(void *user);
    void *user;
};

void recorder_deinit(struct recorder *recorder);

/* Whether to record the program, or to measure it, in this run. */
bool recorder_is_due(const struct recorder *recorder);
/* An error explains why recording failed; nothing else has changed, unless it is `fatal`: peers may
 * wait for this rank's calls. */
status_t recorder_record(struct recorder *recorder, struct device *device,
                         struct lane_queue *const *lanes, int count,
                         const struct recorder_walk *walk, bool *fatal) FSDPD_MUST_USE;
/* What this rank's statistics report of the current stage: 1 if it has completed it; so that a sum
 * over ranks is below 0 if one of them cannot, otherwise 0. */
float recorder_report(const struct recorder *recorder);
/* Whether the next run is a replay; false for a recorder without a recording. */
bool recorder_replays(const struct recorder *recorder);
status_t recorder_replay(struct recorder *recorder,
                         const struct recorder_walk *walk) FSDPD_MUST_USE;
/* After a successful run of enqueued calls, with the sum of all ranks' reports. Returns whether this
 * rank completed the stage but another rank did not, so that it cannot be used. */
bool recorder_note_run(struct recorder *recorder, float reports, int world);
/* The program's calls will change, so the recording is obsolete. */
void recorder_forget(struct recorder *recorder);

#endif
