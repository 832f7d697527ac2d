/*
 * A program's way from calls that are enqueued one by one to a recording that is replayed
 * (runtime/device.h). The first run is as the calls come, as libraries load and choose in it.
 * Before the second the program is recorded; whether that went well every rank tells the others in
 * its statistics, as NCCL wants a collective recorded by all ranks or by none. From the third on it
 * is replayed, or never. Both ways have the same results.
 *
 * Where collectives take the peers to be recorded (comm_talks), a rank that cannot would leave the
 * others waiting in theirs. The second run then only measures, and tells; the third records, which
 * all can as far as they know. What still fails among the calls of a recording ends the step.
 */
#ifndef FSDPD_RUNTIME_RECORDER_H
#define FSDPD_RUNTIME_RECORDER_H

#include "runtime/device.h"

enum recorder_state {
    RECORDER_WARMS_UP,
    RECORDER_MEASURES, /* only where collectives talk */
    RECORDER_RECORDS,
    RECORDER_REPLAYS,
    RECORDER_OFF
};

/* All zeros at first. */
struct recorder {
    enum recorder_state state;
    bool talks;                  /* set before the first run */
    struct recording *recording; /* NULL before it is measured */
    bool captured;
};

/* Enqueues everything that the program has, the same at every call. */
struct recorder_walk {
    status_t (*enqueue)(void *user);
    void *user;
};

void recorder_deinit(struct recorder *recorder);

/* Whether it is time to record the program, or to measure it. */
bool recorder_is_due(const struct recorder *recorder);
/* An error says why it could not be done; nothing else has changed, unless it is `fatal`: peers may
 * wait for this rank's calls. */
status_t recorder_record(struct recorder *recorder, struct device *device,
                         struct lane_queue *const *lanes, int count,
                         const struct recorder_walk *walk, bool *fatal) FSDPD_MUST_USE;
/* Whether this rank has done what was due. */
bool recorder_has(const struct recorder *recorder);
/* Whether the next run is a replay; one of a recorder that has nothing is not. */
bool recorder_replays(const struct recorder *recorder);
status_t recorder_replay(struct recorder *recorder,
                         const struct recorder_walk *walk) FSDPD_MUST_USE;
/* After a run that went well, as the calls came; `everybody` has done what was due. */
void recorder_note_run(struct recorder *recorder, bool everybody);
/* What the calls will be is another thing than what was recorded. */
void recorder_forget(struct recorder *recorder);

#endif
