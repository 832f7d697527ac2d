/*
 * An attempt's life; see attempt.h. The training thread owns the session and the communicators.
 * The loop's input (orders, an abort) is guarded by one lock; aborting reaches into
 * whatever the training thread is doing at that moment: a wait for the store, a collective, a step,
 * a pull.
 */
#include "worker/attempt.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/mem.h"
#include "planning/profile.h"
#include "proto/message.h"
#include "runtime/backend.h"
#include "worker/attempt_internal.h"
#include "worker/job_message.h"
#include "worker/side_group.h"

static int threads_of(const struct worker_attempt *attempt)
{
    int threads = (int)attempt->assignment->threads;
    if (threads == 0) threads = attempt->options->threads;
    return threads > 0 ? threads : 1;
}

/* Of all ranks' devices, if something is known of this worker's; else 0. */
static double peak_flops(const struct worker_attempt *attempt, const struct device *device)
{
    const Fsdpd__V1__JobSpec *spec = attempt->assignment->spec;
    struct profile profile;
    char model[128];
    status_t status = profile_of_device(device, &profile, model, sizeof model);
    if (status != NULL) {
        log_event(LOG_INFO, "mfu_unknown", "reason=\"%s\"", status_message(status));
        status_free(status);
        return 0;
    }
    bool low =
        spec->precision != NULL && spec->precision->param_dtype == FSDPD__V1__DTYPE__DTYPE_BF16;
    double flops = low ? profile.peak_flops_bf16 : profile.peak_flops_f32;
    if (profile.here) flops *= threads_of(attempt);
    return flops * attempt->assignment->world;
}

void attempt_abort(struct worker_attempt *attempt, const char *why)
{
    pthread_mutex_lock(&attempt->lock);
    if (attempt->aborted == NULL) attempt->aborted = mem_strdup(why);
    if (attempt->session != NULL) train_session_abort(attempt->session, why);
    if (attempt->comm != NULL) comm_abort(attempt->comm, why);
    if (attempt->puller != NULL) puller_abort(attempt->puller, why);
    if (attempt->checkpointer != NULL) checkpointer_abort(attempt->checkpointer, why);
    pthread_cond_broadcast(&attempt->changed);
    pthread_mutex_unlock(&attempt->lock);
    link_close_gate(attempt->link, &attempt->gate, why);
}

void attempt_beat(struct worker_attempt *attempt, Fsdpd__V1__Heartbeat *heartbeat)
{
    pthread_mutex_lock(&attempt->lock);
    if (attempt->session != NULL) {
        heartbeat->step = train_session_step(attempt->session);
        heartbeat->evaluated_batch = train_session_evaluates(attempt->session);
        heartbeat->evaluates = heartbeat->evaluated_batch > 0;
        heartbeat->own_us = (uint64_t)train_session_own_ns(attempt->session) / 1000;
    }
    if (attempt->comm != NULL) {
        struct comm_progress progress = comm_progress(attempt->comm);
        heartbeat->collectives = progress.begun;
        heartbeat->waits = progress.waits;
    }
    pthread_mutex_unlock(&attempt->lock);
}

bool attempt_is(const struct worker_attempt *attempt, const char *job, uint32_t number)
{
    return attempt->assignment->attempt == number && strcmp(attempt->assignment->job, job) == 0;
}

void attempt_describe(struct worker_attempt *attempt, Fsdpd__V1__HeldAttempt *held)
{
    held->job = mem_strdup(attempt->assignment->job);
    held->attempt = attempt->assignment->attempt;
    held->rank = attempt->assignment->rank;
    held->world = attempt->assignment->world;
    held->running = true;
    pthread_mutex_lock(&attempt->lock);
    held->step = attempt->session != NULL ? train_session_step(attempt->session) : 0;
    held->plan_hash = attempt->plan_hash;
    held->steps = attempt->steps;
    attempt_describe_orders(attempt, held);
    pthread_mutex_unlock(&attempt->lock);
}

/* The training thread. */

/* Notes where the attempt is outside of a run; `joins`: it waits for the other ranks. */
static void note_place(struct worker_attempt *attempt, const char *place, bool joins)
{
    pthread_mutex_lock(&attempt->lock);
    attempt->place = place;
    attempt->place_since_ns = clock_monotonic_ns();
    attempt->joins = joins;
    pthread_mutex_unlock(&attempt->lock);
}

/* Publishes the objects that an abort must reach; returns the error if the abort came first. */
static status_t publish(struct worker_attempt *attempt, struct train_session *session,
                        struct comm *comm, struct puller *puller, struct checkpointer *checkpointer)
{
    pthread_mutex_lock(&attempt->lock);
    attempt->session = session;
    attempt->comm = comm;
    attempt->puller = puller;
    attempt->checkpointer = checkpointer;
    status_t status = NULL;
    if (attempt->aborted != NULL) status = status_new(STATUS_ABORTED, "%s", attempt->aborted);
    pthread_mutex_unlock(&attempt->lock);
    return status;
}

static void on_progress(void *user, uint64_t step)
{
    struct worker_attempt *attempt = user;
    struct executor *executor = train_session_executor(attempt->session);
    tracer_step(&attempt->tracer, executor);
    op_times_step(&attempt->op_times, executor, step);
}

/* Of a job that saves nothing the memory stays for the worker's next job. Otherwise the work arena
 * makes room for what is sent after the last step, which the plan does not count. The weights are
 * sent from where they are: the job is over, so nothing changes them. */
static status_t end_training(void *user, struct executor *executor, uint64_t step)
{
    (void)step;
    struct worker_attempt *attempt = user;
    if (attempt->final == NULL) {
        if (!attempt->saves_last_step) device_reuse_memory(attempt->device);
        return NULL;
    }
    TRY(executor_release_work(executor));
    puller_add(attempt->puller, 0, attempt->final);
    attempt->final = NULL;
    attempt->streams_final = true;
    return NULL;
}

/* The executor is about to be freed: the final weights must have been sent. */
static void release_final(void *user, status_t status)
{
    struct worker_attempt *attempt = user;
    if (!attempt->streams_final) return;
    if (status != NULL) puller_abort(attempt->puller, status_message(status));
    puller_wait_final(attempt->puller);
}

static status_t new_checkpointer(struct worker_attempt *attempt,
                                 const struct job_settings *settings,
                                 struct checkpointer **checkpointer)
{
    const Fsdpd__V1__CheckpointSpec *spec = attempt->assignment->spec->checkpoint;
    const struct checkpoint_settings *own = &settings->job.checkpoints;
    if (own->folder == NULL) return NULL;
    if (own->resume && attempt->side.rank == 0)
        log_status(LOG_WARNING, "unlisted_checkpoints_not_found",
                   unlisted_reports_post(&attempt->side, own, attempt->assignment));
    return checkpointer_new(&attempt->side, own->root, own->folder,
                            spec != NULL ? spec->keep : JOB_CHECKPOINTS_KEPT, checkpointer);
}

/* Joins the group for redundancy in memory: of host memory, apart from the training's. */
static status_t open_spare(struct worker_attempt *attempt, struct train_session *session)
{
    const Fsdpd__V1__Assignment *assignment = attempt->assignment;
    if (attempt->spare == NULL) return NULL;
    note_place(attempt, "joins the group for redundancy", assignment->world > 1);
    if (assignment->world > 1)
        TRY(side_group_join(&attempt->side, &attempt->rendezvous, "redundancy", true,
                            &attempt->spare_comm));
    const struct train_spare spare = {.kept = &attempt->spare->kept,
                                      .comm = attempt->spare_comm,
                                      .attempt = assignment->attempt,
                                      .since = assignment->kept_since,
                                      .shared = attempt->side.shared};
    train_session_set_spare(session, &spare);
    return NULL;
}

static void close_spare(struct worker_attempt *attempt, struct train_session *session)
{
    train_session_set_spare(session, &(struct train_spare){0});
    comm_free(attempt->spare_comm);
    attempt->spare_comm = NULL;
}

/* From the job's last group, if that was kept. */
static status_t join(struct worker_attempt *attempt, struct device *device, bool gloo,
                     struct comm **comm)
{
    const Fsdpd__V1__Assignment *assignment = attempt->assignment;
    const int world = (int)assignment->world;
    struct comm **kept = attempt->spare != NULL ? &attempt->spare->group : NULL;
    note_place(attempt, "joins the group", world > 1);
    if (world == 1 && kept != NULL) {
        comm_free(*kept);
        *kept = NULL;
    }
    if (world == 1) return NULL;
    TRY(backend_join(device, (int)assignment->rank, world, assignment->address, "train",
                     &attempt->rendezvous, assignment->timeout_ms, assignment->staged, !gloo, kept,
                     comm));
    log_event(LOG_INFO, "group_joined", "world=%d transport=\"%s\" through_host_memory=%d", world,
              comm_transport(*comm), assignment->staged);
    return NULL;
}

/* `again`: another attempt may follow. */
static void leave_group(struct worker_attempt *attempt, struct comm *comm, bool again)
{
    if (attempt->spare != NULL && again) attempt->spare->group = comm_keep(comm);
    else comm_free(comm);
}

static status_t join_and_train(struct worker_attempt *attempt, struct device *device,
                               struct train_session *session, const struct job_settings *settings)
{
    const Fsdpd__V1__Assignment *assignment = attempt->assignment;
    const struct plan *plan = train_session_plan(session);
    attempt->memory_planned = plan->peak_bytes;
    attempt->saves_last_step = settings->job.checkpoints.last_step;
    resident_reset_peak();
    log_event(LOG_INFO, "planned", "units=%d peak_bytes=%llu hash=%016llx", plan->units->unit_count,
              (unsigned long long)plan->peak_bytes, (unsigned long long)plan->hash);
    struct comm *comm = NULL;
    TRY(join(attempt, device, settings->job.gloo, &comm));
    status_t status = open_spare(attempt, session);
    note_place(attempt, "begins to train", false);
    struct puller *puller = NULL;
    if (status == NULL) status = puller_new(&attempt->side, &puller);
    struct checkpointer *checkpointer = NULL;
    if (status == NULL) status = new_checkpointer(attempt, settings, &checkpointer);
    if (status == NULL) status = publish(attempt, session, comm, puller, checkpointer);
    const struct train_hooks hooks = {
        .started = attempt_report_started,
        .metrics = attempt_report_metrics,
        .epoch = attempt_report_epoch,
        .validation = attempt_report_validation,
        .sampled = attempt_report_own_samples,
        .progress = on_progress,
        .latest_order = attempt_latest_order,
        .run_orders = attempt_run_orders,
        .user = attempt,
        .checkpoint = checkpointer != NULL ? attempt_take_checkpoint : NULL,
        .take_last = assignment->spec->save_model ? attempt_take_last : NULL,
        .released = release_final,
        .save_last = checkpointer != NULL ? attempt_save_last : NULL,
        .resumed = attempt_note_resumed,
        .noted = attempt_log_note,
        .reports = attempt_note_reports,
        .rewrapped = attempt_note_wrap,
        .tuned = attempt_report_tuned,
        .pack_reports = attempt->spare != NULL ? attempt_pack_kept : NULL,
    };
    if (status == NULL)
        status = train_session_run(session, comm, assignment->timeout_ms, &hooks, end_training);
    note_place(attempt, "ends", false);
    attempt->memory_peak = train_session_memory_peak(session);
    tracer_end(&attempt->tracer);
    op_times_end(&attempt->op_times);
    /* Another user's pull does not outlive a run that failed; it would wait for ranks that have
     * ended. */
    if (status != NULL && puller != NULL) puller_abort(puller, status_message(status));
    if (status != NULL && checkpointer != NULL)
        checkpointer_abort(checkpointer, status_message(status));
    checkpointer_finish(checkpointer);
    status_t pulled = puller_finish(puller);
    status_t published = publish(attempt, session, NULL, NULL, NULL);
    snapshot_free(attempt->final);
    attempt->final = NULL;
    puller_free(puller); /* not before: an abort may have been reaching into it */
    checkpointer_free(checkpointer);
    close_spare(attempt, session);
    leave_group(attempt, comm, status != NULL);
    return status_first(status, status_first(pulled, published));
}

static status_t check_assignment(const Fsdpd__V1__Assignment *assignment)
{
    if (assignment->rank < assignment->world && assignment->spec != NULL &&
        assignment->spec->workers == assignment->world)
        return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "invalid assignment: rank %u of %u, for a job of %u workers",
                      assignment->rank, assignment->world,
                      assignment->spec ? assignment->spec->workers : 0);
}

static status_t set_up_and_train(struct worker_attempt *attempt)
{
    const Fsdpd__V1__Assignment *assignment = attempt->assignment;
    TRY(check_assignment(assignment));
    struct job_settings settings;
    TRY(job_settings_init_attempt(&settings, assignment, attempt->options));
    note_place(attempt, "reads another job's weights", false);
    status_t found = job_from_find(&settings, assignment, attempt->link, &attempt->gate);
    if (found != NULL) {
        job_from_deinit(&settings);
        job_settings_deinit(&settings);
        return found;
    }
    attempt->side.shared = !settings.job.gloo;
    if (attempt->spare != NULL) settings.job.kept_bytes = kept_bytes(&attempt->spare->kept);
    attempt->op_times = (struct op_times){.interval = assignment->spec->train->trace_interval,
                                          .adds_up = assignment->rank == 0};
    struct device *device = NULL;
    struct train_session *session = NULL;
    note_place(attempt, "opens its device", false);
    status_t status = device_open(attempt->options->device, threads_of(attempt), &device);
    note_place(attempt, "reads its model and data", false);
    if (status == NULL) {
        attempt->peak_flops = peak_flops(attempt, device);
        device_share_memory(device, (int)assignment->sharers);
        device_share_host(device, (int)assignment->host_ranks);
    }
    if (status == NULL)
        status = train_session_new(&settings.job, device, (int)assignment->rank, false, &session);
    attempt->device = device;
    if (status == NULL) attempt_log_device_notes(attempt);
    if (status == NULL) status = publish(attempt, session, NULL, NULL, NULL);
    if (status == NULL) status = join_and_train(attempt, device, session, &settings);
    if (session != NULL) attempt->step = train_session_step(session);
    if (status == NULL && train_session_early_end(session) != NULL)
        attempt->early_end = mem_strdup(train_session_early_end(session));
    status_free(publish(attempt, NULL, NULL, NULL, NULL));
    train_session_free(session);
    device_close(device);
    job_from_deinit(&settings);
    job_settings_deinit(&settings);
    return status;
}

static void *attempt_thread(void *argument)
{
    struct worker_attempt *attempt = argument;
    pthread_setname_np(pthread_self(), "train");
    note_place(attempt, "reads its settings", false);
    /* Reported last, and through the same queue: the coordinator may then assign another attempt at
     * once, unless the worker leaves. */
    status_t status = set_up_and_train(attempt);
    if (device_is_lost()) link_post_leave(attempt->link);
    attempt_report_finished(attempt, status);
    mailbox_post(attempt->mailbox, attempt->ended, attempt->user);
    return NULL;
}

struct worker_attempt *attempt_start(struct link *link, struct mailbox *mailbox,
                                     const struct worker_options *options,
                                     const Fsdpd__V1__Assignment *assignment, struct spare *spare,
                                     void (*ended)(void *user), void *user)
{
    struct worker_attempt *attempt = mem_alloc(sizeof *attempt);
    attempt->link = link;
    attempt->mailbox = mailbox;
    attempt->options = options;
    attempt->assignment = message_copy(assignment);
    if (spare_is_used(attempt->assignment)) attempt->spare = spare;
    attempt->ended = ended;
    attempt->user = user;
    attempt->store = (struct store_access){link, &attempt->gate, attempt->assignment->store};
    attempt->rendezvous = link_store_rendezvous(&attempt->store);
    attempt->tracer = (struct tracer){.link = link,
                                      .job = attempt->assignment->job,
                                      .attempt = assignment->attempt,
                                      .rank = (int)assignment->rank};
    attempt->side = (struct side_context){
        .link = link,
        .job = attempt->assignment->job,
        .attempt = assignment->attempt,
        .rank = (int)assignment->rank,
        .world = (int)assignment->world,
        .store = attempt->assignment->store,
        .address = attempt->assignment->address,
        .timeout_ms = assignment->timeout_ms,
    };
    pthread_mutex_init(&attempt->lock, NULL);
    condition_init(&attempt->changed);
    if (pthread_create(&attempt->thread, NULL, attempt_thread, attempt) != 0)
        abort(); /* no thread at all: nothing that this process could still do */
    return attempt;
}

void attempt_free(struct worker_attempt *attempt)
{
    if (attempt == NULL) return;
    pthread_join(attempt->thread, NULL);
    attempt_free_orders(attempt);
    free(attempt->early_end);
    free(attempt->resumed_name);
    free(attempt->resumed_note);
    if (attempt->unrecorded != NULL)
        fsdpd__v1__unrecorded_reports__free_unpacked(attempt->unrecorded, NULL);
    free(attempt->aborted);
    gate_deinit(&attempt->gate);
    pthread_cond_destroy(&attempt->changed);
    pthread_mutex_destroy(&attempt->lock);
    fsdpd__v1__assignment__free_unpacked(attempt->assignment, NULL);
    free(attempt);
}
