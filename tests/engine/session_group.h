/*
 * For tests: a training run whose ranks are threads, on the cpu device and the local communicator
 * unless the group says otherwise.
 * Each rank records what its hooks hear. A test fills in a `group`, runs it, and looks.
 */
#ifndef FSDPD_TESTS_SESSION_GROUP_H
#define FSDPD_TESTS_SESSION_GROUP_H

#include <pthread.h>

#include "base/buf.h"
#include "checkpoint/state_dict.h"
#include "train/session.h"

enum { GROUP_MAX_WORLD = 8, GROUP_MAX_ORDERS = 8, GROUP_MAX_RECORDS = 64 };

struct group;

struct member {
    struct group *group;
    int rank;
    struct train_job job; /* the group's, tweaked */
    struct device *device;
    struct comm *comm;
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
        uint64_t peak_bytes, state_before;              /* the old plan's */
        uint64_t state_bytes, work_bytes, largest_unit; /* the new plan's; the old one's largest */
    } changes[GROUP_MAX_ORDERS];                        /* of order i, if it set a wrap policy */
    int started, metric_count, epoch_count, order_count, finished;
    struct snapshot *pulled[GROUP_MAX_ORDERS]; /* taken when order i was carried out */
    struct snapshot *final;
    struct capture *captured[GROUP_MAX_ORDERS]; /* by the job's settings for checkpoints */
    int captured_count;
    uint64_t resumed_step;
    char resumed_name[48], note[512]; /* "" if the run did not resume, or had nothing to note */
};

struct group {
    struct train_job job;
    int64_t timeout_ms;
    const char *device; /* NULL: cpu */
    /* Makes the communicator of a device that cannot use a local one; NULL: the local one. */
    status_t (*join)(struct device *device, int rank, int world, struct comm **comm);
    void (*tweak)(struct train_job *job, int rank); /* what a rank does differently; or NULL */
    /* Order i + 1 reaches rank 0 at its call of progress number order_at[i]; ascending. */
    uint64_t order_at[GROUP_MAX_ORDERS];
    int order_count;
    const struct wrap_policy *wraps[GROUP_MAX_ORDERS]; /* order i sets this policy; NULL: a pull */
    int host_ranks; /* that say they divide the host's memory; 0: 1 */
    /* What this rank's device has of memory; NULL, or 0: the host's. */
    uint64_t (*memory)(int rank);
    /* What a rank does instead for order i; NULL: nothing else. */
    status_t (*instead)(struct member *member, int order, const struct wrap_policy **policy);
    uint64_t cancel; /* the order that cancels; 0: none */
    int abort_rank;  /* aborts itself at its call of progress number abort_at; 0: never */
    uint64_t abort_at;
    struct member members[GROUP_MAX_WORLD];
};

/* Drawn digits in a temporary directory, for unchecked fixtures. */
enum { GROUP_TRAIN = 601, GROUP_TEST = 103 };
extern char group_data[64];
void group_draw_digits(void);
void group_remove_digits(void);

/* A small network for them, with the two reductions of the loss. */
extern const char group_sum_model[], group_mean_model[];

/* What most tests loop over. */
struct group_world {
    int world;
    enum strategy strategy;
};
enum { GROUP_WORLDS = 9 };
extern const struct group_world group_worlds[GROUP_WORLDS];

/* Sets a job up that trains `model` (a model file's text) on the digits in `data`. */
void group_init(struct group *group, const char *model, const char *data, int world);

/* Nothing learns: gradient descent with a rate of 0, and no dropout. */
void group_freeze(struct group *group);

/* Runs to the end on all ranks; the outcome is in the members. */
void group_run(struct group *group);

/* Frees what a run left, so that the group may run again. */
void group_reset(struct group *group);

/* Fails the test unless all ranks succeeded. */
void group_expect_success(const struct group *group);

/*
 * Streams a snapshot (order's index, or -1: the final one) with a communicator of its own, as a
 * pull does. `fail_at`: the sink refuses its call number fail_at (from 0, begin is the first); -1:
 * never. statuses: per rank, the caller's to free. The file's bytes land in *file.
 */
void group_pull(struct group *group, int order, int fail_at, struct buf *file,
                status_t statuses[GROUP_MAX_WORLD]);

/* A saving of captured checkpoint `index`, and how it went by rank; see capture_save. */
struct group_saving {
    const char *folder, *root; /* as in capture_target */
    const char *apart;         /* the folder of ranks other than 0; NULL: the same one */
    int index;
    uint32_t keep;
    void (*before)(int rank);           /* before a rank begins; or NULL */
    status_t statuses[GROUP_MAX_WORLD]; /* the caller's to free */
    struct capture_result results[GROUP_MAX_WORLD];
};
void group_save(struct group *group, struct group_saving *saving);

/* The same without failures; other results are freed. */
void group_save_well(struct group *group, int index, const char *folder, uint32_t keep);

/* The same without failures: the file. Caller frees. */
struct buf group_pull_file(struct group *group, int order);

#endif
