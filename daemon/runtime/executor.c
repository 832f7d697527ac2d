/*
 * The executor. When created it allocates the plan's arenas, opens the lanes, creates one event per
 * instruction that another lane waits for, and computes every instruction's addresses. A step then
 * only walks the list, enqueues, and waits for the lanes; it accesses device memory only through
 * lanes, so any device will do.
 *
 * A step that is replayed returns when its statistics have arrived. The rest of it, its tail, runs
 * while the caller decides what they mean, and the next replay is enqueued behind it, so the device
 * does not wait for the host. Everything else waits for the tail first (executor_settle).
 *
 * One thread owns an executor; executor_abort may be called from any.
 */
#include "base/array.h"
#include "runtime/executor_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

enum { POLL_MS = 500 /* how often a wait for a lane checks whether the step was aborted */ };

static status_t check_arguments(const struct plan *plan, const struct comm *comm,
                                const struct device_graph *train,
                                const struct device_graph *evaluate)
{
    int world = comm != NULL ? comm_world(comm) : 1, rank = comm != NULL ? comm_rank(comm) : 0;
    if (world != plan->options.world || rank != plan->options.rank)
        return status_new(STATUS_INTERNAL, "the plan is for rank %d of %d, the group's is %d of %d",
                          plan->options.rank, plan->options.world, rank, world);
    if ((plan->train.graph != NULL && train == NULL) ||
        (plan->evaluate.graph != NULL && evaluate == NULL))
        return status_new(STATUS_INTERNAL, "a graph of the plan was not lowered");
    return NULL;
}

static const struct plan_program *state_program(const struct plan *plan)
{
    return plan->train.graph != NULL ? &plan->train : &plan->evaluate;
}

/* What is lent must lie at the same places of both state arenas. */
static status_t check_lender(const struct plan *plan, const struct executor *lender)
{
    const struct plan_program *program = &plan->evaluate;
    if (lender == NULL && plan->lent_bytes == 0) return NULL;
    for (int b = 0; b < program->buffer_count && lender != NULL; b++) {
        const struct plan_buffer *mine = &program->buffers[b];
        if (mine->arena != ARENA_STATE || mine->offset >= plan->lent_bytes) continue;
        const struct plan_program *other = state_program(lender->plan);
        bool found = false;
        for (int k = 0; k < other->buffer_count && !found; k++) {
            const struct plan_buffer *its = &other->buffers[k];
            found = its->arena == ARENA_STATE && its->class == mine->class &&
                    its->unit == mine->unit && its->slot == mine->slot &&
                    its->offset == mine->offset && its->bytes == mine->bytes;
        }
        if (!found)
            return status_new(STATUS_INTERNAL, "the lender has no %s of unit %d at byte %llu",
                              plan_buffer_class_name(mine->class), mine->unit,
                              (unsigned long long)mine->offset);
    }
    return lender != NULL ? NULL : status_new(STATUS_INTERNAL, "nothing lends the parameters");
}

static status_t new_executor(struct device *device, struct comm *comm, const struct plan *plan,
                             struct device_graph *train, struct device_graph *evaluate,
                             uint64_t seed, struct executor *lender, struct executor **result)
{
    TRY(check_arguments(plan, comm, train, evaluate));
    TRY(check_lender(plan, lender));
    struct executor *executor = mem_alloc(sizeof *executor);
    executor->device = device;
    executor->comm = comm;
    executor->plan = plan;
    executor->seed = seed;
    executor->lender = lender;
    executor->stats_out =
        mem_alloc_array((size_t)(PLAN_STATS_COUNT + graph_tally_count(plan->evaluate.graph)),
                        sizeof *executor->stats_out);
    pthread_mutex_init(&executor->lock, NULL);
    status_t status = executor_prepare(executor, train, evaluate);
    if (status != NULL) {
        executor_free(executor);
        return status;
    }
    *result = executor;
    return NULL;
}

status_t executor_new(struct device *device, struct comm *comm, const struct plan *plan,
                      struct device_graph *train, struct device_graph *evaluate, uint64_t seed,
                      struct executor **result)
{
    return new_executor(device, comm, plan, train, evaluate, seed, NULL, result);
}

status_t executor_new_borrowing(const struct plan *plan, struct device_graph *graph,
                                struct executor *lender, struct executor **result)
{
    return new_executor(lender->device, lender->comm, plan, NULL, graph, 0, lender, result);
}

struct device *executor_device(const struct executor *executor)
{
    return executor->device;
}

static void program_deinit(struct program *program)
{
    recorder_deinit(&program->recorder);
    for (int i = 0; program->actions != NULL && i < program->plan->instruction_count; i++) {
        event_free(program->actions[i].fires);
        free(program->actions[i].label);
        free(program->actions[i].ranges);
        free(program->actions[i].pieces);
        factor_work_deinit(&program->actions[i].factors);
        base_work_deinit(&program->actions[i].unpacking);
    }
    free(program->actions);
}

void executor_free(struct executor *executor)
{
    if (executor == NULL) return;
    MUST(atomic_load(&executor->running) == NULL);
    status_free(executor_settle(executor)); /* closing a lane would wait for lost peers, too */
    for (int lane = 0; lane < LANE_COUNT; lane++) lane_close(executor->lanes[lane]);
    program_deinit(&executor->train);
    program_deinit(&executor->accumulate);
    program_deinit(&executor->evaluate);
    program_deinit(&executor->hold);
    executor_set_guard(executor, &(struct executor_guard){0});
    executor_release_arena(executor, &executor->work);
    executor_release_arena(executor, &executor->state);
    for (int g = 0; g < executor->group_count; g++) {
        comm_free(executor->groups[g].shard);
        comm_free(executor->groups[g].replica);
    }
    free(executor->groups);
    device_release(executor->device, executor->host);
    status_free(executor->aborted);
    pthread_mutex_destroy(&executor->lock);
    base_packer_deinit(&executor->packer);
    free(executor->poison);
    free(executor->logits);
    free(executor->note);
    free(executor->stats_out);
    free(executor);
}

static void forget_recordings(struct executor *executor)
{
    recorder_forget(&executor->train.recorder);
    recorder_forget(&executor->accumulate.recorder);
    recorder_forget(&executor->evaluate.recorder);
}

status_t executor_set_poison(struct executor *executor, bool on)
{
    MUST_ALONE(&executor->user);
    TRY(executor_settle(executor));
    forget_recordings(executor);
    free(executor->poison);
    executor->poison = NULL;
    if (!on || executor->plan->work_bytes == 0) return NULL;
    executor->poison = mem_alloc(executor->plan->work_bytes);
    memset(executor->poison, 0xff, executor->plan->work_bytes); /* as floats: NaN */
    return NULL;
}

void executor_set_trace(struct executor *executor, struct trace *trace)
{
    MUST_ALONE(&executor->user);
    executor->trace = trace;
}

bool executor_is_tracing(const struct executor *executor, const struct trace *trace)
{
    return trace != NULL && executor->trace == trace;
}

bool executor_has_trace(const struct executor *executor)
{
    return executor->trace != NULL;
}

/* Where the instructions of this program's next run store their times; NULL without a trace. */
static struct trace_stamp *trace_stamps(const struct executor *executor,
                                        const struct program *program)
{
    if (executor->trace == NULL || program == &executor->evaluate) return NULL;
    return trace_next_run(executor->trace, program == &executor->accumulate)->stamps;
}

static void note_run(struct executor *executor, int64_t begin_ns, int64_t end_ns)
{
    struct trace *trace = executor->trace;
    trace_run_done(trace, (struct trace_stamp){begin_ns, end_ns});
    if (trace_is_full(trace)) executor->trace = NULL;
}

static status_t aborted(struct executor *executor)
{
    pthread_mutex_lock(&executor->lock);
    status_t status = status_copy(executor->aborted);
    pthread_mutex_unlock(&executor->lock);
    return status;
}

/* Forward moves them. */
static void announce_buffers(const struct executor *executor)
{
    const struct unit_set *units = executor->plan->units;
    for (int u = 0; u < units->unit_count; u++)
        if (units->units[u].buffers) executor_announce_change(executor, u);
}

static status_t announce_change(void *argument)
{
    const struct unit_change *change = argument;
    executor_announce_change(change->executor, change->unit);
    return NULL;
}

/* Memory of the host is changed by lanes that are threads, and can call. */
static status_t enqueue_announcement(struct lane_queue *lane, struct unit_change *change)
{
    const struct executor *executor = change->executor;
    if (executor->guard.before_change == NULL || !executor_in_host_memory(executor, change->unit))
        return NULL;
    return lane_call(lane, announce_change, change);
}

/* Updates each range with the settings of its group. */
static status_t optimize(const struct executor *executor, struct lane_queue *lane,
                         const struct action *action, const struct optimizer_step *optimizer,
                         const float *stats, bool gated)
{
    const struct unit_set *units = executor->plan->units;
    const struct slot_layout *layout = &units->units[action->change.unit].flat.slots;
    for (int r = 0; r < action->range_count; r++) {
        const struct plan_range *range = &action->ranges[r];
        struct optimizer_step step =
            optimizer_step_of(optimizer, range->group, optimizer->others != NULL && !range->matrix);
        step.state = range->packed ? optimizer->state : STATE_F32;
        float *slots[OPTIMIZER_MAX_SLOTS] = {NULL};
        step.rounded = action->low;
        step.seed = executor->seed;
        step.parameter = (uint32_t)range->parameter;
        step.first = (uint64_t)range->first;
        for (int slot = 0; slot < OPTIMIZER_MAX_SLOTS; slot++)
            if (action->slots[slot] != NULL)
                slots[slot] =
                    action->slots[slot] + (slot_differs(layout, slot) ? range->state : range->from);
        /* The average is behind the slots of all; the range's optimizer may have fewer. */
        int last = optimizer_step_slots(optimizer) - 1;
        if (step.ema_decay > 0) slots[optimizer_step_slots(&step) - 1] = slots[last];
        size_t bytes = action->low ? sizeof(uint16_t) : sizeof(float);
        TRY(lane_optimize(lane, &step, (size_t)range->count,
                          (float *)(void *)(action->target + bytes * (size_t)range->from),
                          action->rounded != NULL ? action->rounded + range->from : NULL,
                          (float *)action->source + range->from, slots, stats, gated));
    }
    return NULL;
}

/* The part of a unit's gradient that this rank counts. */
static status_t add_norm(const struct executor *executor, const struct program *program,
                         const struct action *action, struct lane_queue *lane)
{
    if (action == program->first_norm) TRY(lane_zero(lane, action->target, sizeof(double)));
    for (int r = 0; r < action->range_count; r++)
        TRY(lane_norm(lane, executor->plan->options.norm, (size_t)action->ranges[r].count,
                      (float *)action->source + action->ranges[r].from, (double *)action->target));
    return NULL;
}

static void key_dropout(const struct executor *executor, struct action *action,
                        const struct step_input *input)
{
    struct kernel_call *call = &action->call;
    uint64_t batches = input->micro_steps > 0 ? input->micro_steps : 1;
    call->step = input->by_sample ? input->step : input->step * batches + input->micro;
    bool by_sample = input->by_sample && call->sample_elements > 0;
    call->rank = by_sample ? 0 : (uint32_t)executor->plan->options.rank;
    call->first_sample = input->by_sample ? input->first_sample : 0;
}

static status_t unpack(struct lane_queue *lane, struct action *action)
{
    if (action->unpacking.target == NULL) return NULL;
    return base_unpack_enqueue(lane, &action->unpacking);
}

static status_t issue(struct executor *executor, struct program *program, int i,
                      const struct step_input *input)
{
    const struct plan_instruction *instruction = &program->plan->instructions[i];
    struct action *action = &program->actions[i];
    struct lane_queue *lane = executor->lanes[instruction->lane];
    switch (instruction->kind) {
    case INSTRUCTION_COPY_BATCH:
        TRY(lane_copy(lane, program->input, input->input, program->input_bytes));
        TRY(lane_copy(lane, program->target, input->target, program->target_bytes));
        if (program->starts != NULL)
            TRY(lane_copy(lane, program->starts, input->starts, program->target_bytes));
        if (program->reference != NULL)
            TRY(lane_copy(lane, program->reference, input->reference, program->reference_bytes));
        return lane_copy(lane, program->stats, executor->stats_in, sizeof executor->stats_in);
    case INSTRUCTION_GATHER_VALUE:
        return comm_all_gather(action->comm, lane, (float *)action->source, (float *)action->target,
                               action->count);
    case INSTRUCTION_ALL_GATHER:
        if (action->low && (instruction->group == GROUP_RESHARD ||
                            plan_keeps_rounded(executor->plan, instruction->unit)))
            return comm_all_gather_rounded(action->comm, lane, (uint16_t *)action->source,
                                           (uint16_t *)action->target, action->count);
        if (action->low)
            return comm_all_gather_bf16(action->comm, lane, (float *)action->source,
                                        (uint16_t *)action->target, action->count);
        TRY(comm_all_gather(action->comm, lane, (float *)action->source, (float *)action->target,
                            action->count));
        return unpack(lane, action);
    case INSTRUCTION_COMPUTE:
        key_dropout(executor, action, input);
        return lane_launch(lane, program->graph, instruction->op, &action->call);
    case INSTRUCTION_FREE:
        if (executor->poison == NULL) return NULL;
        return lane_copy(lane, action->source, executor->poison, action->count);
    case INSTRUCTION_REDUCE_SCATTER:
        if (action->low)
            return comm_reduce_scatter_bf16(action->comm, lane, (float *)action->source,
                                            (float *)action->target, action->count, action->scale,
                                            action->workspace);
        return comm_reduce_scatter(action->comm, lane, (float *)action->source,
                                   (float *)action->target, action->count, action->scale,
                                   action->workspace);
    case INSTRUCTION_ALL_REDUCE:
        if (action->low)
            return comm_all_reduce_bf16(action->comm, lane, (float *)action->target, action->count,
                                        action->scale, action->workspace);
        return comm_all_reduce(action->comm, lane, (float *)action->target, action->count,
                               action->scale, action->workspace);
    case INSTRUCTION_REDUCE_STATS:
        return comm_all_reduce(action->comm, lane, (float *)action->target, action->count,
                               action->scale, action->workspace);
    case INSTRUCTION_OPTIMIZER: {
        char *stats = instruction->lane == LANE_HOST ? program->host_stats : program->stats;
        TRY(enqueue_announcement(lane, &action->change));
        return optimize(executor, lane, action, &input->optimizer, (float *)stats,
                        program->first_norm != NULL);
    }
    case INSTRUCTION_MOMENTUM:
        TRY(enqueue_announcement(lane, &action->change));
        /* fall through */
    case INSTRUCTION_ORTHOGONALIZE:
        action->matrices.step = input->optimizer;
        return matrix_step_enqueue(lane, &action->matrices);
    case INSTRUCTION_FACTOR:
    case INSTRUCTION_UPDATE: TRY(enqueue_announcement(lane, &action->change)); /* fall through */
    case INSTRUCTION_SQUARES:
    case INSTRUCTION_SCALE:
        action->factors.step = input->optimizer;
        return factor_step_enqueue(lane, &action->factors);
    case INSTRUCTION_GATHER_SUMS:
        return comm_all_gather(action->comm, lane, (float *)action->source, (float *)action->target,
                               action->count);
    case INSTRUCTION_COLLECT:
    case INSTRUCTION_DISTRIBUTE:
        return comm_exchange(action->comm, lane, action->pieces, action->piece_count,
                             (float *)action->source, (float *)action->target);
    case INSTRUCTION_KIND_COUNT: break;
    case INSTRUCTION_UPLOAD:
        if (action->count > 0)
            TRY(lane_transfer(lane, action->target, action->source, action->count));
        return unpack(lane, action);
    case INSTRUCTION_DOWNLOAD:
    case INSTRUCTION_DOWNLOAD_STATS:
        return lane_transfer(lane, action->target, action->source, action->count);
    case INSTRUCTION_ACCUMULATE:
        return lane_add(lane, action->count / sizeof(float), (float *)action->target,
                        (float *)action->source);
    case INSTRUCTION_RESHARD: return lane_copy(lane, action->target, action->source, action->count);
    case INSTRUCTION_ZERO: return lane_zero(lane, action->target, action->count);
    case INSTRUCTION_NORM: return add_norm(executor, program, action, lane);
    case INSTRUCTION_REDUCE_NORM:
        return comm_all_gather(executor->comm, lane,
                               (float *)(action->source +
                                         (size_t)executor->plan->options.rank * sizeof(double)),
                               (float *)action->target, sizeof(double) / sizeof(float));
    case INSTRUCTION_GATE: {
        const struct gate_args args = {.kind = executor->plan->options.norm,
                                       .max_norm = input->max_norm,
                                       .skip = input->skip};
        return lane_gate(lane, &args, (double *)action->source, executor->plan->options.world,
                         (float *)action->target);
    }
    }
    return status_new(STATUS_INTERNAL, "unknown kind of instruction %d", (int)instruction->kind);
}

/* The program has computed them; later instructions only read them. */
static status_t deliver_stats(struct executor *executor, const struct program *program,
                              struct lane_queue *lane)
{
    int sums = graph_tally_count(program->plan->graph);
    return lane_deliver(lane, executor->stats_out, program->stats,
                        (uint64_t)(PLAN_STATS_COUNT + sums) * sizeof *executor->stats_out);
}

/* `stamps`: where instructions store their times; may be NULL. */
static status_t issue_all(struct executor *executor, struct program *program,
                          const struct step_input *input, struct trace_stamp *stamps)
{
    const struct plan_program *plan = program->plan;
    for (int i = 0; i < plan->instruction_count; i++) {
        const struct plan_instruction *instruction = &plan->instructions[i];
        struct lane_queue *lane = executor->lanes[instruction->lane];
        lane_label(lane, program->actions[i].label);
        for (int w = 0; w < instruction->wait_count; w++)
            lane_wait_event(lane, program->actions[instruction->waits[w]].fires);
        if (stamps != NULL) TRY(lane_stamp(lane, &stamps[i].begin_ns));
        TRY(issue(executor, program, i, input));
        if (stamps != NULL) TRY(lane_stamp(lane, &stamps[i].end_ns));
        if (i == program->stats_done) TRY(deliver_stats(executor, program, lane));
        if (program->actions[i].fires != NULL) lane_record(lane, program->actions[i].fires);
    }
    return NULL;
}

/* Waits without a deadline: a running kernel is not a lost peer; collectives have deadlines of
 * their own. Only an abort ends it early, and may leave the lane working. */
status_t executor_wait_lane(struct executor *executor, enum lane kind)
{
    struct lane_queue *lane = executor->lanes[kind];
    while (lane != NULL) {
        status_t status = lane_wait(lane, POLL_MS);
        if (!lane_is_running(lane)) return status;
        status_free(status);
        TRY(aborted(executor));
    }
    return NULL;
}

/*
 * Waits for every lane, also after an error: then nothing is running, unless the step was aborted.
 * Collectives know the cause of a failure best, so their error comes first.
 */
static status_t wait_all(struct executor *executor)
{
    static const enum lane order[LANE_COUNT] = {LANE_COMM, LANE_COPY, LANE_COMPUTE, LANE_DOWNLOAD,
                                                LANE_HOST};
    status_t status = NULL;
    executor->tail = NULL;
    for (int i = 0; i < LANE_COUNT; i++) {
        status_t failed = executor_wait_lane(executor, order[i]);
        if (failed != NULL && executor->comm != NULL)
            comm_abort(executor->comm, status_message(failed));
        status = status_first(status, failed);
    }
    return status;
}

/* If the executor was aborted, that is the reason, whatever a lane reports. */
static status_t with_reason(struct executor *executor, status_t status)
{
    status_t reason = status != NULL ? aborted(executor) : NULL;
    return reason != NULL ? status_first(reason, status) : status;
}

static struct busy_times busy_times(const struct executor *executor)
{
    return (struct busy_times){lane_busy_ns(executor->lanes[LANE_COMPUTE]),
                               lane_busy_ns(executor->lanes[LANE_COMM])};
}

status_t executor_settle(struct executor *executor)
{
    MUST_ALONE(&executor->user);
    if (executor->tail == NULL) return NULL;
    const struct busy_times before = busy_times(executor);
    struct program *next = atomic_exchange(&executor->running, executor->tail);
    status_t status = wait_all(executor);
    atomic_store(&executor->running, next);
    const struct busy_times after = busy_times(executor);
    executor->settled.compute_ns += after.compute_ns - before.compute_ns;
    executor->settled.comm_ns += after.comm_ns - before.comm_ns;
    return with_reason(executor, status);
}

/* ---- recorded runs ---- */

struct run_to_record {
    struct executor *executor;
    struct program *program;
    const struct step_input *input;
};

static status_t issue_recorded(void *user)
{
    const struct run_to_record *run = user;
    return issue_all(run->executor, run->program, run->input, NULL);
}

/* Takes ownership of `why`. */
static void note_unrecorded(struct executor *executor, status_t why)
{
    if (!executor->noted && status_code(why) != STATUS_OK)
        executor->note = mem_printf("steps are enqueued call by call, with the same results: %s",
                                    status_message(why));
    executor->noted = executor->noted || why != NULL;
    status_free(why);
}

/* No note where the device cannot record. */
static status_t check_group(const struct executor *executor)
{
    if (executor->host != NULL)
        return status_new(STATUS_UNIMPLEMENTED, "the host has the optimizer of offloaded units");
    if (executor->comm == NULL || comm_is_repeatable(executor->comm)) return NULL;
    return status_new(STATUS_UNIMPLEMENTED, "the host takes part in the group's collectives");
}

/* The ranks' next collective would fail in a group that a failed recording has spoilt. In a new
 * one the other programs are recorded again. */
static status_t end_recording(struct executor *executor, struct program *program, bool recorded)
{
    bool renewed = false;
    if (executor->comm == NULL) return NULL;
    TRY(comm_end_recording(executor->comm, recorded, &program->recorded_by_all, &renewed));
    struct program *const programs[] = {&executor->train, &executor->accumulate,
                                        &executor->evaluate};
    for (size_t i = 0; i < COUNT_OF(programs) && renewed; i++)
        if (programs[i] != program) recorder_forget(&programs[i]->recorder);
    for (struct executor *e = executor->lender; e != NULL && renewed; e = e->lender)
        forget_recordings(e);
    return NULL;
}

static status_t prepare_recording(struct executor *executor, struct program *program,
                                  const struct recorder_walk *walk)
{
    struct lane_queue *const lanes[] = {executor->lanes[LANE_COMPUTE], executor->lanes[LANE_COMM],
                                        executor->lanes[LANE_COPY]};
    if (!device_records(executor->device) || !recorder_is_due(&program->recorder)) return NULL;
    const bool captures = program->recorder.state == RECORDER_RECORDING;
    bool fatal = false;
    status_t status = check_group(executor);
    if (status == NULL)
        status = recorder_record(&program->recorder, executor->device, lanes, COUNT_OF(lanes), walk,
                                 &fatal);
    if (fatal) { /* peers wait in it for this rank */
        status = status_wrap(status, "recording a step of registered buffers");
        comm_abort(executor->comm, status_message(status));
        return status;
    }
    const bool recorded = status == NULL;
    if (recorder_report(&program->recorder) < 0) note_unrecorded(executor, status);
    else status_free(status);
    return captures ? end_recording(executor, program, recorded) : NULL;
}

/* After a successful run, notes in the recorder whether all ranks have completed its stage. Not
 * after a traced run: a recording lacks the instructions' times, and all ranks trace the same
 * steps. */
static void note_stage(struct executor *executor, struct program *program, bool traced)
{
    const int world = executor->plan->options.world;
    float reports = executor->stats_out[PLAN_STAT_RECORDED];
    executor->stats_out[PLAN_STAT_RECORDED] = 0; /* a program of another executor */
    if (traced || recorder_replays(&program->recorder)) return;
    if (!program->summed) reports = program->recorded_by_all ? (float)world : -1;
    if (recorder_note_run(&program->recorder, reports, world))
        note_unrecorded(executor, status_new(STATUS_UNIMPLEMENTED, "another rank cannot record"));
}

/* Enqueues a whole run, with one call if possible. */
static status_t enqueue(struct executor *executor, struct program *program,
                        const struct step_input *input, struct trace_stamp *stamps)
{
    struct run_to_record run = {executor, program, input};
    const struct recorder_walk walk = {issue_recorded, &run};
    if (stamps == NULL && recorder_replays(&program->recorder))
        return status_wrap(recorder_replay(&program->recorder, &walk), "a recorded %s step",
                           program == &executor->evaluate ? "evaluation" : "training");
    if (stamps == NULL) TRY(prepare_recording(executor, program, &walk));
    executor->stats_in[PLAN_STAT_RECORDED] = recorder_report(&program->recorder);
    return issue_all(executor, program, input, stamps);
}

/* After a replay: waits until its statistics have arrived. After an error nothing runs, as in
 * wait_all; otherwise the rest is the tail. */
static status_t wait_for_stats(struct executor *executor, struct program *program)
{
    struct recording *recording = program->recorder.recording;
    if (!recording_delivers(recording)) return wait_all(executor);
    status_t status = NULL;
    for (bool delivered = false; status == NULL && !delivered;) {
        status = recording_wait(recording, POLL_MS, &delivered);
        if (status == NULL && !delivered) status = aborted(executor);
    }
    if (status == NULL) {
        executor->tail = program;
        return NULL;
    }
    if (executor->comm != NULL) comm_abort(executor->comm, status_message(status));
    return status_first(status, wait_all(executor));
}

char *executor_take_note(struct executor *executor)
{
    MUST_ALONE(&executor->user);
    char *note = executor->note;
    executor->note = NULL;
    return note;
}

/* The sum of the weights of the targets that count. The data's readers checked the targets. */
static double weight_of(const struct program *program, const struct step_input *input)
{
    const struct op_weights *weights = &program->weights;
    if (weights->values == NULL) return (double)input->samples;
    double sum = 0;
    for (int64_t i = 0; i < program->target_count; i++)
        if (input->target[i] >= 0) sum += op_weight(weights, input->target[i]);
    return sum;
}

/* This rank's part of the statistics. */
static void set_stats(struct executor *executor, const struct program *program,
                      const struct step_input *input)
{
    float *stats = executor->stats_in;
    int world = executor->plan->options.world;
    stats[PLAN_STAT_SAMPLES] = (float)input->samples;
    stats[PLAN_STAT_SIGNAL] = input->signal;
    double weight = weight_of(program, input);
    executor->counted = (input->micro > 0 ? executor->counted : 0) +
                        (program->mean ? weight : (double)input->samples);
    stats[PLAN_STAT_WEIGHT] = (float)weight;
    bool sums =
        program != &executor->evaluate && executor->comm != NULL && !comm_scales(executor->comm);
    stats[PLAN_STAT_COUNTED] = (float)(sums ? executor->counted * world : executor->counted);
    /* The mean over ranks divides a sum by their number, which a global batch must not depend on.
     */
    int ranks = input->by_sample ? world : 1;
    stats[PLAN_STAT_TARGETS] =
        (float)(program->mean ? (double)program->target_count : executor->counted * ranks);
}

static status_t run_checked(struct executor *executor, struct program *program,
                            const struct step_input *input, struct step_result *result)
{
    if (program->plan == NULL)
        return status_new(STATUS_FAILED_PRECONDITION, "the plan has no program for this step");
    if (executor->released)
        return status_new(STATUS_FAILED_PRECONDITION, "the executor's work memory was given back");
    TRY(aborted(executor));
    struct trace_stamp *stamps = trace_stamps(executor, program);
    bool replays = stamps == NULL && recorder_replays(&program->recorder);
    if (!replays || executor->poison != NULL) TRY(executor_settle(executor));
    int64_t start = clock_monotonic_ns();
    const struct busy_times before = busy_times(executor);
    set_stats(executor, program, input);
    announce_buffers(executor);
    if (executor->poison != NULL) {
        lane_label(executor->lanes[LANE_COPY], NULL);
        TRY(lane_copy(executor->lanes[LANE_COPY], executor->work, executor->poison,
                      executor->plan->work_bytes));
        TRY(wait_all(executor));
    }
    status_t status = enqueue(executor, program, input, stamps);
    if (status == NULL && replays) status = wait_for_stats(executor, program);
    else status = status_first(status, wait_all(executor));
    executor_note_memory(executor);
    if (status != NULL) return with_reason(executor, status);
    const struct busy_times after = busy_times(executor);
    const struct busy_times *settled = &executor->settled;
    struct step_result measured = {.step_ns = clock_monotonic_ns() - start,
                                   .compute_ns =
                                       settled->compute_ns + after.compute_ns - before.compute_ns,
                                   .comm_ns = settled->comm_ns + after.comm_ns - before.comm_ns};
    executor->settled = (struct busy_times){0};
    int64_t idle = measured.step_ns - measured.compute_ns;
    if (idle > 0) measured.exposed_comm_ns = idle < measured.comm_ns ? idle : measured.comm_ns;
    if (stamps != NULL) note_run(executor, start, start + measured.step_ns);
    note_stage(executor, program, stamps != NULL);
    memcpy(measured.stats, executor->stats_out, sizeof measured.stats);
    measured.sums = executor->stats_out + PLAN_STATS_COUNT;
    *result = measured;
    return NULL;
}

static status_t run_program(struct executor *executor, struct program *program,
                            const struct step_input *input, struct step_result *result)
{
    MUST_ALONE(&executor->user);
    MUST(atomic_load(&executor->running) == NULL); /* no step within a step */
    atomic_store(&executor->running_since_ns, clock_monotonic_ns());
    atomic_store(&executor->running, program);
    status_t status = run_checked(executor, program, input, result);
    atomic_store(&executor->running, NULL);
    return status;
}

status_t executor_train_step(struct executor *executor, const struct step_input *input,
                             struct step_result *result)
{
    return run_program(executor, &executor->train, input, result);
}

status_t executor_accumulate_step(struct executor *executor, const struct step_input *input,
                                  struct step_result *result)
{
    return run_program(executor, &executor->accumulate, input, result);
}

status_t executor_evaluate_step(struct executor *executor, const struct step_input *input,
                                struct step_result *result)
{
    return run_program(executor, &executor->evaluate, input, result);
}

status_t executor_hold(struct executor *executor)
{
    static const struct step_input none;
    struct program *program = &executor->hold;
    MUST_ALONE(&executor->user);
    MUST(atomic_load(&executor->running) == NULL);
    if (program->plan == NULL) return NULL;
    TRY(executor_settle(executor));
    TRY(aborted(executor));
    atomic_store(&executor->running_since_ns, clock_monotonic_ns());
    atomic_store(&executor->running, program);
    status_t status = issue_all(executor, program, &none, NULL);
    status = with_reason(executor, status_first(status, wait_all(executor)));
    atomic_store(&executor->running, NULL);
    return status;
}

status_t executor_release_work(struct executor *executor)
{
    MUST_ALONE(&executor->user);
    TRY(executor_settle(executor));
    forget_recordings(executor);
    executor_release_arena(executor, &executor->work);
    executor->released = true;
    return NULL;
}

const struct plan *executor_plan(const struct executor *executor)
{
    return executor->plan;
}

void executor_abort(struct executor *executor, const char *why)
{
    pthread_mutex_lock(&executor->lock);
    if (executor->aborted == NULL)
        executor->aborted = status_new(STATUS_ABORTED, "the step was aborted: %s", why);
    pthread_mutex_unlock(&executor->lock);
    if (executor->comm != NULL) comm_abort(executor->comm, why);
}

uint64_t executor_memory(const struct executor *executor)
{
    uint64_t allocated = device_allocated_bytes(executor->device);
    return allocated > executor->allocated_before ? allocated - executor->allocated_before : 0;
}

void executor_replaced(struct executor *executor, uint64_t bytes)
{
    executor->allocated_before -= bytes;
}

uint64_t executor_memory_peak(const struct executor *executor)
{
    return executor->peak;
}

uint64_t executor_memory_touched(const struct executor *executor)
{
    return device_touched_bytes(executor->device, executor->state) +
           device_touched_bytes(executor->device, executor->work);
}
