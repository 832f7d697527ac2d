/*
 * Pulls; see pull.h. Every rank works through the same orders in the same order, and makes a group
 * for each (side_group.h).
 */
#include "worker/pull.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/agreement.h"
#include "proto/message.h"
#include "worker/side_group.h"

enum { FINAL_JOINS = 10 }; /* how often the ranks try to make the final one's group */

struct pull_request {
    struct pull_request *next;
    uint64_t pull;
    struct snapshot *snapshot;
};

struct puller {
    const struct side_context *context;
    struct gate gate; /* of everything that a pull waits for */
    struct store_access store;
    struct rendezvous rendezvous;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct pull_request *first, **last;
    bool finishing, has_final; /* has_final: pull 0 is queued or in progress */
    char *aborted;     /* why; NULL if not */
    struct comm *comm; /* of the pull in progress */
    status_t final;    /* of pull 0 */
    int final_joins;   /* that were tried for it */
    struct device *device;
    struct lane_queue *lane; /* NULL after a failure that it did not survive */
};

/* The sink on rank 0: bytes go to the coordinator as they come. */
struct pull_sink {
    struct puller *puller;
    uint64_t pull;
    struct worker_upload *upload;
};

static status_t sink_begin(void *user, uint64_t total_size, uint64_t step)
{
    struct pull_sink *sink = user;
    const struct side_context *context = sink->puller->context;
    return upload_begin(context->link, &sink->puller->gate, context->job, context->attempt,
                        sink->pull, total_size, step, &sink->upload);
}

static status_t sink_write(void *user, const void *bytes, size_t size)
{
    struct pull_sink *sink = user;
    return upload_write(sink->upload, bytes, size);
}

/* The name of the pull's group. `round` counts the groups that were made for it before. */
static char *group_name(const struct pull_request *request, int round)
{
    if (round == 0) return mem_printf("pull-%llu", (unsigned long long)request->pull);
    return mem_printf("pull-%llu-%d", (unsigned long long)request->pull, round);
}

/* Makes the group of this pull and publishes it, so that puller_abort reaches it. */
static status_t join_group(struct puller *puller, const struct pull_request *request,
                           const char *group)
{
    const struct side_context *context = puller->context;
    struct comm *comm = NULL;
    if (!snapshot_is_sharded(request->snapshot)) return NULL;
    /* With the final one, rank 0 may come from a pull whose client takes its time. */
    TRY(side_group_join(context, &puller->rendezvous, group, request->pull == 0, &comm));
    pthread_mutex_lock(&puller->lock);
    puller->comm = comm;
    if (puller->aborted != NULL) comm_abort(comm, puller->aborted);
    pthread_mutex_unlock(&puller->lock);
    return NULL;
}

static void leave_group(struct puller *puller)
{
    pthread_mutex_lock(&puller->lock);
    struct comm *comm = puller->comm;
    puller->comm = NULL;
    pthread_mutex_unlock(&puller->lock);
    comm_free(comm);
}

/* How rank 0's part of the final state_dict ended. */
enum verdict { VERDICT_DONE, VERDICT_AGAIN, VERDICT_FAILED };

/* The coordinator went while the state_dict was on its way, or has no room for it, or a rank has no
 * memory, which all ranks know: not the end. */
static bool is_interrupted(status_t status)
{
    return status_code(status) == STATUS_UNAVAILABLE || status_lacks(status);
}

/*
 * Only rank 0 knows whether the coordinator has the final state_dict: it shares this, so that all
 * ranks repeat the pull, or none. Takes ownership of `status`; UNAVAILABLE means repeat.
 */
static status_t agree(struct puller *puller, struct comm *comm, status_t status, bool interrupted)
{
    bool root = puller->context->rank == 0;
    uint32_t verdict = status == NULL ? VERDICT_DONE : interrupted ? VERDICT_AGAIN : VERDICT_FAILED;
    const struct agreement ranks = {comm, &puller->lane, puller->context->timeout_ms};
    if (puller->lane == NULL)
        return status; /* a collective failed: the others cannot be
                        * notified */
    status_t shared = agreement_share(&ranks, &verdict, sizeof verdict, 0);
    if (root || status != NULL) {
        status_free(shared);
        return status;
    }
    if (shared != NULL) return shared;
    if (verdict == VERDICT_AGAIN)
        return status_new(STATUS_UNAVAILABLE, "the coordinator did not accept the weights");
    if (verdict == VERDICT_FAILED)
        return status_new(STATUS_ABORTED, "rank 0 could not send the weights");
    return NULL;
}

/* `again`: a final pull failed because no coordinator accepted it, on this rank or on rank 0, or
 * for lack of a group, which all ranks know. The group stays for the next round unless it failed,
 * in which case it failed on all ranks. */
static status_t run_pull(struct puller *puller, const struct pull_request *request,
                         const char *group, bool *again)
{
    const struct side_context *context = puller->context;
    *again = false;
    if (puller->lane == NULL) TRY(lane_open(puller->device, LANE_COMM, &puller->lane));
    if (puller->comm == NULL) {
        *again = request->pull == 0 && ++puller->final_joins < FINAL_JOINS;
        TRY(join_group(puller, request, group));
    }
    struct comm *comm = puller->comm;
    struct pull_sink sink = {.puller = puller, .pull = request->pull};
    const struct state_dict_sink callbacks = {sink_begin, sink_write, &sink};
    status_t status = state_dict_stream(request->snapshot, comm, &puller->lane,
                                        context->rank == 0 ? &callbacks : NULL);
    if (status == NULL && sink.upload != NULL) status = upload_finish(sink.upload);
    else upload_cancel(sink.upload);
    /* An earlier attempt at it arrived, and only the answer was lost. */
    if (request->pull == 0 && status_code(status) == STATUS_ALREADY_EXISTS) {
        status_free(status);
        status = NULL;
    }
    bool interrupted = context->rank == 0 && is_interrupted(status);
    if (request->pull == 0 && comm != NULL) status = agree(puller, comm, status, interrupted);
    *again = request->pull == 0 &&
             (interrupted || (context->rank != 0 && comm != NULL && is_interrupted(status)));
    /* Of a collective that failed only this rank knows what it lacked. */
    if (puller->lane == NULL && status_lacks(status)) *again = false;
    if (puller->lane == NULL || !*again) leave_group(puller);
    return status;
}

/* A final state_dict is sent again until a coordinator has it. */
static status_t run_until_done(struct puller *puller, const struct pull_request *request)
{
    struct link *link = puller->context->link;
    for (int round = 0;; round++) {
        bool again = false;
        AUTO_FREE char *group = group_name(request, round);
        status_t status = run_pull(puller, request, group, &again);
        if (status != NULL && !again) side_group_fail(puller->context, group, status);
        if (!again) return status;
        if (puller->context->rank == 0 && status_lacks(status))
            puller_report(puller->context, 0, status);
        log_status(LOG_INFO, "state_dict_again", status);
        if (!link_pause(link, &puller->gate, round) || !link_wait_attached(link, &puller->gate)) {
            leave_group(puller);
            return status_new(STATUS_ABORTED, "%s", puller->aborted);
        }
    }
}

void puller_report(const struct side_context *context, uint64_t pull, status_t status)
{
    Fsdpd__V1__PullFailed *failed = MESSAGE_NEW(failed, fsdpd__v1__pull_failed__init);
    failed->pull = pull;
    failed->code = (uint32_t)status_code(status);
    failed->message = mem_strdup(status_message(status));
    Fsdpd__V1__AttemptEvent *event = MESSAGE_NEW(event, fsdpd__v1__attempt_event__init);
    event->event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_PULL_FAILED;
    event->pull_failed = failed;
    link_post_event(context->link, context->job, context->attempt, event);
}

static void leave_unbegun(const struct side_context *context, const struct pull_request *request,
                          status_t why)
{
    AUTO_FREE char *group = group_name(request, 0);
    side_group_fail(context, group, why);
}

static void *puller_thread(void *argument)
{
    pthread_setname_np(pthread_self(), "pull");
    struct puller *puller = argument;
    pthread_mutex_lock(&puller->lock);
    for (;;) {
        while (puller->first == NULL && !puller->finishing)
            pthread_cond_wait(&puller->changed, &puller->lock);
        struct pull_request *request = puller->first;
        if (request == NULL) break;
        puller->first = request->next;
        if (puller->first == NULL) puller->last = &puller->first;
        status_t status = NULL;
        if (puller->aborted != NULL) status = status_new(STATUS_ABORTED, "%s", puller->aborted);
        pthread_mutex_unlock(&puller->lock);

        if (status == NULL) status = run_until_done(puller, request);
        else leave_unbegun(puller->context, request, status);
        if (status != NULL && request->pull != 0)
            puller_report(puller->context, request->pull, status);
        snapshot_free(request->snapshot);

        pthread_mutex_lock(&puller->lock);
        if (request->pull == 0) {
            puller->final = status;
            puller->has_final = false;
            pthread_cond_broadcast(&puller->changed);
        } else {
            status_free(status);
        }
        free(request);
    }
    pthread_mutex_unlock(&puller->lock);
    return NULL;
}

/* A device of its own, so that the pull's memory is not counted as the training's. */
static status_t open_lane(struct puller *puller)
{
    TRY(device_open("cpu", 1, &puller->device));
    status_t status = lane_open(puller->device, LANE_COMM, &puller->lane);
    if (status != NULL) device_close(puller->device);
    return status;
}

status_t puller_new(const struct side_context *context, struct puller **out)
{
    struct puller *puller = mem_alloc(sizeof *puller);
    puller->context = context;
    puller->store = (struct store_access){context->link, &puller->gate, context->store};
    puller->rendezvous = link_store_rendezvous(&puller->store);
    puller->last = &puller->first;
    status_t status = open_lane(puller);
    if (status != NULL) {
        free(puller);
        return status;
    }
    pthread_mutex_init(&puller->lock, NULL);
    pthread_cond_init(&puller->changed, NULL);
    int error = pthread_create(&puller->thread, NULL, puller_thread, puller);
    if (error != 0) {
        lane_close(puller->lane);
        device_close(puller->device);
        free(puller);
        return status_from_errno(error, "cannot start the pull thread");
    }
    *out = puller;
    return NULL;
}

void puller_add(struct puller *puller, uint64_t pull, struct snapshot *snapshot)
{
    struct pull_request *request = mem_alloc(sizeof *request);
    *request = (struct pull_request){.pull = pull, .snapshot = snapshot};
    pthread_mutex_lock(&puller->lock);
    *puller->last = request;
    puller->last = &request->next;
    puller->has_final = puller->has_final || pull == 0;
    pthread_cond_broadcast(&puller->changed);
    pthread_mutex_unlock(&puller->lock);
}

void puller_abort(struct puller *puller, const char *why)
{
    pthread_mutex_lock(&puller->lock);
    if (puller->aborted == NULL) puller->aborted = mem_strdup(why);
    if (puller->comm != NULL) comm_abort(puller->comm, why);
    pthread_mutex_unlock(&puller->lock);
    link_close_gate(puller->context->link, &puller->gate, why);
}

void puller_wait_final(struct puller *puller)
{
    pthread_mutex_lock(&puller->lock);
    while (puller->has_final) pthread_cond_wait(&puller->changed, &puller->lock);
    pthread_mutex_unlock(&puller->lock);
}

status_t puller_finish(struct puller *puller)
{
    if (puller == NULL) return NULL;
    pthread_mutex_lock(&puller->lock);
    puller->finishing = true;
    pthread_cond_broadcast(&puller->changed);
    pthread_mutex_unlock(&puller->lock);
    pthread_join(puller->thread, NULL);
    return puller->final;
}

void puller_free(struct puller *puller)
{
    if (puller == NULL) return;
    lane_close(puller->lane);
    device_close(puller->device);
    pthread_cond_destroy(&puller->changed);
    pthread_mutex_destroy(&puller->lock);
    gate_deinit(&puller->gate);
    free(puller->aborted);
    free(puller);
}
