/*
 * A training run on one rank: set up (model, data, graphs, units, plan), then run. Setting up needs
 * no communicator, so it also serves to plan a job that is not running.
 */
#ifndef FSDPD_TRAIN_SESSION_H
#define FSDPD_TRAIN_SESSION_H

#include "checkpoint/capture.h"
#include "runtime/executor.h"
#include "train/job.h"

struct train_session;

/*
 * Reads the model and the data, builds and checks the plan. `rank` is this rank's; the job and the
 * device must outlive the session. Errors are the user's: INVALID_ARGUMENT naming file and line,
 * NOT_FOUND for missing data, RESOURCE_EXHAUSTED when the plan does not fit the device. With
 * `headers_only`, of the data only the headers are read, and whether the plan fits is for the
 * caller to say (planning); without a data_dir not even these, and the number of steps is 0.
 */
status_t train_session_new(const struct train_job *job, struct device *device, int rank,
                           bool headers_only, struct train_session **session) FSDPD_MUST_USE;
void train_session_free(struct train_session *session); /* accepts NULL */

const struct plan *train_session_plan(const struct train_session *session);
const struct unit_set *train_session_units(const struct train_session *session);
const struct model *train_session_model(const struct train_session *session);
/* The files that initial values come from; NULL: they are drawn. */
const struct weights *train_session_weights(const struct train_session *session);
uint64_t train_session_steps(const struct train_session *session); /* of the whole run */
/* Of host memory that this rank pins beside the plan's host_bytes: for its lanes' copies, and for
 * collectives that go through it. */
uint64_t train_session_staging_bytes(const struct train_session *session);

struct train_metrics {
    uint64_t step; /* steps done */
    double epoch;  /* epochs done, fractional */
    double loss;   /* mean per sample or token, over all ranks since the last metrics */
    double learning_rate;
    bool gradient_norm_known;
    double gradient_norm;      /* of the last step, before clipping; 0 if it was not finite */
    uint64_t skipped_steps;    /* so far, because loss or norm were not finite */
    double samples_per_second; /* all ranks; of tokens, windows */
    double tokens_per_second;  /* likewise; 0 without tokens */
    double flops_per_second;   /* all ranks: of the model forward and backward, nothing twice */
    bool validated;            /* the rest is known, of the last validation */
    double validation_loss;
    uint64_t validation_step;
    double step_seconds; /* mean */
    double seconds_left;
    double train_seconds;
    uint64_t communicated_bytes;              /* per rank and step, from the plan */
    uint64_t memory_bytes, memory_peak_bytes; /* now, and at most so far */
    /* Mean per step: the lanes are busy; of the communication, while nothing computes. */
    double compute_seconds, communication_seconds, exposed_communication_seconds;
};

struct train_epoch {
    uint32_t epoch;                         /* from 1 */
    uint64_t step;                          /* training steps done */
    double epochs_done;                     /* fractional, if the run's steps ended before it */
    double train_loss, test_loss, accuracy; /* losses: mean per sample over all ranks */
    uint64_t correct, test_samples;
    double seconds;
    bool evaluated;
};

/* An evaluation of tokens. */
struct train_validation {
    uint64_t step;   /* training steps done */
    double epoch;    /* epochs done, fractional */
    double loss;     /* mean per token over all ranks */
    uint64_t tokens; /* that count in it */
    double seconds;
};

/* What the run tells and asks its owner; called on the thread of train_session_run. */
struct train_hooks {
    void (*started)(void *user, uint64_t plan_hash, uint64_t steps);
    void (*metrics)(void *user, const struct train_metrics *metrics); /* every log_interval steps */
    void (*epoch)(void *user, const struct train_epoch *epoch);
    void (*progress)(void *user, uint64_t step); /* every step, training and evaluation: liveness */
    /* Rank 0 only: the highest order sequence received so far (below 2^24). */
    uint64_t (*latest_order)(void *user);
    /* Every rank, at the same step boundary: carry out orders up to and including `sequence`,
     * waiting for them if need be. An error ends the run with it: CANCELLED for a cancel order.
     * After train_session_set_wrap the executor is train_session_executor's. */
    status_t (*run_orders)(void *user, uint64_t sequence, struct executor *executor, uint64_t step);
    void (*validation)(void *user, const struct train_validation *validation); /* tokens only */
    void *user;
    /* Every rank, at a boundary at which the job's settings want a checkpoint: takes one with
     * train_session_capture. An error ends the run. */
    status_t (*checkpoint)(void *user);
    /* Before `started`: the run goes on behind `step`, from the checkpoint `name`. `note` says what
     * was wrong with newer ones; NULL: nothing. Without a checkpoint that could be read, which the
     * settings may allow, `name` is NULL. */
    void (*resumed)(void *user, uint64_t step, const char *name, const char *note);
    /* Before that, on rank 0: what pack_reports of the checkpoint's capture_target had. May be NULL.
     */
    void (*reports)(void *user, const void *bytes, size_t size);
    /* Every rank, at most once: what its device does not do as it could (executor_take_note). */
    void (*noted)(void *user, const char *note);
};

/*
 * Trains to the end. Ranks first compare plan hashes (FAILED_PRECONDITION if they differ). On
 * success the executor still holds the final parameters: `finish` (may be NULL) is called with it
 * before it is torn down, at the same point on every rank.
 */
status_t train_session_run(struct train_session *session, struct comm *comm, int64_t timeout_ms,
                           const struct train_hooks *hooks,
                           status_t (*finish)(void *user, struct executor *executor,
                                              uint64_t step)) FSDPD_MUST_USE;

struct train_wrap_change {
    status_t refused;    /* why nothing changed, on any rank; the caller's. NULL: it did */
    uint64_t peak_bytes; /* allocated at most while it changed */
    double seconds;
};

/*
 * Only from run_orders, on every rank at the same boundary with the same policy: from now on the
 * run has the units of `policy`. Parameters and optimizer state are moved; nothing else is touched.
 * Refused with the code of units_build or plan_build, or RESOURCE_EXHAUSTED if the change does not
 * fit, and then also on the ranks that could; the run goes on as before. An error is to end the
 * run: what is where is not known any more.
 */
status_t train_session_set_wrap(struct train_session *session, const struct wrap_policy *policy,
                                struct train_wrap_change *change) FSDPD_MUST_USE;

/*
 * Only from run_orders and checkpoint, on every rank at the same boundary: everything that it takes
 * to go on from here, for capture_save. The caller's.
 */
struct capture *train_session_capture(struct train_session *session);

/* The run's, on its thread; NULL outside of a run. */
struct executor *train_session_executor(const struct train_session *session);

/* From any thread: the run fails with ABORTED soon. */
void train_session_abort(struct train_session *session, const char *why);

uint64_t
train_session_memory_peak(const struct train_session *session);   /* measured, 0 before a run */
uint64_t train_session_step(const struct train_session *session); /* from any thread */

#endif
