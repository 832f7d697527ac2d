/* Timelines; see timeline.h. */
#include "page/timeline.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "print/json.h"
#include "proto/message.h"

/* A rank's tracks: the plan's lanes, and the whole step. The last two exist only with offloaded
 * units. */
static const char *const tracks[] = {"compute", "comm", "copy", "steps", "download", "host"};
enum { TRACKS = COUNT_OF(tracks), STEPS_TRACK = 3, ALWAYS_THERE = 4 };

void timeline_add(struct timeline *timeline, const Fsdpd__V1__TraceChunk *chunk)
{
    if (timeline->world == 0) timeline->world = (int)chunk->n_workers;
    MEM_GROW(timeline->chunks, timeline->chunk_count, timeline->chunk_capacity);
    timeline->chunks[timeline->chunk_count++] = message_copy(chunk);
}

void timeline_deinit(struct timeline *timeline)
{
    for (int i = 0; i < timeline->chunk_count; i++)
        fsdpd__v1__trace_chunk__free_unpacked(timeline->chunks[i], NULL);
    free(timeline->chunks);
    free(timeline->train.instructions);
    free(timeline->accumulate.instructions);
    *timeline = (struct timeline){0};
}

/* ---- assembling ---- */

static bool is_accumulate(const char *program)
{
    return strcmp(program, "accumulate") == 0;
}

static status_t join_programs(struct timeline *timeline)
{
    size_t capacity = 0;
    for (int i = 0; i < timeline->chunk_count; i++)
        for (size_t p = 0; p < timeline->chunks[i]->n_programs; p++)
            capacity += timeline->chunks[i]->programs[p]->n_instructions;
    struct timeline_program *programs[] = {&timeline->train, &timeline->accumulate};
    for (int k = 0; k < 2; k++)
        programs[k]->instructions =
            mem_alloc_array(capacity + 1, sizeof *programs[k]->instructions);
    for (int i = 0; i < timeline->chunk_count; i++) {
        for (size_t p = 0; p < timeline->chunks[i]->n_programs; p++) {
            const Fsdpd__V1__TraceProgram *piece = timeline->chunks[i]->programs[p];
            struct timeline_program *program = programs[is_accumulate(piece->name)];
            if (piece->first != program->count)
                return status_new(STATUS_DATA_LOSS,
                                  "expected instruction %zu of the traced step, found %u",
                                  program->count, piece->first);
            if (piece->live_peak_bytes > timeline->live_peak_bytes)
                timeline->live_peak_bytes = piece->live_peak_bytes;
            for (size_t k = 0; k < piece->n_instructions; k++)
                program->instructions[program->count++] = piece->instructions[k];
        }
    }
    return NULL;
}

/* The program of a step, or of a batch of it. */
static const struct timeline_program *program_of(const struct timeline *timeline,
                                                 const Fsdpd__V1__TraceStep *step)
{
    return is_accumulate(step->program) ? &timeline->accumulate : &timeline->train;
}

static status_t check_step(const struct timeline *timeline, const Fsdpd__V1__TraceStep *step,
                           uint32_t rank)
{
    size_t count = program_of(timeline, step)->count;
    if (step->n_begins == count && step->n_durations == count) return NULL;
    return status_new(STATUS_DATA_LOSS,
                      "expected the times of %zu instructions in step %" PRIu64
                      " of rank %u, found %zu and %zu",
                      count, step->step, rank, step->n_begins, step->n_durations);
}

/* The steps of a rank must be consecutive and the same on all ranks; batches precede the step that
 * they belong to. */
static status_t check_steps(struct timeline *timeline)
{
    AUTO_FREE uint64_t *next = mem_alloc_array((size_t)timeline->world, sizeof *next);
    AUTO_FREE uint64_t *first = mem_alloc_array((size_t)timeline->world, sizeof *first);
    status_t status = NULL;
    for (int i = 0; i < timeline->chunk_count && status == NULL; i++) {
        const Fsdpd__V1__TraceChunk *chunk = timeline->chunks[i];
        for (size_t s = 0; s < chunk->n_steps && status == NULL; s++) {
            const Fsdpd__V1__TraceStep *step = chunk->steps[s];
            uint32_t rank = chunk->rank;
            if (rank >= (uint32_t)timeline->world || step->step == 0 ||
                (next[rank] != 0 && next[rank] != step->step)) {
                status = status_new(STATUS_DATA_LOSS, "step %" PRIu64 " of rank %u is out of order",
                                    step->step, rank);
                break;
            }
            if (next[rank] == 0) first[rank] = step->step;
            next[rank] = step->step + !is_accumulate(step->program);
            status = check_step(timeline, step, rank);
        }
    }
    for (int r = 0; r < timeline->world && status == NULL; r++)
        if (next[r] == first[r])
            status =
                status_new(STATUS_FAILED_PRECONDITION, "the job ended before a step was traced");
        else if (next[r] != next[0] || first[r] != first[0])
            status = status_new(STATUS_DATA_LOSS,
                                "rank %d was traced from step %" PRIu64 " to %" PRIu64
                                ", rank 0 from %" PRIu64 " to %" PRIu64,
                                r, first[r], next[r] - 1, first[0], next[0] - 1);
    if (status == NULL) {
        timeline->first_step = first[0];
        timeline->last_step = next[0] - 1;
        timeline->step_count = (int)(next[0] - first[0]);
    }
    return status;
}

static const char *worker_of(const struct timeline *timeline, int rank)
{
    const Fsdpd__V1__TraceChunk *first = timeline->chunks[0];
    return (size_t)rank < first->n_workers ? first->workers[rank] : "";
}

/* The lowest rank on the same host, which is the part of the worker's id before the slash. */
static int host_leader(const struct timeline *timeline, int rank)
{
    const char *mine = worker_of(timeline, rank);
    size_t length = strcspn(mine, "/");
    for (int r = 0; r < rank; r++) {
        const char *theirs = worker_of(timeline, r);
        if (strcspn(theirs, "/") == length && strncmp(theirs, mine, length) == 0) return r;
    }
    return rank;
}

status_t timeline_finish(struct timeline *timeline)
{
    if (timeline->world == 0 || timeline->chunks[0]->n_workers == 0)
        return status_new(STATUS_DATA_LOSS, "expected the ranks' workers first");
    TRY(join_programs(timeline));
    TRY(check_steps(timeline));
    for (int r = 0; r < timeline->world; r++) timeline->host_count += host_leader(timeline, r) == r;
    return NULL;
}

/* ---- writing ---- */

struct writer {
    const struct timeline *timeline;
    struct buf *out;
    int64_t *shift_ns; /* by rank: added to its clock */
    struct step_part {
        int64_t begin_ns; /* of the step's first batch */
        int batch;        /* in that step, from 0 */
    } * parts;            /* by rank: progress within the current step */
    uint64_t flow;        /* the last id used */
    bool comma;
};

static int lane_of(const Fsdpd__V1__TraceInstruction *instruction)
{
    for (int lane = 0; lane < TRACKS; lane++)
        if (strcmp(instruction->lane, tracks[lane]) == 0) return lane;
    return 0;
}

static bool has_track(const struct timeline *timeline, int track)
{
    if (track < ALWAYS_THERE) return true;
    for (size_t i = 0; i < timeline->train.count; i++)
        if (lane_of(timeline->train.instructions[i]) == track) return true;
    return false;
}

/* Shifts each host's clock so that its first step ends with that of rank 0's host, then all clocks
 * so that the first event is at 0. */
static void align(struct writer *writer)
{
    const struct timeline *timeline = writer->timeline;
    int world = timeline->world;
    AUTO_FREE int64_t *end_ns = mem_alloc_array((size_t)world, sizeof *end_ns); /* by host leader */
    AUTO_FREE int64_t *begin_ns = mem_alloc_array((size_t)world, sizeof *begin_ns);
    for (int i = 0; i < timeline->chunk_count; i++) {
        const Fsdpd__V1__TraceChunk *chunk = timeline->chunks[i];
        for (size_t s = 0; s < chunk->n_steps; s++) {
            if (chunk->steps[s]->step != timeline->first_step) continue;
            int leader = host_leader(timeline, (int)chunk->rank);
            if (begin_ns[chunk->rank] == 0) begin_ns[chunk->rank] = chunk->steps[s]->begin_ns;
            if (chunk->steps[s]->end_ns > end_ns[leader] || end_ns[leader] == 0)
                end_ns[leader] = chunk->steps[s]->end_ns;
        }
    }
    int64_t earliest = INT64_MAX;
    for (int r = 0; r < world; r++) {
        writer->shift_ns[r] = end_ns[0] - end_ns[host_leader(timeline, r)];
        if (begin_ns[r] + writer->shift_ns[r] < earliest)
            earliest = begin_ns[r] + writer->shift_ns[r];
    }
    for (int r = 0; r < world; r++) writer->shift_ns[r] -= earliest;
}

static void begin_event(struct writer *writer, char kind, int rank, int track)
{
    buf_printf(writer->out, "%s{\"ph\":\"%c\",\"pid\":%d,\"tid\":%d", writer->comma ? ",\n" : "\n",
               kind, rank, track);
    writer->comma = true;
}

static void end_event(struct writer *writer)
{
    buf_add_char(writer->out, '}');
}

static void add_name(struct writer *writer, const char *name)
{
    buf_add_text(writer->out, ",\"name\":");
    json_add_string(writer->out, name);
}

/* In microseconds, with a resolution of a nanosecond. */
static void add_time(struct writer *writer, const char *key, int64_t ns)
{
    buf_printf(writer->out, ",\"%s\":%s%" PRId64 ".%03d", key, ns < 0 ? "-" : "",
               (ns < 0 ? -ns : ns) / 1000, (int)((ns < 0 ? -ns : ns) % 1000));
}

static void write_names(struct writer *writer)
{
    for (int r = 0; r < writer->timeline->world; r++) {
        begin_event(writer, 'M', r, 0);
        buf_printf(writer->out, ",\"name\":\"process_name\",\"args\":{\"name\":");
        char *name = mem_printf("rank %d (%s)", r, worker_of(writer->timeline, r));
        json_add_string(writer->out, name);
        free(name);
        buf_add_char(writer->out, '}');
        end_event(writer);
        begin_event(writer, 'M', r, 0);
        buf_printf(writer->out, ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}", r);
        end_event(writer);
        for (int track = 0; track < TRACKS; track++) {
            if (!has_track(writer->timeline, track)) continue;
            begin_event(writer, 'M', r, track);
            buf_printf(writer->out, ",\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}",
                       tracks[track]);
            end_event(writer);
            begin_event(writer, 'M', r, track);
            buf_printf(writer->out, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}",
                       track == STEPS_TRACK ? 0 : track + 1);
            end_event(writer);
        }
    }
}

/* When an instruction ran, on the common clock; at least one nanosecond long, so that arrows attach
 * to it. */
struct span {
    int64_t begin_ns, end_ns;
};

static void write_instruction(struct writer *writer, const Fsdpd__V1__TraceStep *step, int rank,
                              size_t i, struct span span)
{
    const struct timeline_program *program = program_of(writer->timeline, step);
    const Fsdpd__V1__TraceInstruction *instruction = program->instructions[i];
    int lane = lane_of(instruction);
    begin_event(writer, 'X', rank, lane);
    add_name(writer, instruction->name);
    buf_add_text(writer->out, ",\"cat\":");
    json_add_string(writer->out, instruction->kind);
    add_time(writer, "ts", span.begin_ns);
    add_time(writer, "dur", span.end_ns - span.begin_ns);
    buf_printf(writer->out, ",\"args\":{\"step\":%" PRIu64 ",\"instruction\":%zu", step->step, i);
    if (writer->timeline->accumulate.count > 0)
        buf_printf(writer->out, ",\"batch\":%d", writer->parts[rank].batch + 1);
    if (instruction->op[0] != '\0') {
        buf_add_text(writer->out, ",\"op\":");
        json_add_string(writer->out, instruction->op);
    }
    if (instruction->unit[0] != '\0') {
        buf_add_text(writer->out, ",\"unit\":");
        json_add_string(writer->out, instruction->unit);
    }
    if (lane == 1) buf_printf(writer->out, ",\"bytes\":%" PRIu64, instruction->bytes);
    buf_add_char(writer->out, '}');
    end_event(writer);

    begin_event(writer, 'C', rank, 0);
    buf_add_text(writer->out, ",\"name\":\"memory\"");
    add_time(writer, "ts", span.begin_ns);
    buf_printf(writer->out, ",\"args\":{\"live bytes\":%" PRIu64 "}", instruction->live_bytes);
    end_event(writer);
}

static void write_flow(struct writer *writer, int rank, int from_lane, int to_lane,
                       struct span from, struct span to)
{
    writer->flow++;
    for (int end = 0; end < 2; end++) {
        begin_event(writer, end == 0 ? 's' : 'f', rank, end == 0 ? from_lane : to_lane);
        buf_printf(writer->out, ",\"name\":\"gathered\",\"cat\":\"gather\",\"id\":%" PRIu64 "%s",
                   writer->flow, end == 0 ? "" : ",\"bp\":\"e\"");
        add_time(writer, "ts", end == 0 ? from.end_ns - 1 : to.begin_ns);
        end_event(writer);
    }
}

static void write_step(struct writer *writer, const Fsdpd__V1__TraceStep *step, int rank)
{
    const struct timeline *timeline = writer->timeline;
    int64_t shift = writer->shift_ns[rank], last[TRACKS];
    const struct timeline_program *program = program_of(timeline, step);
    struct step_part *part = &writer->parts[rank];
    size_t count = program->count;
    AUTO_FREE struct span *spans = mem_alloc_array(count + 1, sizeof *spans);
    if (part->batch == 0) part->begin_ns = step->begin_ns;
    if (!is_accumulate(step->program)) {
        begin_event(writer, 'X', rank, STEPS_TRACK);
        buf_printf(writer->out,
                   ",\"name\":\"step %" PRIu64 "\",\"cat\":\"step\",\"args\":{\"step\":%" PRIu64
                   "}",
                   step->step, step->step);
        add_time(writer, "ts", part->begin_ns + shift);
        add_time(writer, "dur", step->end_ns - part->begin_ns);
        end_event(writer);
    }
    for (int lane = 0; lane < TRACKS; lane++) last[lane] = step->begin_ns + shift;
    for (size_t i = 0; i < count; i++) {
        int lane = lane_of(program->instructions[i]);
        struct span *span = &spans[i];
        span->begin_ns = step->begin_ns + shift + (int64_t)step->begins[i];
        if (span->begin_ns < last[lane]) span->begin_ns = last[lane];
        span->end_ns = span->begin_ns + (int64_t)step->durations[i];
        if (span->end_ns <= span->begin_ns) span->end_ns = span->begin_ns + 1;
        last[lane] = span->end_ns;
        write_instruction(writer, step, rank, i, *span);
    }
    for (size_t i = 0; i < count; i++) {
        size_t to = program->instructions[i]->awaited_by;
        if (to > i && to < count)
            write_flow(writer, rank, lane_of(program->instructions[i]),
                       lane_of(program->instructions[to]), spans[i], spans[to]);
    }
    part->batch = is_accumulate(step->program) ? part->batch + 1 : 0;
}

/* ---- times by kind of work ---- */

static struct timeline_time *time_of(struct timeline_times *times,
                                     const Fsdpd__V1__TraceInstruction *instruction)
{
    const char *what = instruction->op[0] != '\0' ? instruction->op : instruction->kind;
    for (int i = 0; i < times->count; i++)
        if (strcmp(times->times[i].what, what) == 0 &&
            strcmp(times->times[i].lane, instruction->lane) == 0)
            return &times->times[i];
    MEM_GROW(times->times, times->count, times->capacity);
    struct timeline_time *time = &times->times[times->count++];
    *time = (struct timeline_time){.what = what, .lane = instruction->lane};
    return time;
}

static int longer_first(const void *first, const void *second)
{
    const struct timeline_time *a = first, *b = second;
    if (a->seconds != b->seconds) return a->seconds > b->seconds ? -1 : 1;
    int order = strcmp(a->what, b->what);
    return order != 0 ? order : strcmp(a->lane, b->lane);
}

void timeline_sum_up(const struct timeline *timeline, struct timeline_times *times)
{
    double parts = (double)timeline->step_count * timeline->world;
    *times = (struct timeline_times){0};
    for (int i = 0; i < timeline->chunk_count; i++) {
        const Fsdpd__V1__TraceChunk *chunk = timeline->chunks[i];
        for (size_t s = 0; s < chunk->n_steps; s++) {
            const struct timeline_program *program = program_of(timeline, chunk->steps[s]);
            for (size_t k = 0; k < program->count; k++) {
                struct timeline_time *time = time_of(times, program->instructions[k]);
                time->often++;
                time->seconds += (double)chunk->steps[s]->durations[k] * 1e-9;
            }
        }
    }
    for (int i = 0; i < times->count; i++) {
        times->times[i].often /= parts;
        times->times[i].seconds /= parts;
    }
    if (times->count > 0)
        qsort(times->times, (size_t)times->count, sizeof *times->times, longer_first);
}

void timeline_times_deinit(struct timeline_times *times)
{
    free(times->times);
    *times = (struct timeline_times){0};
}

void timeline_write(const struct timeline *timeline, const char *job, struct buf *out)
{
    struct writer writer = {.timeline = timeline, .out = out};
    writer.shift_ns = mem_alloc_array((size_t)timeline->world, sizeof *writer.shift_ns);
    writer.parts = mem_alloc_array((size_t)timeline->world, sizeof *writer.parts);
    align(&writer);
    buf_add_text(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"job\":");
    json_add_string(out, job);
    buf_printf(out,
               ",\"first_step\":%" PRIu64 ",\"last_step\":%" PRIu64 ",\"live_peak_bytes\":%" PRIu64
               ",\"hosts\":%d,\"clock\":",
               timeline->first_step, timeline->last_step, timeline->live_peak_bytes,
               timeline->host_count);
    json_add_string(out, timeline->host_count > 1
                             ? "each host has its own; aligned at the end of the first step"
                             : "one, of the ranks' host");
    buf_add_text(out, "},\"traceEvents\":[");
    write_names(&writer);
    for (int i = 0; i < timeline->chunk_count; i++) {
        const Fsdpd__V1__TraceChunk *chunk = timeline->chunks[i];
        for (size_t s = 0; s < chunk->n_steps; s++)
            write_step(&writer, chunk->steps[s], (int)chunk->rank);
    }
    buf_add_text(out, "\n]}\n");
    free(writer.parts);
    free(writer.shift_ns);
}
