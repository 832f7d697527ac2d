/* Complete checkpoints whose rank 0 died before it reported them: the next attempt finds them, and
 * what was removed for them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/tree.h"
#include "checkpoint/unlisted.h"
#include "session_group.h"
#include "tests/testing.h"

#define RUN "digits-1@7"
#define STEP_5 "step-000000000005"
#define STEP_10 "step-000000000010"
#define STEP_15 "step-000000000015"

static char path[96];
static struct unlisted found;

static void remove_folder(void)
{
    unlisted_deinit(&found);
    ck_assert_ptr_null(tree_remove(path));
}

/* Two ranks take checkpoints of the steps 5, 10 and 15, in attempt 3. */
static void save_checkpoints(void)
{
    snprintf(path, sizeof path, "%s/checkpoints", group_data);
    struct group group;
    group_init(&group, group_mean_model, group_data, 2);
    group.job.epochs = 2;
    group.job.checkpoints =
        (struct checkpoint_settings){.folder = path, .run = RUN, .attempt = 3, .every_steps = 5};
    group_run(&group);
    group_expect_success(&group);
    for (int i = 0; i < 3; i++) group_save_without_error(&group, i, path, 0);
    group_reset(&group);
}

/* The steps that are found, "10 15 ", then those that were removed, "- 3 ". */
static void expect_found(const char *run, const char *const *listed, size_t count,
                         const char *expected)
{
    struct folder folder;
    struct buf text = {0};
    unlisted_deinit(&found);
    ck_assert_ptr_null(folder_open(NULL, path, false, &folder));
    ck_assert_ptr_null(unlisted_find(&folder, run, listed, count, &found));
    folder_close(&folder);
    for (int i = 0; i < found.count; i++)
        buf_printf(&text, "%llu ", (unsigned long long)found.found[i].step);
    for (int i = 0; i < found.removed_count; i++)
        buf_printf(&text, "- %llu ", (unsigned long long)found.removed[i]);
    ck_assert_str_eq(text.length > 0 ? buf_text(&text) : "", expected);
    buf_deinit(&text);
}

TESTS_BELOW(.timeout = 120, .set_up = save_checkpoints, .tear_down = remove_folder,
            .set_up_once = group_draw_digits, .tear_down_once = group_remove_digits);

TEST(checkpoints_that_are_not_listed_are_found)
{
    expect_found(RUN, NULL, 0, "5 10 15 ");
    expect_found(RUN, (const char *[]){STEP_5, STEP_10, STEP_15}, 3, "");
    expect_found(RUN, (const char *[]){STEP_5, STEP_10}, 2, "15 ");
    const struct unlisted_checkpoint *last = &found.found[0];
    char *expected = file_path_join(path, STEP_15);
    ck_assert_str_eq(last->path, expected);
    ck_assert_uint_eq(last->attempt, 3);
    ck_assert_uint_eq(last->world, 2);
    ck_assert_uint_gt(last->bytes, 0);
    ck_assert_int_gt(last->time_ms, 0);
    free(expected);
}

TEST(what_was_removed_for_them_is_found)
{
    const char *const listed[] = {"step-000000000003", STEP_5, STEP_10};
    expect_found(RUN, listed, 3, "15 - 3 ");
    /* Without such a checkpoint, the directory may be another host's. */
    const char *const all[] = {"step-000000000003", STEP_5, STEP_10, STEP_15};
    expect_found(RUN, all, 4, "");
}

/* The second one of a step takes the place of the first. */
TEST(another_of_a_step_is_found)
{
    char *first = file_path_join(path, STEP_10), *second = file_path_join(path, STEP_10 "-2");
    ck_assert_int_eq(rename(first, second), 0);
    expect_found(RUN, (const char *[]){STEP_5, STEP_10, STEP_15}, 3, "10 ");
    ck_assert_str_eq(found.found[0].path, second);
    free(first);
    free(second);
}

TEST(what_is_damaged_or_foreign_is_left_out)
{
    expect_found("digits-1@8", NULL, 0, "");
    char *manifest = file_path_join(path, STEP_10 "/" MANIFEST_FILE);
    ck_assert_int_eq(truncate(manifest, 100), 0);
    free(manifest);
    expect_found(RUN, NULL, 0, "5 15 ");
    ck_assert_ptr_null(tree_remove(path));
    expect_found(RUN, NULL, 0, "");
}
