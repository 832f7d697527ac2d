/*
 * Simulates the lanes of a step with given durations; see plan_estimate.h. One pass suffices: waits
 * and a lane's order always refer to earlier instructions. Pure functions; any thread.
 */
#include <stdlib.h>

#include "fsdp/plan_estimate.h"

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

void plan_simulate(const struct plan_program *program, struct plan_timing *timings,
                   struct plan_estimate *estimate)
{
    double lane_end[LANE_COUNT] = {0}, busy[LANE_COUNT] = {0};
    *estimate = (struct plan_estimate){0};
    for (int i = 0; i < program->instruction_count; i++) {
        const struct plan_instruction *it = &program->instructions[i];
        double start = lane_end[it->lane];
        for (int k = 0; k < it->wait_count; k++) {
            const struct plan_timing *before = &timings[it->waits[k]];
            if (before->start + before->seconds > start) start = before->start + before->seconds;
        }
        timings[i].start = start;
        timings[i].exposed = 0;
        busy[it->lane] += timings[i].seconds;
        lane_end[it->lane] = start + timings[i].seconds;
        if (lane_end[it->lane] > estimate->step_seconds)
            estimate->step_seconds = lane_end[it->lane];
    }
    estimate->compute_seconds = busy[LANE_COMPUTE];
    estimate->communication_seconds = busy[LANE_COMM];
    estimate->copy_seconds = busy[LANE_COPY];
    estimate->download_seconds = busy[LANE_DOWNLOAD];
    estimate->host_seconds = busy[LANE_HOST];
    find_exposed(program, timings, estimate);
}
