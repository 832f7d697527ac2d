/*
 * Estimates the duration of a plan's step on a device of given rates, to compare plans and to see
 * what waits for what. It is not a prediction of a benchmark.
 *
 * An op takes the longer of its arithmetic and its memory traffic (every operand once), plus the
 * time to start it. A collective over n ranks is a ring: n - 1 steps for an all_gather or a
 * reduce_scatter, 2 (n - 1) for an all_reduce, each with the link's latency, plus the bytes sent by
 * a rank over the link's bandwidth; a small all_reduce is a tree if that is faster. A ring that
 * spans hosts is as slow as its slowest link. Tables of measured durations correct all of these.
 * Pure functions; any thread.
 */
#ifndef FSDPD_PLANNING_PLAN_ESTIMATE_H
#define FSDPD_PLANNING_PLAN_ESTIMATE_H

#include "planning/plan_tables.h"

struct plan_link {
    double bandwidth; /* bytes per second, one way, per device */
    double latency;   /* seconds until a message's first byte arrives */
};

struct plan_rates {
    double flops_f32, flops_bf16; /* floating-point operations per second */
    double memory_bandwidth;      /* bytes per second */
    double op_seconds;            /* to start an op */
    struct plan_link batch;       /* between the host's memory and the device's, each way */
    double host_bandwidth;    /* of the host's memory, for offloaded optimizers; bytes per second */
    struct plan_link inside;  /* between two devices of a host */
    struct plan_link between; /* between two hosts, per device */
    int devices_per_host;     /* at least 1 */
    const struct plan_tables *tables; /* borrowed, prepared for these rates; NULL: none */
};

/* Of one instruction, in seconds from the step's start. */
struct plan_timing {
    double start, seconds;
    double exposed; /* of a collective: the part not overlapped by compute */
};

struct plan_estimate {
    double step_seconds;
    double compute_seconds; /* busy time of the compute lane, likewise the others */
    double communication_seconds;
    double copy_seconds, download_seconds, host_seconds;
    double exposed_seconds; /* communication not overlapped by compute */
    double flops;           /* of the ops, without the optimizer */
};

/* Seconds of a collective that sends `bytes` from every rank of a group of `ranks`. */
double plan_collective_seconds(enum instruction_kind kind, int ranks, uint64_t bytes,
                               const struct plan_link *link);

/* Seconds of a piece of work as the rates predict, without tables. */
double plan_work_seconds(const struct plan_work *work, const struct plan_rates *rates);

/* What the instruction does, with its seconds as the rates predict. */
void plan_find_work(const struct plan *plan, const struct plan_program *program, int instruction,
                    const struct plan_rates *rates, struct plan_work *work);

/* Fills in `seconds` of each instruction and clears the rest; returns the step's floating-point
 * operations. `timings` is by instruction. */
double plan_estimate_instructions(const struct plan *plan, const struct plan_program *program,
                                  const struct plan_rates *rates, struct plan_timing *timings);

/* Seconds of a run of the program besides its instructions, measured; 0 if they were not. */
double plan_step_overhead(const struct plan *plan, const struct plan_program *program,
                          const struct plan_rates *rates);

/*
 * Simulates the lanes with the given `seconds`: each instruction starts when its predecessor on the
 * lane and the ones it waits for have finished. Fills in `start` and `exposed`, and the estimate
 * without `flops`.
 */
void plan_simulate(const struct plan_program *program, struct plan_timing *timings,
                   struct plan_estimate *estimate);

/* The same for lanes that share processors, of which this rank has `share`: `seconds` are those of
 * a lane that has one, and become longer where there are fewer than lanes that run. */
void plan_simulate_shared(const struct plan_program *program, double share,
                          struct plan_timing *timings, struct plan_estimate *estimate);

/* The one of the two that suits the device: lanes share processors if the rates' tables say so.
 * `seconds` become those that each instruction takes beside the others. */
void plan_simulate_lanes(const struct plan *plan, const struct plan_program *program,
                         const struct plan_rates *rates, struct plan_timing *timings,
                         struct plan_estimate *estimate);

/* Durations, then a simulation; with the step's overhead. */
void plan_estimate_program(const struct plan *plan, const struct plan_program *program,
                           const struct plan_rates *rates, struct plan_timing *timings,
                           struct plan_estimate *estimate);

#endif
