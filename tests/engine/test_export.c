/*
 * Checkpoints as state_dicts: byte by byte the file that the ranks stream at the same step, for any
 * pieces of the read. The file is the same for any layout of the units, and in the model's order.
 * Errors name what is damaged.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/tree.h"
#include "checkpoint/export.h"
#include "hf/safetensors.h"
#include "session_group.h"
#include "tests/testing.h"

static char path[96];

static void make_folder(void)
{
    snprintf(path, sizeof path, "%s/checkpoints", group_data);
}

static void remove_folder(void)
{
    ck_assert_ptr_null(tree_remove(path));
}

/* Trains for two epochs; there is a checkpoint of the last step. */
static struct buf train(struct group *group, const struct group_world *world, enum wrap_kind wrap,
                        bool rounded)
{
    group_init(group, group_mean_model, group_data, world->world);
    group->job.plan.strategy = world->strategy;
    group->job.wrap = (struct wrap_policy){.kind = wrap, .min_num_params = 1000};
    group->job.plan.rounded = rounded;
    if (rounded) group->job.plan.gathered_dtype = DTYPE_BF16;
    group->job.epochs = 2;
    group->job.checkpoints =
        (struct checkpoint_settings){.folder = path, .run = "digits-1@7", .every_epochs = 1};
    group_run(group);
    group_expect_success(group);
    ck_assert_int_gt(group->members[0].captured_count, 0);
    group_save_without_error(group, group->members[0].captured_count - 1, path, 0);
    return group_pull_file(group, -1);
}

static status_t open_newest(struct export **export)
{
    struct folder folder;
    struct folder_entry *entries;
    int count;
    struct saved *saved;
    ck_assert_ptr_null(folder_open(NULL, path, false, &folder));
    ck_assert_ptr_null(folder_list(&folder, &entries, &count));
    ck_assert_int_eq(count, 1);
    status_t status = saved_open(&folder, entries[0].name, EXPORT_MANIFEST_MAX, &saved);
    free(entries);
    folder_close(&folder);
    return status != NULL ? status : export_new(saved, false, export);
}

static struct buf read_all(struct export *export, size_t piece)
{
    struct buf file = {0};
    char *bytes = mem_alloc(piece);
    for (size_t count = 1; count > 0;) {
        ck_assert_ptr_null(export_read(export, bytes, piece, &count));
        ck_assert(count == piece || file.length + count == export_bytes(export));
        buf_add(&file, bytes, count);
    }
    free(bytes);
    return file;
}

TESTS_BELOW(.timeout = 120, .set_up = make_folder, .tear_down = remove_folder,
            .set_up_once = group_draw_digits, .tear_down_once = group_remove_digits);

LOOP_TEST(same_bytes, 0, GROUP_WORLDS, .sanitized_every = 2)
{
    static const size_t pieces[] = {1 << 20, 4096, 264, 8};
    static const enum wrap_kind wraps[] = {WRAP_NONE, WRAP_SIZE, WRAP_SIZE};
    struct group group;
    for (size_t w = 0; w < 3; w++) {
        struct buf live = train(&group, &group_worlds[_i], wraps[w], w == 2);
        for (size_t i = 0; i < COUNT_OF(pieces); i++) {
            struct export *export;
            ck_assert_ptr_null(open_newest(&export));
            ck_assert_uint_eq(export_bytes(export), live.length);
            bool done = false;
            for (int parts = 0; !done; parts++) {
                ck_assert_int_lt(parts, 1 << 20);
                ck_assert_ptr_null(export_verify(export, pieces[i] * 8, &done));
            }
            struct buf file = read_all(export, pieces[i]);
            ck_assert_uint_eq(file.length, live.length);
            ck_assert_mem_eq(file.data, live.data, live.length);
            buf_deinit(&file);
            export_free(export);
        }
        buf_deinit(&live);
        group_reset(&group);
        remove_folder();
    }
}

/* Its order is not that of execution; an outer unit has modules around an inner one, frozen
 * parameters lie between trainable ones, and buffers and a tied parameter among the others. */
static const char ordered_model[] =
    "name: Ordered\n"
    "input: [1, 28, 28]\n"
    "classes: 10\n"
    "blocks:\n"
    "  Stage(before, after):\n"
    "    modules:\n"
    "      conv: Conv2d(before, after, 3, 2, bias=False)\n"
    "      norm: BatchNorm2d(after, momentum=0)\n"
    "    forward:\n"
    "      - output = relu(norm(conv(x)))\n"
    "  Inner:\n"
    "    modules:\n"
    "      a: Linear(20, 40)\n"
    "      b: Linear(40, 20)\n"
    "    forward:\n"
    "      - output = b(relu(a(x)))\n"
    "  Outer:\n"
    "    modules:\n"
    "      a: Linear(360, 20)\n"
    "      inner: Inner()\n"
    "      b: Linear(20, 20)\n"
    "      c: Linear(20, 20)\n"
    "    forward:\n"
    "      - output = relu(c(relu(b(relu(inner(relu(a(x))))))))\n"
    "modules:\n"
    "  out: Linear(20, 10)\n"
    "  first: Stage(1, 6)\n"
    "  outer: Outer()\n"
    "  second: Stage(6, 10)\n"
    "forward:\n"
    "  - output = out(outer(flatten(second(first(x)), 1)))\n"
    "loss: cross_entropy(output, target)\n"
    "tie: {outer.c.weight: outer.b.weight}\n"
    "freeze: [outer.a.weight, outer.inner.a.bias, second.conv.weight]\n";

/* As the state_dict of that network has it in PyTorch. */
static const char *const ordered_names[] = {
    "out.weight",
    "out.bias",
    "first.conv.weight",
    "first.norm.weight",
    "first.norm.bias",
    "first.norm.running_mean",
    "first.norm.running_var",
    "first.norm.num_batches_tracked",
    "outer.a.weight",
    "outer.a.bias",
    "outer.inner.a.weight",
    "outer.inner.a.bias",
    "outer.inner.b.weight",
    "outer.inner.b.bias",
    "outer.b.weight",
    "outer.b.bias",
    "outer.c.weight",
    "outer.c.bias",
    "second.conv.weight",
    "second.norm.weight",
    "second.norm.bias",
    "second.norm.running_mean",
    "second.norm.running_var",
    "second.norm.num_batches_tracked",
};

static const char *const pair[] = {"outer.b", "first"}, *const single[] = {"outer.inner"};
static const struct wrap_unit_spec listed[] = {{.modules = pair, .module_count = 2},
                                               {.modules = single, .module_count = 1}};
static const char *const types[] = {"Inner", "Stage"}, *const patterns[] = {"*.norm", "out*.a"};

static const struct wrap_policy policies[] = {
    {.kind = WRAP_NONE},
    {.kind = WRAP_SIZE, .min_num_params = 20},
    {.kind = WRAP_SIZE, .min_num_params = 500},
    {.kind = WRAP_UNITS, .units = listed, .unit_count = COUNT_OF(listed)},
    {.kind = WRAP_TYPE, .types = {types, COUNT_OF(types)}},
    {.kind = WRAP_MATCH, .modules = {patterns, COUNT_OF(patterns)}},
};

/* A run that changes nothing but the count of batches. */
static struct buf keep_weights(struct group *group, const struct group_world *world, size_t policy,
                               bool changes)
{
    group_init(group, ordered_model, group_data, world->world);
    group_freeze(group);
    group->job.plan.strategy = world->strategy;
    group->job.wrap = policies[policy];
    group->job.max_steps = 3;
    group->job.seed = 5;
    group->job.checkpoints =
        (struct checkpoint_settings){.folder = path, .run = "digits-1@7", .every_steps = 3};
    if (changes) {
        group->order_count = 1;
        group->order_at[0] = 1;
        group->wraps[0] = &policies[(policy + 1) % COUNT_OF(policies)];
    }
    group_run(group);
    group_expect_success(group);
    for (int rank = 0; changes && rank < world->world; rank++)
        ck_assert_ptr_null(group->members[rank].changes[0].refused);
    group_save_without_error(group, group->members[0].captured_count - 1, path, 0);
    return group_pull_file(group, -1);
}

static struct buf read_checkpoint(void)
{
    struct export *export;
    ck_assert_ptr_null(open_newest(&export));
    struct buf file = read_all(export, 4096);
    export_free(export);
    remove_folder();
    return file;
}

/* In the order of the text, which is that of the data, too. */
static void expect_order(const struct buf *file)
{
    struct safetensors_header header;
    uint64_t needed;
    ck_assert_ptr_null(
        safetensors_read_header(file->data, file->length, file->length, &header, &needed));
    ck_assert_int_eq(header.count, COUNT_OF(ordered_names));
    const char *at = file->data + 8;
    for (int i = 0; i < header.count; i++) {
        char *key = mem_printf("\"%s\":", ordered_names[i]);
        ck_assert_str_eq(header.entries[i].name, ordered_names[i]);
        at = strstr(at, key);
        ck_assert_msg(at != NULL, "%s is not where it belongs", ordered_names[i]);
        free(key);
    }
    safetensors_header_deinit(&header);
}

/* Equal weights are equal files: of every policy, before and after a change of it, of every
 * strategy and number of ranks, from the run and from its checkpoint. */
LOOP_TEST(same_bytes_whatever_the_layout, 0, GROUP_WORLDS, .sanitized_every = 2)
{
    struct group group;
    struct buf reference = keep_weights(&group, &group_worlds[0], 0, false);
    expect_order(&reference);
    group_reset(&group);
    remove_folder();
    for (size_t policy = 0; policy < COUNT_OF(policies); policy++)
        for (int changes = 0; changes < 2; changes++) {
            struct buf live = keep_weights(&group, &group_worlds[_i], policy, changes);
            struct buf saved = read_checkpoint();
            for (int k = 0; k < 2; k++) {
                const struct buf *file = k == 0 ? &live : &saved;
                ck_assert_uint_eq(file->length, reference.length);
                ck_assert_mem_eq(file->data, reference.data, reference.length);
            }
            buf_deinit(&live);
            buf_deinit(&saved);
            group_reset(&group);
        }
    buf_deinit(&reference);
}

static char *file_of(const char *name)
{
    struct folder folder;
    struct folder_entry *entries;
    int count;
    ck_assert_ptr_null(folder_open(NULL, path, false, &folder));
    ck_assert_ptr_null(folder_list(&folder, &entries, &count));
    ck_assert_int_eq(count, 1);
    char *file = mem_printf("%s/%s/%s", path, entries[0].name, name);
    free(entries);
    folder_close(&folder);
    return file;
}

static status_t verify_all(struct export *export)
{
    status_t status = NULL;
    for (bool done = false; !done && status == NULL;) status = export_verify(export, 5000, &done);
    return status;
}

/* A file that is truncated, changed, or removed: before, and after it was opened and verified. */
LOOP_TEST(damage, 0, 3)
{
    static const char *const words[] = {"bytes, not the", "its checksum is", "cannot open"};
    static const char *const later[] = {"bytes, not the", "has changed since", "cannot open"};
    struct group group;
    struct group_world world = {.world = 2, .strategy = STRATEGY_FULL_SHARD};
    struct buf live = train(&group, &world, WRAP_SIZE, false);
    char *file = file_of("rank-00001.safetensors");
    struct export *early, *late;
    ck_assert_ptr_null(open_newest(&early));
    ck_assert_ptr_null(verify_all(early));
    struct stat info;
    ck_assert_int_eq(stat(file, &info), 0);
    int fd = open(file, O_WRONLY);
    if (_i == 0) ck_assert_int_eq(ftruncate(fd, info.st_size - 4), 0);
    if (_i == 1) ck_assert_int_eq(pwrite(fd, "?!", 2, info.st_size - 2), 2);
    if (_i == 2) ck_assert_int_eq(unlink(file), 0);
    close(fd);
    ck_assert_ptr_null(open_newest(&late));
    status_t status = verify_all(late);
    ck_assert_int_eq(status_code(status), STATUS_DATA_LOSS);
    ck_assert_ptr_nonnull(strstr(status_message(status), words[_i]));
    ck_assert_ptr_nonnull(strstr(status_message(status), file));
    status_free(status);
    char *bytes = mem_alloc(1 << 20);
    size_t count = 1;
    status = NULL;
    while (status == NULL && count > 0) status = export_read(early, bytes, 1 << 20, &count);
    ck_assert_int_eq(status_code(status), STATUS_DATA_LOSS);
    ck_assert_ptr_nonnull(strstr(status_message(status), file));
    ck_assert_ptr_nonnull(strstr(status_message(status), later[_i]));
    status_free(status);
    free(bytes);
    export_free(early);
    export_free(late);
    free(file);
    buf_deinit(&live);
    group_reset(&group);
}

/* Text that was written into a manifest, with a new checksum or without. */
LOOP_TEST(manifest, 0, 8)
{
    static const struct {
        const char *from, *to; /* of the same length */
        bool seal;
        enum status_code code;
        const char *words;
    } edits[] = {
        {"\"version\": 3", "\"version\": 2", true, STATUS_FAILED_PRECONDITION, "an older fsdpd"},
        {"\"version\": 3", "\"version\": 5", true, STATUS_FAILED_PRECONDITION, "a newer fsdpd"},
        {"\"step\": 3", "\"step\": 2", true, STATUS_DATA_LOSS, "is of step 2"},
        {"\"step\": 3", "\"step\": 2", false, STATUS_DATA_LOSS, "its checksum is"},
        {"\"sha256\"", "\"sha257\"", false, STATUS_DATA_LOSS, "its checksum is not at its end"},
        {"\"shape\": [\n", "\"shope\": [\n", true, STATUS_DATA_LOSS, "shape"},
        {"\"state_dict\": [", "\"state_dict\":4,[", true, STATUS_DATA_LOSS, MANIFEST_FILE},
        {"\"unit\": 0", "\"unit\": 9", true, STATUS_DATA_LOSS, "unit: expected 0 to 0, found 9"},
    };
    struct group group;
    struct group_world world = {.world = 2, .strategy = STRATEGY_FULL_SHARD};
    struct buf live = train(&group, &world, WRAP_NONE, false), text = {0};
    char *file = file_of(MANIFEST_FILE);
    ck_assert_ptr_null(file_read(file, 1 << 20, &text));
    char *at = strstr(text.data, edits[_i].from);
    ck_assert_ptr_nonnull(at);
    memcpy(at, edits[_i].to, strlen(edits[_i].to));
    if (edits[_i].seal) {
        text.length = (size_t)(strstr(text.data, ",\n \"sha256\"") - text.data);
        manifest_seal(&text);
    }
    ck_assert_ptr_null(file_write_atomic(file, text.data, text.length, 0640));
    struct export *export;
    status_t status = open_newest(&export);
    ck_assert_int_eq(status_code(status), edits[_i].code);
    ck_assert_ptr_nonnull(strstr(status_message(status), edits[_i].words));
    status_free(status);
    free(file);
    buf_deinit(&text);
    buf_deinit(&live);
    group_reset(&group);
}

/* An older fsdpd, which reads the first, would take the rest for an f32 per element. */
LOOP_TEST(version_is_that_of_what_is_saved, 0, 4)
{
    struct saved_unit units[] = {{.name = (char *)"a", .shard_world = 1},
                                 {.name = (char *)"b", .shard_world = 1}};
    struct saved_file file = {.bytes = 8};
    const struct manifest saved = {.run = (char *)"digits-1@7",
                                   .job = (char *)"digits-1",
                                   .optimizer = (char *)"sgd",
                                   .state = _i == 1 ? STATE_BF16 : STATE_F32,
                                   .units = units,
                                   .unit_count = 2,
                                   .files = &file,
                                   .world = 1};
    struct buf text = {0};
    if (_i == 2) units[1].rounded = true;
    if (_i == 3) units[1].shape = SHAPE_FACTORS;
    manifest_write(&saved, &text);
    ck_assert_msg(strstr(text.data, _i == 0 ? "\"version\": 3," : "\"version\": 4,") != NULL, "%s",
                  text.data);
    buf_deinit(&text);
}
