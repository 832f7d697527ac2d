/*
 * Sets up a training run: the model, the sizes of the data (describe.c), graphs, units and the plan
 * (build.c). The order is that in which errors are cheapest to find; the data itself comes last.
 * See session.h; run.c runs it.
 */
#include "setup/session.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "setup/groups.h"
#include "setup/session_state.h"

/* Of the executor's lanes (executor_prepare.c), and of `own` that train/ opens itself. */
static uint64_t lanes_staging_bytes(const struct train_session *session, const struct plan *plan,
                                    int own)
{
    int lanes = (plan->host_bytes > 0 ? LANE_DOWNLOAD + 1 : LANE_COPY + 1) + own;
    return (uint64_t)lanes * device_lane_host_bytes(session->device);
}

uint64_t train_session_staging_bytes(const struct train_session *session)
{
    const struct train_job *job = session->job;
    /* For the lane on which a group's ranks compare values (run.c). */
    uint64_t bytes = lanes_staging_bytes(session, session->plan, job->world > 1);
    if (job->staged && job->world > 1 && !device_is_host(session->device))
        bytes += comm_staging_bytes(job->world);
    /* A decoder has two executors (setup/decoder.h). */
    if (session->samples.all > 0)
        bytes += 2 * (LANE_COPY + 1) * device_lane_host_bytes(session->device);
    return bytes;
}

static status_t check_host(const struct train_session *session, const struct plan *plan,
                           uint64_t staging_bytes)
{
    const struct plan_host host = {.memory_bytes = device_host_memory_bytes(session->device),
                                   .staging_bytes = staging_bytes,
                                   .ranks = device_host_ranks(session->device)};
    return plan_check_host_fits(plan, &host);
}

status_t session_check_host(const struct train_session *session, const struct plan *next)
{
    /* one rank has no lane for collectives, so it opens one to move its state */
    return check_host(session, next, lanes_staging_bytes(session, next, session->job->world == 1));
}

/* Decompresses what is gzipped, and checks the labels. Tokens are already checked. */
static status_t prepare_data(struct train_session *session)
{
    TRY(image_set_prepare(&session->train_set));
    return image_set_prepare(&session->test_set);
}

/* Host memory for redundancy, less what the process has for it already. */
static uint64_t kept_bytes_to_come(const struct train_session *session)
{
    uint64_t needed = train_session_kept_bytes(session), there = session->job->kept_bytes;
    return needed > there ? needed - there : 0;
}

static status_t check_metric(const struct model *model, const struct early_stop *compared,
                             const char *key)
{
    if (compared->patience == 0 || compared->metric != EARLY_STOP_ACCURACY ||
        model->target == TARGET_CLASS || model->target == TARGET_TOKEN_CLASS)
        return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: accuracy belongs to models of classes; this one has a loss only", key);
}

static void find_halved(struct train_session *session)
{
    int count = session->model->parameter_count;
    if (session->job->base != BASE_FILE || session->weights == NULL) return;
    session->halved = mem_alloc_array((size_t)count + 1, sizeof *session->halved);
    for (int p = 0; p < count; p++) session->halved[p] = weights_are_bf16(session->weights, p);
}

static status_t add_teacher(struct train_session *session)
{
    const struct train_teacher *teacher = session->job->teacher;
    TRY(model_parse(teacher->text, strlen(teacher->text), teacher->file, &session->teacher));
    TRY(model_teach(session->model, session->teacher, &teacher->how, &session->teacher_first));
    if (teacher->weights.dir == NULL) return NULL;
    TRY(status_wrap(weights_open(&teacher->weights, session->teacher, &session->teacher_weights),
                    "model.teacher"));
    if (session->teacher_weights != NULL && !weights_is_partial(session->teacher_weights))
        return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "model.teacher: expected a directory with the weights of all its parameters");
}

static status_t set_up(struct train_session *session, bool unplanned)
{
    const struct train_job *job = session->job;
    if (job->world < 1 || session->rank < 0 || session->rank >= job->world)
        return status_new(STATUS_INVALID_ARGUMENT, "rank %d in a world of %d", session->rank,
                          job->world);
    bool images = job->data_format == DATA_IMAGES;
    if ((images && job->epochs < 1) || job->batch_size < 1 || job->log_interval < 1 ||
        (images && job->evaluate && job->test_batch_size < 1) ||
        (job->schedule.kind == SCHEDULE_STEP && job->schedule.step_size < 1))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "epochs, batch sizes, log_interval and step_size are at least 1");
    if (job->plan.norm == NORM_NONE && (job->max_norm > 0 || job->skip_non_finite))
        return status_new(STATUS_INVALID_ARGUMENT, "clipping and skipping need a norm");
    TRY(model_parse_with(job->model_text, job->model_length, job->model_file, job->model_arguments,
                         job->model_argument_count, &session->model));
    TRY(check_metric(session->model, &job->early_stop, "train.early_stop.metric"));
    TRY(check_metric(session->model, &job->best, "checkpoint.best.metric"));
    if (job->lora != NULL) TRY(model_adapt(session->model, job->lora));
    if (job->preference != NULL) TRY(model_prefer(session->model, job->preference));
    if (job->teacher != NULL) TRY(add_teacher(session));
    if (job->weights != NULL) TRY(weights_open(job->weights, session->model, &session->weights));
    find_halved(session);
    TRY(session_divide_global_batch(session));
    TRY(session_read_sizes(session));
    TRY(session_build_graphs(session));
    TRY(optimizer_sort_parameters(&session->job->optimizer, session->model, &session->groups));
    TRY(optimizer_find_matrices(&session->job->optimizer, session->model, session->groups,
                                &session->matrices));
    if (unplanned) return NULL;
    TRY(session_build_plan(session, &job->wrap, &session->units, &session->plan));
    TRY(session_measure_samples(session, job->memory_bytes > 0
                                             ? job->memory_bytes
                                             : device_memory_bytes(session->device)));
    if (session->headers_only) return NULL; /* a planning caller checks whether it fits */
    bool host = device_is_host(session->device);
    uint64_t kept = kept_bytes_to_come(session);
    TRY(plan_check_fits(session->plan, session->samples.all + (host ? kept : 0),
                        device_memory_bytes(session->device)));
    TRY(check_host(session, session->plan,
                   train_session_staging_bytes(session) + (host ? 0 : kept)));
    return prepare_data(session);
}

static status_t session_new(const struct train_job *job, struct device *device, int rank,
                            bool headers_only, bool unplanned, struct train_session **out)
{
    struct train_session *session = mem_alloc(sizeof *session);
    session->settings = *job;
    session->job = &session->settings;
    session->device = device;
    session->rank = rank;
    session->headers_only = headers_only;
    if (!headers_only) device_allow_timing(device);
    if (!headers_only && !job->only_evaluate) device_touch_ahead(device);
    pthread_mutex_init(&session->mutex, NULL);
    status_t status = set_up(session, unplanned);
    if (status != NULL) {
        train_session_free(session);
        return status;
    }
    *out = session;
    return NULL;
}

status_t train_session_new(const struct train_job *job, struct device *device, int rank,
                           bool headers_only, struct train_session **out)
{
    return session_new(job, device, rank, headers_only, false, out);
}

status_t train_session_new_unplanned(const struct train_job *job, struct device *device,
                                     struct train_session **out)
{
    return session_new(job, device, 0, true, true, out);
}

status_t train_session_open_executor(struct train_session *session, struct comm *comm,
                                     struct executor **executor)
{
    return executor_new(session->device, comm, session->plan, session->train_lowered,
                        session->evaluate_lowered, session->job->seed, executor);
}

void train_session_free(struct train_session *session)
{
    if (session == NULL) return;
    plan_free(session->plan);
    units_free(session->units);
    device_graph_free(session->evaluate_lowered);
    device_graph_free(session->train_lowered);
    graph_free(session->evaluate_graph);
    graph_free(session->train_graph);
    for (int i = 0; i < session->set_count; i++) token_data_close(&session->sets[i].own);
    free(session->sets);
    token_data_close(&session->tokens);
    image_set_close(&session->test_set);
    image_set_close(&session->train_set);
    weights_free(session->weights);
    weights_free(session->teacher_weights);
    model_free(session->model);
    model_free(session->teacher);
    free(session->groups);
    free(session->matrices);
    free(session->halved);
    free(session->parameter_dtypes);
    free(session->module_dtypes);
    pthread_mutex_destroy(&session->mutex);
    free(session->abort_reason);
    free(session->early_end);
    free(session);
}

const struct plan *train_session_plan(const struct train_session *session)
{
    return session->plan;
}

const struct unit_set *train_session_units(const struct train_session *session)
{
    return session->units;
}

const struct model *train_session_model(const struct train_session *session)
{
    return session->model;
}

const struct weights *train_session_weights(const struct train_session *session)
{
    return session->weights;
}

const char *train_session_early_end(const struct train_session *session)
{
    return session->early_end;
}

uint64_t train_session_steps(const struct train_session *session)
{
    return session->steps;
}

uint32_t train_session_micro_steps(const struct train_session *session)
{
    return session->micro_steps;
}

double train_session_step_flops(const struct train_session *session)
{
    return session->step_flops;
}

int64_t train_session_context(const struct train_session *session)
{
    return session->job->context;
}

status_t train_session_measure(const struct train_session *session, struct token_measure *measure,
                               bool *known)
{
    *known = false;
    if (session->job->data_format != DATA_DATASET) return NULL;
    TRY(token_data_measure(&session->tokens, measure, known));
    if (!*known || measure->counted > 0 || session->job->masked) return NULL;
    const struct token_source *source = &session->tokens.sources[0];
    return status_new(STATUS_INVALID_ARGUMENT, "%s: no target of its split train counts: %s",
                      source->dataset.path,
                      measure->filled == 0 ? "every document has one token, and no next one"
                      : source->train.labels.npy == NULL
                          ? "its mask is 0 for every target, of documents cut after data.context "
                            "tokens"
                      : source->train.token_labels ? "every label is below 0"
                                                   : "every number is NaN");
}

uint64_t train_session_memory_peak(const struct train_session *session)
{
    return atomic_load(&session->memory_peak);
}

uint64_t train_session_evaluates(const struct train_session *session)
{
    return atomic_load(&session->evaluates) ? atomic_load(&session->evaluated_batch) : 0;
}

uint64_t train_session_step(const struct train_session *session)
{
    return atomic_load(&session->step);
}

int64_t train_session_own_ns(const struct train_session *session)
{
    return atomic_load(&session->own_ns);
}

void session_at(struct train_session *session, const char *place)
{
    atomic_store(&session->place_since_ns, clock_monotonic_ns());
    atomic_store(&session->place, place);
}

/* The mutex keeps the executor, and with it the plan, until `describe` has returned. */
void train_session_look(struct train_session *session,
                        void (*describe)(void *user, const struct train_now *now), void *user)
{
    struct train_now now = {.place = atomic_load(&session->place),
                            .since_ns = atomic_load(&session->place_since_ns)};
    pthread_mutex_lock(&session->mutex);
    struct executor *executor = session->executor;
    if (executor != NULL) executor_look(executor, &now.executor);
    for (int i = 0; i < now.executor.lane_count; i++) {
        int instruction = now.executor.lanes[i].instruction;
        if (instruction < 0) continue;
        int unit = now.executor.program->instructions[instruction].unit;
        if (unit >= 0) now.units[i] = executor_plan(executor)->units->units[unit].name;
    }
    describe(user, &now);
    pthread_mutex_unlock(&session->mutex);
}

void train_session_set_spare(struct train_session *session, const struct train_spare *spare)
{
    pthread_mutex_lock(&session->mutex);
    session->spare = *spare;
    if (spare->comm != NULL && session->abort_reason != NULL)
        comm_abort(spare->comm, session->abort_reason);
    pthread_mutex_unlock(&session->mutex);
}

uint64_t train_session_kept_bytes(const struct train_session *session)
{
    const struct kept_shape shape = train_job_kept_shape(session->job, session->rank);
    if (session->plan == NULL) return 0;
    return kept_plan_bytes(session->plan, &shape);
}

uint64_t train_session_kept_sent_bytes(const struct train_session *session)
{
    const struct kept_shape shape = train_job_kept_shape(session->job, session->rank);
    if (session->plan == NULL) return 0;
    return kept_plan_sent_bytes(session->plan, &shape);
}

void train_session_abort(struct train_session *session, const char *why)
{
    pthread_mutex_lock(&session->mutex);
    if (session->abort_reason == NULL) session->abort_reason = mem_strdup(why);
    if (session->executor != NULL) executor_abort(session->executor, why);
    if (session->comm != NULL) comm_abort(session->comm, why);
    if (session->spare.comm != NULL) comm_abort(session->spare.comm, why);
    pthread_mutex_unlock(&session->mutex);
}

void session_set_executor(struct train_session *session, struct executor *executor)
{
    pthread_mutex_lock(&session->mutex);
    session->executor = executor;
    if (executor != NULL && session->abort_reason != NULL)
        executor_abort(executor, session->abort_reason);
    pthread_mutex_unlock(&session->mutex);
}

status_t session_check_abort(struct train_session *session)
{
    pthread_mutex_lock(&session->mutex);
    status_t status =
        session->abort_reason ? status_new(STATUS_ABORTED, "%s", session->abort_reason) : NULL;
    pthread_mutex_unlock(&session->mutex);
    return status;
}
