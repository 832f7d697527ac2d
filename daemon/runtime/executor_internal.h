/* Shared by the files of the executor: executor_prepare.c makes the programs' actions, executor.c
 * runs them, executor_state.c accesses the state kept between steps. */
#ifndef FSDPD_RUNTIME_EXECUTOR_INTERNAL_H
#define FSDPD_RUNTIME_EXECUTOR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/must.h"
#include "kernels/kernels.h"
#include "runtime/base.h"
#include "runtime/executor.h"
#include "runtime/factor_step.h"
#include "runtime/matrix_step.h"
#include "runtime/recorder.h"

/* An instruction with everything that is constant over steps. */
struct action {
    char *label;         /* for errors */
    struct event *fires; /* NULL unless another lane waits for it */
    char *source, *target, *workspace;
    struct comm *comm; /* a collective's */
    float scale;       /* a reduction's */
    bool low;          /* bf16 on the wire */
    size_t count;      /* elements that a collective or the optimizer works on */
    float *slots[OPTIMIZER_MAX_SLOTS];
    uint16_t *rounded;         /* the optimizer's copy of the parameters; NULL: none */
    struct plan_range *ranges; /* of the unit's kept elements */
    int range_count;
    struct unit_change { /* of the optimizer */
        const struct executor *executor;
        int unit;
    } change;
    struct base_work unpacking; /* of a unit kept in another type, in a gather or an upload */
    struct kernel_call call;
    struct matrix_work matrices;
    struct factor_work factors;
    struct comm_piece *pieces; /* of an exchange */
    int piece_count;
};

struct program {
    const struct plan_program *plan;
    struct device_graph *graph;
    struct action *actions;
    char *input, *target, *stats;
    char *starts;     /* of the size of the target; NULL: windows are one document each */
    char *reference;  /* NULL: batches have none */
    uint64_t reference_bytes;
    char *host_stats; /* for optimizers of the host; NULL without offloaded units */
    uint64_t input_bytes, target_bytes;
    int64_t target_count;
    bool mean;                       /* the loss is divided by all targets */
    struct op_weights weights;       /* of the loss's classes */
    const struct action *first_norm; /* the instruction that starts this rank's part of the norm;
                                      * NULL without norms */
    int stats_done;                  /* the last instruction that writes the statistics; -1: none */
    bool summed;                     /* statistics are those of all ranks */
    bool recorded_by_all;            /* known if they are not */
    struct recorder recorder;
};

/* The parts of the group for units sharded, or resharded, over `ranks` ranks. */
struct shard_groups {
    int ranks;
    struct comm *shard, *replica;
};

/* Of two lanes. */
struct busy_times {
    int64_t compute_ns, comm_ns;
};

struct executor {
    struct device *device;
    struct comm *comm; /* NULL for one rank */
    struct shard_groups *groups;
    int group_count;
    const struct plan *plan;
    uint64_t seed;
    char *state, *work, *host;            /* the arenas; the last is NULL if nothing is offloaded */
    struct executor *lender;              /* of the state arena's first bytes; NULL: none */
    bool released;                        /* the work arena was given back */
    bool registers;                       /* the device's arenas, with the group */
    struct lane_queue *lanes[LANE_COUNT]; /* NULL: the plan has nothing for it */
    struct program train, accumulate, evaluate, hold;
    struct program *_Atomic running; /* one of them; NULL: between steps */
    _Atomic int64_t running_since_ns;
    struct program *tail;      /* the last run's, which has returned, and may still run; NULL: the
                                * lanes are idle between steps */
    struct busy_times settled; /* of tails that were waited for since the last result */
    float stats_in[PLAN_STATS_COUNT]; /* host side of a step */
    float *stats_out;                 /* likewise; behind these an evaluation's sums */
    double counted;                   /* this rank's part of PLAN_STAT_COUNTED */
    uint64_t allocated_before, peak; /* the device's books */
    struct trace *trace;             /* being filled; NULL: off */
    struct executor_guard guard;     /* without functions: none */
    void *poison;                    /* NaNs, as large as the work arena; NULL: off */
    void *logits;                    /* copied from the device; NULL: never read */
    char *note;                      /* why steps are not recorded, returned once; NULL: no note */
    bool noted;
    struct base_packer packer; /* of the parameter that is being set */
    struct must_user user;
    pthread_mutex_t lock; /* guards the members below */
    status_t aborted;
};

/* An address in the state arena, of which another executor may have lent the first bytes. */
char *executor_state_at(const struct executor *executor, uint64_t offset);

/* The address of a buffer; NULL for -1. */
char *executor_buffer(const struct executor *executor, const struct plan_program *program,
                      int buffer);

/* The first buffer of this class and unit (and slot, of BUFFER_OPTIMIZER); -1. */
int executor_find_buffer(const struct plan_program *program, enum buffer_class class, int unit,
                         int slot);

/* Tells the guard, if there is one, that the unit's arrays are about to change. */
void executor_announce_change(const struct executor *executor, int unit);

/* Splits the group, allocates the arenas, opens the lanes, and makes the actions of all programs.
 * executor_free releases what was created before a failure. */
status_t executor_prepare(struct executor *executor, struct device_graph *train,
                          struct device_graph *evaluate) FSDPD_MUST_USE;

/* Releases device objects, which become NULL. Nothing is running on it; recordings are
 * discarded. */
void executor_release_arena(struct executor *executor, char **arena);

/* Updates the peak of allocated device memory. */
void executor_note_memory(struct executor *executor);

/* Waits for one lane, checking whether the step was aborted. */
status_t executor_wait_lane(struct executor *executor, enum lane kind) FSDPD_MUST_USE;

#endif
