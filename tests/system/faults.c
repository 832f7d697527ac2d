/*
 * Makes system calls fail, for tests: a library for LD_PRELOAD.
 *
 * FSDPD_FAULTS names a file of rules, one per line, that a test rewrites (by rename) while
 * processes run:
 *
 *     CALL PATTERN ERROR [skip=N] [times=N] [in=worker|fsdpd]
 *     connect 127.0.0.1:* ECONNREFUSED skip=2 times=1
 *     write *.safetensors ENOSPC
 *
 * CALL is one of those below, or `*`. PATTERN is matched by fnmatch against
 *
 *     fsync link mkdir open opendir read readdir rename stat unlink write     the file's path
 *     mmap                            the same, or "anonymous" if it has at least 256 KiB
 *     memfd                           its name
 *     bind connect recv send          the peer's address, else our own: 127.0.0.1:80, [::1]:80,
 *                                     unix:/path, unix:@abstract, or other
 *     accept listen socket            "inet", "unix" or "other"
 *     epoll eventfd pipe thread       "" (to create one)
 *     malloc                          the process and the name of the thread, "123:train", if it
 *                                     has at least 256 KiB
 *
 * and only in a worker, or in what is none, if it says so. The first rule that matches counts the
 * call. The call then fails with ERROR, or, if ERROR is a
 * number, takes that many milliseconds longer, or, if it is HOLD, waits until the rules change: not
 * the first `skip` calls, and at most `times` calls after them. All processes share the counts,
 * 64-bit numbers in the file FSDPD_FAULTS.hits, one per rule. Calls that libc makes inside stdio
 * are not seen.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"

enum { RULES_MAX = 256, LINE_MAX_BYTES = 512, HOLD_POLL_MS = 5, MEMORY_MIN_BYTES = 256 << 10 };

struct rule {
    char call[16], pattern[LINE_MAX_BYTES];
    int error;
    long delay_ms;
    bool holds;
    char in[16]; /* "": any process */
    uint64_t skip, times;
};

static struct rule rules[RULES_MAX];
static int rule_count;
static struct stat rules_seen;
static _Atomic uint64_t *hits;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread bool inside; /* a call of our own */

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static const struct {
    const char *name;
    int number;
} errors[] = {
    {"EACCES", EACCES},         {"EAGAIN", EAGAIN}, {"ECONNREFUSED", ECONNREFUSED},
    {"ECONNRESET", ECONNRESET}, {"EDQUOT", EDQUOT}, {"EIO", EIO},
    {"EINTR", EINTR},           {"EMFILE", EMFILE}, {"ENFILE", ENFILE},
    {"ENOMEM", ENOMEM},         {"ENOSPC", ENOSPC}, {"ENOTDIR", ENOTDIR},
    {"EPIPE", EPIPE},           {"EROFS", EROFS},   {"ETIMEDOUT", ETIMEDOUT},
};

static bool rule_parse(const char *line, struct rule *rule)
{
    char error[32], option[3][32] = {"", "", ""};
    *rule = (struct rule){.times = UINT64_MAX};
    if (sscanf(line, "%15s %511s %31s %31s %31s %31s", rule->call, rule->pattern, error, option[0],
               option[1], option[2]) < 3) {
        return false;
    }
    for (size_t i = 0; i < COUNT_OF(errors); i++) {
        if (strcmp(errors[i].name, error) == 0) {
            rule->error = errors[i].number;
        }
    }
    rule->holds = strcmp(error, "HOLD") == 0;
    rule->delay_ms = rule->error ? 0 : atol(error);
    for (int i = 0; i < 3; i++) {
        sscanf(option[i], "skip=%lu", &rule->skip);
        sscanf(option[i], "times=%lu", &rule->times);
        sscanf(option[i], "in=%15s", rule->in);
    }
    return rule->error != 0 || rule->delay_ms > 0 || rule->holds;
}

static void map_hits(const char *path)
{
    char name[4096];
    snprintf(name, sizeof(name), "%s.hits", path);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (hits) {
        munmap((void *)hits, RULES_MAX * sizeof(*hits));
        hits = NULL;
    }
    if (fd < 0 || ftruncate(fd, RULES_MAX * sizeof(*hits)) != 0) {
        fprintf(stderr, "faults.so: %s: %s\n", name, strerror(errno));
        _exit(99);
    }
    void *at = mmap(NULL, RULES_MAX * sizeof(*hits), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    hits = at == MAP_FAILED ? NULL : at;
    syscall(SYS_close, fd);
}

static bool is_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Reads the rules if the file has changed. */
static void rules_refresh(const char *path)
{
    struct stat now;
    if (stat(path, &now) != 0) {
        rule_count = 0;
        memset(&rules_seen, 0, sizeof(rules_seen));
        return;
    }
    if (is_same_file(&now, &rules_seen)) {
        return;
    }
    rules_seen = now;
    rule_count = 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    static char text[RULES_MAX * LINE_MAX_BYTES];
    ssize_t length = fd < 0 ? -1 : syscall(SYS_read, fd, text, sizeof(text) - 1);
    if (fd >= 0) {
        syscall(SYS_close, fd);
    }
    text[length > 0 ? length : 0] = '\0';
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) && rule_count < RULES_MAX;) {
        if (*line && !rule_parse(line, &rules[rule_count++])) {
            fprintf(stderr, "faults.so: %s: invalid rule: %s\n", path, line);
            _exit(99);
        }
    }
    map_hits(path);
}

static void sleep_ms(long ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

/* Returns when the file is no longer that one. */
static void wait_change(const char *path, const struct stat *seen)
{
    struct stat now;
    while (stat(path, &now) == 0 && is_same_file(&now, seen)) {
        sleep_ms(HOLD_POLL_MS);
    }
}

/* "worker", or "fsdpd". */
static const char *program(void)
{
    static char text[8192];
    static ssize_t length;
    if (length == 0) {
        int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC, 0);
        length = fd < 0 ? -1 : syscall(SYS_read, fd, text, sizeof(text) - 1);
        syscall(SYS_close, fd);
    }
    return length > 0 && strcmp(text + strlen(text) + 1, "worker") == 0 ? "worker" : "fsdpd";
}

static bool rule_matches(const struct rule *rule, const char *call, const char *object)
{
    return (strcmp(rule->call, call) == 0 || strcmp(rule->call, "*") == 0) &&
           (!rule->in[0] || strcmp(rule->in, program()) == 0) &&
           fnmatch(rule->pattern, object, 0) == 0;
}

/* The error with which this call must fail, or 0. Sleeps for a rule that delays or holds. */
static int fault(const char *call, const char *object)
{
    const char *path = getenv("FSDPD_FAULTS");
    if (!path || inside) {
        return 0;
    }
    int before = errno, error = 0;
    long delay_ms = 0;
    bool held = false;
    inside = true;
    pthread_mutex_lock(&lock);
    rules_refresh(path);
    const struct stat seen = rules_seen;
    for (int i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (rule_matches(rule, call, object)) {
            uint64_t count = hits ? atomic_fetch_add(&hits[i], 1) : 0;
            if (count >= rule->skip && count - rule->skip < rule->times) {
                error = rule->error;
                delay_ms = rule->delay_ms;
                held = rule->holds;
            }
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (delay_ms) {
        sleep_ms(delay_ms);
    }
    if (held) {
        wait_change(path, &seen);
    }
    inside = false;
    errno = before;
    return error;
}

static int fault_of_socket(const char *call, int fd);

static int fault_of_file(const char *call, int fd)
{
    char link[64], path[4096] = "";
    if (!getenv("FSDPD_FAULTS") || inside) {
        return 0;
    }
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    int before = errno;
    ssize_t length = syscall(SYS_readlink, link, path, sizeof(path) - 1);
    errno = before;
    if (length > 7 && memcmp(path, "socket:", 7) == 0) {
        return fault_of_socket(strcmp(call, "read") == 0 ? "recv" : "send", fd);
    }
    if (length <= 0 || path[0] != '/') {
        return 0; /* a pipe */
    }
    path[length] = '\0';
    return fault(call, path);
}

static int fault_of_family(const char *call, int family)
{
    return fault(call, family == AF_INET || family == AF_INET6 ? "inet"
                       : family == AF_UNIX                     ? "unix"
                                                               : "other");
}

static int fault_of_address(const char *call, const struct sockaddr *address, socklen_t size)
{
    char text[256] = "other", ip[INET6_ADDRSTRLEN];
    if (address->sa_family == AF_INET && size >= sizeof(struct sockaddr_in)) {
        const struct sockaddr_in *in = (const void *)address;
        inet_ntop(AF_INET, &in->sin_addr, ip, sizeof(ip));
        snprintf(text, sizeof(text), "%s:%d", ip, ntohs(in->sin_port));
    } else if (address->sa_family == AF_INET6 && size >= sizeof(struct sockaddr_in6)) {
        const struct sockaddr_in6 *in = (const void *)address;
        inet_ntop(AF_INET6, &in->sin6_addr, ip, sizeof(ip));
        snprintf(text, sizeof(text), "[%s]:%d", ip, ntohs(in->sin6_port));
    } else if (address->sa_family == AF_UNIX) {
        const struct sockaddr_un *un = (const void *)address;
        bool abstract = size > offsetof(struct sockaddr_un, sun_path) && un->sun_path[0] == '\0';
        int length = (int)(size - offsetof(struct sockaddr_un, sun_path)) - abstract;
        snprintf(text, sizeof(text), "unix:%s%.*s", abstract ? "@" : "", length,
                 un->sun_path + abstract);
    }
    return fault(call, text);
}

static int fault_of_socket(const char *call, int fd)
{
    struct sockaddr_storage own = {0};
    socklen_t size = sizeof(own);
    if (!getenv("FSDPD_FAULTS") || inside) {
        return 0;
    }
    int before = errno;
    /* A client of a socket with a path has no address of its own. */
    if (getpeername(fd, (struct sockaddr *)&own, &size) != 0 || size <= sizeof(sa_family_t)) {
        size = sizeof(own);
        getsockname(fd, (struct sockaddr *)&own, &size);
    }
    errno = before;
    return fault_of_address(call, (struct sockaddr *)&own, size);
}

/* FAIL_IF(x): returns -1 with errno x unless x is 0. */
#define FAIL_IF(expression)                                                                        \
    do {                                                                                           \
        int error_ = (expression);                                                                 \
        if (error_) {                                                                              \
            errno = error_;                                                                        \
            return -1;                                                                             \
        }                                                                                          \
    } while (0)

/* A call that returns `failed` with that error, if there is one. */
#define CALL(type, name, failed, error, parameters, arguments)                                     \
    type name parameters                                                                           \
    {                                                                                              \
        int error_ = error;                                                                        \
        if (error_) {                                                                              \
            errno = error_;                                                                        \
            return failed;                                                                         \
        }                                                                                          \
        return NEXT(name) arguments;                                                               \
    }

extern void *__libc_malloc(size_t size);

void *malloc(size_t size)
{
    char name[32] = "", text[64];
    if (size >= MEMORY_MIN_BYTES && !inside && prctl(PR_GET_NAME, name) == 0) {
        snprintf(text, sizeof(text), "%d:%s", (int)getpid(), name);
        int error = fault("malloc", text);
        if (error) {
            errno = error;
            return NULL;
        }
    }
    return __libc_malloc(size);
}

int accept(int fd, struct sockaddr *address, socklen_t *size)
{
    struct sockaddr_storage own = {0};
    getsockname(fd, (struct sockaddr *)&own, &(socklen_t){sizeof(own)});
    FAIL_IF(fault_of_family("accept", own.ss_family));
    return NEXT(accept)(fd, address, size);
}

int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags)
{
    struct sockaddr_storage own = {0};
    getsockname(fd, (struct sockaddr *)&own, &(socklen_t){sizeof(own)});
    FAIL_IF(fault_of_family("accept", own.ss_family));
    return NEXT(accept4)(fd, address, size, flags);
}

CALL(int, connect, -1, fault_of_address("connect", address, size),
     (int fd, const struct sockaddr *address, socklen_t size), (fd, address, size))
CALL(int, socket, -1, fault_of_family("socket", family), (int family, int type, int protocol),
     (family, type, protocol))

/* The path of an open or a mkdir relative to a directory, for the patterns. */
static int fault_at(const char *call, int directory, const char *path)
{
    char whole[8192], link[64], base[4096] = "";
    if (path[0] == '/' || !getenv("FSDPD_FAULTS") || inside) {
        return fault(call, path);
    }
    if (directory == AT_FDCWD) {
        snprintf(link, sizeof(link), "/proc/self/cwd");
    } else {
        snprintf(link, sizeof(link), "/proc/self/fd/%d", directory);
    }
    ssize_t length = readlink(link, base, sizeof(base) - 1);
    base[length > 0 ? length : 0] = '\0';
    snprintf(whole, sizeof(whole), "%s/%s", base, path);
    return fault(call, whole);
}

#define OPEN_MODE(mode, flags)                                                                     \
    mode_t mode = 0;                                                                               \
    if ((flags) & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) {                                        \
        va_list list_;                                                                             \
        va_start(list_, flags);                                                                    \
        mode = va_arg(list_, mode_t);                                                              \
        va_end(list_);                                                                             \
    }

int open(const char *path, int flags, ...)
{
    OPEN_MODE(mode, flags)
    FAIL_IF(fault_at("open", AT_FDCWD, path));
    return NEXT(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    OPEN_MODE(mode, flags)
    FAIL_IF(fault_at("open", AT_FDCWD, path));
    return NEXT(open64)(path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...)
{
    OPEN_MODE(mode, flags)
    FAIL_IF(fault_at("open", directory, path));
    return NEXT(openat)(directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...)
{
    OPEN_MODE(mode, flags)
    FAIL_IF(fault_at("open", directory, path));
    return NEXT(openat64)(directory, path, flags, mode);
}

CALL(int, mkdir, -1, fault_at("mkdir", AT_FDCWD, path), (const char *path, mode_t mode),
     (path, mode))
CALL(int, mkdirat, -1, fault_at("mkdir", directory, path),
     (int directory, const char *path, mode_t mode), (directory, path, mode))
CALL(int, rename, -1, fault_at("rename", AT_FDCWD, to), (const char *from, const char *to),
     (from, to))
CALL(int, renameat, -1, fault_at("rename", to_directory, to),
     (int from_directory, const char *from, int to_directory, const char *to),
     (from_directory, from, to_directory, to))
CALL(int, renameat2, -1, fault_at("rename", to_directory, to),
     (int from_directory, const char *from, int to_directory, const char *to, unsigned flags),
     (from_directory, from, to_directory, to, flags))
CALL(ssize_t, read, -1, fault_of_file("read", fd), (int fd, void *data, size_t size),
     (fd, data, size))
CALL(ssize_t, pread, -1, fault_of_file("read", fd), (int fd, void *data, size_t size, off_t offset),
     (fd, data, size, offset))
CALL(ssize_t, pread64, -1, fault_of_file("read", fd),
     (int fd, void *data, size_t size, off64_t offset), (fd, data, size, offset))
CALL(ssize_t, write, -1, fault_of_file("write", fd), (int fd, const void *data, size_t size),
     (fd, data, size))
CALL(ssize_t, pwrite, -1, fault_of_file("write", fd),
     (int fd, const void *data, size_t size, off_t offset), (fd, data, size, offset))
CALL(ssize_t, pwrite64, -1, fault_of_file("write", fd),
     (int fd, const void *data, size_t size, off64_t offset), (fd, data, size, offset))
CALL(ssize_t, writev, -1, fault_of_file("write", fd),
     (int fd, const struct iovec *parts, int count), (fd, parts, count))
CALL(int, ftruncate, -1, fault_of_file("write", fd), (int fd, off_t size), (fd, size))
CALL(int, ftruncate64, -1, fault_of_file("write", fd), (int fd, off64_t size), (fd, size))
CALL(int, fallocate, -1, fault_of_file("write", fd), (int fd, int mode, off_t offset, off_t size),
     (fd, mode, offset, size))

int posix_fallocate(int fd, off_t offset, off_t size)
{
    int error = fault_of_file("write", fd); /* returns the error, does not set errno */
    return error ? error : NEXT(posix_fallocate)(fd, offset, size);
}

CALL(int, fsync, -1, fault_of_file("fsync", fd), (int fd), (fd))
CALL(int, fdatasync, -1, fault_of_file("fsync", fd), (int fd), (fd))
CALL(FILE *, fopen, NULL, fault_at("open", AT_FDCWD, path), (const char *path, const char *mode),
     (path, mode))
CALL(int, unlink, -1, fault_at("unlink", AT_FDCWD, path), (const char *path), (path))
CALL(int, unlinkat, -1, fault_at("unlink", directory, path),
     (int directory, const char *path, int flags), (directory, path, flags))
CALL(int, rmdir, -1, fault_at("unlink", AT_FDCWD, path), (const char *path), (path))
CALL(int, link, -1, fault_at("link", AT_FDCWD, to), (const char *from, const char *to), (from, to))
CALL(int, stat, -1, fault_at("stat", AT_FDCWD, path), (const char *path, struct stat *info),
     (path, info))
CALL(int, lstat, -1, fault_at("stat", AT_FDCWD, path), (const char *path, struct stat *info),
     (path, info))
CALL(int, fstatat, -1, fault_at("stat", directory, path),
     (int directory, const char *path, struct stat *info, int flags),
     (directory, path, info, flags))
CALL(int, fstat, -1, fault_of_file("stat", fd), (int fd, struct stat *info), (fd, info))
CALL(int, stat64, -1, fault_at("stat", AT_FDCWD, path), (const char *path, struct stat64 *info),
     (path, info))
CALL(int, fstat64, -1, fault_of_file("stat", fd), (int fd, struct stat64 *info), (fd, info))
CALL(int, statvfs, -1, fault_at("stat", AT_FDCWD, path), (const char *path, struct statvfs *info),
     (path, info))
CALL(DIR *, opendir, NULL, fault_at("opendir", AT_FDCWD, path), (const char *path), (path))
CALL(DIR *, fdopendir, NULL, fault_of_file("opendir", fd), (int fd), (fd))
CALL(int, scandir, -1, fault_at("opendir", AT_FDCWD, path),
     (const char *path, struct dirent ***names, int (*filter)(const struct dirent *),
      int (*compare)(const struct dirent **, const struct dirent **)),
     (path, names, filter, compare))
CALL(struct dirent *, readdir, NULL, fault_of_file("readdir", dirfd(directory)), (DIR * directory),
     (directory))

static int fault_of_map(size_t size, int fd)
{
    return fd >= 0                    ? fault_of_file("mmap", fd)
           : size >= MEMORY_MIN_BYTES ? fault("mmap", "anonymous")
                                      : 0;
}

CALL(void *, mmap, MAP_FAILED, fault_of_map(size, fd),
     (void *at, size_t size, int protection, int flags, int fd, off_t offset),
     (at, size, protection, flags, fd, offset))
CALL(void *, mmap64, MAP_FAILED, fault_of_map(size, fd),
     (void *at, size_t size, int protection, int flags, int fd, off64_t offset),
     (at, size, protection, flags, fd, offset))
CALL(int, memfd_create, -1, fault("memfd", name), (const char *name, unsigned flags), (name, flags))
CALL(int, bind, -1, fault_of_address("bind", address, size),
     (int fd, const struct sockaddr *address, socklen_t size), (fd, address, size))

int listen(int fd, int backlog)
{
    struct sockaddr_storage own = {0};
    getsockname(fd, (struct sockaddr *)&own, &(socklen_t){sizeof(own)});
    FAIL_IF(fault_of_family("listen", own.ss_family));
    return NEXT(listen)(fd, backlog);
}

CALL(ssize_t, send, -1, fault_of_socket("send", fd),
     (int fd, const void *data, size_t size, int flags), (fd, data, size, flags))
CALL(ssize_t, sendto, -1, fault_of_socket("send", fd),
     (int fd, const void *data, size_t size, int flags, const struct sockaddr *address,
      socklen_t length),
     (fd, data, size, flags, address, length))
CALL(ssize_t, sendmsg, -1, fault_of_socket("send", fd),
     (int fd, const struct msghdr *message, int flags), (fd, message, flags))
CALL(ssize_t, recv, -1, fault_of_socket("recv", fd), (int fd, void *data, size_t size, int flags),
     (fd, data, size, flags))
CALL(ssize_t, recvmsg, -1, fault_of_socket("recv", fd), (int fd, struct msghdr *message, int flags),
     (fd, message, flags))
CALL(ssize_t, readv, -1, fault_of_file("read", fd), (int fd, const struct iovec *parts, int count),
     (fd, parts, count))
CALL(int, eventfd, -1, fault("eventfd", ""), (unsigned value, int flags), (value, flags))
CALL(int, epoll_create1, -1, fault("epoll", ""), (int flags), (flags))
CALL(int, pipe2, -1, fault("pipe", ""), (int ends[2], int flags), (ends, flags))

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument)
{
    int error = fault("thread", "");
    return error ? error : NEXT(pthread_create)(thread, attributes, run, argument);
}
