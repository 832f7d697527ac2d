/* Internals shared by the store's files; for store*.c only. */
#ifndef FSDPD_COORDINATOR_STORE_INTERNAL_H
#define FSDPD_COORDINATOR_STORE_INTERNAL_H

#include <sqlite3.h>

#include "base/must.h"
#include "coordinator/store/store.h"
#include "coordinator/store/store_mark.h"

/* The checksum of a row, as SQL; see store_sums.c. The schema defines which values it covers. WIDE
 * makes a job's checksum a number of eight bytes whatever its value: as long as a row's size stays
 * the same, SQLite writes only the pages that have changed. */
#define WIDE " | 4611686018427387904"
#define JOB_CRC "(record_crc(id, name, spec, plan, submitted_ms, owner, chosen)" WIDE ")"
#define JOB_STATE_CRC                                                                              \
    "(record_crc(id, state, reason_code, reason_message, attempt, step, steps, metrics, workers, " \
    "started_ms, finished_ms, state_ms, state_dict_step, priority, held_by, report, stop, "        \
    "stop_code, stop_message, stop_by)" WIDE ")"
/* For rows that are found by their job: the upper half is the checksum of the key alone, which
 * distinguishes a row that has moved to another job from one whose values changed. */
#define KEYED_CRC(key, rest) "(record_crc(" key ") << 32 | record_crc(" key ", " rest "))"
#define EVENT_CRC KEYED_CRC("job, sequence", "metrics, event")
#define CHECKPOINT_CRC KEYED_CRC("job, step", "checkpoint")
#define RETRIES_CRC KEYED_CRC("job", "failures, machine_failures")
#define WEIGHTS_CRC KEYED_CRC("job", "sums")
#define DRAIN_CRC "record_crc(worker, by, time_ms)"
#define USAGE_CRC "record_crc(user, worker_ms, time_ms)"
#define TOKEN_CRC "record_crc(hash, name, operator, by, issued_ms, expires_ms, observer, job)"
#define FORGOTTEN_CRC "record_crc(name, jobs)"

enum store_statement {
    BEGIN,
    COMMIT,
    ROLLBACK,
    SYNC_FULL,
    SYNC_NORMAL,
    INSERT_JOB,
    UPDATE_JOB,
    PLAN_JOB,
    GET_JOB,
    LIST_JOBS,
    LIST_IDS,
    LIST_OWNERS,
    COUNT_STATES,
    LIST_ACTIVE,
    COUNT_NAME,
    HAS_ID,
    GET_REPORT,
    GET_STOP,
    SET_STATE_DICT,
    INSERT_EVENT,
    READ_EVENTS,
    COUNT_EVENTS,
    LAST_METRICS,
    ADD_DRAIN,
    REMOVE_DRAIN,
    LIST_DRAINS,
    SET_USAGE,
    LIST_USAGE,
    ADD_TOKEN,
    FIND_TOKEN,
    LIST_TOKENS,
    REMOVE_TOKENS,
    EXPIRE_TOKENS,
    COUNT_FORGOTTEN,
    DELETE_EVENT,
    DELETE_EVENTS,
    DELETE_RETRIES,
    DELETE_CHECKPOINTS,
    SET_WEIGHTS,
    GET_WEIGHTS,
    DELETE_WEIGHTS,
    DELETE_TOKENS,
    DELETE_JOB,
    LIST_OLD,
    LIST_BEYOND,
    STATEMENT_COUNT,
};

/* One of the store's files, as found when the store was opened. */
struct store_file {
    char *path;
    dev_t device;
    ino_t number;
};
enum { STORE_FILES = 3 }; /* the store, its log, its mark */

struct store {
    struct must_user user;
    sqlite3 *database;
    char *path;
    sqlite3_stmt *prepared[STATEMENT_COUNT];
    char **damaged; /* ids of jobs that have a damaged record */
    int damaged_count, damaged_capacity;
    struct store_file files[STORE_FILES];
    struct store_mark mark;
    int mark_fd;        /* -1 before the store is open */
    int page_size;      /* of the log */
    uint32_t frames;    /* in the log at the last store_note_commit */
    uint32_t committed; /* in the log after the last commit, from SQLite */
    bool durable;       /* of the open transaction */
    bool mark_refused;  /* a failed write of the mark was logged */
};

/* The error that `database` has just reported, as "cannot <doing> <path>: ...". */
status_t store_sqlite_error(sqlite3 *database, const char *path, const char *doing) FSDPD_MUST_USE;
status_t store_error(const struct store *store, const char *doing) FSDPD_MUST_USE;

/* Returns the prepared statement, reset and without bindings. */
sqlite3_stmt *store_use(struct store *store, enum store_statement which);

/* Prepares the statements of a store of the latest schema. */
status_t store_prepare(struct store *store) FSDPD_MUST_USE;

/* Runs a statement whose rows, if any, do not matter. */
status_t store_run(struct store *store, sqlite3_stmt *statement, const char *doing) FSDPD_MUST_USE;

status_t store_begin(struct store *store, bool durable) FSDPD_MUST_USE;

/* Commits if `status` is NULL; else, or if that fails, rolls back. Returns the error. */
status_t store_end(struct store *store, status_t status) FSDPD_MUST_USE;

/* The message in a column; NULL if it is damaged, which column `whole` states. */
void *store_unpack(sqlite3_stmt *row, int column, int whole,
                   const ProtobufCMessageDescriptor *descriptor);

/* Writes one event, within a transaction. */
status_t store_write_event(struct store *store, const char *job,
                           const job_event *event) FSDPD_MUST_USE;

/* Updates the list of checkpoints from a checkpoint's event, within a transaction. */
status_t store_write_checkpoint(struct store *store, const char *job,
                                const Fsdpd__V1__CheckpointEvent *event) FSDPD_MUST_USE;

/* Writes a job's retry counts, within a transaction. */
status_t store_write_retries(struct store *store, const char *job,
                             const struct store_retries *retries) FSDPD_MUST_USE;

/* Runs quick_check: DATA_LOSS states what is damaged and what to do. */
status_t store_check(sqlite3 *database, const char *path) FSDPD_MUST_USE;

/* Registers record_crc() with a connection. */
status_t store_add_sums(sqlite3 *database, const char *path) FSDPD_MUST_USE;

/* Callbacks for damage to a single job: to its record, so that it cannot run, or to its events. */
struct store_damage {
    void (*job)(void *user, const char *id);
    void (*events)(void *user, const char *id);
    void *user;
};

/* Compares all checksums of a store of the latest schema. DATA_LOSS if the damage affects more than
 * one job; otherwise calls back for each damaged job. */
status_t store_check_records(sqlite3 *database, const char *path,
                             const struct store_damage *damage) FSDPD_MUST_USE;

/* After a commit: updates the mark, and copies a long log to the store's file. */
void store_note_commit(struct store *store);

/* Copies the log to the store's file, as far as readers allow. */
bool store_copy_log(struct store *store);

/* SQLite's commit hook: `user` is the store. */
int store_count_frames(void *user, sqlite3 *database, const char *name, int frames);

/* Records the identity of the store's files. */
void store_note_files(struct store *store);

/* The number of durable changes: *changes with the log, *copied in the file without it. */
status_t store_read_changes(sqlite3 *database, const char *path, uint32_t *changes,
                            uint32_t *copied) FSDPD_MUST_USE;

/*
 * Copies the whole database to `to`. The file appears under that name only when it is complete,
 * checked and on the disk (temporary file, fsync, rename). It replaces an old file of that name.
 */
status_t store_copy(sqlite3 *from, const char *from_path, const char *to) FSDPD_MUST_USE;

#endif
