/* Inside an attempt: what attempt.c (its life), attempt_orders.c and attempt_reports.c share. */
#ifndef FSDPD_WORKER_ATTEMPT_INTERNAL_H
#define FSDPD_WORKER_ATTEMPT_INTERNAL_H

#include <pthread.h>

#include "setup/session_state.h"
#include "worker/attempt.h"
#include "worker/checkpointer.h"
#include "worker/op_times.h"
#include "worker/pull.h"
#include "worker/trace.h"

struct queued_order {
    uint64_t sequence;
    uint64_t pull;                 /* of a pull, else 0 */
    bool average;                  /* which is of the average */
    uint64_t trace;                /* of a trace, else 0 */
    uint32_t steps;                /* of a trace */
    char *cancel_message;          /* of a cancel */
    Fsdpd__V1__SetWrapOrder *wrap; /* another policy, else NULL; lives as long as the attempt */
    Fsdpd__V1__EvaluateOrder *evaluate; /* of an evaluation, else NULL; as `wrap` */
    uint64_t checkpoint;           /* of a checkpoint, else 0 */
    bool pause;                    /* the attempt ends with it */
    Fsdpd__V1__CheckpointOrder *memory; /* that need not be on the disk, else NULL; as `wrap` */
};

/* Orders that other ranks may have missed when the coordinator went. */
enum { TAIL_ORDERS = 32 };

struct worker_attempt {
    struct link *link;
    struct mailbox *mailbox;
    const struct worker_options *options;
    Fsdpd__V1__Assignment *assignment; /* a copy */
    void (*ended)(void *user);
    void *user;
    pthread_t thread;

    struct spare *spare;     /* NULL without redundancy in memory */
    struct comm *spare_comm; /* its group; training thread */

    struct gate gate; /* for everything that waits for the coordinator */
    struct store_access store;
    struct rendezvous rendezvous;
    struct side_context side;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct queued_order *orders; /* by sequence, from 1 */
    int order_count, order_capacity;
    Fsdpd__V1__Order
        *tail[TAIL_ORDERS];    /* copies of the last ones; order n is at n % TAIL_ORDERS */
    uint64_t plan_hash, steps; /* once it has started */
    char *aborted;             /* why; NULL if not */
    struct train_session *session;
    struct comm *comm;
    struct puller *puller;
    struct checkpointer *checkpointer; /* NULL without a place for checkpoints */
    const char *place;                 /* outside of a run; completes "rank 0 ..."; a constant */
    int64_t place_since_ns;
    bool joins; /* there, it waits for the other ranks */

    char *resumed_name, *resumed_note; /* training thread, as is what follows */
    struct device *device;
    bool saves_last_step; /* a checkpoint of it */
    struct snapshot *final; /* until the puller has it */
    bool streams_final;     /* the puller has it: the executor's arrays stay as they are */
    int device_notes; /* that were logged */
    uint64_t resumed_step;
    Fsdpd__V1__UnrecordedReports *unrecorded; /* of the checkpoint, until they are reported; or
                                               * NULL */
    bool paused;                              /* that is why it ends */
    char *early_end;                          /* why it ends before its last step, or NULL */
    uint64_t orders_done;
    uint64_t evaluating; /* the number of the order whose evaluation runs, or 0 */
    struct tracer tracer;
    struct op_times op_times;
    uint64_t memory_planned, memory_peak;
    double peak_flops; /* of all ranks' devices; 0 if it is not known */
    uint64_t step;     /* that it came to, when it is over */
};

/* ---- attempt_reports.c: hooks of a run (setup/session.h), on the training thread ---- */

void attempt_note_resumed(void *user, uint64_t step, const char *name, const char *note);
void attempt_log_note(void *user, const char *note);
/* Logs the device's notes since the last call. */
void attempt_log_device_notes(struct worker_attempt *attempt);
/* Those that this process keeps of the job. */
void attempt_pack_kept(void *user, uint64_t step, struct buf *out);
void attempt_note_reports(void *user, const void *bytes, size_t size);
void attempt_report_started(void *user, uint64_t plan_hash, uint64_t steps);
void attempt_report_metrics(void *user, const struct train_metrics *metrics);
void attempt_report_epoch(void *user, const struct train_epoch *epoch);
void attempt_report_validation(void *user, const struct train_validation *validation);
/* What train.sample gave. */
void attempt_report_own_samples(void *user, const struct train_sample *wanted,
                                const struct train_sampled *sampled, const status_t refused);
/* Rank 0: the tokens that were drawn now, of the order that runs. */
void attempt_report_drawn(void *user, const int32_t *tokens, int count);
/* The same of `count` sequences that were to be continued. */
void attempt_report_sample(struct worker_attempt *attempt, uint64_t number,
                           const struct train_sampled *sampled, const struct train_sample *wanted,
                           const status_t refused);

/* Rank 0 reports the outcome of an evaluation that was ordered. */
void attempt_report_evaluation(struct worker_attempt *attempt, uint64_t number,
                               const struct train_validation *result, const status_t refused);
/* Rank 0 reports the outcome of a change of units. */
void attempt_report_wrap(struct worker_attempt *attempt, uint64_t number, uint64_t step,
                         const struct train_wrap_change *change);
/* Rank 0 reports what came of fsdp.tune. */
void attempt_report_tuned(void *user, uint64_t step, const struct train_tuned *tuned);
/* The end; takes ownership of `status`. */
void attempt_report_finished(struct worker_attempt *attempt, status_t status);

/* ---- attempt_orders.c: the same of orders, ---- */

uint64_t attempt_latest_order(void *user);
status_t attempt_run_orders(void *user, uint64_t sequence, struct executor *executor,
                            uint64_t step);
/* The units were changed, or could not be. */
void attempt_note_wrap(void *user, uint64_t step, const struct train_wrap_change *change);
/* and one that the job's own settings ask for. */
status_t attempt_take_checkpoint(void *user);
/* The final weights, for the pull that keeps them. */
status_t attempt_take_last(void *user, struct executor *executor, uint64_t step, int round,
                           status_t *outcome);
/* The checkpoint of the last step. */
status_t attempt_save_last(void *user, int round, bool taken, status_t *outcome);

/* Which orders it has had; with the lock held. */
void attempt_describe_orders(const struct worker_attempt *attempt, Fsdpd__V1__HeldAttempt *held);
void attempt_free_orders(struct worker_attempt *attempt);

#endif
