/*
 * The exposition; see monitor.h. Jobs that are over have no lines of their own, as these would pile
 * up. Everything is read on the loop's thread, so an answer is a consistent snapshot.
 */
#include "coordinator/monitor/monitor.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/array.h"
#include "config.h"
#include "coordinator/calls/calls.h"
#include "coordinator/calls/pulls.h"
#include "coordinator/jobs/diagnoses.h"
#include "coordinator/jobs/elastic.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/monitor/notices.h"
#include "coordinator/scheduler/admission.h"
#include "coordinator/workers/cuts.h"
#include "coordinator/workers/supervisor.h"
#include "coordinator/workers/workers.h"
#include "proto/message.h"
#include "spec/metric_table.h"

/* ---- lines ---- */

static void add_family(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP fsdpd_%s %s\n# TYPE fsdpd_%s %s\n", name, help, name, type);
}

static void add_escaped(struct buf *out, const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '\n') buf_add_text(out, "\\n");
        else {
            if (*c == '"' || *c == '\\') buf_add_char(out, '\\');
            buf_add_char(out, *c);
        }
    }
}

static void add_value(struct buf *out, double value)
{
    if (isnan(value)) buf_add_text(out, " NaN\n");
    else if (isinf(value)) buf_add_text(out, value > 0 ? " +Inf\n" : " -Inf\n");
    else buf_printf(out, " %.15g\n", value);
}

/* Up to two labels; a NULL key ends them. */
static void add_sample(struct buf *out, const char *name, const char *key, const char *text,
                       const char *key2, const char *text2, double value)
{
    buf_printf(out, "fsdpd_%s", name);
    if (key != NULL) {
        buf_printf(out, "{%s=\"", key);
        add_escaped(out, text);
        if (key2 != NULL) {
            buf_printf(out, "\",%s=\"", key2);
            add_escaped(out, text2);
        }
        buf_add_text(out, "\"}");
    }
    add_value(out, value);
}

static void add_single(struct buf *out, const char *name, const char *type, const char *help,
                       double value)
{
    add_family(out, name, type, help);
    add_sample(out, name, NULL, NULL, NULL, NULL, value);
}

/* ---- jobs ---- */

/* Values that exist once rank 0 has reported; NAN: this job has none. */
struct job_family {
    const char *name, *type, *help;
    double (*value)(const struct job *job);
};

static double of_step(const struct job *job)
{
    return (double)job->message->step;
}

static double of_steps(const struct job *job)
{
    return (double)job->message->steps;
}

static double of_attempts(const struct job *job)
{
    return job->message->attempt;
}

static double of_ranks(const struct job *job)
{
    return elastic_wanted(job->message);
}

static double of_waiting(const struct job *job)
{
    return (double)message_time_ms(job->message->submit_time) / 1000.0;
}

static double of_checkpoint(const struct job *job)
{
    return job->totals.checkpoint_ms != 0 ? (double)job->totals.checkpoint_ms / 1000.0 : NAN;
}

static const struct job_family always[] = {
    {"job_submitted_time_seconds", "gauge", "When the job was submitted, as a Unix time.",
     of_waiting},
    {"job_ranks", "gauge", "The job's world size.", of_ranks},
    {"job_attempts", "gauge", "How often the job was started.", of_attempts},
    {"step", "gauge", "Training steps that the job has completed.", of_step},
    {"steps", "gauge", "Total training steps of the job; 0: unknown.", of_steps},
    {"step_age_seconds", "gauge", "Time since the step of a training job last changed.",
     stalls_age_seconds},
    {"checkpoint_time_seconds", "gauge",
     "When the job's newest checkpoint was complete, as a Unix time.", of_checkpoint},
};

static double of_samples(const struct job *job)
{
    return job->totals.samples;
}

static double of_exposed(const struct job *job)
{
    return job->totals.exposed_seconds;
}

static const struct job_family totals[] = {
    {"samples_total", "counter", "Samples trained on, all ranks.", of_samples},
    {"comm_exposed_seconds_total", "counter",
     "Time that rank 0 communicated without overlapping computation.", of_exposed},
};

static void add_families(struct buf *out, const struct coordinator *c,
                         const struct job_family *families, size_t count, bool need_report)
{
    for (size_t f = 0; f < count; f++) {
        size_t start = out->length;
        add_family(out, families[f].name, families[f].type, families[f].help);
        size_t empty = out->length;
        for (int i = 0; i < c->job_count; i++) {
            const struct job *job = c->jobs[i];
            if (need_report && job->message->metrics == NULL) continue;
            double value = families[f].value(job);
            if (isnan(value)) continue;
            add_sample(out, families[f].name, "job_id", job->message->id, NULL, NULL, value);
        }
        if (out->length > empty) continue;
        out->length = start; /* no job has a value */
        out->data[start] = '\0';
    }
}

/* `set`: of one of the job's data.validation; NULL: of its own data. */
static void add_figure(struct buf *out, const struct metric *metric, const job_message *job,
                       const char *set, double value, bool *any)
{
    if (!*any) add_family(out, metric->gauge, "gauge", metric->help);
    *any = true;
    add_sample(out, metric->gauge, "job_id", job->id, set != NULL ? "set" : NULL, set, value);
}

/* A job's latest figures. A mean over nothing is shown only as what it is now, in a step's. */
static void add_figures(struct buf *out, const struct coordinator *c)
{
    for (size_t f = 0; f < metric_count(); f++) {
        const struct metric *metric = &metric_table[f];
        if (metric->gauge == NULL || metric->kind != NULL) continue;
        bool any = false;
        for (int i = 0; i < c->job_count; i++) {
            double value;
            const job_message *job = c->jobs[i]->message;
            if (job->metrics == NULL) continue;
            if (metric_of_job(metric, job->metrics, &value) &&
                (!isnan(value) || metric->fields[METRIC_STEP] != NULL))
                add_figure(out, metric, job, NULL, value, &any);
            if (metric->fields[METRIC_STEP] != NULL || metric->fields[METRIC_VALIDATION] == NULL)
                continue;
            for (size_t s = 0; s < job->metrics->n_held_out; s++) {
                const Fsdpd__V1__Validation *held_out = job->metrics->held_out[s];
                if (metric_read(&held_out->base, metric->fields[METRIC_VALIDATION], &value) &&
                    !isnan(value))
                    add_figure(out, metric, job, held_out->set, value, &any);
            }
        }
    }
}

static void add_durations(struct buf *out, const struct coordinator *c)
{
    bool any = false;
    for (int i = 0; i < c->job_count; i++) {
        const struct job *job = c->jobs[i];
        if (job->totals.steps == 0) continue;
        if (!any) add_family(out, "step_duration_seconds", "summary", "Time of a training step.");
        any = true;
        add_sample(out, "step_duration_seconds_sum", "job_id", job->message->id, NULL, NULL,
                   job->totals.seconds);
        add_sample(out, "step_duration_seconds_count", "job_id", job->message->id, NULL, NULL,
                   (double)job->totals.steps);
    }
}

static void add_checkpoints(struct buf *out, const struct coordinator *c)
{
    bool any = false;
    for (int i = 0; i < c->job_count; i++) {
        const struct job *job = c->jobs[i];
        if (job->totals.checkpoints == 0) continue;
        if (!any)
            add_family(out, "checkpoint_duration_seconds", "summary",
                       "Time to take a checkpoint, during training.");
        any = true;
        add_sample(out, "checkpoint_duration_seconds_sum", "job_id", job->message->id, NULL, NULL,
                   job->totals.checkpoint_seconds);
        add_sample(out, "checkpoint_duration_seconds_count", "job_id", job->message->id, NULL, NULL,
                   (double)job->totals.checkpoints);
    }
}

static void add_communication(struct buf *out, const struct coordinator *c)
{
    bool any = false;
    for (int i = 0; i < c->job_count; i++) {
        const struct job *job = c->jobs[i];
        for (int k = 0; k < job->totals.op_count; k++) {
            if (!any)
                add_family(out, "comm_bytes_total", "counter",
                           "Bytes that all ranks send in training steps, from the plan.");
            any = true;
            add_sample(out, "comm_bytes_total", "job_id", job->message->id, "op",
                       job->totals.ops[k].kind, job->totals.ops[k].bytes);
        }
    }
}

static void add_op_times(struct buf *out, const struct coordinator *c)
{
    bool any = false;
    for (int i = 0; i < c->job_count; i++) {
        const Fsdpd__V1__Metrics *metrics = c->jobs[i]->message->metrics;
        for (size_t k = 0; metrics != NULL && k < metrics->n_op_times; k++) {
            if (!any)
                add_family(out, "op_seconds", "gauge",
                           "Time of a step's ops by kind, on rank 0, in the last traced step.");
            any = true;
            add_sample(out, "op_seconds", "job_id", c->jobs[i]->message->id, "op",
                       metrics->op_times[k]->op, metrics->op_times[k]->seconds);
        }
    }
}

static void add_slow_ranks(struct buf *out, const struct coordinator *c)
{
    bool any = false;
    for (int i = 0; i < c->job_count; i++) {
        const job_message *message = c->jobs[i]->message;
        for (size_t k = 0; k < message->n_slow_ranks; k++) {
            char rank[16];
            snprintf(rank, sizeof rank, "%u", message->slow_ranks[k]->rank);
            if (!any)
                add_family(out, "rank_slowdown", "gauge",
                           "Own time per step of a slow rank, as a multiple of the median rank's.");
            any = true;
            add_sample(out, "rank_slowdown", "job_id", message->id, "rank", rank,
                       message->slow_ranks[k]->slowdown);
        }
    }
}

static void add_bytes(struct buf *out, const job_message *job, const char *kind, double bytes,
                      bool *any)
{
    if (bytes <= 0) return;
    if (!*any)
        add_family(
            out, "memory_bytes", "gauge",
            "Device memory per rank: planned, peak use, current use; and a worker's resident "
            "set: planned, peak.");
    *any = true;
    add_sample(out, "memory_bytes", "job_id", job->id, "kind", kind, bytes);
}

static void add_memory(struct buf *out, const struct coordinator *c)
{
    bool any = false;
    for (int i = 0; i < c->job_count; i++) {
        const job_message *job = c->jobs[i]->message;
        if (job->plan != NULL) {
            add_bytes(out, job, "plan", (double)job->plan->peak_bytes, &any);
            add_bytes(out, job, "resident_plan", (double)job->plan->resident_bytes, &any);
        }
        for (size_t f = 0; job->metrics != NULL && f < metric_count(); f++) {
            double value;
            if (metric_table[f].kind != NULL &&
                metric_of_job(&metric_table[f], job->metrics, &value))
                add_bytes(out, job, metric_table[f].kind, value, &any);
        }
    }
}

static void add_jobs(struct buf *out, const struct coordinator *c)
{
    static const int states[] = {JOB_QUEUED, JOB_STARTING, JOB_RUNNING, JOB_PAUSED};
    static const int ends[] = {JOB_SUCCEEDED, JOB_FAILED, JOB_CANCELLED};
    add_family(out, "jobs", "gauge", "Jobs that are not over, by state.");
    for (int s = 0; s < 4; s++) {
        int count = 0;
        for (int i = 0; i < c->job_count; i++)
            count += (int)c->jobs[i]->message->state == states[s];
        add_sample(out, "jobs", "state", job_state_name(states[s]), NULL, NULL, count);
    }
    add_family(out, "jobs_finished_total", "counter", "Jobs that ended since fsdpd was started.");
    for (int s = 0; s < 3; s++)
        add_sample(out, "jobs_finished_total", "state", job_state_name(ends[s]), NULL, NULL,
                   (double)c->jobs_finished[s]);
    add_single(out, "preemptions_total", "counter",
               "Jobs that were preempted since fsdpd was started.", (double)c->preemptions);
    if (c->job_count == 0) return;
    add_family(out, "job_state", "gauge", "1 for the job's current state.");
    for (int i = 0; i < c->job_count; i++)
        add_sample(out, "job_state", "job_id", c->jobs[i]->message->id, "state",
                   job_state_name(c->jobs[i]->message->state), 1);
    add_families(out, c, always, COUNT_OF(always), false);
    add_figures(out, c);
    add_families(out, c, totals, COUNT_OF(totals), true);
    add_durations(out, c);
    add_checkpoints(out, c);
    add_communication(out, c);
    add_op_times(out, c);
    add_slow_ranks(out, c);
    add_memory(out, c);
}

/* ---- workers and the process ---- */

static void count_starting(void *user, const char *id, int64_t pid, uint32_t restarts)
{
    (void)id, (void)pid, (void)restarts;
    ++*(int *)user;
}

static void add_restarts(void *user, const char *id, uint32_t restarts)
{
    add_sample(user, "worker_restarts_total", "worker", id, NULL, NULL, restarts);
}

static void add_cut(void *user, const char *from, const char *to)
{
    add_sample(user, "unreachable", "from", from, "to", to, 1);
}

static void add_workers(struct buf *out, const struct coordinator *c)
{
    int busy = 0, starting = 0;
    int drained = 0, draining = 0;
    for (int i = 0; i < c->worker_count; i++) {
        const struct worker *worker = c->workers[i];
        if (worker->drained) ++*(worker->job != NULL ? &draining : &drained);
        else busy += worker->job != NULL;
    }
    supervisor_each_starting((struct coordinator *)c, count_starting, &starting);
    add_family(out, "workers", "gauge", "Workers, by activity.");
    add_sample(out, "workers", "state", "idle", NULL, NULL,
               c->worker_count - busy - drained - draining);
    add_sample(out, "workers", "state", "busy", NULL, NULL, busy);
    add_sample(out, "workers", "state", "starting", NULL, NULL, starting);
    add_sample(out, "workers", "state", "drained", NULL, NULL, drained);
    add_sample(out, "workers", "state", "draining", NULL, NULL, draining);
    add_family(out, "unreachable", "gauge", "1 for each pair that could not be connected.");
    cuts_each(c, add_cut, out);
    if (c->options.local_workers > 0) {
        add_family(out, "worker_restarts_total", "counter", "Restarts of a local worker.");
        supervisor_each_slot(c, add_restarts, out);
    }
}

/* The names that Prometheus's client libraries use for every process. */
static void add_process(struct buf *out, const struct coordinator *c)
{
    long pages = 0, resident = 0;
    FILE *statm = fopen("/proc/self/statm", "re");
    if (statm != NULL) {
        if (fscanf(statm, "%ld %ld", &pages, &resident) != 2) resident = 0;
        fclose(statm);
    }
    int open_files = 0;
    DIR *directory = opendir("/proc/self/fd");
    if (directory != NULL) {
        while (readdir(directory) != NULL) open_files++;
        closedir(directory);
        open_files -= 3; /* ., .. and the directory itself */
    }
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    double cpu = (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6 +
                 (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6;
    buf_printf(out,
               "# HELP process_cpu_seconds_total CPU time of the coordinator.\n"
               "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total %.6f\n"
               "# HELP process_resident_memory_bytes Memory of the coordinator.\n"
               "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes %lld\n"
               "# HELP process_open_fds Descriptors that the coordinator has open.\n"
               "# TYPE process_open_fds gauge\nprocess_open_fds %d\n"
               "# HELP process_start_time_seconds When the coordinator started, as a Unix time.\n"
               "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %.3f\n",
               cpu, (long long)resident * sysconf(_SC_PAGESIZE), open_files,
               (double)c->started_ms / 1000.0);
}

bool metrics_is_ready(const struct coordinator *c, const char **why)
{
    *why = c->draining ? "stopping" : c->rpc_stuck ? "gRPC does not respond" : NULL;
    if (*why == NULL && certificate_has_expired(c)) *why = "the server's certificate has expired";
    if (*why == NULL && c->store_gone) *why = "the store's files were removed or replaced";
    for (int i = 0; *why == NULL && i < c->job_count; i++)
        if (c->jobs[i]->unsaved) *why = "the store refuses changes";
    status_t refusal = room_refusal(c);
    if (*why == NULL && refusal != NULL)
        *why = "no new jobs are accepted: the disk of the state directory is full";
    status_free(refusal);
    return *why == NULL;
}

static void add_notices(struct buf *out, const struct coordinator *c)
{
    const struct notice_counts counts = notices_count(c);
    const struct {
        const char *result;
        uint64_t count;
    } results[] = {{"sent", counts.sent},
                   {"retried", counts.retried},
                   {"failed", counts.failed},
                   {"dropped", counts.dropped}};
    add_single(out, "notices_queued", "gauge", "Notices that wait or are under way.",
               counts.queued);
    add_family(out, "notices_total", "counter",
               "Notices sent, tries that failed and are repeated, and notices given up or dropped, "
               "since fsdpd was started.");
    for (size_t i = 0; i < COUNT_OF(results); i++)
        add_sample(out, "notices_total", "result", results[i].result, NULL, NULL,
                   (double)results[i].count);
}

void metrics_write(const struct coordinator *c, struct buf *out)
{
    const char *why;
    add_family(out, "build_info", "gauge", "Always 1; the version is a label.");
    add_sample(out, "build_info", "version", PACKAGE_VERSION, NULL, NULL, 1);
    add_single(out, "ready", "gauge", "Whether jobs are accepted and run.",
               metrics_is_ready(c, &why));
    if (c->certificate.end != 0)
        add_single(out, "certificate_expiry_time_seconds", "gauge",
                   "When the server's certificate expires, as a Unix time.",
                   (double)c->certificate.end);
    add_single(out, "scrub_damaged", "gauge", "Damaged things that the last scrub found.",
               (double)scrubber_damaged(c));
    add_single(out, "scrub_time_seconds", "gauge",
               "When the last scrub ended, as a Unix time; 0: none has.", (double)scrubber_ended(c));
    add_workers(out, c);
    add_jobs(out, c);
    add_single(out, "watchers", "gauge", "Clients that watch jobs.", watch_count(c));
    add_single(out, "pulls", "gauge", "Pulls under way.", pulls_count(c));
    add_notices(out, c);
    add_single(out, "store_bytes", "gauge", "Size of the store's file and its write-ahead log.",
               (double)store_bytes(c->store));
    add_process(out, c);
}
