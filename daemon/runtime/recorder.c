/* See recorder.h. */
#include "runtime/recorder.h"

static void drop(struct recorder *recorder)
{
    recording_free(recorder->recording);
    recorder->recording = NULL;
}

void recorder_deinit(struct recorder *recorder)
{
    drop(recorder);
}

void recorder_forget(struct recorder *recorder)
{
    drop(recorder);
    if (recorder->state != RECORDER_OFF) recorder->state = RECORDER_WARMS_UP;
}

static status_t walk_through(struct recording *recording, enum recording_pass pass,
                             const struct recorder_walk *walk)
{
    TRY(recording_begin(recording, pass));
    return recording_end(recording, walk->enqueue(walk->user));
}

static status_t record(struct recorder *recorder, struct device *device,
                       struct lane_queue *const *lanes, int count, const struct recorder_walk *walk)
{
    TRY(recording_new(device, lanes, count, &recorder->recording));
    TRY(walk_through(recorder->recording, RECORDING_MEASURE, walk));
    return walk_through(recorder->recording, RECORDING_CAPTURE, walk);
}

bool recorder_is_due(const struct recorder *recorder)
{
    return recorder->state == RECORDER_RECORDS && recorder->recording == NULL;
}

status_t recorder_record(struct recorder *recorder, struct device *device,
                         struct lane_queue *const *lanes, int count,
                         const struct recorder_walk *walk)
{
    status_t status = record(recorder, device, lanes, count, walk);
    if (status != STATUS_OKAY) drop(recorder);
    return status;
}

bool recorder_has(const struct recorder *recorder)
{
    return recorder->recording != NULL;
}

bool recorder_replays(const struct recorder *recorder)
{
    return recorder->state == RECORDER_REPLAYS;
}

status_t recorder_replay(struct recorder *recorder, const struct recorder_walk *walk)
{
    return walk_through(recorder->recording, RECORDING_REPLAY, walk);
}

void recorder_note_run(struct recorder *recorder, bool everybody)
{
    switch (recorder->state) {
    case RECORDER_WARMS_UP: recorder->state = RECORDER_RECORDS; break;
    case RECORDER_RECORDS:
        recorder->state = everybody ? RECORDER_REPLAYS : RECORDER_OFF;
        if (!everybody) drop(recorder);
        break;
    case RECORDER_REPLAYS:
    case RECORDER_OFF: break;
    }
}
