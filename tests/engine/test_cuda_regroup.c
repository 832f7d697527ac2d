/*
 * Groups of NCCL that are made from earlier ones (regroup_nccl.c), over a stub that knows its
 * states: ranks are lost, left out or added, and the devices are closed in between, as between two
 * attempts of a job.
 */
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "../emulation/cuda_stub.h"
#include "cuda_fixture.h"
#include "tests/testing.h"

enum { RANKS_MAX = 4, WAIT_MS = 60000 };

/* Ranks 0 to `before` - 1 form a group, and those of `after`, by their numbers in it, the next one.
 */
struct change {
    int before, after[RANKS_MAX], count;
    int lost; /* a rank that dies while the others wait for it; -1: none does */
    bool parts;
    const char *fails;     /* a call that fails, on the rank below; NULL: none */
    int failing;           /* -1: on all */
    bool keeps[RANKS_MAX]; /* found: whether the rank could keep its group */
    char note[RANKS_MAX][CUDA_NOTE_BYTES];
};

static status_t gather(struct comm *group, struct lane_queue *lane, float own, float *all)
{
    TRY(comm_all_gather(group, lane, &own, all, 1));
    return lane_wait(lane, WAIT_MS);
}

static status_t use_first(struct change *change, struct comm *group, struct lane_queue *lane,
                          struct comm **part)
{
    const int rank = comm_rank(group), pair[] = {rank & ~1, rank | 1};
    float all[RANKS_MAX + 1];
    TRY(gather(group, lane, (float)rank, all));
    if (change->parts) TRY(comm_split(group, pair, 2, part));
    if (change->lost < 0) return NULL;
    if (rank == change->lost) {
        comm_abort(group, "this rank is lost");
        return NULL;
    }
    /* As a job's ranks do when they learn of it, with the collective in flight. */
    status_t status = comm_all_gather(group, lane, all, all + 1, 1);
    comm_abort(group, "another rank is lost");
    status = status_first(status, lane_wait(lane, WAIT_MS));
    ck_assert_int_eq(status_code(status), STATUS_ABORTED);
    status_free(status);
    return NULL;
}

/* The earlier group, until its device is closed. */
static status_t live_first(struct change *change, int rank, struct comm **kept)
{
    struct device *device;
    struct comm *group, *part = NULL, *none = NULL;
    struct lane_queue *lane;
    TRY(device_open("cuda:0", 1, &device));
    TRY(cuda_fixture_join_again(device, rank, change->before, "first", &none, &group));
    TRY(lane_open(device, LANE_COMM, &lane));
    status_t status = use_first(change, group, lane, &part);
    lane_close(lane);
    comm_free(part);
    *kept = rank != change->lost ? comm_keep(group) : NULL;
    if (rank == change->lost) comm_free(group);
    change->keeps[rank] = *kept != NULL;
    device_close(device);
    return status;
}

static status_t live_next(struct change *change, int rank, struct comm **kept)
{
    float all[RANKS_MAX];
    struct device *device;
    struct comm *group;
    struct lane_queue *lane;
    TRY(device_open("cuda:0", 1, &device));
    TRY(cuda_fixture_join_again(device, rank, change->count, "next", kept, &group));
    ck_assert_ptr_null(*kept);
    TRY(lane_open(device, LANE_COMM, &lane));
    status_t status = gather(group, lane, (float)(10 + rank), all);
    for (int r = 0; r < change->count && status == NULL; r++)
        ck_assert_float_eq(all[r], (float)(10 + r));
    struct cuda_device *cuda = cuda_device(device);
    if (cuda->note_count > 0) strcpy(change->note[rank], cuda->notes[cuda->note_count - 1]);
    lane_close(lane);
    comm_free(group);
    device_close(device);
    return status;
}

static status_t live(struct comm *threads, void *argument)
{
    struct change *change = argument;
    const int own = comm_rank(threads);
    struct comm *kept = NULL;
    int rank = -1;
    if (own < change->before) TRY(live_first(change, own, &kept));
    for (int r = 0; r < change->count; r++)
        if (change->after[r] == own) rank = r;
    if (change->fails != NULL && rank == 1) cuda_stub_fail_here(change->fails, 1, ncclSystemError);
    status_t status = rank >= 0 ? live_next(change, rank, &kept) : NULL;
    comm_free(kept);
    return status;
}

static void make(struct change *change)
{
    struct group_result results[GROUP_MAX];
    int threads = change->before;
    for (int r = 0; r < change->count; r++)
        if (change->after[r] >= threads) threads = change->after[r] + 1;
    group_run(GROUP_LOCAL, threads, WAIT_MS, live, change, results);
    for (int r = 0; r < threads; r++)
        ck_assert_msg(results[r].code == STATUS_OK, "rank %d: %s", r, results[r].message);
    ck_assert_int_eq(nccl_stub_unfreed(), 0);
}

static void set_up(void)
{
    cuda_fixture_set_up();
    cuda_fixture_begin(3);
    nccl_stub_version(NCCL_VERSION(2, 31, 2));
}

static void tear_down(void)
{
    nccl_stub_version(0);
    cuda_fixture_tear_down();
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

/* The last, the first, or one between is lost: the others continue without a new bootstrap. */
LOOP_TEST(a_rank_is_lost, 0, 3)
{
    struct change change = {.before = 3, .count = 2, .lost = _i};
    for (int r = 0, next = 0; r < 3; r++)
        if (r != _i) change.after[next++] = r;
    make(&change);
    ck_assert_int_eq(cuda_stub_count("ncclCommInitRankConfig"), 3);
    ck_assert_int_eq(cuda_stub_count("ncclCommRevoke"), 2);
    ck_assert_int_eq(cuda_stub_count("ncclCommShrink abort"), 2);
    ck_assert_str_eq(change.note[0], "the NCCL group of 2 ranks was made from one of 3");
}

TEST(fewer_by_order)
{
    struct change change = {.before = 4, .after = {0, 3}, .count = 2, .lost = -1};
    make(&change);
    ck_assert_int_eq(cuda_stub_count("ncclCommInitRankConfig"), 4);
    ck_assert_int_eq(cuda_stub_count("ncclCommRevoke"), 0);
    ck_assert_int_eq(cuda_stub_count("ncclCommShrink"), 2);
}

/* One joins, or two; the group had parts in one case, which ended without a failure. */
LOOP_TEST(more_by_order, 0, 2)
{
    struct change change = {
        .before = 2, .after = {0, 1, 2, 3}, .count = 3 + _i, .lost = -1, .parts = _i};
    make(&change);
    ck_assert_int_eq(cuda_stub_count("ncclCommInitRankConfig"), 2);
    ck_assert_int_eq(cuda_stub_count("ncclCommGetUniqueId"), 1);
    ck_assert_int_eq(cuda_stub_count("ncclCommGrow"), 3 + _i);
}

/* A new rank before an old one, one instead of another that was lost, the same ranks once more. */
LOOP_TEST(a_new_bootstrap, 0, 3)
{
    static const struct change changes[] = {
        {.before = 2, .after = {0, 2, 1}, .count = 3, .lost = -1},
        {.before = 3, .after = {0, 2, 3}, .count = 3, .lost = 1},
        {.before = 2, .after = {0, 1}, .count = 2, .lost = -1}};
    struct change change = changes[_i];
    make(&change);
    ck_assert_int_eq(cuda_stub_count("ncclCommInitRankConfig"), change.before + change.count);
    ck_assert_int_eq(cuda_stub_count("ncclCommShrink") + cuda_stub_count("ncclCommGrow"), 0);
}

/* An older library's groups are aborted, and those that failed with parts; and if one rank's cannot
 * be revoked, the other's is of no use. */
LOOP_TEST(not_kept, 0, 3)
{
    struct change change = {.before = _i == 2 ? 3 : 4,
                            .after = {0, 1},
                            .count = 2,
                            .parts = _i == 1};
    change.lost = change.before - 1;
    if (_i == 0) nccl_stub_version(NCCL_VERSION(2, 30, 7));
    if (_i == 2) cuda_stub_fail("ncclCommRevoke", 1, ncclInternalError);
    make(&change);
    int kept = 0;
    for (int r = 0; r < 4; r++) kept += change.keeps[r];
    ck_assert_int_eq(kept, _i == 2);
    ck_assert_int_eq(cuda_stub_count("ncclCommRevoke"), _i == 2 ? 2 : 0);
    ck_assert_int_eq(cuda_stub_count("ncclCommShrink abort"), 0);
    ck_assert_int_eq(cuda_stub_count("ncclCommInitRankConfig"), change.before + 2);
}

/* On one rank: the others wait until their deadline, and all connect a new group. */
LOOP_TEST(it_fails, 0, 2)
{
    struct change change = {.before = _i ? 2 : 3,
                            .after = {0, 1, 2},
                            .count = _i ? 3 : 2,
                            .lost = -1,
                            .fails = _i ? "ncclCommGrow" : "ncclCommShrink"};
    cuda_fixture_timeout_ms = 1000;
    make(&change);
    ck_assert_int_eq(cuda_stub_count("ncclCommInitRankConfig"), change.before + change.count);
    ck_assert_ptr_nonnull(strstr(change.note[1], "failed on this rank: "));
}
