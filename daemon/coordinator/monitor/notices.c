/* Notices; see notices.h. A webhook is a command too: curl, with its request on standard input. */
#include "coordinator/monitor/notices.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "process/child.h"
#include "proto/message.h"

enum {
    QUEUE_MAX = 256, /* notices */
    RUNNING_MAX = 4,
    TRIES_MAX = 5,
    PAUSE_FACTOR = 4,
    OUTPUT_MAX = 1 << 20, /* bytes; only the beginning of a webhook's is used */
    SOON_MS = 1000,       /* the slow tick would be late */
    SHOWN_MAX = 200,      /* of a child's output in a message */
};

struct notice {
    struct coordinator *c;
    char *job, *target, *id, *payload;
    int tries;
    int64_t due, late_at; /* monotonic ms: the next try; the end of this one */
    bool late, webhook;   /* of this try */
    struct child_process *child;
};

struct notices {
    struct notice_targets targets;
    struct notice **items; /* oldest first */
    int count, capacity, running;
    struct notice_counts counts;
    bool closing;
};

static struct notices *notices_of(struct coordinator *c)
{
    if (c->notices == NULL) c->notices = mem_alloc(sizeof *c->notices);
    return c->notices;
}

void notices_set(struct coordinator *c, struct notice_targets *targets)
{
    struct notices *notices = notices_of(c);
    notice_targets_deinit(&notices->targets);
    notices->targets = *targets;
    *targets = (struct notice_targets){0};
}

status_t notices_check(const struct coordinator *c, const job_spec *spec)
{
    static const struct notice_targets none;
    const struct notice_targets *targets = c->notices != NULL ? &c->notices->targets : &none;
    const char *name = spec->notify != NULL ? spec->notify->to : "";
    if (name[0] == '\0' || notice_targets_find(targets, name) != NULL) return NULL;
    AUTO(buf_deinit) struct buf names = {0};
    for (int i = 0; i < targets->count; i++)
        buf_printf(&names, "%s%s", i == 0 ? "" : ", ", targets->items[i].name);
    return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                  "notify.to: expected a name of notify in fsdpd.yaml%s%s, found "
                                  "'%s'",
                                  targets->count > 0 ? ": " : ", which has none", buf_text(&names),
                                  name),
                       (struct status_details){.field = "notify.to"});
}

/* ---- adding ---- */

/* Standard Webhooks' envelope; commands get the same. */
static char *make_payload(const job_message *message, const char *what)
{
    char now[32];
    clock_format_wall(clock_wall_ms(), now);
    AUTO_FREE char *type = mem_printf("job.%s", what);
    json_t *payload =
        json_pack("{s:s, s:s, s:{s:s, s:s, s:s, s:s, s:{s:s, s:s}, s:i, s:I, s:I}}", "type", type,
                  "timestamp", now, "data", "job", message->id, "name", message->name, "owner",
                  message->owner, "state", job_state_name(message->state), "reason", "code",
                  message->reason->code, "message", message->reason->message, "attempt",
                  (int)message->attempt, "step", (json_int_t)message->step, "steps",
                  (json_int_t)message->steps);
    char *text = payload != NULL ? json_dumps(payload, JSON_COMPACT) : NULL;
    json_decref(payload);
    return text;
}

static void notice_free(struct notice *notice)
{
    free(notice->job);
    free(notice->target);
    free(notice->id);
    free(notice->payload);
    free(notice);
}

static bool is_chosen(const Fsdpd__V1__NotifySpec *spec, const char *what)
{
    if (spec == NULL || spec->to[0] == '\0') return false;
    if (spec->n_on == 0) return strcmp(what, NOTICE_END) == 0 || strcmp(what, NOTICE_FAILURE) == 0;
    for (size_t i = 0; i < spec->n_on; i++)
        if (strcmp(spec->on[i], what) == 0) return true;
    return false;
}

void notices_add(struct job *job, const char *what)
{
    struct coordinator *c = job->c;
    struct notices *notices = notices_of(c);
    const job_message *message = job->message;
    if (!is_chosen(message->spec->notify, what)) return;
    char *payload = make_payload(message, what);
    if (payload == NULL || notices->count == QUEUE_MAX || notices->closing) {
        free(payload);
        notices->counts.dropped++;
        log_event(LOG_WARNING, "notice_dropped", "job=%s event=%s queued=%d", message->id, what,
                  notices->count);
        return;
    }
    struct notice *notice = mem_alloc(sizeof *notice);
    *notice = (struct notice){.c = c,
                              .job = mem_strdup(message->id),
                              .target = mem_strdup(message->spec->notify->to),
                              .id = mem_printf("msg_%s-%" PRIu64, message->id, job->sequence),
                              .payload = payload};
    MEM_GROW(notices->items, notices->count, notices->capacity);
    notices->items[notices->count++] = notice;
    coordinator_tick_soon(c);
}

void notices_event(struct job *job, const job_event *event)
{
    if (event->event_case != FSDPD__V1__JOB_EVENT__EVENT_STATE || event->state->reason == NULL)
        return;
    int state = (int)event->state->state;
    const char *code = event->state->reason->code;
    if (strncmp(code, "NOTICE_", strlen("NOTICE_")) == 0) return; /* of our own */
    if (job_state_is_over(state)) {
        bool failure = state == JOB_FAILED && is_chosen(job->message->spec->notify, NOTICE_FAILURE);
        notices_add(job, failure ? NOTICE_FAILURE : NOTICE_END);
    } else if (strcmp(code, "STALLED") == 0) {
        notices_add(job, NOTICE_STALL);
    } else if (strcmp(code, "PREEMPTED") == 0 && state == JOB_QUEUED) {
        notices_add(job, NOTICE_PREEMPTION);
    }
}

/* ---- trying ---- */

static void remove_notice(struct notice *notice)
{
    struct notices *notices = notice->c->notices;
    for (int i = 0; i < notices->count; i++)
        if (notices->items[i] == notice) {
            LIST_REMOVE(notices->items, notices->count, i);
            break;
        }
    notice_free(notice);
}

static void succeed(struct notice *notice)
{
    notice->c->notices->counts.sent++;
    AUTO_FREE char *text = mem_printf("%s has notice %s, after %d %s", notice->target, notice->id,
                                      notice->tries, notice->tries == 1 ? "try" : "tries");
    job_note_later(notice->c, notice->job, "NOTICE_SENT", text);
    remove_notice(notice);
}

/* Takes `why`. */
static void fail(struct notice *notice, status_t why, bool again)
{
    struct coordinator *c = notice->c;
    int64_t pause = c->options.limits.notice_retry_ms;
    for (int i = 1; i < notice->tries; i++) pause *= PAUSE_FACTOR;
    again = again && notice->tries < TRIES_MAX;
    AUTO_FREE char *text =
        again ? mem_printf("notice %s: try %d of %d: %s; the next in %.3g s", notice->id,
                           notice->tries, TRIES_MAX, status_message(why), (double)pause / 1000)
              : mem_printf("notice %s: try %d of %d: %s; given up", notice->id, notice->tries,
                           TRIES_MAX, status_message(why));
    job_note_later(c, notice->job, again ? "NOTICE_RETRIES" : "NOTICE_FAILED", text);
    status_free(why);
    notice->due = coordinator_now() + pause;
    ++*(again ? &c->notices->counts.retried : &c->notices->counts.failed);
    if (!again) remove_notice(notice);
}

/* The status of a webhook from curl's output, "<HTTP status> <error>"; *again: whether another try
 * may succeed. */
static status_t read_answer(const char *output, bool *again)
{
    int code = atoi(output);
    *again = code < 300 || code >= 500 || code == 408 || code == 429;
    if (code >= 200 && code < 300) return NULL;
    if (code != 0) return status_new(STATUS_UNAVAILABLE, "the server answered %d", code);
    const char *error = strchr(output, ' ');
    return status_new(STATUS_UNAVAILABLE, "%.*s", SHOWN_MAX,
                      error != NULL && error[1] != '\0' ? error + 1 : "curl cannot connect");
}

static void on_done(void *user, status_t status, const struct buf *output)
{
    struct notice *notice = user;
    bool again = true;
    notice->child = NULL;
    notice->c->notices->running--;
    if (notice->late) {
        status_free(status);
        status = status_new(STATUS_DEADLINE_EXCEEDED, "it did not end within %g s",
                            notice->c->options.limits.notice_ms / 1000.0);
    } else if (notice->webhook && output->length > 0) {
        status_free(status); /* curl's own error says more */
        status = read_answer(buf_text(output), &again);
    }
    if (status == NULL) succeed(notice);
    else fail(notice, status, again);
}

static void on_closed(void *user)
{
    coordinator_disk_done(user);
}

static status_t start(struct notice *notice, const struct notice_target *target)
{
    /* Errors belong into the answer, not into fsdpd's log; -q reads no other configuration. */
    static const char *const curl[] = {"curl",      "-q",          "--config",
                                       "-",         "--silent",    "--output",
                                       "/dev/null", "--write-out", "%{http_code} %{errormsg}",
                                       NULL};
    struct coordinator *c = notice->c;
    AUTO(buf_deinit) struct buf request = {0};
    notice->webhook = target->command == NULL;
    if (notice->webhook)
        notice_request(target, notice->id, clock_wall_ms() / 1000, notice->payload,
                       c->options.limits.notice_ms, &request);
    else buf_add_text(&request, notice->payload);
    const char *const *arguments = notice->webhook ? curl : (const char *const *)target->command;
    const struct child_options options = {.what = arguments[0],
                                          .program = arguments[0],
                                          .arguments = arguments,
                                          .input = buf_text(&request),
                                          .input_size = request.length,
                                          .output_max = OUTPUT_MAX};
    notice->late = false;
    notice->late_at = coordinator_now() + c->options.limits.notice_ms;
    c->disk_requests++; /* closing waits for it, whether it starts or not */
    return child_start(c->loop, &options, on_done, notice, on_closed, c, &notice->child);
}

static void try_once(struct notice *notice)
{
    struct notices *notices = notice->c->notices;
    const struct notice_target *target = notice_targets_find(&notices->targets, notice->target);
    notice->tries++;
    if (target == NULL) {
        fail(notice,
             status_new(STATUS_NOT_FOUND, "notify in fsdpd.yaml has no %s any more",
                        notice->target),
             false);
        return;
    }
    status_t status = start(notice, target);
    if (status == NULL) notices->running++;
    else fail(notice, status, true);
}

void notices_tick(struct coordinator *c)
{
    struct notices *notices = c->notices;
    int64_t now = coordinator_now();
    if (notices == NULL || notices->closing) return;
    for (int i = notices->count - 1; i >= 0; i--) {
        struct notice *notice = notices->items[i];
        if (notice->child == NULL || notice->late || now < notice->late_at) continue;
        notice->late = true;
        child_kill(notice->child);
    }
    /* A try that fails at once may remove its notice. */
    for (int i = 0; i < notices->count && notices->running < RUNNING_MAX;) {
        struct notice *notice = notices->items[i];
        if (notice->child == NULL && notice->due <= now) try_once(notice);
        if (i < notices->count && notices->items[i] == notice) i++;
    }
}

bool notices_are_waiting(const struct coordinator *c)
{
    const struct notices *notices = c->notices;
    for (int i = 0; notices != NULL && i < notices->count; i++)
        if (notices->items[i]->child != NULL ||
            notices->items[i]->due <= coordinator_now() + SOON_MS)
            return true;
    return false;
}

struct notice_counts notices_count(const struct coordinator *c)
{
    struct notice_counts counts =
        c->notices != NULL ? c->notices->counts : (struct notice_counts){0};
    counts.queued = c->notices != NULL ? c->notices->count : 0;
    return counts;
}

void notices_close(struct coordinator *c)
{
    struct notices *notices = c->notices;
    if (notices == NULL || notices->closing) return;
    notices->closing = true;
    if (notices->count > 0) log_event(LOG_WARNING, "notices_lost", "count=%d", notices->count);
    for (int i = 0; i < notices->count; i++) {
        if (notices->items[i]->child != NULL) child_cancel(notices->items[i]->child);
        notice_free(notices->items[i]);
    }
    notices->count = 0;
}

void notices_free(struct coordinator *c)
{
    if (c->notices == NULL) return;
    notices_close(c);
    notice_targets_deinit(&c->notices->targets);
    free(c->notices->items);
    free(c->notices);
    c->notices = NULL;
}
