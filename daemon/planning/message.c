/*
 * Plan to message; see message.h. Messages are filled with malloc'ed memory throughout, so that
 * free_unpacked releases them. Pure functions; any thread.
 */
#include "planning/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "proto/message.h"
#include "setup/outside.h"
#include "spec/spec.h"

/* Maximum number of schedule lines in a message; further ones are only counted. */
enum { SCHEDULE_MAX = 512 };

double plan_message_round(double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.4g", value);
    return strtod(text, NULL);
}

static void add_text(char ***texts, size_t *count, const char *format, va_list args)
{
    status_t text = status_new_v(STATUS_UNKNOWN, format, args); /* formats into `out` within
                                                                 * bounds */
    *texts = mem_resize_array(*texts, *count + 1, sizeof **texts);
    (*texts)[(*count)++] = mem_strdup(status_message(text));
    status_free(text);
}

void plan_message_add_note(Fsdpd__V1__Plan *plan, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add_text(&plan->notes, &plan->n_notes, format, args);
    va_end(args);
}

void plan_message_add_advice(Fsdpd__V1__Plan *plan, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add_text(&plan->advice, &plan->n_advice, format, args);
    va_end(args);
}

/* ---- Units ---- */

static Fsdpd__V1__Unit *unit_message_new(const struct unit *unit, const struct model *model)
{
    Fsdpd__V1__Unit *message = MESSAGE_NEW(message, fsdpd__v1__unit__init);
    message->name = mem_strdup(unit->name);
    message->n_modules = (size_t)unit->module_count;
    message->modules = mem_alloc_array(message->n_modules, sizeof *message->modules);
    for (int i = 0; i < unit->module_count; i++)
        message->modules[i] = mem_strdup(model->modules[unit->modules[i]].path);
    message->parameters = (uint64_t)unit->flat.parameter_elements;
    message->padded = (uint64_t)unit->flat.padded;
    message->shard_bytes = (uint64_t)slot_layout_of(&unit->flat.slots, -1).words * sizeof(float);
    return message;
}

/* ---- Memory ---- */

static Fsdpd__V1__MemoryClass *memory_class_new(const char *name, uint64_t bytes)
{
    Fsdpd__V1__MemoryClass *row = MESSAGE_NEW(row, fsdpd__v1__memory_class__init);
    row->name = mem_strdup(name);
    row->bytes = bytes;
    return row;
}

/* The buffers that are alive at the program's peak; the last row makes the sum equal `total`. */
static Fsdpd__V1__MemoryClass **memory_rows(const struct plan *plan,
                                            const struct plan_program *program, uint64_t total,
                                            size_t *count)
{
    Fsdpd__V1__MemoryClass **rows = mem_alloc_array(BUFFER_CLASS_COUNT + 2, sizeof *rows);
    *count = 0;
    for (int class = 0; class < BUFFER_CLASS_COUNT; class ++) {
        uint64_t bytes = program->class_bytes_at_peak[class];
        if (bytes == 0) continue;
        total -= bytes;
        uint64_t average = class == BUFFER_OPTIMIZER ? plan_average_bytes(plan) : 0;
        if (bytes > average)
            rows[(*count)++] = memory_class_new(plan_buffer_class_name((enum buffer_class) class),
                                                bytes - average);
        if (average > 0) rows[(*count)++] = memory_class_new("average (ema)", average);
    }
    if (total > 0) rows[(*count)++] = memory_class_new("lost to fragments", total);
    return rows;
}

static const char *subject(const struct plan *plan, const struct plan_program *program, int i)
{
    const struct plan_instruction *it = &program->instructions[i];
    if (it->op >= 0) return program->graph->ops[it->op].name;
    return it->unit >= 0 ? plan->units->units[it->unit].name : "";
}

static char *describe_peak(const struct plan *plan, const struct plan_program *program)
{
    int peak = program->peak_instruction;
    const char *what = subject(plan, program, peak);
    return mem_printf("%d: %s%s%s", peak, plan_instruction_name(program->instructions[peak].kind),
                      what[0] != '\0' ? " " : "", what);
}

/* ---- Communication ---- */

/* By kind, in the order of their first use. */
static void add_collectives(Fsdpd__V1__PlanProgram *message, const struct plan_program *program,
                            const struct plan_timing *timings)
{
    for (int i = 0; i < program->instruction_count; i++) {
        const struct plan_instruction *it = &program->instructions[i];
        if (it->lane != LANE_COMM) continue;
        const char *kind = plan_instruction_name(it->kind);
        size_t k = 0;
        while (k < message->n_collectives && strcmp(message->collectives[k]->kind, kind) != 0) k++;
        if (k == message->n_collectives) {
            message->collectives =
                mem_resize_array(message->collectives, k + 1, sizeof *message->collectives);
            message->collectives[k] = mem_alloc(sizeof **message->collectives);
            fsdpd__v1__collective__init(message->collectives[k]);
            message->collectives[k]->kind = mem_strdup(kind);
            message->n_collectives++;
        }
        Fsdpd__V1__Collective *collective = message->collectives[k];
        collective->count++;
        collective->bytes += it->communicated;
        collective->seconds += timings[i].seconds;
        collective->exposed_seconds += timings[i].exposed;
        message->communicated_bytes += it->communicated;
    }
    for (size_t k = 0; k < message->n_collectives; k++) {
        Fsdpd__V1__Collective *collective = message->collectives[k];
        collective->seconds = plan_message_round(collective->seconds);
        collective->exposed_seconds = plan_message_round(collective->exposed_seconds);
    }
}

static Fsdpd__V1__Collective *collective_copy(const Fsdpd__V1__Collective *from)
{
    Fsdpd__V1__Collective *copy = mem_alloc(sizeof *copy);
    *copy = *from;
    copy->kind = mem_strdup(from->kind);
    return copy;
}

/* ---- Schedule ---- */

/* The last op that directly follows `i` without another instruction between: one line of the
 * schedule. */
static int last_of_run(const struct plan_program *program, int i)
{
    if (program->instructions[i].kind != INSTRUCTION_COMPUTE) return i;
    int last = i;
    for (int k = i + 1; k < program->instruction_count; k++) {
        const struct plan_instruction *it = &program->instructions[k];
        if (it->kind == INSTRUCTION_FREE) continue;
        if (it->kind != INSTRUCTION_COMPUTE || it->wait_count > 0) break;
        last = k;
    }
    return last;
}

static Fsdpd__V1__ScheduleLine *schedule_line_new(const struct plan *plan,
                                                  const struct plan_program *program,
                                                  const struct plan_timing *timings, int first,
                                                  int last)
{
    const struct plan_instruction *it = &program->instructions[first];
    Fsdpd__V1__ScheduleLine *line = MESSAGE_NEW(line, fsdpd__v1__schedule_line__init);
    line->first = (uint32_t)first;
    line->last = (uint32_t)last;
    line->lane = mem_strdup(plan_lane_name(it->lane));
    line->kind = mem_strdup(plan_instruction_name(it->kind));
    line->subject = last > first ? mem_printf("%s ... %s", subject(plan, program, first),
                                              subject(plan, program, last))
                                 : mem_strdup(subject(plan, program, first));
    double start = timings[first].start;
    line->start_seconds = plan_message_round(start);
    line->seconds = plan_message_round(timings[last].start + timings[last].seconds - start);
    line->exposed_seconds = plan_message_round(timings[first].exposed);
    line->bytes = it->communicated;
    return line;
}

static void add_schedule(Fsdpd__V1__PlanProgram *message, const struct plan *plan,
                         const struct plan_program *program, const struct plan_timing *timings)
{
    message->schedule = mem_alloc_array(SCHEDULE_MAX, sizeof *message->schedule);
    for (int i = 0; i < program->instruction_count; i++) {
        if (program->instructions[i].kind == INSTRUCTION_FREE) continue; /* takes no time */
        int last = last_of_run(program, i);
        if (message->n_schedule < SCHEDULE_MAX)
            message->schedule[message->n_schedule++] =
                schedule_line_new(plan, program, timings, i, last);
        else message->schedule_left_out++;
        i = last;
    }
}

/* ---- Programs ---- */

static Fsdpd__V1__Estimate *estimate_message_new(const struct plan *plan,
                                                 const struct plan_program *program,
                                                 const struct plan_estimate *estimate)
{
    Fsdpd__V1__Estimate *message = MESSAGE_NEW(message, fsdpd__v1__estimate__init);
    message->step_seconds = plan_message_round(estimate->step_seconds);
    message->compute_seconds = plan_message_round(estimate->compute_seconds);
    message->communication_seconds = plan_message_round(estimate->communication_seconds);
    message->exposed_seconds = plan_message_round(estimate->exposed_seconds);
    message->flops = plan_message_round(estimate->flops);
    message->copy_seconds = plan_message_round(estimate->copy_seconds);
    message->download_seconds = plan_message_round(estimate->download_seconds);
    message->host_seconds = plan_message_round(estimate->host_seconds);
    const struct graph *graph = program->graph;
    double samples = (double)graph_samples(graph) * plan->options.world;
    if (estimate->step_seconds > 0)
        message->samples_per_second = plan_message_round(samples / estimate->step_seconds);
    if (graph->model->tokens)
        message->tokens_per_second =
            plan_message_round(message->samples_per_second * (double)graph->model->texts *
                               (double)graph->values[graph->input].type.dims[1]);
    return message;
}

static Fsdpd__V1__PlanProgram *program_message_new(const struct plan *plan,
                                                   const struct plan_program *program,
                                                   const char *name,
                                                   const struct plan_message_options *options)
{
    Fsdpd__V1__PlanProgram *message = MESSAGE_NEW(message, fsdpd__v1__plan_program__init);
    struct plan_timing *timings = mem_alloc_array(program->instruction_count, sizeof *timings);
    struct plan_estimate estimate;
    plan_estimate_program(plan, program, &options->profile->rates, timings, &estimate);
    message->name = mem_strdup(name);
    message->bytes = plan->state_bytes + program->work_bytes;
    message->memory = memory_rows(plan, program, message->bytes, &message->n_memory);
    message->peak_at = describe_peak(plan, program);
    message->instructions = (uint32_t)program->instruction_count;
    add_collectives(message, program, timings);
    message->estimate = estimate_message_new(plan, program, &estimate);
    if (options->schedule) add_schedule(message, plan, program, timings);
    free(timings);
    return message;
}

static void add_programs(Fsdpd__V1__Plan *message, const struct plan *plan,
                         const struct plan_message_options *options)
{
    const struct plan_program *programs[] = {&plan->train, &plan->accumulate, &plan->evaluate};
    static const char *const names[] = {"train", "accumulate", "evaluate"};
    size_t largest = 0, at = 0;
    message->programs = mem_alloc_array(3, sizeof *message->programs);
    for (size_t k = 0; k < 3; k++) {
        if (programs[k]->graph == NULL) continue;
        message->programs[message->n_programs++] =
            program_message_new(plan, programs[k], names[k], options);
        if (programs[k]->work_bytes > programs[largest]->work_bytes) {
            largest = k;
            at = message->n_programs - 1;
        }
    }
    message->memory = memory_rows(plan, programs[largest], plan->peak_bytes, &message->n_memory);
    message->peak_at = mem_printf("%s, %s", names[largest], message->programs[at]->peak_at);
}

/* Adds the collectives of earlier micro-steps, whose kinds also occur in the last one, to those of
 * the step. */
static void add_micro_steps(Fsdpd__V1__Plan *message, uint32_t count)
{
    const Fsdpd__V1__PlanProgram *earlier = message->programs[1];
    for (size_t k = 0; k < message->n_collectives; k++)
        for (size_t i = 0; i < earlier->n_collectives; i++) {
            Fsdpd__V1__Collective *collective = message->collectives[k];
            const Fsdpd__V1__Collective *more = earlier->collectives[i];
            if (strcmp(collective->kind, more->kind) != 0) continue;
            collective->count += count * more->count;
            collective->bytes += count * more->bytes;
            collective->seconds = plan_message_round(collective->seconds + count * more->seconds);
            collective->exposed_seconds =
                plan_message_round(collective->exposed_seconds + count * more->exposed_seconds);
        }
}

/* Each line of the units' notes. */
static void add_unit_notes(Fsdpd__V1__Plan *message, const char *notes)
{
    while (notes != NULL && *notes != '\0') {
        size_t length = strcspn(notes, "\n");
        if (length > 0) plan_message_add_note(message, "%.*s", (int)length, notes);
        notes += length + (notes[length] == '\n');
    }
}

static void add_outside(Fsdpd__V1__Plan *message, const struct train_session *session)
{
    struct train_outside outside;
    uint64_t all = message->peak_bytes;
    train_session_outside(session, &outside);
    message->outside = mem_alloc_array(OUTSIDE_KINDS, sizeof *message->outside);
    for (int kind = 0; kind < OUTSIDE_KINDS; kind++) {
        uint64_t bytes = outside.bytes[kind];
        if (bytes == 0) continue;
        message->outside[message->n_outside++] =
            memory_class_new(outside_name((enum outside_kind)kind), bytes);
        all += bytes;
    }
    if (outside.bytes[OUTSIDE_CODE] > 0) message->resident_bytes = all; /* a device of the host */
}

Fsdpd__V1__Strategy plan_message_strategy(enum strategy strategy)
{
    return (Fsdpd__V1__Strategy)spec_word_value(&fsdpd__v1__strategy__descriptor,
                                                plan_strategy_name(strategy));
}

char **plan_message_texts(const char *const *texts, int count)
{
    char **copies = count > 0 ? mem_alloc_array((size_t)count, sizeof *copies) : NULL;
    for (int i = 0; i < count; i++) copies[i] = mem_strdup(texts[i]);
    return copies;
}

/* The words by which a job file has the unit's own settings. */
static Fsdpd__V1__WrapUnit *wrap_unit_new(const struct wrap_unit_spec *unit, int world)
{
    Fsdpd__V1__WrapUnit *message = MESSAGE_NEW(message, fsdpd__v1__wrap_unit__init);
    const bool kept = unit->reshard == RESHARD_NO;
    message->n_modules = (size_t)unit->module_count;
    message->modules = plan_message_texts(unit->modules, unit->module_count);
    if (unit->shard_world == 1) message->strategy = FSDPD__V1__STRATEGY__STRATEGY_NO_SHARD;
    else if (unit->shard_world == world)
        message->strategy = kept ? FSDPD__V1__STRATEGY__STRATEGY_SHARD_GRAD_OP
                                 : FSDPD__V1__STRATEGY__STRATEGY_FULL_SHARD;
    else if (unit->shard_world > 0) {
        message->strategy = FSDPD__V1__STRATEGY__STRATEGY_HYBRID_SHARD;
        message->shard_size = (uint32_t)unit->shard_world;
    } else if (kept) message->reshard_after_forward = mem_strdup("false");
    if (unit->reshard == RESHARD_GROUP)
        message->reshard_after_forward = mem_printf("%d", unit->reshard_ranks);
    if (!unit->cpu_offload) return message;
    message->_cpu_offload_case = FSDPD__V1__WRAP_UNIT___CPU_OFFLOAD_CPU_OFFLOAD;
    message->cpu_offload = true;
    return message;
}

Fsdpd__V1__WrapSpec *plan_message_wrap(const struct wrap_policy *policy, int world)
{
    static const Fsdpd__V1__WrapPolicy policies[] = {
        [WRAP_NONE] = FSDPD__V1__WRAP_POLICY__WRAP_POLICY_NONE,
        [WRAP_SIZE] = FSDPD__V1__WRAP_POLICY__WRAP_POLICY_SIZE,
        [WRAP_UNITS] = FSDPD__V1__WRAP_POLICY__WRAP_POLICY_UNITS,
        [WRAP_TYPE] = FSDPD__V1__WRAP_POLICY__WRAP_POLICY_TYPE,
        [WRAP_MATCH] = FSDPD__V1__WRAP_POLICY__WRAP_POLICY_MATCH,
        [WRAP_AUTO] = FSDPD__V1__WRAP_POLICY__WRAP_POLICY_AUTO};
    Fsdpd__V1__WrapSpec *message = MESSAGE_NEW(message, fsdpd__v1__wrap_spec__init);
    message->policy = policies[policy->kind];
    if (policy->kind == WRAP_SIZE)
        message->_min_num_params_case = FSDPD__V1__WRAP_SPEC___MIN_NUM_PARAMS_MIN_NUM_PARAMS;
    message->min_num_params = policy->min_num_params;
    message->n_types = (size_t)policy->types.count;
    message->types = plan_message_texts(policy->types.items, policy->types.count);
    message->n_modules = (size_t)policy->modules.count;
    message->modules = plan_message_texts(policy->modules.items, policy->modules.count);
    message->units = mem_alloc_array((size_t)policy->unit_count + 1, sizeof *message->units);
    for (int u = 0; u < policy->unit_count; u++)
        message->units[message->n_units++] = wrap_unit_new(&policy->units[u], world);
    spec_complete_wrap(message);
    return message;
}

Fsdpd__V1__Plan *plan_message_new(const struct train_session *session,
                                  const struct plan_message_options *options)
{
    const struct plan *plan = train_session_plan(session);
    const struct unit_set *units = train_session_units(session);
    const struct model *model = train_session_model(session);
    Fsdpd__V1__Plan *message = MESSAGE_NEW(message, fsdpd__v1__plan__init);
    message->world = (uint32_t)plan->options.world;
    message->strategy = plan_message_strategy(plan->options.strategy);
    message->n_units = (size_t)units->unit_count;
    message->units = mem_alloc_array(message->n_units, sizeof *message->units);
    bool plain = plan->options.state == STATE_F32; /* an f32 per element and slot */
    for (int i = 0; i < units->unit_count; i++) {
        message->units[i] = unit_message_new(&units->units[i], model);
        plain = plain && units->units[i].flat.slots.shape == SHAPE_PLAIN;
    }
    message->peak_bytes = plan->peak_bytes;
    message->state_bytes = plan->state_bytes;
    message->host_bytes = plan->host_bytes;
    if (!plain) {
        message->_optimizer_bytes_case = FSDPD__V1__PLAN___OPTIMIZER_BYTES_OPTIMIZER_BYTES;
        message->optimizer_bytes = plan_optimizer_bytes(plan);
    }
    message->parameters = (uint64_t)model_parameter_elements(model);
    add_programs(message, plan, options);
    const Fsdpd__V1__PlanProgram *train = message->programs[0];
    message->communicated_bytes = plan_communicated_per_step(plan);
    message->n_collectives = train->n_collectives;
    message->collectives = mem_alloc_array(train->n_collectives, sizeof *message->collectives);
    for (size_t k = 0; k < train->n_collectives; k++)
        message->collectives[k] = collective_copy(train->collectives[k]);
    if (plan->options.micro_steps > 1) add_micro_steps(message, plan->options.micro_steps - 1);
    message->module_tree = units_print_tree(units, model);
    if (options->dump) message->dump = plan_dump(plan);
    message->hash = plan->hash;
    message->steps = train_session_steps(session);
    message->micro_steps = plan->options.micro_steps > 1 ? plan->options.micro_steps : 1;
    message->device = mem_strdup(options->profile->name);
    message->device_memory_bytes = options->memory_bytes;
    message->redundancy_sent_bytes = train_session_kept_sent_bytes(session);
    add_outside(message, session);
    add_unit_notes(message, units->notes);
    return message;
}
