/*
 * Decompressed copies; see gzip_files.h. A user of a copy holds a shared lock on it (flock). A
 * process that opens, writes or removes copies holds the directory's lock meanwhile. A complete
 * copy has one byte more than its content, which is written last.
 */
#include "data/gzip_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

enum { PIECE = 1 << 20 };

static char *directory_path(void)
{
    return mem_printf("%s/fsdpd-data-%u", file_temporary_directory(), (unsigned)geteuid());
}

static int lock(int fd, int operation)
{
    int result;
    do result = flock(fd, operation);
    while (result != 0 && errno == EINTR);
    return result;
}

/* Another user's directory could have anything in it. *removed: a process removed it meanwhile. */
static status_t check_directory(const char *path, int fd, bool *removed)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return status_from_errno(errno, "cannot use %s", path);
    *removed = info.st_nlink == 0;
    if (info.st_uid == geteuid() && (info.st_mode & 077) == 0) return NULL;
    return status_new(STATUS_FAILED_PRECONDITION,
                      "%s is not a directory that only this user can use; remove it, or set TMPDIR",
                      path);
}

/* Opens the directory and takes its lock. *fd stays -1 if the directory was removed meanwhile. */
static status_t try_directory(const char *path, int *fd)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return status_from_errno(errno, "cannot make %s", path);
    int opened = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (opened < 0) return errno == ENOENT ? NULL : status_from_errno(errno, "cannot use %s", path);
    bool removed = false;
    status_t status = NULL;
    if (lock(opened, LOCK_EX) != 0) status = status_from_errno(errno, "cannot lock %s", path);
    if (status == NULL) status = check_directory(path, opened, &removed);
    if (status == NULL && !removed) *fd = opened;
    else close(opened);
    return status;
}

static status_t lock_directory(const char *path, int *fd)
{
    *fd = -1;
    while (*fd < 0) TRY(try_directory(path, fd));
    return NULL;
}

/* By the file's identity and time of change: another version has another copy. */
static status_t copy_name(const struct data_file *packed, char name[static 96])
{
    struct stat info;
    if (fstat(packed->fd, &info) != 0)
        return status_from_errno(errno, "cannot stat %s", packed->path);
    snprintf(name, 96, "%llx-%llx-%llx-%llx.%09ld", (unsigned long long)info.st_dev,
             (unsigned long long)info.st_ino, (unsigned long long)info.st_size,
             (unsigned long long)info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
    return NULL;
}

/* Removes copies that no process uses. */
static void sweep(const char *directory, const char *keep)
{
    DIR *entries = opendir(directory);
    if (entries == NULL) return;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, keep) == 0) continue;
        int fd = openat(dirfd(entries), entry->d_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) continue;
        if (lock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(dirfd(entries), entry->d_name, 0);
        close(fd);
    }
    closedir(entries);
}

static status_t write_all(int fd, const char *path, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t count = write(fd, bytes, size);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0)
            return status_from_errno(
                errno, "cannot write the decompressed copy %s; TMPDIR sets another directory",
                path);
        bytes += count;
        size -= (size_t)count;
    }
    return NULL;
}

static status_t copy_bytes(struct unzip *unzip, const struct data_file *packed, uint64_t size,
                           int fd, const char *path, char *piece)
{
    uint64_t done = 0;
    for (size_t count = 0; done < size; done += count) {
        uint64_t left = size - done;
        TRY(unzip_read(unzip, piece, left < PIECE ? (size_t)left : PIECE, &count));
        if (count == 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: cut short: its header promises %" PRIu64
                              " bytes, there are %" PRIu64,
                              packed->path, size, done);
        TRY(write_all(fd, path, piece, count));
    }
    /* A request for one more byte makes zlib verify the checksum at the end. */
    size_t more = 0;
    TRY(unzip_read(unzip, piece, 1, &more));
    if (more != 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: too long: bytes follow the %" PRIu64 " that its header promises",
                          packed->path, size);
    /* After a crash of the machine, no copy may look complete without being so. */
    if (fdatasync(fd) != 0) return status_from_errno(errno, "cannot write %s", path);
    return write_all(fd, path, "", 1);
}

static status_t write_copy(const struct data_file *packed, uint64_t size, int fd, const char *path)
{
    if (ftruncate(fd, 0) != 0) return status_from_errno(errno, "cannot write %s", path);
    struct unzip *unzip = NULL;
    TRY(unzip_open(packed, &unzip));
    AUTO_FREE char *piece = mem_alloc(PIECE);
    status_t status = copy_bytes(unzip, packed, size, fd, path, piece);
    unzip_close(unzip);
    return status != NULL ? status : data_file_check_unchanged(packed);
}

/* Uses the copy, or writes it first. *info describes it. */
static status_t use_copy(const struct data_file *packed, uint64_t size, const char *path, int fd,
                         struct stat *info)
{
    if (lock(fd, LOCK_SH) != 0) return status_from_errno(errno, "cannot lock %s", path);
    if (fstat(fd, info) != 0) return status_from_errno(errno, "cannot stat %s", path);
    if ((uint64_t)info->st_size == size + 1) return NULL;
    status_t status = write_copy(packed, size, fd, path);
    if (status != NULL) unlink(path);
    else if (fstat(fd, info) != 0) status = status_from_errno(errno, "cannot stat %s", path);
    return status;
}

static status_t open_copy(const struct data_file *packed, uint64_t size, const char *path,
                          struct data_file *file)
{
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return status_from_errno(errno, "cannot make %s", path);
    struct stat info;
    status_t status = use_copy(packed, size, path, fd, &info);
    if (status != NULL) {
        close(fd);
        return status;
    }
    *file = (struct data_file){.path = mem_strdup(packed->path),
                               .fd = fd,
                               .size = info.st_size,
                               .changed = info.st_mtim};
    return NULL;
}

static status_t open_in(const char *directory, const struct data_file *packed, uint64_t size,
                        struct unpacked *unpacked)
{
    char name[96];
    int locked = -1;
    TRY(copy_name(packed, name));
    TRY(lock_directory(directory, &locked));
    sweep(directory, name);
    unpacked->path = file_path_join(directory, name);
    status_t status = open_copy(packed, size, unpacked->path, &unpacked->file);
    close(locked);
    return status;
}

status_t unpacked_open(const struct data_file *packed, uint64_t size, struct unpacked *unpacked)
{
    AUTO_FREE char *directory = directory_path();
    struct unpacked opened = {0};
    status_t status = open_in(directory, packed, size, &opened);
    if (status != NULL) {
        free(opened.path);
        return status;
    }
    *unpacked = opened;
    return NULL;
}

/* Removes the copy if no other process uses it, and the directory with the last one. */
static void remove_unused(const struct unpacked *unpacked)
{
    int locked = -1;
    struct stat info;
    AUTO_FREE char *directory = file_path_directory(unpacked->path);
    status_t status = lock_directory(directory, &locked);
    int fd = unpacked->file.fd;
    if (lock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &info) == 0 && info.st_nlink > 0)
        unlink(unpacked->path);
    if (status == NULL) {
        rmdir(directory);
        close(locked);
    }
    status_free(status);
}

void unpacked_close(struct unpacked *unpacked)
{
    if (unpacked->path != NULL) remove_unused(unpacked);
    data_file_close(&unpacked->file);
    free(unpacked->path);
    *unpacked = (struct unpacked){0};
}
