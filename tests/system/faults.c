/*
 * Makes system calls fail, for tests: a library for LD_PRELOAD.
 *
 * FSDPD_FAULTS names a file of rules, one per line, that a test rewrites (by rename) while
 * processes run:
 *
 *     CALL PATTERN ERROR [skip=N] [times=N]
 *     connect 127.0.0.1:* ECONNREFUSED skip=2 times=1
 *     write *.safetensors ENOSPC
 *
 * CALL is one of accept, connect, fsync, malloc, mkdir, open, read, rename, socket, write. PATTERN
 * is matched by fnmatch against the file's path, the peer's address (127.0.0.1:80, [::1]:80,
 * unix:/path, unix:@abstract), or, for accept and socket, against "inet", "unix" or "other"; for a
 * malloc of at least 256 KiB, against the process and the name of the thread, "123:train". The
 * first rule that matches counts the call. The call then fails with ERROR, or, if ERROR is a
 * number, takes that many milliseconds longer, or, if it is HOLD, waits until the rules change: not
 * the first `skip` calls, and at most `times` calls after them. All processes share the counts,
 * 64-bit numbers in the file FSDPD_FAULTS.hits, one per rule. Calls that libc makes inside stdio are
 * not seen.
 */
#include <arpa/inet.h>
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
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"

enum { RULES_MAX = 32, LINE_MAX_BYTES = 512, HOLD_POLL_MS = 5, MALLOC_MIN_BYTES = 256 << 10 };

struct rule {
    char call[16], pattern[LINE_MAX_BYTES];
    int error;
    long delay_ms;
    bool holds;
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
    {"EACCES", EACCES},
    {"ECONNREFUSED", ECONNREFUSED},
    {"ECONNRESET", ECONNRESET},
    {"EDQUOT", EDQUOT},
    {"EIO", EIO},
    {"EMFILE", EMFILE},
    {"ENFILE", ENFILE},
    {"ENOMEM", ENOMEM},
    {"ENOSPC", ENOSPC},
    {"ENOTDIR", ENOTDIR},
    {"EROFS", EROFS},
    {"ETIMEDOUT", ETIMEDOUT},
};

static bool rule_parse(const char *line, struct rule *rule)
{
    char error[32], option[2][32] = {"", ""};
    *rule = (struct rule){.times = UINT64_MAX};
    if (sscanf(line, "%15s %511s %31s %31s %31s", rule->call, rule->pattern, error, option[0],
               option[1]) < 3) {
        return false;
    }
    for (size_t i = 0; i < COUNT_OF(errors); i++) {
        if (strcmp(errors[i].name, error) == 0) {
            rule->error = errors[i].number;
        }
    }
    rule->holds = strcmp(error, "HOLD") == 0;
    rule->delay_ms = rule->error ? 0 : atol(error);
    for (int i = 0; i < 2; i++) {
        sscanf(option[i], "skip=%lu", &rule->skip);
        sscanf(option[i], "times=%lu", &rule->times);
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
    char text[RULES_MAX * LINE_MAX_BYTES];
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
        if (strcmp(rule->call, call) == 0 && fnmatch(rule->pattern, object, 0) == 0) {
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

static int fault_of_file(const char *call, int fd)
{
    char link[64], path[4096] = "";
    if (!getenv("FSDPD_FAULTS") || inside) {
        return 0;
    }
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    int before = errno;
    ssize_t length = readlink(link, path, sizeof(path) - 1);
    errno = before;
    if (length <= 0 || path[0] != '/') {
        return 0; /* a socket or a pipe */
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

static int fault_of_address(const struct sockaddr *address, socklen_t size)
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
    return fault("connect", text);
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

extern void *__libc_malloc(size_t size);

void *malloc(size_t size)
{
    char name[32] = "", text[64];
    if (size >= MALLOC_MIN_BYTES && !inside && prctl(PR_GET_NAME, name) == 0) {
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

int connect(int fd, const struct sockaddr *address, socklen_t size)
{
    FAIL_IF(fault_of_address(address, size));
    return NEXT(connect)(fd, address, size);
}

int socket(int family, int type, int protocol)
{
    FAIL_IF(fault_of_family("socket", family));
    return NEXT(socket)(family, type, protocol);
}

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

int mkdir(const char *path, mode_t mode)
{
    FAIL_IF(fault_at("mkdir", AT_FDCWD, path));
    return NEXT(mkdir)(path, mode);
}

int mkdirat(int directory, const char *path, mode_t mode)
{
    FAIL_IF(fault_at("mkdir", directory, path));
    return NEXT(mkdirat)(directory, path, mode);
}

int rename(const char *from, const char *to)
{
    FAIL_IF(fault_at("rename", AT_FDCWD, to));
    return NEXT(rename)(from, to);
}

int renameat(int from_directory, const char *from, int to_directory, const char *to)
{
    FAIL_IF(fault_at("rename", to_directory, to));
    return NEXT(renameat)(from_directory, from, to_directory, to);
}

int renameat2(int from_directory, const char *from, int to_directory, const char *to,
              unsigned flags)
{
    FAIL_IF(fault_at("rename", to_directory, to));
    return NEXT(renameat2)(from_directory, from, to_directory, to, flags);
}

ssize_t read(int fd, void *data, size_t size)
{
    FAIL_IF(fault_of_file("read", fd));
    return NEXT(read)(fd, data, size);
}

ssize_t pread(int fd, void *data, size_t size, off_t offset)
{
    FAIL_IF(fault_of_file("read", fd));
    return NEXT(pread)(fd, data, size, offset);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t offset)
{
    FAIL_IF(fault_of_file("read", fd));
    return NEXT(pread64)(fd, data, size, offset);
}

ssize_t write(int fd, const void *data, size_t size)
{
    FAIL_IF(fault_of_file("write", fd));
    return NEXT(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    FAIL_IF(fault_of_file("write", fd));
    return NEXT(pwrite)(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    FAIL_IF(fault_of_file("write", fd));
    return NEXT(pwrite64)(fd, data, size, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    FAIL_IF(fault_of_file("write", fd));
    return NEXT(writev)(fd, parts, count);
}

int ftruncate(int fd, off_t size)
{
    FAIL_IF(fault_of_file("write", fd));
    return NEXT(ftruncate)(fd, size);
}

int ftruncate64(int fd, off64_t size)
{
    FAIL_IF(fault_of_file("write", fd));
    return NEXT(ftruncate64)(fd, size);
}

int fallocate(int fd, int mode, off_t offset, off_t size)
{
    FAIL_IF(fault_of_file("write", fd));
    return NEXT(fallocate)(fd, mode, offset, size);
}

int posix_fallocate(int fd, off_t offset, off_t size)
{
    int error = fault_of_file("write", fd); /* returns the error, does not set errno */
    return error ? error : NEXT(posix_fallocate)(fd, offset, size);
}

int fsync(int fd)
{
    FAIL_IF(fault_of_file("fsync", fd));
    return NEXT(fsync)(fd);
}

int fdatasync(int fd)
{
    FAIL_IF(fault_of_file("fsync", fd));
    return NEXT(fdatasync)(fd);
}
