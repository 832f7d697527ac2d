/* JobSpec -> train_job; see job_message.h. */
#include "worker/job_message.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/beneath.h"
#include "base/file.h"
#include "base/mem.h"
#include "spec/spec.h"
#include "worker/job_model.h"

/* Below one of the data roots, which *root tells; `key` says whose value `dir` is. Whatever is read
 * there later is opened from the root again. */
static status_t find_path(const char *key, const char *dir, const struct worker_options *options,
                          char **resolved, char **root)
{
    status_t first = NULL;
    for (int i = 0; i < options->data_root_count; i++) {
        status_t status = beneath_resolve(options->data_roots[i], dir, resolved);
        if (status == NULL) {
            *root = mem_strdup(options->data_roots[i]);
            status_free(first);
            return NULL;
        }
        /* "does not exist here" says more than "is outside that other root" */
        if (first != NULL && status_code(status) == STATUS_NOT_FOUND &&
            status_code(first) == STATUS_PERMISSION_DENIED) {
            status_free(first);
            first = status;
        } else {
            first = status_first(first, status);
        }
    }
    if (first == NULL)
        first = status_new(STATUS_PERMISSION_DENIED,
                           "this worker has no data root; start fsdpd with --data-root DIR");
    return status_wrap(first, "%s", key);
}

/* The directory of the model, and the root that it is below. */
static status_t find_model(const Fsdpd__V1__ModelSpec *model, const struct worker_options *options,
                           struct job_settings *settings)
{
    static const struct worker_options none;
    if (model->hf[0] == '\0') return NULL;
    if (options == NULL) options = &none;
    return find_path("model.hf", model->hf, options, &settings->hf_dir, &settings->hf_root);
}

/* The file of initial values takes the place of what the model's directory has. */
static status_t find_weights(const Fsdpd__V1__ModelSpec *model,
                             const struct worker_options *options, struct job_settings *settings)
{
    if (model->weights[0] == '\0') return NULL;
    TRY(find_path("model.weights", model->weights, options, &settings->weights_path,
                  &settings->weights_root));
    settings->weights_dir = file_path_directory(settings->weights_path);
    settings->weights.dir = settings->weights_dir;
    settings->weights.root = settings->weights_root;
    settings->weights.file = strrchr(settings->weights_path, '/') + 1;
    settings->weights.own_names = settings->hf_dir == NULL;
    return NULL;
}

static bool is_tokens(const Fsdpd__V1__DataSpec *data)
{
    return strcmp(data->format, "idx") != 0;
}

static status_t find_data(const Fsdpd__V1__DataSpec *data, const struct worker_options *options,
                          struct job_settings *settings)
{
    if (!is_tokens(data))
        return find_path("data.dir", data->dir, options, &settings->data_dir, &settings->data_root);
    TRY(find_path("data.path", data->path, options, &settings->data_path, &settings->data_root));
    if (data->validation_path[0] == '\0') return NULL;
    return find_path("data.validation_path", data->validation_path, options,
                     &settings->validation_path, &settings->validation_root);
}

/* It must be there, so that a mistyped one, or one that is not mounted, is found now. */
static status_t find_checkpoints(const Fsdpd__V1__JobSpec *spec,
                                 const struct worker_options *options,
                                 struct job_settings *settings)
{
    const Fsdpd__V1__CheckpointSpec *checkpoint = spec->checkpoint;
    if (checkpoint == NULL || checkpoint->directory[0] == '\0') return NULL;
    TRY(find_path("checkpoint.directory", checkpoint->directory, options, &settings->checkpoint_dir,
                  &settings->checkpoint_root));
    if (access(settings->checkpoint_dir, W_OK | X_OK) == 0) return NULL;
    return status_from_errno(errno, "checkpoint.directory: cannot write in %s",
                             settings->checkpoint_dir);
}

static enum token_encoding token_encoding_of(const Fsdpd__V1__DataSpec *data)
{
    if (strcmp(data->format, "text") == 0) return TOKENS_BYTES;
    if (strcmp(data->encoding, "llm.c") == 0) return TOKENS_LLMC;
    if (strcmp(data->encoding, "uint16") == 0) return TOKENS_UINT16;
    return strcmp(data->encoding, "uint32") == 0 ? TOKENS_UINT32 : TOKENS_AUTO;
}

static void fill_token_data(struct train_job *job, const struct job_settings *settings,
                            const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__DataSpec *data = spec->data;
    if (!is_tokens(data)) return;
    job->data_format = DATA_TOKENS;
    job->data_path = settings->data_path;
    job->validation_path = settings->validation_path;
    job->validation_fraction = data->validation_fraction;
    job->token_encoding = token_encoding_of(data);
    job->context = data->context;
    job->masked = strcmp(data->objective, "masked") == 0;
    job->mask_probability = data->mask_probability;
    job->mask_token = data->mask_token;
    job->batch_tokens = spec->train->batch_tokens;
    job->evaluate_interval = spec->train->evaluate_interval;
    job->evaluate_batches = spec->train->evaluate_batches;
}

/* Also an empty list is one: not PyTorch's defaults. */
static struct wrap_names wrap_names(char *const *items, size_t count)
{
    static const char *const none[1];
    return (struct wrap_names){count > 0 ? (const char *const *)items : none, (int)count};
}

static enum strategy strategy_from_name(const char *name)
{
    enum strategy strategy = STRATEGY_FULL_SHARD;
    for (int s = 0; s < STRATEGY_COUNT; s++)
        if (strcmp(name, plan_strategy_name((enum strategy)s)) == 0) strategy = (enum strategy)s;
    return strategy;
}

/* `*ranks` is set with RESHARD_GROUP. */
static enum reshard reshard_from_name(const char *name, int *ranks)
{
    if (name[0] == '\0') return RESHARD_DEFAULT;
    if (strcmp(name, "true") == 0) return RESHARD_YES;
    if (strcmp(name, "false") == 0) return RESHARD_NO;
    *ranks = atoi(name);
    return RESHARD_GROUP;
}

static enum unit_dtype unit_dtype_from_name(const char *name)
{
    if (name[0] == '\0') return UNIT_DTYPE_DEFAULT;
    return strcmp(name, "bf16") == 0 ? UNIT_DTYPE_BF16 : UNIT_DTYPE_F32;
}

/* What a unit has for itself; the same as the job's strategies mean for all units. */
static void fill_unit(struct wrap_unit_spec *unit, const Fsdpd__V1__WrapUnit *spec, int world)
{
    unit->reshard = reshard_from_name(spec->reshard_after_forward, &unit->reshard_ranks);
    unit->param_dtype = unit_dtype_from_name(spec->param_dtype);
    unit->reduce_dtype = unit_dtype_from_name(spec->reduce_dtype);
    unit->cpu_offload = strcmp(spec->cpu_offload, "true") == 0;
    if (spec->strategy[0] == '\0') return;
    enum strategy strategy = strategy_from_name(spec->strategy);
    unit->shard_world = strategy == STRATEGY_NO_SHARD       ? 1
                        : strategy == STRATEGY_HYBRID_SHARD ? (int)spec->shard_size
                                                            : world;
    if (unit->reshard == RESHARD_DEFAULT)
        unit->reshard = strategy == STRATEGY_SHARD_GRAD_OP ? RESHARD_NO : RESHARD_YES;
}

void job_wrap_policy_init(struct wrap_policy *policy, struct wrap_unit_spec **units,
                          const Fsdpd__V1__WrapSpec *wrap, int world)
{
    *policy = (struct wrap_policy){.kind = WRAP_NONE};
    *units = NULL;
    if (strcmp(wrap->policy, "auto") == 0) {
        policy->kind = WRAP_AUTO;
    } else if (strcmp(wrap->policy, "size") == 0) {
        policy->kind = WRAP_SIZE;
        policy->min_num_params = wrap->min_num_params;
        policy->force_leaf = wrap_names(wrap->force_leaf, wrap->n_force_leaf);
        policy->exclude = wrap_names(wrap->exclude, wrap->n_exclude);
    } else if (strcmp(wrap->policy, "type") == 0) {
        policy->kind = WRAP_TYPE;
        policy->types = wrap_names(wrap->types, wrap->n_types);
    } else if (strcmp(wrap->policy, "match") == 0) {
        policy->kind = WRAP_MATCH;
        policy->modules = wrap_names(wrap->modules, wrap->n_modules);
    } else if (strcmp(wrap->policy, "units") == 0) {
        policy->kind = WRAP_UNITS;
        *units = mem_alloc_array(wrap->n_units, sizeof **units);
        for (size_t i = 0; i < wrap->n_units; i++) {
            (*units)[i].modules = (const char *const *)wrap->units[i]->modules;
            (*units)[i].module_count = (int)wrap->units[i]->n_modules;
            fill_unit(&(*units)[i], wrap->units[i], world);
        }
        policy->units = *units;
        policy->unit_count = (int)wrap->n_units;
    }
}

/* The names are those of the table of keys, which were checked against it. */
static enum optimizer_kind optimizer_from_name(const char *name)
{
    enum optimizer_kind kind = OPTIMIZER_ADADELTA;
    while (kind < OPTIMIZER_ADAMW && strcmp(plan_optimizer_name(kind), name) != 0) kind++;
    return kind;
}

static enum schedule_kind schedule_from_name(const char *name)
{
    if (strcmp(name, "step") == 0) return SCHEDULE_STEP;
    if (strcmp(name, "linear") == 0) return SCHEDULE_LINEAR;
    return strcmp(name, "cosine") == 0 ? SCHEDULE_COSINE : SCHEDULE_CONSTANT;
}

/* Measured only if something comes of it. */
static enum norm_kind norm_of_spec(const Fsdpd__V1__TrainSpec *spec)
{
    if (spec->clip_grad_max_norm == 0 && strcmp(spec->non_finite, "skip") != 0) return NORM_NONE;
    return strcmp(spec->clip_grad_norm_type, "inf") == 0 ? NORM_INF : NORM_2;
}

static void fill_optimizer(struct job_settings *settings, const Fsdpd__V1__OptimizerSpec *spec)
{
    struct optimizer_step *optimizer = &settings->job.optimizer;
    settings->groups = mem_alloc_array(spec->n_groups + 1, sizeof *settings->groups);
    for (size_t i = 0; i < spec->n_groups; i++)
        settings->groups[i] =
            (struct optimizer_group){.match = spec->groups[i]->match,
                                     .weight_decay = spec->groups[i]->weight_decay,
                                     .lr_scale = spec->groups[i]->lr_scale};
    *optimizer = (struct optimizer_step){
        .kind = optimizer_from_name(spec->type),
        .lr = spec->lr,
        .rho = spec->rho,
        .eps = spec->eps,
        .weight_decay = spec->weight_decay,
        .momentum = spec->momentum,
        .dampening = spec->dampening,
        .beta1 = spec->beta1,
        .beta2 = spec->beta2,
        .nesterov = spec->nesterov,
        .groups = settings->groups,
        .group_count = (int)spec->n_groups,
    };
}

static enum prefetch prefetch_from_name(const char *name)
{
    if (strcmp(name, "none") == 0) return PREFETCH_NONE;
    return strcmp(name, "post") == 0 ? PREFETCH_POST : PREFETCH_PRE;
}

static enum dtype dtype_from_name(const char *name)
{
    return strcmp(name, "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
}

static void fill_job(struct job_settings *settings)
{
    const Fsdpd__V1__JobSpec *spec = settings->spec;
    settings->job = (struct train_job){
        .id = settings->id,
        .model_text = spec->model->text,
        .model_length = strlen(spec->model->text),
        .model_file = spec->model->hf[0] != '\0' ? spec->model->hf : spec->model->file_name,
        .weights = settings->weights.dir != NULL ? &settings->weights : NULL,
        .data_dir = settings->data_dir,
        .data_root = settings->data_root,
        .validation_root = settings->validation_root,
        .normalize_mean = spec->data->normalize_mean,
        .normalize_std = spec->data->normalize_std,
        .epochs = spec->train->epochs,
        .batch_size = spec->train->batch_size,
        .test_batch_size = spec->train->test_batch_size,
        .seed = spec->train->seed,
        .log_interval = spec->train->log_interval,
        .max_steps = spec->train->max_steps,
        .accumulation_steps = spec->train->accumulation_steps,
        .no_sync = spec->train->no_sync,
        .max_norm = spec->train->clip_grad_max_norm,
        .norm = norm_of_spec(spec->train),
        .skip_non_finite = strcmp(spec->train->non_finite, "skip") == 0,
        .dropout = spec->train->dropout,
        .shuffle = spec->train->shuffle,
        .evaluate = spec->train->evaluate,
        .schedule = schedule_from_name(spec->schedule->type),
        .schedule_step_size = spec->schedule->step_size,
        .schedule_gamma = spec->schedule->gamma,
        .schedule_warmup_steps = spec->schedule->warmup_steps,
        .schedule_warmup_start_factor = spec->schedule->warmup_start_factor,
        .schedule_total_steps = spec->schedule->total_steps,
        .schedule_end_factor = spec->schedule->end_factor,
        .strategy = strategy_from_name(spec->fsdp->strategy),
        .shard_size = (int)spec->fsdp->shard_size,
        .bucket_bytes = spec->fsdp->bucket_bytes,
        .backward_prefetch = prefetch_from_name(spec->fsdp->backward_prefetch),
        .forward_prefetch = spec->fsdp->forward_prefetch,
        .gathered_limit = (int)spec->fsdp->gathered_limit,
        .param_dtype = spec->precision ? dtype_from_name(spec->precision->param_dtype) : DTYPE_F32,
        .reduce_dtype =
            spec->precision ? dtype_from_name(spec->precision->reduce_dtype) : DTYPE_F32,
        .cpu_offload = spec->fsdp->cpu_offload,
        .register_buffers = spec->fsdp->register_buffers,
        .checkpoint = (const char *const *)spec->fsdp->activation_checkpointing,
        .checkpoint_count = (int)spec->fsdp->n_activation_checkpointing,
        .world = (int)spec->workers,
    };
    fill_token_data(&settings->job, settings, spec);
    settings->job.reshard_after_forward =
        reshard_from_name(spec->fsdp->reshard_after_forward, &settings->job.reshard_ranks);
    fill_optimizer(settings, spec->optimizer);
    job_wrap_policy_init(&settings->job.wrap, &settings->units, spec->fsdp->wrap,
                         (int)spec->workers);
}

/* What is to be found below the data roots, besides the model. */
enum need { NEED_NOTHING, NEED_DATA = 1, NEED_WEIGHTS = 2 };

static status_t init(struct job_settings *settings, const Fsdpd__V1__JobSpec *spec, const char *id,
                     const struct worker_options *options, unsigned need)
{
    if (spec == NULL) return status_new(STATUS_INVALID_ARGUMENT, "the job has no spec");
    TRY(spec_validate(spec));
    *settings = (struct job_settings){.spec = spec_copy(spec), .id = mem_strdup(id)};
    status_t status = find_model(spec->model, options, settings);
    if (status == NULL && need & NEED_WEIGHTS)
        status = find_weights(spec->model, options, settings);
    if (status == NULL && need & NEED_DATA) status = find_data(spec->data, options, settings);
    if (status == NULL && need & NEED_DATA) status = find_checkpoints(spec, options, settings);
    if (status == NULL && settings->hf_dir != NULL) status = job_model_read(settings);
    if (status == NULL) fill_job(settings);
    else job_settings_deinit(settings);
    return status;
}

status_t job_settings_init(struct job_settings *settings, const Fsdpd__V1__JobSpec *spec,
                           const char *id, const struct worker_options *options)
{
    return init(settings, spec, id, options, NEED_DATA | NEED_WEIGHTS);
}

status_t job_settings_init_without_data(struct job_settings *settings,
                                        const Fsdpd__V1__JobSpec *spec, const char *id,
                                        const struct worker_options *options)
{
    return init(settings, spec, id, options, NEED_NOTHING);
}

static void set_checkpoints(struct job_settings *settings, const Fsdpd__V1__Assignment *assignment)
{
    const Fsdpd__V1__CheckpointSpec *checkpoint = settings->spec->checkpoint;
    const char *run = assignment->run[0] != '\0' ? assignment->run : assignment->job;
    /* Other daemons may have jobs of this name there: the run's name tells them apart. */
    if (settings->checkpoint_dir != NULL)
        settings->checkpoint_folder = mem_printf("%s/%s", settings->checkpoint_dir, run);
    else if (assignment->checkpoint_folder[0] == '/')
        settings->checkpoint_folder = mem_strdup(assignment->checkpoint_folder);
    if (settings->checkpoint_folder == NULL) return;
    settings->run = mem_strdup(run);
    settings->job.checkpoints = (struct checkpoint_settings){
        .folder = settings->checkpoint_folder,
        .root = settings->checkpoint_root,
        .run = settings->run,
        .attempt = assignment->attempt,
        .every_steps = checkpoint != NULL ? checkpoint->every_steps : 0,
        .every_epochs = checkpoint != NULL ? checkpoint->every_epochs : 0,
        .resume = assignment->resume,
        .must_resume = assignment->must_resume,
    };
}

/* Who goes on from a checkpoint, and from nothing else, has no use for initial values. */
status_t job_settings_init_attempt(struct job_settings *settings,
                                   const Fsdpd__V1__Assignment *assignment,
                                   const struct worker_options *options)
{
    unsigned need = assignment->must_resume ? NEED_DATA : NEED_DATA | NEED_WEIGHTS;
    TRY(init(settings, assignment->spec, assignment->job, options, need));
    if (assignment->must_resume) settings->job.weights = NULL;
    settings->job.staged = assignment->staged;
    set_checkpoints(settings, assignment);
    return NULL;
}

void job_settings_deinit(struct job_settings *settings)
{
    spec_free(settings->spec);
    free(settings->groups);
    free(settings->units);
    free(settings->hf_dir);
    free(settings->hf_root);
    free(settings->weights_path);
    free(settings->weights_dir);
    free(settings->weights_root);
    free(settings->data_dir);
    free(settings->data_path);
    free(settings->validation_path);
    free(settings->data_root);
    free(settings->validation_root);
    free(settings->checkpoint_dir);
    free(settings->checkpoint_root);
    free(settings->checkpoint_folder);
    free(settings->run);
    free(settings->id);
    *settings = (struct job_settings){0};
}
