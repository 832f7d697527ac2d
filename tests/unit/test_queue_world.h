/* Shared by the queue's tests: submitting, starting and ending jobs. */
#ifndef FSDPD_TEST_QUEUE_WORLD_H
#define FSDPD_TEST_QUEUE_WORLD_H

#include "test_coordinator_world.h"

/* Submits `spec`. The caller frees the id; NULL for a refusal, whose status is in *refused. Without
 * `refused`, a refusal fails the test. */
char *queue_submit(struct world *world, const job_spec *spec, status_t *refused);

char *queue_submit_priority(struct world *world, uint32_t workers, int priority);

/* The fake's n-th assignment is this job's, and it starts it. */
void queue_expect_start(struct world *world, struct fake *fake, int assignments, const char *id);

/* The fake reports success, or a failure. */
void queue_end_job(struct world *world, struct fake *fake, const char *id, enum status_code code);

void queue_expect_position(struct world *world, const char *id, uint32_t position);

/* What `fsdpctl why` prints of the job has these words. */
void queue_expect_why(struct world *world, const char *id, const char *words);

#endif
