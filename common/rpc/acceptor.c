/*
 * Listening sockets that somebody else has bound, a service manager for instance: the loop accepts,
 * and hands each connection to gRPC. An acceptor belongs to its server and goes when both its
 * handles have closed. Everything runs on the loop's thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "rpc/internal.h"

enum { ACCEPTS_AT_ONCE = 64, PAUSE_MS = 100 };

struct rpc_acceptor {
    struct rpc_server *server;
    struct rpc_acceptor *next;
    int fd;
    uv_poll_t poll;
    uv_timer_t pause; /* while there are no descriptors left to accept with */
    int open_handles;
};

static void on_readable(uv_poll_t *poll, int status, int events);

static void on_pause_over(uv_timer_t *timer)
{
    struct rpc_acceptor *acceptor = timer->data;
    uv_poll_start(&acceptor->poll, UV_READABLE, on_readable);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct rpc_acceptor *acceptor = poll->data;
    (void)status, (void)events;
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = accept4(acceptor->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            /* The connection keeps waiting; looking again at once would only burn time. */
            uv_poll_stop(poll);
            uv_timer_start(&acceptor->pause, on_pause_over, PAUSE_MS, 0);
        }
        if (fd < 0) return; /* nobody waits any more, or who did is gone */
        grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
        grpc_server_add_channel_from_fd(acceptor->server->server, fd, credentials);
        grpc_server_credentials_release(credentials);
    }
}

status_t rpc_server_listen_fd(struct rpc_server *server, int fd)
{
    int listens = 0, type = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) < 0)
        return status_from_errno(errno, "descriptor %d is no socket", fd);
    size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0 || type != SOCK_STREAM || !listens)
        return status_new(STATUS_INVALID_ARGUMENT, "descriptor %d is no stream socket that listens",
                          fd);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return status_from_errno(errno, "descriptor %d", fd);
    struct rpc_acceptor *acceptor = mem_alloc(sizeof *acceptor);
    acceptor->server = server;
    acceptor->fd = fd;
    uv_loop_t *loop = rpc_runtime_loop(server->runtime);
    int error = uv_poll_init(loop, &acceptor->poll, fd);
    if (error != 0) {
        free(acceptor);
        return status_new(STATUS_INTERNAL, "descriptor %d cannot be polled: %s", fd,
                          uv_strerror(error));
    }
    uv_timer_init(loop, &acceptor->pause);
    acceptor->poll.data = acceptor->pause.data = acceptor;
    acceptor->open_handles = 2;
    acceptor->next = server->acceptors;
    server->acceptors = acceptor;
    return STATUS_OKAY;
}

void rpc_acceptors_start(struct rpc_server *server)
{
    for (struct rpc_acceptor *i = server->acceptors; i != NULL; i = i->next)
        uv_poll_start(&i->poll, UV_READABLE, on_readable);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct rpc_acceptor *acceptor = handle->data;
    struct rpc_server *server = acceptor->server;
    if (--acceptor->open_handles > 0) return;
    struct rpc_acceptor **link = &server->acceptors;
    while (*link != acceptor) link = &(*link)->next;
    *link = acceptor->next;
    close(acceptor->fd);
    free(acceptor);
    rpc_server_settle(server);
}

void rpc_acceptors_close(struct rpc_server *server)
{
    for (struct rpc_acceptor *i = server->acceptors; i != NULL; i = i->next) {
        uv_close((uv_handle_t *)&i->poll, on_handle_closed);
        uv_close((uv_handle_t *)&i->pause, on_handle_closed);
    }
}
