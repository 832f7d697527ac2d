/* JobSpec -> train_job, plan -> Plan; see job_message.h. */
#include "worker/job_message.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "spec/spec.h"

static status_t find_data(const char *dir, const struct worker_options *options, char **resolved)
{
    status_t first = NULL;
    for (int i = 0; i < options->data_root_count; i++) {
        status_t status = file_resolve_under(options->data_roots[i], dir, resolved);
        if (status == NULL) {
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
    return status_wrap(first, "data.dir");
}

static void fill_wrap(struct job_settings *settings, const Fsdpd__V1__WrapSpec *wrap)
{
    struct wrap_policy *policy = &settings->job.wrap;
    if (strcmp(wrap->policy, "size") == 0) {
        policy->kind = WRAP_SIZE;
        policy->min_num_params = wrap->min_num_params;
    } else if (strcmp(wrap->policy, "units") == 0) {
        policy->kind = WRAP_UNITS;
        settings->units = mem_alloc_array(wrap->n_units, sizeof *settings->units);
        for (size_t i = 0; i < wrap->n_units; i++) {
            settings->units[i].modules = (const char *const *)wrap->units[i]->modules;
            settings->units[i].module_count = (int)wrap->units[i]->n_modules;
        }
        policy->units = settings->units;
        policy->unit_count = (int)wrap->n_units;
    } else {
        policy->kind = WRAP_NONE;
    }
}

static void fill_optimizer(struct optimizer_step *optimizer, const Fsdpd__V1__OptimizerSpec *spec)
{
    *optimizer = (struct optimizer_step){
        .kind = strcmp(spec->type, "sgd") == 0 ? OPTIMIZER_SGD : OPTIMIZER_ADADELTA,
        .lr = spec->lr,
        .rho = spec->rho,
        .eps = spec->eps,
        .weight_decay = spec->weight_decay,
        .momentum = spec->momentum,
        .dampening = spec->dampening,
        .nesterov = spec->nesterov,
        .first = true,
    };
}

static enum prefetch prefetch_from_name(const char *name)
{
    if (strcmp(name, "none") == 0) return PREFETCH_NONE;
    return strcmp(name, "post") == 0 ? PREFETCH_POST : PREFETCH_PRE;
}

status_t job_settings_init(struct job_settings *settings, const Fsdpd__V1__JobSpec *spec,
                           const char *id, const struct worker_options *options)
{
    TRY(spec_validate(spec));
    char *data_dir;
    TRY(find_data(spec->data->dir, options, &data_dir));
    *settings = (struct job_settings){.data_dir = data_dir};
    spec = settings->spec = spec_copy(spec);
    settings->id = mem_strdup(id);
    settings->job = (struct train_job){
        .id = settings->id,
        .model_text = spec->model->text,
        .model_length = strlen(spec->model->text),
        .model_file = spec->model->file_name,
        .data_dir = data_dir,
        .normalize_mean = spec->data->normalize_mean,
        .normalize_std = spec->data->normalize_std,
        .epochs = spec->train->epochs,
        .batch_size = spec->train->batch_size,
        .test_batch_size = spec->train->test_batch_size,
        .seed = spec->train->seed,
        .log_interval = spec->train->log_interval,
        .max_steps = spec->train->max_steps,
        .dropout = spec->train->dropout,
        .shuffle = spec->train->shuffle,
        .evaluate = spec->train->evaluate,
        .schedule = strcmp(spec->schedule->type, "step") == 0 ? SCHEDULE_STEP : SCHEDULE_CONSTANT,
        .schedule_step_size = spec->schedule->step_size,
        .schedule_gamma = spec->schedule->gamma,
        .strategy =
            strcmp(spec->fsdp->strategy, "no_shard") == 0 ? STRATEGY_NO_SHARD : STRATEGY_FULL_SHARD,
        .backward_prefetch = prefetch_from_name(spec->fsdp->backward_prefetch),
        .checkpoint = (const char *const *)spec->fsdp->activation_checkpointing,
        .checkpoint_count = (int)spec->fsdp->n_activation_checkpointing,
        .world = (int)spec->workers,
    };
    fill_optimizer(&settings->job.optimizer, spec->optimizer);
    fill_wrap(settings, spec->fsdp->wrap);
    return NULL;
}

void job_settings_deinit(struct job_settings *settings)
{
    spec_free(settings->spec);
    free(settings->units);
    free(settings->data_dir);
    free(settings->id);
    *settings = (struct job_settings){0};
}

/* Messages are filled with malloc'ed memory throughout, so that free_unpacked releases them. */

static Fsdpd__V1__Unit *unit_message_new(const struct unit *unit, const struct plan *plan,
                                         const struct model *model)
{
    Fsdpd__V1__Unit *message = mem_alloc(sizeof *message);
    fsdpd__v1__unit__init(message);
    message->name = mem_strdup(unit->name);
    message->n_modules = (size_t)unit->module_count;
    message->modules = mem_alloc_array(message->n_modules, sizeof *message->modules);
    for (int i = 0; i < unit->module_count; i++)
        message->modules[i] = mem_strdup(model->modules[unit->modules[i]].path);
    message->parameters = (uint64_t)unit->flat.parameter_elements;
    message->padded = (uint64_t)unit->flat.padded;
    bool whole = plan->options.strategy == STRATEGY_NO_SHARD;
    message->shard_bytes = (uint64_t)(whole ? unit->flat.padded : unit->flat.shard) * 4;
    return message;
}

static void add_collectives(Fsdpd__V1__Plan *message, const struct plan_program *program)
{
    enum { KINDS = INSTRUCTION_OPTIMIZER + 1 };
    uint32_t counts[KINDS] = {0};
    uint64_t bytes[KINDS] = {0};
    for (int i = 0; i < program->instruction_count; i++) {
        const struct plan_instruction *instruction = &program->instructions[i];
        if (instruction->lane != LANE_COMM) continue;
        counts[instruction->kind]++;
        bytes[instruction->kind] += instruction->communicated;
        message->communicated_bytes += instruction->communicated;
    }
    message->collectives = mem_alloc_array(KINDS, sizeof *message->collectives);
    for (int kind = 0; kind < KINDS; kind++) {
        if (counts[kind] == 0) continue;
        Fsdpd__V1__Collective *collective = mem_alloc(sizeof *collective);
        fsdpd__v1__collective__init(collective);
        collective->kind = mem_strdup(plan_instruction_name((enum instruction_kind)kind));
        collective->count = counts[kind];
        collective->bytes = bytes[kind];
        message->collectives[message->n_collectives++] = collective;
    }
}

static void add_memory(Fsdpd__V1__Plan *message, const struct plan *plan)
{
    const struct plan_program *program = &plan->train;
    message->memory = mem_alloc_array(BUFFER_CLASS_COUNT + 1, sizeof *message->memory);
    uint64_t total = 0;
    for (int class = 0; class <= BUFFER_CLASS_COUNT; class ++) {
        /* the last row is what lies between buffers, so that the rows add up to the peak */
        bool gaps = class == BUFFER_CLASS_COUNT;
        uint64_t bytes = gaps ? plan->peak_bytes - total : program->class_bytes_at_peak[class];
        if (bytes == 0) continue;
        total += bytes;
        Fsdpd__V1__MemoryClass *row = mem_alloc(sizeof *row);
        fsdpd__v1__memory_class__init(row);
        row->name = mem_strdup(gaps ? "alignment and gaps"
                                    : plan_buffer_class_name((enum buffer_class) class));
        row->bytes = bytes;
        message->memory[message->n_memory++] = row;
    }
}

static char *describe_peak(const struct plan_program *program)
{
    const struct plan_instruction *peak = &program->instructions[program->peak_instruction];
    const char *what = peak->op >= 0 ? program->graph->ops[peak->op].name : NULL;
    return mem_printf("%d: %s%s%s", program->peak_instruction, plan_instruction_name(peak->kind),
                      what ? " " : "", what ? what : "");
}

Fsdpd__V1__Plan *plan_message_new(const struct train_session *session, bool dump)
{
    const struct plan *plan = train_session_plan(session);
    const struct unit_set *units = train_session_units(session);
    const struct model *model = train_session_model(session);
    Fsdpd__V1__Plan *message = mem_alloc(sizeof *message);
    fsdpd__v1__plan__init(message);
    message->world = (uint32_t)plan->options.world;
    message->strategy =
        mem_strdup(plan->options.strategy == STRATEGY_NO_SHARD ? "no_shard" : "full_shard");
    message->n_units = (size_t)units->unit_count;
    message->units = mem_alloc_array(message->n_units, sizeof *message->units);
    for (int i = 0; i < units->unit_count; i++)
        message->units[i] = unit_message_new(&units->units[i], plan, model);
    add_memory(message, plan);
    message->peak_bytes = plan->peak_bytes;
    message->peak_at = describe_peak(&plan->train);
    message->parameters = (uint64_t)model_parameter_elements(model);
    add_collectives(message, &plan->train);
    message->module_tree = units_print_tree(units, model);
    if (dump) message->dump = plan_dump(plan);
    message->hash = plan->hash;
    return message;
}
