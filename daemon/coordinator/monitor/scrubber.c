/* See monitor.h. The thread only reads; the loop takes its findings at its next tick. */
#include "coordinator/monitor/monitor.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/monitor/scrub.h"

enum { DAY_S = 24 * 60 * 60, RECORD_MAX = 16 << 20 };

struct scrub_note {
    char *job, *what, *message;
};

struct scrubber {
    struct coordinator *c;
    char *path;        /* of the record */
    int64_t ended;     /* Unix time in seconds */
    struct buf record; /* a line for each finding of the last one that ended */
    uint64_t damaged;
    bool runs; /* the thread */
    pthread_t thread;
    struct scrub scrub;
    struct coordinator_options options; /* as they were when it began: a reload may change them */
    int64_t began_ns;
    uint64_t bytes, rate;
    struct buf next;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    bool closing, done;
    status_t status;
    struct scrub_note *notes;
    int note_count, note_capacity;
};

/* ---- its thread ---- */

static bool on_read(void *user, uint64_t bytes)
{
    struct scrubber *own = user;
    own->bytes += bytes;
    int64_t until = own->began_ns + (int64_t)((double)own->bytes / (double)own->rate * 1e9);
    pthread_mutex_lock(&own->lock);
    while (!own->closing && condition_wait(&own->changed, &own->lock, until)) {}
    bool continues = !own->closing;
    pthread_mutex_unlock(&own->lock);
    return continues;
}

static void on_found(void *user, const struct scrub_finding *finding)
{
    struct scrubber *own = user;
    char *what = finding->kind == SCRUB_CHECKPOINT
                     ? mem_printf("the checkpoint of step %" PRIu64, finding->step)
                     : mem_printf("the %s", scrub_kind_name(finding->kind));
    pthread_mutex_lock(&own->lock);
    MEM_GROW(own->notes, own->note_count, own->note_capacity);
    own->notes[own->note_count++] =
        (struct scrub_note){finding->job != NULL ? mem_strdup(finding->job) : NULL, what,
                            mem_strdup(finding->message)};
    pthread_mutex_unlock(&own->lock);
}

static void *scrub_thread(void *argument)
{
    pthread_setname_np(pthread_self(), "scrub");
    struct scrubber *own = argument;
    status_t status = scrub_run(&own->scrub);
    pthread_mutex_lock(&own->lock);
    own->status = status;
    own->done = true;
    pthread_mutex_unlock(&own->lock);
    return NULL;
}

/* ---- the loop ---- */

/* The beginning of the record, one finding per line. */
static void count_record(struct scrubber *own)
{
    own->damaged = 0;
    for (const char *at = buf_text(&own->record); (at = strchr(at, '\n')) != NULL; at++)
        own->damaged++;
}

void scrubber_open(struct coordinator *c)
{
    struct scrubber *own = c->scrubber = mem_alloc(sizeof *own);
    own->c = c;
    own->path = file_path_join(c->options.state_dir, "scrub");
    pthread_mutex_init(&own->lock, NULL);
    condition_init(&own->changed);
    struct stat info;
    status_t status = stat(own->path, &info) == 0 ? file_read(own->path, RECORD_MAX, &own->record)
                                                  : status_new(STATUS_NOT_FOUND, "none");
    if (status == NULL) own->ended = info.st_mtim.tv_sec;
    count_record(own);
    status_free(status);
}

static void begin(struct scrubber *own)
{
    struct coordinator *c = own->c;
    own->options = c->options;
    own->scrub =
        (struct scrub){.options = &own->options, .read = on_read, .found = on_found, .user = own};
    own->rate = (uint64_t)c->options.limits.scrub_rate * 1000000;
    own->began_ns = clock_monotonic_ns();
    own->bytes = 0;
    own->done = false;
    buf_clear(&own->next);
    int error = pthread_create(&own->thread, NULL, scrub_thread, own);
    if (error == 0) own->runs = true;
    log_event(error == 0 ? LOG_INFO : LOG_WARNING, error == 0 ? "scrub" : "scrub_not_begun",
              "megabytes_per_second=%d", c->options.limits.scrub_rate);
}

/* Notes what was found, wherever users may look. */
static void take_note(struct scrubber *own, struct scrub_note *note)
{
    const char *job = note->job != NULL ? note->job : "-";
    AUTO_FREE char *text = mem_printf("%s of %s: %s", note->what, job, note->message);
    AUTO_FREE char *quoted = log_quote(note->message), *what = log_quote(note->what);
    log_event(LOG_ERROR, "damage_found", "job=%s what=%s message=%s", job, what, quoted);
    if (note->job != NULL) {
        AUTO_FREE char *line = mem_printf("fsdpd found damage in %s: %s", note->what, note->message);
        job_log_note(own->c, note->job, 0, "ERROR", line);
    }
    for (char *at = text; (at = strchr(at, '\n')) != NULL;) *at = ' ';
    buf_printf(&own->next, "%s\n", text);
    free(note->job);
    free(note->what);
    free(note->message);
}

static void end(struct scrubber *own, status_t status)
{
    pthread_join(own->thread, NULL);
    own->runs = false;
    if (status != NULL) {
        log_status(LOG_WARNING, "scrub_failed", status);
        own->ended = clock_wall_ms() / 1000; /* it is tried again when the next one is due */
        return;
    }
    struct buf last = own->record;
    own->record = own->next;
    own->next = last;
    count_record(own);
    own->ended = clock_wall_ms() / 1000;
    log_event(own->damaged > 0 ? LOG_ERROR : LOG_INFO, "scrubbed",
              "seconds=%.0f bytes=%" PRIu64 " damaged=%" PRIu64,
              (double)(clock_monotonic_ns() - own->began_ns) * 1e-9, own->bytes, own->damaged);
    log_status(LOG_WARNING, "scrub_not_recorded",
               file_write_atomic(own->path, own->record.data, own->record.length, 0640));
}

void scrubber_tick(struct coordinator *c)
{
    struct scrubber *own = c->scrubber;
    if (own == NULL) return;
    int64_t now = clock_wall_ms() / 1000, period = (int64_t)c->options.limits.scrub_days * DAY_S;
    /* After a jump of the clock to the past, too. */
    bool due = period > 0 && (now - own->ended >= period || now < own->ended);
    if (!own->runs && due && !c->draining && !c->store_gone) begin(own);
    if (!own->runs) return;
    pthread_mutex_lock(&own->lock);
    struct scrub_note *notes = own->notes;
    int count = own->note_count;
    own->notes = NULL;
    own->note_count = own->note_capacity = 0;
    bool done = own->done;
    status_t status = own->status;
    own->status = NULL;
    own->closing = period == 0 || c->draining;
    pthread_cond_broadcast(&own->changed);
    pthread_mutex_unlock(&own->lock);
    for (int i = 0; i < count; i++) take_note(own, &notes[i]);
    free(notes);
    if (done) end(own, status);
}

void scrubber_close(struct coordinator *c)
{
    struct scrubber *own = c->scrubber;
    if (own == NULL) return;
    pthread_mutex_lock(&own->lock);
    own->closing = true;
    pthread_cond_broadcast(&own->changed);
    pthread_mutex_unlock(&own->lock);
    if (own->runs) pthread_join(own->thread, NULL);
    status_free(own->status);
    for (int i = 0; i < own->note_count; i++) {
        free(own->notes[i].job);
        free(own->notes[i].what);
        free(own->notes[i].message);
    }
    free(own->notes);
    buf_deinit(&own->record);
    buf_deinit(&own->next);
    pthread_cond_destroy(&own->changed);
    pthread_mutex_destroy(&own->lock);
    free(own->path);
    free(own);
    c->scrubber = NULL;
}

void scrubber_describe(const struct coordinator *c, struct buf *out)
{
    const struct scrubber *own = c->scrubber;
    if (own == NULL || own->damaged == 0) return;
    const char *first = buf_text((struct buf *)&own->record);
    buf_printf(out, "damage was found (fsdpd scrub lists it): %.*s", (int)strcspn(first, "\n"), first);
    if (own->damaged > 1) buf_printf(out, "; and %" PRIu64 " more", own->damaged - 1);
}

uint64_t scrubber_damaged(const struct coordinator *c)
{
    return c->scrubber != NULL ? c->scrubber->damaged : 0;
}

int64_t scrubber_ended(const struct coordinator *c)
{
    return c->scrubber != NULL ? c->scrubber->ended : 0;
}
