/*
 * Checkpoints that are written while training continues: however late a file is written, it has the
 * bits of its step boundary, and training has those of a run without checkpoints. Only what changes
 * before it is written is copied.
 */
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/tree.h"
#include "checkpoint/manifest.h"
#include "hf/safetensors.h"
#include "session_group.h"
#include "tests/testing.h"

/* A large array of every rank has more than one piece of 1 MiB. */
#define MODEL(FROZEN)                                                                              \
    "name: Wide\n"                                                                                 \
    "input: [1, 28, 28]\n"                                                                         \
    "classes: 10\n"                                                                                \
    "modules:\n"                                                                                   \
    "  conv: Conv2d(1, 1, 1)\n"                                                                    \
    "  norm: BatchNorm2d(1)\n"                                                                     \
    "  hidden: Linear(784, 1100)\n"                                                                \
    "  out: Linear(1100, 10)\n"                                                                    \
    "forward:\n"                                                                                   \
    "  - x = flatten(norm(conv(x)), 1)\n"                                                          \
    "  - output = log_softmax(out(relu(hidden(x))), 1)\n"                                          \
    "loss: nll_loss(output, target)\n" FROZEN

static const char moving[] = MODEL(""), frozen[] = MODEL("freeze: ['hidden*']\n");

enum { PIECE = 1 << 20, FIRST = 3, LAST = 9, ALL = -1 };

static char folder[96], other[96];

static void make_folders(void)
{
    snprintf(folder, sizeof folder, "%s/checkpoints", group_data);
    snprintf(other, sizeof other, "%s/others", group_data);
}

static void remove_folders(void)
{
    ck_assert_ptr_null(tree_remove(folder));
    ck_assert_ptr_null(tree_remove(other));
}

/* ---- Writers that are held back ---- */

/* The first checkpoint of a run: every rank's file is written by a thread of its own. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int let;        /* writes of every file that pass, the first of which is the header; or ALL */
    int refusals;   /* of large allocations, once all writers are held */
    uint64_t until; /* the step after which the others pass; 0: when the test says so */
    int held;       /* how many are */
    bool open, running[GROUP_MAX_WORLD];
    struct group *group;
    struct group_saving saving;
    struct comm *comms[GROUP_MAX_WORLD];
    pthread_t threads[GROUP_MAX_WORLD];
} writers = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static _Thread_local int passes = ALL; /* writes of this thread */

static void hold_back(void)
{
    pthread_mutex_lock(&writers.lock);
    writers.held++;
    pthread_cond_broadcast(&writers.changed);
    while (!writers.open) pthread_cond_wait(&writers.changed, &writers.lock);
    pthread_mutex_unlock(&writers.lock);
    passes = ALL;
}

/* The linker (--wrap) replaces write and malloc by these. */
ssize_t __real_write(int fd, const void *bytes, size_t size);
ssize_t __wrap_write(int fd, const void *bytes, size_t size);
ssize_t __wrap_write(int fd, const void *bytes, size_t size)
{
    if (passes == 0) hold_back();
    else if (passes > 0) passes--;
    return __real_write(fd, bytes, size);
}

static atomic_int refusals;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
    if (size >= 100000 && atomic_load(&refusals) > 0 && atomic_fetch_sub(&refusals, 1) > 0)
        return NULL;
    return __real_malloc(size);
}

static void begin_to_write(int rank)
{
    (void)rank;
    passes = writers.let;
}

static void *write_file(void *argument)
{
    int rank = (int)(intptr_t)argument;
    group_save_rank(writers.group, &writers.saving, writers.comms[rank], rank);
    return NULL;
}

static void let_write(void)
{
    pthread_mutex_lock(&writers.lock);
    writers.open = true;
    pthread_cond_broadcast(&writers.changed);
    pthread_mutex_unlock(&writers.lock);
}

static void join_writer(int rank)
{
    if (!writers.running[rank]) return;
    let_write();
    pthread_join(writers.threads[rank], NULL);
    writers.running[rank] = false;
}

/* Training continues when all writers are held, or with ALL when everything is written. */
static void start_writer(struct member *member)
{
    int rank = member->rank;
    if (member->captured_count > 1) return;
    writers.running[rank] = true;
    ck_assert_int_eq(pthread_create(&writers.threads[rank], NULL, write_file,
                                    (void *)(intptr_t)rank),
                     0);
    if (writers.let == ALL) { /* as fsdpd does: what is written is freed while training continues */
        join_writer(rank);
        capture_free(member->captured[0]);
        member->captured[0] = NULL;
        return;
    }
    pthread_mutex_lock(&writers.lock);
    while (writers.held < member->group->job.world)
        pthread_cond_wait(&writers.changed, &writers.lock);
    pthread_mutex_unlock(&writers.lock);
    atomic_store(&refusals, writers.refusals);
}

static void release_writer(struct member *member, uint64_t step)
{
    if (writers.until > 0 && step >= writers.until) join_writer(member->rank);
}

/* Runs the group while its first checkpoint is written into `to`. */
static void run_and_save(struct group *group, int let, uint64_t until, const char *to)
{
    writers.let = let;
    writers.until = until;
    writers.open = false;
    writers.held = 0;
    writers.group = group;
    writers.saving = (struct group_saving){.folder = to, .before = begin_to_write};
    memset(writers.comms, 0, sizeof writers.comms);
    if (group->job.world > 1)
        ck_assert_ptr_null(comm_local_new(group->job.world, group->timeout_ms, writers.comms));
    group->captured = start_writer;
    group->progressed = release_writer;
    group_run(group);
    for (int rank = 0; rank < group->job.world; rank++) join_writer(rank);
}

/* ---- What was written, and copied ---- */

static struct buf read_file(const char *to, int rank)
{
    char name[32];
    struct buf file = {0};
    char *directory = file_path_join(to, "step-000000000003");
    char *path = file_path_join(directory, manifest_file_name(rank, name));
    status_t status = file_read(path, 1 << 30, &file);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    free(path);
    free(directory);
    return file;
}

/* Bytes of the arrays in a rank's file, without those of the first pieces. */
static uint64_t bytes_after(const struct buf *file, int pieces)
{
    struct safetensors_header header;
    uint64_t needed, bytes = 0;
    ck_assert_ptr_null(
        safetensors_read_header(file->data, file->length, file->length, &header, &needed));
    for (int i = 0; i < header.count; i++) {
        uint64_t left = header.entries[i].end - header.entries[i].begin;
        for (; pieces > 0 && left > 0; pieces--) left -= left < PIECE ? left : PIECE;
        bytes += left;
    }
    safetensors_header_deinit(&header);
    return bytes;
}

/* The same bytes in the files of all ranks. */
static void expect_same_files(int world)
{
    for (int rank = 0; rank < world; rank++) {
        struct buf a = read_file(folder, rank), b = read_file(other, rank);
        group_expect_same_file(&a, &b);
    }
}

static int entries_in(const char *path)
{
    int count = 0;
    DIR *directory = opendir(path);
    ck_assert_ptr_nonnull(directory);
    for (struct dirent *item; (item = readdir(directory)) != NULL;)
        count += strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0;
    closedir(directory);
    return count;
}

static void free_results(void)
{
    for (int rank = 0; rank < GROUP_MAX_WORLD; rank++) {
        status_free(writers.saving.statuses[rank]);
        free(writers.saving.results[rank].path);
        free(writers.saving.results[rank].removed);
    }
}

static void expect_saved(int world)
{
    for (int rank = 0; rank < world; rank++)
        ck_assert_msg(writers.saving.statuses[rank] == NULL, "rank %d: %s", rank,
                      status_message(writers.saving.statuses[rank]));
}

static void init(struct group *group, const char *model, int world)
{
    group_init(group, model, group_data, world);
    group->job.epochs = 4;
    group->job.max_steps = LAST;
    group->job.evaluate = false;
    group->job.wrap = (struct wrap_policy){.kind = WRAP_SIZE, .min_num_params = 1000};
    group->job.checkpoints =
        (struct checkpoint_settings){.folder = folder, .run = "digits-1@7", .every_steps = FIRST};
}

/* The same job: the final weights of a run without checkpoints, and the files of one that waits
 * until its first checkpoint is written. That one copies nothing. */
static struct buf undisturbed(const struct group *group)
{
    struct group plain = *group, waits = *group;
    plain.job.checkpoints.every_steps = 0;
    plain.order_count = waits.order_count = 0;
    group_run(&plain);
    group_expect_success(&plain);
    struct buf weights = group_pull_file(&plain, -1);
    group_reset(&plain);
    run_and_save(&waits, ALL, 0, other);
    group_expect_success(&waits);
    expect_saved(waits.job.world);
    for (int rank = 0; rank < waits.job.world; rank++)
        ck_assert_uint_eq(writers.saving.results[rank].copied, 0);
    free_results();
    struct buf same = group_pull_file(&waits, -1);
    ck_assert_uint_eq(same.length, weights.length);
    ck_assert_mem_eq(same.data, weights.data, same.length);
    buf_deinit(&same);
    group_reset(&waits);
    return weights;
}

TESTS_BELOW(.timeout = 120, .set_up = make_folders, .tear_down = remove_folders,
            .set_up_once = group_draw_digits, .tear_down_once = group_remove_digits);

/* The next checkpoint is taken after step 6. */
static const struct {
    const char *model;
    int world;
    enum strategy strategy;
    uint32_t accumulate;
    double max_norm;
    int let;
    uint64_t until;
} late[] = {
    {moving, 1, STRATEGY_FULL_SHARD, 1, 0, 0, 5},
    {moving, 1, STRATEGY_FULL_SHARD, 1, 0.1, 3, 8},
    {moving, 2, STRATEGY_FULL_SHARD, 1, 0, 2, 5},
    {moving, 2, STRATEGY_FULL_SHARD, 3, 0, 4, 0},
    {moving, 3, STRATEGY_FULL_SHARD, 1, 0, 5, 8},
    {moving, 3, STRATEGY_FULL_SHARD, 2, 0.1, 1, 5},
    {moving, 2, STRATEGY_SHARD_GRAD_OP, 1, 0, 3, 0},
    {moving, 2, STRATEGY_NO_SHARD, 1, 0, 0, 5},
    {moving, 4, STRATEGY_HYBRID_SHARD, 1, 0.1, 0, 8},
    {frozen, 1, STRATEGY_FULL_SHARD, 1, 0, 0, 0},
    {frozen, 2, STRATEGY_FULL_SHARD, 2, 0, 1, 8},
};

LOOP_TEST(a_late_file_has_the_bits_of_its_boundary, 0, COUNT_OF(late), .sanitized_every = 2)
{
    struct group group;
    init(&group, late[_i].model, late[_i].world);
    group.job.plan.strategy = late[_i].strategy;
    group.job.accumulation_steps = late[_i].accumulate;
    group.job.max_norm = late[_i].max_norm;
    if (late[_i].max_norm > 0) group.job.plan.norm = NORM_2;
    struct buf weights = undisturbed(&group);
    run_and_save(&group, late[_i].let, late[_i].until, folder);
    group_expect_success(&group);
    expect_saved(group.job.world);
    expect_same_files(group.job.world);
    for (int rank = 0; rank < group.job.world; rank++) {
        struct buf file = read_file(folder, rank);
        /* the piece that waits to be written is a copy already */
        ck_assert_uint_eq(writers.saving.results[rank].copied, bytes_after(&file, late[_i].let));
        buf_deinit(&file);
    }
    struct buf last = group_pull_file(&group, -1);
    group_expect_same_file(&last, &weights);
    free_results();
    group_reset(&group);
}

/* What never changes is not copied, unless it is freed. */
LOOP_TEST(frozen_units_are_not_copied, 1, 4)
{
    struct group group;
    init(&group, frozen, _i);
    struct buf weights = undisturbed(&group);
    run_and_save(&group, 0, 5, folder);
    group_expect_success(&group);
    expect_saved(_i);
    expect_same_files(_i);
    for (int rank = 0; rank < _i; rank++) {
        struct buf file = read_file(folder, rank);
        uint64_t all = bytes_after(&file, 0), copied = writers.saving.results[rank].copied;
        ck_assert_uint_gt(copied, 0);
        ck_assert_uint_lt(copied, all / 10);
        buf_deinit(&file);
    }
    struct buf last = group_pull_file(&group, -1);
    group_expect_same_file(&last, &weights);
    free_results();
    group_reset(&group);
}

/* One rank has no memory to copy what is about to change: no rank saves, nothing is left, and all
 * train on. The next checkpoint is complete. */
LOOP_TEST(without_memory_only_the_checkpoint_fails, 1, 4)
{
    struct group group;
    init(&group, moving, _i);
    struct buf weights = undisturbed(&group);
    writers.refusals = 1;
    run_and_save(&group, 1, 5, folder);
    writers.refusals = 0;
    ck_assert_int_le(atomic_load(&refusals), 0);
    group_expect_success(&group);
    for (int rank = 0; rank < _i; rank++) {
        const status_t status = writers.saving.statuses[rank];
        ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
        ck_assert_msg(strstr(status_message(status), "no memory to copy the") != NULL, "%s",
                      status_message(status));
    }
    ck_assert_int_eq(entries_in(folder), 0);
    struct buf last = group_pull_file(&group, -1);
    group_expect_same_file(&last, &weights);
    group_save_without_error(&group, 1, folder, 0);
    ck_assert_int_eq(entries_in(folder), 1);
    free_results();
    group_reset(&group);
}

/* Other units take over the state while it is being written. */
LOOP_TEST(units_change_meanwhile, 1, 4)
{
    static const struct wrap_policy none = {.kind = WRAP_NONE};
    struct group group;
    init(&group, moving, _i);
    group.wraps[0] = &none;
    group.order_at[0] = 4;
    group.order_count = 1;
    struct buf weights = undisturbed(&group);
    run_and_save(&group, 2, 8, folder);
    group_expect_success(&group);
    ck_assert_int_eq(group.members[0].order_count, 1);
    ck_assert_ptr_null(group.members[0].changes[0].refused);
    expect_saved(_i);
    expect_same_files(_i);
    struct buf last = group_pull_file(&group, -1);
    group_expect_same_file(&last, &weights);
    free_results();
    group_reset(&group);
}

/* The run is aborted between two steps or two batches of a step, before anything is written. */
LOOP_TEST(the_run_is_aborted_meanwhile, 0, 6)
{
    int world = 1 + _i / 2;
    struct group group;
    init(&group, moving, world);
    group.job.accumulation_steps = _i % 2 ? 3 : 1;
    struct buf weights = undisturbed(&group);
    buf_deinit(&weights);
    group.abort_rank = world - 1;
    group.abort_at = _i % 2 ? 3 * FIRST + 4 : FIRST + 2;
    run_and_save(&group, 1, 0, folder);
    ck_assert_int_eq(status_code(group.members[group.abort_rank].status), STATUS_ABORTED);
    for (int rank = 0; rank < world; rank++) ck_assert_ptr_nonnull(group.members[rank].status);
    expect_saved(world);
    expect_same_files(world);
    free_results();
    group_reset(&group);
}
