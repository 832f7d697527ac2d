/*
 * The link: the Attach stream to the coordinator, and the other calls on the same channel. A broken
 * stream is opened again, with growing pauses, without limit; reports made meanwhile, or not
 * acknowledged before, are then sent. Functions run on the loop's thread unless stated otherwise.
 */
#ifndef FSDPD_WORKER_LINK_H
#define FSDPD_WORKER_LINK_H

#include <uv.h>

#include "base/buf.h"
#include "base/status.h"
#include "fsdpd/v1/worker.pb-c.h"
#include "rpc/client.h"
#include "runtime/comm.h"
#include "worker/settings.h"

struct link;
struct mailbox;

struct link_callbacks {
    void (*on_plan)(void *user, const Fsdpd__V1__PlanOrder *order);
    void (*on_plan_cancelled)(void *user, uint64_t request);
    void (*on_assignment)(void *user, const Fsdpd__V1__Assignment *assignment);
    void (*on_order)(void *user, const Fsdpd__V1__Order *order);
    void (*on_drain)(void *user);
    void (*on_diagnosis)(void *user, const Fsdpd__V1__DiagnosisOrder *order);
    void (*on_calibration)(void *user, const Fsdpd__V1__CalibrationOrder *order);
    void (*on_probe)(void *user, const Fsdpd__V1__ProbeOrder *order);
    /* That attempt is over: to be ended if it runs. */
    void (*on_release)(void *user, const Fsdpd__V1__Release *release);
    /* The stream is closed, or could not be opened; the link opens it again. `attached`: the
     * coordinator had accepted the hello. The callee owns `status`. */
    void (*on_lost)(void *user, status_t status, bool attached);
    /* There was no coordinator for options->away_ms or longer. */
    void (*on_away)(void *user, int64_t away_ms);
    /* Describes the running attempt, in malloc'ed memory, for the hello; false: there is none. */
    bool (*held)(void *user, Fsdpd__V1__HeldAttempt *held);
    /* What is kept in memory of a job, for the hello; the link frees it. NULL: nothing. */
    Fsdpd__V1__KeptState *(*kept)(void *user);
    /* Fills in the running attempt's part of a heartbeat. */
    void (*beat)(void *user, Fsdpd__V1__Heartbeat *heartbeat);
    void *user;
};

/* What the hello says of the worker. */
struct link_self {
    const char *id;
    const char *make;      /* of its device; see backend_describe */
    uint64_t memory_bytes; /* likewise */
};

/* Borrows the strings and the options. */
status_t link_new(uv_loop_t *loop, struct mailbox *mailbox, const struct worker_options *options,
                  const struct link_self *self, const struct link_callbacks *callbacks,
                  struct link **link) FSDPD_MUST_USE;
/* Calls `closed` when the channel and the runtime are freed. */
void link_close(struct link *link, void (*closed)(void *user), void *user);

/* Takes ownership of `message`, which was made with malloc'ed memory. From any thread. Reports of
 * an attempt are kept until the coordinator has them (see outbox.h); others are dropped without
 * one. */
void link_post(struct link *link, Fsdpd__V1__WorkerMessage *message);

/* The same for an event of this attempt. */
void link_post_event(struct link *link, const char *job, uint32_t attempt,
                     Fsdpd__V1__AttemptEvent *event);

/* Says that the worker takes no more work: before the report of its attempt's end, after which it
 * would get some. From any thread. */
void link_post_leave(struct link *link);

/* Appends the attempt's metrics that the coordinator has not acknowledged; see outbox_pack_metrics.
 * Includes everything that this thread posted before. From any thread but the loop's, which must
 * run. */
void link_pack_unrecorded(struct link *link, const char *job, uint32_t attempt, uint64_t step,
                          struct buf *out);

/* Whether reports wait for the coordinator to acknowledge them. */
bool link_has_reports(const struct link *link);

/*
 * Blocking calls, from any thread but the loop's. Each waits at a gate: once it is closed, every
 * current and future wait at it ends with ABORTED. A gate must outlive the calls.
 */
struct gate {
    char *closed; /* why; NULL while open; guarded by the link */
};
void link_close_gate(struct link *link, struct gate *gate, const char *why); /* from any thread */
void gate_deinit(struct gate *gate);

/* Whether a coordinator has taken the hello. */
bool link_is_attached(struct link *link);

/* Waits for a coordinator that has taken the hello; false if the gate closes first. */
bool link_wait_attached(struct link *link, const struct gate *gate);

/* The pause after attempt `round` (from 0) of an operation that must not be given up: as between
 * two streams. False if the gate closes first. */
bool link_pause(struct link *link, const struct gate *gate, int round);

/* An attempt's store at the coordinator, as communicators see it; every wait is at the gate. */
struct store_access {
    struct link *link;
    struct gate *gate;
    const char *store;
};
struct rendezvous link_store_rendezvous(struct store_access *access); /* which must outlive it */

/* Makes the store refuse the group, so that no rank can join it, whatever gates are closed; returns
 * at once. */
void link_store_fail(struct link *link, const char *store, const char *group, const char *why);

/* Keys are set again at every later coordinator, until this call. Loop's thread. */
void link_forget_keys(struct link *link);

/* A state_dict on its way to the coordinator: at most a few pieces are under way at once. */
struct worker_upload;
status_t upload_begin(struct link *link, struct gate *gate, const char *job, uint32_t attempt,
                      uint64_t pull, uint64_t total_size, uint64_t step,
                      struct worker_upload **upload) FSDPD_MUST_USE;
status_t upload_write(struct worker_upload *upload, const void *bytes, size_t size) FSDPD_MUST_USE;
/* Waits until the coordinator has taken everything; frees the upload, also on failure. */
status_t upload_finish(struct worker_upload *upload) FSDPD_MUST_USE;
void upload_cancel(struct worker_upload *upload); /* frees it; accepts NULL */

/*
 * How a worker's other threads reach its loop: a call is posted from any thread and runs on the
 * loop's thread, in order.
 */

status_t mailbox_new(uv_loop_t *loop, struct mailbox **mailbox) FSDPD_MUST_USE;

/* From any thread, as long as the mailbox is not closed. */
void mailbox_post(struct mailbox *mailbox, void (*function)(void *argument), void *argument);

/* On the loop's thread. Runs the tasks posted before, then frees the queue once the loop has closed
 * its handle. No thread may post any more. */
void mailbox_close(struct mailbox *mailbox);

/* ---- fetch.c ---- */

/*
 * Weights of another job that this host may not see, read through the coordinator into a file.
 */

/* Writes `source` (with a job) to the new file `path`, as fsdpctl pull would; `average`: of the
 * weights. Waits: not on the loop's thread. ABORTED if the gate closes, DATA_LOSS if bytes are
 * missing; the file is the caller's also then. */
status_t fetch_weights(struct link *link, struct gate *gate, const Fsdpd__V1__Source *source,
                       bool average, const char *path) FSDPD_MUST_USE;

#endif
