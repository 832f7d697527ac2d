/*
 * Attempts; see attempt.h. The verdict waits, for a bounded time, until every rank has said how it
 * ended: when one dies, the others often report the broken connection first, and the reason must
 * name the one that died.
 */
#include "coordinator/attempt.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/checkpoints.h"
#include "coordinator/logs.h"
#include "coordinator/orders.h"
#include "coordinator/pulls.h"
#include "coordinator/reattach.h"
#include "coordinator/rendezvous.h"
#include "coordinator/retry.h"
#include "coordinator/rewrap.h"
#include "coordinator/supervisor.h"
#include "coordinator/traces.h"
#include "coordinator/uploads.h"

char *attempt_store_name(const job_message *message)
{
    return mem_printf("%s/%u", message->id, message->attempt);
}

bool attempt_rank_has_ended(const struct rank *rank)
{
    return rank->state == RANK_FINISHED || rank->state == RANK_LOST;
}

/* NCCL refuses a group with a device in it twice; all ranks go the same way. */
static bool is_staged(const struct job *job)
{
    for (int r = 0; r < job->world; r++) {
        const struct worker *worker = job->ranks[r].worker;
        if (job->world > 1 && worker != NULL && worker->shares_device) return true;
    }
    return false;
}

/* As many ranks of the job have the memory of this one. */
static uint32_t sharers_of(const struct job *job, int rank)
{
    const struct worker *worker = job->ranks[rank].worker;
    uint32_t count = 0;
    for (int r = 0; r < job->world; r++) {
        const struct worker *other = job->ranks[r].worker;
        count += other != NULL && worker_shares_memory(worker, other);
    }
    return count;
}

static void send_assignment(struct job *job, int rank, const char *store,
                            const struct checkpoint_place *place)
{
    struct worker *worker = job->ranks[rank].worker;
    Fsdpd__V1__Assignment assignment = FSDPD__V1__ASSIGNMENT__INIT;
    assignment.job = job->message->id;
    assignment.attempt = job->message->attempt;
    assignment.rank = (uint32_t)rank;
    assignment.world = (uint32_t)job->world;
    assignment.spec = job->message->spec;
    assignment.store = (char *)store;
    assignment.timeout_ms = (uint32_t)job->c->options.limits.peer_timeout_ms;
    assignment.address = worker->address;
    assignment.checkpoint_folder = place->folder;
    assignment.run = place->run;
    assignment.resume = place->resume;
    assignment.must_resume = place->must_resume;
    assignment.staged = is_staged(job);
    assignment.sharers = sharers_of(job, rank);
    Fsdpd__V1__CoordinatorMessage message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    message.message_case = FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ASSIGNMENT;
    message.assignment = &assignment;
    worker_send(worker, &message);
}

void attempt_begin(struct job *job, struct worker **workers)
{
    job_message *message = job->message;
    status_t status = checkpoints_check_workers(job, workers, (int)message->spec->workers);
    if (status != NULL) {
        job_set_state(job, JOB_FAILED, "CHECKPOINT_DIRECTORY", "%s", status_message(status));
        status_free(status);
        return;
    }
    struct checkpoint_place place;
    status = checkpoints_find_place(job, workers, (int)message->spec->workers, &place);
    if (status != NULL) {
        retry_start_later(job, status);
        return;
    }
    message->attempt++;
    for (size_t i = 0; i < message->n_workers; i++) free(message->workers[i]);
    free(message->workers);
    job->world = (int)message->spec->workers;
    message->n_workers = (size_t)job->world;
    message->workers = mem_alloc_array(message->n_workers, sizeof *message->workers);
    job->ranks = mem_alloc_array((size_t)job->world, sizeof *job->ranks);
    job->report = job->report_kept = 0;
    job->failures = 0;
    job->retry_at = 0;
    for (int r = 0; r < job->world; r++) {
        struct worker *worker = workers[r];
        message->workers[r] = mem_strdup(worker->id);
        job->ranks[r] = (struct rank){.worker = worker,
                                      .worker_id = mem_strdup(worker->id),
                                      .pid = worker->pid};
        worker_assign(worker, message->id, message->attempt, r);
    }
    char *store = attempt_store_name(message);
    rendezvous_begin(job->c, store);
    job_set_state(job, JOB_STARTING, "STARTING", "%d worker%s set up the job", job->world,
                  job->world == 1 ? "" : "s");
    for (int r = 0; r < job->world; r++) send_assignment(job, r, store, &place);
    free(store);
    free(place.folder);
    free(place.run);
    coordinator_hurry(job->c);
}

void attempt_clear(struct job *job)
{
    for (int r = 0; job->ranks != NULL && r < job->world; r++) {
        free(job->ranks[r].worker_id);
        free(job->ranks[r].reason);
        free(job->ranks[r].message);
    }
    free(job->ranks);
    job->ranks = NULL;
    job->world = 0;
    job->ending = job->cancel_ordered = false;
    job->escalate_at = 0;
    store_stop_deinit(&job->stop);
    orders_clear(job);
    job->vacate_order = 0;
}

void attempt_send_order(struct job *job, struct rank *rank, const Fsdpd__V1__Order *kept)
{
    Fsdpd__V1__Order view = *kept, *order = &view;
    order->job = job->message->id;
    order->attempt = job->message->attempt;
    Fsdpd__V1__CoordinatorMessage message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    message.message_case = FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ORDER;
    message.order = order;
    worker_send(rank->worker, &message);
}

/* Orders all ranks that still run to stop, also without the agreement of the others. */
static void stop_at_once(struct job *job, const char *why)
{
    Fsdpd__V1__CancelOrder cancel = FSDPD__V1__CANCEL_ORDER__INIT;
    cancel.at_once = true;
    cancel.message = (char *)why;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.order_case = FSDPD__V1__ORDER__ORDER_CANCEL;
    order.cancel = &cancel;
    order.sequence = job->orders.last + 1; /* outside of the order of orders: nothing follows */
    for (int r = 0; r < job->world; r++) {
        struct rank *rank = &job->ranks[r];
        if (rank->worker == NULL || rank->stopped) continue;
        rank->stopped = true;
        attempt_send_order(job, rank, &order);
        worker_stop_by(rank->worker, job->c->options.limits.kill_ms);
    }
}

void attempt_end(struct job *job)
{
    if (job->ranks == NULL) return;
    stop_at_once(job, "the attempt is over");
    for (int r = 0; r < job->world; r++) job->ranks[r].worker = NULL;
    if (!job->unsaved) attempt_release(job);
    char *store = attempt_store_name(job->message);
    rendezvous_end(job->c, store);
    free(store);
    attempt_clear(job);
}

void attempt_release(struct job *job)
{
    const job_message *message = job->message;
    for (size_t r = 0; r < message->n_workers; r++) {
        struct worker *worker = workers_find(job->c, message->workers[r]);
        if (worker != NULL) reattach_release(worker, message->id, message->attempt);
    }
}

void attempt_acknowledge(struct job *job)
{
    if (job->ranks == NULL || job->report_kept == 0) return;
    struct worker *worker = workers_find(job->c, job->ranks[0].worker_id);
    if (worker == NULL) return;
    Fsdpd__V1__Ack ack = FSDPD__V1__ACK__INIT;
    ack.job = job->message->id;
    ack.attempt = job->message->attempt;
    ack.report = job->report_kept;
    Fsdpd__V1__CoordinatorMessage message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    message.message_case = FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ACK;
    message.ack = &ack;
    worker_send(worker, &message);
}

bool attempt_is_local(const struct job *job)
{
    for (int r = 0; r < job->world; r++)
        if (supervisor_has_slot(job->c, job->ranks[r].worker_id)) return true;
    return false;
}

struct rank *attempt_find_rank(const struct job *job, uint32_t attempt, const char *worker_id)
{
    if (job->ranks == NULL || job->message->attempt != attempt) return NULL;
    for (int r = 0; r < job->world; r++)
        if (strcmp(job->ranks[r].worker_id, worker_id) == 0) return &job->ranks[r];
    return NULL;
}

/* A rank failed: the others cannot go on without it. */
static void begin_ending(struct job *job, struct rank *rank)
{
    rank->failure = ++job->failures;
    if (job->ending) return;
    job->ending = true;
    job->settle_at = coordinator_now() + job->c->options.limits.settle_ms;
    coordinator_hurry(job->c);
    char *why = mem_printf("rank %d (%s) failed", (int)(rank - job->ranks), rank->worker_id);
    stop_at_once(job, why);
    free(why);
}

void attempt_stop_rest(struct job *job)
{
    stop_at_once(job, "another rank failed");
}

/* How telling a rank's end is; 0: it did not fail. */
static int weight(const struct rank *rank)
{
    if (rank->state == RANK_FINISHED && rank->code == STATUS_OK) return 0;
    if (rank->state == RANK_ASSIGNED || rank->state == RANK_STARTED) return 0;
    bool lost = rank->state == RANK_LOST || rank->state == RANK_AWAY;
    if (lost && !rank->cut_off) return 4;
    bool consequence = rank->code == STATUS_ABORTED || rank->code == STATUS_CANCELLED ||
                       rank->code == STATUS_UNAVAILABLE || rank->code == STATUS_DEADLINE_EXCEEDED;
    if (!lost && !consequence) return 3;
    return lost ? 1 : 2;
}

static const struct rank *find_culprit(const struct job *job)
{
    const struct rank *culprit = NULL;
    for (int r = 0; r < job->world; r++) {
        const struct rank *rank = &job->ranks[r];
        int mine = weight(rank), best = culprit != NULL ? weight(culprit) : 0;
        if (mine > best || (mine > 0 && mine == best && rank->failure < culprit->failure))
            culprit = rank;
    }
    return culprit;
}

/* Whether the ranks' end was a pause: one that says so knows that the checkpoint is on the disk. */
static bool has_paused(const struct job *job)
{
    for (int r = 0; r < job->world; r++) {
        const struct rank *rank = &job->ranks[r];
        if (rank->state == RANK_FINISHED && rank->reason != NULL &&
            strcmp(rank->reason, "PAUSED") == 0)
            return true;
    }
    return false;
}

/* Whether what it runs on is to blame, rather than the job. */
static bool is_machine_failure(const struct rank *culprit)
{
    int telling = weight(culprit);
    return telling == 4 || telling == 1 || (telling == 2 && culprit->code != STATUS_CANCELLED);
}

/* Ends the attempt, or the job, by what its ranks said. The job may be freed. */
static void decide(struct job *job)
{
    const struct rank *culprit = find_culprit(job);
    const job_message *message = job->message;
    unsigned long long step = (unsigned long long)message->step;
    if (job->stop.cancelled) {
        job_set_state(job, JOB_CANCELLED, "CANCELLED", "%s at step %llu", job->stop.message, step);
    } else if (has_paused(job) && job->stop.vacating) {
        job_set_state(job, JOB_QUEUED, "WORKER_DRAINED", "%s; goes on from step %llu",
                      job->stop.message, step);
    } else if (has_paused(job) && job->stop.shut_down) {
        job_set_state(job, JOB_QUEUED, "SHUTDOWN",
                      "fsdpd was stopped; the job goes on from step %llu when it is back", step);
    } else if (has_paused(job)) {
        job_set_state(job, JOB_PAUSED, "PAUSED", "paused at step %llu: fsdpctl resume %s", step,
                      message->id);
    } else if (job->stop.shut_down) {
        retry_attempt_interrupted(job, "SHUTDOWN",
                                  "fsdpd was stopped while the job ran (step %llu)", step);
    } else if (job->stop.code != NULL && job->stop.machine) {
        retry_attempt_failed(job, true, job->stop.code, "%s; it ended at step %llu",
                             job->stop.message, step);
    } else if (job->stop.code != NULL) {
        job_set_state(job, JOB_FAILED, job->stop.code, "%s; it ended at step %llu",
                      job->stop.message, step);
    } else if (culprit == NULL) {
        retry_attempt_failed(job, true, "ABORTED", "the attempt ended without a result");
    } else if (culprit->state == RANK_FINISHED && job->world == 1) {
        retry_attempt_failed(job, is_machine_failure(culprit), culprit->reason, "%s",
                             culprit->message);
    } else {
        bool finished = culprit->state == RANK_FINISHED;
        retry_attempt_failed(job, is_machine_failure(culprit),
                             finished ? culprit->reason : "WORKER_LOST",
                             finished ? "rank %d (%s): %s" : "rank %d (%s) %s",
                             (int)(culprit - job->ranks), culprit->worker_id, culprit->message);
    }
}

/* Whether it ends because a user wanted that, and not for what else happened meanwhile. */
static bool is_wish(const struct job *job)
{
    const struct store_stop *stop = &job->stop;
    return stop->cancelled || has_paused(job) || (stop->vacating && stop->machine);
}

/* The verdict, in the name of the user whose wish it is, if it is one's. The job may be freed. */
static void give_verdict(struct job *job)
{
    struct coordinator *c = job->c;
    const char *actor = c->actor;
    char *by = mem_strdup(is_wish(job) && job->stop.by != NULL ? job->stop.by : "");
    c->actor = by;
    decide(job);
    c->actor = actor;
    free(by);
}

void attempt_check(struct job *job)
{
    if (job->ranks == NULL) return;
    bool well = true;
    for (int r = 0; r < job->world; r++) {
        const struct rank *rank = &job->ranks[r];
        if (!attempt_rank_has_ended(rank)) return;
        if (rank->state != RANK_FINISHED || rank->code != STATUS_OK) well = false;
    }
    if (!well) {
        give_verdict(job);
        return;
    }
    const job_message *message = job->message;
    if (message->spec->save_model && !message->has_state_dict) {
        if (uploads_has(job)) return; /* comes back here when it has ended */
        job_set_state(job, JOB_FAILED, "STATE_DICT_LOST",
                      "training finished, but the final state_dict did not arrive");
        return;
    }
    job_set_state(job, JOB_SUCCEEDED, "DONE", "trained %llu steps",
                  (unsigned long long)message->step);
}

/*
 * An earlier attempt had reported these to nobody before it took the checkpoint that this one goes
 * on from. What is recorded already, of whatever attempt, is not recorded again.
 */
static void add_unrecorded(struct job *job, const Fsdpd__V1__UnrecordedReports *reports)
{
    const Fsdpd__V1__Metrics *last = job->message->metrics;
    uint64_t recorded = last != NULL ? last->step : 0;
    for (size_t i = 0; reports != NULL && i < reports->n_metrics; i++) {
        const Fsdpd__V1__UnrecordedMetrics *entry = reports->metrics[i];
        if (entry->metrics == NULL || entry->metrics->step <= recorded) continue;
        if (entry->thinned > 0) job_add_dropped(job, entry->thinned);
        job_add_metrics(job, entry->metrics);
    }
}

/* From where rank 0 goes on. Steps behind that are done again: the job is where it resumes. */
static void note_start(struct job *job, const Fsdpd__V1__Started *started)
{
    struct buf text = {0};
    buf_printf(&text, "training on %d worker%s", job->world, job->world == 1 ? "" : "s");
    if (is_staged(job)) buf_add_text(&text, " that share devices, through host memory");
    if (started->resumed_name[0] != '\0')
        buf_printf(&text, ", on from step %llu", (unsigned long long)started->resumed_step);
    if (started->resumed_note[0] != '\0') buf_printf(&text, "; %s", started->resumed_note);
    job_go_back(job, started->resumed_step);
    free(job->started_text);
    job->started_text = buf_take(&text);
}

static void on_started(struct job *job, struct rank *rank, const Fsdpd__V1__Started *started)
{
    if (rank->state != RANK_ASSIGNED) return;
    rank->state = RANK_STARTED;
    rank->plan_hash = started->plan_hash;
    if (rank == job->ranks) {
        add_unrecorded(job, started->unrecorded);
        note_start(job, started);
    }
    if (started->steps > 0) job->message->steps = started->steps;
    attempt_check_started(job);
}

void attempt_check_started(struct job *job)
{
    if (job->message->state != FSDPD__V1__JOB_STATE__STARTING) return;
    for (int r = 0; r < job->world; r++)
        if (job->ranks[r].state != RANK_STARTED) return;
    for (int r = 1; r < job->world; r++) {
        struct rank *other = &job->ranks[r];
        if (other->plan_hash == job->ranks[0].plan_hash) continue;
        free(other->reason);
        free(other->message);
        other->reason = mem_strdup("PLAN_MISMATCH");
        other->message = mem_printf("its plan (%016llx) is not that of rank 0 (%016llx)",
                                    (unsigned long long)other->plan_hash,
                                    (unsigned long long)job->ranks[0].plan_hash);
        other->code = STATUS_FAILED_PRECONDITION;
        begin_ending(job, other);
        return;
    }
    if (job->ending) return;
    if (job->message->plan != NULL && job->message->plan->hash != job->ranks[0].plan_hash)
        log_event(LOG_WARNING, "plan_changed", "job=%s", job->message->id);
    job_set_state(job, JOB_RUNNING, "RUNNING", "%s",
                  job->started_text != NULL ? job->started_text : "training");
    if (job->cancel_ordered) job_set_reason(job, "CANCELLING", "ends at its next step boundary");
    pulls_advance(job);
    checkpoints_advance(job);
}

/* Keeps what the rank said. A mismatch of plans that was found before stays the reason. */
static void on_finished(struct job *job, struct rank *rank, const Fsdpd__V1__Finished *finished)
{
    if (attempt_rank_has_ended(rank)) return;
    rank->state = RANK_FINISHED;
    rank->worker = NULL;
    if (finished->step > job->message->step) job->message->step = finished->step;
    if (job->message->metrics == NULL) {
        job->message->metrics = mem_alloc(sizeof *job->message->metrics);
        fsdpd__v1__metrics__init(job->message->metrics);
    }
    if (finished->memory_peak_bytes > job->message->metrics->memory_peak_bytes)
        job->message->metrics->memory_peak_bytes = finished->memory_peak_bytes;
    if (finished->code != STATUS_OK && rank->reason == NULL) {
        rank->code = (int)finished->code;
        rank->reason = mem_strdup(finished->reason[0] != '\0'
                                      ? finished->reason
                                      : status_code_name((enum status_code)finished->code));
        rank->message =
            mem_strdup(finished->message[0] != '\0' ? finished->message : "it gave no message");
    }
    /* After an order to cancel, that a rank ends so is no failure: the others follow by themselves.
     */
    bool ordered = job->cancel_ordered || job->stop.cancelled || job->checkpoint_order != 0;
    bool obeyed = (ordered || has_paused(job)) && rank->code == STATUS_CANCELLED;
    if (rank->code != STATUS_OK && rank->failure == 0 && !obeyed) begin_ending(job, rank);
    attempt_check(job);
}

/* The rank that reports, unless its attempt is over; what it reports twice counts once. */
static struct rank *take_report(struct worker *worker, const Fsdpd__V1__AttemptEvent *event,
                                struct job **job)
{
    *job = jobs_find(worker->c, event->job);
    struct rank *rank = *job != NULL ? attempt_find_rank(*job, event->attempt, worker->id) : NULL;
    bool finished = event->event_case == FSDPD__V1__ATTEMPT_EVENT__EVENT_FINISHED;
    if (finished && worker->job != NULL && strcmp(worker->job, event->job) == 0 &&
        worker->attempt == event->attempt)
        worker_set_idle(worker);
    if (rank == NULL) {
        if (event->report != 0) reattach_release(worker, event->job, event->attempt);
        return NULL;
    }
    if (event->report == 0) return rank;
    if (event->report <= rank->report) return NULL;
    rank->report = event->report;
    if (rank != (*job)->ranks) return rank;
    if (event->thinned > 0) job_add_dropped(*job, event->thinned);
    (*job)->report = event->report;
    job_sync_soon(*job);
    return rank;
}

void attempt_answer_heartbeat(struct worker *worker)
{
    Fsdpd__V1__Ack ack = FSDPD__V1__ACK__INIT;
    struct job *job = worker->job != NULL ? jobs_find(worker->c, worker->job) : NULL;
    struct rank *rank = job != NULL ? attempt_find_rank(job, worker->attempt, worker->id) : NULL;
    /* Of other ranks than the first, what counts until their end is that they have started. */
    if (rank != NULL && rank != job->ranks && rank->state == RANK_STARTED &&
        job->message->state == FSDPD__V1__JOB_STATE__RUNNING) {
        ack.job = job->message->id;
        ack.attempt = job->message->attempt;
        ack.report = rank->report;
    }
    Fsdpd__V1__CoordinatorMessage answer = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    answer.message_case = FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ACK;
    answer.ack = &ack;
    worker_send(worker, &answer);
}

void attempt_event(struct worker *worker, const Fsdpd__V1__AttemptEvent *event)
{
    struct job *job = NULL;
    struct rank *rank = take_report(worker, event, &job);
    if (event->event_case == FSDPD__V1__ATTEMPT_EVENT__EVENT_LOGS) {
        if (rank == NULL && job != NULL &&
            attempt_find_rank(job, event->attempt, worker->id) != NULL)
            return; /* a repetition */
        bool mine = worker->job != NULL && strcmp(worker->job, event->job) == 0 &&
                    worker->attempt == event->attempt; /* also of one that is over */
        int from = rank != NULL ? (int)(rank - job->ranks) : mine ? worker->rank : -1;
        if (from >= 0) logs_report(worker->c, event->job, event->attempt, from, event->logs);
        return;
    }
    if (rank == NULL) return;
    int number = (int)(rank - job->ranks);
    switch (event->event_case) {
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_STARTED: on_started(job, rank, event->started); break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_METRICS:
        if (number == 0) job_add_metrics(job, event->metrics);
        break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_EPOCH:
        if (number == 0) job_add_epoch(job, event->epoch);
        break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_VALIDATION:
        if (number == 0) job_add_validation(job, event->validation);
        break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_FINISHED: on_finished(job, rank, event->finished); break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_PULL_FAILED: pulls_failed(job, event->pull_failed); break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_TRACE: traces_report(job, number, event->trace); break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_WRAP:
        if (number == 0) rewrap_report(job, event->wrap);
        break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_CHECKPOINT:
        if (number == 0) checkpoints_report(job, event->checkpoint);
        break;
    default: break; /* of a later version */
    }
}

void attempt_lose_rank(struct job *job, struct rank *rank, const char *how)
{
    char *message = mem_strdup(how); /* which may be the rank's own */
    free(rank->message);
    rank->message = message;
    rank->worker = NULL;
    rank->state = RANK_LOST;
    coordinator_hurry(job->c);
    if (rank->failure == 0) begin_ending(job, rank);
    attempt_check(job);
}

/* It may come back; if something failed already, only its exit status is waited for. */
static void let_go(struct job *job, struct rank *rank, const char *how)
{
    const struct coordinator_limits *limits = &job->c->options.limits;
    free(rank->message);
    rank->message = mem_strdup(how);
    rank->worker = NULL;
    rank->state = RANK_AWAY;
    rank->since_start = false;
    rank->leave_by = coordinator_now() + (job->ending ? limits->exit_wait_ms : limits->reattach_ms);
    traces_rank_away(job, (int)(rank - job->ranks));
    coordinator_hurry(job->c);
}

void attempt_worker_lost(struct worker *worker, const char *how, bool certain)
{
    struct coordinator *c = worker->c;
    if (c->closing) return; /* it goes on without us */
    for (int i = c->job_count - 1; i >= 0; i--) {
        struct job *job = i < c->job_count ? c->jobs[i] : NULL;
        if (job == NULL || job->ranks == NULL) continue;
        struct rank *rank = attempt_find_rank(job, job->message->attempt, worker->id);
        if (rank == NULL || attempt_rank_has_ended(rank)) continue;
        rank->cut_off = worker->overdue;
        if (certain) attempt_lose_rank(job, rank, how);
        else let_go(job, rank, how);
    }
}

void attempt_process_exited(struct coordinator *c, const char *worker_id, int64_t pid,
                            const char *how)
{
    for (int i = c->job_count - 1; i >= 0; i--) {
        struct job *job = i < c->job_count ? c->jobs[i] : NULL;
        for (int r = 0; job != NULL && r < job->world; r++) {
            struct rank *rank = &job->ranks[r];
            /* Of a job of before a restart no process is known, only the worker's name. */
            bool same = rank->pid != 0 ? rank->pid == pid : strcmp(rank->worker_id, worker_id) == 0;
            if (rank->state != RANK_AWAY || !same) continue;
            attempt_lose_rank(job, rank, how); /* may free the job */
            return;
        }
    }
}

/* Ends the attempt at a step boundary; whose wish it is, the caller has noted. */
static void order_end(struct job *job, const char *why)
{
    if (job->cancel_ordered) return;
    job->cancel_ordered = true;
    job->escalate_at = coordinator_now() + job->c->options.limits.cancel_ms;
    coordinator_hurry(job->c);
    Fsdpd__V1__CancelOrder cancel = FSDPD__V1__CANCEL_ORDER__INIT;
    cancel.message = (char *)why;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.order_case = FSDPD__V1__ORDER__ORDER_CANCEL;
    order.cancel = &cancel;
    orders_give(job, &order);
    job_set_reason(job, "CANCELLING", "%s; it ends at its next step boundary", why);
}

void attempt_cancel(struct job *job, const char *by)
{
    if (job->ranks == NULL || job->ending) return; /* it has failed already */
    job->stop.cancelled = true;
    job->stop.pausing = false;
    message_set_text(&job->stop.by, by); /* which may be the old one */
    free(job->stop.message);
    by = job->stop.by;
    job->stop.message = mem_printf(by[0] != '\0' ? "cancelled by %s" : "cancelled%s", by);
    order_end(job, job->stop.message);
}

void attempt_shut_down(struct job *job, const char *why)
{
    struct coordinator *c = job->c;
    if (job->ranks == NULL || job->ending || job->cancel_ordered) return; /* it ends anyway */
    if (job->stop.pausing || job->stop.vacating) return;                  /* so, too */
    job->stop.shut_down = true;
    message_set_text(&job->stop.message, why);
    if (job->message->state != FSDPD__V1__JOB_STATE__RUNNING) {
        order_end(job, job->stop.message);
        return;
    }
    job->checkpoint_order = ++c->last_checkpoint;
    job->escalate_at = coordinator_now() + c->options.limits.save_ms;
    coordinator_hurry(c);
    attempt_order_checkpoint(job, job->checkpoint_order, true);
    job_set_reason(job, "STOPPING", "%s: takes a checkpoint at its next step boundary, then ends",
                   why);
}

void attempt_not_saved(struct job *job)
{
    if (job->stop.shut_down && job->ranks != NULL && !job->ending)
        order_end(job, job->stop.message);
}

void attempt_stop(struct job *job, const char *code, bool machine, const char *why)
{
    if (job->ranks == NULL || job->ending || job->cancel_ordered) return;
    message_set_text(&job->stop.code, code);
    job->stop.machine = machine;
    message_set_text(&job->stop.message, why);
    order_end(job, job->stop.message);
}

void attempt_order_pull(struct job *job, uint64_t pull)
{
    Fsdpd__V1__PullOrder body = FSDPD__V1__PULL_ORDER__INIT;
    body.pull = pull;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.order_case = FSDPD__V1__ORDER__ORDER_PULL;
    order.pull = &body;
    orders_give(job, &order);
}

void attempt_order_trace(struct job *job, uint64_t trace, uint32_t steps)
{
    Fsdpd__V1__TraceOrder body = FSDPD__V1__TRACE_ORDER__INIT;
    body.trace = trace;
    body.steps = steps;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.order_case = FSDPD__V1__ORDER__ORDER_TRACE;
    order.trace = &body;
    orders_give(job, &order);
}

void attempt_order_checkpoint(struct job *job, uint64_t number, bool pause)
{
    Fsdpd__V1__CheckpointOrder body = FSDPD__V1__CHECKPOINT_ORDER__INIT;
    body.number = number;
    body.pause = pause;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.order_case = FSDPD__V1__ORDER__ORDER_CHECKPOINT;
    order.checkpoint = &body;
    orders_give(job, &order);
}

uint64_t attempt_order_wrap(struct job *job, const Fsdpd__V1__WrapSpec *wrap)
{
    Fsdpd__V1__SetWrapOrder body = FSDPD__V1__SET_WRAP_ORDER__INIT;
    body.change = ++job->c->last_wrap;
    body.wrap = (Fsdpd__V1__WrapSpec *)wrap;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.order_case = FSDPD__V1__ORDER__ORDER_WRAP;
    order.wrap = &body;
    orders_give(job, &order);
    return body.change;
}

/* A rank that was away for too long: what happened to it is not known. */
static void give_up(struct job *job, struct rank *rank)
{
    char *how = rank->since_start || job->ending
                    ? mem_strdup(rank->message)
                    : mem_printf("%s, and did not attach again within %g s", rank->message,
                                 job->c->options.limits.reattach_ms / 1000.0);
    attempt_lose_rank(job, rank, how);
    free(how);
}

void attempt_tick(struct job *job, int64_t now)
{
    struct coordinator *c = job->c;
    for (int r = 0; job->ranks != NULL && r < job->world; r++) {
        struct rank *rank = &job->ranks[r];
        if (rank->state != RANK_AWAY || now < rank->leave_by) continue;
        char *id = mem_strdup(job->message->id);
        give_up(job, rank);
        bool over = jobs_find(c, id) != job;
        free(id);
        if (over) return;
    }
    if (job->ranks == NULL) return;
    if (job->escalate_at != 0 && now >= job->escalate_at) {
        job->escalate_at = 0;
        stop_at_once(job, "the order to end at a step boundary had no effect");
        for (int r = 0; r < job->world; r++)
            if (job->ranks[r].state == RANK_AWAY) job->ranks[r].leave_by = now;
    }
    if (job->ending && now >= job->settle_at) give_verdict(job);
}
