/*
 * The coordinator: takes jobs over RPC, keeps them in its store, plans and places them on the
 * workers that are attached, and supervises local workers. It never touches a device. Everything
 * runs on one libuv loop; the functions here are called on its thread.
 */
#ifndef FSDPD_COORDINATOR_COORDINATOR_H
#define FSDPD_COORDINATOR_COORDINATOR_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/status.h"
#include "rpc/tls.h"

enum { COORDINATOR_ADDRESSES_MAX = 16, COORDINATOR_DATA_ROOTS_MAX = 16 };

/* In bytes: a request with a job and its model file, and how much of that the job's spec may be. */
enum { COORDINATOR_JOB_MAX = 8 << 20, COORDINATOR_SPEC_MAX = 7 << 20 };

/* Bounds of every wait and every list, in milliseconds and elements. Tests shorten them. */
struct coordinator_limits {
    int heartbeat_ms;    /* how often a worker says that it lives */
    int silence_ms;      /* a worker that says nothing for so long is lost */
    int plan_wait_ms;    /* for a worker that could plan to attach */
    int plan_ms;         /* for the plan */
    int peer_timeout_ms; /* of a rank's waits for its peers */
    int reattach_ms;     /* for a worker whose link broke, or after a start, to attach again */
    int exit_wait_ms;    /* after a link closed in a failed attempt, for the worker's exit status */
    int settle_ms;       /* after a rank failed, for the others to say how they ended */
    int cancel_ms;       /* a cancel order that had no effect for so long is repeated "at once" */
    int save_ms;         /* a checkpoint for the daemon's end that takes longer is given up */
    int kill_ms;         /* a rank that did not obey "at once" for so long is killed */
    int stop_ms;         /* a supervised worker that did not leave when drained is killed */
    int retry_ms;      /* before the second attempt of a job; twice as long before the next one */
    int retry_max_ms;  /* but never longer */
    int pull_start_ms;   /* for rank 0 to answer a pull order */
    int pull_idle_ms;    /* between two chunks that rank 0 could send */
    int metrics_kept;    /* metrics events per job; older ones are thinned */
    int log_bytes;       /* of a job's logs; the oldest go first */
    int watch_lag;       /* metrics that a slow watcher may be behind before it misses some */
    int jobs_active;     /* jobs that are not over */
    int jobs_per_user;   /* of these, jobs of one user */
    int spec_bytes;      /* of a spec that is submitted or planned, packed */
    int retention_days;  /* finished jobs are forgotten after so many; 0: never */
    int retention_jobs;  /* so many finished jobs are kept; 0: all */
    int user_priority;   /* the highest that a user who is no operator may give */
    int pulls_per_job;
    int watchers;
    int connections_per_user; /* of a Unix user, at a time */
    int calls_per_user;
    int users; /* that are connected at a time */
};

struct coordinator_options {
    const char *runtime_dir; /* for the socket and its lock */
    const char *state_dir;
    const char *listen[COORDINATOR_ADDRESSES_MAX]; /* besides the socket */
    int listen_count;
    int sockets[COORDINATOR_ADDRESSES_MAX]; /* that a service manager has bound; taken over */
    int socket_count;
    const char *metrics_listen;     /* HOST:PORT for monitoring; NULL: nowhere */
    struct rpc_tls_files tls;       /* for `listen`; not given: no TLS */
    bool insecure_tcp;              /* instead: TCP that is neither encrypted nor authenticated */
    const char *operator_group;     /* the Unix group whose members are operators; NULL: none */
    bool operator_group_is_default; /* then it need not exist */
    const char *data_roots[COORDINATOR_DATA_ROOTS_MAX]; /* handed to local workers */
    int data_root_count;
    int local_workers;        /* to start and supervise */
    const char *local_device; /* their device: "cpu" */
    int worker_threads;       /* of each local worker; 0: its share of the processors */
    int worker_away_ms;       /* after which local workers give up; see worker_options */
    const char *program;      /* what to start them with: "/proc/self/exe" */
    const char *log_level;    /* handed to local workers; may be NULL */
    struct coordinator_limits limits;
};

/* The Unix group of operators, unless another is named. */
#define COORDINATOR_OPERATOR_GROUP "fsdpd-operators"

/* The limits that a daemon runs with. */
struct coordinator_limits coordinator_limits_default(void);

struct coordinator;

/*
 * Takes the locks, opens the store, settles what an earlier run left, listens and starts the local
 * workers. Serves when this returns. Options are copied. On failure nothing is left behind, but the
 * loop must be run once more so that closed handles go away.
 */
status_t coordinator_new(uv_loop_t *loop, const struct coordinator_options *options,
                         struct coordinator **coordinator) FSDPD_MUST_USE;

/* "unix:/run/fsdpd/fsdpd.sock" */
const char *coordinator_address(const struct coordinator *coordinator);

/*
 * Takes over what can change while it runs: the limits (those of a wait that has begun stay as they
 * were), who is an operator, the certificate (its files are read again even if they are the same
 * ones), and the level that workers log with which are started from now on. An error changes
 * nothing.
 */
status_t coordinator_reload(struct coordinator *coordinator,
                            const struct coordinator_options *options) FSDPD_MUST_USE;

/*
 * Takes no more jobs, ends those that run on local workers at their next step boundary, ends local
 * workers, then closes and frees everything and calls `closed`. Queued jobs stay queued for the
 * next start, and workers that are not its own go on with what they do until then. Only the first
 * call counts.
 */
void coordinator_drain(struct coordinator *coordinator, void (*closed)(void *user), void *user);

/* Leave at once: kills local workers and queues what they ran for the next start. The process then exits;
 * the coordinator must not be used again. */
void coordinator_abandon(struct coordinator *coordinator);

#endif
