/*
 * Sets up shared memory between the ranks of one host. In the rendezvous store every rank publishes
 * where it runs. Rank 0 also publishes where it listens, a socket in the abstract namespace, and a
 * secret, because any user of the host can connect to such a socket. All ranks see the same places,
 * so all decide alike. Then the others call rank 0. When the store shows that all have called,
 * every call waits in rank 0's queue, so no rank blocks on a socket for a peer that may never come.
 * A rank that fails after that closes its sockets, which the others detect.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "runtime/shm_segment.h"

enum {
    CONNECT_MS = 20000, /* from the arrival of all ranks until all have joined */
    CHECK_MS = 20,      /* how often a waiting rank checks whether to continue */
    SECRET_BYTES = 16,
};

/* A rank's description of itself. Ranks with the same `host` can share memory; the rest is set by
 * rank 0 only. */
struct shm_place {
    struct {
        uint32_t layout; /* 0: the rank cannot share */
        uint32_t user;
        char boot[40];                 /* 36 are used */
        uint64_t network[2], users[2]; /* namespaces of socket names and of user ids */
    } host;
    unsigned char name[SECRET_BYTES], secret[SECRET_BYTES];
};

struct shm_call {
    uint32_t rank;
    unsigned char secret[SECRET_BYTES];
};

/* ---- Places of ranks ---- */

static bool read_boot(char boot[static 36])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    bool found = fd >= 0 && read(fd, boot, 36) == 36;
    if (fd >= 0) close(fd);
    return found;
}

static bool read_namespace(const char *path, uint64_t id[static 2])
{
    struct stat info;
    if (stat(path, &info) != 0) return false;
    id[0] = info.st_dev, id[1] = info.st_ino;
    return true;
}

/* All zero, which prevents sharing, if it cannot be determined. */
static void find_place(struct shm_place *place)
{
    memset(place, 0, sizeof *place);
    bool found = read_boot(place->host.boot) &&
                 read_namespace("/proc/self/ns/net", place->host.network) &&
                 read_namespace("/proc/self/ns/user", place->host.users);
    place->host.user = getuid();
    place->host.layout = found ? SHM_LAYOUT : 0;
}

static socklen_t socket_name(const struct shm_place *place, struct sockaddr_un *name)
{
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    char *at = name->sun_path + 1; /* a leading zero: the name is not in the file system */
    at += sprintf(at, "fsdpd-");
    for (int i = 0; i < SECRET_BYTES; i++) at += sprintf(at, "%02x", place->name[i]);
    return (socklen_t)(at - (char *)name);
}

/* On rank 0. If it cannot listen, the ranks do not share. */
static int listen_at(struct shm_place *place)
{
    struct sockaddr_un name;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool drawn = getrandom(place->name, SECRET_BYTES, 0) == SECRET_BYTES &&
                 getrandom(place->secret, SECRET_BYTES, 0) == SECRET_BYTES;
    socklen_t size = socket_name(place, &name);
    if (fd >= 0 && drawn && bind(fd, (struct sockaddr *)&name, size) == 0 &&
        listen(fd, SHM_RANKS_MAX * 2) == 0)
        return fd;
    if (fd >= 0) close(fd);
    place->host.layout = 0;
    return -1;
}

/* ---- Sockets ---- */

struct joining {
    struct shm_link *link;
    const char *group;
    const struct rendezvous *store;
    int64_t deadline_ns;
    struct shm_place first; /* rank 0's */
    int listener;       /* rank 0's; else -1 */
};

static status_t wait_readable(const struct joining *joining, int fd)
{
    for (;;) {
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        if (poll(&polled, 1, CHECK_MS) > 0) return NULL;
        TRY(rendezvous_still_open(joining->store));
        if (clock_monotonic_ns() >= joining->deadline_ns)
            return status_new(STATUS_DEADLINE_EXCEEDED, "the connections took too long");
    }
}

static status_t gave_up(int peer)
{
    return status_new(STATUS_UNAVAILABLE, "rank %d gave up", peer);
}

static status_t send_byte(int fd, int peer)
{
    return send(fd, "", 1, MSG_NOSIGNAL) == 1 ? NULL : gave_up(peer);
}

static status_t receive_byte(const struct joining *joining, int fd, int peer)
{
    char byte;
    TRY(wait_readable(joining, fd));
    return recv(fd, &byte, 1, 0) == 1 ? NULL : gave_up(peer);
}

/* One message with a descriptor. */
union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

static status_t send_descriptor(int fd, int peer, int descriptor)
{
    union control control = {.bytes = {0}};
    char text = 0;
    struct iovec byte = {.iov_base = &text, .iov_len = 1};
    struct msghdr message = {.msg_iov = &byte,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    control.header = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                      .cmsg_type = SCM_RIGHTS,
                                      .cmsg_len = CMSG_LEN(sizeof descriptor)};
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
    return sendmsg(fd, &message, MSG_NOSIGNAL) == 1 ? NULL : gave_up(peer);
}

static status_t receive_descriptor(int fd, int peer, int *descriptor)
{
    union control control;
    char text;
    struct iovec byte = {.iov_base = &text, .iov_len = 1};
    struct msghdr message = {.msg_iov = &byte,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    if (recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != 1) return gave_up(peer);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL || header->cmsg_type != SCM_RIGHTS)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "no descriptor came: there are too many");
    memcpy(descriptor, CMSG_DATA(header), sizeof *descriptor);
    return NULL;
}

/* ---- Memory ---- */

static status_t map_segment(struct shm_link *link, int fd)
{
    void *memory = mmap(NULL, link->segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return status_from_errno(errno, "mapping %zu bytes", link->segment_bytes);
    link->segment = memory;
    return NULL;
}

/* Allocates all pages at once, so that no rank's write can fail later for lack of memory. */
static status_t make_segment(struct shm_link *link, int *fd)
{
    *fd = memfd_create("fsdpd-group", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0) return status_from_errno(errno, "making shared memory");
    int error = posix_fallocate(*fd, 0, (off_t)link->segment_bytes);
    if (error != 0)
        return status_from_errno(error, "%zu bytes of shared memory", link->segment_bytes);
    if (fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return status_from_errno(errno, "sealing shared memory");
    TRY(map_segment(link, *fd));
    atomic_store(&link->segment->first_lost, -1);
    return NULL;
}

/* ---- The halves of a group ---- */

/* Accepts the next call; a caller without the secret is rejected. */
static status_t take_call(const struct joining *joining, int *missing)
{
    struct shm_link *link = joining->link;
    struct shm_call call;
    TRY(wait_readable(joining, joining->listener));
    int fd = accept4(joining->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return status_from_errno(errno, "taking a rank's call");
    if (recv(fd, &call, sizeof call, MSG_DONTWAIT) != sizeof call ||
        memcmp(call.secret, joining->first.secret, SECRET_BYTES) != 0 || call.rank == 0 ||
        call.rank >= (uint32_t)link->world || link->sockets[call.rank] >= 0) {
        close(fd);
        return NULL;
    }
    link->sockets[call.rank] = fd;
    --*missing;
    return NULL;
}

static status_t join_as_first(const struct joining *joining)
{
    struct shm_link *link = joining->link;
    int fd = -1;
    status_t status = make_segment(link, &fd);
    for (int missing = link->world - 1; status == NULL && missing > 0;)
        status = take_call(joining, &missing);
    for (int r = 1; r < link->world && status == NULL; r++)
        status = send_descriptor(link->sockets[r], r, fd);
    if (fd >= 0) close(fd);
    for (int r = 1; r < link->world && status == NULL; r++)
        status = receive_byte(joining, link->sockets[r], r);
    for (int r = 1; r < link->world && status == NULL; r++) status = send_byte(link->sockets[r], r);
    return status;
}

/* Returns at once unless strangers fill rank 0's queue, which is longer than the number of
 * ranks. */
static status_t call_first(const struct joining *joining)
{
    struct shm_link *link = joining->link;
    struct sockaddr_un name;
    socklen_t size = socket_name(&joining->first, &name);
    struct shm_call call = {.rank = (uint32_t)link->rank};
    memcpy(call.secret, joining->first.secret, SECRET_BYTES);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return status_from_errno(errno, "making a socket");
    link->sockets[0] = fd;
    while (connect(fd, (struct sockaddr *)&name, size) != 0) {
        if (errno != EAGAIN) return status_from_errno(errno, "calling rank 0");
        TRY(rendezvous_still_open(joining->store));
        if (clock_monotonic_ns() >= joining->deadline_ns)
            return status_new(STATUS_DEADLINE_EXCEEDED, "rank 0 takes no calls");
        clock_sleep_ms(CHECK_MS);
    }
    return send(fd, &call, sizeof call, MSG_NOSIGNAL) == sizeof call ? NULL : gave_up(0);
}

static status_t join_as_other(const struct joining *joining)
{
    struct shm_link *link = joining->link;
    int socket = link->sockets[0], fd = -1;
    TRY(wait_readable(joining, socket));
    TRY(receive_descriptor(socket, 0, &fd));
    status_t status = map_segment(link, fd);
    close(fd);
    TRY(status);
    TRY(send_byte(socket, 0));
    return receive_byte(joining, socket, 0);
}

static status_t connect_ranks(struct joining *joining)
{
    struct shm_link *link = joining->link;
    struct rendezvous_value called[SHM_RANKS_MAX];
    int64_t deadline_ns = clock_monotonic_ns() + CONNECT_MS * INT64_C(1000000);
    if (deadline_ns < joining->deadline_ns) joining->deadline_ns = deadline_ns;
    link->stop = eventfd(0, EFD_CLOEXEC);
    if (link->stop < 0) return status_from_errno(errno, "making an eventfd");
    if (link->rank > 0) TRY(call_first(joining));
    TRY(rendezvous_meet(joining->store, joining->group, "called", link->rank, link->world, "", 0,
                        joining->deadline_ns, called));
    for (int r = 0; r < link->world; r++) free(called[r].data);
    TRY(link->rank == 0 ? join_as_first(joining) : join_as_other(joining));
    return shm_watch(link);
}

static struct shm_link *link_new(int rank, int world)
{
    struct shm_link *link = mem_alloc(sizeof *link);
    link->rank = rank;
    link->world = world;
    link->stop = -1;
    link->reading = mem_alloc_array((size_t)world, sizeof *link->reading);
    link->sockets = mem_alloc_array((size_t)world, sizeof *link->sockets);
    for (int r = 0; r < world; r++) link->sockets[r] = -1;
    shm_link_measure(link);
    return link;
}

/* Whether all ranks are on the host of the first one; *first then holds its address and secret. */
static bool are_together(const struct rendezvous_value *places, int world, struct shm_place *first)
{
    if (places[0].size != sizeof *first) return false;
    memcpy(first, places[0].data, sizeof *first);
    bool together = first->host.layout == SHM_LAYOUT;
    for (int r = 1; r < world; r++)
        together = together && places[r].size == sizeof *first &&
                   memcmp(places[r].data, &first->host, sizeof first->host) == 0;
    return together;
}

static status_t meet(struct joining *joining, int rank, int world, bool *together)
{
    struct shm_place own;
    find_place(&own);
    if (rank == 0 && own.host.layout != 0) joining->listener = listen_at(&own);
    AUTO_FREE struct rendezvous_value *places = mem_alloc_array((size_t)world, sizeof *places);
    status_t status = rendezvous_meet(joining->store, joining->group, "place", rank, world, &own,
                                      sizeof own, joining->deadline_ns, places);
    if (status == NULL) *together = are_together(places, world, &joining->first);
    for (int r = 0; r < world && status == NULL; r++) free(places[r].data);
    return status;
}

status_t shm_link_new(int rank, int world, const char *group, const struct rendezvous *store,
                      int64_t join_ms, struct shm_link **result)
{
    struct joining joining = {.group = group,
                              .store = store,
                              .deadline_ns = clock_monotonic_ns() + join_ms * 1000000,
                              .listener = -1};
    bool together = false;
    status_t status = meet(&joining, rank, world, &together);
    if (status == NULL && together) {
        joining.link = link_new(rank, world);
        status = connect_ranks(&joining);
        if (status != NULL) {
            shm_link_free(joining.link);
            joining.link = NULL;
        }
    }
    if (joining.listener >= 0) close(joining.listener);
    if (status != NULL) {
        status = status_wrap(status, "rank %d of %d cannot join group %s of this host", rank, world,
                             group);
        rendezvous_give_up(store, group, status_message(status));
        return status;
    }
    *result = joining.link;
    return NULL;
}
