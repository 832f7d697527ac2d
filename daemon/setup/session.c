/*
 * Sets up a training run: the model, the sizes of the data, graphs, units and the plan. The order
 * is that in which errors are cheapest to find; the data itself comes last. See session.h; run.c
 * runs it.
 */
#include "setup/session.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "data/batch_share.h"
#include "data/image_files.h"
#include "model/layers_internal.h"
#include "setup/groups.h"
#include "setup/session_state.h"

static status_t check_shape(const struct train_session *session, const struct image_set *set,
                            const char *images, const char *directory)
{
    const struct tensor_type *input = &session->model->input;
    const struct image_transform *transform = &session->job->transform;
    int64_t height = transform->height > 0 ? transform->height : set->height;
    int64_t width = transform->width > 0 ? transform->width : set->width;
    const int64_t dims[] = {set->channels, height, width};
    struct tensor_type image = tensor_type_make(DTYPE_F32, 3, dims);
    struct tensor_type plain = tensor_type_make(DTYPE_F32, 2, dims + 1);
    struct tensor_type row = tensor_type_make(DTYPE_F32, 1, dims + 2);
    bool is_plain = set->channels == 1 && tensor_same_shape(input, &plain);
    bool is_row = set->channels == 1 && height == 1 && tensor_same_shape(input, &row);
    if (tensor_same_shape(input, &image) || is_plain || is_row) return NULL;
    const struct weights_source *weights = session->job->weights;
    bool is_hf = weights != NULL && !weights->own_names;
    char expected[128], found[128];
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: the model's input is %s, but the %s images in %s are %s%s",
                      session->job->model_file, tensor_format_shape(input, expected), images,
                      directory, tensor_format_shape(&image, found),
                      is_hf
                          ? "; the model's size is image_size of its config.json, or its family's "
                            "default; data.resize scales images"
                          : "");
}

/* With one rank there is nothing to reduce. */
static enum accumulation accumulation_of(const struct train_job *job)
{
    if (job->accumulation_steps <= 1) return ACCUMULATION_NONE;
    return job->no_sync || job->world == 1 ? ACCUMULATION_LOCAL : ACCUMULATION_REDUCED;
}

static uint64_t count_steps(int64_t samples, int world, uint32_t batch_size)
{
    uint64_t per_rank = ((uint64_t)samples + (uint64_t)world - 1) / (uint64_t)world;
    return (per_rank + batch_size - 1) / batch_size;
}

/* That a sample has for targets; 0 if it has classes. */
static int64_t count_numbers(const struct model *model)
{
    return model->targets.dim_count > 0 ? tensor_element_count(&model->targets) : 0;
}

static struct token_model token_model_of(const struct model *model)
{
    return (struct token_model){.vocabulary = model->vocabulary,
                                .target = model->target,
                                .classes = model->class_count,
                                .numbers = count_numbers(model),
                                .texts = model->texts,
                                .padding = model->padding > 0 ? model->padding : 0,
                                .precomputed = model->precomputed};
}

/* All that a directory has to test with. */
static status_t open_image_set(const struct train_session *session, const struct held_out *held,
                               struct evaluation_set *set)
{
    const struct image_targets targets = {session->model->class_count,
                                          count_numbers(session->model)};
    struct train_job other = *session->job;
    struct image_set train = {0};
    other.data_dir = held->path;
    other.data_root = held->root;
    status_t status =
        image_files_open(&other, targets, !session->headers_only, &train, &set->own_images);
    image_set_close(&train);
    TRY(status);
    TRY(check_shape(session, &set->own_images, "test", held->path));
    TRY(image_set_prepare(&set->own_images));
    set->images = &set->own_images;
    set->steps = count_steps(set->own_images.count, session->job->world, session->evaluate_batch);
    return NULL;
}

status_t session_open_set(const struct train_session *session, const struct held_out *held,
                          struct evaluation_set *set)
{
    const struct train_job *job = session->job;
    const struct token_model model = token_model_of(session->model);
    set->name = held->name;
    set->every_steps = held->every_steps;
    if (job->data_format == DATA_IMAGES) return open_image_set(session, held, set);
    set->tokens = &set->own;
    TRY(token_data_open_held_out(job, held, &model, job->context, !session->headers_only,
                                 &set->own));
    set->steps = count_steps(set->own.validation_rows, job->world, session->evaluate_batch);
    return NULL;
}

/* Of the job's own data, which are open; the others with `open`. */
static status_t open_sets(struct train_session *session, bool open)
{
    const struct train_job *job = session->job;
    bool images = job->data_format == DATA_IMAGES;
    int64_t rows = images ? session->test_set.count : session->tokens.validation_rows;
    if (!job->evaluate) return NULL;
    session->sets = mem_alloc_array(1 + (size_t)job->held_out_count, sizeof *session->sets);
    session->sets[session->set_count++] = (struct evaluation_set){
        .name = "",
        .every_steps = job->evaluate_interval,
        .tokens = &session->tokens,
        .images = images ? &session->test_set : NULL,
        .steps = count_steps(rows, job->world, session->evaluate_batch),
    };
    for (int i = 0; i < job->held_out_count && open; i++)
        TRY(session_open_set(session, &job->held_out[i], &session->sets[session->set_count++]));
    return NULL;
}

static status_t read_image_sizes(struct train_session *session)
{
    const struct train_job *job = session->job;
    /* Sums over the test set do not depend on how it is split, but memory does. So a test batch is
     * split into pieces no larger than a training batch, and evaluation never determines a job's
     * peak. */
    session->evaluate_batch =
        job->test_batch_size < job->batch_size ? job->test_batch_size : job->batch_size;
    session->micro_steps = job->accumulation_steps > 1 ? job->accumulation_steps : 1;
    if (!train_job_has_data(job) && session->headers_only) return NULL;
    const struct image_targets targets = {session->model->class_count,
                                          count_numbers(session->model)};
    TRY(image_files_open(job, targets, !session->headers_only, &session->train_set,
                         &session->test_set));
    TRY(check_shape(session, &session->train_set, "training", job->data_dir));
    if (job->evaluate) TRY(check_shape(session, &session->test_set, "test", job->data_dir));
    TRY(open_sets(session, true));
    session->epoch_batches = count_steps(session->train_set.count, job->world, job->batch_size);
    const struct batch_share share = batch_share_of(job, session->rank);
    if (share.samples > 0)
        session->epoch_batches =
            (uint64_t)(batch_share_rows(&share, session->train_set.count) / share.batch);
    uint64_t epoch_steps =
        (session->epoch_batches + session->micro_steps - 1) / session->micro_steps;
    session->epoch_steps = (double)epoch_steps;
    session->steps = job->only_evaluate ? 0 : epoch_steps * job->epochs;
    if (job->max_steps > 0 && job->max_steps < session->steps) session->steps = job->max_steps;
    return NULL;
}

static status_t choose_context(struct train_session *session)
{
    int64_t *context = &session->settings.context, most = session->model->context;
    if (*context == 0) *context = most;
    if (*context <= most) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "data.context: expected at most the %" PRId64
                      " positions of the model, found %" PRId64,
                      most, *context);
}

/* UINT64_MAX on overflow. */
static uint64_t product(uint64_t a, uint64_t b)
{
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

/* With a global batch, the batches of this world: as few as fit, and as even as goes. */
static status_t divide_global_batch(struct train_session *session)
{
    struct train_job *job = &session->settings;
    if (job->global_batch == 0) return NULL;
    TRY(batch_share_check(job));
    const struct batch_share share = batch_share_of(job, session->rank);
    job->batch_size = (uint32_t)share.batch;
    job->accumulation_steps = share.micro_steps;
    return NULL;
}

/* Integer division: rounding could add a step. */
static status_t count_token_steps(struct train_session *session)
{
    const struct train_job *job = session->job;
    if (job->only_evaluate) return NULL; /* there is no stream of training data */
    bool data = train_job_has_data(job);
    uint64_t windows = data ? (uint64_t)session->tokens.train.rows : 0, rows, all;
    rows = product(product(job->batch_size, (uint64_t)job->world), session->micro_steps);
    if (job->global_batch > 0) rows = job->global_batch;
    session->epoch_steps = (double)windows / (double)rows;
    uint64_t steps = job->max_steps > 0 ? job->max_steps : UINT64_MAX;
    if (data && job->epochs > 0) {
        all = product(windows, job->epochs);
        uint64_t epochs = all / rows + (all % rows != 0);
        if (epochs < steps) steps = epochs;
    }
    if (!data && job->epochs > 0 && steps == UINT64_MAX) return NULL; /* unknown without data */
    if (product(steps, rows) >= UINT64_C(1) << 62)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "train.max_steps: expected a number of steps, or of train.epochs");
    session->steps = steps;
    return NULL;
}

/* Also opens the files; rows are read on demand. */
static status_t read_token_sizes(struct train_session *session)
{
    const struct train_job *job = session->job;
    session->evaluate_batch = job->batch_size;
    TRY(choose_context(session));
    const struct token_model model = token_model_of(session->model);
    TRY(token_data_accumulation(job, job->context * session->model->texts, &session->micro_steps));
    session->settings.accumulation_steps = session->micro_steps;
    bool opens = train_job_has_data(job) || !session->headers_only;
    if (opens)
        TRY(token_data_open(job, &model, job->context, !session->headers_only, &session->tokens));
    TRY(open_sets(session, opens));
    return count_token_steps(session);
}

static status_t read_sizes(struct train_session *session)
{
    const struct train_job *job = session->job;
    bool tokens = job->data_format != DATA_IMAGES;
    if (tokens && !session->model->tokens)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: the model's input are images, but data.format says tokens",
                          job->model_file);
    if (!tokens && session->model->tokens)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: the model's input are tokens, but data.format says images (idx)",
                          job->model_file);
    return tokens ? read_token_sizes(session) : read_image_sizes(session);
}

static union op_attrs *find_loss(struct graph *graph)
{
    for (int i = 0; i < graph->op_count; i++) {
        struct graph_op *op = &graph->ops[i];
        if (layer_is_loss(op->kind)) return &op->attrs;
    }
    return NULL;
}

/* Whether the op only repeats one whose output was not kept. */
static bool is_repetition(const struct graph *graph, const struct graph_op *op)
{
    for (int i = 0; i < OP_MAX_OUTPUTS; i++)
        if (op->outputs[i] >= 0 && graph->values[op->outputs[i]].repeats >= 0) return true;
    return false;
}

/* The operations that the model needs, forward and backward. */
static double count_flops(const struct graph *graph)
{
    double flops = 0;
    for (int i = 0; i < graph->op_count; i++) {
        struct op_desc desc;
        if (is_repetition(graph, &graph->ops[i])) continue;
        graph_describe_op(graph, i, &desc);
        flops += op_desc_flops(&desc);
    }
    return flops;
}

/* What the evaluation counts besides the loss. */
static bool has_tally(const struct model *model)
{
    return model->precomputed || (model->target != TARGET_TOKEN && model->target != TARGET_PAIR &&
                                  !model_has_preferences(model));
}

static status_t build_graphs_as(struct train_session *session)
{
    const struct train_job *job = session->job;
    int64_t time = session->model->tokens ? job->context : 0;
    const struct graph_options train = {.batch_size = job->batch_size,
                                        .world = job->world,
                                        .time = time,
                                        .train = true,
                                        .dropout = job->dropout,
                                        .documents = job->windows == WINDOWS_PACKED,
                                        .accumulate = accumulation_of(job) == ACCUMULATION_LOCAL,
                                        .checkpoint = job->checkpoint,
                                        .checkpoint_count = job->checkpoint_count,
                                        .recompute = job->recompute,
                                        .compute_dtype = job->plan.gathered_dtype,
                                        .parameter_dtypes = session->parameter_dtypes,
                                        .module_dtypes = session->module_dtypes};
    TRY(graph_build(session->model, &train, &session->train_graph));
    const union op_attrs *loss = find_loss(session->train_graph);
    session->reduction = loss != NULL ? loss->loss.reduction : REDUCTION_SUM;
    double flops = count_flops(session->train_graph);
    session->step_flops = flops * job->world * session->micro_steps;
    if (job->global_batch > 0)
        session->step_flops = flops / job->batch_size * (double)job->global_batch;
    TRY(device_lower(session->device, session->train_graph, &session->train_lowered));
    if (!job->evaluate && !session->model->precomputed) return NULL;

    const struct graph_options evaluate = {.batch_size = session->evaluate_batch,
                                           .world = job->world,
                                           .time = time,
                                           .count_correct =
                                               session->model->target != TARGET_TOKEN &&
                                               !model_has_preferences(session->model),
                                           .tally = has_tally(session->model),
                                           .ranks = job->world,
                                           .documents = job->windows == WINDOWS_PACKED,
                                           .compute_dtype = job->plan.gathered_dtype,
                                           .parameter_dtypes = session->parameter_dtypes,
                                           .module_dtypes = session->module_dtypes};
    TRY(graph_build(session->model, &evaluate, &session->evaluate_graph));
    /* In the last step ranks may have different numbers of rows, so a mean over ranks of means
     * would not be the mean over the samples: an evaluation always sums. */
    union op_attrs *test_loss = find_loss(session->evaluate_graph);
    if (test_loss != NULL) test_loss->loss.reduction = REDUCTION_SUM;
    return device_lower(session->device, session->evaluate_graph, &session->evaluate_lowered);
}

static int shard_world_of(const struct train_job *job)
{
    if (job->plan.strategy == STRATEGY_NO_SHARD) return 1;
    return job->plan.strategy == STRATEGY_HYBRID_SHARD ? job->shard_size : job->world;
}

/* Builds the graphs for the types of the first units, which later units must keep. */
static status_t build_graphs(struct train_session *session)
{
    struct unit_set *units;
    struct wrap_policy policy = session->job->wrap;
    policy.state = session->job->optimizer.state;
    policy.rounded = session->job->plan.rounded;
    policy.param_dtype = session->job->plan.gathered_dtype;
    policy.keep_frozen = session->job->keep_frozen;
    TRY(units_build(session->model, &policy, shard_world_of(session->job), &units));
    units_find_dtypes(units, session->model, session->job->plan.gathered_dtype,
                      &session->parameter_dtypes, &session->module_dtypes);
    units_free(units);
    return build_graphs_as(session);
}

/* Ops are prepared once, for one type per operand. */
static status_t check_dtypes(const struct train_session *session, const struct unit_set *units)
{
    const struct model *model = session->model;
    enum dtype job = session->job->plan.gathered_dtype, *parameters, *modules;
    units_find_dtypes(units, model, job, &parameters, &modules);
    status_t status = NULL;
    for (int p = 0; p < model->parameter_count && status == NULL; p++)
        if (parameters[p] != session->parameter_dtypes[p])
            status = status_new(STATUS_INVALID_ARGUMENT,
                                "ops are prepared for %s as %s, but unit %s would have it as %s: "
                                "a change of policy cannot change that",
                                model->parameters[p].name, dtype_name(session->parameter_dtypes[p]),
                                units->units[units->unit_of_parameter[p]].name,
                                dtype_name(parameters[p]));
    for (int m = 0; m < model->module_count && status == NULL; m++) {
        enum dtype was = session->module_dtypes != NULL ? session->module_dtypes[m] : job;
        enum dtype is = modules != NULL ? modules[m] : job;
        if (was != is)
            status =
                status_new(STATUS_INVALID_ARGUMENT,
                           "%s computes in %s, but unit %s would have it compute in %s: a "
                           "change of policy cannot change that",
                           m > 0 ? model->modules[m].path : model->modules[m].type, dtype_name(was),
                           units->units[units->unit_of_module[m]].name, dtype_name(is));
    }
    free(parameters);
    free(modules);
    return status;
}

bool session_has_base(const struct train_session *session)
{
    for (int u = 0; u < session->units->unit_count; u++)
        if (session->units->units[u].unsaved) return true;
    return false;
}

/* Other types are those of frozen parameters. */
static status_t check_base(const struct train_session *session, const struct train_job *job)
{
    const struct model *model = session->model;
    bool frozen = false;
    if (job->base == BASE_F32 && !job->keep_frozen) return NULL;
    for (int p = 0; p < model->parameter_count; p++)
        frozen |=
            model->parameters[p].buffer == MODEL_BUFFER_NONE && !model->parameters[p].trainable;
    if (frozen) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s%s is for parameters that are not trained, but all of this model "
                      "are: expected model.lora, model.adapter or model.freeze",
                      job->base != BASE_F32 ? "model.base_dtype: " : "fsdp.keep_frozen",
                      job->base != BASE_F32 ? base_dtype_name(job->base) : "");
}

/* With the settings of `job` for units and plan. On an error *units may be set. */
static status_t build_plan(struct train_session *session, const struct train_job *job,
                           const struct wrap_policy *wrap, bool sketch, struct unit_set **units,
                           struct plan **plan)
{
    struct wrap_policy policy = *wrap;
    policy.state = job->optimizer.state;
    policy.rounded = job->plan.rounded;
    policy.param_dtype = job->plan.gathered_dtype;
    policy.base = job->base;
    policy.keep_frozen = job->keep_frozen;
    policy.halved = session->halved;
    policy.shape = optimizer_step_shape(&job->optimizer);
    policy.matrices = session->matrices;
    TRY(check_base(session, job));
    TRY(units_build(session->model, &policy, shard_world_of(job), units));
    TRY(check_dtypes(session, *units));
    struct plan_options options = job->plan;
    options.rank = session->rank;
    options.world = job->world;
    if (options.gathered_limit == 0) options.gathered_limit = INT_MAX;
    options.accumulation = accumulation_of(job);
    options.micro_steps = job->accumulation_steps > 1 ? job->accumulation_steps : 0;
    options.optimizer = job->optimizer.kind;
    options.optimizer_slots = optimizer_step_slots(&job->optimizer);
    options.state = job->optimizer.state;
    options.matrix_of_parameter = session->matrices;
    options.matrix_workspace_bytes = device_matrix_workspace_bytes(session->device);
    if (job->optimizer.others != NULL) options.others = job->optimizer.others->kind;
    options.ns_steps = job->optimizer.ns_steps;
    options.averages = job->optimizer.ema_decay > 0;
    options.group_of_parameter = session->groups;
    options.collective_workspace_bytes = executor_collective_bytes(*units, job->world);
    options.host_apart = !device_is_host(session->device);
    options.register_buffers &= job->world > 1 && options.host_apart;
    options.sketch = sketch;
    const struct lowering *evaluate =
        session->evaluate_lowered ? device_graph_lowering(session->evaluate_lowered) : NULL;
    return plan_build(session->model, *units, session->train_graph,
                      device_graph_lowering(session->train_lowered), session->evaluate_graph,
                      evaluate, &options, plan);
}

status_t session_build_plan(struct train_session *session, const struct wrap_policy *wrap,
                            struct unit_set **units, struct plan **plan)
{
    return build_plan(session, session->job, wrap, false, units, plan);
}

status_t train_session_sketch(struct train_session *session, const struct train_job *job,
                              struct unit_set **units, struct plan **plan)
{
    *units = NULL;
    status_t status = build_plan(session, job, &job->wrap, true, units, plan);
    if (status == NULL) return NULL;
    units_free(*units);
    *units = NULL;
    return status;
}

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
    if (job->weights != NULL) TRY(weights_open(job->weights, session->model, &session->weights));
    find_halved(session);
    TRY(divide_global_batch(session));
    TRY(read_sizes(session));
    TRY(build_graphs(session));
    TRY(optimizer_sort_parameters(&session->job->optimizer, session->model, &session->groups));
    TRY(optimizer_find_matrices(&session->job->optimizer, session->model, session->groups,
                                &session->matrices));
    if (unplanned) return NULL;
    TRY(session_build_plan(session, &job->wrap, &session->units, &session->plan));
    TRY(session_measure_samples(session));
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
    model_free(session->model);
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
