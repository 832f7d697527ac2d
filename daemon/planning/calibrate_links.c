/*
 * Collectives over sizes and groups, and copies between host and device; see calibrate.h. Each rank
 * runs on its own thread; only rank 0's times are kept.
 */
#include <stdlib.h>

#include "base/array.h"
#include "base/mem.h"
#include "planning/calibrate_internal.h"
#include "runtime/device.h"

enum {
    ELEMENTS_MIN = 1 << 8,
    ELEMENTS_MAX = 1 << 22,
    FACTOR = 8,
    TIMES = 9,
    IN_A_ROW = 4,
    TIMEOUT_MS = 30000
};
/* Of the group's time. */
static const double TIME_SHARE = 0.3;

struct link_test {
    struct calibrate_rank *rank;
    struct comm *comm;
    struct lane_queue *lane;
    float *in, *out;
    void *workspace;
    size_t elements; /* of each rank's part */
    enum instruction_kind kind;
    bool half;
};

static status_t enqueue(struct link_test *test)
{
    struct comm *comm = test->comm;
    size_t part = test->elements, whole = part * (size_t)comm_world(comm);
    switch (test->kind) {
    case INSTRUCTION_ALL_GATHER:
        return test->half ? comm_all_gather_bf16(comm, test->lane, test->in,
                                                 (uint16_t *)(void *)test->out, part)
                          : comm_all_gather(comm, test->lane, test->in, test->out, part);
    case INSTRUCTION_REDUCE_SCATTER:
        return test->half ? comm_reduce_scatter_bf16(comm, test->lane, test->in, test->out, part, 1,
                                                     test->workspace)
                          : comm_reduce_scatter(comm, test->lane, test->in, test->out, part, 1,
                                                test->workspace);
    default:
        return test->half
                   ? comm_all_reduce_bf16(comm, test->lane, test->in, whole, 1, test->workspace)
                   : comm_all_reduce(comm, test->lane, test->in, whole, 1, test->workspace);
    }
}

/* As plan_communicated counts them. */
static double bytes_sent(const struct link_test *test)
{
    double part = (double)test->elements * (comm_world(test->comm) - 1);
    double size = test->half ? 2 : 4;
    return test->kind == INSTRUCTION_ALL_REDUCE ? part * (size + 4) : part * size;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *seconds, int count)
{
    qsort(seconds, (size_t)count, sizeof *seconds, by_value);
    return seconds[count / 2];
}

/* Several in a row, since ranks do not leave a barrier at the same time. The first row is
 * warm-up. */
static status_t time_collective(struct link_test *test, double *seconds)
{
    double times[TIMES];
    int64_t begin = 0, end = 0;
    for (int i = -1; i < TIMES; i++) {
        TRY(comm_barrier(test->comm, test->lane));
        TRY(lane_stamp(test->lane, &begin));
        for (int k = 0; k < IN_A_ROW; k++) TRY(enqueue(test));
        TRY(lane_stamp(test->lane, &end));
        TRY(lane_wait(test->lane, TIMEOUT_MS));
        if (i >= 0) times[i] = (double)(end - begin) * 1e-9 / IN_A_ROW;
    }
    *seconds = median(times, TIMES);
    return NULL;
}

static status_t time_sizes(struct link_test *test)
{
    double left = 0;
    for (test->elements = ELEMENTS_MIN; test->elements <= ELEMENTS_MAX; test->elements *= FACTOR) {
        TRY(calibrate_check(test->rank, &left));
        struct plan_sample sample = {.ranks = test->rank->group->world,
                                     .amount = comm_world(test->comm),
                                     .bytes = bytes_sent(test)};
        TRY(time_collective(test, &sample.seconds));
        if (test->rank->rank == 0)
            calibrate_add(test->rank, PLAN_ROW_INSTRUCTION + (int)test->kind, test->half, &sample);
        /* the next takes up to FACTOR times as long */
        double next = sample.seconds * FACTOR * TIMES * IN_A_ROW;
        if (!calibrate_agree(test->rank, next < left * TIME_SHARE / FACTOR)) break;
    }
    return NULL;
}

static status_t time_group(struct link_test *test)
{
    static const enum instruction_kind kinds[] = {INSTRUCTION_ALL_GATHER,
                                                  INSTRUCTION_REDUCE_SCATTER,
                                                  INSTRUCTION_ALL_REDUCE};
    for (size_t k = 0; k < COUNT_OF(kinds); k++)
        for (int half = 0; half < 2; half++) {
            test->kind = kinds[k];
            test->half = half;
            TRY(time_sizes(test));
        }
    return NULL;
}

/* Groups of every divisor, neighbours, as units are sharded. */
static status_t time_groups(struct link_test *test)
{
    struct calibrate_rank *rank = test->rank;
    int world = rank->group->world, ranks[CALIBRATE_WORKERS_MAX];
    test->comm = rank->comm;
    TRY(time_group(test));
    for (int size = 2; size < world; size *= 2) {
        if (world % size != 0) continue;
        for (int i = 0; i < size; i++) ranks[i] = rank->rank / size * size + i;
        TRY(comm_split(rank->comm, ranks, size, &test->comm));
        status_t status = time_group(test);
        comm_free(test->comm);
        TRY(status);
    }
    return NULL;
}

static status_t measure_collectives(struct calibrate_rank *rank)
{
    struct link_test test = {.rank = rank};
    uint64_t bytes = (uint64_t)ELEMENTS_MAX * (uint64_t)rank->group->world * sizeof(float);
    void *in = NULL, *out = NULL;
    status_t status = device_allocate(rank->device, bytes, &in);
    if (status == NULL) status = device_allocate(rank->device, bytes, &out);
    if (status == NULL)
        status = device_allocate(rank->device, comm_workspace_bytes(rank->group->world) + 64,
                                 &test.workspace);
    if (status == NULL) status = lane_open(rank->device, LANE_COMM, &test.lane);
    test.in = in;
    test.out = out;
    if (status == NULL) status = time_groups(&test);
    lane_close(test.lane);
    if (in != NULL) device_release(rank->device, in);
    if (out != NULL) device_release(rank->device, out);
    if (test.workspace != NULL) device_release(rank->device, test.workspace);
    return status_wrap(status, "collectives");
}

/* ---- Copies ---- */

static status_t time_copy(struct lane_queue *lane, void *to, const void *from, uint64_t bytes,
                          double *seconds)
{
    double times[TIMES];
    int64_t begin = 0, end = 0;
    for (int i = -1; i < TIMES; i++) {
        TRY(lane_stamp(lane, &begin));
        TRY(lane_transfer(lane, to, from, bytes));
        TRY(lane_stamp(lane, &end));
        TRY(lane_wait(lane, TIMEOUT_MS));
        if (i >= 0) times[i] = (double)(end - begin) * 1e-9;
    }
    *seconds = median(times, TIMES);
    return NULL;
}

static status_t time_copies(struct calibrate_rank *rank, struct lane_queue *lane, void *host,
                            void *device)
{
    for (uint64_t bytes = ELEMENTS_MIN; bytes <= ELEMENTS_MAX * sizeof(float); bytes *= FACTOR) {
        struct plan_sample up = {.ranks = rank->group->world, .bytes = (double)bytes}, down = up;
        TRY(time_copy(lane, device, host, bytes, &up.seconds));
        TRY(time_copy(lane, host, device, bytes, &down.seconds));
        if (rank->rank > 0) continue;
        calibrate_add(rank, PLAN_ROW_INSTRUCTION + INSTRUCTION_UPLOAD, false, &up);
        calibrate_add(rank, PLAN_ROW_INSTRUCTION + INSTRUCTION_DOWNLOAD, false, &down);
    }
    return NULL;
}

static status_t measure_copies(struct calibrate_rank *rank)
{
    const uint64_t bytes = ELEMENTS_MAX * sizeof(float);
    struct lane_queue *lane = NULL;
    void *host = NULL, *device = NULL;
    status_t status = device_allocate_host(rank->device, bytes, &host);
    if (status == NULL) status = device_allocate(rank->device, bytes, &device);
    if (status == NULL) status = lane_open(rank->device, LANE_COPY, &lane);
    if (status == NULL) status = time_copies(rank, lane, host, device);
    lane_close(lane);
    if (host != NULL) device_release(rank->device, host);
    if (device != NULL) device_release(rank->device, device);
    return status_wrap(status, "copies");
}

status_t calibrate_links(struct calibrate_rank *rank)
{
    if (!device_is_host(rank->device)) TRY(measure_copies(rank));
    return rank->comm != NULL ? measure_collectives(rank) : NULL;
}
