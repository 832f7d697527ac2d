/*
 * A coordinator under load: simulated workers, submitters and watchers, all on one libuv loop in
 * one process, each with a connection of its own. The workers speak the worker protocol without
 * training: they answer plan orders with a real plan made once, accept assignments, report metrics
 * and end as a worker does.
 */
#ifndef FSDPD_BENCH_LOAD_H
#define FSDPD_BENCH_LOAD_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/status.h"
#include "fsdpd/v1/worker.pb-c.h"
#include "rpc/client.h"

/* Times, in milliseconds. */
struct samples {
    double *values;
    size_t count, capacity;
};
void samples_add(struct samples *samples, double value);
/* The smallest value that a fraction `part` (0 to 1) of the samples does not exceed; 0 if there are
 * none. */
double samples_quantile(struct samples *samples, double part);
void samples_deinit(struct samples *samples);

/* The state of one submitted job, as the load sees it. */
struct load_job {
    char id[32];
    bool finished;        /* all ranks have reported success */
    int assigned, ended;  /* ranks */
    uint32_t attempt;     /* of the last assignment */
    uint64_t metrics;     /* reports of its rank 0 */
    bool running;         /* its rank 0 has reported since the start */
};

struct load {
    uv_loop_t loop;
    uv_timer_t beat;
    struct rpc_runtime *runtime;
    const char *address;

    Fsdpd__V1__JobSpec *spec; /* of every job, under another name */
    Fsdpd__V1__Plan *plan;    /* of that spec */

    struct load_worker *workers;
    int worker_count, attached;
    int plans_answered;
    bool release; /* jobs may end once they have run for run_ms */
    int run_ms, interval_ms;
    uint64_t history; /* steps that a job reports as fast as it can */

    struct load_job *jobs;
    int job_count, submitted, running, finished;
    int next_job;
    struct samples submit_ms;

    struct load_watcher *watchers;
    int watcher_count, watchers_closed;
    struct samples watch_ms;
    uint64_t watch_events, watch_missed;

    int open; /* open channels */
    char *error;
};

double load_now_ms(void);
/* Keeps the first error; the load ends with it. */
void load_fail(struct load *load, const char *format, ...) FSDPD_PRINTF(2, 3);
/* The job with that id, or NULL. */
struct load_job *load_find(struct load *load, const char *id);
struct rpc_channel *load_connect(struct load *load);

/* The simulated workers. */
void load_workers_start(struct load *load, int count);
void load_workers_close(struct load *load);

/* The watchers, spread over the running jobs. */
void load_watchers_start(struct load *load, int count);
void load_watchers_close(struct load *load);

#endif
