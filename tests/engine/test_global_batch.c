/*
 * Global batches: a step has the same samples at any world, whose ranks have unequal shares of
 * them, in one batch or in several; and dropout is keyed by sample. So the curve does not depend on
 * the world. Compiled with TEST_CUDA, for the emulated device: its curves in any world, of graphs
 * that are replayed, are those of the CPU in one.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "data/batch_share.h"
#include "session_group.h"
#include "tests/testing.h"

#ifdef TEST_CUDA
#include "../emulation/cuda_stub.h"
#include "memory_store.h"
#include "runtime/backend.h"
#endif

enum { VOCABULARY = 37, CONTEXT = 15, TOKENS = 6000 };

/* 675 probabilities and 345 activations of a sample: no multiples of four. */
static const char model[] =
    "name: Tiny\n"
    "input: tokens\n"
    "vocabulary: 37\n"
    "context: 15\n"
    "modules:\n"
    "  wte: Embedding(37, 24)\n"
    "  wpe: Embedding(15, 24)\n"
    "  drop: Dropout(0.2)\n"
    "  c_attn: Linear(24, 72)\n"
    "  narrow: Linear(24, 23)\n"
    "  head: Linear(23, 37)\n"
    "forward:\n"
    "  - y = drop(wte(x) + wpe(positions(x)))\n"
    "  - y += attention(c_attn(y), num_heads=3, is_causal=True, "
    "dropout_p=0.2)\n"
    "  - y = drop(narrow(y))\n"
    "  - output = head(y)\n"
    "loss: cross_entropy(output, target)\n"
    "init: [{match: \"*.bias\", zeros: true}, {match: \"*\", normal: 0.1}]\n";

static char path[64];

static void set_up(void)
{
    strcpy(path, "/tmp/fsdpd-test-global-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    uint16_t ids[TOKENS] = {1};
    uint32_t noise = 1;
    for (int i = 1; i < TOKENS; i++) {
        noise = noise * 1664525 + 1013904223;
        uint32_t next = noise >> 28 == 0 ? noise >> 8 : 5 * (uint32_t)ids[i - 1] + 3;
        ids[i] = (uint16_t)(next % VOCABULARY);
    }
    ck_assert_int_eq(write(fd, ids, sizeof ids), sizeof ids);
    close(fd);
    group_draw_digits();
}

static void tear_down(void)
{
    unlink(path);
    group_remove_digits();
}

#ifdef TEST_CUDA
/* The arithmetic of two devices differs by rounding; other random numbers differ by more. */
#define BOUND 1e-5
enum { STEPS = 12, KINDS = 1, CASES = 4 }; /* the emulation is slow */

static status_t join(struct device *device, int rank, int world, struct comm **comm)
{
    const struct rendezvous rendezvous = memory_store();
    return backend_join(device, rank, world, "127.0.0.1", "train", &rendezvous, 20000, false, true,
                        NULL, comm);
}

static void run_on_cuda(struct group *group)
{
    const struct backend_table *table = NULL;
    ck_assert_ptr_null(backend_load(&table)); /* which resets the stub when it is first opened */
    cuda_stub_reset(7);
    cuda_stub_record(true);
    memory_store_reset();
    group->device = "cuda:0";
    group->join = join;
    group_run(group);
    group_expect_success(group);
}

static void run_compared(struct group *group)
{
    run_on_cuda(group);
    ck_assert_int_gt(cuda_stub_count("cudaGraphLaunch"), 2 * group->job.world);
}
#else
#define BOUND 1e-5
enum { STEPS = 60, KINDS = 3, CASES = 7 };

static void run_compared(struct group *group)
{
    group_run(group);
    group_expect_success(group);
}
#endif

TESTS_BELOW(.timeout = 120, .set_up = set_up, .tear_down = tear_down);

enum kind { TOKENS_MEAN, DIGITS_MEAN, DIGITS_SUM };

static void init(struct group *group, enum kind kind, int world, uint32_t batch_size)
{
    const char *digits = kind == DIGITS_SUM ? group_sum_model : group_mean_model;
    bool images = kind != TOKENS_MEAN;
    group_init(group, images ? digits : model, images ? group_data : NULL, world);
    struct train_job *job = &group->job;
    job->global_batch = 10;
    job->batch_size = batch_size;
    job->log_interval = images ? 4 : 1;
    job->dropout = job->shuffle = true;
    job->optimizer = (struct optimizer_step){
        .kind = OPTIMIZER_ADAMW, .lr = 0.002, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
    if (images) {
        job->epochs = 2;
        return;
    }
    job->data_format = DATA_TOKENS;
    job->data_path = path;
    job->validation_fraction = 0.1;
    job->epochs = 0;
    job->max_steps = STEPS;
    job->evaluate_interval = STEPS / 2;
    job->wrap = (struct wrap_policy){.kind = WRAP_AUTO};
    job->schedule.kind = SCHEDULE_COSINE;
}

static void expect_same_curve(const struct group *a, const struct group *b)
{
    const struct member *one = &a->members[0], *other = &b->members[0];
    ck_assert_int_gt(one->metric_count, STEPS < 25 ? STEPS - 1 : 25);
    ck_assert_int_eq(one->metric_count, other->metric_count);
    ck_assert_uint_eq(one->steps, other->steps);
    for (int i = 0; i < one->metric_count; i++) {
        double difference = fabs(one->metrics[i].loss / other->metrics[i].loss - 1);
        ck_assert_msg(difference <= BOUND, "loss %d differs by %g", i, difference);
        ck_assert(one->metrics[i].epoch == other->metrics[i].epoch);
        ck_assert(one->metrics[i].learning_rate == other->metrics[i].learning_rate);
    }
    for (int i = 0; i < one->validation_count; i++)
        ck_assert(fabs(one->validations[i].loss / other->validations[i].loss - 1) <= BOUND);
    for (int i = 0; i < one->epoch_count; i++)
        ck_assert(fabs(one->epochs[i].train_loss / other->epochs[i].train_loss - 1) <= BOUND);
}

/* Digits have 601 samples: the last step of an epoch has one sample. */
LOOP_TEST(one_curve, TOKENS_MEAN, KINDS)
{
    static const struct {
        int world;
        uint32_t batch_size;
        bool no_sync;
        enum strategy strategy;
    } cases[] = {
        {1, 4, false, STRATEGY_FULL_SHARD},    {2, 64, false, STRATEGY_FULL_SHARD},
        {3, 2, false, STRATEGY_SHARD_GRAD_OP}, {4, 1, true, STRATEGY_FULL_SHARD},
        {3, 64, false, STRATEGY_FULL_SHARD},   {4, 64, false, STRATEGY_FULL_SHARD},
        {4, 2, false, STRATEGY_NO_SHARD},
    };
    static struct group one, other;
    init(&one, (enum kind)_i, 1, 64);
    group_run(&one);
    group_expect_success(&one);
    for (int i = 0; i < CASES; i++) {
        init(&other, (enum kind)_i, cases[i].world, cases[i].batch_size);
        other.job.no_sync = cases[i].no_sync;
        other.job.plan.strategy = cases[i].strategy;
        run_compared(&other);
        expect_same_curve(&one, &other);
        group_reset(&other);
    }
    group_reset(&one);
}

#ifdef TEST_CUDA

/* In bf16 cuDNN computes attention, and a kernel of ours draws what its dropout keeps: in a replay,
 * too, for the step and the samples of that replay. */
TEST(cudnn_drops_the_same_in_replays)
{
    static struct group plain, replayed;
    init(&plain, TOKENS_MEAN, 2, 3);
    plain.job.plan.gathered_dtype = DTYPE_BF16;
    setenv("FSDPD_CUDA_GRAPHS", "off", 1);
    run_on_cuda(&plain);
    unsetenv("FSDPD_CUDA_GRAPHS");
    ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch"), 0);
    ck_assert_int_gt(cuda_stub_count("cudnnBackendExecute"), 0);
    init(&replayed, TOKENS_MEAN, 2, 3);
    replayed.job.plan.gathered_dtype = DTYPE_BF16;
    run_compared(&replayed);
    ck_assert_int_eq(replayed.members[0].metric_count, plain.members[0].metric_count);
    for (int i = 0; i < plain.members[0].metric_count; i++)
        ck_assert(replayed.members[0].metrics[i].loss == plain.members[0].metrics[i].loss);
    group_reset(&plain);
    group_reset(&replayed);
}

#else

/* Every sample of a step belongs to one rank, in order, and shares differ by at most one. */
LOOP_TEST(shares_are_even, 1, 9)
{
    for (uint64_t samples = (uint64_t)_i; samples < 30; samples++)
        for (uint32_t most = 1; most < 8; most++)
            for (int64_t limit = 0; limit < 70; limit += 23) {
                struct train_job job = {.global_batch = samples, .world = _i, .batch_size = most};
                int64_t next = 0, end = limit > 0 ? limit : 3 * (int64_t)samples, least = INT64_MAX,
                        largest = 0;
                for (int64_t step = 0; step * (int64_t)samples < end; step++)
                    for (int rank = 0; rank < _i; rank++) {
                        struct batch_share share = batch_share_of(&job, rank);
                        ck_assert_int_le(share.batch, most);
                        int64_t rows = share.batch * share.micro_steps, own = 0;
                        int64_t first = batch_share_first(&share, step, 0, limit);
                        ck_assert_int_eq(step * (int64_t)samples + first, next);
                        for (int64_t row = 0; row < rows; row++) {
                            int64_t found = batch_share_find(&share, step * rows + row, limit);
                            if (found < 0) continue;
                            ck_assert_int_eq(found, next++);
                            own++;
                        }
                        if ((step + 1) * (int64_t)samples > end) continue;
                        if (own < least) least = own;
                        if (own > largest) largest = own;
                    }
                ck_assert_int_eq(next, end);
                if (least != INT64_MAX) ck_assert_int_le(largest - least, 1);
            }
}

TEST(a_rank_without_samples_is_refused)
{
    static struct group group;
    init(&group, TOKENS_MEAN, 4, 64);
    group.job.global_batch = 3;
    group_run(&group);
    ck_assert_str_eq(status_message(group.members[0].status),
                     "train.global_batch: expected at least a sample for each of 4 workers, "
                     "found 3");
    group_reset(&group);
}

#endif
