/* Following a job; see follow.h. */
#include "follow.h"

#include "base/mem.h"
#include "client.h"
#include "exit.h"
#include "page/series.h"
#include "print/json.h"
#include "progress.h"
#include "proto/message.h"
#include "report.h"

/* Minimum interval between progress lines in a pipe, by the events' own clock, so that replaying a
 * long job prints no more lines than watching it did. */
enum { PLAIN_INTERVAL_MS = 5000 };

/* The curve's size, and the smallest terminal that shows it. */
enum { CURVE_LINES = 5, CURVE_WIDTH = 90, CURVE_ROWS = 14, CURVE_COLUMNS = 40 };

struct follow {
    struct client *client;
    struct session *session;
    const char *id;
    const Fsdpd__V1__JobSpec *spec; /* may be NULL */
    enum follow_output output;
    struct live live;
    struct progress progress;
    struct series loss; /* by step */
    bool bar;
    uint64_t last_sequence;
    bool *fresh; /* set once the stream has delivered an event */
    int64_t last_plain_ms;
    Fsdpd__V1__JobState state; /* the last one printed */
    uint32_t attempt;
    bool over;
};

static void print(struct follow *follow, struct buf *text)
{
    live_clear(&follow->live);
    output_print(text);
}

/* Draws on a terminal: if it has room, the loss as a curve, figures and the bar; otherwise the bar
 * alone. */
static void draw(struct follow *follow, bool now)
{
    if (!follow->bar || (!now && !live_due(&follow->live))) return;
    struct terminal *terminal = &follow->client->terminal;
    struct buf lines[CURVE_LINES + 2] = {{0}};
    int count = 0;
    terminal_measure(terminal);
    bool roomy = terminal->rows >= CURVE_ROWS && terminal->width >= CURVE_COLUMNS;
    if (roomy && follow->loss.count > 1) {
        int width = terminal->width - 1 < CURVE_WIDTH ? terminal->width - 1 : CURVE_WIDTH;
        curve_draw(&follow->loss, width, CURVE_LINES, terminal->unicode, lines);
        count = CURVE_LINES;
        progress_figures(&follow->progress, terminal->width, terminal->colour, &lines[count]);
        if (lines[count].length > 0) count++;
    }
    progress_bar(&follow->progress, terminal->width, terminal->colour, &lines[count++]);
    live_draw_lines(&follow->live, lines, count);
    for (int i = 0; i < CURVE_LINES + 2; i++) buf_deinit(&lines[i]);
}

static void on_resize(void *user)
{
    struct follow *follow = user;
    if (!follow->live.shown) return;
    terminal_measure(&follow->client->terminal);
    live_clear(&follow->live);
    draw(follow, true);
}

static void take_state(struct follow *follow, const Fsdpd__V1__StateChange *change)
{
    bool again = change->attempt > 1 && change->attempt != follow->attempt;
    follow->over = report_is_over(change->state);
    follow->state = change->state;
    follow->attempt = change->attempt;
    AUTO(buf_deinit) struct buf text = {0};
    bool failed = follow->over && change->state != FSDPD__V1__JOB_STATE__JOB_STATE_SUCCEEDED;
    const struct terminal *terminal = &follow->client->terminal;
    report_end(follow->id, change->state, change->reason,
               failed ? terminal->colour : terminal->colour_out, &text);
    if (again) {
        text.length--; /* without the newline */
        buf_printf(&text, " (attempt %u)\n", change->attempt);
    }
    if (failed) {
        /* A failure is reported on stderr, whatever goes to stdout. */
        live_clear(&follow->live);
        fflush(stdout);
        fprintf(stderr, "fsdpctl: %s", buf_text(&text));
    } else if (follow->output == FOLLOW_TEXT) {
        print(follow, &text);
    }
}

static void take_metrics(struct follow *follow, const Fsdpd__V1__JobEvent *event)
{
    progress_take(&follow->progress, event->metrics, event->steps);
    series_add(&follow->loss, (double)event->metrics->step, event->metrics->loss);
    draw(follow, false);
    if (follow->bar || follow->output != FOLLOW_TEXT) return;
    int64_t now_ms = message_time_ms(event->time);
    if (now_ms - follow->last_plain_ms < PLAIN_INTERVAL_MS && follow->last_plain_ms != 0) return;
    follow->last_plain_ms = now_ms;
    struct buf line = {0};
    progress_plain(&follow->progress, &line);
    buf_add_char(&line, '\n');
    print(follow, &line);
}

static void take_checkpoint(const Fsdpd__V1__CheckpointEvent *event, struct buf *text)
{
    if (event->code == 0 && event->checkpoint != NULL) {
        report_checkpoint(event->checkpoint, text);
        return;
    }
    buf_add_text(text, "no checkpoint: ");
    output_clean(text, event->message, false);
    buf_add_char(text, '\n');
}

static void take_text(struct follow *follow, const Fsdpd__V1__JobEvent *event)
{
    struct buf text = {0};
    switch (event->event_case) {
    case FSDPD__V1__JOB_EVENT__EVENT_STATE: take_state(follow, event->state); break;
    case FSDPD__V1__JOB_EVENT__EVENT_METRICS: take_metrics(follow, event); break;
    case FSDPD__V1__JOB_EVENT__EVENT_EPOCH:
        if (follow->output != FOLLOW_TEXT) break;
        progress_epoch(event->epoch, &text);
        print(follow, &text);
        draw(follow, true);
        break;
    case FSDPD__V1__JOB_EVENT__EVENT_VALIDATION:
        if (follow->output != FOLLOW_TEXT) break;
        progress_validation(event->validation, event->steps, &text);
        print(follow, &text);
        draw(follow, true);
        break;
    case FSDPD__V1__JOB_EVENT__EVENT_SAMPLED:
        if (follow->output != FOLLOW_TEXT) break;
        progress_sampled(follow->spec, event->sampled, &text);
        print(follow, &text);
        draw(follow, true);
        break;
    case FSDPD__V1__JOB_EVENT__EVENT_LOG:
        if (follow->output != FOLLOW_TEXT) break;
        output_clean(&text, event->log, false);
        buf_add_char(&text, '\n');
        print(follow, &text);
        break;
    case FSDPD__V1__JOB_EVENT__EVENT_WRAP:
        if (follow->output != FOLLOW_TEXT) break;
        progress_wrap(event->wrap, &text);
        print(follow, &text);
        draw(follow, true);
        break;
    case FSDPD__V1__JOB_EVENT__EVENT_CHECKPOINT:
        if (follow->output != FOLLOW_TEXT) break;
        take_checkpoint(event->checkpoint, &text);
        print(follow, &text);
        draw(follow, true);
        break;
    default: break; /* dropped metrics, and events that only a newer daemon has */
    }
}

static status_t take_event(const ProtobufCMessage *message, void *user)
{
    struct follow *follow = user;
    const Fsdpd__V1__JobEvent *event = (const Fsdpd__V1__JobEvent *)(const void *)message;
    /* Already printed before the connection broke. */
    if (event->sequence != 0 && event->sequence <= follow->last_sequence) return NULL;
    if (event->sequence != 0) follow->last_sequence = event->sequence;
    *follow->fresh = true;
    if (follow->output == FOLLOW_JSON) {
        struct buf line = {0};
        json_add_message(&line, message, -1);
        buf_add_char(&line, '\n');
        print(follow, &line);
    }
    take_text(follow, event);
    return NULL;
}

/* The stream ended without an error, but also without the event that ends a job: ask the daemon. */
static status_t check_end(struct follow *follow)
{
    Fsdpd__V1__Job *job;
    TRY(client_get_job(follow->session, follow->id, &job));
    if (report_is_over(job->state)) {
        Fsdpd__V1__StateChange change = FSDPD__V1__STATE_CHANGE__INIT;
        change.state = job->state;
        change.reason = job->reason;
        change.attempt = job->attempt;
        take_state(follow, &change);
    }
    fsdpd__v1__job__free_unpacked(job, NULL);
    if (follow->over) return NULL;
    return status_new(STATUS_UNAVAILABLE, "the stream of events ended before the job did");
}

/* Watches from the last event received. NULL once the job is over. */
static status_t watch(void *user, bool *fresh)
{
    struct follow *follow = user;
    Fsdpd__V1__WatchJobRequest request = FSDPD__V1__WATCH_JOB_REQUEST__INIT;
    request.id = (char *)follow->id;
    request.after_sequence = follow->last_sequence;
    request.cancel_if_left = follow->output == FOLLOW_OWN;
    follow->fresh = fresh;
    status_t status =
        session_stream(follow->session, &control_watch_job, &request.base, 0, take_event, follow);
    /* The end has been printed, so nothing is missing, however the stream itself ended. */
    if (follow->over && session_signal(follow->session) == 0) {
        status_free(status);
        return NULL;
    }
    if (status == NULL) status = check_end(follow);
    if (status != NULL) live_clear(&follow->live);
    return status;
}

static void ignore_resize(void *user)
{
    (void)user;
}

static int detach(struct follow *follow, status_t status)
{
    int number = session_signal(follow->session);
    status_free(status);
    if (follow->output != FOLLOW_OWN)
        output_note("detached; %s continues: fsdpctl watch %s, or fsdpctl cancel %s", follow->id,
                    follow->id, follow->id);
    return EXIT_SIGNAL + number;
}

int follow_job(struct client *client, struct session *session, const Fsdpd__V1__Job *job,
               enum follow_output output)
{
    struct follow follow = {
        .client = client,
        .session = session,
        .id = job->id,
        .spec = job->spec,
        .output = output,
        .live = {.terminal = &client->terminal},
        .bar = client->terminal.err && output != FOLLOW_JSON,
        .attempt = 1,
        .progress = {.steps = job->steps,
                     .unicode = client->terminal.unicode,
                     .epochs = job->spec && job->spec->train ? job->spec->train->epochs : 0},
    };
    session_catch_signals(session);
    if (follow.bar) session_on_resize(session, on_resize, &follow);
    status_t status = reconnect_follow(session, client->options.timeout_ms, watch, &follow);
    live_clear(&follow.live);
    if (follow.bar) session_on_resize(session, ignore_resize, NULL);
    series_deinit(&follow.loss);
    if (session_signal(session) != 0 && !follow.over) return detach(&follow, status);
    if (status != NULL && !follow.over) return output_error(status);
    status_free(status);
    if (follow.state == FSDPD__V1__JOB_STATE__JOB_STATE_SUCCEEDED && output == FOLLOW_TEXT &&
        (job->spec == NULL || job->spec->save_model))
        output_note("next: fsdpctl pull %s -o %s.safetensors", job->id, job->id);
    return exit_from_state(follow.state);
}

/* ---- watch ---- */

int verb_watch(struct client *client)
{
    Fsdpd__V1__Job *job;
    struct session *session;
    status_t status = session_new(client->options.address, client->options.timeout_ms, &session);
    if (status != NULL) return output_usage_error(status);
    status = client_get_job(session, client->options.arguments[0], &job);
    int code;
    if (status != NULL) {
        code = output_error(status);
    } else {
        enum follow_output output =
            client->options.format == FORMAT_JSON ? FOLLOW_JSON : FOLLOW_TEXT;
        code = follow_job(client, session, job, output);
        fsdpd__v1__job__free_unpacked(job, NULL);
    }
    session_free(session);
    return code;
}
