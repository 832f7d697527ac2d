/* See recorder.h. */
#include "runtime/recorder.h"

static void drop(struct recorder *recorder)
{
    recording_free(recorder->recording);
    recorder->recording = NULL;
    recorder->captured = false;
}

void recorder_deinit(struct recorder *recorder)
{
    drop(recorder);
}

void recorder_forget(struct recorder *recorder)
{
    drop(recorder);
    recorder->repeated = false;
    if (recorder->state != RECORDER_OFF) recorder->state = RECORDER_WARMUP;
}

/* *walked (may be NULL) becomes true when all calls of the walk were made. */
static status_t walk_through(struct recording *recording, enum recording_pass pass,
                             const struct recorder_walk *walk, bool *walked)
{
    TRY(recording_begin(recording, pass));
    status_t status = walk->enqueue(walk->user);
    if (walked != NULL) *walked = status == NULL;
    return recording_end(recording, status);
}

static status_t measure(struct recorder *recorder, struct device *device,
                        struct lane_queue *const *lanes, int count,
                        const struct recorder_walk *walk)
{
    TRY(recording_new(device, lanes, count, &recorder->recording));
    return walk_through(recorder->recording, RECORDING_MEASURE, walk, NULL);
}

/* Whether this rank has completed the current stage. */
static bool has(const struct recorder *recorder)
{
    return recorder->state == RECORDER_MEASURING ? recorder->recording != NULL : recorder->captured;
}

bool recorder_is_due(const struct recorder *recorder)
{
    return (recorder->state == RECORDER_MEASURING || recorder->state == RECORDER_RECORDING) &&
           !has(recorder);
}

status_t recorder_record(struct recorder *recorder, struct device *device,
                         struct lane_queue *const *lanes, int count,
                         const struct recorder_walk *walk, bool *fatal)
{
    status_t status = NULL;
    *fatal = recorder->disturbed = false;
    if (recorder->recording == NULL) status = measure(recorder, device, lanes, count, walk);
    if (status == NULL && recorder->state == RECORDER_RECORDING) {
        bool walked = false;
        status = walk_through(recorder->recording, RECORDING_CAPTURE, walk, &walked);
        recorder->captured = status == NULL;
        recorder->disturbed = !recorder->captured && !recorder->repeated &&
                              recording_is_disturbed(recorder->recording);
        *fatal = recorder->needs_peers && !walked;
    }
    if (status != NULL) drop(recorder);
    return status;
}

float recorder_report(const struct recorder *recorder)
{
    const float cannot = -65536; /* whatever others report */
    return has(recorder) ? 1 : recorder->disturbed ? 0 : cannot;
}

bool recorder_replays(const struct recorder *recorder)
{
    return recorder->state == RECORDER_REPLAYING;
}

status_t recorder_replay(struct recorder *recorder, const struct recorder_walk *walk)
{
    return walk_through(recorder->recording, RECORDING_REPLAY, walk, NULL);
}

bool recorder_note_run(struct recorder *recorder, float reports, int world)
{
    const bool all = reports == (float)world, had = has(recorder);
    switch (recorder->state) {
    case RECORDER_WARMUP:
        recorder->state = recorder->needs_peers ? RECORDER_MEASURING : RECORDER_RECORDING;
        break;
    case RECORDER_MEASURING:
    case RECORDER_RECORDING:
        if (!all) drop(recorder);
        if (!all && reports >= 0 && !recorder->repeated) {
            recorder->repeated = true;
            break;
        }
        recorder->state = !all                                    ? RECORDER_OFF
                          : recorder->state == RECORDER_MEASURING ? RECORDER_RECORDING
                                                                  : RECORDER_REPLAYING;
        return had && !all;
    case RECORDER_REPLAYING:
    case RECORDER_OFF: break;
    }
    return false;
}
