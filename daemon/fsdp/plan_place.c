/*
 * Placement of the work buffers, and how much is alive at once. Pure functions; any thread.
 *
 * Two buffers may share bytes if every access to one happens before every access to the other.
 * Placement is greedy: buffers in some order, each at the lowest offset without a conflict. That is
 * a heuristic for an NP-hard problem (storage allocation for interval graphs already is). Two
 * orders are tried, largest first and earliest first; then, repeatedly, the buffers that determine
 * the arena's end are moved to the front, since they found no lower offset. The smallest arena
 * wins. The "greedy by size" order is from Pisarchyk and Lee, "Efficient Memory Management for Deep
 * Neural Net Inference", 2020.
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "fsdp/plan_internal.h"

/* ---- Offsets ---- */

static bool range_before(const int *clocks, const struct live_range *a, const struct live_range *b)
{
    if (a->end >= b->begin) return false;
    for (int la = 0; la < LANE_COUNT; la++) {
        if (a->last[la] < 0) continue;
        for (int lb = 0; lb < LANE_COUNT; lb++)
            if (b->first[lb] >= 0 && !plan_clock_before(clocks, la, a->last[la], b->first[lb]))
                return false;
    }
    return true;
}

static bool conflict(const int *clocks, const struct live_ranges *live, int a, int b)
{
    for (int i = live->of_buffer[a]; i >= 0; i = live->ranges[i].next)
        for (int k = live->of_buffer[b]; k >= 0; k = live->ranges[k].next)
            if (!range_before(clocks, &live->ranges[i], &live->ranges[k]) &&
                !range_before(clocks, &live->ranges[k], &live->ranges[i]))
                return true;
    return false;
}

struct candidate {
    int buffer, begin;
    uint64_t size;
};

static int compare_begin(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->begin != y->begin) return (x->begin > y->begin) - (x->begin < y->begin);
    return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

static int compare_size(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->size != y->size) return (x->size < y->size) - (x->size > y->size);
    return compare_begin(a, b);
}

/* Places the buffers in the given order, into `offsets` (by buffer); returns the arena's size. */
static uint64_t place_in_order(const struct plan_program *program, const struct live_ranges *live,
                               const struct candidate *candidates, int count, uint64_t *offsets)
{
    struct placed {
        uint64_t begin, end;
        int buffer;
    } *placed = mem_alloc_array(count, sizeof *placed); /* by begin */
    uint64_t arena = 0;
    for (int i = 0; i < count; i++) {
        uint64_t size = candidates[i].size, offset = 0;
        int buffer = candidates[i].buffer;
        for (int k = 0; k < i; k++) {
            if (placed[k].begin >= offset + size) break;
            if (placed[k].end > offset && conflict(program->clocks, live, buffer, placed[k].buffer))
                offset = placed[k].end;
        }
        offsets[buffer] = offset;
        if (offset + size > arena) arena = offset + size;
        int at = i;
        for (; at > 0 && placed[at - 1].begin > offset; at--) placed[at] = placed[at - 1];
        placed[at] = (struct placed){.begin = offset, .end = offset + size, .buffer = buffer};
    }
    free(placed);
    return arena;
}

/* Makes another order: the buffers at the arena's end come first. Returns whether the order is
 * new. */
static bool promote(struct candidate *candidates, int count, const uint64_t *offsets,
                    uint64_t arena)
{
    int first = 0;
    bool changed = false;
    for (int i = 0; i < count; i++) {
        struct candidate candidate = candidates[i];
        if (offsets[candidate.buffer] + candidate.size != arena) continue;
        changed |= i != first;
        memmove(&candidates[first + 1], &candidates[first], (size_t)(i - first) * sizeof candidate);
        candidates[first++] = candidate;
    }
    return changed;
}

enum { PROMOTIONS = 12, MOST_COMPARISONS = 4 * 1024 * 1024 };

/* Places the buffers in this order and in orders derived from it; keeps the smallest result. */
static void place_and_improve(struct plan_program *program, const struct live_ranges *live,
                              struct candidate *candidates, int count, uint64_t *offsets)
{
    int64_t rounds = MOST_COMPARISONS / ((int64_t)count * count + 1);
    if (rounds > PROMOTIONS) rounds = PROMOTIONS;
    for (int64_t round = 0; round <= rounds; round++) {
        uint64_t arena = place_in_order(program, live, candidates, count, offsets);
        if (arena < program->work_bytes) {
            program->work_bytes = arena;
            for (int k = 0; k < count; k++)
                program->buffers[candidates[k].buffer].offset = offsets[candidates[k].buffer];
        }
        if (!promote(candidates, count, offsets, arena)) return;
    }
}

void plan_place(struct plan_program *program, const struct live_ranges *live)
{
    struct candidate *candidates = mem_alloc_array(program->buffer_count, sizeof *candidates);
    int count = 0;
    for (int b = 0; b < program->buffer_count; b++)
        if (program->buffers[b].arena == ARENA_WORK && live->of_buffer[b] >= 0)
            candidates[count++] = (struct candidate){.buffer = b,
                                                     .begin = program->buffers[b].first,
                                                     .size = plan_align(program->buffers[b].bytes)};
    static int (*const orders[])(const void *, const void *) = {compare_size, compare_begin};
    uint64_t *offsets = mem_alloc_array(program->buffer_count, sizeof *offsets);
    program->work_bytes = UINT64_MAX;
    for (size_t i = 0; i < COUNT_OF(orders); i++) {
        if (count > 1) qsort(candidates, count, sizeof *candidates, orders[i]);
        place_and_improve(program, live, candidates, count, offsets);
    }
    free(offsets);
    free(candidates);
}

/* ---- What is alive at once ---- */

/*
 * One possible execution of the lanes: when each instruction starts and ends, with one instruction
 * ending per tick. What is alive at one moment needs separate memory, so the largest sum over these
 * executions is a lower bound for every placement.
 */
struct place_run {
    int *start, *end; /* by instruction; -1 while unknown */
};

static bool is_ready(const struct plan_program *program, const struct place_run *run, int i)
{
    const struct plan_instruction *instruction = &program->instructions[i];
    for (int k = 0; k < instruction->wait_count; k++)
        if (run->end[instruction->waits[k]] < 0) return false;
    return true;
}

/* The next instruction of a lane after `i`; the program's length if there is none. */
static int next_on_lane(const struct plan_program *program, enum lane lane, int i)
{
    do i++;
    while (i < program->instruction_count && program->instructions[i].lane != lane);
    return i;
}

/* Whether instruction `i` exists and waits for nothing except its predecessor. */
static bool follows(const struct plan_program *program, const struct place_run *run, int i)
{
    return i < program->instruction_count && is_ready(program, run, i);
}

/*
 * Runs the program with instantaneous communication, each as early as possible (`slow` false), or
 * with communication that starts early and ends only when nothing else can proceed (true). So
 * gathers and their buffers come early, and gradients stay as long as a slow network may keep them.
 */
static void simulate(const struct plan_program *program, bool slow, struct place_run *run)
{
    int count = program->instruction_count, next[LANE_COUNT], tick = 0;
    for (int i = 0; i < count; i++) run->start[i] = run->end[i] = -1;
    for (int lane = 0; lane < LANE_COUNT; lane++) next[lane] = next_on_lane(program, lane, -1);
    while (tick < count) {
        int comm = next[LANE_COMM];
        if (follows(program, run, comm) && run->start[comm] < 0) run->start[comm] = tick;
        int chosen;
        if (follows(program, run, next[LANE_COPY])) chosen = next[LANE_COPY];
        else if (comm < count && run->start[comm] >= 0 &&
                 (!slow || follows(program, run, next_on_lane(program, LANE_COMM, comm))))
            chosen = comm;
        else if (!slow && follows(program, run, next[LANE_DOWNLOAD])) chosen = next[LANE_DOWNLOAD];
        else if (follows(program, run, next[LANE_COMPUTE])) chosen = next[LANE_COMPUTE];
        else if (follows(program, run, comm)) chosen = comm;
        else if (follows(program, run, next[LANE_DOWNLOAD])) chosen = next[LANE_DOWNLOAD];
        else chosen = next[LANE_HOST];
        if (run->start[chosen] < 0) run->start[chosen] = tick;
        run->end[chosen] = tick++;
        enum lane lane = program->instructions[chosen].lane;
        next[lane] = next_on_lane(program, lane, chosen);
    }
}

/* Updates the program's peak with the largest sum during this execution. */
static void account_run(struct plan_program *program, const struct live_ranges *live,
                        const struct place_run *run)
{
    int count = program->instruction_count;
    int64_t(*change)[BUFFER_CLASS_COUNT] = mem_alloc_array((size_t)count + 1, sizeof *change);
    for (int r = 0; r < live->count; r++) {
        const struct live_range *range = &live->ranges[r];
        const struct plan_buffer *buffer = &program->buffers[range->buffer];
        int first = count, last = -1;
        for (int lane = 0; lane < LANE_COUNT; lane++) {
            if (range->first[lane] < 0) continue;
            if (run->start[range->first[lane]] < first) first = run->start[range->first[lane]];
            if (run->end[range->last[lane]] > last) last = run->end[range->last[lane]];
        }
        change[first][buffer->class] += (int64_t)plan_align(buffer->bytes);
        change[last + 1][buffer->class] -= (int64_t)plan_align(buffer->bytes);
    }
    int64_t alive[BUFFER_CLASS_COUNT] = {0}, sum = 0;
    for (int b = 0; b < program->buffer_count; b++) {
        if (program->buffers[b].arena != ARENA_STATE) continue;
        alive[program->buffers[b].class] += (int64_t)plan_align(program->buffers[b].bytes);
        sum += (int64_t)plan_align(program->buffers[b].bytes);
    }
    int *at = mem_alloc_array(count, sizeof *at);
    uint64_t *live_bytes = mem_alloc_array((size_t)count + 1, sizeof *live_bytes);
    bool highest = false;
    for (int i = 0; i < count; i++) at[run->end[i]] = i;
    for (int tick = 0; tick < count; tick++) {
        for (int class = 0; class < BUFFER_CLASS_COUNT; class ++) {
            alive[class] += change[tick][class];
            sum += change[tick][class];
        }
        live_bytes[at[tick]] = (uint64_t)sum;
        if ((uint64_t)sum <= program->live_peak) continue;
        highest = true;
        program->live_peak = (uint64_t)sum;
        program->peak_instruction = at[tick];
        for (int class = 0; class < BUFFER_CLASS_COUNT; class ++)
            program->class_bytes_at_peak[class] = (uint64_t)alive[class];
    }
    if (highest) {
        free(program->live_bytes);
        program->live_bytes = live_bytes;
    } else {
        free(live_bytes);
    }
    free(at);
    free(change);
}

void plan_account(struct plan_program *program, const struct live_ranges *live)
{
    int count = program->instruction_count;
    struct place_run run = {.start = mem_alloc_array(count, sizeof(int)),
                            .end = mem_alloc_array(count, sizeof(int))};
    program->live_peak = 0;
    for (int i = 0; i < count; i++) run.start[i] = run.end[i] = i;
    account_run(program, live, &run);
    simulate(program, false, &run);
    account_run(program, live, &run);
    simulate(program, true, &run);
    account_run(program, live, &run);
    free(run.start);
    free(run.end);
}
