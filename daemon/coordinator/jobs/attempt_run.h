/* The life of an attempt: its start, its ranks' reports, orders to all ranks, and its end. */
#ifndef FSDPD_COORDINATOR_ATTEMPT_RUN_H
#define FSDPD_COORDINATOR_ATTEMPT_RUN_H

#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/jobs.h"

/* QUEUED → STARTING on `count` idle workers, which are spec.workers unless the job is elastic; a
 * worker's index in the array is its rank. */
void attempt_begin(struct job *job, struct worker **workers, int count);

/* Handles a rank's report. Reports of attempts that are over only free the worker. */
void attempt_event(struct worker *worker, const Fsdpd__V1__AttemptEvent *event);

/*
 * Called by worker_lose. With `certain` false, the rank is only AWAY: its worker may attach again,
 * and the ranks continue meanwhile.
 */
void attempt_worker_lost(struct worker *worker, const char *how, bool certain);

/* Handles the exit of a local worker that is not attached. */
void attempt_process_exited(struct coordinator *c, const char *worker_id, int64_t pid,
                            const char *how);

/* Ends a job that is not over, as the user `by` requested: at once, or at a step boundary. */
void job_cancel(struct job *job, const char *by);

/* Ends the attempt at a step boundary, as the user `by` requested. */
void attempt_cancel(struct job *job, const char *by);

/* Orders ranks that have not ended after limits.save_ms to end at once, as a cancel does. */
void attempt_end_by(struct job *job);

/* Ends the attempt at a step boundary because the daemon stops, with a checkpoint if the job can
 * take one. The job is then QUEUED for the next start. */
void attempt_shut_down(struct job *job, const char *why);

/* Handles a failure to take that checkpoint: the attempt ends without one. */
void attempt_not_saved(struct job *job);

/* Ends the attempt at a step boundary as failed for this reason. With `machine`, the machine is at
 * fault, so the job may be retried; otherwise the job fails, too. `code` is static. An attempt that
 * is already ending keeps its reason. */
void attempt_stop(struct job *job, const char *code, bool machine, const char *why);

/* Ends an attempt that vacates its workers without waiting any longer for its checkpoint. */
void attempt_vacate_at_once(struct job *job);

void attempt_order_pull(struct job *job, uint64_t pull, bool average);
void attempt_order_trace(struct job *job, uint64_t trace, uint32_t steps);

/* `set`: copied; NULL: the job's own data. `stop`: ends the evaluation of this number. */
void attempt_order_evaluation(struct job *job, uint64_t number, Fsdpd__V1__HeldOutSet *set,
                              bool stop);

struct sample_order {
    uint64_t number;
    Fsdpd__V1__Sample *sample;
    bool stream; /* rank 0 reports every token at once */
    double waited_seconds;
};

/* Continues sequences; `order` is copied. */
void attempt_order_sample(struct job *job, const struct sample_order *order);

/* `pause`: if the checkpoint succeeds, all ranks end with the reason "PAUSED". */
void attempt_order_checkpoint(struct job *job, uint64_t number, bool pause);

/* Orders all ranks to use other units; returns the number that rank 0's report will have. */
uint64_t attempt_order_wrap(struct job *job, const Fsdpd__V1__WrapSpec *wrap);

/* Marks the rank as lost for certain; `how` completes "rank 1 (host/cpu:1) ...". */
void attempt_lose_rank(struct job *job, struct rank *rank, const char *how);

/* Handles a rank's failure: the others cannot continue without it and are ordered to stop at once.
 * The verdict follows when all have ended, or soon. */
void attempt_begin_ending(struct job *job, struct rank *rank);

/* Repeats the order for ranks that are back; ranks that were already ordered to stop are
 * skipped. */
void attempt_stop_rest(struct job *job);

/* STARTING → RUNNING if all ranks have started with the same plan. */
void attempt_check_started(struct job *job);

/* Confirms that the coordinator is alive, and which reports the worker need not keep. */
void attempt_answer_heartbeat(struct worker *worker);

/* Whether a rank runs on a worker that this coordinator supervises. */
bool attempt_is_local(const struct job *job);

/* Gives the verdict if it is due; called, for example, when the final state_dict has arrived or its
 * upload has broken off. */
void attempt_check(struct job *job);

/* Enforces the deadlines. */
void attempt_tick(struct job *job, int64_t now);

/* ---- verdict.c ---- */

/*
 * Decides what follows the end of a job's attempt, from what its ranks reported and from why it was
 * ordered to end, if it was.
 */

/* Ends the attempt or the job, on behalf of the user who requested that, if one did. */
void verdict_give(struct job *job);

/* Whether the ranks ended for a pause: a rank that reports this knows that the checkpoint is on
 * disk. */
bool verdict_has_paused(const struct job *job);

/* ---- reattach.c ---- */

/*
 * Attempts that outlive their coordinator, and links that break during an attempt: restores
 * attempts from what the store records as running and what workers report that they run.
 */

/* Restores the attempt of a job that was STARTING or RUNNING when the last coordinator ended, as
 * the store recorded it: its ranks are AWAY and have limits.reattach_ms to attach again. Creates no
 * attempt if the record does not name the ranks. */
status_t reattach_job(struct job *job) FSDPD_MUST_USE;

/* Names the ranks that are away in the job's reason as soon as one of them is due
 * (rank.show_at). */
void reattach_update_reason(struct job *job, int64_t now);

/* Handles what a worker that has just been added reports that it runs: takes back attempts that
 * continue, releases others, and declares lost the ranks that the worker should run but does
 * not. */
void reattach_worker(struct worker *worker, const Fsdpd__V1__Hello *hello);

/* Whether a job waits for this worker: one of the attempts in its hello has a rank on a worker with
 * this id. Then the worker is taken back even if its version of fsdpd differs. */
bool reattach_is_wanted(struct coordinator *c, const Fsdpd__V1__Hello *hello);

/* ---- handover.c ---- */

/*
 * Changes of the number of workers by order without a checkpoint on the disk, of jobs with
 * redundancy in memory. The order to end names the ranks that leave. At their step boundary the
 * ranks keep the state in memory such that those that stay have all of it, and rank 0 asks whether
 * that may count: a key in the attempt's store says so, until this coordinator shuts down or is
 * replaced. Otherwise they take a checkpoint. The next attempt has all ranks that stay.
 */

/* Before the order with this number: sets its `memory` and `leaving`, which the caller frees; they
 * stay empty if the job can only use the disk. */
void handover_begin(struct job *job, Fsdpd__V1__CheckpointOrder *order);
/* fsdpd stops: what is in memory will not be there any more. */
void handover_withdraw(struct job *job);

/* The attempt is over, before its verdict: by that change, or by something else. */
void handover_end(struct job *job, bool by_change);

/* Ranks of the last attempt that must be in the next one together; 0: any may be. */
int handover_staying(const struct job *job);
/* Whether that rank left; what it has is in the memory of those that stay, too, taken together. */
bool handover_has_left(const struct job *job, int rank);

#endif
