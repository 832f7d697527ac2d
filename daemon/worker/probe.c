/* Probes; see probe.h. A thread of the loop's pool resolves the name and waits for the connection. */
#include "worker/probe.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"
#include "proto/message.h"

enum { CONNECT_MS = 5000, LISTEN_MS = 15000 };

struct probe {
    uv_work_t work;
    struct prober *prober;
    char *address;
    int socket; /* that listens, or -1 */
    Fsdpd__V1__ProbeReport *report;
};

static status_t wait_connected(int fd, const struct sockaddr *to, socklen_t size)
{
    if (connect(fd, to, size) == 0) return NULL;
    if (errno != EINPROGRESS) return status_from_errno(errno, "connect");
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    if (poll(&wait, 1, CONNECT_MS) <= 0)
        return status_new(STATUS_DEADLINE_EXCEEDED, "connect: no answer within %d ms", CONNECT_MS);
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    return error == 0 ? NULL : status_from_errno(error, "connect");
}

static status_t begin_listening(int fd, const struct sockaddr *at, socklen_t size, uint32_t *port)
{
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    if (bind(fd, at, size) != 0 || listen(fd, 1) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &length) != 0)
        return status_from_errno(errno, "listen");
    const struct sockaddr_in *v4 = (const void *)&bound;
    const struct sockaddr_in6 *v6 = (const void *)&bound;
    *port = ntohs(bound.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
    return NULL;
}

static status_t run_at(struct probe *probe, const struct addrinfo *found, bool listens)
{
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return status_from_errno(errno, "socket");
    status_t status =
        listens ? begin_listening(fd, found->ai_addr, found->ai_addrlen, &probe->report->port)
                : wait_connected(fd, found->ai_addr, found->ai_addrlen);
    if (listens && status == NULL) probe->socket = fd;
    else close(fd);
    return status;
}

static void run(uv_work_t *work)
{
    struct probe *probe = work->data;
    char port[16];
    snprintf(port, sizeof port, "%u", probe->report->port);
    bool listens = probe->report->port == 0;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int error = getaddrinfo(probe->address, port, &hints, &found);
    probe->report->port = 0;
    status_t status = error != 0 ? status_new(STATUS_UNAVAILABLE, "%s", gai_strerror(error))
                                 : run_at(probe, found, listens);
    if (found != NULL) freeaddrinfo(found);
    if (status == NULL) return;
    status = status_wrap(status, "%s", probe->address);
    probe->report->code = (uint32_t)status_code(status);
    probe->report->message = mem_strdup(status_message(status));
    status_free(status);
}

static void stop_listening(struct prober *prober)
{
    if (prober->socket >= 0) close(prober->socket);
    prober->socket = -1;
}

static void on_listened(uv_timer_t *timer)
{
    stop_listening(timer->data);
}

static void on_done(uv_work_t *work, int cancelled)
{
    (void)cancelled;
    struct probe *probe = work->data;
    struct prober *prober = probe->prober;
    if (probe->socket >= 0) {
        stop_listening(prober);
        prober->socket = probe->socket;
        uv_timer_start(&prober->timer, on_listened, LISTEN_MS, 0);
    }
    prober->running--;
    prober->done(prober->user, probe->report);
    free(probe->address);
    free(probe);
}

void probe_start(struct prober *prober, const Fsdpd__V1__ProbeOrder *order)
{
    struct probe *probe = mem_alloc(sizeof *probe);
    *probe =
        (struct probe){.prober = prober, .address = mem_strdup(order->address), .socket = -1};
    probe->report = MESSAGE_NEW(probe->report, fsdpd__v1__probe_report__init);
    probe->report->number = order->number;
    probe->report->port = order->port;
    probe->work.data = probe;
    prober->running++;
    uv_queue_work(prober->loop, &probe->work, run, on_done);
}

void prober_init(struct prober *prober, uv_loop_t *loop, probe_done *done, void *user)
{
    *prober = (struct prober){.loop = loop, .socket = -1, .done = done, .user = user};
    uv_timer_init(loop, &prober->timer);
    prober->timer.data = prober;
}

void prober_close(struct prober *prober)
{
    stop_listening(prober);
    uv_close((uv_handle_t *)&prober->timer, NULL);
}
