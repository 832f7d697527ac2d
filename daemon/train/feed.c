/* Feeds data into steps; see feed.h. On the thread of train_session_run. */
#include "train/feed.h"

#include <inttypes.h>
#include <stdlib.h>

/* `evaluated`: not NULL in an evaluation. */
static status_t open_images(struct feed *feed, const struct train_session *session,
                            const struct image_set *evaluated, struct rows *rows)
{
    const struct train_job *job = session->job;
    bool evaluation = evaluated != NULL;
    const struct image_set *set = evaluation ? evaluated : &session->train_set;
    TRY(sampler_init(&feed->sampler, set->count, job->world, session->rank,
                     job->shuffle && !evaluation, evaluation));
    if (!evaluation) feed->sampler.share = batch_share_of(job, session->rank);
    feed->count = sampler_count(&feed->sampler);
    feed->order = malloc((size_t)feed->count * sizeof *feed->order);
    if (feed->order == NULL)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "no memory for the order of %" PRId64 " samples", feed->count);
    TRY(image_rows_init(&feed->images, set, &job->transform, job->seed, !evaluation));
    feed->images.order = feed->order;
    *rows = image_rows_source(&feed->images);
    return NULL;
}

status_t feed_open(struct feed *feed, const struct train_session *session,
                   const struct evaluation_set *set)
{
    const struct train_job *job = session->job;
    bool evaluation = set != NULL;
    uint32_t batch_size = evaluation ? session->evaluate_batch : job->batch_size;
    struct rows rows;
    if (job->data_format == DATA_IMAGES) {
        TRY(open_images(feed, session, evaluation ? set->images : NULL, &rows));
    } else {
        const struct token_data *tokens = evaluation ? set->tokens : &session->tokens;
        feed->tokens = token_data_rows(tokens, job, session->rank, evaluation);
        feed->count = evaluation ? (int64_t)(set->steps * batch_size) : 0;
        rows = token_rows_source(&feed->tokens);
    }
    return loader_new(&rows, batch_size, &feed->loader);
}

void feed_close(struct feed *feed)
{
    loader_free(feed->loader);
    free(feed->order);
    sampler_deinit(&feed->sampler);
}

void feed_start_epoch(struct feed *feed, uint32_t epoch, int64_t first)
{
    if (feed->order != NULL) sampler_fill(&feed->sampler, epoch, feed->order);
    feed->images.epoch = epoch;
    loader_start(feed->loader, first, feed->count - first);
}

void feed_start_steps(struct feed *feed, const struct train_session *session, uint64_t first,
                      uint64_t steps)
{
    uint64_t rows = (uint64_t)session->job->batch_size * session->micro_steps;
    loader_start(feed->loader, (int64_t)first, (int64_t)(steps * rows));
}
