/* Inside train/: one split of a session's data on its way into steps, images or tokens. */
#ifndef FSDPD_TRAIN_FEED_H
#define FSDPD_TRAIN_FEED_H

#include "train/image_rows.h"
#include "train/loader.h"
#include "train/run.h"
#include "train/sampler.h"
#include "train/token_data.h"

struct feed {
    struct loader *loader;
    struct image_rows images;
    struct sampler sampler; /* of images */
    uint32_t *order;
    struct token_rows tokens;
    int64_t count; /* rows of this rank: of an epoch of images, or of one evaluation */
};

/* `feed` is zeroed, and stays where it is. What was made before an error is the caller's too. */
status_t feed_open(struct feed *feed, const struct train_session *session,
                   bool evaluation) FSDPD_MUST_USE;
void feed_close(struct feed *feed); /* accepts a zeroed one */

/* Begins an epoch of images (from 1) at row `first` of this rank's, or an evaluation, which always is
 * the first, from row 0. */
void feed_start_epoch(struct feed *feed, uint32_t epoch, int64_t first);
/* Tokens: the batches of `steps` training steps from row `first` of this rank's on. */
void feed_start_steps(struct feed *feed, const struct train_session *session, uint64_t first,
                      uint64_t steps);

#endif
