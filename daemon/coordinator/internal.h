/* What the coordinator's parts share: the coordinator itself and lists of what is alive. */
#ifndef FSDPD_COORDINATOR_INTERNAL_H
#define FSDPD_COORDINATOR_INTERNAL_H

#include <uv.h>

#include "coordinator/coordinator.h"
#include "coordinator/message.h"
#include "coordinator/store.h"
#include "rpc/server.h"

struct coordinator {
    uv_loop_t *loop;
    struct coordinator_options options; /* its strings are copies that `texts` owns */
    char **texts;
    int text_count, text_capacity;
    int runtime_lock, state_lock; /* descriptors, -1 if not held */
    char *address;
    struct rpc_runtime *runtime;
    struct rpc_server *server;
    struct store *store;
    uv_timer_t tick; /* fast while something waits, slow otherwise */
    bool ticking, tick_open;
    int64_t last_tick;
    int64_t told_watchdog, heard_rpc; /* the last times that the watchdog was fed, and gRPC alive */
    char *told_status;                /* what systemd shows */
    int64_t told_extend;              /* when systemd was last asked for patience */
    bool rpc_stuck;
    int64_t started_ms; /* wall clock */

    struct job **jobs; /* not over, oldest first */
    int job_count, job_capacity;
    void *jobs_by_id;        /* the same as a tree, see jobs_find */
    struct worker **workers; /* attached */
    int worker_count, worker_capacity;
    struct plan_request **plans; /* outstanding, oldest first */
    int plan_count, plan_capacity;
    struct rendezvous **stores; /* one per attempt */
    int store_count, store_capacity;
    struct pull **pulls;
    int pull_count, pull_capacity;
    struct checkpoint_call **checkpoints; /* that clients wait for */
    int checkpoint_count, checkpoint_capacity;
    struct trace_call **traces;
    int trace_count, trace_capacity;
    struct upload **uploads; /* of final state_dicts */
    int upload_count, upload_capacity;
    struct watcher **watchers;
    int watcher_count, watcher_capacity;
    struct log_reader **log_readers;
    int log_reader_count, log_reader_capacity;
    int64_t log_complaint_at; /* when it was last said that logs cannot be written */
    int history_reader_count;
    struct supervisor *supervisor;
    struct http *http;         /* NULL: not asked for */
    uint64_t jobs_finished[3]; /* succeeded, failed, cancelled; since the start */
    /* Counted on from a random number: workers may still answer what another coordinator asked. */
    uint64_t last_plan_request, last_pull, last_trace, last_wrap, last_checkpoint;
    struct drain **drains; /* what operators have drained */
    int drain_count, drain_capacity;
    struct sweep **sweeps; /* of jobs that are over, to be done again */
    int sweep_count, sweep_capacity;
    int64_t next_forget; /* when retention is looked at again */
    int64_t clock_offset, clock_unsteady_until; /* see forget.c */
    bool queue_changed; /* queue_place has something to decide */
    const char *actor;  /* the user whose wish is being carried out; NULL: the daemon acts by itself */

    bool draining; /* no new jobs */
    bool closing;  /* the server is going */
    bool server_gone, supervisor_gone, runtime_closing, runtime_gone, tick_gone;
    int disk_requests; /* uv_fs requests in flight */
    void (*closed)(void *user);
    void *closed_user;
};

/* Monotonic milliseconds, the clock of every deadline here. */
int64_t coordinator_now(void);

/* Makes the tick fast: something with a deadline was added. */
void coordinator_hurry(struct coordinator *c);

/* The last supervised worker is gone after supervisor_stop. */
void coordinator_supervisor_gone(struct coordinator *c);

/* A part has closed what it had in the loop; closing goes on. */
void coordinator_part_gone(struct coordinator *c);

/* One disk request of a part has ended; closing waits for them. */
void coordinator_disk_done(struct coordinator *c);

/* "<state_dir>/jobs/<id>", and what is in it by this name; the caller frees them. Any thread. */
char *coordinator_job_directory(const struct coordinator *c, const char *job);
char *coordinator_job_path(const struct coordinator *c, const char *job, const char *name);

/* The job's state_dict.safetensors; the caller frees it. */
char *coordinator_state_dict_path(const struct coordinator *c, const char *job);

/* Removes element `i` of an array of pointers, keeping the order. */
#define LIST_REMOVE(items, count, i)                                                               \
    do {                                                                                           \
        (count)--;                                                                                 \
        for (int move_ = (i); move_ < (count); move_++) (items)[move_] = (items)[move_ + 1];       \
    } while (0)

#endif
