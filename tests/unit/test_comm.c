/*
 * Communicators: every collective on both kinds, sums with the same bits everywhere, and the
 * behaviour when a peer is late, leaves or dies.
 */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../engine/group.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tests/testing.h"

static const struct shape {
    enum group_kind kind;
    int world;
} shapes[] = {{GROUP_LOCAL, 1},  {GROUP_LOCAL, 2},  {GROUP_LOCAL, 3},  {GROUP_LOCAL, 8},
              {GROUP_GLOO, 1},   {GROUP_GLOO, 2},   {GROUP_GLOO, 3},   {GROUP_GLOO, 8},
              {GROUP_SHARED, 2}, {GROUP_SHARED, 3}, {GROUP_SHARED, 8}, {GROUP_SHARED, 13}};
enum { SHAPE_COUNT = COUNT_OF(shapes) };

static const enum group_kind kinds[] = {GROUP_LOCAL, GROUP_GLOO, GROUP_SHARED};
enum { KIND_COUNT = COUNT_OF(kinds) };

/* Counts around the sizes at which the implementation changes its algorithm. */
static const size_t counts[] = {0, 1, 7, 1000, 2048, 2049, 18720, 18721, 100003};
enum { COUNT_COUNT = COUNT_OF(counts) };

/* Element `i` of rank `r`'s data: sizes differ so much that the order of a sum shows. */
static float element(int r, size_t i)
{
    uint32_t x = (uint32_t)(i * 2654435761u) ^ ((uint32_t)r * 40503u + 17u);
    x ^= x >> 13;
    x *= 2246822519u;
    x ^= x >> 16;
    return ldexpf((float)(int32_t)x / 2147483648.0f, (int)(x % 24) - 12);
}

static float sum_of(int world, size_t i, float scale)
{
    float sum = element(0, i);
    for (int r = 1; r < world; r++) sum += element(r, i);
    return sum * scale;
}

static float *elements_new(int rank, size_t count)
{
    float *values = mem_alloc_array(count + 1, sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = element(rank, i);
    return values;
}

static status_t expect(const char *what, int rank, size_t i, float found, float expected)
{
    if (memcmp(&found, &expected, sizeof found) == 0) return NULL;
    return status_new(STATUS_INTERNAL, "%s on rank %d: element %zu is %a, not %a", what, rank, i,
                      (double)found, (double)expected);
}

struct fixture {
    struct device *device;
    struct lane_queue *lane;
    void *workspace;
};

static status_t fixture_init(struct fixture *f, struct comm *comm)
{
    TRY(device_open("cpu", 1, &f->device));
    TRY(device_allocate(f->device, comm_workspace_bytes(comm_world(comm)), &f->workspace));
    return lane_open(f->device, LANE_COMM, &f->lane);
}

static void fixture_deinit(struct fixture *f)
{
    lane_close(f->lane);
    device_release(f->device, f->workspace);
    device_close(f->device);
}

static status_t check_all_gather(struct fixture *f, struct comm *comm, size_t n, bool in_place)
{
    int rank = comm_rank(comm), world = comm_world(comm);
    float *in = elements_new(rank, n), *out = mem_alloc_array(n * (size_t)world + 1, sizeof *out);
    if (in_place) memcpy(out + n * (size_t)rank, in, n * sizeof *in);
    TRY(comm_all_gather(comm, f->lane, in_place ? out + n * (size_t)rank : in, out, n));
    TRY(lane_wait(f->lane, 30000));
    for (int r = 0; r < world; r++)
        for (size_t i = 0; i < n; i++)
            TRY(expect("all_gather", rank, i, out[n * (size_t)r + i], element(r, i)));
    free(in);
    free(out);
    return NULL;
}

static status_t check_reduce_scatter(struct fixture *f, struct comm *comm, size_t n, bool in_place)
{
    int rank = comm_rank(comm), world = comm_world(comm);
    float scale = 1.0f / (float)world;
    float *in = elements_new(rank, n * (size_t)world), *out = mem_alloc_array(n + 1, sizeof *out);
    float *target = in_place ? in + n * (size_t)rank : out;
    TRY(comm_reduce_scatter(comm, f->lane, in, target, n, scale, f->workspace));
    TRY(lane_wait(f->lane, 30000));
    for (size_t i = 0; i < n; i++)
        TRY(expect("reduce_scatter", rank, i, target[i],
                   sum_of(world, n * (size_t)rank + i, scale)));
    for (size_t i = 0; i < n * (size_t)world; i++)
        if (target != in + n * (size_t)rank || i / n != (size_t)rank)
            TRY(expect("reduce_scatter's input", rank, i, in[i], element(rank, i)));
    free(in);
    free(out);
    return NULL;
}

static status_t check_all_reduce(struct fixture *f, struct comm *comm, size_t n)
{
    int rank = comm_rank(comm), world = comm_world(comm);
    float *data = elements_new(rank, n);
    TRY(comm_all_reduce(comm, f->lane, data, n, 0.5f, f->workspace));
    TRY(lane_wait(f->lane, 30000));
    for (size_t i = 0; i < n; i++)
        TRY(expect("all_reduce", rank, i, data[i], sum_of(world, i, 0.5f)));
    free(data);
    return NULL;
}

/* Rounds to nearest, ties to even. */
static float rounded(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float sum_of_rounded(int world, size_t i, float scale)
{
    float sum = rounded(element(0, i));
    for (int r = 1; r < world; r++) sum += rounded(element(r, i));
    return sum * scale;
}

static float from_bf16(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static status_t check_bf16(struct fixture *f, struct comm *comm, size_t n)
{
    int rank = comm_rank(comm), world = comm_world(comm);
    size_t all = n * (size_t)world;
    float scale = 1.0f / (float)world;
    float *own = elements_new(rank, n), *in = elements_new(rank, all), *sum = elements_new(rank, n);
    size_t even = n / 2 * 2;
    float *data = elements_new(rank, even);
    uint16_t *out = mem_alloc_array(all + 1, sizeof *out);
    uint64_t sent = comm_bytes_sent(comm);
    TRY(comm_all_gather_bf16(comm, f->lane, own, out, n));
    TRY(comm_reduce_scatter_bf16(comm, f->lane, in, sum, n, scale, f->workspace));
    TRY(lane_wait(f->lane, 30000));
    sent = comm_bytes_sent(comm) - sent;
    if (sent != 2 * 2 * n * (size_t)(world - 1))
        return status_new(STATUS_INTERNAL, "sent %" PRIu64 " bytes for %zu elements", sent, n);
    TRY(comm_all_reduce_bf16(comm, f->lane, data, even, 0.5f, f->workspace));
    TRY(lane_wait(f->lane, 30000));
    for (size_t i = 0; i < all; i++)
        TRY(expect("bf16 all_gather", rank, i, from_bf16(out[i]),
                   rounded(element((int)(i / n), i % n))));
    for (size_t i = 0; i < n; i++)
        TRY(expect("bf16 reduce_scatter", rank, i, sum[i],
                   sum_of_rounded(world, n * (size_t)rank + i, scale)));
    for (size_t i = 0; i < even; i++)
        TRY(expect("bf16 all_reduce", rank, i, data[i], sum_of_rounded(world, i, 0.5f)));
    for (size_t i = 0; i < n; i++) TRY(expect("bf16's input", rank, i, own[i], element(rank, i)));
    free(own);
    free(in);
    free(sum);
    free(data);
    free(out);
    return NULL;
}

static status_t check_rooted(struct fixture *f, struct comm *comm, size_t n, int root)
{
    int rank = comm_rank(comm), world = comm_world(comm);
    float *data = elements_new(rank, n);
    float *out = rank == root ? mem_alloc_array(n * (size_t)world + 1, sizeof *out) : NULL;
    TRY(comm_gather(comm, f->lane, data, out, n, root));
    TRY(comm_broadcast(comm, f->lane, data, n * sizeof *data, root));
    TRY(lane_wait(f->lane, 30000));
    for (int r = 0; r < world && rank == root; r++)
        for (size_t i = 0; i < n; i++)
            TRY(expect("gather", rank, i, out[n * (size_t)r + i], element(r, i)));
    for (size_t i = 0; i < n; i++) TRY(expect("broadcast", rank, i, data[i], element(root, i)));
    free(data);
    free(out);
    return NULL;
}

static status_t check_shift(struct fixture *f, struct comm *comm, size_t n, int distance)
{
    int rank = comm_rank(comm), world = comm_world(comm);
    float *in = elements_new(rank, n), *out = mem_alloc_array(n + 1, sizeof *out);
    TRY(comm_shift(comm, f->lane, in, out, n, distance));
    TRY(lane_wait(f->lane, 30000));
    for (size_t i = 0; i < n; i++)
        TRY(expect("shift", rank, i, out[i], element((rank + world - distance) % world, i)));
    free(in);
    free(out);
    return NULL;
}

/* Every rank sends every other, and itself, a piece of another length, from the middle of a buffer
 * to that of another one. */
static status_t check_exchange(struct fixture *f, struct comm *comm, size_t n)
{
    enum { MIDDLE = 3 };
    int rank = comm_rank(comm), world = comm_world(comm), count = 0;
    struct comm_piece *pieces = mem_alloc_array((size_t)(world * world), sizeof *pieces);
    size_t each = n + (size_t)world, all = each * (size_t)world;
    float *in = elements_new(rank, all + MIDDLE), *out = mem_alloc_array(all + MIDDLE, sizeof *out);
    for (int from = 0; from < world; from++)
        for (int to = 0; to < world; to++)
            pieces[count++] = (struct comm_piece){.from = from,
                                                  .to = to,
                                                  .source = MIDDLE + (int64_t)each * to,
                                                  .target = (int64_t)each * from,
                                                  .count = (int64_t)n + (from + 2 * to) % world};
    TRY(comm_exchange(comm, f->lane, pieces, count, in, out));
    TRY(lane_wait(f->lane, 30000));
    for (int from = 0; from < world; from++)
        for (size_t i = 0; i < each; i++) {
            bool sent = i < n + (size_t)((from + 2 * rank) % world);
            TRY(expect("exchange", rank, i, out[each * (size_t)from + i],
                       sent ? element(from, MIDDLE + each * (size_t)rank + i) : 0));
        }
    free(pieces);
    free(in);
    free(out);
    return NULL;
}

static status_t every_collective(struct comm *comm, void *argument)
{
    (void)argument;
    struct fixture f;
    TRY(fixture_init(&f, comm));
    for (int c = 0; c < COUNT_COUNT; c++) {
        TRY(check_all_gather(&f, comm, counts[c], false));
        TRY(check_all_gather(&f, comm, counts[c], true));
        TRY(check_reduce_scatter(&f, comm, counts[c], false));
        TRY(check_reduce_scatter(&f, comm, counts[c], true));
        TRY(check_all_reduce(&f, comm, counts[c]));
        TRY(check_bf16(&f, comm, counts[c]));
        TRY(check_rooted(&f, comm, counts[c], c % comm_world(comm)));
        for (int d = 1; d < comm_world(comm); d++) TRY(check_shift(&f, comm, counts[c], d));
        TRY(check_exchange(&f, comm, counts[c]));
        TRY(comm_barrier(comm, f.lane));
    }
    TRY(lane_wait(f.lane, 30000));
    fixture_deinit(&f);
    return NULL;
}

TESTS_BELOW(.timeout = 60);

LOOP_TEST(every_collective, 0, SHAPE_COUNT)
{
    group_check(shapes[_i].kind, shapes[_i].world, every_collective, NULL);
}

/* Slices of more chunks than are offered at a time. */
static status_t large(struct comm *comm, void *argument)
{
    (void)argument;
    struct fixture f;
    TRY(fixture_init(&f, comm));
    size_t world = (size_t)comm_world(comm);
    size_t chunk = comm_workspace_bytes((int)world) / sizeof(float) / 2 / (world - 1);
    TRY(check_reduce_scatter(&f, comm, 18 * chunk + 5, false));
    TRY(check_reduce_scatter(&f, comm, 2 * chunk - 1, false));
    TRY(check_all_reduce(&f, comm, (18 * chunk + 5) * world - 3));
    TRY(check_bf16(&f, comm, 18 * chunk + 5));
    TRY(check_all_gather(&f, comm, 300001, false));
    TRY(check_shift(&f, comm, 3000001, 1));
    fixture_deinit(&f);
    return NULL;
}

LOOP_TEST(large, 0, 2 * KIND_COUNT)
{
    group_check(kinds[_i / 2], _i % 2 == 0 ? 2 : 7, large, NULL);
}

/* ---- Gloo and shared memory, bit by bit ---- */

enum { DRAWN_CALLS = 40 };

struct drawn {
    unsigned seed;
    uint64_t *digests; /* (GROUP_MAX * DRAWN_CALLS): of each rank's memory after each call */
};

static uint64_t digest(const void *bytes, size_t size)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    return hash;
}

/* One collective of a kind, a size and a root that all ranks draw alike. */
static status_t run_drawn(struct fixture *f, struct comm *comm, unsigned *seed, uint64_t *result)
{
    int rank = comm_rank(comm), world = comm_world(comm), kind = rand_r(seed) % (world > 1 ? 9 : 8);
    size_t n = (size_t)rand_r(seed) % (rand_r(seed) % 4 == 0 ? 400000 : 5000) / 2 * 2;
    int root = rand_r(seed) % world;
    float scale = 1.0f / (float)(1 + rand_r(seed) % 7);
    size_t all = n * (size_t)world;
    float *in = elements_new(rank, all), *out = mem_alloc_array(all + 1, sizeof *out);
    status_t status = NULL;
    switch (kind) {
    case 0: status = comm_all_gather(comm, f->lane, in, out, n); break;
    case 1: status = comm_reduce_scatter(comm, f->lane, in, out, n, scale, f->workspace); break;
    case 2: status = comm_all_reduce(comm, f->lane, in, n, scale, f->workspace); break;
    case 3: status = comm_all_gather_bf16(comm, f->lane, in, (uint16_t *)(void *)out, n); break;
    case 4:
        status = comm_reduce_scatter_bf16(comm, f->lane, in, out, n, scale, f->workspace);
        break;
    case 5: status = comm_all_reduce_bf16(comm, f->lane, in, n, scale, f->workspace); break;
    case 6: status = comm_broadcast(comm, f->lane, in, n * sizeof *in, root); break;
    case 7: status = comm_gather(comm, f->lane, in, rank == root ? out : NULL, n, root); break;
    default: status = comm_shift(comm, f->lane, in, out, n, root > 0 ? root : 1); break;
    }
    if (status == NULL) status = lane_wait(f->lane, 30000);
    bool in_place = kind == 2 || kind == 5 || kind == 6;
    *result = digest(in_place ? in : out, all * sizeof *in); /* and nothing behind the elements */
    free(in);
    free(out);
    return status;
}

static status_t run_all_drawn(struct comm *comm, void *argument)
{
    struct drawn *drawn = argument;
    unsigned seed = drawn->seed;
    struct fixture f;
    TRY(fixture_init(&f, comm));
    for (int i = 0; i < DRAWN_CALLS; i++)
        TRY(run_drawn(&f, comm, &seed, &drawn->digests[comm_rank(comm) * DRAWN_CALLS + i]));
    fixture_deinit(&f);
    return NULL;
}

LOOP_TEST(drawn, 0, 4)
{
    static const int worlds[] = {2, 3, 5, 8};
    const size_t bytes = GROUP_MAX * DRAWN_CALLS * sizeof(uint64_t);
    struct drawn over_gloo = {(unsigned)_i + 1, group_shared(bytes)},
                 shared = {(unsigned)_i + 1, group_shared(bytes)};
    group_check(GROUP_GLOO, worlds[_i], run_all_drawn, &over_gloo);
    group_check(GROUP_SHARED, worlds[_i], run_all_drawn, &shared);
    ck_assert_uint_ne(over_gloo.digests[0], over_gloo.digests[1]);
    for (size_t i = 0; i < GROUP_MAX * DRAWN_CALLS; i++)
        ck_assert_msg(over_gloo.digests[i] == shared.digests[i], "rank %zu differs in call %zu",
                      i / DRAWN_CALLS, i % DRAWN_CALLS);
}

/* Queues many collectives before it waits for any; then all ranks leave at once. */
enum { QUEUED = 50 };

static status_t queue_and_leave(struct comm *comm, void *argument)
{
    (void)argument;
    struct fixture f;
    TRY(fixture_init(&f, comm));
    comm_log_enable(comm);
    int world = comm_world(comm);
    float *a = mem_alloc_array(6, sizeof *a), *b = mem_alloc_array(6 * (size_t)world, sizeof *b);
    for (int i = 0; i < QUEUED; i++) {
        TRY(comm_all_gather(comm, f.lane, a, b, 6));
        TRY(comm_reduce_scatter(comm, f.lane, b, a, 6, 1.0f, f.workspace));
    }
    TRY(comm_barrier(comm, f.lane));
    TRY(lane_wait(f.lane, 30000));
    char *log = comm_log(comm);
    status_t status = NULL;
    const char *start = "all_gather(6) reduce_scatter(6) all_gather(6) ";
    if (strncmp(log, start, strlen(start)) != 0 ||
        strlen(log) != QUEUED * 32 + strlen("barrier(0)"))
        status = status_new(STATUS_INTERNAL, "log: %.100s", log);
    uint64_t sent = 2ull * QUEUED * 6 * sizeof(float) * (uint64_t)(world - 1);
    if (status == NULL && comm_bytes_sent(comm) != sent)
        status = status_new(STATUS_INTERNAL, "sent %" PRIu64 ", not %" PRIu64,
                            comm_bytes_sent(comm), sent);
    free(log);
    free(a);
    free(b);
    fixture_deinit(&f);
    return status;
}

LOOP_TEST(queue_and_leave, 0, SHAPE_COUNT)
{
    for (int round = 0; round < 2; round++)
        group_check(shapes[_i].kind, shapes[_i].world, queue_and_leave, NULL);
}

struct lateness {
    atomic_int given_up;
    atomic_bool all; /* but the late rank */
};

/* Rank 1 arrives after the others have given up: their deadline passes. It must not come between
 * them: the last one would have what it needs of all ranks. */
static status_t one_is_late(struct comm *comm, void *argument)
{
    struct lateness *lateness = argument;
    struct fixture f;
    TRY(fixture_init(&f, comm));
    float data[64] = {0};
    if (comm_rank(comm) == 1) group_wait_flag(&lateness->all);
    status_t status = comm_all_reduce(comm, f.lane, data, 64, 1.0f, f.workspace);
    if (status == NULL) status = lane_wait(f.lane, 30000);
    if (atomic_fetch_add(&lateness->given_up, 1) + 1 == comm_world(comm) - 1)
        atomic_store(&lateness->all, true);
    fixture_deinit(&f);
    return status;
}

LOOP_TEST(deadline, 0, KIND_COUNT)
{
    struct group_result results[GROUP_MAX];
    struct lateness *lateness = group_shared(sizeof *lateness);
    group_run(kinds[_i], 3, GROUP_SOON_MS, one_is_late, lateness, results);
    ck_assert_msg(results[0].code == STATUS_DEADLINE_EXCEEDED ||
                      results[2].code == STATUS_DEADLINE_EXCEEDED,
                  "%s, %s", results[0].message, results[2].message);
    int first = results[0].code == STATUS_DEADLINE_EXCEEDED ? 0 : 2;
    ck_assert_msg(strstr(results[first].message, "all_reduce number 1 (64 elements) on rank"), "%s",
                  results[first].message);
    ck_assert_msg(strstr(results[first].message, "rank 1"), "%s", results[first].message);
    for (int r = 0; r < 3; r++) ck_assert_int_ne(results[r].code, STATUS_OK);
}

struct aborter {
    struct comm *comm;
    int64_t delay_ms;
};

static void *abort_soon(void *argument)
{
    struct aborter *aborter = argument;
    clock_sleep_ms(aborter->delay_ms);
    comm_abort(aborter->comm, "the job was cancelled");
    return NULL;
}

/* Rank 1 does not arrive before rank 0, which is aborted while it waits, has ended. */
static status_t abort_while_waiting(struct comm *comm, void *argument)
{
    atomic_bool *ended = argument;
    struct fixture f;
    TRY(fixture_init(&f, comm));
    float *data = mem_alloc_array(100000, sizeof *data);
    if (comm_rank(comm) == 1) {
        group_wait_flag(ended);
    } else {
        struct aborter aborter = {comm, 100};
        pthread_t thread;
        pthread_create(&thread, NULL, abort_soon, &aborter);
        TRY(comm_all_reduce(comm, f.lane, data, 100000, 1.0f, f.workspace));
        status_t status = lane_wait(f.lane, 30000);
        pthread_join(thread, NULL);
        atomic_store(ended, true);
        fixture_deinit(&f);
        free(data);
        return status;
    }
    TRY(comm_all_reduce(comm, f.lane, data, 100000, 1.0f, f.workspace));
    status_t status = lane_wait(f.lane, 30000);
    fixture_deinit(&f);
    free(data);
    return status;
}

LOOP_TEST(abort, 0, KIND_COUNT)
{
    struct group_result results[GROUP_MAX];
    atomic_bool *ended = group_shared(sizeof *ended);
    group_run(kinds[_i], 2, GROUP_NEVER_MS, abort_while_waiting, ended, results);
    ck_assert_msg(results[0].code == STATUS_ABORTED, "%s", results[0].message);
    ck_assert_msg(strstr(results[0].message, "the job was cancelled"), "%s", results[0].message);
    ck_assert_msg(results[1].code == STATUS_UNAVAILABLE, "%s", results[1].message);
    ck_assert_msg(strstr(results[1].message, "rank 0"), "%s", results[1].message);
}

/* Rank 0 is in a barrier that rank 1 has not begun: each reports its own state. */
static status_t wait_for_one(struct comm *comm, void *argument)
{
    const int *ends = argument;
    bool first = comm_rank(comm) == 0;
    struct fixture f;
    TRY(fixture_init(&f, comm));
    char byte = 0;
    if (!first && read(ends[0], &byte, 1) != 1) return status_new(STATUS_INTERNAL, "no byte");
    struct comm_progress before = comm_progress(comm);
    TRY(comm_barrier(comm, f.lane));
    while (first && !comm_progress(comm).waits) clock_sleep_ms(1);
    struct comm_progress during = comm_progress(comm);
    if (first && write(ends[1], &byte, 1) != 1) return status_new(STATUS_INTERNAL, "no byte");
    TRY(lane_wait(f.lane, 30000));
    struct comm_progress after = comm_progress(comm);
    fixture_deinit(&f);
    if (before.begun == 0 && !before.waits && after.begun == 1 && !after.waits &&
        (!first || during.begun == 1))
        return NULL;
    return status_new(STATUS_INTERNAL, "begun %d, then %d, then %d", (int)before.begun,
                      (int)during.begun, (int)after.begun);
}

LOOP_TEST(progress, 0, KIND_COUNT)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    struct group_result results[GROUP_MAX];
    group_run(kinds[_i], 2, GROUP_NEVER_MS, wait_for_one, ends, results);
    for (int r = 0; r < 2; r++)
        ck_assert_msg(results[r].code == STATUS_OK, "%s", results[r].message);
    close(ends[0]);
    close(ends[1]);
}

/* An abort before, between and instead of collectives also applies to later ones. */
static status_t abort_first(struct comm *comm, void *argument)
{
    (void)argument;
    struct fixture f;
    TRY(fixture_init(&f, comm));
    comm_abort(comm, "never mind");
    TRY(comm_barrier(comm, f.lane));
    status_t status = lane_wait(f.lane, 30000);
    if (status_code(status) == STATUS_ABORTED) {
        status_free(status);
        TRY(comm_barrier(comm, f.lane));
        status = lane_wait(f.lane, 30000);
    }
    fixture_deinit(&f);
    return status;
}

LOOP_TEST(abort_first, 0, SHAPE_COUNT)
{
    struct group_result results[GROUP_MAX];
    group_run(shapes[_i].kind, shapes[_i].world, GROUP_NEVER_MS, abort_first, NULL, results);
    for (int r = 0; r < shapes[_i].world; r++)
        ck_assert_msg(results[r].code == STATUS_ABORTED, "%s", results[r].message);
}

static void *kill_soon(void *argument)
{
    usleep((useconds_t) * (int *)argument * 1000);
    raise(SIGKILL);
    return NULL;
}

/* Rank 1 is killed at some moment of a stream of large collectives. */
static status_t one_is_killed(struct comm *comm, void *argument)
{
    struct fixture f;
    TRY(fixture_init(&f, comm));
    size_t n = 600000;
    float *data = mem_alloc_array(n * (size_t)comm_world(comm), sizeof *data);
    float *part = mem_alloc_array(n, sizeof *part);
    if (comm_rank(comm) == 1) {
        pthread_t thread;
        pthread_create(&thread, NULL, kill_soon, argument);
    }
    status_t status = NULL;
    for (int i = 0; i < 10000 && status == NULL; i++) {
        TRY(comm_all_gather(comm, f.lane, part, data, n));
        TRY(comm_reduce_scatter(comm, f.lane, data, part, n, 0.5f, f.workspace));
        TRY(comm_all_reduce(comm, f.lane, data, n, 0.5f, f.workspace));
        status = lane_wait(f.lane, 30000);
    }
    fixture_deinit(&f);
    free(data);
    free(part);
    return status;
}

LOOP_TEST(killed_peer, 0, 12)
{
    int world = 2 + _i % 2, delay_ms = 20 + 7 * (_i % 6);
    struct group_result results[GROUP_MAX];
    group_run(kinds[1 + _i / 6], world, GROUP_NEVER_MS, one_is_killed, &delay_ms, results);
    ck_assert(results[1].killed);
    for (int r = 0; r < world; r++) {
        if (r == 1) continue;
        ck_assert(!results[r].killed);
        ck_assert_msg(results[r].code == STATUS_UNAVAILABLE, "%s: %s",
                      status_code_name(results[r].code), results[r].message);
        if (world == 2)
            ck_assert_msg(strstr(results[r].message, "rank 1"), "%s", results[r].message);
    }
}

/* Ranks released by the last collective may leave while others still finish it. */
static status_t leave_early(struct comm *comm, void *argument)
{
    (void)argument;
    struct fixture f;
    TRY(fixture_init(&f, comm));
    int rank = comm_rank(comm), world = comm_world(comm);
    float value = (float)rank, all[GROUP_MAX];
    TRY(comm_gather(comm, f.lane, &value, rank == 0 ? all : NULL, 1, 0));
    TRY(comm_broadcast(comm, f.lane, &value, sizeof value, world - 1));
    status_t status = lane_wait(f.lane, 30000);
    if (status == NULL && value != (float)(world - 1))
        status = status_new(STATUS_INTERNAL, "broadcast gave %g", (double)value);
    fixture_deinit(&f);
    return status;
}

LOOP_TEST(leave_early, 0, KIND_COUNT)
{
    for (int round = 0; round < 10; round++) group_check(kinds[_i], 4, leave_early, NULL);
}

/* ---- Parts of a group ---- */

/* A rank's neighbours in groups of `size`, and the ranks with its number in theirs. */
static status_t split(struct comm *comm, int size, struct comm **near, struct comm **far)
{
    int rank = comm_rank(comm), others = comm_world(comm) / size, ranks[GROUP_MAX];
    for (int i = 0; i < size; i++) ranks[i] = rank / size * size + i;
    TRY(comm_split(comm, ranks, size, near));
    for (int i = 0; i < others; i++) ranks[i] = rank % size + i * size;
    return comm_split(comm, ranks, others, far);
}

/* All parts at the same time: no part may receive another part's numbers. */
static status_t gather_ranks(struct fixture *f, struct comm *part, int rank, int first, int step)
{
    float mine = (float)rank, all[GROUP_MAX];
    TRY(comm_all_gather(part, f->lane, &mine, all, 1));
    TRY(lane_wait(f->lane, 30000));
    for (int i = 0; i < comm_world(part); i++)
        TRY(expect("rank", rank, (size_t)i, all[i], (float)(first + i * step)));
    return NULL;
}

static status_t run_parts(struct comm *comm, void *argument)
{
    int size = *(const int *)argument, rank = comm_rank(comm);
    struct fixture f;
    TRY(fixture_init(&f, comm));
    device_release(f.device, f.workspace);
    TRY(device_allocate(f.device, 2 << 20, &f.workspace));
    for (int round = 0; round < 2; round++) {
        struct comm *near, *far;
        TRY(split(comm, size, &near, &far));
        comm_log_enable(comm);
        uint64_t before = comm_bytes_sent(comm);
        for (int i = 0; i < 3; i++) {
            TRY(gather_ranks(&f, near, rank, rank / size * size, 1));
            TRY(gather_ranks(&f, far, rank, rank % size, size));
            TRY(gather_ranks(&f, comm, rank, 0, 1));
        }
        for (int c = 0; c < COUNT_COUNT; c++) {
            TRY(check_all_gather(&f, near, counts[c], c % 2));
            TRY(check_reduce_scatter(&f, near, counts[c], c % 2));
            TRY(check_all_reduce(&f, far, counts[c]));
            TRY(check_all_reduce(&f, comm, counts[c]));
        }
        if (comm_bytes_sent(comm) - before < comm_bytes_sent(near) + comm_bytes_sent(far) ||
            comm_bytes_sent(near) == 0 || comm_bytes_sent(far) == 0)
            return status_new(STATUS_INTERNAL, "what the parts send is not counted");
        comm_free(near);
        comm_free(far);
    }
    char *log = comm_log(comm), start[64];
    snprintf(start, sizeof start, "all_gather(1)x%d all_gather(1)x%d all_gather(1) ", size,
             comm_world(comm) / size);
    bool logged = strncmp(log, start, strlen(start)) == 0;
    if (!logged) log[100] = '\0';
    status_t status = logged ? NULL : status_new(STATUS_INTERNAL, "logged %s", log);
    free(log);
    fixture_deinit(&f);
    return status;
}

LOOP_TEST(parts, 0, 8)
{
    static const struct {
        enum group_kind kind;
        int world, size;
    } cases[] = {{GROUP_LOCAL, 4, 2},  {GROUP_LOCAL, 8, 2}, {GROUP_LOCAL, 6, 3},
                 {GROUP_GLOO, 4, 2},   {GROUP_GLOO, 6, 3},  {GROUP_SHARED, 4, 2},
                 {GROUP_SHARED, 8, 2}, {GROUP_SHARED, 6, 3}};
    int size = cases[_i].size;
    group_check(cases[_i].kind, cases[_i].world, run_parts, &size);
}

/* Rank 0 is aborted while it waits for rank 1 in their part; rank 1 does not arrive. */
static status_t abort_in_part(struct comm *comm, void *argument)
{
    atomic_bool *ended = argument;
    struct fixture f;
    TRY(fixture_init(&f, comm));
    struct comm *near, *far;
    TRY(split(comm, 2, &near, &far));
    status_t status = NULL;
    if (comm_rank(comm) == 0) {
        struct aborter aborter = {comm, 100};
        pthread_t thread;
        pthread_create(&thread, NULL, abort_soon, &aborter);
        float data[4] = {0};
        status = comm_all_reduce(near, f.lane, data, 4, 1, f.workspace);
        if (status == NULL) status = lane_wait(f.lane, 30000);
        pthread_join(thread, NULL);
        atomic_store(ended, true);
    } else {
        group_wait_flag(ended);
    }
    comm_free(near);
    comm_free(far);
    fixture_deinit(&f);
    return status;
}

LOOP_TEST(abort_parts, 0, KIND_COUNT)
{
    struct group_result results[GROUP_MAX];
    atomic_bool *ended = group_shared(sizeof *ended);
    group_run(kinds[_i], 4, GROUP_NEVER_MS, abort_in_part, ended, results);
    ck_assert_msg(results[0].code == STATUS_ABORTED, "%s", results[0].message);
    ck_assert_msg(strstr(results[0].message, "the job was cancelled") != NULL, "%s",
                  results[0].message);
    ck_assert_msg(strstr(results[0].message, "on rank 0 of 4, among 2") != NULL, "%s",
                  results[0].message);
}

/* The local communicator detects ranks whose calls differ. */
static status_t disagree(struct comm *comm, void *argument)
{
    (void)argument;
    struct fixture f;
    TRY(fixture_init(&f, comm));
    float in[8] = {0}, out[16] = {0};
    TRY(comm_all_gather(comm, f.lane, in, out, comm_rank(comm) == 0 ? 8 : 7));
    status_t status = lane_wait(f.lane, 30000);
    fixture_deinit(&f);
    return status;
}

TEST(disagree)
{
    struct group_result results[GROUP_MAX];
    group_run(GROUP_LOCAL, 2, 5000, disagree, NULL, results);
    for (int r = 0; r < 2; r++) ck_assert_int_ne(results[r].code, STATUS_OK);
    int named = results[0].code == STATUS_INTERNAL ? 0 : 1;
    ck_assert_msg(strstr(results[named].message, "all_gather number 1"), "%s",
                  results[named].message);
}
