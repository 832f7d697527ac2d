/*
 * Listening sockets of a server. The loop accepts every connection itself, through the server's
 * lobby, for two reasons: only the process that accepts a connection of a Unix socket can ask for
 * its credentials, and only it can bound what unidentified clients consume. Once a connection has
 * sent its first bytes it goes to the per-peer server of its peer. The server owns its acceptors
 * and frees them when the lobby is gone. Everything runs on the loop's thread.
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
#include "rpc/address.h"
#include "rpc/peer_internal.h"
#include "rpc/server_internal.h"

enum { SOCKETS_PER_NAME = 8 };

struct rpc_acceptor {
    struct rpc_server *server;
    struct rpc_acceptor *next;
    struct rpc_peer_server *peer_server; /* of all its connections; NULL: one for each peer */
    char *path; /* of a socket file that we created and remove when closing; otherwise NULL */
    struct stat made;
};

bool rpc_acceptor_has_room(void *entrance, const struct rpc_origin *origin)
{
    struct rpc_acceptor *acceptor = entrance;
    return acceptor->peer_server == NULL || rpc_peer_server_has_room(acceptor->peer_server, origin);
}

void rpc_acceptor_admit(void *entrance, int fd, const struct rpc_origin *origin)
{
    struct rpc_acceptor *acceptor = entrance;
    struct rpc_peer_server *peer_server = acceptor->peer_server;
    struct rpc_peer peer;
    if (peer_server == NULL && rpc_peer_of_socket(fd, &acceptor->server->operators, &peer))
        peer_server = rpc_peer_server_open(acceptor->server, &peer);
    if (peer_server != NULL) rpc_peer_server_connect(peer_server, fd, origin);
    else close(fd);
}

static status_t accept_at(struct rpc_server *server, int fd, struct rpc_peer_server *peer_server,
                          struct rpc_acceptor **out)
{
    int listens = 0, type = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) < 0)
        return status_from_errno(errno, "descriptor %d is not a socket", fd);
    size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0 || type != SOCK_STREAM || !listens)
        return status_new(STATUS_INVALID_ARGUMENT, "descriptor %d is not a listening stream socket",
                          fd);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return status_from_errno(errno, "descriptor %d", fd);
    struct rpc_acceptor *acceptor = mem_alloc(sizeof *acceptor);
    status_t status =
        rpc_lobby_listen(server->lobby, fd,
                         peer_server != NULL ? rpc_opening_tls : rpc_opening_http2, acceptor);
    if (status != NULL) {
        free(acceptor);
        return status;
    }
    acceptor->server = server;
    acceptor->peer_server = peer_server;
    acceptor->next = server->acceptors;
    server->acceptors = acceptor;
    *out = acceptor;
    return NULL;
}

status_t rpc_server_listen_fd(struct rpc_server *server, int fd)
{
    struct rpc_acceptor *acceptor = NULL;
    return accept_at(server, fd, NULL, &acceptor);
}

status_t rpc_acceptor_bind(struct rpc_server *server, const char *path, int mode)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path)); /* its length was checked */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return status_new(STATUS_UNAVAILABLE, "cannot listen on unix:%s: %s", path,
                          strerror(errno));
    /* Apply the mode with the umask, so that the socket never has more permissions, not even
     * between bind and a chmod. */
    mode_t before = umask((mode_t)~mode & 0777);
    int error = bind(fd, (struct sockaddr *)&address, sizeof address) == 0 ? 0 : errno;
    umask(before);
    struct rpc_acceptor *acceptor = NULL;
    status_t status = NULL;
    struct stat made = {0};
    if (error == 0) {
        if (lstat(path, &made) != 0 || listen(fd, RPC_BACKLOG) != 0) error = errno;
        else status = accept_at(server, fd, NULL, &acceptor);
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
    return NULL;
}

status_t rpc_acceptor_bind_tcp(struct rpc_server *server, const char *normal,
                               struct rpc_peer_server *peer_server, int *port)
{
    int fds[SOCKETS_PER_NAME], count = 0;
    TRY(rpc_address_listen(normal, fds, SOCKETS_PER_NAME, &count, port));
    status_t status = NULL;
    for (int i = 0; i < count; i++) {
        struct rpc_acceptor *acceptor = NULL;
        if (status == NULL) status = accept_at(server, fds[i], peer_server, &acceptor);
        if (acceptor == NULL) close(fds[i]);
    }
    return status;
}

/* Remove the file only if it is still ours: another server may have replaced it. */
static void remove_socket(const struct rpc_acceptor *acceptor)
{
    struct stat info;
    if (acceptor->path == NULL || lstat(acceptor->path, &info) != 0) return;
    if (info.st_ino == acceptor->made.st_ino && info.st_dev == acceptor->made.st_dev)
        unlink(acceptor->path);
}

static void on_lobby_gone(void *user)
{
    struct rpc_server *server = user;
    server->lobby = NULL;
    rpc_server_maybe_free(server);
}

void rpc_acceptors_close(struct rpc_server *server)
{
    for (struct rpc_acceptor *i = server->acceptors; i != NULL; i = i->next) remove_socket(i);
    rpc_lobby_close(server->lobby, on_lobby_gone, server);
}

void rpc_acceptors_free(struct rpc_server *server)
{
    for (struct rpc_acceptor *i = server->acceptors, *next; i != NULL; i = next) {
        next = i->next;
        free(i->path);
        free(i);
    }
}
