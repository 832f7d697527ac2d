/* Progress as text; see progress.h. */
#include "progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "output.h"
#include "print/scores.h"
#include "spec/spec.h"

enum { BAR_MIN = 10, BAR_MAX = 40 };
static const int64_t REDRAW_NS = 100000000;

void progress_take(struct progress *progress, const Fsdpd__V1__Metrics *metrics, uint64_t steps)
{
    if (steps > 0) progress->steps = steps;
    progress->step = metrics->step;
    progress->epoch = metrics->epoch;
    progress->loss = metrics->loss;
    progress->has_loss = metrics->step > 0;
    progress->learning_rate = metrics->learning_rate;
    progress->step_seconds = metrics->step_seconds;
    progress->exposed_seconds = metrics->exposed_communication_seconds;
    progress->samples_per_second = metrics->samples_per_second;
    progress->tokens_per_second = metrics->tokens_per_second;
    progress->validated = metrics->_val_loss_case != 0;
    progress->val_loss = metrics->val_loss;
    progress->seconds_left = metrics->seconds_left;
    progress->gradient_norm_known = metrics->_gradient_norm_case != 0;
    progress->gradient_norm = metrics->gradient_norm;
    progress->memory_bytes = metrics->memory_bytes;
    progress->memory_peak_bytes = metrics->memory_peak_bytes;
}

enum { PIECE_STEP, PIECE_EPOCH, PIECE_LOSS, PIECE_RATE, PIECE_LEFT, PIECE_COUNT };
struct pieces {
    char text[PIECE_COUNT][64]; /* "": unknown, or no room */
};

static void make_pieces(const struct progress *progress, struct pieces *pieces)
{
    char text[32];
    *pieces = (struct pieces){0};
    if (progress->steps > 0)
        snprintf(pieces->text[PIECE_STEP], 64, "%llu/%llu", (unsigned long long)progress->step,
                 (unsigned long long)progress->steps);
    else snprintf(pieces->text[PIECE_STEP], 64, "%llu", (unsigned long long)progress->step);
    if (progress->epochs > 0 && progress->epoch >= 0 && progress->epoch < 1e9) {
        /* Show the epoch in progress, not the number of completed epochs. */
        unsigned current = (unsigned)progress->epoch + 1;
        if (current > progress->epochs) current = progress->epochs;
        snprintf(pieces->text[PIECE_EPOCH], 64, "epoch %u/%u", current, progress->epochs);
    }
    if (progress->has_loss)
        snprintf(pieces->text[PIECE_LOSS], 64, "loss %s", scores_loss(progress->loss, text));
    bool tokens = progress->tokens_per_second > 0;
    double rate = tokens ? progress->tokens_per_second : progress->samples_per_second;
    if (rate > 0 && rate < 1e15)
        snprintf(pieces->text[PIECE_RATE], 64, "%s %s/s",
                 text_format_count((uint64_t)llround(rate), text), tokens ? "tokens" : "samples");
    if (progress->seconds_left > 0)
        snprintf(pieces->text[PIECE_LEFT], 64, "%s left",
                 text_format_seconds(progress->seconds_left, text));
}

static int pieces_width(const struct pieces *pieces)
{
    int width = 0;
    for (int i = 0; i < PIECE_COUNT; i++)
        if (pieces->text[i][0] != '\0') width += (width ? 2 : 0) + (int)strlen(pieces->text[i]);
    return width;
}

static void add_pieces(struct buf *out, const struct pieces *pieces)
{
    bool first = true;
    for (int i = 0; i < PIECE_COUNT; i++) {
        if (pieces->text[i][0] == '\0') continue;
        buf_printf(out, "%s%s", first ? "" : "  ", pieces->text[i]);
        first = false;
    }
}

void progress_bar(const struct progress *progress, int width, bool colour, struct buf *out)
{
    static const int least_important[] = {PIECE_EPOCH, PIECE_RATE, PIECE_LEFT, PIECE_LOSS};
    struct pieces pieces;
    make_pieces(progress, &pieces);
    int room = width - 1; /* a full line would wrap on some terminals */
    for (size_t i = 0; i < 4 && pieces_width(&pieces) + 2 + BAR_MIN > room; i++) {
        /* The bar matters more than the epoch and the rate, and less than the rest. */
        if (i >= 2 && pieces_width(&pieces) <= room) break;
        pieces.text[least_important[i]][0] = '\0';
    }
    int bar = room - pieces_width(&pieces) - 2;
    if (bar > BAR_MAX) bar = BAR_MAX;
    if (bar >= BAR_MIN && progress->steps > 0) {
        curve_bar((double)progress->step / (double)progress->steps, bar, progress->unicode, colour,
                  out);
        buf_add_text(out, "  ");
    }
    if (pieces_width(&pieces) <= room) add_pieces(out, &pieces);
}

enum { FIGURES = 6 };

static void add_figures(const struct progress *progress, char text[FIGURES][64])
{
    char a[32], b[32];
    if (progress->validated)
        snprintf(text[0], 64, "val loss %s", scores_loss(progress->val_loss, a));
    if (progress->learning_rate > 0) snprintf(text[1], 64, "lr %.4g", progress->learning_rate);
    if (progress->gradient_norm_known)
        snprintf(text[2], 64, "grad norm %.4g", progress->gradient_norm);
    if (progress->step_seconds > 0)
        snprintf(text[3], 64, "%s/step", text_format_duration(progress->step_seconds, a));
    if (progress->exposed_seconds > 0)
        snprintf(text[4], 64, "%s exposed", text_format_duration(progress->exposed_seconds, a));
    if (progress->memory_bytes > 0)
        snprintf(text[5], 64, "%s, peak %s", text_format_bytes(progress->memory_bytes, a),
                 text_format_bytes(progress->memory_peak_bytes, b));
}

void progress_figures(const struct progress *progress, int width, bool colour, struct buf *out)
{
    enum { EPOCH_BAR = 12 };
    char text[FIGURES][64] = {{0}}, epoch[32];
    int used = 0;
    add_figures(progress, text);
    if (progress->epochs > 1 && progress->epoch >= 0 && progress->epoch < 1e9) {
        double done = floor(progress->epoch), part = progress->epoch - done;
        if (done >= progress->epochs) done = progress->epochs - 1, part = 1;
        snprintf(epoch, sizeof epoch, "epoch %.0f/%u ", done + 1, progress->epochs);
        used = (int)strlen(epoch) + EPOCH_BAR;
        if (used >= width) return;
        buf_add_text(out, epoch);
        curve_bar(part, EPOCH_BAR, progress->unicode, colour, out);
    }
    for (int i = 0; i < FIGURES; i++) {
        int needed = (int)strlen(text[i]) + (used > 0 ? 2 : 0);
        if (text[i][0] == '\0' || used + needed >= width) continue;
        buf_printf(out, "%s%s", used > 0 ? "  " : "", text[i]);
        used += needed;
    }
}

void progress_plain(const struct progress *progress, struct buf *out)
{
    struct pieces pieces;
    make_pieces(progress, &pieces);
    char text[32];
    buf_add_text(out, "step ");
    add_pieces(out, &pieces);
    if (progress->validated)
        buf_printf(out, "  val loss %s", scores_loss(progress->val_loss, text));
    if (progress->learning_rate > 0) buf_printf(out, "  lr %.4g", progress->learning_rate);
    if (progress->step_seconds > 0)
        buf_printf(out, "  %s/step", text_format_duration(progress->step_seconds, text));
    if (progress->exposed_seconds > 0)
        buf_printf(out, " (%s exposed)", text_format_duration(progress->exposed_seconds, text));
}

void progress_bytes(uint64_t done, uint64_t total, double seconds, int width, bool colour,
                    struct buf *out)
{
    char a[32], b[32], c[32], text[128];
    uint64_t rate = seconds > 0 ? (uint64_t)((double)done / seconds) : 0;
    snprintf(text, sizeof text, "%s of %s  %s/s", text_format_bytes(done, a),
             text_format_bytes(total, b), text_format_bytes(rate, c));
    int bar = width - 1 - (int)strlen(text) - 2;
    if (bar > BAR_MAX) bar = BAR_MAX;
    if (bar >= BAR_MIN && total > 0) {
        curve_bar((double)done / (double)total, bar, false, colour, out);
        buf_add_text(out, "  ");
    }
    if ((int)strlen(text) < width) buf_add_text(out, text);
}

void progress_epoch(const Fsdpd__V1__EpochEnd *epoch, struct buf *out)
{
    char text[32], share[32];
    buf_printf(out, "Train Epoch: %u \tLoss: %s\n", epoch->epoch,
               scores_loss(epoch->train_loss, text));
    if (epoch->_test_loss_case == 0) return;
    buf_printf(out, "Test set: Average loss: %s, Accuracy: %llu/%llu (%s)",
               scores_loss(epoch->test_loss, text), (unsigned long long)epoch->correct,
               (unsigned long long)epoch->test_samples, scores_share(epoch->accuracy, share));
    scores_add_f1(epoch->scores, out);
    buf_add_char(out, '\n');
}

void progress_validation(const Fsdpd__V1__Validation *validation, uint64_t steps, struct buf *out)
{
    buf_printf(out, "step %llu", (unsigned long long)validation->step);
    if (steps > 0) buf_printf(out, "/%llu", (unsigned long long)steps);
    char text[32];
    buf_add_text(out, validation->set[0] != '\0' ? ": " : "");
    output_clean(out, validation->set, false);
    buf_printf(out, ": validation loss %s", scores_loss(validation->loss, text));
    scores_add(validation->scores, out);
    buf_printf(out, " (epoch %.3g)\n", validation->epoch);
}

void progress_sampled(const Fsdpd__V1__JobSpec *spec, const Fsdpd__V1__Sampled *sampled,
                      struct buf *out)
{
    for (size_t i = 0; i < sampled->n_sequences; i++) {
        AUTO(buf_deinit) struct buf text = {0};
        spec_add_sample(&text, spec, sampled, i);
        buf_printf(out, "step %llu: sample: ", (unsigned long long)sampled->step);
        output_clean(out, buf_text(&text), false);
        buf_add_char(out, '\n');
    }
}

/* "step 20: kept units of 2 blocks: 11.9 ms a step (11.2 ms expected); the job's own units: ..." */
static void add_trials(const Fsdpd__V1__WrapChange *change, struct buf *out)
{
    buf_printf(out, "step %llu: units tried:", (unsigned long long)change->step);
    for (size_t i = 0; i < change->n_trials; i++) {
        const Fsdpd__V1__TuneTrial *trial = change->trials[i];
        char measured[32], expected[32];
        buf_printf(out, "%s %s ", i > 0 ? ";" : "", trial->description);
        if (trial->measured_seconds > 0)
            buf_printf(out, "%s a step", text_format_duration(trial->measured_seconds, measured));
        else
            buf_add_text(out,
                         trial->refused[0] != '\0' ? "not tried, they do not fit" : "not tried");
        buf_printf(out, " (expected: %s)%s",
                   text_format_duration(trial->expected_seconds, expected),
                   trial->kept ? ", kept" : "");
    }
    if (change->stopped[0] != '\0') buf_printf(out, "; %s", change->stopped);
    buf_add_char(out, '\n');
}

void progress_wrap(const Fsdpd__V1__WrapChange *change, struct buf *out)
{
    if (change->n_trials > 0) {
        add_trials(change, out);
        return;
    }
    char bytes[32];
    int policy = change->wrap != NULL ? (int)change->wrap->policy : 0;
    const char *word = spec_word(&fsdpd__v1__wrap_policy__descriptor, policy);
    buf_printf(out, "step %llu: wrap policy %s, %zu unit%s; changed in %.2g s, %s at the peak\n",
               (unsigned long long)change->step, word != NULL ? word : "?", change->n_units,
               change->n_units == 1 ? "" : "s", change->seconds,
               text_format_bytes(change->peak_bytes, bytes));
}

bool live_due(const struct live *live)
{
    return !live->shown || clock_monotonic_ns() - live->drawn_ns >= REDRAW_NS;
}

/* A line that is wider than the terminal, because the user made it narrower, takes several rows. */
static int rows_shown(const struct live *live)
{
    int rows = 0, width = live->terminal->width;
    for (int i = 0; i < live->line_count; i++)
        rows += live->widths[i] > width ? (live->widths[i] + width - 1) / width : 1;
    return rows;
}

static void to_the_top(const struct live *live, struct buf *out)
{
    buf_add_char(out, '\r');
    if (rows_shown(live) > 1) buf_printf(out, "\033[%dA", rows_shown(live) - 1);
}

/* The columns of a line that contains colour codes. */
static int visible_width(const char *text)
{
    int hidden = 0;
    for (const char *at = strchr(text, '\033'); at != NULL; at = strchr(at + 1, '\033'))
        hidden += (int)strcspn(at, "m") + 1;
    return output_width(text) - hidden;
}

void live_draw_lines(struct live *live, const struct buf *lines, int count)
{
    if (!live->terminal->err) return;
    if (count > LIVE_MAX_LINES) count = LIVE_MAX_LINES;
    AUTO(buf_deinit) struct buf out = {0};
    if (live->shown) to_the_top(live, &out);
    else buf_add_char(&out, '\r');
    if (live->shown && rows_shown(live) != count) buf_add_text(&out, "\033[J");
    for (int i = 0; i < count; i++) {
        buf_printf(&out, "%s%s\033[K", i > 0 ? "\r\n" : "", buf_text(&lines[i]));
        live->widths[i] = visible_width(buf_text(&lines[i]));
    }
    /* Return to the first column: text that the terminal echoes itself (^C) must not wrap into
     * another row, which would not be counted. */
    buf_add_char(&out, '\r');
    live->line_count = count;
    fflush(stdout);
    fwrite(out.data, 1, out.length, stderr);
    fflush(stderr);
    live->shown = true;
    live->drawn_ns = clock_monotonic_ns();
}

void live_draw(struct live *live, const struct buf *line)
{
    live_draw_lines(live, line, 1);
}

void live_clear(struct live *live)
{
    if (!live->shown) return;
    AUTO(buf_deinit) struct buf out = {0};
    to_the_top(live, &out);
    buf_add_text(&out, live->line_count > 1 ? "\033[J" : "\033[K");
    fputs(buf_text(&out), stderr);
    fflush(stderr);
    live->shown = false;
}
