/* Progress as text; see progress.h. */
#include "progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"

enum { BAR_MIN = 10, BAR_MAX = 40 };
static const int64_t REDRAW_NS = 100000000;

void progress_take(struct progress *progress, const Fsdpd__V1__Metrics *metrics, uint64_t steps)
{
    if (steps > 0) progress->steps = steps;
    progress->step = metrics->step;
    progress->epoch = metrics->epoch;
    progress->loss = metrics->loss;
    progress->learning_rate = metrics->learning_rate;
    progress->step_seconds = metrics->step_seconds;
    progress->exposed_seconds = metrics->exposed_communication_seconds;
    progress->samples_per_second = metrics->samples_per_second;
    progress->tokens_per_second = metrics->tokens_per_second;
    progress->validated = metrics->validated;
    progress->val_loss = metrics->val_loss;
    progress->seconds_left = metrics->seconds_left;
}

static void add_bar(struct buf *out, double part, int width, bool colour)
{
    if (!(part > 0)) part = 0;
    if (part > 1) part = 1;
    int inside = width - 2, full = (int)(part * inside);
    buf_add_char(out, '[');
    if (colour) buf_add_text(out, "\033[32m");
    for (int i = 0; i < inside; i++) buf_add_char(out, i < full ? '=' : i == full ? '>' : ' ');
    if (colour) buf_add_text(out, "\033[0m");
    buf_add_char(out, ']');
}

enum { PIECE_STEP, PIECE_EPOCH, PIECE_LOSS, PIECE_RATE, PIECE_LEFT, PIECE_COUNT };
struct pieces {
    char text[PIECE_COUNT][64]; /* "": not known, or no room */
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
        /* The epoch that is being trained, not the number of those done. */
        unsigned current = (unsigned)progress->epoch + 1;
        if (current > progress->epochs) current = progress->epochs;
        snprintf(pieces->text[PIECE_EPOCH], 64, "epoch %u/%u", current, progress->epochs);
    }
    if (progress->step > 0) snprintf(pieces->text[PIECE_LOSS], 64, "loss %.4f", progress->loss);
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
        /* The bar is worth more than the epoch and the rate, and less than the rest. */
        if (i >= 2 && pieces_width(&pieces) <= room) break;
        pieces.text[least_important[i]][0] = '\0';
    }
    int bar = room - pieces_width(&pieces) - 2;
    if (bar > BAR_MAX) bar = BAR_MAX;
    if (bar >= BAR_MIN && progress->steps > 0) {
        add_bar(out, (double)progress->step / (double)progress->steps, bar, colour);
        buf_add_text(out, "  ");
    }
    if (pieces_width(&pieces) <= room) add_pieces(out, &pieces);
}

void progress_plain(const struct progress *progress, struct buf *out)
{
    struct pieces pieces;
    make_pieces(progress, &pieces);
    char text[32];
    buf_add_text(out, "step ");
    add_pieces(out, &pieces);
    if (progress->validated) buf_printf(out, "  val loss %.4f", progress->val_loss);
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
        add_bar(out, (double)done / (double)total, bar, colour);
        buf_add_text(out, "  ");
    }
    if ((int)strlen(text) < width) buf_add_text(out, text);
}

void progress_epoch(const Fsdpd__V1__EpochEnd *epoch, struct buf *out)
{
    buf_printf(out, "Train Epoch: %u \tLoss: %.4f\n", epoch->epoch, epoch->train_loss);
    if (!epoch->evaluated) return;
    buf_printf(out, "Test set: Average loss: %.4f, Accuracy: %llu/%llu (%.2f%%)\n",
               epoch->test_loss, (unsigned long long)epoch->correct,
               (unsigned long long)epoch->test_samples, 100 * epoch->accuracy);
}

void progress_validation(const Fsdpd__V1__Validation *validation, uint64_t steps, struct buf *out)
{
    buf_printf(out, "step %llu", (unsigned long long)validation->step);
    if (steps > 0) buf_printf(out, "/%llu", (unsigned long long)steps);
    buf_printf(out, ": validation loss %.4f (epoch %.3g)\n", validation->loss, validation->epoch);
}

void progress_wrap(const Fsdpd__V1__WrapChange *change, struct buf *out)
{
    char bytes[32];
    buf_printf(out, "step %llu: wrap policy ", (unsigned long long)change->step);
    output_clean(out, change->wrap != NULL ? change->wrap->policy : "", false);
    buf_printf(out, ", %zu unit%s; changed in %.2g s, %s at the peak\n", change->n_units,
               change->n_units == 1 ? "" : "s", change->seconds,
               text_format_bytes(change->peak_bytes, bytes));
}

bool live_due(const struct live *live)
{
    return !live->shown || clock_monotonic_ns() - live->drawn_ns >= REDRAW_NS;
}

void live_draw(struct live *live, const struct buf *line)
{
    if (!live->terminal->err) return;
    fflush(stdout);
    fprintf(stderr, "\r%s\033[K", buf_text(line));
    fflush(stderr);
    live->shown = true;
    live->drawn_ns = clock_monotonic_ns();
}

void live_clear(struct live *live)
{
    if (!live->shown) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    live->shown = false;
}
