/* Where the checkpoints of a job's next attempt are, and whether all of its workers can write
 * there. */
#ifndef FSDPD_COORDINATOR_CHECKPOINT_PLACE_H
#define FSDPD_COORDINATOR_CHECKPOINT_PLACE_H

#include "coordinator/core/settings.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/store/message.h"
#include "coordinator/workers/workers.h"

/* The checkpoint settings in an assignment of the job's next attempt. `folder` is the job's
 * directory below the state directory if the spec names none and all workers are on this host;
 * otherwise "". `listed`: the names of the checkpoints that the store has. */
struct checkpoint_place {
    char *folder, *run;
    bool resume, must_resume;
    char **listed;
    size_t listed_count, listed_capacity;
    /* Of a spec with model.job or model.weights.job, and model.adapter.job; NULL: it has none. */
    Fsdpd__V1__Source *source, *adapter_source;
};
status_t checkpoint_place_find(const struct job *job, struct worker *const *workers, int count,
                               struct checkpoint_place *place) FSDPD_MUST_USE;

/* Adds the place of the weights of other jobs that the spec names. An error says why the job cannot
 * have them: they are gone. */
status_t checkpoint_place_find_source(const struct job *job, struct worker *const *workers,
                                      int count, struct checkpoint_place *place) FSDPD_MUST_USE;
void checkpoint_place_deinit(struct checkpoint_place *place);

/* Returns an error if the job's settings require checkpoints that these workers could not share. */
status_t checkpoint_place_check(const struct job *job, struct worker *const *workers,
                                int count) FSDPD_MUST_USE;

/* The step of the job's best checkpoint (checkpoint.best). FAILED_PRECONDITION: it has none. */
status_t checkpoint_place_best(struct coordinator *c, const char *id,
                               uint64_t *step) FSDPD_MUST_USE;

/* The step of the weights of another job that `which` means (JobWeights.checkpoint); 0: the final
 * ones. FAILED_PRECONDITION: it has no such weights. */
status_t checkpoint_place_choose(struct coordinator *c, const job_message *of, const char *which,
                                 uint64_t *step) FSDPD_MUST_USE;

/* Whether a job begins with the weights of the job `id`, or evaluates them. */
bool checkpoint_place_names(const job_message *message, const char *id);

/* The id of such a job that is not over; NULL: there is none. */
const char *checkpoint_place_needed(struct coordinator *c, const char *id);

/* Whether the running attempt can take checkpoints; false while a rank is not attached. */
bool checkpoint_place_exists(const struct job *job);

/* ---- checkpoint_dirs.c ---- */

/*
 * The jobs' checkpoints in directories that their own settings name (checkpoint.directory), as far
 * as this host has these below its data roots. Other users may write there, so a job's part is
 * opened through its parent's descriptor, and no link is followed. Runs on a libuv worker thread: a
 * checkpoint may be large.
 */

/* "JOB@MILLISECONDS": the run, and the name of a job's part of such a directory. It distinguishes
 * jobs that have the same id in different stores. The caller frees it. */
char *checkpoint_dirs_run(const job_message *job);

/* Removes a run's checkpoints in `directory`. Returns the first error; having none to remove is not
 * an error. */
status_t checkpoint_dirs_remove(const struct coordinator_options *options, const char *directory,
                                const char *run) FSDPD_MUST_USE;

/* Removes those of the run's checkpoints that are only partly written or partly removed. */
status_t checkpoint_dirs_sweep(const struct coordinator_options *options, const char *directory,
                               const char *run) FSDPD_MUST_USE;

#endif
