/*
 * Sessions that train on tokens, in one process over `local` ranks: the model learns, independently
 * of the world size and of chance; validations, batches in tokens, and errors in the data that
 * appear in the middle.
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../unit/dataset_files.h"
#include "base/tree.h"
#include "session_group.h"
#include "tests/testing.h"

enum { VOCABULARY = 37, CONTEXT = 16, TOKENS = 6000 };

static const char model[] = "name: Tiny\n"
                            "input: tokens\n"
                            "vocabulary: 37\n"
                            "context: 16\n"
                            "blocks:\n"
                            "  Block:\n"
                            "    modules:\n"
                            "      ln_1: LayerNorm(24)\n"
                            "      c_attn: Linear(24, 72)\n"
                            "      c_proj: Linear(24, 24)\n"
                            "      ln_2: LayerNorm(24)\n"
                            "      mlp: Sequential(Linear(24, 48), GELU(), Linear(48, 24))\n"
                            "    forward:\n"
                            "      - x += c_proj(attention(c_attn(ln_1(x)), num_heads=3, "
                            "is_causal=True))\n"
                            "      - x += mlp(ln_2(x))\n"
                            "      - output = x\n"
                            "modules:\n"
                            "  wte: Embedding(37, 24)\n"
                            "  wpe: Embedding(16, 24)\n"
                            "  h: 2 * Block()\n"
                            "  ln_f: LayerNorm(24)\n"
                            "  head: Linear(24, 37, bias=False)\n"
                            "forward:\n"
                            "  - y = wte(x) + wpe(positions(x))\n"
                            "  - for block in h: y = block(y)\n"
                            "  - output = head(ln_f(y))\n"
                            "loss: cross_entropy(output, target)\n"
                            "tie: {head.weight: wte.weight}\n"
                            "init: [{match: \"*ln_*.weight\", ones: true}, "
                            "{match: \"*.bias\", zeros: true}, {match: \"*\", normal: 0.05}]\n";

static char path[64];

/* Writes tokens with a pattern to learn: a token mostly follows from the previous one. */
static void write_tokens(void)
{
    strcpy(path, "/tmp/fsdpd-test-tokens-XXXXXX");
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
}

static void remove_tokens(void)
{
    unlink(path);
}

static void init_group(struct group *group, int world, uint32_t batch_size)
{
    group_init(group, model, NULL, world);
    struct train_job *job = &group->job;
    job->data_format = DATA_TOKENS;
    job->data_path = path;
    job->validation_fraction = 0.1;
    job->epochs = 0;
    job->max_steps = 40;
    job->batch_size = batch_size;
    job->log_interval = 10;
    job->evaluate_interval = 15;
    job->wrap = (struct wrap_policy){.kind = WRAP_AUTO};
    job->schedule.kind = SCHEDULE_CONSTANT;
    job->optimizer = (struct optimizer_step){.kind = OPTIMIZER_ADAMW,
                                             .lr = 0.01,
                                             .beta1 = 0.9,
                                             .beta2 = 0.99,
                                             .eps = 1e-8,
                                             .weight_decay = 0.01};
}

static void train_without_error(struct group *group)
{
    group_run(group);
    group_expect_success(group);
}

TESTS_BELOW(.timeout = 120, .set_up = write_tokens, .tear_down = remove_tokens);

TEST(learns)
{
    static struct group group;
    init_group(&group, 2, 6);
    group.job.max_steps = 200;
    group.job.evaluate_interval = 60;
    train_without_error(&group);
    const struct member *member = &group.members[0];
    ck_assert_uint_eq(member->steps, 200);
    ck_assert_int_eq(member->metric_count, 20);
    ck_assert_int_eq(member->epoch_count, 0);
    ck_assert_int_eq(member->validation_count, 4);
    static const uint64_t steps[] = {60, 120, 180, 200};
    for (int i = 0; i < 4; i++) ck_assert_uint_eq(member->validations[i].step, steps[i]);
    /* 600 tokens for validation: 37 windows, each with 16 targets */
    ck_assert_uint_eq(member->validations[0].tokens, 37 * CONTEXT);
    ck_assert(member->metrics[0].loss > 2.5 && member->metrics[0].loss < log(VOCABULARY) + 1);
    ck_assert(!member->metrics[0].validated && member->metrics[19].validated);
    ck_assert_uint_eq(member->metrics[19].validation_step, 180);
    double last = member->validations[3].loss;
    printf("validation loss %.4f, then %.4f\n", member->validations[0].loss, last);
    ck_assert(last < 1.2 && last < member->validations[0].loss);
    const struct train_metrics *metrics = &member->metrics[19];
    /* 336 windows of 5,400 tokens in an epoch, 12 of them in a step */
    ck_assert(fabs(metrics->epoch - 200 * 12 / 336.0) < 1e-9);
    ck_assert(fabs(metrics->tokens_per_second / metrics->samples_per_second - CONTEXT) < 1e-6);
    ck_assert(fabs(metrics->tokens_per_second * metrics->step_seconds / (12 * CONTEXT) - 1) < 1e-6);
    ck_assert_double_eq(metrics->counted_tokens_per_second, metrics->tokens_per_second);
    ck_assert(metrics->data_wait_share >= 0 && metrics->data_wait_share < 1);
    /* linear layers, forward and backward: 6 per parameter and token; attention; no embeddings */
    double linear = 6.0 * 12 * CONTEXT * (2 * (24 * 72 + 24 * 24 + 2 * 24 * 48) + 24 * 37);
    double flops = metrics->flops_per_second * metrics->step_seconds;
    printf("%.0f floating-point operations per step, %.0f of linear layers\n", flops, linear);
    ck_assert(flops > linear && flops < 2 * linear);
    group_reset(&group);
}

static void expect_near(const struct group *a, const struct group *b, double bound)
{
    const struct member *one = &a->members[0], *other = &b->members[0];
    ck_assert_int_eq(one->metric_count, other->metric_count);
    ck_assert_int_eq(one->validation_count, other->validation_count);
    for (int i = 0; i < one->metric_count; i++) {
        double difference = fabs(one->metrics[i].loss / other->metrics[i].loss - 1);
        ck_assert_msg(difference <= bound, "loss %d differs by %g", i, difference);
    }
    for (int i = 0; i < one->validation_count; i++) {
        double difference = fabs(one->validations[i].loss / other->validations[i].loss - 1);
        ck_assert_msg(difference <= bound, "validation %d differs by %g", i, difference);
    }
}

TEST(same_bits)
{
    static struct group a, b;
    for (int masked = 0; masked < 2; masked++) {
        init_group(&a, 2, 6);
        a.job.masked = masked;
        a.job.mask_probability = 0.3;
        a.job.mask_token = VOCABULARY - 1;
        init_group(&b, 2, 6);
        b.job = a.job;
        train_without_error(&a);
        train_without_error(&b);
        expect_near(&a, &b, 0);
        group_reset(&a);
        group_reset(&b);
    }
}

/* The same global batches for all worlds, at once or in micro-steps. */
LOOP_TEST(worlds, 0, 5)
{
    static const struct {
        int world;
        uint32_t batch_size;
        uint64_t batch_tokens;
        enum strategy strategy;
    } cases[] = {
        {2, 6, 0, STRATEGY_FULL_SHARD},
        {3, 4, 0, STRATEGY_FULL_SHARD},
        {2, 6, 0, STRATEGY_NO_SHARD},
        {1, 3, 12 * CONTEXT, STRATEGY_FULL_SHARD},
        {2, 2, 12 * CONTEXT, STRATEGY_SHARD_GRAD_OP},
    };
    static struct group one, other;
    init_group(&one, 1, 12);
    one.job.evaluate_batches = 2;
    train_without_error(&one);
    init_group(&other, cases[_i].world, cases[_i].batch_size);
    other.job.evaluate_batches = 2;
    other.job.batch_tokens = cases[_i].batch_tokens;
    other.job.plan.strategy = cases[_i].strategy;
    train_without_error(&other);
    expect_near(&one, &other, 1e-4);
    group_reset(&one);
    group_reset(&other);
}

/* Documents of 2 to 24 tokens, some with few tokens that count and some with many. */
static void write_documents(const char *directory)
{
    enum { COUNT = 400, MOST = 24 };
    static uint16_t tokens[COUNT * MOST];
    static uint8_t counts[COUNT * MOST];
    uint64_t borders[COUNT + 1] = {0}, end = 0;
    uint32_t noise = 1;
    for (int d = 0; d < COUNT; d++) {
        noise = noise * 1664525 + 1013904223;
        uint32_t length = 2 + (noise >> 20) % (MOST - 1), rare = d % 3 == 0 ? 7 : 1;
        for (uint32_t i = 0; i < length; i++, end++) {
            tokens[end] =
                (uint16_t)(i == 0 ? noise >> 9 : 5 * (uint32_t)tokens[end - 1] + 3) % VOCABULARY;
            counts[end] = i % rare == 0;
        }
        borders[d + 1] = end;
    }
    struct dataset_sum sums[] = {
        dataset_write_npy(directory, "t.npy", "<u2", tokens, end, 2),
        dataset_write_npy(directory, "d.npy", "<u8", borders, COUNT + 1, 8),
        dataset_write_npy(directory, "m.npy", "|u1", counts, end, 1),
    };
    struct buf json = {0};
    buf_add_text(&json, "{\"format\": \"fsdpd-dataset\", \"version\": 1, \"kind\": \"tokens\", "
                        "\"vocabulary\": 37, \"splits\": {");
    for (int split = 0; split < 2; split++) {
        buf_add_text(&json, split == 0 ? "\"train\": {" : "}, \"validation\": {");
        dataset_add_array(&json, "tokens", "t.npy", "uint16", end, &sums[0]);
        dataset_add_array(&json, "documents", "d.npy", "uint64", COUNT + 1, &sums[1]);
        dataset_add_array(&json, "mask", "m.npy", "uint8", end, &sums[2]);
    }
    buf_add_text(&json, "}}}");
    dataset_write_bytes(directory, "dataset.json", &json);
    buf_deinit(&json);
}

/* Documents with unequal shares of tokens that count, padded or packed, from one source or from
 * two: the same curve for any division of a step's windows over ranks and batches, and it falls. */
LOOP_TEST(document_cuts, WINDOWS_DOCUMENT, WINDOWS_PACKED + 1)
{
    static const struct {
        int world;
        uint32_t batch_size;
    } cuts[] = {{2, 4}, {4, 2}, {1, 2}, {2, 1}};
    char directory[] = "/tmp/fsdpd-test-documents-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(directory));
    write_documents(directory);
    const struct token_path sources[] = {{.path = directory, .weight = 3},
                                         {.path = directory, .weight = 1}};
    static struct group one, other;
    for (int count = 1; count <= 2; count++) {
        init_group(&one, 1, 8);
        one.job.data_format = DATA_DATASET;
        one.job.sources = sources;
        one.job.source_count = count;
        one.job.windows = (enum window_kind)_i;
        one.job.shuffle = true;
        one.job.max_steps = 50;
        one.job.log_interval = 1;
        one.job.optimizer.lr = 0.001;
        train_without_error(&one);
        const struct train_metrics *metrics = one.members[0].metrics;
        ck_assert(metrics[49].loss < metrics[0].loss - 0.5);
        double share = metrics[7].counted_tokens_per_second / metrics[7].tokens_per_second;
        ck_assert_msg(share > 0.1 && share < 0.9, "%g of the tokens count", share);
        for (size_t c = 0; c < COUNT_OF(cuts); c++) {
            init_group(&other, cuts[c].world, cuts[c].batch_size);
            struct train_job job = one.job;
            job.world = cuts[c].world;
            job.batch_size = cuts[c].batch_size;
            job.batch_tokens = 8 * CONTEXT;
            other.job = job;
            train_without_error(&other);
            ck_assert_int_eq(one.members[0].metric_count, 50);
            expect_near(&one, &other, 1e-6);
            group_reset(&other);
        }
        group_reset(&one);
    }
    status_t status = tree_remove(directory);
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

static void mask(struct train_job *job, double probability)
{
    job->masked = true;
    job->mask_probability = probability;
    job->mask_token = VOCABULARY - 1;
}

/* Windows have different numbers of masked tokens. A step's loss and gradient are means over the
 * tokens of all its windows, so their division does not matter. */
TEST(masked_cuts)
{
    static const struct {
        int world;
        uint32_t batch_size;
        bool no_sync, offload, clips;
    } cuts[] = {
        {2, 12, false, false, false}, {3, 8, false, false, false}, {4, 6, false, false, false},
        {8, 3, false, false, false},  {1, 3, false, false, false}, {1, 1, false, false, true},
        {2, 3, false, false, false},  {2, 3, true, false, true},   {3, 4, false, false, true},
        {3, 2, true, false, false},   {4, 1, false, false, false}, {2, 12, false, true, false},
        {2, 3, false, true, true},
    };
    static struct group ones[2], other; /* on one rank, without and with a norm */
    for (int clips = 0; clips < 2; clips++) {
        struct train_job *job = &ones[clips].job;
        init_group(&ones[clips], 1, 24);
        mask(job, 0.15);
        job->max_steps = 50;
        job->log_interval = 1;
        job->optimizer.lr = 0.001;
        job->max_norm = clips ? 0.05 : 0;
        job->plan.norm = clips ? NORM_2 : NORM_NONE;
        train_without_error(&ones[clips]);
        ck_assert_int_eq(ones[clips].members[0].metric_count, 50);
    }
    for (size_t c = 0; c < COUNT_OF(cuts); c++) {
        const struct group *one = &ones[cuts[c].clips];
        init_group(&other, cuts[c].world, cuts[c].batch_size);
        struct train_job job = one->job;
        job.world = cuts[c].world;
        job.batch_size = cuts[c].batch_size;
        job.batch_tokens = 24 * CONTEXT;
        job.no_sync = cuts[c].no_sync;
        job.plan.cpu_offload = cuts[c].offload;
        other.job = job;
        train_without_error(&other);
        expect_near(one, &other, 1e-6);
        group_reset(&other);
    }
    for (int clips = 0; clips < 2; clips++) group_reset(&ones[clips]);
}

/* If no target of a step counts, parameters and optimizer stay unchanged, and the mean is no
 * number. A run of such steps has not trained. */
TEST(nothing_counts)
{
    static struct group group;
    struct buf files[2];
    for (int clips = 0; clips < 2; clips++) {
        for (int longer = 0; longer < 2; longer++) {
            init_group(&group, 2, 3);
            mask(&group.job, 1e-12);
            group.job.evaluate = false;
            group.job.plan.norm = clips ? NORM_2 : NORM_NONE;
            group.job.max_norm = clips ? 1 : 0;
            group.job.max_steps = longer ? 9 : 1;
            group.job.log_interval = 1;
            group.job.batch_tokens = 12 * CONTEXT;
            group.order_at[0] = longer ? 18 : 2; /* two batches in a step */
            group.order_count = 1;
            group_run(&group);
            const struct member *member = &group.members[1];
            ck_assert_int_eq(member->metric_count, longer ? 9 : 1);
            ck_assert_uint_eq(member->metrics[member->metric_count - 1].skipped_steps,
                              longer ? 9 : 1);
            for (int i = 0; i < member->metric_count; i++)
                ck_assert(isnan(member->metrics[i].loss));
            for (int rank = 0; rank < 2; rank++) {
                status_t status = group.members[rank].status;
                ck_assert_int_eq(status_code(status), STATUS_FAILED_PRECONDITION);
                ck_assert_str_eq(status_message(status),
                                 longer ? "no step of 9 trained: data.mask_probability chose no "
                                          "token"
                                        : "no step of 1 trained: data.mask_probability chose no "
                                          "token");
            }
            ck_assert_int_eq(member->finished, 0);
            files[longer] = group_pull_file(&group, 0);
            group_reset(&group);
        }
        /* The headers name the steps. */
        uint64_t header;
        memcpy(&header, files[0].data, sizeof header);
        size_t at = sizeof header + (size_t)header;
        ck_assert_uint_eq(files[0].length, files[1].length);
        ck_assert_uint_gt(files[0].length, at);
        ck_assert_int_eq(memcmp(files[0].data + at, files[1].data + at, files[0].length - at), 0);
        buf_deinit(&files[0]);
        buf_deinit(&files[1]);
    }
}

/* Units changed between steps, and between the batches of a validation: the same bits. */
TEST(other_units)
{
    static struct group plain, changed;
    static const struct wrap_policy none = {.kind = WRAP_NONE}, blocks = {.kind = WRAP_AUTO};
    init_group(&plain, 2, 6);
    train_without_error(&plain);
    init_group(&changed, 2, 6);
    changed.order_count = 3;
    changed.order_at[0] = 7;
    changed.order_at[1] = 17; /* step 15's validation has four batches */
    changed.order_at[2] = 30;
    changed.wraps[0] = changed.wraps[2] = &none;
    changed.wraps[1] = &blocks;
    train_without_error(&changed);
    for (int i = 0; i < 3; i++) {
        ck_assert_ptr_null(changed.members[1].changes[i].refused);
        ck_assert_uint_gt(changed.members[1].changes[i].peak_bytes, 0);
    }
    ck_assert_uint_eq(changed.members[0].orders[1].step, 15);
    expect_near(&plain, &changed, 0);
    group_reset(&plain);
    group_reset(&changed);
}

static int take_set(const struct member *member, const char *set, struct train_validation *out)
{
    int count = 0;
    for (int i = 0; i < member->validation_count; i++)
        if (strcmp(member->validations[i].set, set) == 0) out[count++] = member->validations[i];
    return count;
}

static void expect_curve(const struct member *one, const char *set, const struct member *other,
                         int count)
{
    struct train_validation a[GROUP_MAX_RECORDS], b[GROUP_MAX_RECORDS];
    ck_assert_int_eq(take_set(one, set, a), count);
    ck_assert_int_eq(take_set(other, "", b), count);
    for (int i = 0; i < count; i++) {
        ck_assert_uint_eq(a[i].step, b[i].step);
        ck_assert_uint_eq(a[i].tokens, b[i].tokens);
        ck_assert(a[i].loss == b[i].loss);
    }
}

/* They change nothing of the training; the curve of each is that of a job that has no other. */
TEST(held_out_sets)
{
    static struct group plain, named, own;
    char file[] = "/tmp/fsdpd-test-held-out-XXXXXX";
    uint16_t ids[1000];
    for (int i = 0; i < 1000; i++) ids[i] = (uint16_t)((i * i + 7) % VOCABULARY);
    int fd = mkstemp(file);
    ck_assert_int_eq(write(fd, ids, sizeof ids), sizeof ids);
    close(fd);
    const struct held_out sets[] = {{.name = "code", .path = file, .every_steps = 10, .batches = 1},
                                    {.name = "all", .path = file}};
    init_group(&plain, 2, 6);
    plain.job.validation_path = path; /* so that all of it is for training */
    train_without_error(&plain);
    init_group(&named, 2, 6);
    named.job.validation_path = path;
    named.job.held_out = sets;
    named.job.held_out_count = 2;
    train_without_error(&named);
    init_group(&own, 2, 6);
    own.job.validation_path = file;
    own.job.evaluate_interval = 10;
    own.job.evaluate_batches = 1;
    train_without_error(&own);
    const struct member *member = &named.members[0];
    ck_assert_int_eq(member->metric_count, plain.members[0].metric_count);
    for (int i = 0; i < member->metric_count; i++)
        ck_assert(member->metrics[i].loss == plain.members[0].metrics[i].loss);
    expect_curve(member, "", &plain.members[0], 3);
    expect_curve(member, "code", &own.members[0], 4);
    struct train_validation all[GROUP_MAX_RECORDS];
    ck_assert_int_eq(take_set(member, "all", all), 1);
    ck_assert_uint_eq(all[0].step, 40);
    ck_assert_uint_eq(all[0].tokens, 62 * CONTEXT);
    group_reset(&plain);
    group_reset(&named);
    group_reset(&own);
    unlink(file);
}

/* A file too large to be checked before: the error comes from rank 1's loader, and ends all
 * ranks. */
TEST(bad_token_in_the_middle)
{
    int fd = open(path, O_WRONLY);
    off_t size = ((off_t)1 << 29) + 4096; /* holes: zeros */
    ck_assert(fd >= 0 && ftruncate(fd, 0) == 0 && ftruncate(fd, size) == 0);
    /* the 23rd batch of rank 1, behind the tokens that a plan reads: windows 270 to 275 */
    const uint16_t bad = VOCABULARY;
    ck_assert_int_eq(pwrite(fd, &bad, sizeof bad, (272 * CONTEXT + 3) * (off_t)sizeof bad), 2);
    close(fd);
    static struct group group;
    init_group(&group, 2, 6);
    group.job.shuffle = false;
    group.job.evaluate = false;
    group_run(&group);
    status_t status = group.members[1].status;
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_msg(strstr(status_message(status), "token 4355 (byte 8710) is 37, but the model's "
                                                 "vocabulary has the ids 0 to 36") != NULL,
                  "%s", status_message(status));
    ck_assert_ptr_nonnull(group.members[0].status);
    ck_assert_uint_eq(group.members[1].last_step, 22);
    group_reset(&group);
}

/* 11 windows, 10 to a step: 50 epochs are 55 steps, whatever the binary value of 1.1. */
TEST(whole_steps)
{
    ck_assert_int_eq(truncate(path, (11 * CONTEXT + 1) * (off_t)sizeof(uint16_t)), 0);
    static struct group group;
    init_group(&group, 1, 10);
    group.job.max_steps = 0;
    group.job.epochs = 50;
    group.job.shuffle = false;
    group.job.validation_fraction = 0;
    group.job.evaluate = false;
    train_without_error(&group);
    ck_assert_uint_eq(group.members[0].steps, 55);
    ck_assert_uint_eq(group.members[0].last_step, 55);
    group_reset(&group);
    group.job.epochs = 51;
    group.job.checkpoints.every_epochs = 50;
    train_without_error(&group);
    ck_assert_uint_eq(group.members[0].last_step, 57);
    ck_assert_int_eq(group.members[0].captured_count, 1);
    ck_assert_uint_eq(capture_step(group.members[0].captured[0]), 55);
    group_reset(&group);
}

/* Between two steps, on rank 0's thread. */
static status_t cut_file(struct member *member, int order, const struct wrap_policy **policy)
{
    (void)order;
    (void)policy;
    if (member->rank == 0) ck_assert_int_eq(truncate(path, 64), 0);
    return NULL;
}

/* The file is truncated during training: an error of the job, on all ranks. */
TEST(cut_file)
{
    static struct group group;
    static const struct wrap_policy blocks = {.kind = WRAP_AUTO};
    init_group(&group, 2, 6);
    group.order_count = 1;
    group.order_at[0] = 5;
    group.wraps[0] = &blocks;
    group.instead = cut_file;
    group_run(&group);
    bool reported = false;
    for (int rank = 0; rank < 2; rank++) {
        status_t status = group.members[rank].status;
        ck_assert_ptr_nonnull(status);
        ck_assert_uint_ge(group.members[rank].last_step, 5);
        ck_assert_uint_lt(group.members[rank].last_step, 40);
        reported =
            reported || (status_code(status) == STATUS_FAILED_PRECONDITION &&
                         strstr(status_message(status), "was cut while it was read") != NULL);
    }
    ck_assert(reported);
    group_reset(&group);
}

static void expect_refusal(const struct train_job *job, const char *message)
{
    struct device *device;
    struct train_session *session;
    ck_assert_ptr_null(device_open("cpu", 1, &device));
    status_t status = train_session_new(job, device, 0, false, &session);
    ck_assert_msg(status_code(status) == STATUS_INVALID_ARGUMENT, "not refused: %s", message);
    ck_assert_msg(strstr(status_message(status), message) != NULL, "%s", status_message(status));
    status_free(status);
    device_close(device);
}

TEST(refusals)
{
    static struct group group;
    init_group(&group, 1, 12);
    struct train_job job = group.job;
    job.context = 17;
    expect_refusal(&job, "data.context: expected at most the 16 positions of the model, found 17");
    job = group.job;
    job.batch_tokens = 200;
    expect_refusal(&job, "the nearest to 200 are 192 or 384");
    job = group.job;
    job.max_steps = 0;
    expect_refusal(&job, "train.max_steps: expected a number of steps");
    job = group.job;
    job.model_text = group_sum_model;
    job.model_length = strlen(group_sum_model);
    expect_refusal(&job, "the model's input are images, but data.format says tokens");
    job = group.job;
    job.data_format = DATA_IMAGES;
    job.data_dir = "/tmp";
    job.epochs = 1;
    expect_refusal(&job, "the model's input are tokens, but data.format says images");
    job = group.job;
    job.token_encoding = TOKENS_UINT32;
    expect_refusal(&job, "but the model's vocabulary has the ids 0 to 36");
    group_reset(&group);
}

/* A plan without data: the steps are known, the blocks are units, and the plan says so. */
TEST(plan)
{
    static struct group group;
    init_group(&group, 2, 6);
    struct train_job job = group.job;
    job.data_path = NULL;
    job.context = 8;
    struct device *device;
    struct train_session *session;
    ck_assert_ptr_null(device_open("cpu", 1, &device));
    ck_assert_ptr_null(train_session_new(&job, device, 0, true, &session));
    ck_assert_uint_eq(train_session_steps(session), 40);
    const struct unit_set *units = train_session_units(session);
    ck_assert_int_eq(units->unit_count, 3);
    ck_assert_str_eq(units->units[0].name, "h.0");
    ck_assert_ptr_nonnull(strstr(units->notes, "each of the 2 blocks of the type Block is a unit"));
    train_session_free(session);
    device_close(device);
    group_reset(&group);
}
