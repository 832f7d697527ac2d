/* Trace orders; see trace.h. */
#include "worker/trace.h"

#include "base/mem.h"
#include "ops/op.h"
#include "proto/message.h"

/* A chunk is closed when it has reached this; the largest piece that may follow fits below 1 MiB.
 */
enum { CHUNK_BYTES = 256 << 10, PIECE_INSTRUCTIONS = 4000 };

static Fsdpd__V1__TraceChunk *chunk_new(const struct tracer *tracer)
{
    Fsdpd__V1__TraceChunk *chunk = MESSAGE_NEW(chunk, fsdpd__v1__trace_chunk__init);
    chunk->rank = (uint32_t)tracer->rank;
    return chunk;
}

static void post(const struct tracer *tracer, Fsdpd__V1__TraceReport *report)
{
    report->trace = tracer->number;
    Fsdpd__V1__AttemptEvent *event = MESSAGE_NEW(event, fsdpd__v1__attempt_event__init);
    event->event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_TRACE;
    event->trace = report;
    link_post_event(tracer->link, tracer->job, tracer->attempt, event);
}

/* Takes the chunk. */
static void post_chunk(const struct tracer *tracer, Fsdpd__V1__TraceChunk *chunk)
{
    Fsdpd__V1__TraceReport *report = MESSAGE_NEW(report, fsdpd__v1__trace_report__init);
    report->chunk = chunk;
    post(tracer, report);
}

static void post_failure(const struct tracer *tracer, status_t status)
{
    Fsdpd__V1__TraceReport *report = MESSAGE_NEW(report, fsdpd__v1__trace_report__init);
    report->code = (uint32_t)status_code(status);
    report->message = mem_strdup(status_message(status));
    post(tracer, report);
    status_free(status);
}

/* The steps' instructions. */

static uint32_t awaited_by(const struct plan_program *program, int gather)
{
    for (int i = gather + 1; i < program->instruction_count; i++)
        if (program->instructions[i].kind == INSTRUCTION_COMPUTE &&
            plan_happens_before(program, gather, i))
            return (uint32_t)i;
    return 0;
}

static Fsdpd__V1__TraceInstruction *describe(const struct plan *plan,
                                             const struct plan_program *program, int i)
{
    const struct plan_instruction *instruction = &program->instructions[i];
    Fsdpd__V1__TraceInstruction *message = MESSAGE_NEW(message, fsdpd__v1__trace_instruction__init);
    const char *kind = plan_instruction_name(instruction->kind);
    const char *unit = instruction->unit >= 0 ? plan->units->units[instruction->unit].name : "";
    if (instruction->op >= 0) message->name = mem_strdup(program->graph->ops[instruction->op].name);
    else message->name = mem_printf("%s%s%s", kind, unit[0] ? " " : "", unit);
    message->kind = mem_strdup(kind);
    if (instruction->op >= 0)
        message->op = mem_strdup(op_info_get(program->graph->ops[instruction->op].kind)->name);
    message->lane = mem_strdup(plan_lane_name(instruction->lane));
    message->unit = mem_strdup(unit);
    message->bytes = instruction->communicated;
    message->live_bytes = program->live_bytes[i];
    if (instruction->kind == INSTRUCTION_ALL_GATHER) message->awaited_by = awaited_by(program, i);
    return message;
}

static void describe_program(Fsdpd__V1__TraceChunk *chunk, const struct plan *plan,
                             const struct plan_program *program, const char *name)
{
    for (int first = 0; first < program->instruction_count; first += PIECE_INSTRUCTIONS) {
        int left = program->instruction_count - first;
        int count = left < PIECE_INSTRUCTIONS ? left : PIECE_INSTRUCTIONS;
        Fsdpd__V1__TraceProgram *piece = MESSAGE_NEW(piece, fsdpd__v1__trace_program__init);
        piece->name = mem_strdup(name);
        piece->first = (uint32_t)first;
        piece->live_peak_bytes = program->live_peak;
        piece->instructions = mem_alloc_array((size_t)count, sizeof *piece->instructions);
        for (int i = 0; i < count; i++)
            piece->instructions[piece->n_instructions++] = describe(plan, program, first + i);
        chunk->programs[chunk->n_programs++] = piece;
    }
}

static int count_pieces(const struct plan_program *program)
{
    return (program->instruction_count + PIECE_INSTRUCTIONS - 1) / PIECE_INSTRUCTIONS;
}

static Fsdpd__V1__TraceChunk *describe_programs(const struct tracer *tracer,
                                                const struct plan *plan)
{
    Fsdpd__V1__TraceChunk *chunk = chunk_new(tracer);
    int pieces = count_pieces(&plan->train) + count_pieces(&plan->accumulate);
    chunk->programs = mem_alloc_array((size_t)pieces + 1, sizeof *chunk->programs);
    describe_program(chunk, plan, &plan->train, "train");
    describe_program(chunk, plan, &plan->accumulate, "accumulate");
    return chunk;
}

/* One piece in a message: names may be long. */
static void send_program(struct tracer *tracer)
{
    Fsdpd__V1__TraceChunk *all = tracer->first;
    tracer->first = NULL;
    if (all == NULL) return;
    for (size_t i = 0; i < all->n_programs; i++) {
        Fsdpd__V1__TraceChunk *chunk = chunk_new(tracer);
        chunk->programs = mem_alloc_array(1, sizeof *chunk->programs);
        chunk->programs[chunk->n_programs++] = all->programs[i];
        post_chunk(tracer, chunk);
    }
    all->n_programs = 0;
    fsdpd__v1__trace_chunk__free_unpacked(all, NULL);
}

/* The steps. */

static uint64_t after(int64_t time_ns, int64_t begin_ns)
{
    return time_ns > begin_ns ? (uint64_t)(time_ns - begin_ns) : 0;
}

static Fsdpd__V1__TraceStep *pack_run(const struct trace_run *step, int count)
{
    Fsdpd__V1__TraceStep *message = MESSAGE_NEW(message, fsdpd__v1__trace_step__init);
    message->step = step->step;
    if (step->accumulate) message->program = mem_strdup("accumulate");
    message->begin_ns = step->whole.begin_ns;
    message->end_ns = step->whole.end_ns;
    message->n_begins = message->n_durations = (size_t)count;
    message->begins = mem_alloc_array((size_t)count + 1, sizeof *message->begins);
    message->durations = mem_alloc_array((size_t)count + 1, sizeof *message->durations);
    for (int i = 0; i < count; i++) {
        message->begins[i] = after(step->stamps[i].begin_ns, step->whole.begin_ns);
        message->durations[i] = after(step->stamps[i].end_ns, step->stamps[i].begin_ns);
    }
    return message;
}

static void send_steps(struct tracer *tracer)
{
    const struct trace *trace = tracer->trace;
    int count = trace_complete_runs(trace);
    Fsdpd__V1__TraceChunk *chunk = chunk_new(tracer);
    chunk->steps = mem_alloc_array((size_t)count + 1, sizeof *chunk->steps);
    size_t bytes = 0;
    for (int i = 0; i < count; i++) {
        const struct trace_run *run = &trace->runs[i];
        Fsdpd__V1__TraceStep *step = pack_run(run, trace_run_instructions(trace, run));
        bytes += fsdpd__v1__trace_step__get_packed_size(step);
        chunk->steps[chunk->n_steps++] = step;
        if (bytes < CHUNK_BYTES) continue;
        post_chunk(tracer, chunk);
        chunk = chunk_new(tracer);
        chunk->steps = mem_alloc_array((size_t)(count - i), sizeof *chunk->steps);
        bytes = 0;
    }
    chunk->last = true;
    post_chunk(tracer, chunk);
}

static void forget(struct tracer *tracer)
{
    trace_free(tracer->trace);
    tracer->trace = NULL;
    if (tracer->first != NULL) fsdpd__v1__trace_chunk__free_unpacked(tracer->first, NULL);
    tracer->first = NULL;
    tracer->number = 0;
}

void tracer_begin(struct tracer *tracer, struct executor *executor, uint64_t number, uint32_t steps,
                  uint64_t step)
{
    const struct plan *plan = executor_plan(executor);
    executor_set_trace(executor, NULL);
    forget(tracer);
    tracer->number = number;
    int count = steps <= TRACE_MAX_STEPS ? (int)steps : TRACE_MAX_STEPS + 1;
    const struct trace_shape shape = {.instruction_count = plan->train.instruction_count,
                                      .accumulate_count = plan->accumulate.instruction_count,
                                      .batches = plan->options.micro_steps,
                                      .step_count = count,
                                      .step = step};
    status_t status = trace_new(&shape, &tracer->trace);
    if (status != NULL) {
        post_failure(tracer, status);
        forget(tracer);
        return;
    }
    if (tracer->rank == 0) tracer->first = describe_programs(tracer, plan);
    executor_set_trace(executor, tracer->trace);
}

void tracer_step(struct tracer *tracer, const struct executor *executor)
{
    if (tracer->trace != NULL && !executor_is_tracing(executor, tracer->trace)) tracer_end(tracer);
}

void tracer_end(struct tracer *tracer)
{
    if (tracer->trace != NULL) {
        send_program(tracer);
        send_steps(tracer);
    }
    forget(tracer);
}
