/* The options and limits of a coordinator; see coordinator.h. */
#ifndef FSDPD_COORDINATOR_SETTINGS_H
#define FSDPD_COORDINATOR_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "rpc/tls.h"

enum { COORDINATOR_ADDRESSES_MAX = 16, COORDINATOR_DATA_ROOTS_MAX = 16, COORDINATOR_FAMILIES_MAX = 16 };
enum { COORDINATOR_NOTIFY_MAX = 32 };

/* To whom notices of jobs go, of `notify` in fsdpd.yaml: a command or a webhook. */
struct notice_setting {
    const char *name;
    const char *const *command; /* its arguments, the program first, NULL after the last; or NULL */
    const char *url;            /* https; NULL with a command */
    const char *secret_file;    /* with the webhook's key */
    const char *ca_file;        /* authorities for the webhook's server; NULL: the system's */
};

/* In bytes: a request with a job and its model file, and the job's spec within it. */
enum { COORDINATOR_JOB_MAX = 8 << 20, COORDINATOR_SPEC_MAX = 7 << 20 };

/* Limits of every wait and every list, in milliseconds and elements. Tests shorten them. */
struct coordinator_limits {
    int heartbeat_ms;    /* between two heartbeats of a worker */
    int silence_ms;      /* a worker that is silent for longer is lost */
    int plan_wait_ms;    /* for a local worker that is starting and can plan */
    int plan_ms;         /* for the plan */
    int peer_timeout_ms; /* for a rank to wait for its peers */
    int reattach_ms;     /* for a worker to attach again after its link broke or fsdpd started */
    int exit_wait_ms;    /* for a worker's exit status after its link closed in a failed attempt */
    int settle_ms;       /* for the other ranks to report how they ended after one failed */
    int cancel_ms;       /* a cancel order without effect for that long is repeated as "at once" */
    int save_ms;         /* a checkpoint at the daemon's end that takes longer is abandoned */
    int kill_ms;         /* a rank that ignores "at once" for that long is killed */
    int stop_ms;         /* a drained supervised worker that stays for longer is killed */
    int retry_ms;        /* before the second attempt of a job; doubles for each further attempt */
    int retry_max_ms;    /* the longest such pause */
    int preempt_ms;      /* between two preemptions of a job, at least */
    int notice_ms;       /* for one try of a notice */
    int notice_retry_ms; /* before its second try; each further pause is four times as long */
    int quota_workers;   /* that the running jobs of a user have at most; 0: any number */
    int64_t fair_share_ms;    /* in which the usage of a user halves; 0: no fair share */
    int64_t quota_kept_bytes; /* that the jobs of a user keep at most; 0: any number */
    int pull_start_ms;   /* for rank 0 to answer a pull order */
    int pull_idle_ms;    /* between two chunks that rank 0 could send */
    /* A host's workers are idle for that long before a calibration (0: never), which takes about
     * that long. */
    int calibrate_after_ms, calibrate_ms;
    int metrics_kept;    /* metrics events per job; older ones are thinned */
    int log_bytes;       /* of a job's logs; the oldest are removed first */
    int watch_lag;       /* metrics by which a slow watcher may lag before it misses some */
    int jobs_active;     /* jobs that are not over */
    int jobs_per_user;   /* of these, jobs of one user */
    int spec_bytes;      /* of a submitted or planned spec, packed */
    int retention_days;  /* days until finished jobs are forgotten; 0: never */
    int retention_jobs;  /* number of finished jobs kept; 0: all */
    int scrub_days;      /* between two scrubs; 0: none */
    int scrub_rate;      /* megabytes per second that one reads */
    int user_priority;   /* the highest that a user who is not an operator may set */
    int pulls_per_job;
    int samples_waiting; /* of a job, for their turn */
    int sample_share;    /* percent of a job's time */
    int watchers;
    int connections_per_user;    /* of a Unix user, at a time */
    int connections_per_address; /* of an address, over TCP */
    int calls_per_user;
    int users; /* connected at a time */
};

struct coordinator_options {
    const char *runtime_dir; /* for the socket and its lock */
    const char *state_dir;
    const char *listen[COORDINATOR_ADDRESSES_MAX]; /* besides the socket */
    int listen_count;
    int sockets[COORDINATOR_ADDRESSES_MAX]; /* bound by a service manager; taken over */
    int socket_count;
    const char *metrics_listen;     /* HOST:PORT for monitoring; NULL: disabled */
    const char *http_listen;        /* HOST:PORT for users with tokens; NULL: disabled */
    struct rpc_tls_files tls;       /* for `listen`; not given: no TLS */
    bool insecure_tcp;              /* instead: TCP that is neither encrypted nor authenticated */
    const char *operator_group;     /* the Unix group whose members are operators; NULL: none */
    bool operator_group_is_default; /* the group need not exist then */
    const char *data_roots[COORDINATOR_DATA_ROOTS_MAX]; /* passed to local workers */
    int data_root_count;
    const char *families[COORDINATOR_FAMILIES_MAX]; /* likewise: directories of family files */
    int family_count;
    const char *profile;      /* of the devices of workers that are not attached; NULL: unknown */
    const char *profile_kind; /* their kind: "cuda" */
    int local_workers;        /* number to start and supervise */
    const char *local_device; /* their device: "cpu" */
    int worker_threads;       /* per local worker; 0: its share of the processors */
    int worker_away_ms;       /* time after which local workers give up; see worker_options */
    const char *program;      /* the program to start them with: "/proc/self/exe" */
    const char *log_level;    /* passed to local workers; may be NULL */
    bool shrink_elastic;      /* running jobs, for waiting ones of higher priority */
    bool preempt;             /* running jobs, likewise */
    struct notice_setting notify[COORDINATOR_NOTIFY_MAX]; /* read by notice_targets_read alone */
    int notify_count;
    const char *cgroup_events, *vmstat; /* see supervisor.h; NULL: the kernel's, which tests replace */
    struct coordinator_limits limits;
};

/* The default Unix group of operators. */
#define COORDINATOR_OPERATOR_GROUP "fsdpd-operators"

#endif
