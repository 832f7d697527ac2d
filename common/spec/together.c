/* Rules over several keys of a JobSpec; see internal.h. Pure functions, any thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "ops/optimizers.h"
#include "proto/message.h"
#include "spec/internal.h"
#include "spec/metric_table.h"

static status_t check_token_training(const Fsdpd__V1__TrainSpec *train)
{
    if (train->epochs == 0 && train->max_steps == 0 && !train->only_evaluate)
        return status_with(
            status_new(
                STATUS_INVALID_ARGUMENT,
                "train.max_steps: is missing; it or train.epochs must limit training on tokens"),
            (struct status_details){.field = "train.max_steps"});
    if (train->batch_tokens > 0 && train->accumulation_steps > 1)
        return status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "train.accumulation_steps: train.batch_tokens (%llu) says how many there "
                       "are; expected 1, found %u",
                       (unsigned long long)train->batch_tokens, train->accumulation_steps),
            (struct status_details){.field = "train.accumulation_steps"});
    return NULL;
}

/* A global batch says how many samples a step has: no other key may. */
static status_t check_global_batch(const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__TrainSpec *train = spec->train;
    unsigned long long global = train->global_batch;
    if (global == 0) return NULL;
    struct status_details details = {.field = "train.global_batch"};
    if (train->batch_tokens > 0)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "train.global_batch: expected no train.batch_tokens beside "
                                      "it, found %llu",
                                      (unsigned long long)train->batch_tokens),
                           details);
    if (train->accumulation_steps > 1)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "train.global_batch: it (%llu) and train.batch_size say how "
                                      "many train.accumulation_steps there are; expected 1, found "
                                      "%u",
                                      global, train->accumulation_steps),
                           details);
    if (global < spec->workers)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "train.global_batch: expected at least a sample for each of "
                                      "%u workers, found %llu",
                                      spec->workers, global),
                           details);
    return NULL;
}

/* The most numbers of workers: each has a plan. */
enum { ELASTIC_WORLDS_MAX = 64 };

static bool makes_copies(Fsdpd__V1__Strategy strategy)
{
    return strategy == FSDPD__V1__STRATEGY__STRATEGY_NO_SHARD ||
           strategy == FSDPD__V1__STRATEGY__STRATEGY_HYBRID_SHARD;
}

/* Other workers only have copies where a strategy makes them. */
static status_t check_redundancy(const Fsdpd__V1__JobSpec *spec, bool elastic)
{
    Fsdpd__V1__Redundancy kind = spec->elastic->redundancy;
    const struct status_details details = {.field = "elastic.redundancy"};
    if (kind <= FSDPD__V1__REDUNDANCY__REDUNDANCY_NONE) return NULL;
    if (!elastic)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "elastic.redundancy: needs elastic.min_workers and "
                                      "elastic.max_workers"),
                           details);
    if (kind != FSDPD__V1__REDUNDANCY__REDUNDANCY_REPLICA) return NULL;
    if (!makes_copies(spec->fsdp->strategy))
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "elastic.redundancy: replica needs fsdp.strategy no_shard or "
                                      "hybrid_shard, as other strategies keep one copy; expected "
                                      "mirror or parity"),
                           details);
    for (size_t i = 0; i < spec->fsdp->wrap->n_units; i++) {
        Fsdpd__V1__Strategy own = spec->fsdp->wrap->units[i]->strategy;
        if (own == FSDPD__V1__STRATEGY__STRATEGY_UNSPECIFIED || makes_copies(own)) continue;
        return status_with(
            status_new(
                STATUS_INVALID_ARGUMENT,
                "elastic.redundancy: replica needs no_shard or hybrid_shard, but unit %zu of "
                "fsdp.wrap.units has %s, which keeps one copy; expected mirror or parity",
                i + 1, spec_word(&fsdpd__v1__strategy__descriptor, (int)own)),
            details);
    }
    return NULL;
}

static status_t check_elastic(const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__ElasticSpec *elastic = spec->elastic;
    if (elastic == NULL) return NULL;
    if (elastic->min_workers == 0 && elastic->max_workers == 0)
        return check_redundancy(spec, false);
    uint32_t least = elastic->min_workers, most = elastic->max_workers;
    struct status_details details = {.field = "elastic.min_workers"};
    if (least < 1 || most < least || most - least >= ELASTIC_WORLDS_MAX)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "elastic: expected min_workers of at least 1 and at most %d "
                                      "numbers of workers up to max_workers, found %u to %u",
                                      ELASTIC_WORLDS_MAX, least, most),
                           details);
    if (spec->workers < least || spec->workers > most)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "workers: expected elastic.min_workers (%u) to "
                                      "elastic.max_workers (%u), found %u",
                                      least, most, spec->workers),
                           (struct status_details){.field = "workers"});
    if (spec->train->global_batch < most)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "elastic: expected a train.global_batch of at least a sample "
                                      "for each of %u workers, found %llu",
                                      most, (unsigned long long)spec->train->global_batch),
                           (struct status_details){.field = "train.global_batch"});
    return check_redundancy(spec, true);
}

/* Smaller groups must evenly divide the group that something is sharded over. */
static status_t check_resharding(const Fsdpd__V1__JobSpec *spec, Fsdpd__V1__Strategy strategy,
                                 uint32_t shard_size, const char *reshard)
{
    uint32_t ranks = spec_choice_ranks(reshard);
    if (ranks <= 1) return NULL;
    if (strategy == FSDPD__V1__STRATEGY__STRATEGY_NO_SHARD)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected true or false, as no_shard gathers nothing that could be "
                          "resharded; found %u ranks",
                          ranks);
    bool hybrid = strategy == FSDPD__V1__STRATEGY__STRATEGY_HYBRID_SHARD;
    uint32_t sharded = hybrid ? shard_size : spec->workers;
    if (sharded % ranks == 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "expected a divisor of %s (%u), found %u ranks",
                      hybrid ? "shard_size" : "workers", sharded, ranks);
}

/* One directory, or several with weights. */
bool spec_has_images(const Fsdpd__V1__DataSpec *data)
{
    return data->format == FSDPD__V1__DATA_FORMAT__DATA_FORMAT_IDX ||
           data->format == FSDPD__V1__DATA_FORMAT__DATA_FORMAT_IMAGES;
}

static status_t check_dataset(const Fsdpd__V1__DataSpec *data)
{
    if ((data->path[0] != '\0') != (data->n_sources > 0)) return NULL;
    return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                  data->n_sources > 0
                                      ? "data.sources: expected no data.path beside it"
                                      : "data.path: is missing"),
                       (struct status_details){.field = data->n_sources > 0 ? "data.sources"
                                                                            : "data.path"});
}

/* With fsdp.auto, both settings are replaced. */
static status_t check_recompute(const Fsdpd__V1__FsdpSpec *fsdp)
{
    if (fsdp->recompute != FSDPD__V1__RECOMPUTE__RECOMPUTE_CHEAP || fsdp->choose ||
        fsdp->n_activation_checkpointing > 0)
        return NULL;
    return status_with(
        status_new(STATUS_INVALID_ARGUMENT,
                   "fsdp.recompute: cheap: expected modules in fsdp.activation_checkpointing, such "
                   "as [layers.*]: without them, nothing is computed again"),
        (struct status_details){.field = "fsdp.recompute"});
}

/* What compares evaluations needs several. `key`: the metric's; `what`: who compares; `field`: what
 * the details of a missing evaluation name. */
static status_t check_compared(const Fsdpd__V1__JobSpec *spec, const char *key, const char *name,
                               const char *what, const char *field)
{
    const Fsdpd__V1__TrainSpec *train = spec->train;
    const Fsdpd__V1__HeldOutSet *set = spec_find_held_out(spec->data, name);
    if (name[0] != '\0' && set == NULL)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "%s: data.validation has no set '%s'", key, name),
                           (struct status_details){.field = key});
    uint64_t interval = set != NULL ? set->every_steps : train->evaluate_interval;
    const char *needs =
        !train->evaluate ? "train.evaluate: true"
        : !spec_has_images(spec->data) && interval == 0
            ? set != NULL ? "every_steps above 0 of its set" : "a train.evaluate_interval above 0"
            : NULL;
    if (needs == NULL) return NULL;
    return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                  "%s: expected %s, as it compares evaluations", what, needs),
                       (struct status_details){.field = field});
}

/* A trial without the figure that trials are compared by would be the last of all in silence. */
static status_t check_objective(const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__SweepSpec *sweep = spec->array != NULL ? spec->array->sweep : NULL;
    if (sweep == NULL || spec->train->evaluate) return NULL;
    for (size_t i = 0; i < metric_count(); i++) {
        const struct metric *metric = &metric_table[i];
        bool trained =
            metric->fields[METRIC_STEP] != NULL || strcmp(metric->name, "train_loss") == 0;
        if (strcmp(metric->name, sweep->metric) != 0 || trained) continue;
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "train.evaluate: expected true, as evaluations measure the "
                                      "objective of the sweep, %s",
                                      sweep->metric),
                           (struct status_details){.field = "train.evaluate"});
    }
    return NULL;
}

static status_t check_evaluations(const Fsdpd__V1__JobSpec *spec)
{
    TRY(check_objective(spec));
    const Fsdpd__V1__EarlyStopSpec *early = spec->train->early_stop;
    if (early != NULL && early->patience > 0)
        TRY(check_compared(spec, "train.early_stop.metric", early->set, "train.early_stop",
                           "train.early_stop.patience"));
    if (!spec_keeps_best(spec->checkpoint)) return NULL;
    return check_compared(spec, "checkpoint.best.metric", spec->checkpoint->best->set,
                          "checkpoint.best", "checkpoint.best.metric");
}

static status_t check_ids(char *const *texts, size_t count)
{
    status_t status = NULL;
    for (size_t i = 0; status == NULL && i < count; i++) {
        uint32_t *ids;
        size_t found;
        status = spec_read_tokens(texts[i], &ids, &found);
        free(ids);
    }
    return status;
}

static status_t check_prompts(const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__TrainSampleSpec *sample = spec->train->sample;
    status_t status = NULL;
    if (sample == NULL || sample->n_prompts == 0) return NULL;
    if (spec_has_images(spec->data))
        status = status_new(STATUS_INVALID_ARGUMENT, "expected none, as the data are no tokens");
    const char *key = "train.sample.prompts";
    bool bytes = spec->data->format == FSDPD__V1__DATA_FORMAT__DATA_FORMAT_TEXT;
    if (status == NULL && !bytes) status = check_ids(sample->prompts, sample->n_prompts);
    if (status == NULL) {
        key = "train.sample.stop";
        status = check_ids(sample->stop, sample->n_stop);
    }
    if (status == NULL) return NULL;
    return status_with(status_wrap(status, "%s", key), (struct status_details){.field = key});
}

static status_t refuse_pairs(const char *key, const char *objective, const char *why)
{
    return status_with(status_new(STATUS_INVALID_ARGUMENT, "%s: data.objective: %s %s", key,
                                  objective, why),
                       (struct status_details){.field = key});
}

/* Pairs are rows of a dataset, and dpo's reference is the model without its adapter, or as it
 * began. */
static status_t check_pairs(const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__DataSpec *data = spec->data;
    const Fsdpd__V1__ModelSpec *model = spec->model;
    bool dpo = data->objective == FSDPD__V1__OBJECTIVE__OBJECTIVE_DPO;
    const char *name = dpo ? "dpo" : "reward";
    if (!dpo && data->objective != FSDPD__V1__OBJECTIVE__OBJECTIVE_REWARD) return NULL;
    if (data->format != FSDPD__V1__DATA_FORMAT__DATA_FORMAT_DATASET)
        return refuse_pairs("data.format", name, "learns from pairs, which only a dataset has");
    if (data->windows == FSDPD__V1__WINDOW_KIND__WINDOW_KIND_CONTINUOUS)
        return refuse_pairs("data.windows", name,
                            "takes each document whole: expected document or packed");
    if (!dpo) return NULL;
    bool adapter = model->adapter[0] != '\0' || model->adapter_from != NULL;
    Fsdpd__V1__DpoReference reference =
        spec->dpo != NULL ? spec->dpo->reference : FSDPD__V1__DPO_REFERENCE__DPO_REFERENCE_ADAPTER;
    bool copy = reference == FSDPD__V1__DPO_REFERENCE__DPO_REFERENCE_COPY;
    bool whole = reference > FSDPD__V1__DPO_REFERENCE__DPO_REFERENCE_ADAPTER;
    if (whole && spec->train->only_evaluate)
        return refuse_pairs(
            "dpo.reference", name,
            "compares with the model as its training began, which an evaluation "
            "alone does not know: expected adapter, or fsdpctl eval of a running job");
    adapter = adapter || (model->lora != NULL && model->lora->rank > 0);
    if (copy && adapter && model->base_dtype > FSDPD__V1__BASE_DTYPE__BASE_DTYPE_F32)
        return refuse_pairs("model.base_dtype", name,
                            "with dpo.reference: copy keeps copies of the adapters, in f32 only: "
                            "expected f32, or dpo.reference: adapter");
    if (!whole && !adapter)
        return refuse_pairs("model.lora", name,
                            "compares the model with itself without its adapter: "
                            "expected model.lora or model.adapter, or dpo.reference: copy or "
                            "precomputed");
    if (spec->dpo != NULL && spec->dpo->label_smoothing > 0 &&
        spec->dpo->loss != FSDPD__V1__DPO_LOSS__DPO_LOSS_SIGMOID)
        return refuse_pairs("dpo.label_smoothing", name,
                            "smooths labels with dpo.loss: sigmoid only");
    return NULL;
}

bool spec_has_others(const Fsdpd__V1__OptimizerSpec *optimizer)
{
    return optimizer->type > 0 && optimizer_takes_matrices(optimizer->type - 1);
}

static int count_slots(const Fsdpd__V1__OptimizerSpec *step)
{
#define OPTIMIZER_CASE(KIND, name, kernel, count, ...)                                             \
    case FSDPD__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_##KIND: return count;
    switch (step->type) {
        OPTIMIZERS(OPTIMIZER_CASE)
    default: return OPTIMIZER_MAX_SLOTS;
    }
#undef OPTIMIZER_CASE
}

int spec_optimizer_slots(const Fsdpd__V1__OptimizerSpec *optimizer)
{
    Fsdpd__V1__OptimizerSpec others = FSDPD__V1__OPTIMIZER_SPEC__INIT;
    if (optimizer->others != NULL) others.type = optimizer->others->type;
    int own = count_slots(optimizer), other = others.type != 0 ? count_slots(&others) : 0;
    return own > other ? own : other;
}

/* The others are optimizers whose keys they have, and groups choose between two optimizers only. */
static status_t check_others(const Fsdpd__V1__OptimizerSpec *optimizer)
{
    const Fsdpd__V1__OtherOptimizerSpec *others = optimizer->others;
    bool two = spec_has_others(optimizer);
    for (size_t i = 0; i < optimizer->n_groups; i++)
        if (optimizer->groups[i]->use != 0 && !two)
            return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                          "optimizer.groups: group %zu: use: belongs to "
                                          "optimizer.type muon, which has others",
                                          i + 1),
                               (struct status_details){.field = "optimizer.groups"});
    if (!two || (others != NULL && others->_lr_case != 0)) return NULL;
    AUTO_FREE char *place = spec_key_place(spec_key_find("optimizer.others.lr"));
    return status_with(
        status_new(STATUS_INVALID_ARGUMENT,
                   "optimizer.others.type: expected a type that optimizer.others.lr belongs to, "
                   "%s, found %s",
                   strchr(place, ' ') + 1,
                   others != NULL
                       ? spec_word(&fsdpd__v1__optimizer_type__descriptor, (int)others->type)
                       : "none"),
        (struct status_details){.field = "optimizer.others.type"});
}

/* Parameters in bf16 are of use where arithmetic is bf16, and are rounded with state that is f32 or
 * bf16. An average of them is made of what f32 keeps. */
static status_t check_master(const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__OptimizerSpec *optimizer = spec->optimizer;
    const char *type = spec_word(&fsdpd__v1__optimizer_type__descriptor, (int)optimizer->type);
    char beside[64] = "";
    if (spec->precision->master_dtype != FSDPD__V1__DTYPE__DTYPE_BF16) return NULL;
    if (spec->precision->param_dtype != FSDPD__V1__DTYPE__DTYPE_BF16)
        strcpy(beside, "precision.param_dtype: bf16 beside bf16, found f32");
    else if (optimizer->state_dtype == FSDPD__V1__STATE_DTYPE__STATE_DTYPE_INT8)
        strcpy(beside, "optimizer.state_dtype: f32 or bf16 beside bf16, found int8");
    else if (spec->train->ema != NULL && spec->train->ema->decay > 0)
        strcpy(beside, "f32 beside train.ema, found bf16");
    else if (!optimizer_is_elementwise(optimizer->type - 1))
        snprintf(beside, sizeof beside, "f32 beside optimizer.type: %s, found bf16", type);
    if (beside[0] == '\0') return NULL;
    return status_with(status_new(STATUS_INVALID_ARGUMENT, "precision.master_dtype: expected %s",
                                  beside),
                       (struct status_details){.field = "precision.master_dtype"});
}

bool spec_keeps_best(const Fsdpd__V1__CheckpointSpec *checkpoint)
{
    return checkpoint != NULL && checkpoint->best != NULL && checkpoint->best->metric != 0;
}

bool spec_takes_checkpoints(const Fsdpd__V1__CheckpointSpec *checkpoint)
{
    return checkpoint != NULL && (checkpoint->every_steps > 0 || checkpoint->every_epochs > 0 ||
                                  spec_keeps_best(checkpoint));
}

/* A job without a step has nothing to save, and nothing to choose from its steps. */
static status_t check_only_evaluate(const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__TrainSpec *train = spec->train;
    if (!train->only_evaluate && spec->model->job[0] == '\0') return NULL;
    const struct {
        bool holds;
        const char *key, *expected;
    } rules[] = {
        {train->only_evaluate, "model.job",
         "train.only_evaluate: true, as other jobs begin with files (model.weights)"},
        {spec->model->job[0] == '\0' || spec->array == NULL, "array.indices",
         "none beside model.job"},
        {spec->model->job[0] == '\0' || spec->model->weights[0] == '\0' ||
             spec->model->base_dtype > FSDPD__V1__BASE_DTYPE__BASE_DTYPE_F32,
         "model.weights", "none beside model.job, whose weights take their place"},
        {train->evaluate, "train.evaluate", "true, with train.only_evaluate"},
        {!spec->save_model, "save_model", "false, as train.only_evaluate changes no weights"},
        {!spec_takes_checkpoints(spec->checkpoint) &&
             (spec->checkpoint == NULL || spec->checkpoint->directory[0] == '\0'),
         "checkpoint.directory",
         "none, nor checkpoint.every_steps, every_epochs or best, with train.only_evaluate"},
        {train->early_stop == NULL || train->early_stop->patience == 0, "train.early_stop.patience",
         "none with train.only_evaluate"},
        {spec->elastic == NULL || spec->elastic->max_workers == 0, "elastic.max_workers",
         "none with train.only_evaluate"},
        {!spec->fsdp->tune, "fsdp.tune", "false with train.only_evaluate, as it measures steps"},
    };
    for (size_t i = 0; i < COUNT_OF(rules); i++)
        if (!rules[i].holds)
            return status_with(status_new(STATUS_INVALID_ARGUMENT, "%s: expected %s", rules[i].key,
                                          rules[i].expected),
                               (struct status_details){.field = rules[i].key});
    return NULL;
}

int spec_find_from(const Fsdpd__V1__ModelSpec *model, struct spec_from found[static SPEC_FROM_MAX])
{
    int count = 0;
    if (model->weights_from != NULL && model->weights_from->job[0] != '\0')
        found[count++] = (struct spec_from){"model.weights", model->weights_from, false};
    if (model->adapter_from != NULL && model->adapter_from->job[0] != '\0')
        found[count++] = (struct spec_from){"model.adapter", model->adapter_from, true};
    return count;
}

/* Each takes the place of a path, and of the weights of what is only evaluated. */
static status_t check_from(const Fsdpd__V1__JobSpec *spec)
{
    struct spec_from found[SPEC_FROM_MAX];
    int count = spec_find_from(spec->model, found);
    for (int i = 0; i < count; i++) {
        AUTO_FREE char *key = mem_printf("%s.job", found[i].key);
        const char *path = found[i].adapter ? spec->model->adapter : spec->model->weights;
        const char *expected = path[0] != '\0'               ? "no path beside it"
                               : spec->model->job[0] != '\0' ? "no model.job beside it"
                               : spec->train->only_evaluate
                                   ? "train.only_evaluate: false: model.job evaluates"
                               : spec->array != NULL ? "no array.indices beside it"
                                                     : NULL;
        if (expected != NULL)
            return status_with(status_new(STATUS_INVALID_ARGUMENT, "%s: expected %s", key,
                                          expected),
                               (struct status_details){.field = key});
    }
    return NULL;
}

status_t spec_check_together(const Fsdpd__V1__JobSpec *spec)
{
    TRY(check_only_evaluate(spec));
    TRY(check_from(spec));
    TRY(check_evaluations(spec));
    TRY(check_prompts(spec));
    TRY(check_master(spec));
    TRY(check_pairs(spec));
    if (spec->data->n_validation > 0 && !spec->train->evaluate)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "data.validation: expected train.evaluate: true, as "
                                      "evaluations read it"),
                           (struct status_details){.field = "data.validation"});
    if (spec->data->format == FSDPD__V1__DATA_FORMAT__DATA_FORMAT_DATASET)
        TRY(check_dataset(spec->data));
    if (!spec_has_images(spec->data)) TRY(check_token_training(spec->train));
    TRY(check_elastic(spec));
    TRY(check_global_batch(spec));
    const Fsdpd__V1__OptimizerSpec *optimizer = spec->optimizer;
    TRY(check_others(optimizer));
    if (optimizer->nesterov && (optimizer->momentum <= 0 || optimizer->dampening != 0))
        return status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "optimizer.nesterov: expected a momentum above 0 and no dampening with it, "
                       "found momentum %g and dampening %g",
                       optimizer->momentum, optimizer->dampening),
            (struct status_details){.field = "optimizer.nesterov"});
    if (spec->schedule->_steps_case != 0 || spec->schedule->_factor_case != 0)
        return status_new(STATUS_INVALID_ARGUMENT, "schedule.%s: belongs to schedule.phases only",
                          spec->schedule->_steps_case != 0 ? "steps" : "factor");
    TRY(spec_check_schedule(spec->schedule, 0));
    if (spec->fsdp->shard_size > 0 && spec->workers % spec->fsdp->shard_size != 0)
        return status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "fsdp.shard_size: expected a divisor of workers (%u), found %u",
                       spec->workers, spec->fsdp->shard_size),
            (struct status_details){.field = "fsdp.shard_size"});
    TRY(status_with(status_wrap(check_resharding(spec, spec->fsdp->strategy, spec->fsdp->shard_size,
                                                 spec->fsdp->reshard_after_forward),
                                "fsdp.reshard_after_forward"),
                    (struct status_details){.field = "fsdp.reshard_after_forward"}));
    TRY(check_recompute(spec->fsdp));
    const Fsdpd__V1__WrapSpec *wrap = spec->fsdp->wrap;
    for (size_t i = 0; i < wrap->n_units; i++) {
        const Fsdpd__V1__WrapUnit *unit = wrap->units[i];
        if (unit->shard_size > 0 && spec->workers % unit->shard_size != 0)
            return status_with(
                status_new(
                    STATUS_INVALID_ARGUMENT,
                    "fsdp.wrap.units: unit %zu: shard_size: expected a divisor of workers (%u), "
                    "found %u",
                    i + 1, spec->workers, unit->shard_size),
                (struct status_details){.field = "fsdp.wrap.units"});
        bool own = unit->strategy != FSDPD__V1__STRATEGY__STRATEGY_UNSPECIFIED;
        TRY(status_with(
            status_wrap(check_resharding(spec, own ? unit->strategy : spec->fsdp->strategy,
                                         own ? unit->shard_size : spec->fsdp->shard_size,
                                         unit->reshard_after_forward),
                        "fsdp.wrap.units: unit %zu: reshard_after_forward", i + 1),
            (struct status_details){.field = "fsdp.wrap.units"}));
    }
    return NULL;
}
