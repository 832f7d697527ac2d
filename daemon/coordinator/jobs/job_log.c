/* Writing the logs of jobs; see jobs.h. */
#include "coordinator/jobs/jobs.h"

#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/jobs/log_files.h"
#include "proto/message.h"

enum {
    REPORT_LINES = 1024, /* per message of a worker, at most */
    COMPLAIN_MS = 60000, /* between two warnings that logs cannot be written */
};

char *job_log_directory(const struct coordinator *c, const char *job)
{
    return coordinator_job_path(c, job, "log");
}

static void append(struct coordinator *c, const char *job, const struct log_line *lines,
                   size_t count)
{
    if (count == 0) return;
    AUTO_FREE char *directory = job_log_directory(c, job);
    status_t status =
        log_files_append(directory, (uint64_t)c->options.limits.log_bytes, lines, count);
    if (status == NULL) {
        c->clients->logged(c, job);
        return;
    }
    /* A log that cannot be written must not stop training. */
    int64_t now = coordinator_now();
    if (c->log_complaint_at != 0 && now - c->log_complaint_at < COMPLAIN_MS) {
        status_free(status);
        return;
    }
    c->log_complaint_at = now;
    log_status(LOG_WARNING, "log_not_kept", status_wrap(status, "job %s", job));
}

static const char *known_level(Fsdpd__V1__LogLevel level)
{
    const char *name = message_enum_name(&fsdpd__v1__log_level__descriptor, (int)level);
    bool known = name != NULL && level != FSDPD__V1__LOG_LEVEL__LOG_LEVEL_UNSPECIFIED;
    return known ? name : "INFO";
}

/* Whether the job is still kept: late lines of a forgotten job would recreate its directory. */
static bool is_kept(const struct coordinator *c, const char *job)
{
    AUTO_FREE char *directory = job_log_directory(c, job);
    return access(directory, F_OK) == 0;
}

void job_log_report(struct coordinator *c, const char *job, bool live, uint32_t attempt, int rank,
                    const Fsdpd__V1__LogReport *report)
{
    if (!live && !is_kept(c, job)) return;
    size_t most = report->n_lines < REPORT_LINES ? report->n_lines : REPORT_LINES;
    AUTO_FREE struct log_line *lines = mem_alloc_array(most + 1, sizeof *lines);
    size_t count = 0;
    AUTO_FREE char *dropped = NULL;
    uint64_t left_out = report->dropped + (report->n_lines - most);
    if (left_out > 0) {
        dropped = mem_printf("log_lines_dropped count=%llu", (unsigned long long)left_out);
        lines[count++] = (struct log_line){.time_ms = clock_wall_ms(),
                                           .attempt = attempt,
                                           .rank = rank,
                                           .level = "WARNING",
                                           .text = dropped};
    }
    for (size_t i = 0; i < most; i++)
        lines[count++] = (struct log_line){.time_ms = message_time_ms(report->lines[i]->time),
                                           .attempt = attempt,
                                           .rank = rank,
                                           .level = known_level(report->lines[i]->level),
                                           .text = report->lines[i]->text};
    append(c, job, lines, count);
}

void job_log_note(struct coordinator *c, const char *job, uint32_t attempt, const char *level,
                  const char *text)
{
    const struct log_line line = {
        .time_ms = clock_wall_ms(), .attempt = attempt, .rank = -1, .level = level, .text = text};
    append(c, job, &line, 1);
}
