/* The directory of a job's checkpoints, without training. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/tree.h"
#include "checkpoint/derived.h"
#include "checkpoint/folder.h"
#include "tests/testing.h"

static char top[] = "/tmp/fsdpd-folder-XXXXXX";

static void set_up(void)
{
    ck_assert_ptr_nonnull(mkdtemp(top));
}

static void tear_down(void)
{
    ck_assert_ptr_null(tree_remove(top));
}

TESTS_BELOW(.set_up = set_up, .tear_down = tear_down);

/* An open directory stays in use, even if another one takes its name. */
TEST(swapped_directory)
{
    AUTO_FREE char *outside = file_path_join(top, "outside");
    AUTO_FREE char *job = file_path_join(top, "job");
    AUTO_FREE char *moved = file_path_join(top, "moved");
    AUTO_FREE char *name = NULL;
    ck_assert_ptr_null(file_make_directory(outside, 0755));
    struct folder opened, temporary, closed;
    ck_assert_ptr_null(folder_open(top, job, false, &closed));
    ck_assert_int_lt(closed.fd, 0);
    folder_close(&closed);
    ck_assert_ptr_null(folder_open(top, job, true, &opened));
    ck_assert_int_eq(rename(job, moved), 0);
    ck_assert_int_eq(symlink(outside, job), 0);
    ck_assert_ptr_null(folder_begin(&opened, 1, 1, &temporary));
    ck_assert_ptr_null(folder_commit(&opened, &temporary, 7, &name));
    folder_close(&temporary);
    ck_assert_int_eq(faccessat(opened.fd, name, F_OK, AT_SYMLINK_NOFOLLOW), 0);
    /* An entry that is a link is not a checkpoint; removal removes the link itself. */
    static const char link[] = "step-000000000009";
    ck_assert_int_eq(symlinkat(outside, opened.fd, link), 0);
    status_t status = folder_enter(&opened, link, &temporary);
    ck_assert_ptr_nonnull(status);
    status_free(status);
    ck_assert_ptr_null(folder_remove(&opened, link));
    folder_close(&opened);
    AUTO_FREE char *kept = file_path_join(moved, name);
    ck_assert_int_eq(rmdir(kept), 0); /* all that is there: both directories are empty then */
    ck_assert_int_eq(rmdir(moved), 0);
    ck_assert_int_eq(rmdir(outside), 0);
}

static void read_fails(const struct folder *folder, const struct digest *from, size_t count,
                       enum status_code code)
{
    float values[4];
    status_t status = derived_read(folder, "sums", from, values, count);
    ck_assert_int_eq(status_code(status), code);
    status_free(status);
}

/* Numbers are those that were written, of the same origin, or there are none. */
TEST(derived_numbers)
{
    AUTO_FREE char *job = file_path_join(top, "numbers");
    AUTO_FREE char *path = file_path_join(job, "sums");
    AUTO(buf_deinit) struct buf bytes = {0};
    const float values[3] = {1, -2.5F, 3};
    float found[3];
    struct digest from, other;
    struct folder folder;
    digest_of("data", 4, &from);
    digest_of("other", 5, &other);
    ck_assert_ptr_null(folder_open(NULL, job, true, &folder));
    read_fails(&folder, &from, 3, STATUS_NOT_FOUND);
    ck_assert_ptr_null(derived_write(&folder, "sums", &other, values, 2));
    ck_assert_ptr_null(derived_write(&folder, "sums", &from, values, 3));
    ck_assert_ptr_null(derived_read(&folder, "sums", &from, found, 3));
    for (int i = 0; i < 3; i++) ck_assert_float_eq(found[i], values[i]);
    read_fails(&folder, &other, 3, STATUS_FAILED_PRECONDITION);
    read_fails(&folder, &from, 2, STATUS_FAILED_PRECONDITION);
    read_fails(&folder, &from, 4, STATUS_FAILED_PRECONDITION);
    ck_assert_ptr_null(file_read(path, 1 << 10, &bytes));
    for (size_t i = 0; i < bytes.length; i++) { /* a byte that changed, and an end that is lost */
        bytes.data[i] ^= 4;
        ck_assert_ptr_null(file_write_atomic(path, bytes.data, bytes.length, 0640));
        read_fails(&folder, &from, 3, STATUS_DATA_LOSS);
        bytes.data[i] ^= 4;
    }
    ck_assert_ptr_null(file_write_atomic(path, bytes.data, bytes.length - 1, 0640));
    read_fails(&folder, &from, 3, STATUS_DATA_LOSS);
    ck_assert_int_eq(unlink(path), 0);
    folder_close(&folder);
    ck_assert_int_eq(rmdir(job), 0); /* nothing else is left */
}

TEST(sweep)
{
    AUTO_FREE char *job = file_path_join(top, "job");
    ck_assert_ptr_null(unfinished_sweep(job)); /* there is none yet */
    struct folder opened, temporary;
    ck_assert_ptr_null(folder_open(NULL, job, true, &opened));
    ck_assert_ptr_null(folder_begin(&opened, 3, 1, &temporary));
    AUTO_FREE char *begun = mem_strdup(temporary.path);
    folder_close(&temporary);
    folder_close(&opened);
    AUTO_FREE char *below = file_path_join(begun, "rank-00000.safetensors");
    ck_assert_ptr_null(file_write_atomic(below, "x", 1, 0644));
    AUTO_FREE char *removing = file_path_join(job, ".removing-step-000000000001");
    ck_assert_int_eq(mkdir(removing, 0755), 0);
    AUTO_FREE char *other = file_path_join(job, "notes");
    ck_assert_int_eq(mkdir(other, 0755), 0);
    ck_assert_ptr_null(unfinished_sweep(job));
    ck_assert_int_ne(access(begun, F_OK), 0);
    ck_assert_int_ne(access(removing, F_OK), 0);
    ck_assert_int_eq(access(other, F_OK), 0);
}
