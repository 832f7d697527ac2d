/*
 * Redundancy in memory, with ranks as threads: after ranks were lost, those left continue from what
 * they keep, with the bits of a run whose worlds changed at the same steps by way of checkpoints.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/tree.h"
#include "session_group.h"
#include "tests/testing.h"

enum { VOCABULARY = 37, TOKENS = 3000, STEPS = 24 };

/* Wide enough for state in 8 bits, which some lives have. */
static const char model[] = "name: Tiny\n"
                            "input: tokens\n"
                            "vocabulary: 37\n"
                            "context: 15\n"
                            "modules:\n"
                            "  wte: Embedding(37, 24)\n"
                            "  wpe: Embedding(15, 24)\n"
                            "  drop: Dropout(0.2)\n"
                            "  up: Linear(24, 180)\n"
                            "  down: Linear(180, 24)\n"
                            "  c_attn: Linear(24, 72)\n"
                            "  head: Linear(24, 37)\n"
                            "forward:\n"
                            "  - y = drop(wte(x) + wpe(positions(x)))\n"
                            "  - y += attention(c_attn(y), num_heads=3, is_causal=True, "
                            "dropout_p=0.2)\n"
                            "  - y += down(gelu(up(y)))\n"
                            "  - output = head(y)\n"
                            "loss: cross_entropy(output, target)\n"
                            "init: [{match: \"*.bias\", zeros: true}, {match: \"*\", "
                            "normal: 0.1}]\n";

/* Of the optimizer of the next jobs: */
static enum state_dtype state;
static bool rounds; /* their parameters are in bf16, and have no average */
static bool muon, adafactor;
static bool adapts; /* only adapters are trained, and the base is made again */

static const struct optimizer_step others = {
    .kind = OPTIMIZER_ADAMW, .lr = 0.5, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};

static const char *const all_linear[] = {"all-linear"};
static const struct model_lora lora = {.rank = 3, .alpha = 6, .targets = {all_linear, 1}};

static char directory[64], path[96], folder[96];

static void set_up(void)
{
    state = STATE_F32;
    muon = adafactor = adapts = false;
    rounds = false;
    strcpy(directory, "/tmp/fsdpd-test-recovery-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/tokens.bin", directory);
    snprintf(folder, sizeof folder, "%s/checkpoints", directory);
    uint16_t ids[TOKENS] = {1};
    for (int i = 1; i < TOKENS; i++) ids[i] = (uint16_t)((5 * ids[i - 1] + 3 + i / 7) % VOCABULARY);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(ids, sizeof ids, 1, file), 1);
    fclose(file);
}

static void tear_down(void)
{
    ck_assert_ptr_null(tree_remove(directory));
}

TESTS_BELOW(.timeout = 120, .set_up = set_up, .tear_down = tear_down);

/* A job, and what the processes of its ranks keep, by rank of the current attempt. */
struct life {
    enum redundancy redundancy;
    enum strategy strategy;
    int parity_group;
    uint64_t every_steps; /* 0: 1 */
    bool shares;          /* the ranks share memory */
    struct kept kept[GROUP_MAX_WORLD];
    uint32_t attempt, since;
    struct group group;
};

static void init(struct group *group, int world, enum strategy strategy)
{
    group_init(group, model, NULL, world);
    struct train_job *job = &group->job;
    job->data_format = DATA_TOKENS;
    job->data_path = path;
    job->evaluate = false;
    job->epochs = 0;
    job->max_steps = STEPS;
    job->global_batch = 10;
    job->batch_size = 2;
    job->log_interval = 1;
    job->schedule.kind = SCHEDULE_COSINE;
    job->optimizer = (struct optimizer_step){.kind = OPTIMIZER_ADAMW,
                                             .state = state,
                                             .lr = 0.002,
                                             .beta1 = 0.9,
                                             .beta2 = 0.99,
                                             .eps = 1e-8,
                                             .ema_decay = rounds ? 0 : 0.8};
    if (muon)
        job->optimizer = (struct optimizer_step){.kind = OPTIMIZER_MUON,
                                                 .lr = 0.004,
                                                 .momentum = 0.95,
                                                 .nesterov = true,
                                                 .ns_steps = 5,
                                                 .others = &others,
                                                 .ema_decay = 0.8};
    if (adapts) job->lora = &lora;
    if (adafactor) {
        job->optimizer = group_adafactor;
        job->optimizer.ema_decay = 0.8;
    }
    job->plan.rounded = rounds;
    if (rounds) job->plan.gathered_dtype = DTYPE_BF16;
    group->average = strategy == STRATEGY_FULL_SHARD &&
                     !job->plan.rounded; /* the weights' average, or the weights */
    job->wrap = (struct wrap_policy){.kind = WRAP_SIZE, .min_num_params = 500};
    job->plan.strategy = strategy;
    job->shard_size = 2;
}

/* The losses by step of a run, which came to its worlds in memory, and of one with checkpoints. */
enum { IN_MEMORY, ON_DISK };
static double losses_of[2][STEPS + 1];

static void note_losses(const struct group *group, int way)
{
    const struct member *first = &group->members[0];
    for (int i = 0; i < first->metric_count; i++)
        losses_of[way][first->metrics[i].step] = first->metrics[i].loss;
}

static void begin(struct life *life, int world)
{
    init(&life->group, world, life->strategy);
    life->group.job.redundancy = life->redundancy;
    life->group.job.redundancy_steps = life->every_steps > 0 ? life->every_steps : 1;
    life->group.job.parity_group = life->parity_group;
    life->group.kept = life->kept;
    life->group.shares = life->shares;
    life->group.attempt = ++life->attempt;
    life->group.since = life->since;
}

/* One attempt; rank `aborted` ends it after step `at` (0: never). */
static void run(struct life *life, int world, int aborted, uint64_t at)
{
    begin(life, world);
    life->group.abort_rank = aborted;
    life->group.abort_step = at;
    group_run(&life->group);
    if (at == 0) group_expect_success(&life->group);
    else ck_assert_ptr_nonnull(life->group.members[aborted].status);
    note_losses(&life->group, IN_MEMORY);
    life->since = life->attempt;
}

/* What a rank took, and what it has of one other rank, is in memory that the ranks share. */
static void expect_shared(const struct life *life, int world)
{
    for (int r = 0; r < world; r++) {
        const struct kept_generation *last = &life->kept[r].generations[life->kept[r].last];
        ck_assert_int_eq(last->primary.shared.memory != NULL, life->shares);
        ck_assert_int_eq(last->backup.shared.memory != NULL,
                         life->shares && kept_is_copy(&last->shape));
    }
}

/* The process of that rank is gone; later ones move up. */
static void lose(struct life *life, int rank)
{
    kept_clear(&life->kept[rank]);
    for (int r = rank; r + 1 < GROUP_MAX_WORLD; r++) life->kept[r] = life->kept[r + 1];
    life->kept[GROUP_MAX_WORLD - 1] = (struct kept){0};
}

/* One attempt that hands its state over after `batches` batches; those that leave are gone
 * then. Returns the step. */
static uint64_t order(struct life *life, int world, const bool *leaves, uint64_t batches)
{
    begin(life, world);
    struct group *group = &life->group;
    group->order_at[0] = batches;
    group->order_count = 1;
    group->cancel = 1;
    group->leaves = leaves;
    group_run(group);
    note_losses(group, IN_MEMORY);
    uint64_t step = group->members[0].orders[0].step;
    for (int r = 0; r < world; r++) {
        ck_assert_str_eq(group->members[r].not_handed_over, "");
        ck_assert_int_eq(status_code(group->members[r].status), STATUS_CANCELLED);
        ck_assert_uint_eq(group->members[r].orders[0].step, step);
    }
    group_reset(group);
    for (int r = world - 1; r >= 0; r--)
        if (leaves[r]) lose(life, r);
    life->since = life->attempt;
    return step;
}

static void end(struct life *life)
{
    for (int r = 0; r < GROUP_MAX_WORLD; r++) kept_clear(&life->kept[r]);
    group_reset(&life->group);
}

/* A change of the world at a step. */
struct change {
    int world;
    uint64_t step; /* that it came to before */
};

/* The final weights of a run that came to the same worlds at the same steps by checkpoints. */
static struct buf planned(enum strategy strategy, int world, const struct change *changes,
                          int count)
{
    static struct group group;
    ck_assert_ptr_null(tree_remove(folder));
    for (int i = 0; i <= count; i++) {
        uint64_t before = i > 0 ? changes[i - 1].step : 0;
        init(&group, i > 0 ? changes[i - 1].world : world, strategy);
        group.job.checkpoints = (struct checkpoint_settings){.folder = folder,
                                                             .run = "digits-1@7",
                                                             .attempt = (uint32_t)i + 1,
                                                             .resume = before > 0,
                                                             .must_resume = before > 0};
        if (i < count && changes[i].step == before) continue; /* no step was done there */
        if (i < count) group.job.checkpoints.every_steps = changes[i].step;
        group_run(&group);
        group_expect_success(&group);
        if (before > 0) ck_assert_uint_eq(group.members[0].resumed_step, before);
        note_losses(&group, ON_DISK);
        if (i < count) {
            group_save_without_error(&group, 0, folder, 0);
            group_reset(&group);
        }
    }
    struct buf file = group_pull_file(&group, -1);
    group_reset(&group);
    return file;
}

static void expect_bits(struct life *life, int world, const struct change *changes, int count)
{
    struct buf expected = planned(life->strategy, world, changes, count);
    struct buf found = group_pull_file(&life->group, -1);
    for (int i = 1; i <= STEPS; i++) {
        ck_assert_double_gt(losses_of[IN_MEMORY][i], 0);
        ck_assert(losses_of[IN_MEMORY][i] == losses_of[ON_DISK][i]);
    }
    ck_assert_uint_eq(found.length, expected.length);
    ck_assert_mem_eq(found.data, expected.data, found.length);
    buf_deinit(&found);
    buf_deinit(&expected);
}

static uint64_t recovered_step(const struct life *life, uint64_t least)
{
    const struct member *first = &life->group.members[0];
    ck_assert_str_eq(first->resumed_name, "memory");
    ck_assert_str_eq(first->note, "");
    ck_assert_uint_ge(first->resumed_step, least);
    return first->resumed_step;
}

static const struct loss {
    enum redundancy redundancy;
    enum strategy strategy;
    int parity_group, world, lost[2], left;
} losses[] = {
    {REDUNDANCY_MIRROR, STRATEGY_FULL_SHARD, 0, 4, {2, -1}, 3},
    {REDUNDANCY_MIRROR, STRATEGY_FULL_SHARD, 0, 2, {0, -1}, 1},
    {REDUNDANCY_MIRROR, STRATEGY_SHARD_GRAD_OP, 0, 5, {4, 1}, 3},
    {REDUNDANCY_MIRROR, STRATEGY_FULL_SHARD, 0, 4, {2, 0}, 2},
    {REDUNDANCY_PARITY, STRATEGY_FULL_SHARD, 4, 4, {0, -1}, 3},
    {REDUNDANCY_PARITY, STRATEGY_FULL_SHARD, 3, 3, {1, -1}, 2},
    {REDUNDANCY_PARITY, STRATEGY_FULL_SHARD, 2, 5, {4, 1}, 3},
    {REDUNDANCY_PARITY, STRATEGY_FULL_SHARD, 3, 7, {6, 1}, 5},
    {REDUNDANCY_REPLICA, STRATEGY_NO_SHARD, 0, 3, {2, 0}, 1},
    {REDUNDANCY_REPLICA, STRATEGY_HYBRID_SHARD, 0, 4, {3, 0}, 2},
    {REDUNDANCY_MIRROR, STRATEGY_FULL_SHARD, 0, 4, {2, 0}, 2}, /* this and the next with adapters */
    {REDUNDANCY_PARITY, STRATEGY_FULL_SHARD, 2, 5, {4, 1}, 3},
};

LOOP_TEST(same_bits, 0, 2 * COUNT_OF(losses), .sanitized_every = 3)
{
    static struct life life;
    const struct loss *loss = &losses[_i / 2];
    adapts = (size_t)_i / 2 + 2 >= COUNT_OF(losses);
    life = (struct life){.redundancy = loss->redundancy,
                         .strategy = loss->strategy,
                         .parity_group = loss->parity_group,
                         .shares = _i % 2 == 1};
    int world = loss->world, victim = loss->lost[0];
    struct change change = {.world = loss->left};
    run(&life, world, victim, 9);
    group_reset(&life.group);
    for (int i = 0; i < 2; i++)
        if (loss->lost[i] >= 0) lose(&life, loss->lost[i]);
    run(&life, change.world, 0, 0);
    change.step = recovered_step(&life, 8);
    ck_assert_uint_le(change.step, 9);
    expect_bits(&life, world, &change, 1);
    end(&life);
}

/* Renewed every four steps, a loss at any step costs no more than those; the first generation is
 * that of the attempt's beginning. */
LOOP_TEST(every_steps, 4, 14, .sanitized_every = 3)
{
    static struct life life;
    uint64_t lost_at = (uint64_t)_i;
    life = (struct life){.redundancy = _i % 2 == 0 ? REDUNDANCY_MIRROR : REDUNDANCY_PARITY,
                         .parity_group = 2,
                         .every_steps = 4,
                         .shares = _i % 4 < 2};
    run(&life, 4, 3, lost_at);
    group_reset(&life.group);
    lose(&life, 3);
    bool again = lost_at > 9; /* between the second attempt's beginning and its first renewal */
    run(&life, 3, again ? 0 : 1, again ? 0 : lost_at + 1);
    struct change changes[2] = {{3, recovered_step(&life, lost_at - 4)}};
    ck_assert_uint_eq(changes[0].step % 4, 0);
    if (!again) {
        group_reset(&life.group);
        lose(&life, 1);
        run(&life, 2, 0, 0);
        changes[1] = (struct change){2, recovered_step(&life, changes[0].step)};
        ck_assert_uint_ge(changes[1].step + 4, lost_at + 1);
    }
    expect_bits(&life, 4, changes, again ? 1 : 2);
    end(&life);
}

/* Losses one after the other, and growth by processes that keep nothing. */
LOOP_TEST(many_worlds, 0, 7)
{
    static struct life life;
    bool parity = _i / 2 == 1;
    muon = parity;
    adafactor = _i == 6;
    state = muon || adafactor ? STATE_F32 : _i < 4 ? STATE_INT8 : STATE_BF16;
    rounds = _i == 5;
    life = (struct life){.redundancy = parity ? REDUNDANCY_PARITY : REDUNDANCY_MIRROR,
                         .parity_group = 2,
                         .shares = _i % 2 == 1};
    static const int worlds[] = {3, 5, 4, 2};
    struct change changes[COUNT_OF(worlds)];
    run(&life, 4, 1, 5);
    lose(&life, 1);
    for (size_t i = 0; i < COUNT_OF(worlds); i++) {
        bool last = i + 1 == COUNT_OF(worlds);
        int victim = (int)(i + 2) % worlds[i];
        group_reset(&life.group);
        run(&life, worlds[i], victim, last ? 0 : 5 + 4 * (i + 1));
        changes[i] = (struct change){worlds[i], recovered_step(&life, 4 + 4 * i)};
        if (last) continue;
        lose(&life, victim);
        /* Of four ranks, 0 and another one whose shards the remaining two have. */
        if (i == 2) lose(&life, parity ? 0 : 1);
    }
    ck_assert_uint_gt(changes[3].step, 12);
    expect_bits(&life, 4, changes, COUNT_OF(worlds));
    end(&life);
}

/* A shard and its copy are lost: the run begins again, and says why. */
LOOP_TEST(too_much_is_lost, 0, 4, .sanitized_every = 3)
{
    static struct life life;
    life = (struct life){.redundancy = _i / 2 == 1 ? REDUNDANCY_PARITY : REDUNDANCY_MIRROR,
                         .parity_group = 4,
                         .shares = _i % 2 == 1};
    run(&life, 4, 1, 5);
    group_reset(&life.group);
    lose(&life, 1);
    lose(&life, 1);
    run(&life, 2, 0, 0);
    const struct member *first = &life.group.members[0];
    ck_assert_str_eq(first->resumed_name, "");
    ck_assert_ptr_nonnull(strstr(first->note, "the memory of step "));
    ck_assert_ptr_nonnull(strstr(first->note, ": the shards of rank 1 of 4 and their copies were "
                                              "lost"));
    ck_assert_uint_eq(first->resumed_step, 0);
    end(&life);
}

/* A rank that is given up may still run, and change its memory, of which another rank has the only
 * copy. */
TEST(changed_by_a_lost_rank)
{
    static struct life life;
    life = (struct life){.redundancy = REDUNDANCY_MIRROR, .shares = true};
    run(&life, 4, 1, 5);
    group_reset(&life.group);
    expect_shared(&life, 4);
    for (int g = 0; g < KEPT_GENERATIONS; g++)
        atomic_store(life.kept[1].generations[g].primary.shared.mark, 0);
    lose(&life, 1);
    run(&life, 3, 0, 0);
    ck_assert_str_eq(life.group.members[0].resumed_name, "");
    ck_assert_ptr_nonnull(strstr(life.group.members[0].note,
                                 ": the shards of rank 1 of 4 and their copies were lost"));
    end(&life);
}

/* What attempts before `since` kept is another run's past. */
TEST(stale)
{
    static struct life life;
    life = (struct life){.redundancy = REDUNDANCY_MIRROR};
    run(&life, 3, 1, 5);
    group_reset(&life.group);
    life.attempt = 7;
    life.since = 7;
    run(&life, 3, 0, 0);
    ck_assert_str_eq(life.group.members[0].resumed_name, "");
    ck_assert_str_eq(life.group.members[0].note, "");
    end(&life);
}

/* An attempt that ends before its first step leaves what it continued from. */
TEST(lost_again_at_once)
{
    static struct life life;
    life = (struct life){.redundancy = REDUNDANCY_MIRROR};
    run(&life, 5, 1, 5);
    group_reset(&life.group);
    lose(&life, 1);
    run(&life, 4, 2, 5);
    struct change changes[2] = {{4, recovered_step(&life, 4)}};
    group_reset(&life.group);
    life.since = 1; /* the coordinator never saw the second one begin */
    lose(&life, 2);
    run(&life, 3, 0, 0);
    changes[1] = (struct change){3, recovered_step(&life, changes[0].step)};
    ck_assert_uint_le(changes[1].step, changes[0].step + 1);
    expect_bits(&life, 5, changes, 2);
    end(&life);
}

static const struct change_order {
    enum redundancy redundancy;
    enum strategy strategy;
    int parity_group, world;
    bool leaves[GROUP_MAX_WORLD];
    int next; /* world; more than stay: others join */
    uint64_t every_steps;
} orders[] = {
    {REDUNDANCY_MIRROR, STRATEGY_FULL_SHARD, 0, 4, {0, 0, 1, 1}, 2, 1},
    {REDUNDANCY_MIRROR, STRATEGY_FULL_SHARD, 0, 4, {1, 0, 0, 1}, 2, 1},
    {REDUNDANCY_MIRROR, STRATEGY_SHARD_GRAD_OP, 0, 4, {0, 1, 0, 1}, 2, 5},
    {REDUNDANCY_MIRROR, STRATEGY_FULL_SHARD, 0, 2, {1}, 1, 1},
    {REDUNDANCY_MIRROR, STRATEGY_FULL_SHARD, 0, 5, {0, 1, 1}, 4, 7},
    {REDUNDANCY_MIRROR, STRATEGY_FULL_SHARD, 0, 2, {0}, 4, 30},
    {REDUNDANCY_MIRROR, STRATEGY_FULL_SHARD, 0, 1, {0}, 3, 1},
    {REDUNDANCY_PARITY, STRATEGY_FULL_SHARD, 2, 4, {0, 0, 1, 1}, 2, 1},
    {REDUNDANCY_PARITY, STRATEGY_FULL_SHARD, 4, 4, {0, 1}, 3, 1},
    {REDUNDANCY_PARITY, STRATEGY_FULL_SHARD, 3, 3, {0}, 5, 4},
    {REDUNDANCY_REPLICA, STRATEGY_NO_SHARD, 0, 3, {1, 1}, 1, 1},
    {REDUNDANCY_REPLICA, STRATEGY_HYBRID_SHARD, 0, 4, {0, 1, 1}, 2, 6},
};

/* After a change by order the run continues at the very step, without a checkpoint on the disk. */
LOOP_TEST(by_order, 0, 2 * COUNT_OF(orders), .sanitized_every = 3)
{
    static struct life life;
    const struct change_order *one = &orders[_i / 2];
    life = (struct life){.redundancy = one->redundancy,
                         .strategy = one->strategy,
                         .parity_group = one->parity_group,
                         .every_steps = one->every_steps,
                         .shares = _i % 2 == 1};
    struct change change = {one->next, order(&life, one->world, one->leaves, 19)};
    run(&life, change.world, 0, 0);
    ck_assert_uint_eq(recovered_step(&life, 1), change.step);
    expect_bits(&life, one->world, &change, 1);
    end(&life);
}

/* 4, 2, 3 and 4 workers by order. */
LOOP_TEST(worlds_by_order, 0, 4, .sanitized_every = 3)
{
    static struct life life;
    life = (struct life){.redundancy = _i / 2 == 1 ? REDUNDANCY_PARITY : REDUNDANCY_MIRROR,
                         .parity_group = 2,
                         .shares = _i % 2 == 1};
    static const int worlds[] = {4, 2, 3, 4};
    static const bool leaves[][GROUP_MAX_WORLD] = {{0, 1, 1}, {0}, {0}};
    struct change changes[3];
    for (int i = 0; i < 3; i++) {
        uint64_t step = order(&life, worlds[i], leaves[i], 5);
        changes[i] = (struct change){worlds[i + 1], step};
    }
    run(&life, 4, 0, 0);
    expect_shared(&life, 4);
    ck_assert_uint_eq(recovered_step(&life, changes[1].step + 1), changes[2].step);
    expect_bits(&life, 4, changes, 3);
    end(&life);
}

static const struct {
    enum redundancy redundancy;
    enum strategy strategy;
    int parity_group, world;
    bool leaves[GROUP_MAX_WORLD];
    const char *why;
} refusals[] = {
    {REDUNDANCY_MIRROR, STRATEGY_FULL_SHARD, 0, 3, {0, 1, 1}, "the shards of rank 1 of 3"},
    {REDUNDANCY_PARITY, STRATEGY_FULL_SHARD, 4, 4, {0, 0, 1, 1}, "the shards of rank 2 of 4"},
    {REDUNDANCY_REPLICA, STRATEGY_HYBRID_SHARD, 0, 4, {0, 1, 0, 1}, "the shards of rank 1 of 4"},
};

/* Where shards would be lost, the run continues; a caller takes a checkpoint instead. */
LOOP_TEST(no_hand_over, 0, COUNT_OF(refusals))
{
    static struct life life;
    life = (struct life){.redundancy = refusals[_i].redundancy,
                         .strategy = refusals[_i].strategy,
                         .parity_group = refusals[_i].parity_group};
    begin(&life, refusals[_i].world);
    life.group.order_at[0] = 9;
    life.group.order_count = 1;
    life.group.cancel = 1;
    life.group.leaves = refusals[_i].leaves;
    group_run(&life.group);
    group_expect_success(&life.group);
    note_losses(&life.group, IN_MEMORY);
    for (int r = 0; r < refusals[_i].world; r++)
        ck_assert_ptr_nonnull(strstr(life.group.members[r].not_handed_over, refusals[_i].why));
    expect_bits(&life, refusals[_i].world, NULL, 0);
    end(&life);
}
