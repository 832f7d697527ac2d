/*
 * The checkpointer; see checkpointer.h. All ranks add the same captures in the same order, so their
 * threads meet in each one's collectives without further agreement.
 */
#include "worker/checkpointer.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/tree.h"
#include "checkpoint/folder.h"
#include "proto/message.h"

struct checkpointer {
    const struct side_context *context;
    const char *root, *folder;
    uint32_t keep;
    struct gate gate; /* of the waits for the coordinator */
    struct store_access store;
    struct rendezvous rendezvous;
    pthread_t thread;
    uint64_t count; /* of saves, the thread's */
    struct device *device;
    struct lane_queue *lane;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    struct capture *capture; /* waits for the thread */
    uint64_t number;         /* its order */
    bool last;               /* it is of the job's last step */
    bool busy;               /* something waits, or is being written */
    bool finishing;
    char *aborted;     /* why; NULL if not */
    struct comm *comm; /* NULL: none yet, or with one rank */
    status_t outcome;  /* of the last one */
};

/* Telling the coordinator. */

static Fsdpd__V1__CheckpointReport *report_new(const struct side_context *context, uint64_t number,
                                               uint64_t step, status_t status)
{
    Fsdpd__V1__CheckpointReport *report = MESSAGE_NEW(report, fsdpd__v1__checkpoint_report__init);
    report->number = number;
    report->code = (uint32_t)status_code(status);
    if (status != NULL) report->message = mem_strdup(status_message(status));
    report->checkpoint = MESSAGE_NEW(report->checkpoint, fsdpd__v1__checkpoint__init);
    report->checkpoint->step = step;
    message_set_time(&report->checkpoint->time, clock_wall_ms());
    report->checkpoint->attempt = context->attempt;
    report->checkpoint->world = (uint32_t)context->world;
    return report;
}

void checkpointer_mark_best(Fsdpd__V1__Checkpoint *checkpoint, double value)
{
    checkpoint->_best_case = FSDPD__V1__CHECKPOINT___BEST_BEST;
    checkpoint->best = value;
}

void checkpointer_post(const struct side_context *context, Fsdpd__V1__CheckpointReport *report)
{
    Fsdpd__V1__AttemptEvent *event = MESSAGE_NEW(event, fsdpd__v1__attempt_event__init);
    event->event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_CHECKPOINT;
    event->checkpoint = report;
    link_post_event(context->link, context->job, context->attempt, event);
}

void checkpointer_refuse(const struct side_context *context, uint64_t number, uint64_t step,
                         status_t status)
{
    checkpointer_post(context, report_new(context, number, step, status));
}

static void report_capture(const struct checkpointer *own, uint64_t number, bool last,
                           double seconds, const struct capture_result *result, status_t status)
{
    char size[32];
    if (status != NULL) log_status(LOG_WARNING, "checkpoint_failed", status_copy(status));
    else if (own->context->rank == 0)
        log_event(LOG_INFO, "checkpoint",
                  "job=%s step=%llu seconds=%.3f size=\"%s\" copied_bytes=%llu path=%s",
                  own->context->job, (unsigned long long)result->step, seconds,
                  text_format_bytes(result->bytes, size), (unsigned long long)result->copied,
                  result->path);
    if (own->context->rank != 0) return;
    Fsdpd__V1__CheckpointReport *report = report_new(own->context, number, result->step, status);
    report->checkpoint->seconds = seconds;
    report->checkpoint->bytes = result->bytes;
    if (result->is_best) checkpointer_mark_best(report->checkpoint, result->best);
    report->again = last && capture_may_succeed_later(status);
    if (result->path != NULL) report->checkpoint->path = mem_strdup(result->path);
    report->n_removed_steps = (size_t)result->removed_count;
    if (result->removed_count > 0)
        report->removed_steps =
            mem_dup(result->removed, (size_t)result->removed_count * sizeof *result->removed);
    checkpointer_post(own->context, report);
}

/* The thread. */

/* The name of the group that this save makes, if the ranks have none. */
static char *group_name(const struct checkpointer *own)
{
    return mem_printf("checkpoint-%llu", (unsigned long long)own->count);
}

/* For the first one, and after a communicator that failed, which then failed for all ranks. */
static status_t join_group(struct checkpointer *own)
{
    const struct side_context *context = own->context;
    if (own->lane == NULL) TRY(lane_open(own->device, LANE_COMM, &own->lane));
    if (context->world == 1 || own->comm != NULL) return NULL;
    struct comm *comm = NULL;
    AUTO_FREE char *group = group_name(own);
    TRY(side_group_join(context, &own->rendezvous, group, false, &comm));
    pthread_mutex_lock(&own->lock);
    own->comm = comm;
    if (own->aborted != NULL) comm_abort(comm, own->aborted);
    pthread_mutex_unlock(&own->lock);
    return NULL;
}

/* A rank without a group fails the one that its peers may be about to make: they may have detected
 * earlier that the old one broke, or this rank does not take part any more. */
static void fail_peers(const struct checkpointer *own, status_t why)
{
    AUTO_FREE char *group = group_name(own);
    side_group_fail(own->context, group, why);
}

/* Peers that have learned nothing of a complete checkpoint have left the group as well. */
static void fail_unshared(const struct checkpointer *own)
{
    status_t why = status_new(STATUS_ABORTED, "the group of the checkpoint before failed");
    fail_peers(own, why);
    status_free(why);
}

static void leave_group(struct checkpointer *own)
{
    pthread_mutex_lock(&own->lock);
    struct comm *comm = own->comm;
    own->comm = NULL;
    pthread_mutex_unlock(&own->lock);
    comm_free(comm);
}

/* Reports that would be lost with this worker while the coordinator is away: the run would continue
 * from this checkpoint without repeating them. */
static void pack_reports(void *user, uint64_t step, struct buf *out)
{
    const struct side_context *context = user;
    link_pack_unrecorded(context->link, context->job, context->attempt, step, out);
}

static status_t save(struct checkpointer *own, uint64_t number, bool last, struct capture *capture)
{
    int64_t began = clock_monotonic_ns();
    struct capture_result result = {.step = capture_step(capture)};
    status_t status = join_group(own);
    if (status == NULL) {
        const struct capture_target target = {.folder = own->folder,
                                              .root = own->root,
                                              .number = own->count,
                                              .keep = own->keep,
                                              .pack_reports = pack_reports,
                                              .user = (void *)own->context};
        status = capture_save(capture, &target, own->comm, &own->lane, own->context->timeout_ms,
                              &result);
    }
    if (own->lane == NULL) leave_group(own);
    if (status != NULL && own->comm == NULL) fail_peers(own, status);
    if (result.unshared) fail_unshared(own);
    status = status_wrap(status, "checkpoint of step %llu", (unsigned long long)result.step);
    report_capture(own, number, last, (double)(clock_monotonic_ns() - began) * 1e-9, &result,
                   status);
    free(result.path);
    free(result.removed);
    return status;
}

static void *checkpointer_thread(void *argument)
{
    pthread_setname_np(pthread_self(), "checkpoint");
    struct checkpointer *own = argument;
    pthread_mutex_lock(&own->lock);
    for (;;) {
        while (own->capture == NULL && !own->finishing)
            pthread_cond_wait(&own->changed, &own->lock);
        struct capture *capture = own->capture;
        if (capture == NULL) break;
        uint64_t number = own->number;
        bool last = own->last;
        own->capture = NULL;
        status_t status = NULL;
        if (own->aborted != NULL) status = status_new(STATUS_ABORTED, "%s", own->aborted);
        pthread_mutex_unlock(&own->lock);

        own->count++;
        if (status == NULL) status = save(own, number, last, capture);
        else fail_peers(own, status);
        capture_free(capture);

        pthread_mutex_lock(&own->lock);
        status_free(own->outcome);
        own->outcome = status;
        own->busy = false;
        pthread_cond_broadcast(&own->changed);
    }
    pthread_mutex_unlock(&own->lock);
    return NULL;
}

/* Life. */

static status_t sweep(const char *root, const char *path)
{
    struct folder folder;
    TRY(folder_open(root, path, false, &folder));
    status_t status = folder.fd >= 0 ? unfinished_sweep_at(folder.fd, path) : NULL;
    folder_close(&folder);
    return status;
}

status_t checkpointer_new(const struct side_context *context, const char *root, const char *folder,
                          uint32_t keep, struct checkpointer **out)
{
    log_status(LOG_WARNING, "checkpoints_not_swept", sweep(root, folder));
    struct checkpointer *own = mem_alloc(sizeof *own);
    own->context = context;
    own->root = root;
    own->folder = folder;
    own->keep = keep;
    own->store = (struct store_access){context->link, &own->gate, context->store};
    own->rendezvous = link_store_rendezvous(&own->store);
    /* A device of its own, so that nothing of it is counted as the training's. */
    status_t status = device_open("cpu", 1, &own->device);
    if (status != NULL) {
        free(own);
        return status;
    }
    pthread_mutex_init(&own->lock, NULL);
    pthread_cond_init(&own->changed, NULL);
    int error = pthread_create(&own->thread, NULL, checkpointer_thread, own);
    if (error != 0) {
        device_close(own->device);
        free(own);
        return status_from_errno(error, "cannot start the thread for checkpoints");
    }
    *out = own;
    return NULL;
}

/* With the lock held; the error if there will be nothing more. */
static status_t wait_idle(struct checkpointer *own)
{
    while (own->busy && own->aborted == NULL) pthread_cond_wait(&own->changed, &own->lock);
    return own->aborted != NULL ? status_new(STATUS_ABORTED, "%s", own->aborted) : NULL;
}

static status_t add(struct checkpointer *own, uint64_t number, bool last,
                    struct capture *(*take)(void *user), void *user)
{
    pthread_mutex_lock(&own->lock);
    status_t status = wait_idle(own);
    pthread_mutex_unlock(&own->lock);
    TRY(status);
    struct capture *capture = take(user);
    pthread_mutex_lock(&own->lock);
    own->capture = capture; /* if it was aborted meanwhile, the thread reports this one */
    own->number = number;
    own->last = last;
    own->busy = true;
    pthread_cond_broadcast(&own->changed);
    pthread_mutex_unlock(&own->lock);
    return NULL;
}

status_t checkpointer_add(struct checkpointer *own, uint64_t number,
                          struct capture *(*take)(void *user), void *user)
{
    return add(own, number, false, take, user);
}

status_t checkpointer_add_last(struct checkpointer *own, struct capture *(*take)(void *user),
                               void *user)
{
    return add(own, 0, true, take, user);
}

status_t checkpointer_wait(struct checkpointer *own, status_t *outcome)
{
    pthread_mutex_lock(&own->lock);
    status_t status = wait_idle(own);
    if (status == NULL) *outcome = status_copy(own->outcome);
    pthread_mutex_unlock(&own->lock);
    return status;
}

void checkpointer_abort(struct checkpointer *own, const char *why)
{
    pthread_mutex_lock(&own->lock);
    if (own->aborted == NULL) own->aborted = mem_strdup(why);
    if (own->comm != NULL) comm_abort(own->comm, why);
    pthread_cond_broadcast(&own->changed);
    pthread_mutex_unlock(&own->lock);
    link_close_gate(own->context->link, &own->gate, why);
}

void checkpointer_finish(struct checkpointer *own)
{
    if (own == NULL) return;
    pthread_mutex_lock(&own->lock);
    own->finishing = true;
    pthread_cond_broadcast(&own->changed);
    pthread_mutex_unlock(&own->lock);
    pthread_join(own->thread, NULL);
}

void checkpointer_free(struct checkpointer *own)
{
    if (own == NULL) return;
    lane_close(own->lane);
    leave_group(own);
    device_close(own->device);
    status_free(own->outcome);
    pthread_cond_destroy(&own->changed);
    pthread_mutex_destroy(&own->lock);
    gate_deinit(&own->gate);
    free(own->aborted);
    free(own);
}
