/* What an executor does now, for threads that do not own it: see executor_look. Programs and lanes
 * stay as executor_new made them, so only what changes is read with care. */
#include "runtime/executor_internal.h"

static const char *name_of(const struct executor *executor, const struct program *program)
{
    if (program == &executor->train) return "train";
    if (program == &executor->hold) return "hold";
    return program == &executor->accumulate ? "accumulate" : "evaluate";
}

/* An instruction's label, and the event that it fires, identify it. */
static int find_label(const struct program *program, const char *label)
{
    int i = program->plan->instruction_count - 1;
    while (i >= 0 && program->actions[i].label != label) i--;
    return i;
}

static int find_event(const struct program *program, const void *event)
{
    int i = event != NULL ? program->plan->instruction_count - 1 : -1;
    while (i >= 0 && program->actions[i].fires != event) i--;
    return i;
}

void executor_look(struct executor *executor, struct executor_now *now)
{
    *now = (struct executor_now){.since_ns = atomic_load(&executor->running_since_ns)};
    const struct program *program = atomic_load(&executor->running);
    if (program == NULL || program->plan == NULL) return;
    now->program = program->plan;
    now->name = name_of(executor, program);
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        if (executor->lanes[lane] == NULL) continue;
        const struct lane_now doing = lane_look(executor->lanes[lane]);
        if (!doing.busy) continue;
        now->lanes[now->lane_count++] =
            (struct executor_lane){.lane = (enum lane)lane,
                                   .instruction = find_label(program, doing.label),
                                   .awaits = find_event(program, doing.awaits),
                                   .since_ns = doing.since_ns};
    }
}
