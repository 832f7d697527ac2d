/* Inside train/: feeds one split of a session's data into steps, images or tokens. */
#ifndef FSDPD_TRAIN_FEED_H
#define FSDPD_TRAIN_FEED_H

#include "data/image_rows.h"
#include "data/loader.h"
#include "data/sampler.h"
#include "data/token_data.h"
#include "setup/session_state.h"

struct feed {
    struct loader *loader;
    struct image_rows images;
    struct sampler sampler; /* for images */
    uint32_t *order;
    struct token_rows tokens;
    int64_t count; /* rows of this rank: of an epoch of images, or of an evaluation */
};

/* To train, or with `set` to evaluate it. `feed` must be zeroed and must not move. After an error
 * the caller still closes it. */
status_t feed_open(struct feed *feed, const struct train_session *session,
                   const struct evaluation_set *set) FSDPD_MUST_USE;
void feed_close(struct feed *feed); /* accepts a zeroed one */

/* Begins epoch `epoch` of images (from 1) at this rank's row `first`. For an evaluation these are
 * always 1 and 0. */
void feed_start_epoch(struct feed *feed, uint32_t epoch, int64_t first);
/* Tokens: begins the batches of `steps` training steps at this rank's row `first`. */
void feed_start_steps(struct feed *feed, const struct train_session *session, uint64_t first,
                      uint64_t steps);

#endif
