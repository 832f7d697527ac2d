/* The store's reserve; see internal.h. It keeps no descriptor open. */
#include "coordinator/core/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

enum { PIECE = 1 << 20 };

double disk_free(const char *path)
{
    struct statvfs disk;
    if (statvfs(path, &disk) != 0) return INFINITY; /* the write will report it */
    return (double)disk.f_bavail * (double)disk.f_frsize;
}

static char *path_of(const struct coordinator *c)
{
    return mem_printf("%s/store.reserve", c->options.state_dir);
}

/* Allocates all blocks; on error, restores the file's previous size. */
static int fill(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (fd < 0) return errno;
    struct stat before = {0};
    int error = fstat(fd, &before) != 0 ? errno : posix_fallocate(fd, 0, RESERVE_BYTES);
    if (error == 0 && ftruncate(fd, RESERVE_BYTES) != 0) error = errno;
    if (error == 0 && fsync(fd) != 0) error = errno;
    if (error != 0 && ftruncate(fd, before.st_size) != 0) error = errno;
    close(fd);
    return error;
}

void reserve_open(struct coordinator *c)
{
    AUTO_FREE char *path = path_of(c);
    struct stat info;
    c->reserve_bytes = stat(path, &info) == 0 && info.st_size < RESERVE_BYTES ? info.st_size : 0;
    int error = fill(path);
    if (error == 0) c->reserve_bytes = RESERVE_BYTES;
    else
        log_status(LOG_WARNING, "store_reserve_missing",
                   status_from_errno(error, "cannot keep %d bytes for the store in %s",
                                     RESERVE_BYTES, path));
}

void reserve_tick(struct coordinator *c)
{
    if (c->reserve_bytes == RESERVE_BYTES) return;
    /* Requires more than the refill takes, so that the reserve is not given up again at once. */
    double needed = (double)(RESERVE_BYTES - c->reserve_bytes) + PIECE;
    if (disk_free(c->options.state_dir) < needed) return;
    AUTO_FREE char *path = path_of(c);
    if (fill(path) == 0) {
        c->reserve_bytes = RESERVE_BYTES;
        log_event(LOG_INFO, "store_reserve_whole", "bytes=%d", RESERVE_BYTES);
    }
}

bool reserve_give_up(struct coordinator *c, status_t refusal)
{
    bool full =
        status_code(refusal) == STATUS_RESOURCE_EXHAUSTED ||
        (status_code(refusal) == STATUS_UNAVAILABLE && disk_free(c->options.state_dir) < PIECE);
    if (!full || c->reserve_bytes == 0) return false;
    int64_t left = c->reserve_bytes > PIECE ? c->reserve_bytes - PIECE : 0;
    AUTO_FREE char *path = path_of(c);
    bool given = truncate(path, left) == 0;
    /* A reserve that cannot be truncated is of no use. */
    c->reserve_bytes = given ? left : 0;
    log_event(LOG_WARNING, "store_reserve_used", "left=%lld of=%d", (long long)c->reserve_bytes,
              RESERVE_BYTES);
    return given;
}

bool reserve_is_begun(const struct coordinator *c)
{
    return c->reserve_bytes > 0 && c->reserve_bytes < RESERVE_BYTES;
}
