/*
 * The durable record of jobs and their events: one SQLite file in the state directory, in WAL mode.
 * A `durable` write is on the disk when the call returns; the rest (metrics) is on the disk soon,
 * and a crash of the process alone loses nothing. Used on the coordinator's loop.
 */
#ifndef FSDPD_COORDINATOR_STORE_H
#define FSDPD_COORDINATOR_STORE_H

#include "base/status.h"
#include "coordinator/store/message.h"

struct store;

/*
 * Opens or creates the file. DATA_LOSS if it is damaged, is not a database, or lacks a change that
 * was acknowledged (its mark, "<path>-mark", records these), or if it is missing although its log
 * or a "jobs" directory with entries exists beside it; nothing has been written then.
 * FAILED_PRECONDITION if a newer version of fsdpd wrote it. A store of an older version is migrated
 * to this one, after a copy of it was made beside it ("<path>.schema-<version>"). A job that has a
 * damaged record is logged, and reading it returns DATA_LOSS; other jobs are not affected.
 */
status_t store_open(const char *path, struct store **store) FSDPD_MUST_USE;
void store_close(struct store *store); /* accepts NULL */

/* UNAVAILABLE if the store's files were moved, removed or replaced; nothing is written then. */
status_t store_check_files(const struct store *store) FSDPD_MUST_USE;

/* Size of the file and of its write-ahead log. */
int64_t store_bytes(const struct store *store);

/* The first free "<name>-<n>", n counting from 1; the caller frees it. */
status_t store_next_id(struct store *store, const char *name, char **id) FSDPD_MUST_USE;

/* Inserts a new job and its first event, durable. ALREADY_EXISTS if the id is taken. */
status_t store_insert_job(struct store *store, const job_message *job,
                          const job_event *event) FSDPD_MUST_USE;

struct store_change;

/* Inserts new jobs, each with its first event, and applies a change of another one (NULL: none), in
 * one durable transaction. ALREADY_EXISTS if an id is taken. */
struct store_new_job {
    const job_message *job;
    const job_event *event;
};
status_t store_insert_jobs(struct store *store, const struct store_new_job *jobs, int count,
                           const struct store_change *change) FSDPD_MUST_USE;

/* A job's number of retries, by cause. */
struct store_retries {
    uint32_t failures, machine_failures;
};

/* Why a job's running attempt has to end, if it has to. */
struct store_stop {
    bool cancelled; /* by a user */
    bool shut_down; /* by the daemon's shutdown: the job continues when it is back */
    bool vacating;  /* its workers are needed: the job continues elsewhere */
    bool preempted; /* vacating: for a job of higher priority, so it waits for its turn */
    bool pausing;   /* by a user, with a checkpoint that was ordered */
    bool machine;   /* with `code`: the host or device is the cause, and the job may be retried */
    char *by;       /* the user who requested it: cancelled, vacating, pausing; NULL: none */
    char *code;     /* the job's reason if none of the first four is set; NULL: none */
    char *message;  /* for people; NULL: none */
};
void store_stop_deinit(struct store_stop *stop); /* zeros it */

/*
 * A change to a job, written in one transaction: the job itself (all but its id, name, spec,
 * chosen, plan and submission time) and everything recorded with it. An event for a checkpoint that
 * is on the disk updates the job's list of checkpoints.
 */
struct store_change {
    const job_message *job;
    const job_event *const *events; /* in order */
    int event_count;
    bool durable;
    bool settings_changed; /* the spec, what is chosen and the plan have changed, too */
    int64_t report; /* the running attempt's last report included in this change; -1: unchanged */
    const struct store_retries *retries; /* NULL: unchanged */
    const struct store_stop *stop;       /* NULL: unchanged */
};
status_t store_apply(struct store *store, const struct store_change *change) FSDPD_MUST_USE;

/* Writes changes of several jobs: all of them or, if one is refused, none; durable if one is. */
status_t store_apply_all(struct store *store, const struct store_change *changes,
                         int count) FSDPD_MUST_USE;

/* store_apply with at most one event, and nothing else. */
status_t store_update_job(struct store *store, const job_message *job, const job_event *event,
                          bool durable) FSDPD_MUST_USE;

/* The `report` of the last change that had one; 0 if none had. */
status_t store_get_report(struct store *store, const char *id, uint64_t *report) FSDPD_MUST_USE;

/* The `stop` of the last change that had one; the caller owns its texts. */
status_t store_get_stop(struct store *store, const char *id,
                        struct store_stop *stop) FSDPD_MUST_USE;

/* NOT_FOUND if there is no such job. The caller frees *job with message_free. */
status_t store_get_job(struct store *store, const char *id, job_message **job) FSDPD_MUST_USE;

/* Calls `visit` with each undamaged job (valid during the call), oldest first. An error from
 * `visit` stops the iteration and is returned. `active_only` selects jobs that are not over. */
struct store_job_query {
    bool active_only;
    status_t (*visit)(void *user, const job_message *job);
    void *user;
};
status_t store_each_job(struct store *store, const struct store_job_query *query) FSDPD_MUST_USE;

/* Calls `visit` with each job's id, newest first, until it returns false; `visit` may read jobs. */
status_t store_each_id(struct store *store, bool (*visit)(void *user, const char *id),
                       void *user) FSDPD_MUST_USE;

/* Calls `visit` with each job that is over and its owner; `visit` may read jobs. */
status_t store_each_owner(struct store *store,
                          void (*visit)(void *user, const char *id, const char *owner),
                          void *user) FSDPD_MUST_USE;

/* Adds the number of jobs in each state to `counts`, which has JOB_CANCELLED + 1 elements. */
status_t store_count_states(struct store *store, uint64_t *counts) FSDPD_MUST_USE;

/* The final state_dict of a job that is on the disk. */
struct store_weights {
    uint64_t step;
    bool proved;            /* false: without sums, of a store of schema 1 */
    unsigned char sums[32]; /* the SHA-256 of the file with its sums */
};

/* Records it; durable. Also sets has_state_dict. */
status_t store_set_state_dict(struct store *store, const char *id,
                              const struct store_weights *weights) FSDPD_MUST_USE;

/* Records that the job has no state_dict any more; durable. */
status_t store_drop_state_dict(struct store *store, const char *id) FSDPD_MUST_USE;

/* NOT_FOUND if there is none; DATA_LOSS if its record is damaged. */
status_t store_get_state_dict(struct store *store, const char *id,
                              struct store_weights *weights) FSDPD_MUST_USE;

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

/* Deletes the job, its events and its other rows; durable. NOT_FOUND. */
status_t store_forget_job(struct store *store, const char *id) FSDPD_MUST_USE;

/* Calls `visit` with the ids of jobs that ended before `before_ms` (0: none), then with the ids of
 * all but the `keep` jobs that ended last (0: none), until it returns false. The former come oldest
 * first; an id may come twice. */
struct store_finished_query {
    int64_t before_ms;
    int keep;
    bool (*visit)(void *user, const char *id);
    void *user;
};
status_t store_each_finished(struct store *store,
                             const struct store_finished_query *query) FSDPD_MUST_USE;

/* Drained workers and hosts; durable. Adding an existing entry, or removing a missing one, does
 * nothing. */
status_t store_add_drain(struct store *store, const char *worker, const char *by,
                         int64_t time_ms) FSDPD_MUST_USE;
status_t store_remove_drain(struct store *store, const char *worker) FSDPD_MUST_USE;
status_t store_each_drain(struct store *store,
                          void (*visit)(void *user, const char *worker, const char *by,
                                        int64_t time_ms),
                          void *user) FSDPD_MUST_USE;

/* What users have used, for fair share. Not durable: on the disk soon. */
struct store_usage {
    const char *user;
    int64_t worker_ms, time_ms; /* decayed, at this time (Unix, ms) */
};
status_t store_set_usage(struct store *store, const struct store_usage *rows,
                         int count) FSDPD_MUST_USE;
status_t store_each_usage(struct store *store,
                          void (*visit)(void *user, const struct store_usage *usage),
                          void *user) FSDPD_MUST_USE;

/* A token that a client over HTTP presents; the store has only its SHA-256. */
struct store_token {
    const char *name; /* of the user as whom its owner acts */
    Fsdpd__V1__TokenRole role;
    const char *by; /* who issued it */
    int64_t issued_ms, expires_ms;
    const char *job; /* the only one that its owner sees; "": all */
};
enum { STORE_TOKEN_HASH = 32 };

/* Adds one, and removes those that have expired by `token->issued_ms`; durable. */
status_t store_add_token(struct store *store, const unsigned char hash[STORE_TOKEN_HASH],
                         const struct store_token *token) FSDPD_MUST_USE;
/* Calls `visit` with the token of this hash, if there is one, or with each by name (NULL).
 * DATA_LOSS if a record is damaged. */
status_t store_each_token(struct store *store, const unsigned char *hash,
                          void (*visit)(void *user, const struct store_token *token),
                          void *user) FSDPD_MUST_USE;
/* Removes all of this name; durable. */
status_t store_remove_tokens(struct store *store, const char *name, int *removed) FSDPD_MUST_USE;

/* Finds the last metrics event of a step up to `step`. *event is NULL if there is none; otherwise
 * the caller frees it with message_free. Searches from the end, so it is quick if few events
 * follow. */
status_t store_find_metrics(struct store *store, const char *job, uint64_t step,
                            job_event **event) FSDPD_MUST_USE;

/* The highest sequence number of the job's events, and the number of metrics events in the
 * store. */
status_t store_count_events(struct store *store, const char *job, uint64_t *last,
                            uint64_t *metrics) FSDPD_MUST_USE;

/*
 * Deletes metrics events of the job until `keep` (at least 16) are left, if there are more; *left
 * is how many there are. The extremes of their curves remain (spec/metric_curves.h). Reads all
 * events of the job.
 */
status_t store_thin_metrics(struct store *store, const char *job, uint64_t keep,
                            uint64_t *left) FSDPD_MUST_USE;

/* Calls `visit` with each checkpoint (valid during the call), by step; an error from `visit` stops
 * it. */
status_t store_each_checkpoint(struct store *store, const char *job,
                               status_t (*visit)(void *user,
                                                 const Fsdpd__V1__Checkpoint *checkpoint),
                               void *user) FSDPD_MUST_USE;

/* Whether the job has any checkpoints, damaged or not. */
status_t store_has_checkpoint(struct store *store, const char *job, bool *has) FSDPD_MUST_USE;

/* Zeros for an unknown job. */
status_t store_get_retries(struct store *store, const char *job,
                           struct store_retries *retries) FSDPD_MUST_USE;

/*
 * Opens the store for reading, even while a coordinator uses it, and compares all of its rows with
 * their sums: `damaged` is called with each job that has damaged ones. Otherwise errors as for
 * store_open; FAILED_PRECONDITION if it has another schema.
 */
status_t store_view(const char *path, void (*damaged)(void *user, const char *job), void *user,
                    struct store **store) FSDPD_MUST_USE;

/*
 * Copies the store `from` to the file `to`, even while a coordinator uses it. The copy is a
 * consistent snapshot; it is checked and on the disk before the rename to `to`. NOT_FOUND if there
 * is not a store; otherwise errors as for store_open.
 */
status_t store_backup(const char *from, const char *to) FSDPD_MUST_USE;

/*
 * Replaces the store `to` with the backup `from`. The caller must have locked the directory of
 * `to`, which must exist. The old store, damaged or not, is kept: *kept is its new name, NULL if
 * there was none; the caller frees it. Nothing changes if the backup is not a store, is damaged, or
 * has a newer version.
 */
status_t store_restore(const char *from, const char *to, char **kept) FSDPD_MUST_USE;

#endif
