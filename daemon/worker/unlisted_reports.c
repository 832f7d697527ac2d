/* Reports of unlisted checkpoints; see side_group.h. */
#include "worker/side_group.h"

#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/unlisted.h"
#include "proto/message.h"
#include "worker/checkpointer.h"

static Fsdpd__V1__CheckpointReport *report_new(const struct unlisted_checkpoint *found)
{
    Fsdpd__V1__CheckpointReport *report = MESSAGE_NEW(report, fsdpd__v1__checkpoint_report__init);
    Fsdpd__V1__Checkpoint *checkpoint = report->checkpoint =
        MESSAGE_NEW(checkpoint, fsdpd__v1__checkpoint__init);
    checkpoint->step = found->step;
    checkpoint->bytes = found->bytes;
    checkpoint->attempt = found->attempt;
    checkpoint->world = found->world;
    checkpoint->path = mem_strdup(found->path);
    message_set_time(&checkpoint->time, found->time_ms);
    if (found->is_best) checkpointer_mark_best(checkpoint, found->best);
    return report;
}

static void post_all(const struct side_context *context, const struct unlisted *unlisted)
{
    for (int i = 0; i < unlisted->count; i++) {
        const struct unlisted_checkpoint *found = &unlisted->found[i];
        Fsdpd__V1__CheckpointReport *report = report_new(found);
        log_event(LOG_INFO, "unlisted_checkpoint", "job=%s step=%llu attempt=%u path=%s",
                  context->job, (unsigned long long)found->step, found->attempt, found->path);
        if (i == unlisted->count - 1 && unlisted->removed_count > 0) {
            report->n_removed_steps = (size_t)unlisted->removed_count;
            report->removed_steps = mem_dup(unlisted->removed, (size_t)unlisted->removed_count *
                                                                   sizeof *unlisted->removed);
        }
        checkpointer_post(context, report);
    }
}

status_t unlisted_reports_post(const struct side_context *context,
                               const struct checkpoint_settings *settings,
                               const Fsdpd__V1__Assignment *assignment)
{
    struct folder folder;
    struct unlisted unlisted;
    TRY(folder_open(settings->root, settings->folder, false, &folder));
    status_t status =
        unlisted_find(&folder, settings->run, (const char *const *)assignment->listed_checkpoints,
                      assignment->n_listed_checkpoints, &unlisted);
    post_all(context, &unlisted);
    unlisted_deinit(&unlisted);
    folder_close(&folder);
    return status;
}
