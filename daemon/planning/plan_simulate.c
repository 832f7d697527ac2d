/*
 * Simulates the lanes of a step with given durations; see plan_estimate.h. One pass suffices: waits
 * and a lane's order always refer to earlier instructions. Pure functions; any thread.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "planning/plan_estimate.h"

/* How much of each collective runs while the compute lane is idle. Both lanes are in order, so
 * their intervals are walked in parallel. */
static void find_exposed(const struct plan_program *program, struct plan_timing *timings,
                         struct plan_estimate *estimate)
{
    int count = program->instruction_count, next = 0;
    for (int i = 0; i < count; i++) {
        if (program->instructions[i].lane != LANE_COMM) continue;
        double start = timings[i].start, end = start + timings[i].seconds, covered = 0;
        for (; next < count; next++) {
            const struct plan_timing *compute = &timings[next];
            if (program->instructions[next].lane != LANE_COMPUTE) continue;
            double compute_end = compute->start + compute->seconds;
            double from = compute->start > start ? compute->start : start;
            double to = compute_end < end ? compute_end : end;
            if (to > from) covered += to - from;
            if (compute_end > end) break; /* it may also overlap the next collective */
        }
        timings[i].exposed = timings[i].seconds - covered;
        if (timings[i].exposed < 1e-9 * end) timings[i].exposed = 0; /* rounding */
        estimate->exposed_seconds += timings[i].exposed;
    }
}

static void add_lanes(const struct plan_program *program, struct plan_timing *timings,
                      struct plan_estimate *estimate)
{
    double busy[LANE_COUNT] = {0};
    *estimate = (struct plan_estimate){0};
    for (int i = 0; i < program->instruction_count; i++) {
        double end = timings[i].start + timings[i].seconds;
        busy[program->instructions[i].lane] += timings[i].seconds;
        timings[i].exposed = 0;
        if (end > estimate->step_seconds) estimate->step_seconds = end;
    }
    estimate->compute_seconds = busy[LANE_COMPUTE];
    estimate->communication_seconds = busy[LANE_COMM];
    estimate->copy_seconds = busy[LANE_COPY];
    estimate->download_seconds = busy[LANE_DOWNLOAD];
    estimate->host_seconds = busy[LANE_HOST];
    find_exposed(program, timings, estimate);
}

void plan_simulate(const struct plan_program *program, struct plan_timing *timings,
                   struct plan_estimate *estimate)
{
    double lane_end[LANE_COUNT] = {0};
    for (int i = 0; i < program->instruction_count; i++) {
        const struct plan_instruction *it = &program->instructions[i];
        double start = lane_end[it->lane];
        for (int k = 0; k < it->wait_count; k++) {
            const struct plan_timing *before = &timings[it->waits[k]];
            if (before->start + before->seconds > start) start = before->start + before->seconds;
        }
        timings[i].start = start;
        lane_end[it->lane] = start + timings[i].seconds;
    }
    add_lanes(program, timings, estimate);
}

/* ---- Lanes that share processors ---- */

struct sharing {
    const struct plan_program *program;
    struct plan_timing *timings;
    bool *done;
    int next[LANE_COUNT]; /* the lane's first instruction that is not done */
    bool runs[LANE_COUNT];
    double left[LANE_COUNT]; /* of the one that runs, in seconds of a lane that runs alone */
    double now;
};

static int find_next(const struct sharing *sharing, enum lane lane, int from)
{
    const struct plan_program *program = sharing->program;
    while (from < program->instruction_count && program->instructions[from].lane != lane) from++;
    return from;
}

/* Starts the lane's next instruction if nothing that it waits for is left. */
static void start(struct sharing *sharing, int lane)
{
    int at = sharing->next[lane];
    if (sharing->runs[lane] || at >= sharing->program->instruction_count) return;
    const struct plan_instruction *it = &sharing->program->instructions[at];
    for (int k = 0; k < it->wait_count; k++)
        if (!sharing->done[it->waits[k]]) return;
    sharing->runs[lane] = true;
    sharing->left[lane] = sharing->timings[at].seconds;
    sharing->timings[at].start = sharing->now;
}

static void finish(struct sharing *sharing, int lane)
{
    int at = sharing->next[lane];
    sharing->runs[lane] = false;
    sharing->done[at] = true;
    sharing->timings[at].seconds = sharing->now - sharing->timings[at].start;
    sharing->next[lane] = find_next(sharing, (enum lane)lane, at + 1);
}

/* Advances to the end of the first of the instructions that run; false if none does. */
static bool advance(struct sharing *sharing, double share)
{
    int active = 0, first = -1;
    for (int lane = 0; lane < LANE_COUNT; lane++) start(sharing, lane);
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        if (!sharing->runs[lane]) continue;
        active++;
        if (first < 0 || sharing->left[lane] < sharing->left[first]) first = lane;
    }
    if (first < 0) return false;
    double speed = share < active ? share / active : 1, passed = sharing->left[first];
    sharing->now += passed / speed;
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (sharing->runs[lane] && lane != first) sharing->left[lane] -= passed;
    finish(sharing, first);
    return true;
}

void plan_simulate_shared(const struct plan_program *program, double share,
                          struct plan_timing *timings, struct plan_estimate *estimate)
{
    struct sharing sharing = {.program = program, .timings = timings};
    sharing.done = mem_alloc_array((size_t)program->instruction_count + 1, sizeof(bool));
    for (int lane = 0; lane < LANE_COUNT; lane++)
        sharing.next[lane] = find_next(&sharing, (enum lane)lane, 0);
    while (advance(&sharing, share)) {}
    free(sharing.done);
    add_lanes(program, timings, estimate);
}
