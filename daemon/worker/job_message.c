/* JobSpec -> train_job; see job_message.h. */
#include "worker/job_message.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "proto/message.h"
#include "spec/spec.h"
#include "worker/job_internal.h"
#include "worker/job_lora.h"

static enum token_encoding token_encoding_of(const Fsdpd__V1__DataSpec *data)
{
    if (data->format == FSDPD__V1__DATA_FORMAT__DATA_FORMAT_TEXT) return TOKENS_BYTES;
    return (enum token_encoding)job_choice(&fsdpd__v1__token_encoding__descriptor,
                                           (int)data->encoding);
}

static void fill_token_data(struct train_job *job, const struct job_settings *settings,
                            const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__DataSpec *data = spec->data;
    if (!job_has_tokens(data)) return;
    job->data_format = job_has_dataset(data) ? DATA_DATASET : DATA_TOKENS;
    job->sources = settings->sources;
    job->source_count = settings->source_count;
    if (job_has_dataset(data))
        job->windows =
            (enum window_kind)job_choice(&fsdpd__v1__window_kind__descriptor, (int)data->windows);
    job->data_path = settings->data_path;
    job->validation_path = settings->validation_path;
    job->validation_fraction = data->validation_fraction;
    if (!job_has_dataset(data)) job->token_encoding = token_encoding_of(data);
    job->held_out = settings->held_out;
    job->held_out_count = settings->held_out_count;
    job->context = data->context;
    job->masked = data->objective == FSDPD__V1__OBJECTIVE__OBJECTIVE_MASKED;
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

static enum strategy strategy_of(Fsdpd__V1__Strategy strategy)
{
    return (enum strategy)job_choice(&fsdpd__v1__strategy__descriptor, (int)strategy);
}

static enum dtype dtype_of(Fsdpd__V1__Dtype dtype)
{
    return (enum dtype)job_choice(&fsdpd__v1__dtype__descriptor, (int)dtype);
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

static enum unit_dtype unit_dtype_of(Fsdpd__V1__Dtype dtype)
{
    if (dtype == FSDPD__V1__DTYPE__DTYPE_UNSPECIFIED) return UNIT_DTYPE_DEFAULT;
    return dtype_of(dtype) == DTYPE_BF16 ? UNIT_DTYPE_BF16 : UNIT_DTYPE_F32;
}

/* A unit's own settings; the same as the job's strategies mean for all units. */
static void fill_unit(struct wrap_unit_spec *unit, const Fsdpd__V1__WrapUnit *spec, int world)
{
    unit->reshard = reshard_from_name(spec->reshard_after_forward, &unit->reshard_ranks);
    unit->param_dtype = unit_dtype_of(spec->param_dtype);
    unit->reduce_dtype = unit_dtype_of(spec->reduce_dtype);
    unit->cpu_offload = spec->cpu_offload;
    if (spec->strategy == FSDPD__V1__STRATEGY__STRATEGY_UNSPECIFIED) return;
    enum strategy strategy = strategy_of(spec->strategy);
    unit->shard_world = strategy == STRATEGY_NO_SHARD       ? 1
                        : strategy == STRATEGY_HYBRID_SHARD ? (int)spec->shard_size
                                                            : world;
    if (unit->reshard == RESHARD_DEFAULT)
        unit->reshard = strategy == STRATEGY_SHARD_GRAD_OP ? RESHARD_NO : RESHARD_YES;
}

void job_wrap_policy_init(struct wrap_policy *policy, struct wrap_unit_spec **units,
                          const Fsdpd__V1__WrapSpec *wrap, int world)
{
    int kind = job_choice(&fsdpd__v1__wrap_policy__descriptor, (int)wrap->policy);
    *policy = (struct wrap_policy){.kind = (enum wrap_kind)kind};
    *units = NULL;
    switch (policy->kind) {
    case WRAP_AUTO:
    case WRAP_NONE: return;
    case WRAP_SIZE:
        policy->min_num_params = wrap->min_num_params;
        policy->force_leaf = wrap_names(wrap->force_leaf->types, wrap->force_leaf->n_types);
        policy->exclude = wrap_names(wrap->exclude->types, wrap->exclude->n_types);
        return;
    case WRAP_TYPE: policy->types = wrap_names(wrap->types, wrap->n_types); return;
    case WRAP_MATCH: policy->modules = wrap_names(wrap->modules, wrap->n_modules); return;
    case WRAP_UNITS: break;
    }
    *units = mem_alloc_array(wrap->n_units, sizeof **units);
    for (size_t i = 0; i < wrap->n_units; i++) {
        (*units)[i].modules = (const char *const *)wrap->units[i]->modules;
        (*units)[i].module_count = (int)wrap->units[i]->n_modules;
        fill_unit(&(*units)[i], wrap->units[i], world);
    }
    policy->units = *units;
    policy->unit_count = (int)wrap->n_units;
}

/* Measured only if it is used. */
static enum norm_kind norm_of_spec(const Fsdpd__V1__TrainSpec *spec)
{
    if (spec->clip_grad_max_norm == 0 && spec->non_finite != FSDPD__V1__NON_FINITE__NON_FINITE_SKIP)
        return NORM_NONE;
    return (enum norm_kind)job_choice(&fsdpd__v1__norm_type__descriptor,
                                      (int)spec->clip_grad_norm_type);
}

static int find_set(const Fsdpd__V1__DataSpec *data, const char *name)
{
    for (size_t i = 0; i < data->n_validation; i++)
        if (strcmp(data->validation[i]->name, name) == 0) return (int)i + 1;
    return 0;
}

static void fill_early_stop(struct early_stop *early, const Fsdpd__V1__EarlyStopSpec *spec,
                            const Fsdpd__V1__DataSpec *data)
{
    if (spec == NULL || spec->patience == 0) return;
    *early = (struct early_stop){
        .patience = spec->patience,
        .metric = (enum early_stop_metric)job_choice(&fsdpd__v1__early_stop_metric__descriptor,
                                                     (int)spec->metric),
        .set = find_set(data, spec->set),
        .min_delta = spec->min_delta,
    };
}

static void fill_best(struct early_stop *best, const Fsdpd__V1__CheckpointSpec *spec,
                      const Fsdpd__V1__DataSpec *data)
{
    if (!spec_keeps_best(spec)) return;
    *best = (struct early_stop){
        .patience = 1,
        .metric = (enum early_stop_metric)job_choice(&fsdpd__v1__early_stop_metric__descriptor,
                                                     (int)spec->best->metric),
        .mode =
            (enum best_mode)job_choice(&fsdpd__v1__best_mode__descriptor, (int)spec->best->mode),
        .set = find_set(data, spec->best->set),
    };
}

static struct train_schedule schedule_of_spec(const Fsdpd__V1__ScheduleSpec *spec)
{
    struct train_schedule schedule = {
        .kind =
            (enum schedule_kind)job_choice(&fsdpd__v1__schedule_type__descriptor, (int)spec->type),
        .step_size = spec->step_size,
        .gamma = spec->gamma,
        .warmup_steps = spec->warmup_steps,
        .warmup_start_factor = spec->warmup_start_factor,
        .total_steps = spec->total_steps,
        .end_factor = spec->end_factor,
        .cycles = spec->num_cycles,
        .power = spec->power,
        .timescale = spec->timescale,
        .decay_steps = spec->decay_steps,
        .pct_start = spec->pct_start,
        .div_factor = spec->div_factor,
        .final_div_factor = spec->final_div_factor,
        .three_phase = spec->three_phase,
        .steps = spec->steps,
        .factor = spec->factor,
    };
    if (schedule.kind == SCHEDULE_WSD)
        schedule.shape = (enum schedule_shape)job_choice(&fsdpd__v1__decay_type__descriptor,
                                                         (int)spec->decay_type);
    if (schedule.kind == SCHEDULE_ONE_CYCLE)
        schedule.shape = (enum schedule_shape)job_choice(&fsdpd__v1__anneal_strategy__descriptor,
                                                         (int)spec->anneal_strategy);
    return schedule;
}

static void fill_phases(struct job_settings *settings, const Fsdpd__V1__JobSpec *spec)
{
    struct train_schedule *schedule = &settings->job.schedule;
    size_t count = spec->n_schedule_phases;
    if (schedule->kind != SCHEDULE_PHASES) return;
    settings->phases = mem_alloc_array(count, sizeof *settings->phases);
    for (size_t i = 0; i < count; i++)
        settings->phases[i] = schedule_of_spec(spec->schedule_phases[i]);
    schedule->phases = settings->phases;
    schedule->phase_count = (int)count;
}

/* setup/groups.c says how groups without weight decay follow the job's. */
static int fill_groups(struct job_settings *settings, const Fsdpd__V1__OptimizerSpec *spec)
{
    int count = (int)spec->n_groups;
    bool excludes = spec->weight_decay_exclude == FSDPD__V1__DECAY_EXCLUSION__DECAY_EXCLUSION_AUTO;
    struct optimizer_group *groups = mem_alloc_array(2 * spec->n_groups + 1, sizeof *groups);
    settings->groups = groups;
    for (int i = 0; i < count; i++) {
        const Fsdpd__V1__OptimizerGroup *group = spec->groups[i];
        bool own = group->_weight_decay_case != 0;
        groups[i] =
            (struct optimizer_group){.match = group->match,
                                     .weight_decay = own ? group->weight_decay : spec->weight_decay,
                                     .lr_scale = group->lr_scale,
                                     .own_decay = own,
                                     .use = (enum optimizer_use)group->use,
                                     .ndim = (int)group->ndim};
        groups[count + 1 + i] = (struct optimizer_group){.lr_scale = group->lr_scale};
    }
    groups[count] = (struct optimizer_group){.lr_scale = 1};
    return excludes ? 2 * count + 1 : count;
}

/* As trl does, without dropout: a reference would have another. */
static void fill_preference(struct job_settings *settings, const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__DpoSpec *dpo = spec->dpo;
    bool reward = spec->data->objective == FSDPD__V1__OBJECTIVE__OBJECTIVE_REWARD;
    bool prefers = spec->data->objective == FSDPD__V1__OBJECTIVE__OBJECTIVE_DPO && dpo != NULL;
    if (!reward && !prefers) return;
    bool packed = spec->data->windows == FSDPD__V1__WINDOW_KIND__WINDOW_KIND_PACKED;
    settings->preference = (struct model_preference){.reward = reward, .beta = 1, .packed = packed};
    if (prefers)
        settings->preference = (struct model_preference){
            .loss =
                (enum op_preference)job_choice(&fsdpd__v1__dpo_loss__descriptor, (int)dpo->loss),
            .packed = packed,
            .beta = dpo->beta,
            .label_smoothing = dpo->label_smoothing,
            .reference = (enum model_reference)job_choice(&fsdpd__v1__dpo_reference__descriptor,
                                                          (int)dpo->reference),
        };
    settings->job.preference = &settings->preference;
    settings->job.dropout = false;
}

static void fill_teacher(struct job_settings *settings, const Fsdpd__V1__JobSpec *spec)
{
    if (settings->teacher == NULL) return;
    const Fsdpd__V1__ModelSpec *model = spec->model->teacher;
    settings->taught =
        (struct train_teacher){.text = model->text,
                               .file = model->hf,
                               .how = {spec->distill->temperature, spec->distill->weight},
                               .weights = settings->teacher->weights};
    settings->job.teacher = &settings->taught;
}

/* Their lr follows that of the main optimizer, and so its schedule. */
static void fill_others(struct job_settings *settings, const Fsdpd__V1__OptimizerSpec *spec)
{
    const Fsdpd__V1__OtherOptimizerSpec *others = spec->others;
    if (others == NULL || !spec_has_others(spec)) return;
    settings->others = (struct optimizer_step){.lr = spec->lr > 0 ? others->lr / spec->lr : 0,
                                               .beta1 = others->beta1,
                                               .beta2 = others->beta2,
                                               .eps = others->eps,
                                               .weight_decay = others->weight_decay};
    /* check_others has refused one that is no optimizer's name. */
    plan_optimizer_find(spec_word(&fsdpd__v1__optimizer_type__descriptor, (int)others->type),
                        &settings->others.kind);
    settings->job.optimizer.others = &settings->others;
}

/* Of an optimizer without the key: f32. */
static enum state_dtype state_dtype_of(Fsdpd__V1__StateDtype given)
{
    if (given == FSDPD__V1__STATE_DTYPE__STATE_DTYPE_UNSPECIFIED) return STATE_F32;
    return (enum state_dtype)job_choice(&fsdpd__v1__state_dtype__descriptor, (int)given);
}

static void fill_optimizer(struct job_settings *settings, const Fsdpd__V1__OptimizerSpec *spec)
{
    struct optimizer_step *optimizer = &settings->job.optimizer;
    *optimizer = (struct optimizer_step){
        .state = state_dtype_of(spec->state_dtype),
        .lr = spec->lr,
        .rho = spec->rho,
        .eps = spec->eps,
        .weight_decay = spec->weight_decay,
        .momentum = spec->momentum,
        .dampening = spec->dampening,
        .beta1 = spec->beta1,
        .beta2 = spec->beta2,
        .lr_decay = spec->lr_decay,
        .nesterov = spec->nesterov,
        .eps1 = spec->eps1,
        .eps2 = spec->eps2,
        .clip = spec->d,
        .beta2_decay = spec->beta2_decay,
        .ns_steps = (int)spec->ns_steps,
        .adjust_lr = spec->adjust_lr_fn == FSDPD__V1__ADJUST_LR_FN__ADJUST_LR_FN_MATCH_RMS_ADAMW
                         ? ADJUST_LR_MATCH_RMS_ADAMW
                         : ADJUST_LR_ORIGINAL,
        .group_count = fill_groups(settings, spec),
    };
    optimizer->groups = settings->groups;
    fill_others(settings, spec);
    /* init() has refused an unknown one. */
    plan_optimizer_find(spec_word(&fsdpd__v1__optimizer_type__descriptor, (int)spec->type),
                        &optimizer->kind);
}

static struct plan_options plan_of_spec(const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__FsdpSpec *fsdp = spec->fsdp;
    struct plan_options plan = {
        .strategy = strategy_of(fsdp->strategy),
        .bucket_bytes = fsdp->bucket_bytes,
        .backward_prefetch = (enum prefetch)job_choice(&fsdpd__v1__prefetch__descriptor,
                                                       (int)fsdp->backward_prefetch),
        .forward_prefetch = fsdp->forward_prefetch,
        .gathered_limit = (int)fsdp->gathered_limit,
        .cpu_offload = fsdp->cpu_offload,
        .register_buffers = fsdp->register_buffers,
        .norm = norm_of_spec(spec->train),
    };
    plan.reshard = reshard_from_name(fsdp->reshard_after_forward, &plan.reshard_ranks);
    if (spec->precision == NULL) return plan;
    plan.gathered_dtype = dtype_of(spec->precision->param_dtype);
    plan.rounded = spec->precision->master_dtype == FSDPD__V1__DTYPE__DTYPE_BF16;
    plan.reduce_dtype = dtype_of(spec->precision->reduce_dtype);
    return plan;
}

static void fill_model_arguments(struct job_settings *settings)
{
    const Fsdpd__V1__ModelSpec *model = settings->spec->model;
    settings->model_arguments =
        mem_alloc_array(model->n_args + 1, sizeof *settings->model_arguments);
    for (size_t i = 0; i < model->n_args; i++)
        settings->model_arguments[i] =
            (struct model_argument){model->args[i]->key, model->args[i]->value};
}

static void fill_elastic(struct train_job *job, const Fsdpd__V1__ElasticSpec *spec)
{
    job->elastic = spec != NULL && spec->max_workers > 0;
    if (spec == NULL || spec->redundancy == 0) return;
    job->redundancy =
        (enum redundancy)job_choice(&fsdpd__v1__redundancy__descriptor, (int)spec->redundancy);
    job->redundancy_steps = spec->every_steps;
    job->parity_group = (int)spec->parity_group;
}

/* A job of an older version says nothing. */
static enum base_dtype find_base(const Fsdpd__V1__ModelSpec *model)
{
    if (model->base_dtype == FSDPD__V1__BASE_DTYPE__BASE_DTYPE_UNSPECIFIED) return BASE_F32;
    return (enum base_dtype)job_choice(&fsdpd__v1__base_dtype__descriptor, (int)model->base_dtype);
}

/* An evaluation of another job's checkpoint makes what it lacks again, as that job did. */
static bool remakes_base(const Fsdpd__V1__ModelSpec *model)
{
    return model->job[0] != '\0' && model->checkpoint > 0 && find_base(model) != BASE_F32;
}

static bool reads_weights(const Fsdpd__V1__ModelSpec *model)
{
    return model->job[0] == '\0' || remakes_base(model);
}

/* The final weights of another job have the values that its ops saw, which stay as they are. */
static enum base_dtype keeps_base(const Fsdpd__V1__ModelSpec *model)
{
    return reads_weights(model) ? find_base(model) : BASE_F32;
}

static void fill_job(struct job_settings *settings)
{
    const Fsdpd__V1__JobSpec *spec = settings->spec;
    fill_model_arguments(settings);
    settings->job = (struct train_job){
        .id = settings->id,
        .model_text = spec->model->text,
        .model_length = strlen(spec->model->text),
        .model_file = spec->model->hf[0] != '\0' ? spec->model->hf : spec->model->file_name,
        .model_arguments = settings->model_arguments,
        .model_argument_count = (int)spec->model->n_args,
        .lora = settings->lora.rank > 0 ? &settings->lora : NULL,
        .base = keeps_base(spec->model),
        .weights = reads_weights(spec->model) &&
                           (settings->weights.dir != NULL || settings->weights.adapter_dir != NULL)
                       ? &settings->weights
                       : NULL,
        .data_dir = settings->data_dir,
        .data_root = settings->data_root,
        .validation_root = settings->validation_root,
        .image_format =
            spec->data->format == FSDPD__V1__DATA_FORMAT__DATA_FORMAT_IDX ? IMAGES_IDX : IMAGES_ANY,
        .transform = {.height = spec->data->resize_height,
                      .width = spec->data->resize_width,
                      .mean = spec->data->normalize_mean,
                      .std = spec->data->normalize_std,
                      .crop_padding = spec->data->crop_padding,
                      .flip = spec->data->flip},
        .epochs = spec->train->epochs,
        .batch_size = spec->train->batch_size,
        .global_batch = spec->train->global_batch,
        .test_batch_size = spec->train->test_batch_size,
        .seed = spec->train->seed,
        .log_interval = spec->train->log_interval,
        .max_steps = spec->train->max_steps,
        .accumulation_steps = spec->train->accumulation_steps,
        .no_sync = spec->train->no_sync,
        .max_norm = spec->train->clip_grad_max_norm,
        .skip_non_finite = spec->train->non_finite == FSDPD__V1__NON_FINITE__NON_FINITE_SKIP,
        .dropout = spec->train->dropout,
        .shuffle = spec->train->shuffle,
        .evaluate = spec->train->evaluate,
        .only_evaluate = spec->train->only_evaluate,
        .schedule = schedule_of_spec(spec->schedule),
        .shard_size = (int)spec->fsdp->shard_size,
        .keep_frozen = spec->fsdp->keep_frozen,
        .gloo = spec->fsdp->transport == FSDPD__V1__TRANSPORT__TRANSPORT_GLOO,
        .checkpoint = (const char *const *)spec->fsdp->activation_checkpointing,
        .checkpoint_count = (int)spec->fsdp->n_activation_checkpointing,
        .recompute = spec->fsdp->recompute == FSDPD__V1__RECOMPUTE__RECOMPUTE_CHEAP
                         ? RECOMPUTE_CHEAP
                         : RECOMPUTE_ALL,
        .world = (int)spec->workers,
        .plan = plan_of_spec(spec),
    };
    fill_token_data(&settings->job, settings, spec);
    fill_elastic(&settings->job, spec->elastic);
    fill_optimizer(settings, spec->optimizer);
    fill_phases(settings, spec);
    fill_early_stop(&settings->job.early_stop, spec->train->early_stop, spec->data);
    fill_best(&settings->job.best, spec->checkpoint, spec->data);
    fill_preference(settings, spec);
    fill_teacher(settings, spec);
    job_prompts_init(settings, spec);
    const Fsdpd__V1__EmaSpec *ema = spec->train->ema;
    settings->job.optimizer.ema_decay = ema != NULL ? ema->decay : 0;
    settings->job.evaluate_average = ema != NULL && ema->decay > 0 && ema->evaluate;
    job_wrap_policy_init(&settings->job.wrap, &settings->units, spec->fsdp->wrap,
                         (int)spec->workers);
}

/* Resolves the job's paths below the data roots, besides the model. */
enum need { NEED_NOTHING, NEED_DATA = 1, NEED_WEIGHTS = 2, NEED_ADAPTER = 4 };

/* A teacher is found and read as a model of its own is. What was trained is evaluated without. */
static status_t find_teacher(struct job_settings *settings, const struct worker_options *options,
                             bool weights)
{
    Fsdpd__V1__ModelSpec *model = settings->spec->model->teacher;
    if (model == NULL || model->hf[0] == '\0' || settings->spec->model->job[0] != '\0') return NULL;
    Fsdpd__V1__JobSpec spec = FSDPD__V1__JOB_SPEC__INIT;
    spec.model = model;
    struct job_settings *teacher = settings->teacher = mem_alloc(sizeof *teacher);
    teacher->spec = &spec;
    status_t status = job_find_model(model, options, teacher);
    if (status == NULL) status = job_model_read(teacher, options);
    teacher->spec = NULL;
    if (!weights) teacher->weights = (struct weights_source){0};
    return status_wrap(status, "model.teacher");
}

static status_t init(struct job_settings *settings, const Fsdpd__V1__JobSpec *spec, const char *id,
                     const struct worker_options *options, unsigned need)
{
    if (spec == NULL) return status_new(STATUS_INVALID_ARGUMENT, "the job has no spec");
    TRY(spec_validate(spec));
    enum optimizer_kind kind;
    const char *optimizer =
        spec_word(&fsdpd__v1__optimizer_type__descriptor, (int)spec->optimizer->type);
    if (!plan_optimizer_find(optimizer, &kind))
        return status_new(STATUS_UNIMPLEMENTED, "optimizer.type: this worker has no '%s'",
                          optimizer);
    *settings = (struct job_settings){.spec = spec_copy(spec), .id = mem_strdup(id)};
    if (!reads_weights(spec->model)) need &= ~(unsigned)NEED_WEIGHTS;
    if (spec->model->job[0] != '\0') need &= ~(unsigned)NEED_ADAPTER;
    status_t status = job_find_model(spec->model, options, settings);
    if (status == NULL && need & NEED_WEIGHTS)
        status = job_find_weights(spec->model, options, settings);
    if (status == NULL && need & NEED_DATA) status = job_find_data(spec->data, options, settings);
    if (status == NULL && need & NEED_DATA) status = job_find_checkpoints(spec, options, settings);
    if (status == NULL && settings->hf_dir != NULL) status = job_model_read(settings, options);
    if (status == NULL) status = find_teacher(settings, options, need & NEED_WEIGHTS);
    if (status == NULL) status = job_lora_read(settings, need & NEED_ADAPTER ? options : NULL);
    if (status == NULL) fill_job(settings);
    else job_settings_deinit(settings);
    return status;
}

status_t job_settings_init(struct job_settings *settings, const Fsdpd__V1__JobSpec *spec,
                           const char *id, const struct worker_options *options)
{
    return init(settings, spec, id, options, NEED_DATA | NEED_WEIGHTS | NEED_ADAPTER);
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
    /* Other daemons may have jobs of this name there: the run's name distinguishes them. */
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
        .last_step = checkpoint != NULL &&
                     (checkpoint->directory[0] != '\0' || spec_takes_checkpoints(checkpoint)),
        .resume = assignment->resume,
        .must_resume = assignment->must_resume,
    };
}

static void set_tune(struct job_settings *settings, const Fsdpd__V1__Assignment *assignment)
{
    struct train_job *job = &settings->job;
    job->tune = settings->tune;
    for (size_t i = 0; i < assignment->n_tune && job->tune_count < TRAIN_TUNE_MAX - 1; i++) {
        job_wrap_policy_init(&settings->tune[i], &settings->tune_units[i], assignment->tune[i],
                             (int)assignment->world);
        job->tune_count++;
    }
}

/* Where the weights of another job are. */
static status_t set_source(struct job_settings *settings, const Fsdpd__V1__Source *source,
                           const struct worker_options *options)
{
    struct train_source *to = &settings->job.source;
    if (source == NULL) return NULL;
    to->step = source->step;
    settings->source = message_copy(source);
    source = settings->source;
    if (remakes_base(settings->spec->model) && source->job[0] != '\0')
        return status_new(STATUS_UNIMPLEMENTED,
                          "model.job: checkpoints of a job with model.base_dtype lack the "
                          "parameters that it does not train, so that workers must see their "
                          "directory; expected checkpoint.directory, or final weights "
                          "(save_model)");
    if (source->job[0] != '\0') return NULL; /* job_from_find reads it */
    if (source->file[0] == '/') {
        free(settings->weights_dir);
        settings->weights_dir = file_path_directory(source->file);
        settings->weights = (struct weights_source){.dir = settings->weights_dir,
                                                    .root = settings->weights_dir,
                                                    .file = strrchr(source->file, '/') + 1,
                                                    .own_names = true};
        settings->job.weights = &settings->weights;
        return NULL;
    }
    to->run = source->run;
    to->name = source->name;
    if (source->folder[0] == '/') {
        to->folder = source->folder;
        return NULL;
    }
    AUTO_FREE char *directory = NULL;
    TRY(job_find_path("model.job: its checkpoint.directory", source->directory, options, &directory,
                      &settings->source_root));
    settings->source_folder = mem_printf("%s/%s", directory, source->run);
    to->folder = settings->source_folder;
    to->root = settings->source_root;
    return NULL;
}

/* A job that can only continue from a checkpoint needs no initial values. */
status_t job_settings_init_attempt(struct job_settings *settings,
                                   const Fsdpd__V1__Assignment *assignment,
                                   const struct worker_options *options)
{
    /* A base of another type than f32 is in no checkpoint: it is made of the files again. */
    bool skips = assignment->must_resume && find_base(assignment->spec->model) == BASE_F32;
    unsigned need = skips ? NEED_DATA : NEED_DATA | NEED_WEIGHTS;
    if (!assignment->must_resume) need |= NEED_ADAPTER; /* which checkpoints have */
    TRY(init(settings, assignment->spec, assignment->job, options, need));
    if (skips) settings->job.weights = NULL;
    status_t status = set_source(settings, assignment->source, options);
    if (status != NULL) {
        job_settings_deinit(settings);
        return status;
    }
    settings->job.staged = assignment->staged;
    set_checkpoints(settings, assignment);
    set_tune(settings, assignment);
    return NULL;
}

void job_settings_deinit(struct job_settings *settings)
{
    spec_free(settings->spec);
    free(settings->groups);
    free(settings->phases);
    free(settings->units);
    for (size_t i = 0; i < COUNT_OF(settings->tune_units); i++) free(settings->tune_units[i]);
    if (settings->teacher != NULL) job_settings_deinit(settings->teacher);
    free(settings->teacher);
    hf_family_free(settings->family);
    free(settings->hf_dir);
    free(settings->hf_root);
    free(settings->adapter_dir);
    free(settings->adapter_root);
    free(settings->adapter_note);
    free(settings->lora_rules);
    free(settings->weights_path);
    free(settings->weights_dir);
    free(settings->weights_root);
    free(settings->data_dir);
    free(settings->data_path);
    free(settings->validation_path);
    for (int s = 0; s < settings->source_count; s++) {
        free((char *)settings->sources[s].path);
        free((char *)settings->sources[s].root);
    }
    free(settings->sources);
    for (int i = 0; i < settings->held_out_count; i++) {
        free((char *)settings->held_out[i].path);
        free((char *)settings->held_out[i].root);
    }
    free(settings->held_out);
    free(settings->model_arguments);
    job_prompts_deinit(settings);
    free(settings->data_root);
    free(settings->validation_root);
    free(settings->checkpoint_dir);
    free(settings->checkpoint_root);
    free(settings->checkpoint_folder);
    free(settings->run);
    free(settings->source_folder);
    free(settings->source_root);
    message_free(settings->source);
    free(settings->id);
    *settings = (struct job_settings){0};
}
