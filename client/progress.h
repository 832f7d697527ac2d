/*
 * Progress of a job as text: a bar that redraws itself on a terminal, plain lines in a pipe, and
 * the tutorial's lines at the end of an epoch. Formatting is pure; only struct live writes, to
 * stderr.
 */
#ifndef FSDPD_CLIENT_PROGRESS_H
#define FSDPD_CLIENT_PROGRESS_H

#include <stdbool.h>

#include "base/buf.h"
#include "fsdpd/v1/control.pb-c.h"
#include "output.h"
#include "page/series.h"

struct progress {
    uint64_t step, steps; /* steps 0: unknown */
    uint32_t epochs;      /* 0: unknown */
    double epoch;         /* completed, fractional */
    double loss;
    bool has_loss; /* a step was reported */
    double learning_rate, step_seconds, exposed_seconds; /* exposed: communication */
    double samples_per_second, tokens_per_second;        /* 0: unknown, or no tokens */
    double val_loss;                                     /* of the last validation, if any */
    bool validated;
    double seconds_left; /* 0: unknown */
    double gradient_norm;
    bool gradient_norm_known;
    uint64_t memory_bytes, memory_peak_bytes; /* 0: unknown */
    bool unicode;                             /* draw bars with blocks */
};

void progress_take(struct progress *progress, const Fsdpd__V1__Metrics *metrics, uint64_t steps);

/* "[=====>     ]  412/9380  epoch 1/10  loss 0.2341  5,812 samples/s  2m05s left" in fewer than
 * `width` columns: what does not fit is left out, the least important first. */
void progress_bar(const struct progress *progress, int width, bool colour, struct buf *out);

/* "step 250/2000: validation loss 2.1034 (epoch 0.75)", of a held-out set "step 250/2000: code:
 * validation loss ..." */
/* What train.sample gave: a line for each prompt. */
void progress_sampled(const Fsdpd__V1__JobSpec *spec, const Fsdpd__V1__Sampled *sampled,
                      struct buf *out);
void progress_validation(const Fsdpd__V1__Validation *validation, uint64_t steps, struct buf *out);

/* "step 412/9380  loss 0.2341  5,812 samples/s  2m05s left  lr 0.7  11 ms/step (2.1 ms exposed)" */
void progress_plain(const struct progress *progress, struct buf *out);

/* "[=====>     ]  2.1 MB of 4.8 MB  12 MB/s" */
void progress_bytes(uint64_t done, uint64_t total, double seconds, int width, bool colour,
                    struct buf *out);

/* The tutorial's lines: "Train Epoch: 1 \tLoss: 0.2341", and "Test set: ..." if there was a test.
 */
void progress_epoch(const Fsdpd__V1__EpochEnd *epoch, struct buf *out);

/* "step 412: wrap policy size, 3 units; changed in 0.01 s, 12 MB at the peak" */
void progress_wrap(const Fsdpd__V1__WrapChange *change, struct buf *out);

/* "epoch 1/10 [===>    ]  lr 0.7  grad norm 1.2  11 ms/step (2.1 ms exposed)  36.7 MB": as much as
 * fits. */
void progress_figures(const struct progress *progress, int width, bool colour, struct buf *out);

/*
 * Lines at the bottom of a terminal that are redrawn in place. The caller keeps each line no wider
 * than the terminal.
 */
enum { LIVE_MAX_LINES = 16 };
struct live {
    struct terminal *terminal;
    bool shown;
    int64_t drawn_ns;
    int widths[LIVE_MAX_LINES]; /* of the lines shown, in columns */
    int line_count;
};

/* Whether to redraw now: at most ten times a second. */
bool live_due(const struct live *live);
void live_draw(struct live *live, const struct buf *line);
/* Draws several lines, at most LIVE_MAX_LINES. */
void live_draw_lines(struct live *live, const struct buf *lines, int count);
/* Call before writing anything else. */
void live_clear(struct live *live);

/* ---- curve.c ---- */

/* Small text pictures: a curve and a bar, in Unicode or in ASCII. Pure. */

enum { CURVE_MIN_WIDTH = 24, CURVE_MAX_HEIGHT = 16 };

/*
 * Draws the curve in `height` lines of `width` columns; the largest value labels the first line,
 * the smallest the last. A column covers the range between the smallest and the largest value of
 * its points. In Unicode a character has two by four Braille dots, in ASCII it is a "*". Appends to
 * lines[0] to lines[height - 1]; appends nothing if there are no points.
 */
void curve_draw(const struct series *series, int width, int height, bool unicode,
                struct buf lines[]);

/* "[=====>    ]", or in Unicode a bar of blocks with a resolution of an eighth of a column; `width`
 * columns wide. */
void curve_bar(double part, int width, bool unicode, bool colour, struct buf *out);

#endif
