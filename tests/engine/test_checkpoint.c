/*
 * Checkpoints with ranks as threads: a resumed run ends with the bits of an undisturbed one, also
 * in another layout; another number of ranks continues from the same values; damage is reported,
 * and an older checkpoint used; a failed write leaves the earlier checkpoint.
 */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/tree.h"
#include "checkpoint/folder.h"
#include "session_group.h"
#include "tests/testing.h"

static const char *const hidden[] = {"hidden"}, *const conv_and_out[] = {"conv", "out"};
static const struct model_lora lora = {.rank = 2, .alpha = 4, .targets = {hidden, 1}}, *adapter;
static char folder[96];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "%s/checkpoints", group_data);
}

static void remove_folder(void)
{
    ck_assert_ptr_null(tree_remove(folder));
}

static void init(struct group *group, const char *model, int world)
{
    group_init(group, model, group_data, world);
    group->job.lora = adapter;
    group->job.epochs = 2;
    group->job.log_interval = 3;
    group->job.checkpoints = (struct checkpoint_settings){.folder = folder, .run = "digits-1@7"};
}

static void resume(struct group *group)
{
    group->job.checkpoints.every_steps = 0;
    group->job.checkpoints.every_epochs = 0;
    group->job.checkpoints.resume = group->job.checkpoints.must_resume = true;
    group->job.checkpoints.attempt = 2;
}

static void train(struct group *group)
{
    group_run(group);
    group_expect_success(group);
}

static void train_on(struct group *group)
{
    resume(group);
    train(group);
}

/* The final state of a run. */
struct ending {
    struct buf file; /* the final state_dict */
    struct train_metrics metrics[GROUP_MAX_RECORDS];
    struct train_epoch epochs[GROUP_MAX_RECORDS];
    int metric_count, epoch_count;
};

static struct ending end_of(struct group *group)
{
    struct ending ending = {.file = group_pull_file(group, -1),
                            .metric_count = group->members[0].metric_count,
                            .epoch_count = group->members[0].epoch_count};
    memcpy(ending.metrics, group->members[0].metrics, sizeof ending.metrics);
    memcpy(ending.epochs, group->members[0].epochs, sizeof ending.epochs);
    return ending;
}

/* The resumed run's figures are the last ones of the other. */
static void expect_same_end(const struct ending *whole, const struct ending *part)
{
    ck_assert_uint_eq(whole->file.length, part->file.length);
    ck_assert_mem_eq(whole->file.data, part->file.data, whole->file.length);
    ck_assert_int_gt(part->metric_count, 0);
    for (int i = 1; i <= part->metric_count; i++) {
        const struct train_metrics *a = &whole->metrics[whole->metric_count - i];
        const struct train_metrics *b = &part->metrics[part->metric_count - i];
        ck_assert_uint_eq(a->step, b->step);
        ck_assert(a->loss == b->loss && a->learning_rate == b->learning_rate);
        ck_assert(a->epoch == b->epoch);
    }
    for (int i = 1; i <= part->epoch_count; i++) {
        const struct train_epoch *a = &whole->epochs[whole->epoch_count - i];
        const struct train_epoch *b = &part->epochs[part->epoch_count - i];
        ck_assert_uint_eq(a->epoch, b->epoch);
        ck_assert(a->train_loss == b->train_loss && a->test_loss == b->test_loss);
        ck_assert_uint_eq(a->correct, b->correct);
    }
}

static const struct {
    int world;
    enum strategy strategy;
    uint64_t every_steps;
    uint32_t every_epochs, accumulate;
    enum optimizer_kind optimizer;
    enum state_dtype state;
} undisturbed[] = {
    {1, STRATEGY_FULL_SHARD, 10, 0, 1, OPTIMIZER_ADADELTA, STATE_F32},
    {2, STRATEGY_FULL_SHARD, 10, 0, 1, OPTIMIZER_ADAMW, STATE_F32},
    {3, STRATEGY_FULL_SHARD, 4, 0, 3, OPTIMIZER_ADADELTA, STATE_F32},
    {2, STRATEGY_FULL_SHARD, 0, 1, 1, OPTIMIZER_ADADELTA, STATE_F32},
    /* the last step of an epoch, before it is evaluated: 16 steps of 20 for 301 samples per rank */
    {2, STRATEGY_FULL_SHARD, 16, 1, 1, OPTIMIZER_ADADELTA, STATE_F32},
    {2, STRATEGY_NO_SHARD, 7, 0, 1, OPTIMIZER_SGD, STATE_F32},
    {4, STRATEGY_HYBRID_SHARD, 5, 0, 1, OPTIMIZER_ADADELTA, STATE_F32},
    {8, STRATEGY_FULL_SHARD, 3, 0, 1, OPTIMIZER_ADADELTA, STATE_F32},
    {3, STRATEGY_FULL_SHARD, 10, 0, 1, OPTIMIZER_ADAMW, STATE_INT8},
    {4, STRATEGY_HYBRID_SHARD, 9, 0, 1, OPTIMIZER_ADAMW, STATE_INT8},
    {3, STRATEGY_FULL_SHARD, 10, 0, 1, OPTIMIZER_ADAMW, STATE_BF16},
    {3, STRATEGY_FULL_SHARD, 10, 0, 1, OPTIMIZER_MUON, STATE_F32},
    {3, STRATEGY_FULL_SHARD, 10, 0, 1, OPTIMIZER_ADAFACTOR, STATE_F32},
    {3, STRATEGY_FULL_SHARD, 7, 0, 1, OPTIMIZER_ADAMW, STATE_F32}, /* with an adapter */
};

static const struct optimizer_step others = {
    .kind = OPTIMIZER_ADAMW, .lr = 0.5, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
static const struct optimizer_step muon = {
    .kind = OPTIMIZER_MUON, .lr = 0.01, .momentum = 0.9, .ns_steps = 5, .others = &others};

TESTS_BELOW(.timeout = 120, .set_up = make_folder, .tear_down = remove_folder,
            .set_up_once = group_draw_digits, .tear_down_once = group_remove_digits);

LOOP_TEST(resumed_is_undisturbed, 0, COUNT_OF(undisturbed))
{
    struct group group;
    if ((size_t)_i + 1 == COUNT_OF(undisturbed)) adapter = &lora;
    init(&group, group_mean_model, undisturbed[_i].world);
    group.job.plan.strategy = undisturbed[_i].strategy;
    group.job.accumulation_steps = undisturbed[_i].accumulate;
    group.job.optimizer.kind = undisturbed[_i].optimizer;
    if (undisturbed[_i].optimizer != OPTIMIZER_ADADELTA)
        group.job.optimizer =
            (struct optimizer_step){.kind = undisturbed[_i].optimizer,
                                    .state = undisturbed[_i].state,
                                    .lr = 0.01,
                                    .momentum = 0.9,
                                    .beta1 = 0.9,
                                    .beta2 = 0.99,
                                    .eps = 1e-8};
    if (undisturbed[_i].optimizer == OPTIMIZER_MUON) group.job.optimizer = muon;
    if (undisturbed[_i].optimizer == OPTIMIZER_ADAFACTOR) group.job.optimizer = group_adafactor;
    group.job.plan.rounded = undisturbed[_i].state == STATE_BF16;
    if (group.job.plan.rounded) group.job.plan.gathered_dtype = DTYPE_BF16;
    group.job.checkpoints.every_steps = undisturbed[_i].every_steps;
    group.job.checkpoints.every_epochs = undisturbed[_i].every_epochs;
    train(&group);
    struct ending whole = end_of(&group);
    ck_assert_int_gt(group.members[0].captured_count, 0);
    int captured = group.members[0].captured_count;
    for (int index = 0; index < captured; index++) {
        remove_folder();
        struct group again;
        init(&again, group_mean_model, undisturbed[_i].world);
        again.job = group.job;
        uint64_t step = capture_step(group.members[0].captured[index]);
        group_save_without_error(&group, index, folder, 0);
        train_on(&again);
        for (int rank = 0; rank < again.job.world; rank++) {
            ck_assert_uint_eq(again.members[rank].resumed_step, step);
            ck_assert_str_eq(again.members[rank].note, "");
            ck_assert_uint_eq(again.members[rank].memory_peak, again.members[rank].memory_planned);
        }
        if (step < group.members[0].last_step) {
            struct ending part = end_of(&again);
            expect_same_end(&whole, &part);
            buf_deinit(&part.file);
        }
        group_reset(&again);
    }
    buf_deinit(&whole.file);
    group_reset(&group);
}

static const struct wrap_unit_spec
    whole_unit[] = {{.modules = hidden, .module_count = 1, .shard_world = 1}},
    sharded_units[] = {
        {.modules = hidden, .module_count = 1, .shard_world = 2},
        {.modules = conv_and_out, .module_count = 2, .shard_world = 2, .reshard = RESHARD_NO}};

/* One group trains to a step, another to the end: the result of a third that did it all. */
static const struct {
    int world;
    enum strategy strategy;
    struct wrap_policy wrap;
} layouts[] = {
    {2, STRATEGY_FULL_SHARD, {.kind = WRAP_NONE}},
    {2, STRATEGY_NO_SHARD, {.kind = WRAP_SIZE, .min_num_params = 1000}},
    {2, STRATEGY_SHARD_GRAD_OP, {.kind = WRAP_SIZE, .min_num_params = 100}},
    {2, STRATEGY_FULL_SHARD, {.kind = WRAP_UNITS, .units = whole_unit, .unit_count = 1}},
    {2, STRATEGY_NO_SHARD, {.kind = WRAP_UNITS, .units = sharded_units, .unit_count = 2}},
};

static const struct optimizer_step packed_adamw = {.kind = OPTIMIZER_ADAMW,
                                                   .state = STATE_INT8,
                                                   .lr = 0.01,
                                                   .beta1 = 0.9,
                                                   .beta2 = 0.99,
                                                   .eps = 1e-8};

/* From the first layout to another, and back; then both with state in 8 bits, and in bf16; to and
 * from some with rows and columns, and of whole matrices. */
LOOP_TEST(another_layout, 0, 6 * COUNT_OF(layouts) + 8, .sanitized_every = 3)
{
    struct group group, again;
    size_t layout = (size_t)_i / 2 % COUNT_OF(layouts);
    init(&group, group_mean_model, 2);
    init(&again, group_mean_model, 2);
    if ((size_t)_i >= 2 * COUNT_OF(layouts)) group.job.optimizer = packed_adamw;
    if ((size_t)_i >= 4 * COUNT_OF(layouts)) group.job.optimizer.state = STATE_BF16;
    if ((size_t)_i >= 6 * COUNT_OF(layouts)) group.job.optimizer = group_adafactor;
    if ((size_t)_i >= 6 * COUNT_OF(layouts) + 4) group.job.optimizer = muon;
    group.job.plan.rounded = group.job.optimizer.state == STATE_BF16;
    if (group.job.plan.rounded) group.job.plan.gathered_dtype = DTYPE_BF16;
    again.job.plan = group.job.plan;
    again.job.optimizer = group.job.optimizer;
    struct group *other = _i % 2 == 0 ? &again : &group;
    other->job.plan.strategy = layouts[layout].strategy;
    other->job.wrap = layouts[layout].wrap;
    group.job.checkpoints.every_steps = 9;
    train(&group);
    struct ending whole = end_of(&group);
    group_save_without_error(&group, 1, folder, 0);
    train_on(&again);
    ck_assert_uint_eq(again.members[1].resumed_step, 18);
    struct ending part = end_of(&again);
    /* Units have another order in the file; loss and counts show the same, bit by bit. */
    ck_assert_int_eq(part.epoch_count, 1);
    ck_assert(part.epochs[0].train_loss == whole.epochs[1].train_loss);
    ck_assert(part.epochs[0].test_loss == whole.epochs[1].test_loss);
    buf_deinit(&whole.file);
    buf_deinit(&part.file);
    group_reset(&again);
    group_reset(&group);
}

/* Another number of ranks must read all values, and complete the remaining data. */
LOOP_TEST(another_world, 0, 5)
{
    static const int worlds[] = {1, 2, 3, 8, 3};
    if (_i == 4) adapter = &lora;
    struct group group, again;
    init(&group, group_mean_model, 4);
    group.job.optimizer = (struct optimizer_step){
        .kind = OPTIMIZER_ADAMW, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
    group.job.dropout = false;
    group.job.batch_size = 12; /* 151 samples per rank: 13 steps */
    group.job.max_steps = 17;
    group.job.checkpoints.every_steps = 17;
    train(&group);
    struct buf expected = group_pull_file(&group, -1);
    group_save_without_error(&group, 0, folder, 0);
    init(&again, group_mean_model, worlds[_i]);
    again.job.optimizer = group.job.optimizer;
    again.job.dropout = false;
    again.job.batch_size = worlds[_i] == 3 ? 16 : (uint32_t)(48 / worlds[_i]);
    again.job.max_steps = 17;
    train_on(&again);
    ck_assert_uint_eq(again.members[0].resumed_step, 17);
    ck_assert_int_eq(again.members[0].epoch_count, 1); /* the second one: it is evaluated */
    ck_assert_uint_eq(again.members[0].epochs[0].step, 17);
    double done = again.members[0].epochs[0].epochs_done; /* 13 steps, and 4 of 13 */
    ck_assert_msg(done > 1.28 && done < 1.34, "%g epochs", done);
    struct buf found = group_pull_file(&again, -1);
    ck_assert_uint_eq(expected.length, found.length);
    ck_assert_mem_eq(expected.data, found.data, expected.length);
    buf_deinit(&found);
    group_reset(&again);

    /* To the end: 13 steps of 48 samples in each of two epochs, whichever world does them. */
    init(&again, group_mean_model, worlds[_i]);
    again.job.optimizer = group.job.optimizer;
    again.job.batch_size = worlds[_i] == 3 ? 16 : (uint32_t)(48 / worlds[_i]);
    train_on(&again);
    ck_assert_uint_eq(again.members[0].last_step, 26);
    ck_assert_uint_eq(again.members[0].epochs[0].epoch, 2);
    ck_assert_uint_eq(again.members[0].epochs[0].step, 26);
    ck_assert(again.members[0].epochs[0].epochs_done == 2);
    group_reset(&again);

    /* Half the samples per step: 26 steps per epoch, of which 8 are done. */
    init(&again, group_mean_model, worlds[_i]);
    again.job.optimizer = group.job.optimizer;
    again.job.batch_size = worlds[_i] == 3 ? 8 : (uint32_t)(24 / worlds[_i]);
    train_on(&again);
    ck_assert_uint_eq(again.members[0].last_step, 17 + 26 - 8);
    ck_assert(again.members[0].metrics[again.members[0].metric_count - 1].epoch == 2);
    group_reset(&again);
    buf_deinit(&expected);
    group_reset(&group);
}

/* Another world with other batch boundaries: a step that begins in the middle of one of its own is
 * not subtracted from the epoch's end. */
TEST(another_world_accumulates)
{
    struct group group, again;
    init(&group, group_mean_model, 1);
    group.job.epochs = 1;
    group.job.accumulation_steps = 2;
    group.job.max_steps = 1; /* 40 of 601 samples */
    group.job.checkpoints.every_steps = 1;
    train(&group);
    group_save_without_error(&group, 0, folder, 0);
    init(&again, group_mean_model, 2);
    again.job.epochs = 1;
    again.job.accumulation_steps = 2;
    train_on(&again);
    const struct member *member = &again.members[0];
    /* 281 samples per rank are left: 15 batches of 20, two to a step */
    ck_assert_uint_eq(member->last_step, 1 + 8);
    ck_assert(member->metrics[member->metric_count - 1].epoch == 1);
    ck_assert_int_eq(member->epoch_count, 1);
    group_reset(&again);
    group_reset(&group);
}

/* The schedule continues from the completed fraction to its end. */
TEST(another_world_on_schedule)
{
    struct group group, again;
    init(&group, group_mean_model, 4);
    group.job.batch_size = 6; /* 151 samples per rank: 26 steps */
    group.job.schedule.kind = SCHEDULE_LINEAR;
    group.job.max_steps = 26;
    group.job.checkpoints.every_steps = 26;
    train(&group);
    group_save_without_error(&group, 0, folder, 0);
    init(&again, group_mean_model, 2);
    again.job.batch_size = 24; /* 301 samples per rank: 13 steps */
    again.job.schedule.kind = SCHEDULE_LINEAR;
    again.job.log_interval = 1;
    train_on(&again);
    const struct member *member = &again.members[0];
    ck_assert_uint_eq(member->last_step, 26 + 13);
    ck_assert_int_eq(member->metric_count, 13);
    for (int i = 0; i < 13; i++) {
        double rate = member->metrics[i].learning_rate, expected = 1 - (13 + i) / 26.0;
        ck_assert_msg(fabs(rate - expected) < 1e-12, "step %d: %g", 27 + i, rate);
        ck_assert(i == 12 || member->metrics[i].seconds_left > 0);
    }
    /* One evaluation for each of two epochs, and none after it. */
    ck_assert(member->metrics[12].epoch == 2 && member->metrics[12].seconds_left == 0);
    group_reset(&again);
    group_reset(&group);
}

/* Damage. */

/* There are that many; 0: any number but none. */
static struct folder_entry *list(int expected)
{
    struct folder opened;
    struct folder_entry *entries;
    int count;
    ck_assert_ptr_null(folder_open(NULL, folder, false, &opened));
    ck_assert_ptr_null(folder_list(&opened, &entries, &count));
    folder_close(&opened);
    ck_assert(expected > 0 ? count == expected : count > 0);
    return entries;
}

static void expect_one(uint64_t step)
{
    struct folder_entry *entries = list(1);
    ck_assert_uint_eq(entries[0].step, step);
    free(entries);
}

static char *begin(uint32_t attempt, uint64_t number)
{
    struct folder opened, temporary;
    ck_assert_ptr_null(folder_open(NULL, folder, true, &opened));
    ck_assert_ptr_null(folder_begin(&opened, attempt, number, &temporary));
    char *path = mem_strdup(temporary.path);
    folder_close(&temporary);
    folder_close(&opened);
    return path;
}

static char *newest(void)
{
    struct folder_entry *entries = list(0);
    char *path = file_path_join(folder, entries[0].name);
    free(entries);
    return path;
}

static void spoil(const char *file, int how)
{
    char *directory = newest(), *path = file_path_join(directory, file);
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    int fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    if (how == 0) ck_assert_int_eq(ftruncate(fd, info.st_size - 3), 0);
    if (how == 1) { /* the last byte, of a number */
        char byte;
        ck_assert_int_eq(pread(fd, &byte, 1, info.st_size - 1), 1);
        byte = (char)(byte ^ 1);
        ck_assert_int_eq(pwrite(fd, &byte, 1, info.st_size - 1), 1);
    }
    if (how == 2) ck_assert_int_eq(unlink(path), 0);
    if (how == 3) ck_assert_int_eq(pwrite(fd, "{}", 2, 0), 2);
    close(fd);
    free(path);
    free(directory);
}

static const struct {
    const char *file;
    int how;
    const char *words;
} damages[] = {
    {"rank-00000.safetensors", 0, "bytes, not the"},
    {"rank-00001.safetensors", 0, "bytes, not the"},
    {"rank-00001.safetensors", 1, "damaged: its checksum is"},
    {"rank-00000.safetensors", 2, "cannot open"},
    {"manifest.json", 2, "cannot open"},
    {"manifest.json", 0, "manifest.json"},
    {"manifest.json", 3, "manifest.json"},
};

LOOP_TEST(damage, 0, COUNT_OF(damages))
{
    struct group group, again;
    init(&group, group_mean_model, 2);
    group.job.checkpoints.every_steps = 9;
    train(&group);
    struct ending whole = end_of(&group);
    for (int i = 0; i < 2; i++) group_save_without_error(&group, i, folder, 0);
    spoil(damages[_i].file, damages[_i].how);
    init(&again, group_mean_model, 2);
    train_on(&again);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_uint_eq(again.members[rank].resumed_step, 9);
        ck_assert_ptr_nonnull(strstr(again.members[rank].note, damages[_i].words));
        ck_assert_ptr_nonnull(strstr(again.members[rank].note, "step-000000000018"));
    }
    struct ending part = end_of(&again);
    expect_same_end(&whole, &part);
    buf_deinit(&part.file);
    group_reset(&again);

    /* The older one, too: the run does not start over, unless that is allowed. */
    char *path = newest();
    ck_assert_ptr_null(tree_remove(path));
    free(path);
    spoil(damages[_i].file, damages[_i].how);
    init(&again, group_mean_model, 2);
    resume(&again);
    group_run(&again);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(status_code(again.members[rank].status), STATUS_DATA_LOSS);
        ck_assert_ptr_nonnull(
            strstr(status_message(again.members[rank].status), damages[_i].words));
    }
    group_reset(&again);
    init(&again, group_mean_model, 2);
    resume(&again);
    again.job.checkpoints.must_resume = false;
    train(&again);
    ck_assert_str_eq(again.members[0].resumed_name, "");
    ck_assert_ptr_nonnull(strstr(again.members[0].note, damages[_i].words));
    part = end_of(&again);
    ck_assert_mem_eq(part.file.data, whole.file.data, whole.file.length);
    buf_deinit(&part.file);
    group_reset(&again);
    buf_deinit(&whole.file);
    group_reset(&group);
}

TEST(every_damaged_checkpoint_is_named)
{
    struct group group, again;
    init(&group, group_mean_model, 2);
    group.job.checkpoints.every_steps = 9;
    train(&group);
    for (int i = 0; i < 2; i++) group_save_without_error(&group, i, folder, 0);
    spoil("manifest.json", 2);
    char *path = newest(), *away = file_path_join(folder, "away");
    ck_assert_int_eq(rename(path, away), 0);
    spoil("rank-00000.safetensors", 0);
    ck_assert_int_eq(rename(away, path), 0);
    init(&again, group_mean_model, 2);
    resume(&again);
    group_run(&again);
    const char *message = status_message(again.members[0].status);
    const char *first = strstr(message, ": step-000000000018 cannot be read ("),
               *second = strstr(message, "); step-000000000009 cannot be read (");
    ck_assert_msg(first != NULL && second > first, "%s", message);
    free(path);
    free(away);
    group_reset(&again);
    group_reset(&group);
}

/* Checkpoints of another run are named, and neither resumed nor removed. */
TEST(foreign)
{
    struct group group, again;
    init(&group, group_mean_model, 2);
    group.job.checkpoints.every_steps = 9;
    group.job.checkpoints.run = "digits-1@6";
    train(&group);
    for (int i = 0; i < 2; i++) group_save_without_error(&group, i, folder, 0);
    group_reset(&group);

    init(&again, group_mean_model, 2);
    resume(&again);
    group_run(&again);
    for (int rank = 0; rank < 2; rank++) {
        const status_t status = again.members[rank].status;
        ck_assert_int_eq(status_code(status), STATUS_FAILED_PRECONDITION);
        ck_assert_ptr_nonnull(strstr(status_message(status), "another run, digits-1@6"));
    }
    group_reset(&again);
    init(&again, group_mean_model, 2);
    resume(&again);
    again.job.checkpoints.must_resume = false;
    again.job.checkpoints.every_steps = 9;
    again.job.checkpoints.every_epochs = 1;
    train(&again);
    ck_assert_str_eq(again.members[0].resumed_name, "");
    ck_assert_ptr_nonnull(strstr(again.members[0].note, "another run, digits-1@6"));
    ck_assert_int_eq(again.members[0].captured_count, 5); /* 9, 16, 18, 27, 32 */
    for (int i = 0; i < 5; i++) group_save_without_error(&again, i, folder, 2);
    static const char *const expected[] = {"step-000000000032", "step-000000000027",
                                           "step-000000000018", "step-000000000009"};
    struct folder_entry *entries = list(4);
    for (int i = 0; i < 4; i++) ck_assert_str_eq(entries[i].name, expected[i]);
    free(entries);
    group_reset(&again);
}

/* The newest one does not fit the job, or contradicts its name: the older one is used. */
static const struct {
    const char *words; /* of the note */
    enum optimizer_kind optimizer;
    const char *from, *to; /* in the model */
} misfits[] = {
    {"with the optimizer sgd, but the job has adadelta", OPTIMIZER_SGD, NULL, NULL},
    {"has no parameter", OPTIMIZER_ADADELTA, "hidden", "middle"},
    {"numbers of", OPTIMIZER_ADADELTA, "32", "48"},
    {"is of step 18", OPTIMIZER_ADADELTA, NULL, NULL}, /* it is renamed */
    {"with the optimizer muon and adamw, but the job has adadelta", OPTIMIZER_MUON, NULL, NULL},
    {"with the optimizer adafactor, but the job has adadelta", OPTIMIZER_ADAFACTOR, NULL, NULL},
    {"with the optimizer's state in int8, but the job has f32", OPTIMIZER_ADAMW, NULL, NULL},
    {"in bf16, but the job keeps that in f32", OPTIMIZER_ADADELTA, NULL, NULL},
};

/* The small model with another word of the same length in it. Caller frees. */
static char *change_model(const char *from, const char *to)
{
    char *model = mem_strdup(group_mean_model);
    for (char *at = model; from != NULL && (at = strstr(at, from)) != NULL;)
        memcpy(at, to, strlen(to));
    return model;
}

LOOP_TEST(misfit, 0, COUNT_OF(misfits))
{
    struct group group, again;
    struct optimizer_step settings;
    init(&group, group_mean_model, 2);
    group.job.checkpoints.every_steps = 9;
    if (misfits[_i].optimizer == OPTIMIZER_ADAMW) {
        group.job.optimizer = packed_adamw;
        group.job.optimizer.state = STATE_F32;
    }
    settings = group.job.optimizer;
    train(&group);
    struct ending whole = end_of(&group);
    group_save_without_error(&group, 0, folder, 0);
    group_reset(&group);
    char *model = change_model(misfits[_i].from, misfits[_i].to);
    init(&group, model, 2);
    group.job.checkpoints.every_steps = 18;
    group.job.plan.rounded = strstr(misfits[_i].words, "in bf16") != NULL;
    if (group.job.plan.rounded) group.job.plan.gathered_dtype = DTYPE_BF16;
    if (misfits[_i].optimizer == OPTIMIZER_SGD)
        group.job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_SGD, .lr = 0.01};
    if (misfits[_i].optimizer == OPTIMIZER_ADAMW) group.job.optimizer = packed_adamw;
    if (misfits[_i].optimizer == OPTIMIZER_MUON) group.job.optimizer = muon;
    if (misfits[_i].optimizer == OPTIMIZER_ADAFACTOR) group.job.optimizer = group_adafactor;
    train(&group);
    group_save_without_error(&group, 0, folder, 0);
    group_reset(&group);
    free(model);
    if (_i == 3) {
        char *path = newest(), *other = file_path_join(folder, "step-000000000019");
        ck_assert_int_eq(rename(path, other), 0);
        free(other);
        free(path);
    }
    init(&again, group_mean_model, 2);
    again.job.optimizer = settings;
    train_on(&again);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_uint_eq(again.members[rank].resumed_step, 9);
        ck_assert_msg(strstr(again.members[rank].note, misfits[_i].words) != NULL, "%s",
                      again.members[rank].note);
    }
    struct ending part = end_of(&again);
    expect_same_end(&whole, &part);
    buf_deinit(&part.file);
    buf_deinit(&whole.file);
    group_reset(&again);
}

TEST(same_step_again)
{
    struct group group;
    init(&group, group_mean_model, 2);
    group.job.checkpoints.every_steps = 9;
    for (int i = 0; i < 3; i++) {
        train(&group);
        group_save_without_error(&group, 0, folder, 3);
        group_reset(&group);
    }
    expect_one(9);
}

/* A rank whose write fails: all ranks learn it, nothing is left, the earlier checkpoint stays. */
LOOP_TEST(write_fails, 0, 3)
{
    struct group group;
    init(&group, group_mean_model, 3);
    group.job.checkpoints.every_steps = 5;
    train(&group);
    group_save_without_error(&group, 0, folder, 1);
    /* Another entry occupies the path that rank `_i` would write. */
    char *temporary = begin(0, 1), name[32];
    char *path = file_path_join(temporary, manifest_file_name(_i, name));
    ck_assert_int_eq(mkdir(path, 0755), 0);
    struct group_saving saving = {.folder = folder, .index = 1, .keep = 1};
    group_save(&group, &saving);
    for (int rank = 0; rank < 3; rank++) {
        char *words = mem_printf("rank %d: cannot make", _i);
        ck_assert_ptr_nonnull(saving.statuses[rank]);
        ck_assert_msg(strstr(status_message(saving.statuses[rank]), words) != NULL, "%s",
                      status_message(saving.statuses[rank]));
        ck_assert_ptr_null(saving.results[rank].path);
        status_free(saving.statuses[rank]);
        free(words);
    }
    ck_assert_int_ne(access(temporary, F_OK), 0);
    expect_one(5);
    free(path);
    free(temporary);
    /* The next one works. */
    group_save_without_error(&group, 2, folder, 1);
    expect_one(15);
    group_reset(&group);
}

static void lose_group(void *user, uint64_t step, struct buf *out)
{
    (void)step;
    (void)out;
    comm_abort(user, "a rank is lost");
}

/* The others are lost while rank 0 completes a checkpoint: it is there, and rank 0 says so. */
TEST(completed_alone)
{
    struct group group;
    init(&group, group_mean_model, 3);
    group.job.checkpoints.every_steps = 5;
    train(&group);
    struct group_saving saving = {.folder = folder, .keep = 1, .pack_reports = lose_group};
    group_save(&group, &saving);
    ck_assert_ptr_null(saving.statuses[0]);
    ck_assert(saving.results[0].unshared);
    ck_assert_ptr_nonnull(saving.results[0].path);
    free(saving.results[0].path);
    free(saving.results[0].removed);
    for (int rank = 1; rank < 3; rank++) {
        ck_assert_ptr_nonnull(saving.statuses[rank]);
        status_free(saving.statuses[rank]);
    }
    expect_one(5);
    group_reset(&group);
}

/*
 * Pruning spares a checkpoint written after a fallback: the damaged one of a later step is
 * superseded, and does not count among the kept ones.
 */
TEST(fallback_is_kept)
{
    struct group group, again;
    init(&group, group_mean_model, 2);
    group.job.checkpoints.every_steps = 9;
    train(&group);
    for (int i = 0; i < 2; i++) group_save_without_error(&group, i, folder, 0);
    group_reset(&group);
    spoil("rank-00001.safetensors", 1);
    init(&again, group_mean_model, 2);
    resume(&again);
    again.job.checkpoints.every_steps = 5;
    train(&again);
    ck_assert_uint_eq(again.members[0].resumed_step, 9);
    struct group_saving saving = {.folder = folder, .index = 0, .keep = 1};
    group_save(&again, &saving);
    const struct capture_result *result = &saving.results[0];
    ck_assert_uint_eq(result->step, 10);
    ck_assert_int_eq(result->removed_count, 2);
    ck_assert_uint_eq(result->removed[0], 18);
    ck_assert_uint_eq(result->removed[1], 9);
    ck_assert_int_eq(access(result->path, F_OK), 0);
    expect_one(10);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_ptr_null(saving.statuses[rank]);
        free(saving.results[rank].path);
        free(saving.results[rank].removed);
    }
    group_reset(&again);
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

/* Ranks with different directories: each removes what it wrote. */
TEST(not_shared)
{
    struct group group;
    init(&group, group_mean_model, 2);
    group.job.checkpoints.every_steps = 9;
    train(&group);
    char *apart = file_path_join(folder, "apart");
    struct group_saving saving = {.folder = folder, .apart = apart};
    group_save(&group, &saving);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(status_code(saving.statuses[rank]), STATUS_FAILED_PRECONDITION);
        ck_assert_ptr_nonnull(strstr(status_message(saving.statuses[rank]), "share"));
        status_free(saving.statuses[rank]);
    }
    ck_assert_int_eq(entries_in(apart), 0);
    ck_assert_int_eq(entries_in(folder), 1);
    free(apart);
    group_reset(&group);
}

/* A link at the path of the job's directory is not followed. */
LOOP_TEST(link_in_the_way, 0, 2)
{
    char *outside = file_path_join(folder, "outside"), *shared = file_path_join(folder, "shared");
    char *job = file_path_join(shared, "digits@7");
    ck_assert_ptr_null(file_make_directory(outside, 0755));
    ck_assert_ptr_null(file_make_directory(shared, 0755));
    ck_assert_int_eq(symlink(outside, job), 0);
    struct group group;
    init(&group, group_mean_model, 2);
    group.job.checkpoints.every_steps = 9;
    train(&group);
    /* Neither is one that leads elsewhere below the root. */
    struct group_saving saving = {.folder = job, .root = _i == 0 ? shared : folder};
    group_save(&group, &saving);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(status_code(saving.statuses[rank]), STATUS_FAILED_PRECONDITION);
        ck_assert_ptr_nonnull(strstr(status_message(saving.statuses[rank]), "in the way"));
        status_free(saving.statuses[rank]);
    }
    ck_assert_int_eq(entries_in(outside), 0);
    group_reset(&group);
    init(&group, group_mean_model, 2);
    resume(&group);
    group.job.checkpoints.folder = job;
    group.job.checkpoints.root = shared;
    group_run(&group);
    ck_assert_int_eq(status_code(group.members[0].status), STATUS_FAILED_PRECONDITION);
    group_reset(&group);
    free(job);
    free(shared);
    free(outside);
}
