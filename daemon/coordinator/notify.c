/* systemd's notifications; see notify.h. */
#include "coordinator/notify.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"

static struct sockaddr_un address;
static socklen_t address_size; /* 0: there is no socket */
static int watchdog_ms;

/* Reads a variable as a number, and removes it from the environment; 0 if it is not a number. */
static int64_t take_number(const char *name)
{
    const char *text = getenv(name);
    int64_t value = 0;
    if (text == NULL || !text_parse_i64(text, &value) || value < 0) value = 0;
    unsetenv(name);
    return value;
}

int notify_take_sockets(int *first)
{
    enum { FIRST = 3, MOST = 64 };
    int64_t pid = take_number("LISTEN_PID"), count = take_number("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    *first = FIRST;
    if (pid != getpid() || count > MOST) return 0;
    for (int i = 0; i < count; i++) fcntl(FIRST + i, F_SETFD, FD_CLOEXEC);
    return (int)count;
}

int notify_watchdog_ms(void)
{
    return watchdog_ms;
}

void notify_init(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    size_t length = path != NULL ? strlen(path) : 0;
    address_size = 0;
    if (length >= 2 && length < sizeof address.sun_path && (path[0] == '/' || path[0] == '@')) {
        address = (struct sockaddr_un){.sun_family = AF_UNIX};
        memcpy(address.sun_path, path, length);
        if (path[0] == '@') address.sun_path[0] = '\0'; /* an abstract name */
        address_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    }
    unsetenv("NOTIFY_SOCKET");
    int64_t pid = take_number("WATCHDOG_PID"), period = take_number("WATCHDOG_USEC");
    watchdog_ms = 0;
    if (address_size > 0 && (pid == 0 || pid == getpid()) && period > 0)
        watchdog_ms = period / 1000 > 3600000 ? 3600000 : (int)(period / 1000) + 1;
}

void notify_send(const char *format, ...)
{
    if (address_size == 0) return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    ssize_t sent = sendto(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT,
                          (struct sockaddr *)&address, address_size);
    (void)sent; /* errors are ignored */
    close(fd);
}

void notify_reloading(void)
{
    notify_send("RELOADING=1\nMONOTONIC_USEC=%lld", (long long)(clock_monotonic_ns() / 1000));
}
