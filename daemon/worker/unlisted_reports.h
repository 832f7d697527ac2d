/* Reports of checkpoints that earlier attempts completed, and did not report themselves
 * (checkpoint/unlisted.h). */
#ifndef FSDPD_WORKER_UNLISTED_REPORTS_H
#define FSDPD_WORKER_UNLISTED_REPORTS_H

#include "setup/job.h"
#include "worker/side_group.h"

/* Rank 0, before its attempt writes a checkpoint. An error if the directory cannot be read. */
status_t unlisted_reports_post(const struct side_context *context,
                               const struct checkpoint_settings *settings,
                               const Fsdpd__V1__Assignment *assignment) FSDPD_MUST_USE;

#endif
