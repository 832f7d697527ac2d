/*
 * For tests: a training run whose ranks are threads, on the cpu device and the local communicator
 * unless the group selects others. Each rank records the calls of its hooks. A test fills in a
 * `group`, runs it, and checks the records.
 */
#ifndef FSDPD_TESTS_SESSION_GROUP_H
#define FSDPD_TESTS_SESSION_GROUP_H

#include <pthread.h>

#include "comm_local.h"
#include "base/buf.h"
#include "checkpoint/state_dict.h"
#include "setup/session.h"

enum { GROUP_MAX_WORLD = 8, GROUP_MAX_ORDERS = 8, GROUP_MAX_RECORDS = 64 };

struct group;

struct member {
    struct group *group;
    int rank;
    struct train_job job; /* the group's, tweaked */
    struct device *device;
    struct comm *comm, *spare;
    struct train_session *session;

    status_t status;
    uint64_t plan_hash, steps, progress_calls, orders_done, memory_planned, memory_peak, last_step;
    struct train_metrics metrics[GROUP_MAX_RECORDS];
    struct train_validation validations[GROUP_MAX_RECORDS];
    int validation_count;
    struct train_epoch epochs[GROUP_MAX_RECORDS];
    struct {
        uint64_t sequence, step, progress_calls;
    } orders[GROUP_MAX_ORDERS];
    struct {
        status_t refused;
        uint64_t peak_bytes, planned_bytes;             /* of the change */
        uint64_t state_bytes, work_bytes, largest_unit; /* the new plan's; the old one's largest */
    } changes[GROUP_MAX_ORDERS];                        /* of order i, if it set a wrap policy */
    int started, metric_count, epoch_count, order_count, finished;
    struct snapshot *pulled[GROUP_MAX_ORDERS]; /* taken when the rank carried out order i */
    struct snapshot *final;
    struct capture *captured[GROUP_MAX_ORDERS]; /* by the job's settings for checkpoints */
    int captured_count;
    char not_handed_over[256]; /* why not; "": it was, or was not asked to */
    uint64_t resumed_step;
    char resumed_name[48], note[512]; /* "" if the run did not resume, or had no note */
};

struct group {
    struct train_job job;
    int64_t timeout_ms;
    const char *device; /* NULL: cpu */
    /* Creates the communicator of a device that cannot use a local one; NULL: the local one. */
    status_t (*join)(struct device *device, int rank, int world, struct comm **comm);
    void (*failed)(void);                           /* after a rank's error; or NULL */
    void (*tweak)(struct train_job *job, int rank); /* changes one rank's job; or NULL */
    /* Order i + 1 reaches rank 0 at its call of progress number order_at[i]; ascending. */
    uint64_t order_at[GROUP_MAX_ORDERS];
    int order_count;
    const struct wrap_policy *wraps[GROUP_MAX_ORDERS]; /* policy that order i sets; NULL: a pull */
    int host_ranks; /* number of ranks that share the host's memory, as the job says; 0: 1 */
    /* The memory of this rank's device; NULL, or 0: the host's. */
    uint64_t (*memory)(int rank);
    /* Replaces what a rank does for order i; NULL: does not. */
    status_t (*instead)(struct member *member, int order, const struct wrap_policy **policy);
    uint64_t cancel; /* the order that cancels; 0: none */
    /* That order hands the state over to the ranks that stay, and cancels only if that is possible.
     * By rank; NULL: it does not. */
    const bool *leaves;
    /* Called when a rank has captured a checkpoint, and at its progress, on its thread; or NULL. */
    void (*captured)(struct member *member);
    /* The same at its end, before its executor is freed. */
    void (*ended)(struct member *member, struct executor *executor);
    void (*progressed)(struct member *member, uint64_t step);
    bool average;   /* the final snapshot is of the average of the weights */
    int abort_rank; /* this rank aborts itself at its call of progress number abort_at; 0: never */
    uint64_t abort_at, abort_step; /* likewise after that step; 0: never */
    struct kept *kept;             /* (world): what each rank's process keeps; NULL: nothing */
    uint32_t attempt, since;       /* with `kept`: see train_spare */
    bool shares;                   /* with `kept`, too */
    struct member members[GROUP_MAX_WORLD];
};

/* Generated digits in a temporary directory, for unchecked fixtures. */
enum { GROUP_TRAIN = 601, GROUP_TEST = 103 };
extern char group_data[64];
void group_draw_digits(void);
void group_remove_digits(void);

#define GROUP_MODEL(LOSS)                                                                          \
    "name: Small\n"                                                                                \
    "input: [1, 28, 28]\n"                                                                         \
    "classes: 10\n"                                                                                \
    "modules:\n"                                                                                   \
    "  conv: Conv2d(1, 8, 3, 2)\n"                                                                 \
    "  hidden: Linear(1352, 32)\n"                                                                 \
    "  drop: Dropout(0.1)\n"                                                                       \
    "  out: Linear(32, 10)\n"                                                                      \
    "forward:\n"                                                                                   \
    "  - x = relu(conv(x))\n"                                                                      \
    "  - x = flatten(x, 1)\n"                                                                      \
    "  - x = drop(relu(hidden(x)))\n"                                                              \
    "  - output = log_softmax(out(x), 1)\n"                                                        \
    "loss: " LOSS "\n"
#define GROUP_SUM_MODEL GROUP_MODEL("nll_loss(output, target, reduction='sum')")

/* A small network for them, with the two reductions of the loss; and the mean with weights that are
 * all alike. */
extern const char group_sum_model[], group_mean_model[], group_alike_model[];

/* The worlds that most tests loop over. */
struct group_world {
    int world;
    enum strategy strategy;
};
enum { GROUP_WORLDS = 9 };
extern const struct group_world group_worlds[GROUP_WORLDS];
extern const struct optimizer_step group_adafactor;

/* Prepares a job that trains `model` (a model file's text) on the digits in `data`. */
void group_init(struct group *group, const char *model, const char *data, int world);

/* Makes the job learn nothing: gradient descent with a rate of 0, and no dropout. */
void group_freeze(struct group *group);

/* Runs to the end on all ranks; the outcome is in the members. */
void group_run(struct group *group);

/* Frees what a run left, so that the group can run again. */
void group_reset(struct group *group);

/* Fails the test unless all ranks succeeded. */
void group_expect_success(const struct group *group);
void group_run_without_error(struct group *group); /* group_run, and that */

/*
 * Streams a snapshot (order's index, or -1: the final one) with its own communicator, as a pull
 * does. `fail_at`: the sink refuses its call number fail_at (from 0, begin is the first); -1:
 * never. statuses: per rank, the caller frees them. The file's bytes land in *file.
 */
void group_pull(struct group *group, int order, int fail_at, struct buf *file,
                status_t statuses[GROUP_MAX_WORLD]);

/* The saving of captured checkpoint `index`, and its outcome by rank; see capture_save. */
struct group_saving {
    const char *folder, *root; /* as in capture_target */
    const char *apart;         /* the folder of ranks other than 0; NULL: the same one */
    int index;
    uint32_t keep;
    /* user: rank 0's struct comm; or NULL */
    void (*pack_reports)(void *user, uint64_t step, struct buf *out);
    void (*before)(int rank);           /* called before a rank begins; or NULL */
    status_t statuses[GROUP_MAX_WORLD]; /* the caller frees them */
    struct capture_result results[GROUP_MAX_WORLD];
};
void group_save(struct group *group, struct group_saving *saving);
/* One rank's part of it, on the caller's thread. Frees its communicator; NULL with one rank. */
void group_save_rank(struct group *group, struct group_saving *saving, struct comm *comm, int rank);

/* The same without failures; frees the other results. */
void group_save_without_error(struct group *group, int index, const char *folder, uint32_t keep);

/* The same without failures; returns the file. Caller frees. */
struct buf group_pull_file(struct group *group, int order);

/* The same bytes. Frees both. */
void group_expect_same_file(struct buf *a, struct buf *b);

#endif
