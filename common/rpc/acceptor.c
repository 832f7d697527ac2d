/*
 * Listening sockets whose connections the loop accepts itself: Unix sockets, because only who
 * accepts a connection learns whose it is, and those that somebody else has bound, a service
 * manager for instance. Each connection goes to the door of its peer. An acceptor belongs to its
 * server and goes when both its handles have closed. Everything runs on the loop's thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/mem.h"
#include "rpc/internal.h"

enum { ACCEPTS_AT_ONCE = 64, PAUSE_MS = 100, BACKLOG = 1024 };

struct rpc_acceptor {
    struct rpc_server *server;
    struct rpc_acceptor *next;
    int fd;
    char *path; /* of a socket that we have made, to be removed in the end; else NULL */
    struct stat made;
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
        struct rpc_peer peer;
        struct rpc_door *door = NULL;
        if (rpc_peer_of_socket(fd, &acceptor->server->operators, &peer))
            door = rpc_door_open(acceptor->server, &peer);
        if (door != NULL) rpc_door_connect(door, fd);
        else close(fd);
    }
}

static status_t accept_at(struct rpc_server *server, int fd, struct rpc_acceptor **out)
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
    *out = acceptor;
    return STATUS_OKAY;
}

status_t rpc_server_listen_fd(struct rpc_server *server, int fd)
{
    struct rpc_acceptor *acceptor = NULL;
    return accept_at(server, fd, &acceptor);
}

status_t rpc_acceptor_bind(struct rpc_server *server, const char *path, int mode)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path)); /* its length was checked */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return status_new(STATUS_UNAVAILABLE, "cannot listen on unix:%s: %s", path,
                          strerror(errno));
    /* The socket must never have more than its mode, not even between bind and a chmod. */
    mode_t before = umask((mode_t)~mode & 0777);
    int error = bind(fd, (struct sockaddr *)&address, sizeof address) == 0 ? 0 : errno;
    umask(before);
    struct rpc_acceptor *acceptor = NULL;
    status_t status = NULL;
    struct stat made = {0};
    if (error == 0) {
        if (lstat(path, &made) != 0 || listen(fd, BACKLOG) != 0) error = errno;
        else status = accept_at(server, fd, &acceptor);
        if (error != 0 || status != NULL) unlink(path);
    }
    if (error != 0)
        status =
            status_new(STATUS_UNAVAILABLE, "cannot listen on unix:%s: %s", path, strerror(error));
    if (status != NULL) {
        close(fd);
        return status;
    }
    acceptor->path = mem_strdup(path);
    acceptor->made = made;
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
    free(acceptor->path);
    free(acceptor);
    rpc_server_settle(server);
}

/* Another server may have put its own socket there. */
static void remove_socket(const struct rpc_acceptor *acceptor)
{
    struct stat info;
    if (acceptor->path == NULL || lstat(acceptor->path, &info) != 0) return;
    if (info.st_ino == acceptor->made.st_ino && info.st_dev == acceptor->made.st_dev)
        unlink(acceptor->path);
}

void rpc_acceptors_close(struct rpc_server *server)
{
    for (struct rpc_acceptor *i = server->acceptors; i != NULL; i = i->next) {
        remove_socket(i);
        uv_close((uv_handle_t *)&i->poll, on_handle_closed);
        uv_close((uv_handle_t *)&i->pause, on_handle_closed);
    }
}
