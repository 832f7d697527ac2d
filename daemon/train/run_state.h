/* Inside train/: the state of a run in progress: run.c carries it out, resume.c saves and restores
 * it. */
#ifndef FSDPD_TRAIN_RUN_STATE_H
#define FSDPD_TRAIN_RUN_STATE_H

#include "checkpoint/agreement.h"
#include "checkpoint/manifest.h"
#include "redundancy/kept.h"
#include "setup/session_state.h"
#include "train/feed.h"
#include "train/tune.h"

/* Redundancy in memory; see protect.h. */
struct protection {
    struct kept *kept; /* NULL: none */
    struct kept_shape shape;
    struct agreement ranks; /* a group of its own; its communicator is NULL with one rank */
    struct comm *group;     /* parity: the part of it that shares a parity; or NULL */
    struct device *device;
    struct lane_queue *lane;
    float *scratch;
    struct parity_piece *pieces;   /* that the lane adds */
    bool shares;                   /* all ranks can map each other's memory: */
    float *place, *places;         /* of this rank's shards; of all ranks' */
    struct shared_memory *members; /* parity: (KEPT_GENERATIONS * members of the group) */
    struct kept_generation *sent;  /* that the lane sends; NULL: none */
    int64_t ns;                    /* that training waited for it, since the last metrics */
};

/* Samples since the last metrics. */
struct sample_sums {
    int calls;
    int64_t ns, prefill_ns, decode_ns; /* in all; of these, on prompts and on tokens after them */
    int64_t prompt_tokens, tokens;     /* in these times */
    double waited_seconds;
};

struct run {
    struct train_session *session;
    const struct train_job *job;
    const struct train_hooks *hooks;
    struct comm *comm;       /* NULL with one rank, as is the lane */
    struct lane_queue *lane; /* for the collectives outside of steps, while no step runs */
    struct agreement ranks;  /* uses the two above */
    struct executor *executor;
    uint64_t baseline;    /* bytes that the device had allocated before the executor */
    uint64_t memory_peak; /* of executors already freed, and of the changes between them */
    struct feed train;
    struct optimizer_step optimizer; /* of the current step */
    float gradient_norm;             /* of the last step */
    uint64_t skipped_steps;
    double epoch_rate;    /* the current epoch's, before the step's factor */
    uint32_t epochs;      /* number of epochs completed */
    uint64_t step;        /* training steps done */
    uint64_t orders_done; /* sequence number */
    /* Every rank knows of the current failure, so none waits for this one. */
    bool agreed;
    bool noted;            /* the executor's note has been reported */
    bool average_in_place; /* of the parameters (train.ema), within an evaluation */

    /* Over all ranks, in the order of the data: number used in the epoch or, for tokens, in
     * total. */
    uint64_t rows;
    /* The steps that this group would have needed to reach this position, minus the steps taken: 0,
     * unless a checkpoint of another group was resumed. */
    double shift;
    bool resumed;
    bool continues; /* resumed, or a checkpoint of another job was read: only what checkpoints lack
                     * is still to be made */
    struct protection protection;
    uint64_t captured_step; /* of the last checkpoint; UINT64_MAX: none yet */
    uint64_t captured_best; /* run->best.step of that checkpoint */

    int64_t began_ns;
    struct tally interval, whole; /* since the last metrics; since the start */
    int64_t wait_ns;              /* waiting for batches, since the last metrics */
    struct tally epoch;           /* for images, since the epoch began */
    int64_t evaluation_ns;        /* of the last one; 0 before */
    bool validated;               /* the members below describe the last validation of tokens */
    double validation_loss;
    struct score_sums sums; /* of the evaluation that runs, or the last one */
    uint64_t validation_step;
    uint32_t evaluated; /* the sets that were evaluated after step `evaluated_step`, as bits */
    uint64_t evaluated_step;
    bool stops_evaluation; /* that an order asked for */
    struct sample_sums samples;
    struct saved_early_stop early_stop, best;
    uint64_t base; /* a hash of the frozen parameters that checkpoints lack; 0: there are none */
    struct tuning tuning;
};

/* Gives the run other units; see train_session_set_wrap. */
status_t run_set_wrap(struct run *run, const struct wrap_policy *policy,
                      struct train_wrap_change *change) FSDPD_MUST_USE;

/* Carries out orders. Every rank reaches this point after the same step with the same `signal`. */
status_t run_orders(struct run *run, float signal) FSDPD_MUST_USE;

/* After a step: continues the job's own prompts if they are due; `last`: no step follows. */
status_t run_samples(struct run *run, bool last) FSDPD_MUST_USE;

/* A batch, for a step now. */
struct step_input run_make_input(const struct run *run, const struct batch *batch);

/* Of all devices' memory that the run allocated: the most since it began. */
uint64_t run_memory_peak(const struct run *run);

/* Of steps with a finite loss; the others' loss if there are no such steps. */
double run_mean_loss(const struct tally *tally);

/* Tokens of a row, those that fill it up included. */
double run_row_tokens(const struct run *run);

/* Gives the hook the metrics since the last ones, and begins the next. */
void run_report_metrics(struct run *run);

/* Sets the parameters that no checkpoint gives: those of the job's files, and what they lack as it is
 * drawn. */
status_t run_load_parameters(struct run *run) FSDPD_MUST_USE;

/* Over these, unless the run was resumed: those of the job that this one begins with. */
status_t run_load_trained(struct run *run) FSDPD_MUST_USE;

/* In this group's steps, even if another group ran some of them. */
double run_epochs_done(const struct run *run);

/* What a checkpoint has besides parameters and slots. */
struct saved_progress run_progress(const struct run *run);

/* Before the first step: an error on the ranks whose job differs from rank 0's. */
status_t run_compare_ranks(struct run *run) FSDPD_MUST_USE;

/* ---- base_check.c ---- */

/*
 * The base that checkpoints lack (model.base_dtype): frozen parameters that are made of files at
 * every attempt. A checkpoint has a hash of their values in the files, which does not depend on how
 * they are cut or rounded. On the training thread.
 */

/* Computes run->base, each rank for a share of the parameters. FAILED_PRECONDITION on all ranks if
 * a run continues from a checkpoint of another one. Does nothing for a run without such a base. */
status_t run_check_base(struct run *run) FSDPD_MUST_USE;

/* ---- reference.c ---- */

/*
 * dpo.reference: precomputed. Before the first step, the model as it began makes the
 * log-probabilities of every pair, those of validation included: it evaluates all rows, each rank
 * its share, and every rank keeps the sums of all. So training needs neither a second model nor a
 * second pass. Where the job has a directory of checkpoints, rank 0 keeps them there: a job that
 * continues, with any number of ranks, has the same numbers. On the training thread.
 */

/*
 * With a new executor, before anything is resumed. *loaded: the executor has the parameters with
 * which the job began, as the sums were computed. NOT_FOUND, DATA_LOSS or FAILED_PRECONDITION on
 * all ranks if a job that must continue has lost them, or has other data.
 */
status_t run_find_reference(struct run *run, bool *loaded) FSDPD_MUST_USE;

/* ---- resume.c ---- */

/* Inside train/: resuming from a checkpoint; train_session_capture, in session.h, is the
 * counterpart. */

/*
 * Every rank calls this with a new executor. The ranks find the newest checkpoint that belongs to
 * the run, fits it, and has only intact files (each rank checks some of them), and each reads its
 * part. run->resumed is true if there was one; the hook `resumed` receives its name, and the
 * problems of newer ones. If there is none but the settings require one: DATA_LOSS, or
 * FAILED_PRECONDITION if none is damaged.
 */
status_t run_resume(struct run *run) FSDPD_MUST_USE;

/* Every rank calls this with a new executor: it gets the state of the checkpoint that the job's
 * source names, and the run its step. DATA_LOSS, FAILED_PRECONDITION: it cannot be used. */
status_t run_load_source(struct run *run) FSDPD_MUST_USE;

/* ---- rewrap.c ---- */

/* Inside train/: changes a run's wrap policy between two steps; see rewrap.c. */

struct rewrap {
    struct train_session *session;
    const struct agreement *ranks;
    uint64_t baseline;         /* bytes allocated on the device before the run */
    struct executor *executor; /* the run's; replaced when the policy is */
};

/*
 * Every rank calls this at the same boundary with the same policy. Either all change, or none does
 * and change->refused has the reason. On an error some rank could not finish, and the run must end.
 */
status_t rewrap(struct rewrap *rewrap, const struct wrap_policy *policy,
                struct train_wrap_change *change) FSDPD_MUST_USE;

#endif
