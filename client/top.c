/*
 * top: shows all jobs and workers, and refreshes them. On a terminal it uses the alternate screen
 * and restores the normal one on every exit: q, a signal, a failure, and while the process is
 * stopped.
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "client.h"
#include "exit.h"
#include "job_table.h"
#include "overview.h"
#include "print/json.h"
#include "progress.h"
#include "proto/message.h"

enum { CALL_MS = 5000, SLICE_MS = 100, JOBS_MAX = 500 };
static const double DEFAULT_SECONDS = 2;

static status_t set_interval(struct verb_options *options, const char *value)
{
    if (!text_parse_f64(value, &options->interval_seconds) || options->interval_seconds < 0.1 ||
        options->interval_seconds > 86400)
        return status_new(STATUS_INVALID_ARGUMENT, "expected seconds from 0.1 to 86400, found '%s'",
                          value);
    return NULL;
}

static status_t set_rounds(struct verb_options *options, const char *value)
{
    return option_number(value, 1, UINT32_MAX, &options->rounds);
}

const struct verb_option top_options[] = {
    {"interval", 0, "SECONDS", "between two updates (default 2)", set_interval},
    {"rounds", 0, "N", "end after N updates", set_rounds},
    {0},
};

static void summary(const struct overview *look, struct buf *out)
{
    size_t all = look->workers->n_workers;
    uint32_t left_out = look->started->left_out + look->queued->left_out;
    buf_printf(out, "%zu worker%s, %zu busy", all, all == 1 ? "" : "s",
               overview_busy_workers(look));
    if (left_out > 0)
        buf_printf(out, ", %u older job%s not shown", left_out, left_out == 1 ? "" : "s");
    for (int i = 1; i <= FSDPD__V1__JOB_STATE__JOB_STATE_CANCELLED; i++) {
        Fsdpd__V1__JobState state = (Fsdpd__V1__JobState)i;
        uint64_t count = report_is_over(state) ? 0 : overview_count(look, state);
        if (count > 0) buf_printf(out, ", %llu %s", (unsigned long long)count, report_state(state));
    }
}

static struct progress progress_of(const Fsdpd__V1__Job *job)
{
    struct progress progress = {0};
    if (job->metrics != NULL) progress_take(&progress, job->metrics, job->steps);
    progress.steps = job->steps;
    if (job->step > progress.step) progress.step = job->step;
    return progress;
}

/* ---- in a pipe ---- */

static void plain_round(const struct overview *look, struct buf *out)
{
    char when[32];
    clock_format_wall(clock_wall_ms(), when);
    buf_printf(out, "%s ", when);
    summary(look, out);
    buf_add_char(out, '\n');
    for (size_t i = 0; i < look->job_count; i++) {
        const Fsdpd__V1__Job *job = look->jobs[i];
        buf_printf(out, "%s ", when);
        output_clean(out, job->id, false);
        buf_printf(out, " %s ", report_state(job->state));
        bool array = job->spec != NULL && job->spec->array != NULL; /* its steps are jobs */
        if ((job->step > 0 && !array) || job->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING) {
            struct progress progress = progress_of(job);
            progress_plain(&progress, out);
        } else if (job->reason != NULL) {
            output_clean(out, job->reason->message, false);
        }
        buf_add_char(out, '\n');
    }
}

static void json_round(const struct overview *look, struct buf *out)
{
    buf_printf(out, "{\"time_ms\": %lld, \"workers\": ", (long long)clock_wall_ms());
    json_add_messages(out, look->workers->workers, look->workers->n_workers, -1);
    buf_add_text(out, ", \"jobs\": ");
    json_add_messages(out, look->jobs, look->job_count, -1);
    buf_add_text(out, "}\n");
}

/* ---- on a terminal ---- */

static const char enter_screen[] = "\033[?1049h\033[?25l\033[H\033[2J";
static const char leave_screen[] = "\033[?25h\033[?1049l";
static struct termios keys_before; /* no lock: used by one thread and its signal handler */
static volatile sig_atomic_t keys_changed, screen_entered, screen_lost;
static pthread_t main_thread;

static void write_all(const char *text, size_t length)
{
    ssize_t written = write(STDOUT_FILENO, text, length);
    (void)written; /* no terminal left to report an error to */
}

/* Reads keys one by one and without echo, if this process is in the terminal's foreground group. */
static void take_keys(void)
{
    struct termios keys;
    if (!isatty(STDIN_FILENO) || tcgetpgrp(STDIN_FILENO) != getpgrp()) return;
    if (tcgetattr(STDIN_FILENO, &keys_before) != 0) return;
    keys = keys_before;
    keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    keys_changed = tcsetattr(STDIN_FILENO, TCSANOW, &keys) == 0;
}

static void enter(void)
{
    take_keys();
    write_all(enter_screen, sizeof enter_screen - 1);
    screen_entered = 1;
}

/* Async-signal-safe. */
static void leave(void)
{
    if (keys_changed) tcsetattr(STDIN_FILENO, TCSANOW, &keys_before);
    keys_changed = 0;
    if (screen_entered) write_all(leave_screen, sizeof leave_screen - 1);
    screen_entered = 0;
}

/* Ctrl-Z: restores the shell's screen while the process is stopped; the main loop enters ours again
 * afterwards. The kernel may deliver the signal to a thread of gRPC, while the main thread would
 * continue to draw on the shell's screen; therefore the handler forwards it to the main thread. */
static void on_stop(int number)
{
    if (!pthread_equal(pthread_self(), main_thread)) {
        pthread_kill(main_thread, number);
        return;
    }
    leave();
    raise(SIGSTOP);
    screen_lost = 1;
}

static void screen_text(const struct client *client, const char *address,
                        const struct overview *look, const char *trouble, struct buf *out)
{
    struct view all = client_view(client), *view = &all;
    all.width = client->terminal.width - 1; /* a full line would wrap on some terminals */
    char when[32], age[32];
    buf_printf(out, "fsdpd %s  %s", address, clock_format_wall(clock_wall_ms(), when));
    if (look->version != NULL)
        buf_printf(out, "  up for %s",
                   output_age(message_time_ms(look->version->start_time), clock_wall_ms(), age));
    buf_add_char(out, '\n');
    if (trouble != NULL) {
        output_clean(out, trouble, false);
        buf_add_char(out, '\n');
    }
    if (look->jobs == NULL) return;
    summary(look, out);
    buf_add_text(out, "\n\n");
    if (look->job_count > 0) {
        struct job_table table = {.view = *view, .bars = true, .unicode = client->terminal.unicode};
        job_table_print(&table, look->jobs, look->job_count, out);
        buf_add_char(out, '\n');
    }
    if (look->workers->n_workers > 0)
        report_workers(look->workers->workers, look->workers->n_workers, view, out);
}

/* The length in bytes of at most `width` columns of a line; colours take none. */
static size_t cut(const char *line, size_t length, int width)
{
    size_t end = 0;
    for (int columns = 0; end < length; end++) {
        if (line[end] == '\033') end += strcspn(line + end, "m");
        else if (((unsigned char)line[end] & 0xc0) != 0x80 && columns++ == width) break;
    }
    return end < length ? end : length;
}

/* Draws the lines that fit, each cleared to its end; the last row states how many more there
 * are. */
static void draw(struct client *client, const struct buf *text)
{
    terminal_measure(&client->terminal);
    int rows = client->terminal.rows, width = client->terminal.width - 1, lines = 0, line = 0;
    AUTO(buf_deinit) struct buf out = {0};
    for (size_t i = 0; i < text->length; i++) lines += text->data[i] == '\n';
    buf_add_text(&out, "\033[H");
    for (const char *at = buf_text(text); *at != '\0' && line < rows; line++) {
        size_t length = strcspn(at, "\n");
        if (line > 0) buf_add_text(&out, "\r\n");
        if (line == rows - 1 && lines > rows) {
            buf_printf(&out, "... %d more lines", lines - rows + 1);
        } else {
            bool title = line == 0 && client->terminal.colour;
            if (title) buf_add_text(&out, "\033[1m");
            buf_add(&out, at, cut(at, length, width));
            if (client->terminal.colour) buf_add_text(&out, "\033[0m");
        }
        buf_add_text(&out, "\033[K");
        at += length + (at[length] == '\n');
    }
    buf_add_text(&out, "\033[J");
    fwrite(out.data, 1, out.length, stdout);
    fflush(stdout);
}

static bool q_was_pressed(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char keys[64];
    if (!keys_changed || poll(&input, 1, 0) != 1) return false;
    ssize_t count = read(STDIN_FILENO, keys, sizeof keys);
    for (ssize_t i = 0; i < count; i++)
        if (keys[i] == 'q' || keys[i] == 'Q') return true;
    return count <= 0 && (input.revents & POLLHUP) != 0; /* the terminal is gone */
}

struct top {
    struct client *client;
    struct session *session;
    struct overview look;
    char *trouble; /* why the data is not current; NULL: it is */
    bool resized;
};

static void on_resize(void *user)
{
    ((struct top *)user)->resized = true;
}

static void show(struct top *top)
{
    AUTO(buf_deinit) struct buf text = {0};
    terminal_measure(&top->client->terminal);
    screen_text(top->client, session_peer(top->session), &top->look, top->trouble, &text);
    draw(top->client, &text);
}

/* Waits until the next refresh; false if the user pressed q. */
static bool rest(struct top *top, double seconds)
{
    int64_t until_ns = clock_monotonic_ns() + (int64_t)(seconds * 1e9);
    while (session_signal(top->session) == 0) {
        int64_t left_ms = (until_ns - clock_monotonic_ns()) / 1000000;
        if (left_ms <= 0) return true;
        if (screen_entered || screen_lost) {
            session_sleep(top->session, left_ms < SLICE_MS ? left_ms : SLICE_MS);
            if (q_was_pressed()) return false;
        } else {
            session_sleep(top->session, left_ms);
        }
        if (screen_lost) {
            screen_lost = 0;
            enter();
            top->resized = true;
        }
        if (top->resized && screen_entered) show(top);
        top->resized = false;
    }
    return true;
}

/* Refreshes and shows once. Returns an error only if no refresh has succeeded so far. */
static status_t round_of(struct top *top, bool screen)
{
    struct overview look = {0};
    bool fold = top->client->options.format != FORMAT_JSON; /* programs get all jobs */
    status_t status = overview_read(top->session, JOBS_MAX, JOBS_MAX, fold, &look);
    bool first = top->look.jobs == NULL;
    if (status != NULL && (first || session_signal(top->session) != 0)) return status;
    if (status == NULL) {
        overview_deinit(&top->look);
        top->look = look;
        if (screen && first) enter();
    }
    free(top->trouble);
    top->trouble = status != NULL ? mem_printf("trying again: %s", status_message(status)) : NULL;
    status_free(status);
    struct buf text = {0};
    if (screen) show(top);
    else if (top->trouble != NULL) output_note("fsdpctl: %s", top->trouble);
    else if (top->client->options.format == FORMAT_JSON) json_round(&top->look, &text);
    else plain_round(&top->look, &text);
    output_print(&text);
    return NULL;
}

static status_t run(struct top *top, bool screen)
{
    const struct verb_options *options = &top->client->options;
    double seconds = options->interval_seconds > 0 ? options->interval_seconds : DEFAULT_SECONDS;
    for (uint32_t round = 1;; round++) {
        TRY(round_of(top, screen));
        if (round == options->rounds || !rest(top, seconds)) return NULL;
        if (session_signal(top->session) != 0) return NULL;
    }
}

int verb_top(struct client *client)
{
    struct top top = {.client = client};
    int64_t wait_ms = client->options.timeout_ms;
    if (wait_ms == 0 || wait_ms > CALL_MS) wait_ms = CALL_MS;
    status_t status = session_new(client->options.address, wait_ms, &top.session);
    if (status != NULL) return output_usage_error(status);
    bool screen =
        client->terminal.out && client->terminal.err && client->options.format == FORMAT_TABLE;
    session_catch_signals(top.session);
    if (screen) {
        session_on_resize(top.session, on_resize, &top);
        main_thread = pthread_self();
        signal(SIGTSTP, on_stop);
    }
    status = run(&top, screen);
    leave();
    int number = session_signal(top.session), code = EXIT_DONE;
    if (number != 0) {
        status_free(status);
        code = EXIT_SIGNAL + number;
    } else if (status != NULL) {
        code = output_error(status);
    }
    overview_deinit(&top.look);
    free(top.trouble);
    session_free(top.session);
    return code;
}
