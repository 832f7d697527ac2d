/*
 * See scrub.h. What a running coordinator replaces or removes meanwhile is not damage: a finding
 * counts if the thing is still recorded as it was.
 */
#include "coordinator/monitor/scrub.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "coordinator/calls/checkpoint_reader.h"
#include "coordinator/calls/kept_weights.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/jobs/log_files.h"
#include "proto/message.h"

enum { CHUNK_BYTES = 1 << 20, LOG_LINES = 4096 };

struct scrubbing {
    struct scrub *scrub;
    struct coordinator *view; /* only its options count */
    struct store *store;
    uint8_t *chunk;
    bool ended;      /* by the caller, or `lacked` */
    status_t lacked; /* memory or descriptors, which is no damage; NULL: nothing */
};

const char *scrub_kind_name(enum scrub_kind kind)
{
    static const char *const names[] = {"store", "final weights", "checkpoint", "log"};
    return names[kind];
}

static void find(struct scrubbing *own, enum scrub_kind kind, const char *job, uint64_t step,
                 const char *message)
{
    own->scrub->totals.damaged[kind]++;
    own->scrub->found(own->scrub->user, &(struct scrub_finding){kind, job, step, message});
}

/* Whether it could not be read for want of something; the scrub ends. Takes no ownership. */
static bool is_lack(struct scrubbing *own, status_t status)
{
    if (status_code(status) != STATUS_RESOURCE_EXHAUSTED || !status_lacks(status)) return false;
    own->lacked = status_first(own->lacked, status_copy(status));
    own->ended = true;
    return true;
}

static void pace(struct scrubbing *own, enum scrub_kind kind, uint64_t bytes)
{
    own->scrub->totals.bytes[kind] += bytes;
    if (!own->ended) own->ended = !own->scrub->read(own->scrub->user, bytes);
}

static void damaged_rows(void *user, const char *job)
{
    struct scrubbing *own = user;
    AUTO_FREE char *text = mem_printf("records of job %s in %s/store.db are damaged", job,
                                      own->scrub->options->state_dir);
    find(own, SCRUB_STORE, job, 0, text);
}

/* ---- final weights ---- */

static bool same_weights(const struct store_weights *a, const struct store_weights *b)
{
    return a->step == b->step && memcmp(a->sums, b->sums, sizeof a->sums) == 0;
}

/* NULL if there are none, or their row is damaged, which is found with the rows. */
static status_t read_weights(struct scrubbing *own, const char *job,
                             const struct store_weights *weights)
{
    AUTO_FREE char *path = coordinator_state_dict_path(own->view, job);
    struct kept_weights *kept = kept_weights_new(path, weights);
    size_t count = 0;
    status_t status = kept_weights_work(kept, own->chunk, CHUNK_BYTES, &count);
    do {
        if (status == NULL) status = kept_weights_work(kept, own->chunk, CHUNK_BYTES, &count);
        pace(own, SCRUB_WEIGHTS, count);
    } while (status == NULL && count > 0 && !own->ended);
    kept_weights_free(kept);
    return status;
}

static void scrub_weights(struct scrubbing *own, const char *job)
{
    struct store_weights weights = {0}, now = {0};
    status_t none = store_get_state_dict(own->store, job, &weights);
    bool has = none == NULL;
    status_free(none);
    if (!has) return;
    own->scrub->totals.read[SCRUB_WEIGHTS]++;
    status_t status = read_weights(own, job, &weights);
    if (status == NULL) return;
    /* A resumed job replaces them: those of the next result are read by the next run. */
    none = store_get_state_dict(own->store, job, &now);
    if (none == NULL && same_weights(&weights, &now) && !is_lack(own, status))
        find(own, SCRUB_WEIGHTS, job, 0, status_message(status));
    status_free(none);
    status_free(status);
}

/* ---- checkpoints ---- */

struct scrub_steps {
    uint64_t *steps;
    int count, capacity;
};

static status_t add_step(void *user, const Fsdpd__V1__Checkpoint *checkpoint)
{
    struct scrub_steps *list = user;
    MEM_GROW(list->steps, list->count, list->capacity);
    list->steps[list->count++] = checkpoint->step;
    return NULL;
}

/* Whether the job still has it. */
static bool is_listed(struct scrubbing *own, const char *job, uint64_t step)
{
    struct scrub_steps list = {0};
    bool listed = false;
    status_free(store_each_checkpoint(own->store, job, add_step, &list));
    for (int i = 0; i < list.count; i++) listed |= list.steps[i] == step;
    free(list.steps);
    return listed;
}

static status_t read_checkpoint(struct scrubbing *own, const job_message *job, uint64_t step)
{
    status_t none = status_new(STATUS_NOT_FOUND, "the checkpoint of step %" PRIu64 " is missing", step);
    struct checkpoint_reader *reader = checkpoint_reader_new(own->view, job, step, false, none);
    size_t count;
    status_t status = checkpoint_reader_work(reader, own->chunk, CHUNK_BYTES, &count);
    uint64_t left = status == NULL ? checkpoint_reader_found(reader)->bytes : 0;
    while (status == NULL && !own->ended && !checkpoint_reader_is_verified(reader)) {
        status = checkpoint_reader_work(reader, own->chunk, CHUNK_BYTES, &count);
        uint64_t part = left < CHECKPOINT_READER_PART ? left : CHECKPOINT_READER_PART;
        pace(own, SCRUB_CHECKPOINT, part);
        left -= part;
    }
    if (status == NULL && !own->ended) status = checkpoint_reader_check_reports(reader);
    checkpoint_reader_free(reader);
    return status;
}

/* Those of a running job may be removed at any time, before the store has that. */
static void scrub_checkpoints(struct scrubbing *own, const job_message *job)
{
    struct scrub_steps list = {0};
    status_free(store_each_checkpoint(own->store, job->id, add_step, &list));
    const int state = (int)job->state;
    bool runs = state == JOB_STARTING || state == JOB_RUNNING;
    for (int i = 0; i < list.count && !own->ended; i++) {
        status_t status = read_checkpoint(own, job, list.steps[i]);
        enum status_code code = status_code(status);
        bool elsewhere = code == STATUS_FAILED_PRECONDITION; /* on another host */
        bool gone = code == STATUS_ABORTED || (runs && code == STATUS_NOT_FOUND);
        if (!elsewhere && !gone) own->scrub->totals.read[SCRUB_CHECKPOINT]++;
        if (status != NULL && !elsewhere && !gone && !is_lack(own, status) &&
            is_listed(own, job->id, list.steps[i]))
            find(own, SCRUB_CHECKPOINT, job->id, list.steps[i], status_message(status));
        status_free(status);
    }
    free(list.steps);
}

/* ---- logs ---- */

struct scrub_lines {
    uint64_t damaged, bytes;
};

static void count_line(void *user, const struct log_line *line)
{
    struct scrub_lines *lines = user;
    lines->damaged += line->damaged;
    lines->bytes += strlen(line->text);
}

static void scrub_log(struct scrubbing *own, const job_message *job)
{
    AUTO_FREE char *directory = job_log_directory(own->view, job->id);
    struct scrub_lines lines = {0};
    struct log_query query = {.directory = directory,
                              .visit = count_line,
                              .user = &lines,
                              .ended = job_state_is_over((int)job->state)};
    status_t status = NULL;
    own->scrub->totals.read[SCRUB_LOG]++;
    do {
        uint64_t before = lines.bytes;
        query.limit = LOG_LINES;
        status = log_files_read(&query);
        pace(own, SCRUB_LOG, lines.bytes - before);
    } while (status == NULL && !query.at_end && !own->ended);
    AUTO_FREE char *text =
        status != NULL ? mem_strdup(status_message(status))
                       : mem_printf("%s has %" PRIu64 " damaged line%s: fsdpctl logs %s shows them",
                                    directory, lines.damaged, lines.damaged == 1 ? "" : "s", job->id);
    if (status != NULL || lines.damaged > 0) find(own, SCRUB_LOG, job->id, 0, text);
    status_free(status);
}

/* ---- all ---- */

struct scrub_ids {
    char **ids;
    int count, capacity;
};

static bool add_id(void *user, const char *id)
{
    struct scrub_ids *list = user;
    MEM_GROW(list->ids, list->count, list->capacity);
    list->ids[list->count++] = mem_strdup(id);
    return true;
}

static void scrub_job(struct scrubbing *own, const char *id)
{
    job_message *job = NULL;
    status_t status = store_get_job(own->store, id, &job);
    status_free(status); /* forgotten meanwhile, or found with the rows */
    if (job == NULL) return;
    scrub_weights(own, id);
    scrub_checkpoints(own, job);
    if (!own->ended) scrub_log(own, job);
    message_free(job);
}

/* The jobs are listed first: no statement keeps the store's log from being emptied. */
static status_t scrub_jobs(struct scrubbing *own)
{
    struct scrub_ids list = {0};
    status_t status = store_each_id(own->store, add_id, &list);
    for (int i = 0; i < list.count; i++) {
        if (!own->ended) scrub_job(own, list.ids[i]);
        free(list.ids[i]);
    }
    free(list.ids);
    return status;
}

status_t scrub_run(struct scrub *scrub)
{
    AUTO_FREE struct coordinator *view = mem_alloc(sizeof *view);
    AUTO_FREE uint8_t *chunk = mem_alloc(CHUNK_BYTES);
    AUTO_FREE char *path = file_path_join(scrub->options->state_dir, "store.db");
    struct scrubbing own = {.scrub = scrub, .view = view, .chunk = chunk};
    view->options = *scrub->options;
    scrub->totals = (struct scrub_totals){.read[SCRUB_STORE] = 1};
    status_t status = store_view(path, damaged_rows, &own, &own.store);
    if (status_code(status) == STATUS_DATA_LOSS) {
        find(&own, SCRUB_STORE, NULL, 0, status_message(status));
        status_free(status);
        return NULL;
    }
    TRY(status);
    pace(&own, SCRUB_STORE, (uint64_t)store_bytes(own.store));
    status = scrub_jobs(&own);
    store_close(own.store);
    status = status_first(status, own.lacked);
    if (own.ended && status == NULL) status = status_new(STATUS_CANCELLED, "the scrub was ended");
    return status;
}
