/*
 * One flipped bit anywhere in a checkpoint is found, by an error that names the file: when the
 * checkpoint is opened and verified, when it is read after it was verified, and when a run resumes,
 * which then continues from the older checkpoint. FSDPD_FLIPS flips, from FSDPD_SEED.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/tree.h"
#include "checkpoint/saved.h"
#include "session_group.h"
#include "tests/testing.h"

#define RUN "digits-1@7"

enum { FILES = 4, WORLD = 2 };
static const char *const files[FILES] = {"manifest.json", "rank-00000.safetensors",
                                         "rank-00001.safetensors", "reports.pb"};

static char path[96], newest[FOLDER_NAME_MAX];
static uint64_t state;
static struct group group;
static struct buf whole; /* the state_dict of the undisturbed run */

/* splitmix64 */
static uint64_t draw(void)
{
    uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int setting(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : otherwise;
}

static void write_reports(void *user, uint64_t step, struct buf *out)
{
    (void)user;
    for (int i = 0; i < 500; i++) buf_printf(out, "report %d of step %" PRIu64 "\n", i, step);
}

static void init(struct group *run)
{
    group_init(run, group_mean_model, group_data, WORLD);
    run->job.epochs = 2;
    run->job.wrap = (struct wrap_policy){.kind = WRAP_SIZE, .min_num_params = 1000};
    run->job.checkpoints = (struct checkpoint_settings){.folder = path, .run = RUN};
}

/* Two checkpoints of a run. */
static void set_up(void)
{
    group_draw_digits();
    snprintf(path, sizeof path, "%s/checkpoints", group_data);
    init(&group);
    group.job.checkpoints.every_steps = 9;
    group_run(&group);
    group_expect_success(&group);
    for (int i = 0; i < 2; i++) {
        struct group_saving saving = {.folder = path, .index = i, .pack_reports = write_reports};
        group_save(&group, &saving);
        for (int r = 0; r < WORLD; r++) {
            ck_assert_ptr_null(saving.statuses[r]);
            free(saving.results[r].path);
            free(saving.results[r].removed);
        }
    }
    strcpy(newest, "step-000000000018");
    whole = group_pull_file(&group, -1);
    state = (uint64_t)setting("FSDPD_SEED", 1);
}

static void tear_down(void)
{
    buf_deinit(&whole);
    group_reset(&group);
    ck_assert_ptr_null(tree_remove(path));
    group_remove_digits();
}

struct flip {
    const char *file; /* one of `files` */
    off_t at;
    int bit;
};

static char *path_of(const char *file)
{
    return mem_printf("%s/%s/%s", path, newest, file);
}

/* Flips one bit; a second call restores it. */
static void flip_bit(const struct flip *flip)
{
    char *name = path_of(flip->file);
    unsigned char byte;
    int fd = open(name, O_RDWR);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pread(fd, &byte, 1, flip->at), 1);
    byte = (unsigned char)(byte ^ 1 << flip->bit);
    ck_assert_int_eq(pwrite(fd, &byte, 1, flip->at), 1);
    close(fd);
    free(name);
}

static struct flip draw_flip(int file)
{
    char *name = path_of(files[file]);
    struct stat info;
    ck_assert_int_eq(stat(name, &info), 0);
    free(name);
    uint64_t at = draw() % (uint64_t)info.st_size;
    return (struct flip){.file = files[file], .at = (off_t)at, .bit = (int)(draw() % 8)};
}

static status_t open_newest(struct saved **saved)
{
    struct folder folder;
    ck_assert_ptr_null(folder_open(NULL, path, false, &folder));
    status_t status = saved_open(&folder, newest, MANIFEST_MAX, saved);
    folder_close(&folder);
    return status;
}

static status_t verify(struct saved *saved)
{
    TRY(saved_check_run(saved, RUN));
    for (int r = 0; r < saved_manifest(saved)->world; r++) TRY(saved_verify(saved, r));
    return NULL;
}

/* Reads everything that a run and a pull would. */
static status_t read_values(struct saved *saved, struct buf *values)
{
    const struct manifest *manifest = saved_manifest(saved);
    for (int u = 0; u < manifest->unit_count; u++) {
        const struct saved_unit *unit = &manifest->units[u];
        int64_t count = unit->shard * unit->shard_world;
        float *piece = mem_alloc_array((size_t)count + 1, sizeof *piece);
        status_t status = NULL;
        for (int slot = -1; slot < unit->slots && status == NULL && count > 0; slot++) {
            status = saved_read_unit(saved, u, slot, 0, count, piece);
            if (status == NULL) buf_add(values, piece, (size_t)count * sizeof *piece);
        }
        free(piece);
        TRY(status);
    }
    return saved_read_reports(saved, values);
}

static void expect_named(status_t status, const struct flip *flip, const char *when)
{
    ck_assert_msg(status != NULL, "%s: bit %d of byte %lld of %s was not found", when, flip->bit,
                  (long long)flip->at, flip->file);
    ck_assert_msg(status_code(status) == STATUS_DATA_LOSS &&
                      strstr(status_message(status), flip->file) != NULL,
                  "%s: %s", when, status_message(status));
    status_free(status);
}

static void expect_found(const struct flip *flip)
{
    struct saved *saved = NULL;
    struct buf values = {0};
    flip_bit(flip);
    status_t status = open_newest(&saved);
    if (status == NULL) status = verify(saved);
    if (status == NULL) status = read_values(saved, &values);
    expect_named(status, flip, "before");
    saved_free(saved);
    buf_deinit(&values);
    flip_bit(flip);
}

/* After verification, the file's values are read again, but not the manifest. */
static void expect_found_later(const struct flip *flip)
{
    struct saved *saved = NULL;
    struct buf values = {0};
    ck_assert_ptr_null(open_newest(&saved));
    ck_assert_ptr_null(verify(saved));
    flip_bit(flip);
    expect_named(read_values(saved, &values), flip, "after");
    saved_free(saved);
    buf_deinit(&values);
    flip_bit(flip);
}

TESTS_BELOW(.timeout = 300, .set_up = set_up, .tear_down = tear_down);

TEST(every_file)
{
    int count = setting("FSDPD_FLIPS", 1000);
    for (int i = 0; i < count; i++) {
        struct flip flip = draw_flip(i % FILES);
        expect_found(&flip);
        if (i % FILES != 0) expect_found_later(&flip);
    }
    struct saved *saved = NULL;
    struct buf values = {0};
    ck_assert_ptr_null(open_newest(&saved)); /* all bits are restored */
    ck_assert_ptr_null(verify(saved));
    ck_assert_ptr_null(read_values(saved, &values));
    saved_free(saved);
    buf_deinit(&values);
}

TEST(every_bit_of_the_manifest)
{
    struct buf text = {0};
    char *name = path_of(files[0]);
    struct manifest manifest;
    ck_assert_ptr_null(file_read(name, 1 << 20, &text));
    ck_assert_ptr_null(manifest_read(text.data, text.length, name, &manifest));
    manifest_deinit(&manifest);
    for (size_t i = 0; i < text.length * 8; i++) {
        const struct flip flip = {.file = files[0], .at = (off_t)(i / 8), .bit = (int)(i % 8)};
        text.data[i / 8] = (char)(text.data[i / 8] ^ 1 << flip.bit);
        status_t status = manifest_read(text.data, text.length, name, &manifest);
        text.data[i / 8] = (char)(text.data[i / 8] ^ 1 << flip.bit);
        ck_assert_msg(status_code(status) == STATUS_INVALID_ARGUMENT, "bit %zu: %s", i,
                      status_message(status));
        status_free(status);
    }
    free(name);
    buf_deinit(&text);
}

/* A resumed run ends with the bits of the undisturbed one, from the older checkpoint. */
TEST(runs)
{
    int count = (setting("FSDPD_FLIPS", 1000) + 49) / 50;
    for (int i = 0; i < count; i++) {
        struct flip flip = draw_flip(i % FILES);
        struct group again;
        flip_bit(&flip);
        init(&again);
        again.job.checkpoints.resume = again.job.checkpoints.must_resume = true;
        again.job.checkpoints.attempt = 2;
        group_run(&again);
        group_expect_success(&again);
        bool reports = i % FILES == 3; /* without them it continues */
        for (int r = 0; r < WORLD; r++)
            ck_assert_uint_eq(again.members[r].resumed_step, reports ? 18 : 9);
        ck_assert_msg(reports || strstr(again.members[0].note, flip.file) != NULL, "%s: %s",
                      flip.file, again.members[0].note);
        struct buf file = group_pull_file(&again, -1);
        ck_assert_uint_eq(file.length, whole.length);
        ck_assert_mem_eq(file.data, whole.data, whole.length);
        buf_deinit(&file);
        group_reset(&again);
        flip_bit(&flip);
    }
}
