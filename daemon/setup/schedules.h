/*
 * The schedules of learning rates, one row each, and the settings of one. What depends on the kind
 * is generated from the rows; the compiler reports a missing curve (daemon/train/schedule.c). Their
 * keys in job files are in common/spec/keys.c; docs/job-file.md has the formulas.
 */
#ifndef FSDPD_SETUP_SCHEDULES_H
#define FSDPD_SETUP_SCHEDULES_H

#include <stdbool.h>
#include <stdint.h>

/* ROW(KIND, curve): the factor's function of a step. `step` counts epochs instead. */
#define SCHEDULES(ROW)                                                                             \
    ROW(CONSTANT, constant)                                                                        \
    ROW(STEP, constant)                                                                            \
    ROW(LINEAR, linear)                                                                            \
    ROW(COSINE, cosine)                                                                            \
    ROW(COSINE_WITH_RESTARTS, restarts)                                                            \
    ROW(POLYNOMIAL, polynomial)                                                                    \
    ROW(INVERSE_SQRT, inverse_sqrt)                                                                \
    ROW(WSD, wsd)                                                                                  \
    ROW(ONE_CYCLE, one_cycle)                                                                      \
    ROW(PHASES, phases)

#define SCHEDULE_ENUMERATOR(KIND, ...) SCHEDULE_##KIND,
enum schedule_kind { SCHEDULES(SCHEDULE_ENUMERATOR) SCHEDULE_COUNT };
#undef SCHEDULE_ENUMERATOR

/* How a rate goes from one value to another. */
enum schedule_shape { SHAPE_LINEAR, SHAPE_COSINE, SHAPE_1_SQRT };

struct train_schedule {
    enum schedule_kind kind;
    uint32_t step_size; /* step: epochs */
    double gamma;
    uint64_t warmup_steps;
    double warmup_start_factor;
    uint64_t total_steps; /* 0: the job's */
    double end_factor;
    uint32_t cycles;                                /* cosine_with_restarts */
    double power;                                   /* polynomial */
    uint64_t timescale;                             /* inverse_sqrt; 0: see docs/job-file.md */
    uint64_t decay_steps;                           /* wsd */
    enum schedule_shape shape;                      /* wsd, one_cycle */
    double pct_start, div_factor, final_div_factor; /* one_cycle */
    bool three_phase;
    /* Schedules that follow each other. Of one of them: its steps, 0: the rest; and what multiplies
     * it. */
    const struct train_schedule *phases;
    int phase_count;
    uint64_t steps;
    double factor;
};

#endif
