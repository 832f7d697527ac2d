/* Cleaning up after jobs that are over; see retention.h. */
#include "coordinator/retention/retention.h"

#include <dirent.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/tree.h"
#include "coordinator/jobs/checkpoint_place.h"

/* The time until the second sweep, after ranks that do not end have been killed. */
enum { AGAIN_MS = 2000 };

struct sweep {
    uv_work_t work;
    struct coordinator *c;
    char **jobs;
    int count, capacity;
    char *directory, *run; /* of a single job, from its settings; NULL: in the state directory */
    int64_t again_at;
    status_t status;
};

static struct sweep *sweep_new(struct coordinator *c)
{
    struct sweep *sweep = mem_alloc(sizeof *sweep);
    *sweep = (struct sweep){.c = c};
    sweep->work.data = sweep;
    return sweep;
}

static void add_job(struct sweep *sweep, const char *job)
{
    MEM_GROW(sweep->jobs, sweep->count, sweep->capacity);
    sweep->jobs[sweep->count++] = mem_strdup(job);
}

static void sweep_free(struct sweep *sweep)
{
    for (int i = 0; i < sweep->count; i++) free(sweep->jobs[i]);
    free(sweep->jobs);
    free(sweep->directory);
    free(sweep->run);
    free(sweep);
}

static status_t sweep_job(const struct sweep *sweep, const char *job)
{
    const struct coordinator_options *options = &sweep->c->options;
    if (sweep->run != NULL) return checkpoint_dirs_sweep(options, sweep->directory, sweep->run);
    AUTO_FREE char *folder = coordinator_job_path(sweep->c, job, "checkpoints");
    return unfinished_sweep(folder);
}

/* Runs on a libuv thread. The options stay valid until the coordinator is freed, which waits for
 * this. */
static void do_sweep(uv_work_t *work)
{
    struct sweep *sweep = work->data;
    for (int i = 0; i < sweep->count; i++)
        sweep->status = status_first(sweep->status, sweep_job(sweep, sweep->jobs[i]));
}

static void on_swept(uv_work_t *work, int status)
{
    (void)status;
    struct sweep *sweep = work->data;
    struct coordinator *c = sweep->c;
    log_status(LOG_WARNING, "checkpoints_not_swept", sweep->status);
    sweep_free(sweep);
    coordinator_disk_done(c);
}

/* Starts the sweep; takes ownership of it. */
static void begin(struct sweep *sweep)
{
    sweep->c->disk_requests++;
    if (uv_queue_work(sweep->c->loop, &sweep->work, do_sweep, on_swept) == 0) return;
    sweep->c->disk_requests--;
    sweep_free(sweep);
}

void sweeps_job_over(struct coordinator *c, const job_message *job)
{
    if (job->attempt == 0) return; /* it never began */
    const Fsdpd__V1__CheckpointSpec *spec = job->spec->checkpoint;
    for (int again = 0; again < 2; again++) {
        struct sweep *sweep = sweep_new(c);
        add_job(sweep, job->id);
        if (spec != NULL && spec->directory[0] != '\0') {
            sweep->directory = mem_strdup(spec->directory);
            sweep->run = checkpoint_dirs_run(job);
        }
        if (!again) {
            begin(sweep);
            continue;
        }
        sweep->again_at = coordinator_now() + c->options.limits.kill_ms + AGAIN_MS;
        MEM_GROW(c->sweeps, c->sweep_count, c->sweep_capacity);
        c->sweeps[c->sweep_count++] = sweep;
    }
}

void sweeps_tick(struct coordinator *c, int64_t now)
{
    for (int i = c->sweep_count - 1; i >= 0; i--) {
        struct sweep *sweep = c->sweeps[i];
        if (now < sweep->again_at) continue;
        LIST_REMOVE(c->sweeps, c->sweep_count, i);
        /* Skip a job that was revived, or forgotten and submitted again under its id. */
        if (jobs_find(c, sweep->jobs[0]) == NULL) begin(sweep);
        else sweep_free(sweep);
    }
}

void sweeps_recover(struct coordinator *c)
{
    AUTO_FREE char *path = file_path_join(c->options.state_dir, "jobs");
    DIR *directory = opendir(path);
    struct sweep *sweep = sweep_new(c);
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;)
        if (job_id_is_valid(entry->d_name) && jobs_find(c, entry->d_name) == NULL)
            add_job(sweep, entry->d_name);
    if (directory != NULL) closedir(directory);
    if (sweep->count > 0) begin(sweep);
    else sweep_free(sweep);
}

void sweeps_free(struct coordinator *c)
{
    for (int i = 0; i < c->sweep_count; i++) sweep_free(c->sweeps[i]);
    free(c->sweeps);
}
