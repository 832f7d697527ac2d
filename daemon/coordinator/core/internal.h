/* Shared by the coordinator's parts: the coordinator itself and the lists of its live objects. */
#ifndef FSDPD_COORDINATOR_INTERNAL_H
#define FSDPD_COORDINATOR_INTERNAL_H

#include <uv.h>

#include "base/list.h"
#include "base/must.h"
#include "coordinator/core/settings.h"
#include "coordinator/store/message.h"
#include "coordinator/store/store.h"
#include "rpc/server.h"

struct coordinator;
struct job;
struct job_owner;
struct worker;

/*
 * Calls from jobs into the layer above them, the code for clients' calls, that cannot wait for the
 * end of the turn; turn.c fills in the functions.
 */
struct job_clients {
    void (*event)(struct job *job, const job_event *event); /* an event was recorded */
    void (*stored)(struct job *job); /* events that the store had refused are stored now */
    void (*logged)(struct coordinator *c, const char *job);
    void (*ready)(struct job *job); /* all ranks are attached and train: orders can be sent */
    void (*rank_away)(struct job *job, int rank);
    void (*diagnosed)(struct job *job);          /* its attempt has a new diagnosis */
    bool (*is_uploading)(const struct job *job); /* its final state_dict */
    /* It continues with another number of workers; see checkpoints_vacate. */
    void (*resize)(struct job *job, const char *by, const char *why);
    /* It waits for its turn again; see checkpoints_preempt. */
    void (*preempt)(struct job *job, const char *why);
};

/* The same for workers: the code for plans and attempts is a layer above them. */
struct worker_users {
    void (*lost)(struct worker *worker, const char *how, bool certain); /* see worker_lose */
    /* A supervised process that is not attached has ended. */
    void (*process_exited)(struct coordinator *c, const char *worker_id, int64_t pid,
                           const char *how);
};

struct coordinator {
    uv_loop_t *loop;
    struct must_owner owner;            /* the loop's thread */
    struct coordinator_options options; /* its strings are copies that `texts` owns */
    char **texts;
    int text_count, text_capacity;
    int runtime_lock, state_lock; /* descriptors, -1 if not held */
    char *address;
    struct rpc_runtime *runtime;
    struct rpc_server *server;
    struct store *store;
    int64_t reserve_bytes; /* size of the store's reserve; see reserve.c */
    uv_timer_t tick;       /* fast while something waits, slow otherwise */
    uv_prepare_t turn_end; /* before the loop waits; see turn.h */
    bool ticking, tick_open;
    int64_t last_tick;
    int64_t watchdog_fed_at, rpc_responded_at; /* last times: watchdog fed, gRPC responded */
    char *sent_status;                         /* last status sent to systemd */
    int64_t extended_at;                       /* when systemd was last asked for more time */
    bool rpc_stuck;
    int64_t started_ms; /* wall clock */

    struct job **jobs; /* oldest first; includes those that are over until the end of the turn */
    int job_count, job_capacity;
    int attempt_count; /* jobs that have an attempt */
    void *jobs_by_id;   /* a tree of those that are not over; see jobs_find */
    struct job *job_found; /* in it, the last time: of an array's jobs each asks for the array */
    struct job **ended; /* jobs that left their attempt or are over, in this turn; see turn.h */
    int ended_count, ended_capacity;
    struct job_owner **owners; /* users; see owners.h */
    int owner_count, owner_capacity;
    int64_t usage_at, usage_saved_at; /* used by fair_share.c: up to when their usage counts */
    bool usage_loaded, usage_changed;
    bool kept_counted; /* their sums of what is kept are known */
    const struct job_clients *clients;
    const struct worker_users *users;
    struct worker **workers; /* attached */
    int worker_count, worker_capacity;
    struct list plans;                   /* outstanding, oldest first; see planner.c */
    int plans_offline;                   /* of these, those that a process makes */
    struct known_devices *known_devices; /* see planner.h */
    struct kept_profiles *kept_profiles; /* see kept_profiles.h */
    int jobs_waiting;                    /* jobs that could start, when the queue was last placed */
    struct list calls; /* clients' calls that wait for an event of a job; see job_call.h */
    struct rendezvous_store **stores; /* one per attempt */
    int store_count, store_capacity;
    int64_t log_complaint_at; /* when a failure to write logs was last logged */
    struct supervisor *supervisor;
    struct http *http;         /* NULL: not enabled */
    struct http_pages *pages;  /* of pages.c; NULL: none was read */
    uint64_t jobs_finished[3]; /* since the start: succeeded, failed, cancelled */
    uint64_t preemptions;      /* since the start */
    /* The number of the last order, pull, trace or plan. Starts from a random number: workers may
     * still answer requests of a previous coordinator. */
    uint64_t last_number;
    struct drain **drains; /* workers and hosts that operators have drained */
    int drain_count, drain_capacity;
    struct host_cut **cuts; /* pairs of hosts that could not be connected; see cuts.h */
    int cut_count, cut_capacity;
    bool cuts_matter; /* a job would get other workers without them; set by queue_place */
    struct sweep **sweeps; /* of jobs that are over, scheduled to repeat */
    int sweep_count, sweep_capacity;
    int64_t next_forget;                        /* when retention is checked next */
    int64_t clock_offset, clock_unsteady_until; /* see forget.c */
    bool queue_changed; /* queue_place has decisions to make at the end of the turn */
    bool queue_continues;                   /* and at the next tick */
    int64_t queue_placed_ns, queue_took_ns; /* when queue_place decided last; how long that took */
    const char *actor;  /* the user whose request is being executed; NULL: the daemon itself */

    struct {
        int64_t end;   /* Unix time in seconds; 0: the server has none */
        int64_t noted; /* when the log had it last */
        bool noted_expired;
    } certificate; /* used by certificate.c */
    struct scrubber *scrubber; /* used by scrubber.c */
    struct notices *notices;   /* used by notices.c */
    bool store_gone; /* its files were removed or replaced: records nothing, accepts no jobs */
    bool draining;   /* no new jobs */
    int64_t end_by;  /* monotonic ms: fsdpd ends then, even if jobs still run */
    bool closing;    /* the server is shutting down */
    bool server_gone, supervisor_gone, runtime_closing, runtime_gone, tick_gone;
    int disk_requests; /* uv_fs requests in flight, and planning processes */
    void (*closed)(void *user);
    void *closed_user;
};

/* Monotonic milliseconds, the clock of all deadlines here. */
int64_t coordinator_now(void);

/* Notes a change on which the queue's decisions depend: of a job, a worker, a priority. The
 * decisions are made again at the end of the turn. */
static inline void queue_changed(struct coordinator *c)
{
    c->queue_changed = true;
}

/* Switches to the fast tick: something with a deadline was added. */
void coordinator_tick_soon(struct coordinator *c);

/* Makes the queue's decisions again at the next tick, which comes soon. */
static inline void queue_continue(struct coordinator *c)
{
    c->queue_continues = true;
    coordinator_tick_soon(c);
}

/* Called when the last supervised worker is gone after supervisor_stop. */
void coordinator_supervisor_gone(struct coordinator *c);

/* Called when a part has closed its handles in the loop; closing continues. */
void coordinator_part_gone(struct coordinator *c);

/* Called when one disk request or planning process of a part has ended; closing waits for all
 * of them. */
void coordinator_disk_done(struct coordinator *c);

/* "<state_dir>/jobs/<id>", and the file `name` in it; the caller frees them. Any thread. */
char *coordinator_job_directory(const struct coordinator *c, const char *job);
char *coordinator_job_path(const struct coordinator *c, const char *job, const char *name);

/* The job's state_dict.safetensors; the caller frees it. */
char *coordinator_state_dict_path(const struct coordinator *c, const char *job);
/* That of its sums. */
char *coordinator_state_sums_path(const struct coordinator *c, const char *job);

/* Removes element `i` of an array of pointers and keeps the order. */
#define LIST_REMOVE(items, count, i)                                                               \
    do {                                                                                           \
        (count)--;                                                                                 \
        for (int move_ = (i); move_ < (count); move_++) (items)[move_] = (items)[move_ + 1];       \
    } while (0)

/* ---- reserve.c ---- */

/*
 * The store's reserve: a file in the state directory whose blocks are allocated. When SQLite
 * reports a full disk, a piece of it is given up, so that the end of running jobs can still be
 * recorded; new jobs are refused until the reserve is whole again.
 */

enum { RESERVE_BYTES = 4 << 20 };

/* Bytes that can still be written on the file system of `path`; INFINITY if this is unknown. */
double disk_free(const char *path);

/* Creates the reserve, or logs why there is none yet. */
void reserve_open(struct coordinator *c);

/* Makes it whole again when there is space. */
void reserve_tick(struct coordinator *c);

/* Gives up a piece if `refusal`, an error of the store, reports a full disk. True: try again. */
bool reserve_give_up(struct coordinator *c, status_t refusal);

/* Whether only urgent changes may use the store: a part of the reserve is gone, and a part is
 * left. */
bool reserve_is_begun(const struct coordinator *c);

#endif
