/*
 * The durable record of jobs and their events: one SQLite file in the state directory, in WAL mode.
 * What was written with `durable` is on the disk when the call returns; the rest (metrics) is on
 * the disk soon, and a crash of the process alone loses nothing. Used by the coordinator's loop.
 */
#ifndef FSDPD_COORDINATOR_STORE_H
#define FSDPD_COORDINATOR_STORE_H

#include "base/status.h"
#include "coordinator/message.h"

struct store;

/*
 * Opens or makes the file. DATA_LOSS if it is damaged or no database, and then nothing has been
 * written; FAILED_PRECONDITION if a newer version of fsdpd wrote it. A store of an older version is
 * brought to this one, after a copy of it was made beside it ("<path>.schema-<version>").
 */
status_t store_open(const char *path, struct store **store) FSDPD_MUST_USE;
void store_close(struct store *store); /* accepts NULL */

/* The first free "<name>-<n>", n counting from 1; the caller frees it. */
status_t store_next_id(struct store *store, const char *name, char **id) FSDPD_MUST_USE;

/* A new job and its first event, durable. ALREADY_EXISTS if the id is taken. */
status_t store_insert_job(struct store *store, const job_message *job,
                          const job_event *event) FSDPD_MUST_USE;

/* How often a job was tried again, for which reasons. */
struct store_retries {
    uint32_t failures, machine_failures;
};

/* Why the running attempt of a job is to end, if anybody wants that. */
struct store_stop {
    bool cancelled; /* by a user */
    bool shut_down; /* by the daemon's end: the job goes on when it is back */
    bool vacating;  /* its workers are needed back: the job goes on elsewhere */
    bool pausing;   /* by a user, with a checkpoint that has been ordered */
    bool machine;   /* with `code`: what it runs on is to blame, it may be tried again */
    char *by;       /* the user who wants it: cancelled, vacating, pausing; NULL: nobody */
    char *code;     /* the job's reason if none of the first four is; NULL: there is none */
    char *message;  /* for people; NULL: none */
};
void store_stop_deinit(struct store_stop *stop); /* zeros it */

/*
 * A change in a job's life, written in one transaction: the job itself (all but its id, name, spec,
 * plan and time of submission) and what is recorded with it. An event of a checkpoint that is on
 * the disk brings the list of the job's checkpoints up to date.
 */
struct store_change {
    const job_message *job;
    const job_event *const *events; /* in order */
    int event_count;
    bool durable;
    bool replanned; /* the spec and the plan have changed, too */
    int64_t report; /* the last report of the running attempt that this records; -1: as it was */
    const struct store_retries *retries; /* NULL: as they were */
    const struct store_stop *stop;       /* NULL: as it was */
};
status_t store_apply(struct store *store, const struct store_change *change) FSDPD_MUST_USE;

/* Changes of several jobs, all of them or, if one is refused, none; durable if one is. */
status_t store_apply_all(struct store *store, const struct store_change *changes,
                         int count) FSDPD_MUST_USE;

/* store_apply with one event, or none, and nothing else. */
status_t store_update_job(struct store *store, const job_message *job, const job_event *event,
                          bool durable) FSDPD_MUST_USE;

/* `report` of the last change that had one, 0 without. */
status_t store_get_report(struct store *store, const char *id, uint64_t *report) FSDPD_MUST_USE;

/* `stop` of the last change that had one; its texts are the caller's. */
status_t store_get_stop(struct store *store, const char *id,
                        struct store_stop *stop) FSDPD_MUST_USE;

/* NOT_FOUND if there is no such job. The caller frees *job with message_free. */
status_t store_get_job(struct store *store, const char *id, job_message **job) FSDPD_MUST_USE;

/* Calls `visit` with each job (valid during the call), oldest first; an error of `visit` ends it
 * and is returned. With `active_only`, those that are not over. */
struct store_job_query {
    bool active_only;
    status_t (*visit)(void *user, const job_message *job);
    void *user;
};
status_t store_each_job(struct store *store, const struct store_job_query *query) FSDPD_MUST_USE;

/* Calls `visit` with each job's id, newest first, until it returns false; it may read jobs. */
status_t store_each_id(struct store *store, bool (*visit)(void *user, const char *id),
                       void *user) FSDPD_MUST_USE;

/* How many jobs are in each state; `counts` has JOB_CANCELLED + 1 elements, which are added to. */
status_t store_count_states(struct store *store, uint64_t *counts) FSDPD_MUST_USE;

/* That the job's final state_dict, of this step, is on the disk; durable. Also sets has_state_dict.
 */
status_t store_set_state_dict(struct store *store, const char *id, uint64_t step) FSDPD_MUST_USE;

/* The step of the kept state_dict; NOT_FOUND without one. */
status_t store_get_state_dict(struct store *store, const char *id, uint64_t *step) FSDPD_MUST_USE;

/*
 * Calls `visit` with at most `limit` events of the job whose sequence is above `after`, in order;
 * metrics with a sequence up to `skip_metrics` are left out. `visit` returns false to stop.
 */
struct store_event_query {
    const char *job;
    uint64_t after, skip_metrics;
    int limit;
    bool (*visit)(void *user, const job_event *event);
    void *user;
};
status_t store_read_events(struct store *store,
                           const struct store_event_query *query) FSDPD_MUST_USE;

/* Deletes the job, its events and all else that the tables have of it; durable. NOT_FOUND. */
status_t store_forget_job(struct store *store, const char *id) FSDPD_MUST_USE;

/* Calls `visit` with the ids of jobs that are over and ended before `before_ms` (0: none), then of
 * those that are beyond the `keep` that ended last (0: none), until it returns false. Oldest first
 * among the former; an id may come twice. */
struct store_finished_query {
    int64_t before_ms;
    int keep;
    bool (*visit)(void *user, const char *id);
    void *user;
};
status_t store_each_finished(struct store *store,
                             const struct store_finished_query *query) FSDPD_MUST_USE;

/* Drained workers and hosts; durable. Adding one that is there, or removing one that is not, does
 * nothing. */
status_t store_add_drain(struct store *store, const char *worker, const char *by,
                         int64_t time_ms) FSDPD_MUST_USE;
status_t store_remove_drain(struct store *store, const char *worker) FSDPD_MUST_USE;
status_t store_each_drain(struct store *store,
                          void (*visit)(void *user, const char *worker, const char *by,
                                        int64_t time_ms),
                          void *user) FSDPD_MUST_USE;

/* The last metrics event of a step up to `step`; *event is NULL if there is none, else the caller's
 * for message_free. Reads back from the end, so it is quick where little has to be passed over. */
status_t store_find_metrics(struct store *store, const char *job, uint64_t step,
                            job_event **event) FSDPD_MUST_USE;

/* The highest sequence of the job's events, and how many metrics events are kept. */
status_t store_count_events(struct store *store, const char *job, uint64_t *last,
                            uint64_t *metrics) FSDPD_MUST_USE;

/*
 * Deletes metrics events of the job until at most `keep` (at least 4) are left, which *left tells:
 * of the older three quarters, all but one of so many that follow each other, a power of two that
 * grows with the job. So what is kept begins where the job began, and the latest are all there.
 */
status_t store_thin_metrics(struct store *store, const char *job, uint64_t keep,
                            uint64_t *left) FSDPD_MUST_USE;

/* Calls `visit` with each (valid during the call), by step; an error of `visit` ends it. */
status_t store_each_checkpoint(struct store *store, const char *job,
                               status_t (*visit)(void *user,
                                                 const Fsdpd__V1__Checkpoint *checkpoint),
                               void *user) FSDPD_MUST_USE;

/* Whether the job has any, damaged or not. */
status_t store_has_checkpoint(struct store *store, const char *job, bool *has) FSDPD_MUST_USE;

/* Zeros for a job that never was. */
status_t store_get_retries(struct store *store, const char *job,
                           struct store_retries *retries) FSDPD_MUST_USE;

/*
 * Copies the store `from` to the file `to`, also while a coordinator uses it: one moment of it,
 * checked and on the disk before it gets its name. NOT_FOUND without a store; errors as store_open.
 */
status_t store_backup(const char *from, const char *to) FSDPD_MUST_USE;

/*
 * Puts the backup `from` in the place of the store `to`, whose directory must exist and be locked
 * by the caller. The old store, damaged or not, is kept: *kept is its new name, NULL if there was
 * none; the caller frees it. Nothing is changed if the backup is no store, damaged, or of a newer
 * version.
 */
status_t store_restore(const char *from, const char *to, char **kept) FSDPD_MUST_USE;

#endif
