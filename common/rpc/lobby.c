/* Connections that have not sent their first bytes yet; see lobby.h. */
#include "rpc/lobby.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

enum {
    ACCEPTS_AT_ONCE = 64,
    PAUSE_MS = 100, /* pause between attempts while no descriptors are left to accept with, */
    FULL_MS = 5,    /* or while the lobby is full of connections that have just arrived */
    TICK_MS = 100,
    TURN_MS = 50, /* how long a new connection is safe from being replaced by another */
    LOG_EVERY_MS = 10000,
    TLS_RECORD_HEADER = 5,
    OPENING_MAX = TLS_RECORD_HEADER + (16 << 10), /* the largest TLS record */
};

/* A connection that waits. */
struct guest {
    struct rpc_lobby *lobby;
    struct entrance *entrance;
    struct guest *next, **link; /* in order of arrival */
    int fd;
    struct rpc_origin origin;
    uint64_t since;
    uv_poll_t poll;
};

/* A listening socket. */
struct entrance {
    struct rpc_lobby *lobby;
    struct entrance *next;
    int fd;
    enum rpc_opening (*opening)(const char *bytes, size_t size);
    void *user;
    int count; /* number of its waiting connections */
    uv_poll_t poll;
    uv_timer_t pause; /* until it accepts again */
};

struct rpc_lobby {
    uv_loop_t *loop;
    struct rpc_lobby_options options;
    struct guest *first, **last;
    int count;
    struct entrance *entrances;
    int entrance_count;
    uv_timer_t tick; /* runs while a connection waits */
    int open_handles;
    bool closing;
    int silent, replaced; /* connections closed since the last log line */
    uint64_t logged_at;
    void (*gone)(void *user);
    void *gone_user;
};

/* ---- openings ---- */

enum rpc_opening rpc_opening_http2(const char *bytes, size_t size)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    size_t whole = sizeof preface - 1, known = size < whole ? size : whole;
    if (memcmp(bytes, preface, known) != 0) return RPC_OPENING_WRONG;
    return known == whole ? RPC_OPENING_WHOLE : RPC_OPENING_PART;
}

enum rpc_opening rpc_opening_tls(const char *bytes, size_t size)
{
    enum { HANDSHAKE = 22, MAJOR_VERSION = 3 };
    const unsigned char *record = (const unsigned char *)bytes;
    if (size > 0 && record[0] != HANDSHAKE) return RPC_OPENING_WRONG;
    if (size > 1 && record[1] != MAJOR_VERSION) return RPC_OPENING_WRONG;
    if (size < TLS_RECORD_HEADER) return RPC_OPENING_PART;
    size_t whole = TLS_RECORD_HEADER + ((size_t)record[3] << 8 | record[4]);
    if (whole > OPENING_MAX) return RPC_OPENING_WRONG;
    return size < whole ? RPC_OPENING_PART : RPC_OPENING_WHOLE;
}

enum rpc_opening rpc_opening_http1(const char *bytes, size_t size)
{
    if (memmem(bytes, size, "\r\n\r\n", 4) != NULL) return RPC_OPENING_WHOLE;
    /* Headers that are too long go to the HTTP server, which answers with an error. */
    return size == OPENING_MAX ? RPC_OPENING_WHOLE : RPC_OPENING_PART;
}

/* ---- guests ---- */

static void release(struct rpc_lobby *lobby);

static void log_dropped(struct rpc_lobby *lobby)
{
    uint64_t now = uv_now(lobby->loop);
    bool any = lobby->silent > 0 || lobby->replaced > 0;
    if (!any || (lobby->logged_at != 0 && now - lobby->logged_at < LOG_EVERY_MS)) return;
    log_event(LOG_WARNING, "silent_connections_closed", "deadline=%d full=%d waiting=%d",
              lobby->silent, lobby->replaced, lobby->count);
    lobby->silent = lobby->replaced = 0;
    lobby->logged_at = now;
}

static void on_guest_gone(uv_handle_t *handle)
{
    struct guest *guest = handle->data;
    struct rpc_lobby *lobby = guest->lobby;
    free(guest); /* and `handle`, a member of it */
    release(lobby);
}

/* Removes the guest from the list and the loop. Its descriptor stays open. */
static int leave(struct guest *guest)
{
    int fd = guest->fd;
    *guest->link = guest->next;
    if (guest->next != NULL) guest->next->link = guest->link;
    else guest->lobby->last = guest->link;
    guest->lobby->count--;
    guest->entrance->count--;
    uv_poll_stop(&guest->poll);
    uv_close((uv_handle_t *)&guest->poll, on_guest_gone);
    return fd;
}

/* Classifies the bytes sent so far; WRONG also if the peer is gone. */
static enum rpc_opening classify(const struct guest *guest)
{
    char bytes[OPENING_MAX];
    ssize_t count = recv(guest->fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    if (count > 0) return guest->entrance->opening(bytes, (size_t)count);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return RPC_OPENING_PART;
    return RPC_OPENING_WRONG;
}

/* Admits the guest if it has sent its first bytes and there is room. */
static void serve(struct guest *guest)
{
    const struct rpc_lobby_options *options = &guest->lobby->options;
    void *entrance = guest->entrance->user;
    struct rpc_origin origin = guest->origin;
    switch (classify(guest)) {
    case RPC_OPENING_WRONG: close(leave(guest)); break;
    case RPC_OPENING_PART: break;
    case RPC_OPENING_WHOLE:
        if (options->has_room == NULL || options->has_room(entrance, &origin))
            options->admit(entrance, leave(guest), &origin);
        break;
    }
}

/* It has sent something, or may be about to. */
static void refuse(struct guest *guest)
{
    const struct rpc_lobby_options *options = &guest->lobby->options;
    void *entrance = guest->entrance->user;
    int fd = leave(guest);
    if (options->refuse != NULL) options->refuse(entrance, fd);
    else close(fd);
}

static void on_bytes(uv_poll_t *poll, int status, int events)
{
    struct guest *guest = poll->data;
    (void)status, (void)events;
    /* Unread bytes would wake the loop again and again; from now on the tick checks. Those that
     * have waited for longer come first. */
    uv_poll_stop(poll);
    for (struct guest *earlier = guest->lobby->first, *next; earlier != guest; earlier = next) {
        next = earlier->next;
        if (earlier->entrance == guest->entrance && !uv_is_active((uv_handle_t *)&earlier->poll))
            serve(earlier);
    }
    serve(guest);
}

static void on_tick(uv_timer_t *timer)
{
    struct rpc_lobby *lobby = timer->data;
    uint64_t now = uv_now(lobby->loop);
    for (struct guest *guest = lobby->first, *next; guest != NULL; guest = next) {
        next = guest->next;
        const int count = lobby->count;
        const bool over = now - guest->since >= (uint64_t)lobby->options.deadline_ms;
        if (over || !uv_is_active((uv_handle_t *)&guest->poll)) serve(guest);
        if (!over || lobby->count < count) continue;
        lobby->silent++;
        if (classify(guest) == RPC_OPENING_WHOLE) refuse(guest);
        else close(leave(guest));
    }
    log_dropped(lobby);
    if (lobby->count == 0 && lobby->silent == 0 && lobby->replaced == 0) uv_timer_stop(timer);
}

/* ---- who may wait ---- */

static void find_origin(int fd, struct rpc_origin *origin)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address = {0};
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t size = sizeof address;
    *origin = (struct rpc_origin){0};
    if (getpeername(fd, &address.any, &size) != 0) return;
    if (address.any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &address.v4.sin_addr, origin->host, sizeof origin->host);
        origin->port = ntohs(address.v4.sin_port);
    } else if (address.any.sa_family == AF_INET6) {
        const struct in6_addr *host = &address.v6.sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(host))
            inet_ntop(AF_INET, host->s6_addr + 12, origin->host, sizeof origin->host);
        else inet_ntop(AF_INET6, host, origin->host, sizeof origin->host);
        origin->port = ntohs(address.v6.sin6_port);
    } else {
        size = sizeof peer;
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
        snprintf(origin->host, sizeof origin->host, "uid:%lu", (unsigned long)peer.uid);
    }
}

static int count_origin(const struct rpc_lobby *lobby, const struct rpc_origin *origin)
{
    int count = 0;
    for (const struct guest *i = lobby->first; i != NULL; i = i->next)
        count += strcmp(i->origin.host, origin->host) == 0;
    return count;
}

/* The oldest guest of the origin with the most guests at this entrance, if its grace time is over;
 * otherwise NULL, for a burst must not replace those that others have had here for longer. */
static struct guest *choose_last(const struct entrance *entrance)
{
    const struct rpc_lobby *lobby = entrance->lobby;
    struct guest *chosen = NULL;
    int most = 0;
    for (struct guest *i = lobby->first; i != NULL && most <= entrance->count / 2; i = i->next) {
        int count = i->entrance == entrance ? count_origin(lobby, &i->origin) : 0;
        if (count <= most) continue;
        most = count;
        chosen = i;
    }
    return chosen != NULL && uv_now(lobby->loop) - chosen->since >= TURN_MS ? chosen : NULL;
}

/* Whether another connection may wait; it may replace one. Entrances share the places, so
 * connections of one never take those of another. */
static bool make_room(struct entrance *entrance)
{
    struct rpc_lobby *lobby = entrance->lobby;
    int share = lobby->options.most / lobby->entrance_count;
    if (entrance->count < (share > 0 ? share : 1)) return true;
    struct pollfd next = {.fd = entrance->fd, .events = POLLIN};
    if (poll(&next, 1, 0) == 0) return true; /* there is none */
    struct guest *last = choose_last(entrance);
    if (last == NULL) return false;
    const int count = lobby->count;
    serve(last); /* its bytes may be there, which the loop has not seen yet */
    if (lobby->count < count) return true;
    lobby->replaced++;
    refuse(last);
    return true;
}

static void enter(struct entrance *entrance, int fd)
{
    struct rpc_lobby *lobby = entrance->lobby;
    struct guest *guest = mem_alloc(sizeof *guest);
    if (uv_poll_init(lobby->loop, &guest->poll, fd) != 0) {
        free(guest);
        close(fd);
        return;
    }
    lobby->open_handles++;
    guest->poll.data = guest;
    guest->lobby = lobby;
    guest->entrance = entrance;
    guest->fd = fd;
    guest->since = uv_now(lobby->loop);
    find_origin(fd, &guest->origin);
    guest->link = lobby->last;
    *lobby->last = guest;
    lobby->last = &guest->next;
    lobby->count++;
    entrance->count++;
    uv_poll_start(&guest->poll, UV_READABLE, on_bytes);
    if (!uv_is_active((uv_handle_t *)&lobby->tick))
        uv_timer_start(&lobby->tick, on_tick, TICK_MS, TICK_MS);
}

/* ---- entrances ---- */

static void on_connection(uv_poll_t *poll, int status, int events);

static void on_pause_over(uv_timer_t *timer)
{
    struct entrance *entrance = timer->data;
    uv_poll_start(&entrance->poll, UV_READABLE, on_connection);
}

/* Connections keep waiting in the kernel; retrying at once would only waste time. */
static void pause_accepting(struct entrance *entrance, int ms)
{
    uv_poll_stop(&entrance->poll);
    uv_timer_start(&entrance->pause, on_pause_over, (uint64_t)ms, 0);
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct entrance *entrance = poll->data;
    (void)status, (void)events;
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        if (!make_room(entrance)) {
            pause_accepting(entrance, FULL_MS);
            return;
        }
        int fd = accept4(entrance->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
            pause_accepting(entrance, PAUSE_MS);
        if (fd < 0) return; /* no more pending connections */
        enter(entrance, fd);
    }
}

struct rpc_lobby *rpc_lobby_new(uv_loop_t *loop, const struct rpc_lobby_options *options)
{
    struct rpc_lobby *lobby = mem_alloc(sizeof *lobby);
    lobby->loop = loop;
    lobby->options = *options;
    lobby->last = &lobby->first;
    uv_timer_init(loop, &lobby->tick);
    lobby->tick.data = lobby;
    lobby->open_handles = 1;
    return lobby;
}

void rpc_lobby_set_most(struct rpc_lobby *lobby, int most)
{
    lobby->options.most = most;
}

status_t rpc_lobby_listen(struct rpc_lobby *lobby, int fd,
                          enum rpc_opening (*opening)(const char *bytes, size_t size), void *user)
{
    struct entrance *entrance = mem_alloc(sizeof *entrance);
    int error = uv_poll_init(lobby->loop, &entrance->poll, fd);
    if (error != 0) {
        free(entrance);
        return status_new(STATUS_INTERNAL, "descriptor %d cannot be polled: %s", fd,
                          uv_strerror(error));
    }
    uv_timer_init(lobby->loop, &entrance->pause);
    entrance->poll.data = entrance->pause.data = entrance;
    entrance->lobby = lobby;
    entrance->fd = fd;
    entrance->opening = opening;
    entrance->user = user;
    entrance->next = lobby->entrances;
    lobby->entrances = entrance;
    lobby->entrance_count++;
    lobby->open_handles += 2;
    return NULL;
}

void rpc_lobby_start(struct rpc_lobby *lobby)
{
    for (struct entrance *i = lobby->entrances; i != NULL; i = i->next)
        uv_poll_start(&i->poll, UV_READABLE, on_connection);
}

/* ---- the end ---- */

/* A handle has closed; frees the lobby with the last one. */
static void release(struct rpc_lobby *lobby)
{
    if (--lobby->open_handles > 0) return;
    for (struct entrance *i = lobby->entrances, *next; i != NULL; i = next) {
        next = i->next;
        close(i->fd);
        free(i);
    }
    void (*gone)(void *) = lobby->gone;
    void *user = lobby->gone_user;
    free(lobby);
    if (gone != NULL) gone(user);
}

static void on_handle_closed(uv_handle_t *handle)
{
    release(handle->data);
}

void rpc_lobby_close(struct rpc_lobby *lobby, void (*gone)(void *user), void *user)
{
    if (lobby->closing) return;
    lobby->closing = true;
    lobby->gone = gone;
    lobby->gone_user = user;
    while (lobby->first != NULL) close(leave(lobby->first));
    for (struct entrance *i = lobby->entrances; i != NULL; i = i->next) {
        i->poll.data = i->pause.data = lobby;
        uv_close((uv_handle_t *)&i->poll, on_handle_closed);
        uv_close((uv_handle_t *)&i->pause, on_handle_closed);
    }
    uv_close((uv_handle_t *)&lobby->tick, on_handle_closed);
}
