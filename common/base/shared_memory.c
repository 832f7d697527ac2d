/* Memory that processes share; see shared_memory.h. */
#include "base/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD_BYTES = 4096 };

struct shared_head {
    uint64_t number;
    _Atomic uint64_t mark;
};

static status_t map(int fd, size_t bytes, int protection, struct shared_memory *mapped)
{
    struct shared_head *head = mmap(NULL, HEAD_BYTES + bytes, protection, MAP_SHARED, fd, 0);
    if (head == MAP_FAILED) return status_from_errno(errno, "mapping %zu bytes", bytes);
    *mapped = (struct shared_memory){.memory = (char *)head + HEAD_BYTES,
                                     .bytes = bytes,
                                     .mark = &head->mark,
                                     .number = head->number,
                                     .fd = -1};
    return NULL;
}

static status_t make(int fd, size_t bytes, struct shared_memory *made)
{
    uint64_t number;
    int error = posix_fallocate(fd, 0, (off_t)(HEAD_BYTES + bytes));
    if (error != 0) return status_from_errno(error, "%zu bytes of shared memory", bytes);
    /* No reader can find it shorter later. */
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return status_from_errno(errno, "sealing shared memory");
    if (getrandom(&number, sizeof number, 0) != sizeof number ||
        pwrite(fd, &number, sizeof number, 0) != sizeof number)
        return status_from_errno(errno, "numbering shared memory");
    TRY(map(fd, bytes, PROT_READ | PROT_WRITE, made));
    made->fd = fd;
    return NULL;
}

status_t shared_memory_make(size_t bytes, struct shared_memory *made)
{
    int fd = memfd_create("fsdpd-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return status_from_errno(errno, "making shared memory");
    status_t status = make(fd, bytes, made);
    if (status != NULL) close(fd);
    return status;
}

struct shared_place shared_memory_place(const struct shared_memory *made)
{
    return (struct shared_place){.process = (uint64_t)getpid(),
                                 .fd = (uint64_t)made->fd,
                                 .bytes = made->bytes,
                                 .number = made->number};
}

/* A file of that size, if it is one: opening anything else could block, or have effects. */
static int open_place(const struct shared_place *place)
{
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/fd/%" PRIu64, place->process, place->fd);
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) ||
        (uint64_t)info.st_size != HEAD_BYTES + place->bytes)
        return -1;
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

status_t shared_memory_map(const struct shared_place *place, struct shared_memory *mapped)
{
    int fd = open_place(place);
    if (fd >= 0) {
        status_t status = map(fd, place->bytes, PROT_READ, mapped);
        close(fd);
        if (status != NULL) return status;
        if (mapped->number == place->number) return NULL;
        shared_memory_free(mapped);
    }
    return status_new(STATUS_NOT_FOUND, "process %" PRIu64 " has no such memory here",
                      place->process);
}

void shared_memory_free(struct shared_memory *memory)
{
    if (memory->memory != NULL) {
        munmap((char *)memory->memory - HEAD_BYTES, HEAD_BYTES + memory->bytes);
        if (memory->fd >= 0) close(memory->fd);
    }
    *memory = (struct shared_memory){0};
}
