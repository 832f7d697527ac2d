/*
 * Happens-before of a plan's instructions. Pure functions; any thread.
 *
 * Every instruction has a vector clock: for each lane, the last instruction of that lane that has
 * finished when this one has. Lanes run in list order, so one number per lane suffices, "a happens
 * before b" is one comparison, and a wait is needed only if the clock does not already imply it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fsdp/plan_internal.h"

static int compare_descending(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x < y) - (x > y);
}

static int compare_ascending(const void *a, const void *b)
{
    return compare_descending(b, a);
}

int plan_append(struct plan_program *program, int *capacity,
                const struct plan_instruction *instruction, int *after, int after_count)
{
    int number = program->instruction_count;
    if (number == *capacity) {
        *capacity = *capacity ? *capacity * 2 : 64;
        program->instructions =
            mem_resize_array(program->instructions, *capacity, sizeof *program->instructions);
        program->clocks =
            mem_resize_array(program->clocks, *capacity, LANE_COUNT * sizeof *program->clocks);
    }
    struct plan_instruction *added = &program->instructions[number];
    *added = *instruction;
    added->wait_count = 0;
    int *clock = &program->clocks[number * LANE_COUNT];
    for (int lane = 0; lane < LANE_COUNT; lane++) clock[lane] = -1;
    for (int i = number - 1; i >= 0; i--) {
        if (program->instructions[i].lane != added->lane) continue;
        memcpy(clock, &program->clocks[i * LANE_COUNT], LANE_COUNT * sizeof *clock);
        break;
    }
    /* Latest first: a later instruction implies the order of an earlier one, never the reverse. */
    if (after_count > 1) qsort(after, after_count, sizeof *after, compare_descending);
    for (int i = 0; i < after_count; i++) {
        int other = after[i];
        if (other < 0 || clock[program->instructions[other].lane] >= other) continue;
        added->waits[added->wait_count++] = other;
        const int *known = &program->clocks[other * LANE_COUNT];
        for (int lane = 0; lane < LANE_COUNT; lane++)
            if (known[lane] > clock[lane]) clock[lane] = known[lane];
    }
    if (added->wait_count > 1)
        qsort(added->waits, added->wait_count, sizeof *added->waits, compare_ascending);
    clock[added->lane] = number;
    return program->instruction_count++;
}

bool plan_happens_before(const struct plan_program *program, int a, int b)
{
    return plan_clock_before(program->clocks, program->instructions[a].lane, a, b);
}
