/* Lines to the coordinator; see logs.h. */
#include "worker/logs.h"

#include <stdlib.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "proto/message.h"
#include "spec/spec.h"

enum { LINE_MAX_BYTES = 4096 };
static const int64_t PROGRESS_NS = 60 * INT64_C(1000000000);
static const int64_t LINE_NS = INT64_C(1000000000) / LOG_RATE_PER_SECOND;

/* Guarded by the tap's lock, as all of it is used by the tap alone once it is set. */
static struct {
    struct link *link;
    char *job;
    uint32_t attempt;
    struct log_rate rate;
} sender;

static int64_t progress_at_ns; /* training thread */

bool log_rate_take(struct log_rate *rate, int64_t now_ns)
{
    int64_t full = now_ns - LOG_RATE_BURST * LINE_NS;
    if (rate->filled_ns < full) rate->filled_ns = full;
    if (rate->filled_ns + LINE_NS > now_ns) {
        rate->dropped++;
        return false;
    }
    rate->filled_ns += LINE_NS;
    return true;
}

/* A string of a message must be UTF-8, which a path in a line may not be. */
static char *clean_text(const char *event, const char *fields)
{
    struct buf text = {0};
    buf_printf(&text, "%s%s", event, fields[0] != '\0' ? " " : "");
    for (size_t at = 0; fields[at] != '\0' && at < LINE_MAX_BYTES;) {
        uint32_t character;
        int length = utf8_decode(fields + at, &character);
        if (length == 0) buf_add_char(&text, '?');
        else buf_add(&text, fields + at, (size_t)length);
        at += length > 0 ? (size_t)length : 1;
    }
    return buf_take(&text);
}

static Fsdpd__V1__LogLine *line_new(enum log_level level, const char *event, const char *fields)
{
    Fsdpd__V1__LogLine *line = MESSAGE_NEW(line, fsdpd__v1__log_line__init);
    message_set_time(&line->time, clock_wall_ms());
    int known = spec_word_value(&fsdpd__v1__log_level__descriptor, log_level_name(level));
    line->level = (Fsdpd__V1__LogLevel)known;
    line->text = clean_text(event, fields);
    return line;
}

static void send_line(void *user, enum log_level level, const char *event, const char *fields)
{
    (void)user;
    if (!log_rate_take(&sender.rate, clock_monotonic_ns())) return;
    Fsdpd__V1__LogReport *report = MESSAGE_NEW(report, fsdpd__v1__log_report__init);
    report->dropped = sender.rate.dropped;
    sender.rate.dropped = 0;
    report->lines = mem_alloc_array(1, sizeof *report->lines);
    report->lines[report->n_lines++] = line_new(level, event, fields);
    Fsdpd__V1__AttemptEvent *message = MESSAGE_NEW(message, fsdpd__v1__attempt_event__init);
    message->event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_LOGS;
    message->logs = report;
    link_post_event(sender.link, sender.job, sender.attempt, message);
}

void logs_begin(struct link *link, const char *job, uint32_t attempt)
{
    logs_end();
    sender.link = link;
    sender.job = mem_strdup(job);
    sender.attempt = attempt;
    sender.rate = (struct log_rate){0};
    progress_at_ns = clock_monotonic_ns();
    log_set_tap(send_line, NULL);
}

void logs_end(void)
{
    log_set_tap(NULL, NULL);
    free(sender.job);
    sender.job = NULL;
}

void logs_progress(const struct train_metrics *metrics)
{
    int64_t now = clock_monotonic_ns();
    if (now - progress_at_ns < PROGRESS_NS) return;
    progress_at_ns = now;
    log_event(LOG_INFO, "progress",
              "step=%llu epoch=%.3f loss=%.6g learning_rate=%.4g samples_per_second=%.1f "
              "step_seconds=%.4g skipped_steps=%llu",
              (unsigned long long)metrics->step, metrics->epoch, metrics->loss,
              metrics->learning_rate, metrics->samples_per_second, metrics->step_seconds,
              (unsigned long long)metrics->skipped_steps);
}

void logs_epoch(const struct train_epoch *epoch)
{
    if (epoch->evaluated)
        log_event(LOG_INFO, "epoch_ended",
                  "epoch=%u train_loss=%.6g test_loss=%.6g accuracy=%.4f seconds=%.3f",
                  (unsigned)epoch->epoch, epoch->train_loss, epoch->test_loss, epoch->accuracy,
                  epoch->seconds);
    else
        log_event(LOG_INFO, "epoch_ended", "epoch=%u train_loss=%.6g seconds=%.3f",
                  (unsigned)epoch->epoch, epoch->train_loss, epoch->seconds);
}
