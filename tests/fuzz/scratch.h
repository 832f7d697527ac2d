/*
 * For targets whose reader opens a file by its name: one file of this process, written again for
 * each input. A descriptor's name below /proc would not do, as readers follow no link out of a
 * root.
 */
#ifndef FSDPD_TESTS_FUZZ_SCRATCH_H
#define FSDPD_TESTS_FUZZ_SCRATCH_H

#include <unistd.h>

#include "fuzz.h"

static char scratch_path[] = "/tmp/fsdpd-fuzz-XXXXXX";

static void scratch_remove(void)
{
    unlink(scratch_path);
}

/* Returns the file's path. */
static const char *scratch_write(const uint8_t *data, size_t size)
{
    static int fd = -1;
    if (fd < 0) {
        fd = mkstemp(scratch_path);
        FUZZ_CHECK(fd >= 0, "%s", scratch_path);
        atexit(scratch_remove);
    }
    FUZZ_CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size, "%s",
               scratch_path);
    return scratch_path;
}

/* Like fuzz_expect_user_error, of a reader that must at least find the file. */
static inline void scratch_expect_user_error(status_t status)
{
    FUZZ_CHECK(status_code(status) == STATUS_INVALID_ARGUMENT, "%s", status_message(status));
    fuzz_expect_user_error(status);
}

#endif
