/* Threads; see threads.h. */
#include "base/threads.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/stacks.h"

static const int64_t EACH_NS = 200 * INT64_C(1000000), ALL_NS = 1000 * INT64_C(1000000);

enum file_of { NO_FILE, DESCRIPTOR, PATH, PATH_BELOW /* the second argument, of openat */ };

/* The calls that a thread of ours sleeps in. */
static const struct {
    long number;
    const char *name;
    enum file_of file;
} calls[] = {
    {SYS_read, "read", DESCRIPTOR},
    {SYS_pread64, "pread", DESCRIPTOR},
    {SYS_readv, "readv", DESCRIPTOR},
    {SYS_preadv, "preadv", DESCRIPTOR},
    {SYS_write, "write", DESCRIPTOR},
    {SYS_pwrite64, "pwrite", DESCRIPTOR},
    {SYS_writev, "writev", DESCRIPTOR},
    {SYS_pwritev, "pwritev", DESCRIPTOR},
    {SYS_sendfile, "sendfile", DESCRIPTOR},
    {SYS_fsync, "fsync", DESCRIPTOR},
    {SYS_fdatasync, "fdatasync", DESCRIPTOR},
    {SYS_ftruncate, "ftruncate", DESCRIPTOR},
    {SYS_fallocate, "fallocate", DESCRIPTOR},
    {SYS_flock, "flock", DESCRIPTOR},
    {SYS_fcntl, "fcntl", DESCRIPTOR},
    {SYS_fstat, "fstat", DESCRIPTOR},
    {SYS_getdents64, "getdents", DESCRIPTOR},
    {SYS_ioctl, "ioctl", DESCRIPTOR},
    {SYS_close, "close", DESCRIPTOR},
    {SYS_recvfrom, "recv", DESCRIPTOR},
    {SYS_recvmsg, "recvmsg", DESCRIPTOR},
    {SYS_sendto, "send", DESCRIPTOR},
    {SYS_sendmsg, "sendmsg", DESCRIPTOR},
    {SYS_connect, "connect", DESCRIPTOR},
    {SYS_accept, "accept", DESCRIPTOR},
    {SYS_accept4, "accept", DESCRIPTOR},
    {SYS_openat, "open", PATH_BELOW},
    {SYS_newfstatat, "stat", PATH_BELOW},
    {SYS_statx, "stat", PATH_BELOW},
    {SYS_mkdirat, "mkdir", PATH_BELOW},
    {SYS_unlinkat, "unlink", PATH_BELOW},
    {SYS_renameat2, "rename", PATH_BELOW},
#ifdef SYS_open
    {SYS_open, "open", PATH},
    {SYS_stat, "stat", PATH},
    {SYS_mkdir, "mkdir", PATH},
    {SYS_unlink, "unlink", PATH},
    {SYS_rename, "rename", PATH},
    {SYS_poll, "poll", NO_FILE},
    {SYS_select, "select", NO_FILE},
    {SYS_epoll_wait, "epoll_wait", NO_FILE},
#endif
    {SYS_ppoll, "poll", NO_FILE},
    {SYS_pselect6, "select", NO_FILE},
    {SYS_epoll_pwait, "epoll_wait", NO_FILE},
    {SYS_futex, "futex", NO_FILE},
    {SYS_nanosleep, "nanosleep", NO_FILE},
    {SYS_clock_nanosleep, "nanosleep", NO_FILE},
    {SYS_wait4, "wait", NO_FILE},
    {SYS_waitid, "wait", NO_FILE},
    {SYS_mmap, "mmap", NO_FILE},
    {SYS_munmap, "munmap", NO_FILE},
    {SYS_msync, "msync", NO_FILE},
    {SYS_madvise, "madvise", NO_FILE},
    {SYS_mlock, "mlock", NO_FILE},
};

/* The file's text, of at most `size` - 1 bytes; false: it cannot be read. */
static bool read_text(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t count = read(fd, text, size - 1);
    close(fd);
    text[count > 0 ? count : 0] = '\0';
    return count > 0;
}

static char *path_of_descriptor(int pid, long fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/%d/fd/%ld", pid, fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return NULL;
    path[length] = '\0';
    return mem_strdup(path);
}

/* The text at an address that a system call was given, which may be gone by now. */
static char *text_at(int pid, uintptr_t address)
{
    char text[257] = "";
    struct iovec to = {text, sizeof text - 1}, from = {(void *)address, sizeof text - 1};
    if (process_vm_readv(pid, &to, 1, &from, 1, 0) <= 0) {
        /* Not across the end of a page that may be the last one. */
        from.iov_len = to.iov_len = 4096 - address % 4096;
        if (to.iov_len >= sizeof text || process_vm_readv(pid, &to, 1, &from, 1, 0) <= 0)
            return NULL;
    }
    return mem_strdup(text);
}

static void look_at_call(int pid, struct thread_state *thread)
{
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", pid, thread->id);
    long number;
    unsigned long first, second;
    if (!read_text(path, text, sizeof text) ||
        sscanf(text, "%ld %lx %lx", &number, &first, &second) != 3)
        return;
    size_t i = 0;
    while (i < COUNT_OF(calls) && calls[i].number != number) i++;
    if (i == COUNT_OF(calls)) {
        thread->call = mem_printf("system call %ld", number);
        return;
    }
    thread->call = mem_strdup(calls[i].name);
    switch (calls[i].file) {
    case NO_FILE: break;
    case DESCRIPTOR: thread->file = path_of_descriptor(pid, (long)first); break;
    case PATH: thread->file = text_at(pid, first); break;
    case PATH_BELOW: thread->file = text_at(pid, second); break;
    }
}

/* "PID (NAME) STATE ...": the name may contain anything. */
static char state_in(const char *path)
{
    char text[256];
    const char *end = read_text(path, text, sizeof text) ? strrchr(text, ')') : NULL;
    return end != NULL && end[1] == ' ' ? end[2] : '\0';
}

char process_state(long long pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/stat", pid);
    return state_in(path);
}

static void look_at(int pid, struct thread_state *thread)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/comm", pid, thread->id);
    if (read_text(path, thread->name, sizeof thread->name))
        thread->name[strcspn(thread->name, "\n")] = '\0';
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, thread->id);
    thread->state = state_in(path);
    look_at_call(pid, thread);
}

static void look_at_stack(struct thread_state *thread, int64_t timeout_ns)
{
    void *frames[STACK_FRAMES_MAX];
    int count = stack_capture(thread->id, frames, timeout_ns);
    thread->stack = mem_alloc_array((size_t)count + 1, sizeof *thread->stack);
    for (int i = 0; i < count; i++)
        thread->stack[thread->stack_count++] = stack_frame_name(frames, i);
}

void threads_look_at(struct thread_list *list, int pid)
{
    char path[64];
    *list = (struct thread_list){0};
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    const struct dirent *entry;
    while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
        int id = atoi(entry->d_name);
        if (id <= 0) continue;
        MEM_GROW(list->threads, list->count, list->capacity);
        list->threads[list->count] = (struct thread_state){.id = id};
        look_at(pid, &list->threads[list->count++]);
    }
    if (tasks != NULL) closedir(tasks);
}

/* All calls first: a signal ends some of them for a moment. */
void threads_look(struct thread_list *list)
{
    threads_look_at(list, getpid());
    int own = (int)syscall(SYS_gettid);
    int64_t until = clock_monotonic_ns() + ALL_NS;
    for (int i = 0; i < list->count; i++) {
        int64_t left = until - clock_monotonic_ns();
        if (left <= 0) break;
        if (list->threads[i].id != own)
            look_at_stack(&list->threads[i], left < EACH_NS ? left : EACH_NS);
    }
}

void threads_free(struct thread_list *list)
{
    for (int i = 0; i < list->count; i++) {
        struct thread_state *thread = &list->threads[i];
        for (int f = 0; f < thread->stack_count; f++) free(thread->stack[f]);
        free(thread->stack);
        free(thread->call);
        free(thread->file);
    }
    free(list->threads);
    *list = (struct thread_list){0};
}
