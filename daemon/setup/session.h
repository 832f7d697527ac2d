/*
 * A training run on one rank: set up (model, data, graphs, units, plan), then run. The setup needs
 * no communicator, so it also serves to plan a job that is not running.
 */
#ifndef FSDPD_SETUP_SESSION_H
#define FSDPD_SETUP_SESSION_H

#include "data/token_split.h"
#include "redundancy/kept.h"
#include "runtime/executor.h"
#include "setup/decoder.h"
#include "setup/job.h"
#include "spec/metric_list.h"
#include "train/scores.h"

struct train_session;

/*
 * Reads the model and the data, builds and checks the plan. `rank` is this rank's; the job and the
 * device must outlive the session. Errors are the user's: INVALID_ARGUMENT naming file and line,
 * NOT_FOUND for missing data, RESOURCE_EXHAUSTED if the plan does not fit the device. With
 * `headers_only`, it reads only the data's headers, and the caller checks whether the plan fits
 * (planning); without a data_dir it does not even read these, and the number of steps is 0.
 */
status_t train_session_new(const struct train_job *job, struct device *device, int rank,
                           bool headers_only, struct train_session **session) FSDPD_MUST_USE;
void train_session_free(struct train_session *session); /* accepts NULL */

/* As with headers_only, but without units and a plan: for train_session_sketch. */
status_t train_session_new_unplanned(const struct train_job *job, struct device *device,
                                     struct train_session **session) FSDPD_MUST_USE;

/*
 * Plans the session's graphs with other settings, as an estimate (plan_options' `sketch`). `job`
 * must agree with the session's in everything that graphs depend on: model, types, batch,
 * checkpointing, accumulation. The caller frees both results; the plan refers to the units and the
 * session.
 */
status_t train_session_sketch(struct train_session *session, const struct train_job *job,
                              struct unit_set **units, struct plan **plan) FSDPD_MUST_USE;

const struct plan *train_session_plan(const struct train_session *session);
const struct unit_set *train_session_units(const struct train_session *session);
const struct model *train_session_model(const struct train_session *session);
/* The files with initial values; NULL if they are drawn. */
const struct weights *train_session_weights(const struct train_session *session);
uint64_t train_session_steps(const struct train_session *session);       /* of the whole run */
uint32_t train_session_micro_steps(const struct train_session *session); /* batches of a step */
/* Floating-point operations of a training step on all ranks, without repetitions. */
double train_session_step_flops(const struct train_session *session);
int64_t train_session_context(const struct train_session *session); /* tokens of a window */
/* Measures an epoch of a dataset's rows. *known is false for other data, and for data too large to
 * read here. INVALID_ARGUMENT if no target counts. */
status_t train_session_measure(const struct train_session *session, struct token_measure *measure,
                               bool *known) FSDPD_MUST_USE;
/* Host memory that this rank pins in addition to the plan's host_bytes: for its lanes' copies, and
 * for collectives through host memory. */
uint64_t train_session_staging_bytes(const struct train_session *session);

/* NAN: absent, as tokens_per_second of images. The worker adds resident_peak_bytes and mfu. */
struct train_metrics {
    uint64_t step; /* steps done */
#define METRIC_MEMBER(type, name, ...) type name;
    METRICS_OF_STEPS(METRIC_MEMBER)
#undef METRIC_MEMBER
    bool validated; /* the members below describe the last validation */
    double validation_loss;
    uint64_t validation_step;
};

struct train_epoch {
    uint32_t epoch;                         /* from 1 */
    uint64_t step;                          /* training steps done */
    double epochs_done;                     /* fractional, if the run's steps ended before it */
    double train_loss, test_loss, accuracy; /* means per target that counts; NAN: none does */
    uint64_t correct, test_samples;
    struct train_scores scores; /* of the evaluation */
    double seconds;
    bool evaluated;
};

/* An evaluation of tokens. */
struct train_validation {
    const char *set; /* the name of one of the job's held_out; "": of its own data */
    uint64_t step;   /* training steps done */
    double epoch;    /* epochs done, fractional */
    double loss;     /* mean per token over all ranks; NAN: of none */
    uint64_t tokens; /* number of targets that count */
    struct train_scores scores;
    double seconds;
};

struct train_sample;
struct train_sampled;

struct train_wrap_change {
    status_t refused;       /* the reason why no rank changed, owned by the caller; NULL: all did */
    uint64_t peak_bytes;    /* the maximum allocated during the change, */
    uint64_t planned_bytes; /* and what it was planned to be */
    double seconds;
};

enum { TRAIN_TUNE_MAX = 4 }; /* candidates, with the job's own units */

/* What became of a job's `tune`, by candidate: the job's own units, then its list. */
struct train_tuned {
    int count;
    struct train_trial {
        double seconds;   /* median of a step; 0: not measured */
        status_t refused; /* why it was not tried; NULL: it was, or its turn did not come */
    } trials[TRAIN_TUNE_MAX];
    int kept;              /* the candidate that the run continues with; -1: see `stopped` */
    const char *stopped;   /* why nothing was decided; a constant; NULL: it was */
    uint64_t peak_bytes;   /* of the last change */
    double change_seconds; /* of all changes */
};

/* The run's callbacks, called on the thread of train_session_run. */
struct train_hooks {
    void (*started)(void *user, uint64_t plan_hash, uint64_t steps);
    void (*metrics)(void *user, const struct train_metrics *metrics); /* every log_interval steps */
    void (*epoch)(void *user, const struct train_epoch *epoch);
    void (*progress)(void *user, uint64_t step); /* every step, training and evaluation: liveness */
    /* Rank 0 only: the highest order sequence received so far (below 2^24). */
    uint64_t (*latest_order)(void *user);
    /* Every rank, at the same step boundary: carries out orders up to and including `sequence`,
     * waiting for them if necessary. An error ends the run with it: CANCELLED for a cancel order.
     * After train_session_set_wrap the executor is that of train_session_executor. */
    status_t (*run_orders)(void *user, uint64_t sequence, struct executor *executor, uint64_t step);
    void (*validation)(void *user, const struct train_validation *validation); /* tokens only */
    void *user;
    /* Every rank, at a boundary where the job's settings require a checkpoint: takes one with
     * train_session_capture. An error ends the run. */
    status_t (*checkpoint)(void *user);
    /* Every rank, after the last step: *outcome is the result of its checkpoint. In round 0 it is
     * the checkpoint of the last boundary if `taken`, otherwise a new one; later rounds follow
     * after a pause. An error ends the run. May be NULL. */
    status_t (*save_last)(void *user, int round, bool taken, status_t *outcome);
    /* Every rank, before `finish`: takes what that will use of the executor. *outcome is the
     * ranks' failure of the last round, NULL at first, and becomes this rank's, if it may pass; if
     * any has one, another round follows, which this begins with a pause. An error ends the run.
     * May be NULL. */
    status_t (*take_last)(void *user, struct executor *executor, uint64_t step, int round,
                          status_t *outcome);
    /* When the run is over, with its status, before its executor is freed: nothing may use that any
     * more when this returns. May be NULL. */
    void (*released)(void *user, status_t status);
    /* Before `started`: the run continues after `step`, from the checkpoint `name`. `note`
     * describes problems of newer ones; NULL: none. If no checkpoint could be read, and the
     * settings allow that, `name` is NULL. */
    void (*resumed)(void *user, uint64_t step, const char *name, const char *note);
    /* Before `resumed`, on rank 0: the output of pack_reports in the checkpoint's capture_target.
     * May be NULL. */
    void (*reports)(void *user, const void *bytes, size_t size);
    /* On a rank that has kept the state from which a run continues: appends reports up to `step`
     * for `reports`. May be NULL. */
    void (*pack_reports)(void *user, uint64_t step, struct buf *out);
    /* Every rank, at most once: a shortcoming of its device (executor_take_note). */
    void (*noted)(void *user, const char *note);
    /* Every rank: the run tried to change to units of its job's `tune`, outside of run_orders. The
     * executor is that of train_session_executor now. */
    void (*rewrapped)(void *user, uint64_t step, const struct train_wrap_change *change);
    /* Every rank, once, for a job with a `tune`: what came of it. */
    void (*tuned)(void *user, uint64_t step, const struct train_tuned *tuned);
    /* Every rank, for a job with `prompts`: what they were continued with, or why they were not. */
    void (*sampled)(void *user, const struct train_sample *wanted,
                    const struct train_sampled *sampled, const status_t refused);
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

/* Redundancy in memory (train_job's `redundancy`), of a run that is about to begin. */
struct train_spare {
    struct kept *kept; /* this process's, of this run: kept_begin; NULL: none */
    struct comm *comm; /* a group of host memory besides the training's; NULL with one rank */
    uint32_t attempt;  /* from 1 */
    uint32_t since;    /* what attempts before this one kept is stale; 0: all of it is */
    bool shared;       /* ranks whose processes can share memory do */
};
void train_session_set_spare(struct train_session *session, const struct train_spare *spare);

/*
 * Only from run_orders, on every rank at the same boundary with the same `leaves` (by rank): keeps
 * the state of this step in memory, so that the next attempt can continue from it without the ranks
 * that leave. Then rank 0 calls `confirm` (may be NULL), whose error refuses. *refused becomes the
 * same on all ranks: the reason why the next attempt could not, FAILED_PRECONDITION without
 * redundancy or if shards would be lost; NULL: it can, and the caller ends the run. The run may
 * continue in either case. A returned error must end it.
 */
status_t train_session_hand_over(struct train_session *session, const bool *leaves,
                                 status_t (*confirm)(void *user), void *user,
                                 status_t *refused) FSDPD_MUST_USE;

/*
 * Only from run_orders, on every rank at the same boundary with the same set: evaluates it, or the
 * job's own data if `held` is NULL. Nothing of the run changes. `found` is this rank's failure to
 * find the data, and owned here. *refused becomes the same on all ranks: the reason why there is no
 * result, CANCELLED after train_session_stop_evaluation, owned by the caller; NULL: there is one,
 * whose loss may be NAN. A returned error must end the run.
 */
status_t train_session_evaluate(struct train_session *session, const struct held_out *held,
                                status_t found, struct train_validation *result,
                                status_t *refused) FSDPD_MUST_USE;

/* Only from run_orders during such an evaluation, on every rank at the same boundary: ends it. */
void train_session_stop_evaluation(struct train_session *session);

enum { TRAIN_SAMPLE_MAX = 64, TRAIN_SCORED_MAX = 20 }; /* sequences of a call; alternatives */

/* How tokens are chosen: keyed by seed, sequence and position. */
struct train_draw {
    double temperature;        /* 0: the most probable one */
    uint32_t top_k;            /* 0: all */
    double top_p;              /* above 0; 1: all */
    double min_p;              /* of the most probable one's probability; 0: all */
    double repetition_penalty; /* above 0; 1: none */
    uint64_t seed;
};

struct train_sample {
    const struct decoder_prompt *prompts;
    int count;
    uint32_t max_tokens;  /* of each sequence, without its prompt */
    const int32_t *stops; /* tokens that end a sequence, which is without them */
    int stop_count;
    struct train_draw draw;
    double waited_seconds; /* before the order came, for the metrics */
    /* Rank 0 only, before each token: whether the rest is no longer wanted. May be NULL. */
    bool (*stopped)(void *user);
    /* Rank 0 only, by sequence: the tokens drawn now; below 0: the sequence is over. May be NULL.
     */
    void (*drawn)(void *user, const int32_t *tokens, int count);
    void *user;
    bool scored;        /* also makes log-probabilities, of this number of alternatives, too */
    int alternatives;   /* at most TRAIN_SCORED_MAX */
    bool score_prompts; /* those of the prompts' tokens, too; max_tokens may be 0 then */
};

/* The natural logarithms of a sequence's tokens' probabilities. */
struct train_scored {
    float *logprobs; /* with score_prompts first those of the prompt's tokens but the first one */
    /* (count, alternatives): the most probable tokens in the place of each, and theirs */
    int32_t *top_tokens;
    float *top_logprobs;
    size_t count;
};

struct train_sampled {
    int32_t *tokens[TRAIN_SAMPLE_MAX]; /* by sequence, without its prompt */
    uint32_t counts[TRAIN_SAMPLE_MAX];
    struct train_scored scored[TRAIN_SAMPLE_MAX];
    uint64_t step;              /* of the parameters */
    struct decoder_bytes bytes; /* of this rank, for the call */
    double seconds;
};
void train_sampled_deinit(struct train_sampled *sampled);

/*
 * Only from run_orders, on every rank at the same boundary with the same `wanted`: continues
 * sequences (setup/decoder.h). Nothing of the run changes. *refused becomes the same on all ranks:
 * the reason why there is no result, CANCELLED if it was stopped, owned by the caller; NULL: there
 * is one. The caller frees *sampled in any case. A returned error must end the run.
 */
status_t train_session_sample(struct train_session *session, const struct train_sample *wanted,
                              struct train_sampled *sampled, status_t *refused) FSDPD_MUST_USE;

/* Host memory for it per rank, and bytes that a rank sends in each update. */
uint64_t train_session_kept_bytes(const struct train_session *session);
uint64_t train_session_kept_sent_bytes(const struct train_session *session);

/*
 * Only from run_orders, on every rank at the same boundary with the same policy: gives the run the
 * units of `policy`. Moves parameters and optimizer state; nothing else changes. Refused with the
 * code of units_build or plan_build, or RESOURCE_EXHAUSTED if the change does not fit on any rank;
 * the run then continues as before. An error must end the run: the state is undefined then.
 */
status_t train_session_set_wrap(struct train_session *session, const struct wrap_policy *policy,
                                struct train_wrap_change *change) FSDPD_MUST_USE;

/*
 * Only from run_orders and checkpoint, on every rank at the same boundary: captures all that is
 * needed to resume from here, for capture_save. The caller frees it.
 */
struct capture *train_session_capture(struct train_session *session);

/* For measurements: an executor of the session's plan without a run, with parameters of zeros. The
 * caller frees it before the session and the communicator. */
status_t train_session_open_executor(struct train_session *session, struct comm *comm,
                                     struct executor **executor) FSDPD_MUST_USE;

/* The run's executor, on its thread; NULL outside of a run. */
struct executor *train_session_executor(const struct train_session *session);

/* From any thread: the run fails with ABORTED soon. */
void train_session_abort(struct train_session *session, const char *why);

uint64_t
train_session_memory_peak(const struct train_session *session);   /* measured, 0 before a run */
uint64_t train_session_step(const struct train_session *session); /* from any thread */

/* Why a run that succeeded ended before its last step, after it; NULL: it did not. */
const char *train_session_early_end(const struct train_session *session);

/* The number of the batch that an evaluation is at, from 1 over all of the run; 0: it trains. From
 * any thread. */
uint64_t train_session_evaluates(const struct train_session *session);

/* Time that this rank itself has taken for its steps so far: to compute, and to wait for batches,
 * not for the other ranks. From any thread. */
int64_t train_session_own_ns(const struct train_session *session);

/* Where a run is. */
struct train_now {
    const char *place; /* "waits for a batch": completes "rank 0 ..."; NULL: not in a run */
    int64_t since_ns;  /* CLOCK_MONOTONIC */
    struct executor_now executor;
    const char *units[LANE_COUNT]; /* of the executor's lanes' instructions; NULL: none */
};

/* From any thread. Calls `describe` while the run's units and plan cannot be freed. */
void train_session_look(struct train_session *session,
                        void (*describe)(void *user, const struct train_now *now), void *user);

#endif
