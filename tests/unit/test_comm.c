/*
 * Communicators: every collective on both kinds, sums with the same bits everywhere, and what
 * happens when a peer is late, leaves or dies.
 */
#include <check.h>
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
#include "base/clock.h"
#include "base/mem.h"

static const struct shape {
    enum group_kind kind;
    int world;
} shapes[] = {{GROUP_LOCAL, 1}, {GROUP_LOCAL, 2}, {GROUP_LOCAL, 3}, {GROUP_LOCAL, 8},
              {GROUP_GLOO, 1},  {GROUP_GLOO, 2},  {GROUP_GLOO, 3},  {GROUP_GLOO, 8}};
enum { SHAPE_COUNT = sizeof shapes / sizeof shapes[0] };

/* Counts around the sizes at which the implementation changes its mind. */
static const size_t counts[] = {0, 1, 7, 1000, 2048, 2049, 18720, 18721, 100003};
enum { COUNT_COUNT = sizeof counts / sizeof counts[0] };

/* Element `i` of what rank `r` holds: sizes differ so much that the order of a sum shows. */
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
    if (memcmp(&found, &expected, sizeof found) == 0) return STATUS_OKAY;
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
    return STATUS_OKAY;
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
    return STATUS_OKAY;
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
    return STATUS_OKAY;
}

/* To nearest, ties to even. */
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
    return STATUS_OKAY;
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
    return STATUS_OKAY;
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
        TRY(comm_barrier(comm, f.lane));
    }
    TRY(lane_wait(f.lane, 30000));
    fixture_deinit(&f);
    return STATUS_OKAY;
}

START_TEST(test_every_collective)
{
    group_check(shapes[_i].kind, shapes[_i].world, every_collective, NULL);
}
END_TEST

/* Slices of more chunks than are offered at a time. */
static status_t large(struct comm *comm, void *argument)
{
    (void)argument;
    struct fixture f;
    TRY(fixture_init(&f, comm));
    size_t world = (size_t)comm_world(comm);
    size_t chunk = comm_workspace_bytes((int)world) / sizeof(float) / 2 / (world - 1);
    TRY(check_reduce_scatter(&f, comm, 18 * chunk + 5, false));
    TRY(check_all_reduce(&f, comm, (18 * chunk + 5) * world - 3));
    TRY(check_bf16(&f, comm, 18 * chunk + 5));
    TRY(check_all_gather(&f, comm, 300001, false));
    fixture_deinit(&f);
    return STATUS_OKAY;
}

START_TEST(test_large)
{
    group_check(_i < 2 ? GROUP_LOCAL : GROUP_GLOO, _i % 2 == 0 ? 2 : 7, large, NULL);
}
END_TEST

/* Many collectives are queued before any is waited for; then everybody leaves at once. */
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
    status_t status = STATUS_OKAY;
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

START_TEST(test_queue_and_leave)
{
    for (int round = 0; round < 2; round++)
        group_check(shapes[_i].kind, shapes[_i].world, queue_and_leave, NULL);
}
END_TEST

/* Rank 1 comes when another one has given up: the others' deadline passes. */
static status_t one_is_late(struct comm *comm, void *argument)
{
    atomic_bool *given_up = argument;
    struct fixture f;
    TRY(fixture_init(&f, comm));
    float data[64] = {0};
    if (comm_rank(comm) == 1) group_wait_flag(given_up);
    TRY(comm_all_reduce(comm, f.lane, data, 64, 1.0f, f.workspace));
    status_t status = lane_wait(f.lane, 30000);
    atomic_store(given_up, true);
    fixture_deinit(&f);
    return status;
}

START_TEST(test_deadline)
{
    struct group_result results[GROUP_MAX];
    atomic_bool *given_up = group_shared(sizeof *given_up);
    group_run(_i == 0 ? GROUP_LOCAL : GROUP_GLOO, 3, GROUP_SOON_MS, one_is_late, given_up, results);
    ck_assert_msg(results[0].code == STATUS_DEADLINE_EXCEEDED ||
                      results[2].code == STATUS_DEADLINE_EXCEEDED,
                  "%s, %s", results[0].message, results[2].message);
    int first = results[0].code == STATUS_DEADLINE_EXCEEDED ? 0 : 2;
    ck_assert_msg(strstr(results[first].message, "all_reduce number 1 (64 elements) on rank"), "%s",
                  results[first].message);
    ck_assert_msg(strstr(results[first].message, "rank 1"), "%s", results[first].message);
    for (int r = 0; r < 3; r++) ck_assert_int_ne(results[r].code, STATUS_OK);
}
END_TEST

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

/* Rank 1 does not arrive before rank 0 has ended, which is aborted while it waits. */
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

START_TEST(test_abort)
{
    struct group_result results[GROUP_MAX];
    atomic_bool *ended = group_shared(sizeof *ended);
    group_run(_i == 0 ? GROUP_LOCAL : GROUP_GLOO, 2, GROUP_NEVER_MS, abort_while_waiting, ended,
              results);
    ck_assert_msg(results[0].code == STATUS_ABORTED, "%s", results[0].message);
    ck_assert_msg(strstr(results[0].message, "the job was cancelled"), "%s", results[0].message);
    ck_assert_msg(results[1].code == STATUS_UNAVAILABLE, "%s", results[1].message);
    ck_assert_msg(strstr(results[1].message, "rank 0"), "%s", results[1].message);
}
END_TEST

/* An abort before, between and instead of collectives also holds for those to come. */
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

START_TEST(test_abort_first)
{
    struct group_result results[GROUP_MAX];
    group_run(shapes[_i].kind, shapes[_i].world, GROUP_NEVER_MS, abort_first, NULL, results);
    for (int r = 0; r < shapes[_i].world; r++)
        ck_assert_msg(results[r].code == STATUS_ABORTED, "%s", results[r].message);
}
END_TEST

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
    status_t status = STATUS_OKAY;
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

START_TEST(test_killed_peer)
{
    int world = 2 + _i % 2, delay_ms = 20 + 7 * _i;
    struct group_result results[GROUP_MAX];
    group_run(GROUP_GLOO, world, GROUP_NEVER_MS, one_is_killed, &delay_ms, results);
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
END_TEST

/* Ranks that were let go by the last collective may leave while others still finish it. */
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

START_TEST(test_leave_early)
{
    for (int round = 0; round < 10; round++) group_check(GROUP_GLOO, 4, leave_early, NULL);
}
END_TEST

START_TEST(test_nobody_joins)
{
    char *directory = group_make_directory();
    struct rendezvous store = group_file_store(directory);
    struct comm *comm = NULL;
    status_t status = comm_gloo_new(0, 2, "127.0.0.1", "lonely", &store, 200, &comm);
    ck_assert_msg(status_code(status) == STATUS_DEADLINE_EXCEEDED, "%s", status_message(status));
    ck_assert_ptr_nonnull(strstr(status_message(status), "lonely"));
    ck_assert_ptr_null(comm);
    status_free(status);
    status = comm_gloo_new(0, 2, "no.such.host.invalid", "lonely", &store, 200, &comm);
    ck_assert_msg(status_code(status) == STATUS_UNAVAILABLE ||
                      status_code(status) == STATUS_DEADLINE_EXCEEDED,
                  "%s", status_message(status));
    ck_assert_ptr_nonnull(strstr(status_message(status), "no.such.host.invalid"));
    status_free(status);
    /* 192.0.2.0/24 is nobody's. */
    status = comm_gloo_new(0, 2, "192.0.2.1", "lonely", &store, 200, &comm);
    ck_assert_msg(status_code(status) == STATUS_UNAVAILABLE, "%s", status_message(status));
    ck_assert_ptr_nonnull(strstr(status_message(status), "192.0.2.1"));
    status_free(status);
    group_remove_directory(directory);
    free(directory);
}
END_TEST

/* --- Parts of a group --- */

/* A rank's neighbours in groups of `size`, and the ranks with its number in theirs. */
static status_t split(struct comm *comm, int size, struct comm **near, struct comm **far)
{
    int rank = comm_rank(comm), others = comm_world(comm) / size, ranks[GROUP_MAX];
    for (int i = 0; i < size; i++) ranks[i] = rank / size * size + i;
    TRY(comm_split(comm, ranks, size, near));
    for (int i = 0; i < others; i++) ranks[i] = rank % size + i * size;
    return comm_split(comm, ranks, others, far);
}

/* All parts at the same time: nobody may hear of another part's numbers. */
static status_t gather_ranks(struct fixture *f, struct comm *part, int rank, int first, int step)
{
    float mine = (float)rank, all[GROUP_MAX];
    TRY(comm_all_gather(part, f->lane, &mine, all, 1));
    TRY(lane_wait(f->lane, 30000));
    for (int i = 0; i < comm_world(part); i++)
        TRY(expect("rank", rank, (size_t)i, all[i], (float)(first + i * step)));
    return STATUS_OKAY;
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
    status_t status = logged ? STATUS_OKAY : status_new(STATUS_INTERNAL, "logged %s", log);
    free(log);
    fixture_deinit(&f);
    return status;
}

START_TEST(test_parts)
{
    static const struct {
        enum group_kind kind;
        int world, size;
    } cases[] = {{GROUP_LOCAL, 4, 2},
                 {GROUP_LOCAL, 8, 2},
                 {GROUP_LOCAL, 6, 3},
                 {GROUP_GLOO, 4, 2},
                 {GROUP_GLOO, 6, 3}};
    int size = cases[_i].size;
    group_check(cases[_i].kind, cases[_i].world, run_parts, &size);
}
END_TEST

/* Rank 0 is aborted while it waits for rank 1 in their part; rank 1 does not come. */
static status_t abort_in_part(struct comm *comm, void *argument)
{
    atomic_bool *ended = argument;
    struct fixture f;
    TRY(fixture_init(&f, comm));
    struct comm *near, *far;
    TRY(split(comm, 2, &near, &far));
    status_t status = STATUS_OKAY;
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

START_TEST(test_abort_parts)
{
    struct group_result results[GROUP_MAX];
    atomic_bool *ended = group_shared(sizeof *ended);
    group_run(_i == 0 ? GROUP_LOCAL : GROUP_GLOO, 4, GROUP_NEVER_MS, abort_in_part, ended, results);
    ck_assert_msg(results[0].code == STATUS_ABORTED, "%s", results[0].message);
    ck_assert_msg(strstr(results[0].message, "the job was cancelled") != NULL, "%s",
                  results[0].message);
    ck_assert_msg(strstr(results[0].message, "on rank 0 of 4, among 2") != NULL, "%s",
                  results[0].message);
}
END_TEST

/* A part without its maker, a part of a part, a rank that there is not; and one that only some of
 * its ranks come for. */
static status_t refuse_parts(struct comm *comm, void *argument)
{
    (void)argument;
    int rank = comm_rank(comm), other[] = {1 - rank}, none[] = {rank, 2}, both[] = {0, 1};
    struct comm *part = NULL, *again = NULL;
    status_t status = comm_split(comm, other, 1, &part);
    bool refused = status_code(status) == STATUS_INTERNAL;
    status_free(status);
    status = comm_split(comm, none, 2, &part);
    refused = refused && status_code(status) == STATUS_INTERNAL;
    status_free(status);
    if (rank == 1) return refused ? STATUS_OKAY : status_new(STATUS_INTERNAL, "not refused");
    TRY(comm_split(comm, both, 2, &part));
    status = comm_split(part, both, 2, &again);
    refused = refused && status_code(status) == STATUS_INTERNAL;
    status_free(status);
    comm_free(part);
    return refused ? STATUS_OKAY : status_new(STATUS_INTERNAL, "not refused");
}

START_TEST(test_refused_parts)
{
    group_check(GROUP_LOCAL, 2, refuse_parts, NULL);
}
END_TEST

/* The local communicator notices ranks that do not do the same. */
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

START_TEST(test_disagree)
{
    struct group_result results[GROUP_MAX];
    group_run(GROUP_LOCAL, 2, 5000, disagree, NULL, results);
    for (int r = 0; r < 2; r++) ck_assert_int_ne(results[r].code, STATUS_OK);
    int named = results[0].code == STATUS_INTERNAL ? 0 : 1;
    ck_assert_msg(strstr(results[named].message, "all_gather number 1"), "%s",
                  results[named].message);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("comm");
    TCase *works = tcase_create("works");
    tcase_set_timeout(works, 60);
    tcase_add_loop_test(works, test_every_collective, 0, SHAPE_COUNT);
    tcase_add_loop_test(works, test_large, 0, 4);
    tcase_add_loop_test(works, test_queue_and_leave, 0, SHAPE_COUNT);
    tcase_add_test(works, test_leave_early);
    tcase_add_loop_test(works, test_parts, 0, 5);
    tcase_add_test(works, test_refused_parts);
    suite_add_tcase(suite, works);
    TCase *fails = tcase_create("fails");
    tcase_set_timeout(fails, 60);
    tcase_add_loop_test(fails, test_deadline, 0, 2);
    tcase_add_loop_test(fails, test_abort, 0, 2);
    tcase_add_loop_test(fails, test_abort_first, 0, SHAPE_COUNT);
    tcase_add_loop_test(fails, test_killed_peer, 0, 6);
    tcase_add_loop_test(fails, test_abort_parts, 0, 2);
    tcase_add_test(fails, test_nobody_joins);
    tcase_add_test(fails, test_disagree);
    suite_add_tcase(suite, fails);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
