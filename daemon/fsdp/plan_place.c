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
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "fsdp/plan_internal.h"

/* ---- Offsets ---- */

/* Whether all accesses of the range happen before instruction `i`. */
static bool range_precedes(const struct plan_program *program, const struct live_range *range,
                           int i)
{
    if (i <= range->end) return false;
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (range->last[lane] >= 0 &&
            !plan_clock_before(program->clocks, lane, range->last[lane], i))
            return false;
    return true;
}

/* Finds what follows each range. What an instruction follows, the later ones of its lane do, too.
 */
static void find_afters(const struct plan_program *program, struct live_ranges *live)
{
    int *of_lane = mem_alloc_array(program->instruction_count, sizeof *of_lane);
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        int count = 0;
        for (int i = 0; i < program->instruction_count; i++)
            if ((int)program->instructions[i].lane == lane) of_lane[count++] = i;
        for (int r = 0; r < live->count; r++) {
            int low = 0, high = count;
            while (low < high) {
                int middle = low + (high - low) / 2;
                if (range_precedes(program, &live->ranges[r], of_lane[middle])) high = middle;
                else low = middle + 1;
            }
            live->ranges[r].after[lane] = low < count ? of_lane[low]
                                          : count > 0 ? of_lane[count - 1] + 1
                                                      : 0;
        }
    }
    free(of_lane);
}

static bool range_before(const struct live_range *a, const struct live_range *b)
{
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (b->first[lane] >= 0 && b->first[lane] < a->after[lane]) return false;
    return true;
}

static bool conflict(const struct live_ranges *live, int a, int b)
{
    for (int i = live->of_buffer[a]; i >= 0; i = live->ranges[i].next)
        for (int k = live->of_buffer[b]; k >= 0; k = live->ranges[k].next)
            if (!range_before(&live->ranges[i], &live->ranges[k]) &&
                !range_before(&live->ranges[k], &live->ranges[i]))
                return true;
    return false;
}

struct candidate {
    int buffer, begin;
    int after; /* all instructions from this one on follow it */
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
static uint64_t place_in_order(const struct live_ranges *live, const struct candidate *candidates,
                               int count, uint64_t *offsets)
{
    struct placed {
        uint64_t begin, end;
        const struct candidate *of;
    } *placed = mem_alloc_array(count, sizeof *placed); /* by begin */
    uint64_t arena = 0;
    for (int i = 0; i < count && !interrupted(); i++) {
        const struct candidate *mine = &candidates[i];
        uint64_t size = mine->size, offset = 0;
        for (int k = 0; k < i; k++) {
            if (placed[k].begin >= offset + size) break;
            const struct candidate *other = placed[k].of;
            if (placed[k].end <= offset || other->after <= mine->begin ||
                mine->after <= other->begin)
                continue;
            if (conflict(live, mine->buffer, other->buffer)) offset = placed[k].end;
        }
        offsets[mine->buffer] = offset;
        if (offset + size > arena) arena = offset + size;
        int at = i;
        for (; at > 0 && placed[at - 1].begin > offset; at--) placed[at] = placed[at - 1];
        placed[at] = (struct placed){.begin = offset, .end = offset + size, .of = mine};
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

/* Places the buffers in this order and in orders derived from it, until the arena has `least`
 * bytes; keeps the smallest result. */
static void place_and_improve(struct plan_program *program, const struct live_ranges *live,
                              uint64_t least, struct candidate *candidates, int count,
                              uint64_t *offsets)
{
    int64_t rounds = MOST_COMPARISONS / ((int64_t)count * count + 1);
    if (rounds > PROMOTIONS) rounds = PROMOTIONS;
    for (int64_t round = 0; round <= rounds && program->work_bytes > least; round++) {
        uint64_t arena = place_in_order(live, candidates, count, offsets);
        if (interrupted()) return;
        if (arena < program->work_bytes) {
            program->work_bytes = arena;
            for (int k = 0; k < count; k++)
                program->buffers[candidates[k].buffer].offset = offsets[candidates[k].buffer];
        }
        if (!promote(candidates, count, offsets, arena)) return;
    }
}

static int find_after(const struct live_ranges *live, int buffer)
{
    int after = 0;
    for (int r = live->of_buffer[buffer]; r >= 0; r = live->ranges[r].next)
        for (int lane = 0; lane < LANE_COUNT; lane++)
            if (live->ranges[r].after[lane] > after) after = live->ranges[r].after[lane];
    return after;
}

void plan_place(struct plan_program *program, struct live_ranges *live, uint64_t least)
{
    find_afters(program, live);
    struct candidate *candidates = mem_alloc_array(program->buffer_count, sizeof *candidates);
    int count = 0;
    for (int b = 0; b < program->buffer_count; b++)
        if (program->buffers[b].arena == ARENA_WORK && live->of_buffer[b] >= 0)
            candidates[count++] = (struct candidate){.buffer = b,
                                                     .begin = program->buffers[b].first,
                                                     .after = find_after(live, b),
                                                     .size = plan_align(program->buffers[b].bytes)};
    static int (*const orders[])(const void *, const void *) = {compare_size, compare_begin};
    uint64_t *offsets = mem_alloc_array(program->buffer_count, sizeof *offsets);
    program->work_bytes = UINT64_MAX;
    for (size_t i = 0; i < COUNT_OF(orders); i++) {
        if (count > 1) qsort(candidates, count, sizeof *candidates, orders[i]);
        place_and_improve(program, live, least, candidates, count, offsets);
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
    int *next;        /* by instruction: the next one of its lane; the program's length if none */
    int first[LANE_COUNT];
};

static void find_next(const struct plan_program *program, struct place_run *run)
{
    for (int lane = 0; lane < LANE_COUNT; lane++) run->first[lane] = program->instruction_count;
    for (int i = program->instruction_count - 1; i >= 0; i--) {
        int *first = &run->first[program->instructions[i].lane];
        run->next[i] = *first;
        *first = i;
    }
}

static bool is_ready(const struct plan_program *program, const struct place_run *run, int i)
{
    const struct plan_instruction *instruction = &program->instructions[i];
    for (int k = 0; k < instruction->wait_count; k++)
        if (run->end[instruction->waits[k]] < 0) return false;
    return true;
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
    memcpy(next, run->first, sizeof next);
    while (tick < count) {
        int comm = next[LANE_COMM];
        if (follows(program, run, comm) && run->start[comm] < 0) run->start[comm] = tick;
        int chosen;
        if (follows(program, run, next[LANE_COPY])) chosen = next[LANE_COPY];
        else if (comm < count && run->start[comm] >= 0 &&
                 (!slow || follows(program, run, run->next[comm])))
            chosen = comm;
        else if (!slow && follows(program, run, next[LANE_DOWNLOAD])) chosen = next[LANE_DOWNLOAD];
        else if (follows(program, run, next[LANE_COMPUTE])) chosen = next[LANE_COMPUTE];
        else if (follows(program, run, comm)) chosen = comm;
        else if (follows(program, run, next[LANE_DOWNLOAD])) chosen = next[LANE_DOWNLOAD];
        else chosen = next[LANE_HOST];
        if (run->start[chosen] < 0) run->start[chosen] = tick;
        run->end[chosen] = tick++;
        next[program->instructions[chosen].lane] = run->next[chosen];
    }
}

/* The ticks in which the buffer's bytes are alive. */
static void find_ticks(const struct live_range *range, const struct place_run *run, int *first,
                       int *last)
{
    *first = INT_MAX, *last = -1;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        if (range->first[lane] < 0) continue;
        if (run->start[range->first[lane]] < *first) *first = run->start[range->first[lane]];
        if (run->end[range->last[lane]] > *last) *last = run->end[range->last[lane]];
    }
}

/* Adds up what is alive in a tick, by class. */
static void count_classes(struct plan_program *program, const struct live_ranges *live,
                          const struct place_run *run, int tick)
{
    uint64_t *bytes = program->class_bytes_at_peak;
    memset(bytes, 0, sizeof program->class_bytes_at_peak);
    for (int b = 0; b < program->buffer_count; b++) {
        const struct plan_buffer *buffer = &program->buffers[b];
        if (buffer->arena == ARENA_STATE) bytes[buffer->class] += plan_align(buffer->bytes);
    }
    for (int r = 0; r < live->count; r++) {
        const struct plan_buffer *buffer = &program->buffers[live->ranges[r].buffer];
        int first, last;
        find_ticks(&live->ranges[r], run, &first, &last);
        if (first <= tick && tick <= last) bytes[buffer->class] += plan_align(buffer->bytes);
    }
}

/* Updates the program's peak with the largest sum during this execution. */
static void account_run(struct plan_program *program, const struct live_ranges *live,
                        const struct place_run *run)
{
    int count = program->instruction_count, peak = -1;
    int64_t *change = mem_alloc_array((size_t)count + 1, sizeof *change), sum = 0;
    for (int r = 0; r < live->count; r++) {
        const struct live_range *range = &live->ranges[r];
        int64_t bytes = (int64_t)plan_align(program->buffers[range->buffer].bytes);
        int first, last;
        find_ticks(range, run, &first, &last);
        change[first] += bytes;
        change[last + 1] -= bytes;
    }
    for (int b = 0; b < program->buffer_count; b++)
        if (program->buffers[b].arena == ARENA_STATE)
            sum += (int64_t)plan_align(program->buffers[b].bytes);
    uint64_t *live_bytes = mem_alloc_array((size_t)count + 1, sizeof *live_bytes);
    for (int tick = 0; tick < count; tick++) {
        sum += change[tick];
        live_bytes[tick] = (uint64_t)sum;
        if ((uint64_t)sum <= program->live_peak) continue;
        program->live_peak = (uint64_t)sum;
        peak = tick;
    }
    if (peak >= 0) {
        program->live_bytes = mem_resize_array(program->live_bytes, count, sizeof *live_bytes);
        for (int i = 0; i < count; i++) {
            program->live_bytes[i] = live_bytes[run->end[i]];
            if (run->end[i] == peak) program->peak_instruction = i;
        }
        count_classes(program, live, run, peak);
    }
    free(live_bytes);
    free(change);
}

void plan_account(struct plan_program *program, const struct live_ranges *live)
{
    int count = program->instruction_count;
    struct place_run run = {.start = mem_alloc_array(count, sizeof(int)),
                            .end = mem_alloc_array(count, sizeof(int)),
                            .next = mem_alloc_array(count, sizeof(int))};
    find_next(program, &run);
    program->live_peak = 0;
    for (int i = 0; i < count; i++) run.start[i] = run.end[i] = i;
    account_run(program, live, &run);
    simulate(program, false, &run);
    account_run(program, live, &run);
    simulate(program, true, &run);
    account_run(program, live, &run);
    free(run.start);
    free(run.end);
    free(run.next);
}
