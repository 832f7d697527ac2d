/*
 * Joining a group through a host's memory or over Gloo: a caller can cancel it at every stage, and
 * a failure on one rank ends it on all. The deadline outlasts every test. And parts of a group that
 * a rank may not join.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../engine/group.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "tests/testing.h"

/* A directory's store whose waits end when the test closes it, or a rank fails the group. */
struct store {
    struct rendezvous files;
    char *directory;
    atomic_bool closed, failed;
    char why[512]; /* reason of the failure; set before `failed` */
    struct rendezvous view;
};

static status_t check_store(void *user)
{
    struct store *store = user;
    return atomic_load(&store->closed) ? status_new(STATUS_ABORTED, "given up") : NULL;
}

static status_t set(void *user, const char *key, const void *value, size_t size)
{
    struct store *store = user;
    TRY(check_store(store));
    return store->files.set(store->files.user, key, value, size);
}

static status_t get(void *user, const char *key, int64_t timeout_ms, void **value, size_t *size)
{
    struct store *store = user;
    int64_t deadline = clock_monotonic_ns() + timeout_ms * 1000000;
    for (;;) {
        TRY(check_store(store));
        if (atomic_load(&store->failed)) return status_new(STATUS_ABORTED, "%s", store->why);
        status_t status = store->files.get(store->files.user, key, 10, value, size);
        if (status == NULL || clock_monotonic_ns() >= deadline) return status;
        status_free(status);
    }
}

static void fail_group(void *user, const char *group, const char *why)
{
    struct store *store = user;
    ck_assert_str_eq(group, "side");
    if (store->why[0] != '\0') return;
    snprintf(store->why, sizeof store->why, "%s", why);
    atomic_store(&store->failed, true);
}

static void store_init(struct store *store)
{
    *store = (struct store){.directory = group_make_directory()};
    store->files = group_file_store(store->directory);
    store->view = (struct rendezvous){set, get, fail_group, check_store, store};
}

static void store_deinit(struct store *store)
{
    group_remove_directory(store->directory);
    free(store->directory);
}

struct joiner {
    struct store *store;
    int rank;
    const char *address; /* NULL: through shared memory */
    pthread_t thread;
    status_t status;
    const char *transport; /* with which it joined */
};

static void *join(void *argument)
{
    struct joiner *joiner = argument;
    struct comm *comm = NULL;
    bool shared = joiner->address == NULL;
    joiner->status =
        comm_host_new(joiner->rank, 2, shared ? "127.0.0.1" : joiner->address, "side",
                      &joiner->store->view, GROUP_NEVER_MS, GROUP_NEVER_MS, shared, &comm);
    joiner->transport = comm != NULL ? comm_transport(comm) : NULL;
    comm_free(comm);
    return NULL;
}

static void start(struct joiner *joiner, struct store *store, int rank, const char *address)
{
    *joiner = (struct joiner){.store = store, .rank = rank, .address = address};
    ck_assert_int_eq(pthread_create(&joiner->thread, NULL, join, joiner), 0);
}

static void expect_end(struct joiner *joiner, enum status_code code, const char *words)
{
    pthread_join(joiner->thread, NULL);
    ck_assert_msg(status_code(joiner->status) == code, "%s", status_message(joiner->status));
    ck_assert_msg(strstr(status_message(joiner->status), words), "%s",
                  status_message(joiner->status));
    status_free(joiner->status);
}

/* A listening socket of the address. */
static int listen_at(const char *address, struct sockaddr_in *bound)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *bound = (struct sockaddr_in){.sin_family = AF_INET};
    ck_assert_int_eq(inet_pton(AF_INET, address, &bound->sin_addr), 1);
    socklen_t size = sizeof *bound;
    ck_assert_int_eq(bind(fd, (struct sockaddr *)bound, size), 0);
    ck_assert_int_eq(listen(fd, 0), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)bound, &size), 0);
    return fd;
}

/* Connects to it until a connection no longer succeeds: a further one waits, too. */
static void fill(const struct sockaddr_in *bound)
{
    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct timeval brief = {.tv_usec = 200000};
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief);
        if (connect(fd, (const struct sockaddr *)bound, sizeof *bound) != 0) return;
    }
}

/* The address that rank 1 would send rank 0 if it listened there: Gloo's form, a sockaddr_storage
 * and a number, whose size comes from rank 0's own. */
static void give_address(struct store *store, const struct sockaddr_in *bound)
{
    void *own = NULL;
    size_t size = 0;
    ck_assert_ptr_null(store->view.get(store, "side/address/0", GROUP_NEVER_MS, &own, &size));
    ck_assert_uint_ge(size, sizeof(struct sockaddr_storage));
    memset(own, 0, sizeof(struct sockaddr_storage));
    memcpy(own, bound, sizeof *bound);
    ck_assert_ptr_null(store->view.set(store, "side/address/1", own, size));
    free(own);
}

TESTS_BELOW(.timeout = 15);

/* Rank 0 waits for a peer that (0) does not come, (1) must call it, (2) does not accept its call,
 * or (3) does not join although it accepted the call. */
LOOP_TEST(give_up, 0, 4)
{
    static const char *const own[] = {"127.0.0.1", "127.0.0.1", "127.0.0.3", "127.0.0.3"};
    static const char *const awaited[] = {"side/address/0", "side/called/0", NULL, "side/called/0"};
    struct store store;
    store_init(&store);
    struct joiner joiner;
    struct sockaddr_in bound;
    int fd = listen_at("127.0.0.2", &bound); /* the higher address calls */
    if (_i == 2) fill(&bound);
    start(&joiner, &store, 0, own[_i]);
    if (_i > 0) give_address(&store, &bound);
    void *value = NULL;
    size_t size;
    if (awaited[_i] != NULL)
        ck_assert_ptr_null(store.view.get(&store, awaited[_i], GROUP_NEVER_MS, &value, &size));
    else clock_sleep_ms(100); /* so that it calls, most likely; the expected result is the same */
    free(value);
    atomic_store(&store.closed, true);
    expect_end(&joiner, STATUS_ABORTED, "given up");
    close(fd);
    ck_assert_ptr_nonnull(strstr(store.why, "rank 0 of 2 cannot join group side"));
    store_deinit(&store);
}

/* 192.0.2.0/24 belongs to no host: rank 1 cannot listen there, and rank 0 learns it. */
TEST(peer_fails)
{
    struct store store;
    store_init(&store);
    struct joiner joiners[2];
    start(&joiners[0], &store, 0, "127.0.0.1");
    start(&joiners[1], &store, 1, "192.0.2.1");
    expect_end(&joiners[1], STATUS_UNAVAILABLE, "rank 1 of 2 cannot join group side");
    expect_end(&joiners[0], STATUS_ABORTED,
               "rank 1 of 2 cannot join group side at address 192.0.2.1");
    store_deinit(&store);
}

/* No process listens at the address that rank 0 must call. */
TEST(refused)
{
    struct store store;
    store_init(&store);
    struct joiner joiner;
    struct sockaddr_in bound;
    close(listen_at("127.0.0.2", &bound));
    start(&joiner, &store, 0, "127.0.0.3");
    give_address(&store, &bound);
    expect_end(&joiner, STATUS_UNAVAILABLE, "refused");
    ck_assert_ptr_nonnull(strstr(store.why, "refused"));
    store_deinit(&store);
}

TEST(odd_address)
{
    struct store store;
    store_init(&store);
    struct joiner joiner;
    start(&joiner, &store, 0, "127.0.0.1");
    ck_assert_ptr_null(store.view.set(&store, "side/address/1", "here", 4));
    expect_end(&joiner, STATUS_UNAVAILABLE, "rank 1 gave no address");
    store_deinit(&store);
}

/* ---- Through shared memory ---- */

/* The last bytes of a rank's place: the name of rank 0's socket, and the secret that callers
 * know. */
enum { SECRET_BYTES = 16, WAIT_MS = 30000 };

struct place {
    unsigned char *bytes;
    size_t size;
};

static struct place place_of(struct store *store, int rank)
{
    struct place place;
    void *bytes = NULL;
    char key[32];
    snprintf(key, sizeof key, "side/place/%d", rank);
    ck_assert_ptr_null(store->view.get(store, key, WAIT_MS, &bytes, &place.size));
    ck_assert_uint_gt(place.size, 2 * SECRET_BYTES);
    place.bytes = bytes;
    return place;
}

static void give_place(struct store *store, int rank, const struct place *place)
{
    char key[32];
    snprintf(key, sizeof key, "side/place/%d", rank);
    ck_assert_ptr_null(store->view.set(store, key, place->bytes, place->size));
}

static socklen_t socket_address(const struct place *place, struct sockaddr_un *name)
{
    const unsigned char *name_bytes = place->bytes + place->size - 2 * SECRET_BYTES;
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    char *at = name->sun_path + 1;
    at += sprintf(at, "fsdpd-");
    for (int i = 0; i < SECRET_BYTES; i++) at += sprintf(at, "%02x", name_bytes[i]);
    return (socklen_t)(at - (char *)name);
}

/* Calls rank 0, as a rank with the right secret or with a wrong one. */
static int call_first(const struct place *place, bool knows)
{
    struct sockaddr_un name;
    socklen_t size = socket_address(place, &name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&name, size), 0);
    unsigned char call[4 + SECRET_BYTES] = {1};
    memcpy(call + 4, place->bytes + place->size - SECRET_BYTES, SECRET_BYTES);
    if (!knows) call[4] ^= 1;
    ck_assert_int_eq(send(fd, call, sizeof call, MSG_NOSIGNAL), sizeof call);
    return fd;
}

/* Rank 0 waits for a peer that (0) does not come, (1) must call it, (2) claims a call that it did
 * not make, (3) called, but does not confirm that it has the memory. */
LOOP_TEST(first_gives_up, 0, 4)
{
    static const char *const awaited[] = {"side/place/0", "side/called/0", "side/called/0",
                                          "side/called/0"};
    struct store store;
    store_init(&store);
    struct joiner joiner;
    start(&joiner, &store, 0, NULL);
    struct place place = place_of(&store, 0);
    int fd = -1;
    if (_i > 0) give_place(&store, 1, &place);
    if (_i == 3) fd = call_first(&place, true);
    if (_i > 1) ck_assert_ptr_null(store.view.set(&store, "side/called/1", "", 0));
    void *value = NULL;
    size_t size;
    ck_assert_ptr_null(store.view.get(&store, awaited[_i], WAIT_MS, &value, &size));
    free(value);
    char byte;
    if (_i == 3) ck_assert_int_eq(recv(fd, &byte, 1, 0), 1);
    atomic_store(&store.closed, true);
    expect_end(&joiner, STATUS_ABORTED, "given up");
    ck_assert_ptr_nonnull(strstr(store.why, "rank 0 of 2 cannot join group side of this host"));
    if (fd >= 0) close(fd);
    free(place.bytes);
    store_deinit(&store);
}

/* Rank 1 has called, and waits for the memory, until (0) it gives up or (1) rank 0 disappears; or
 * (2) rank 0 has disappeared before the call. */
LOOP_TEST(other_gives_up, 0, 3)
{
    struct store store;
    store_init(&store);
    struct joiner joiner;
    start(&joiner, &store, 1, NULL);
    struct place place = place_of(&store, 1);
    struct sockaddr_un name;
    socklen_t length = socket_address(&place, &name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&name, length), 0);
    if (_i < 2) ck_assert_int_eq(listen(fd, 4), 0);
    give_place(&store, 0, &place);
    if (_i < 2) {
        ck_assert_ptr_null(store.view.set(&store, "side/called/0", "", 0));
        int call = accept(fd, NULL, NULL);
        ck_assert_int_ge(call, 0);
        if (_i == 0) atomic_store(&store.closed, true);
        else close(call);
        if (_i == 0) expect_end(&joiner, STATUS_ABORTED, "given up");
        else expect_end(&joiner, STATUS_UNAVAILABLE, "rank 0 gave up");
        if (_i == 0) close(call);
    } else {
        expect_end(&joiner, STATUS_UNAVAILABLE, "calling rank 0");
    }
    ck_assert_ptr_nonnull(strstr(store.why, "rank 1 of 2 cannot join group side of this host"));
    close(fd);
    free(place.bytes);
    store_deinit(&store);
}

static int count_descriptors(void)
{
    int count = 0;
    DIR *handle = opendir("/proc/self/fd");
    while (readdir(handle) != NULL) count++;
    closedir(handle);
    return count;
}

/* Two ranks join although another process calls first; and they leave nothing behind. */
TEST(foreign_caller)
{
    struct store store;
    store_init(&store);
    struct joiner joiners[2];
    int before = count_descriptors();
    start(&joiners[0], &store, 0, NULL);
    struct place place = place_of(&store, 0);
    int fd = call_first(&place, false);
    start(&joiners[1], &store, 1, NULL);
    for (int r = 0; r < 2; r++) {
        pthread_join(joiners[r].thread, NULL);
        ck_assert_msg(joiners[r].status == NULL, "%s", status_message(joiners[r].status));
        ck_assert_str_eq(joiners[r].transport, "shared memory");
    }
    char byte;
    ck_assert_int_eq(recv(fd, &byte, 1, 0), 0); /* no descriptor, no byte: rank 0 closed it */
    close(fd);
    ck_assert_int_eq(count_descriptors(), before);
    struct buf maps = {0};
    ck_assert_ptr_null(file_read("/proc/self/maps", 1 << 20, &maps));
    ck_assert_ptr_null(strstr(buf_text(&maps), "fsdpd-group"));
    buf_deinit(&maps);
    free(place.bytes);
    store_deinit(&store);
}

/* A rank of (0) another host, by its place's first difference, or (1) with an unknown place:
 * Gloo. */
LOOP_TEST(other_host, 0, 2)
{
    struct store store;
    store_init(&store);
    struct joiner joiner;
    start(&joiner, &store, 0, NULL);
    struct place place = place_of(&store, 0);
    place.bytes[8] ^= 1; /* of the boot's id */
    if (_i == 1) place.size = 3;
    give_place(&store, 1, &place);
    void *value = NULL;
    size_t size;
    ck_assert_ptr_null(store.view.get(&store, "side/address/0", WAIT_MS, &value, &size));
    free(value);
    atomic_store(&store.closed, true);
    expect_end(&joiner, STATUS_ABORTED, "cannot join group side at address 127.0.0.1");
    free(place.bytes);
    store_deinit(&store);
}

TEST(no_peer_joins)
{
    char *directory = group_make_directory();
    struct rendezvous store = group_file_store(directory);
    struct comm *comm = NULL;
    status_t status = comm_gloo_new(0, 2, "127.0.0.1", "lonely", &store, 200, 200, &comm);
    ck_assert_msg(status_code(status) == STATUS_DEADLINE_EXCEEDED, "%s", status_message(status));
    ck_assert_ptr_nonnull(strstr(status_message(status), "lonely"));
    ck_assert_ptr_null(comm);
    status_free(status);
    status = comm_gloo_new(0, 2, "no.such.host.invalid", "lonely", &store, 200, 200, &comm);
    ck_assert_msg(status_code(status) == STATUS_UNAVAILABLE ||
                      status_code(status) == STATUS_DEADLINE_EXCEEDED,
                  "%s", status_message(status));
    ck_assert_ptr_nonnull(strstr(status_message(status), "no.such.host.invalid"));
    status_free(status);
    /* 192.0.2.0/24 belongs to no host. */
    status = comm_gloo_new(0, 2, "192.0.2.1", "lonely", &store, 200, 200, &comm);
    ck_assert_msg(status_code(status) == STATUS_UNAVAILABLE, "%s", status_message(status));
    ck_assert_ptr_nonnull(strstr(status_message(status), "192.0.2.1"));
    status_free(status);
    group_remove_directory(directory);
    free(directory);
}

/* A part without its maker, a part of a part, a nonexistent rank; and one that only some of its
 * ranks join. */
static status_t refuse_parts(struct comm *comm, void *argument)
{
    (void)argument;
    int rank = comm_rank(comm), other[] = {1 - rank}, none[] = {rank, 2}, both[] = {0, 1};
    struct comm *part = NULL, *again = NULL;
    status_t status = comm_split(comm, other, 1, &part);
    bool refused = status_code(status) == STATUS_INTERNAL;
    status_free(status);
    status = comm_split(comm, none, 2, &part);
    refused = refused && status_code(status) == STATUS_INTERNAL;
    status_free(status);
    if (rank == 1) return refused ? NULL : status_new(STATUS_INTERNAL, "not refused");
    TRY(comm_split(comm, both, 2, &part));
    status = comm_split(part, both, 2, &again);
    refused = refused && status_code(status) == STATUS_INTERNAL;
    status_free(status);
    comm_free(part);
    return refused ? NULL : status_new(STATUS_INTERNAL, "not refused");
}

TEST(refused_parts)
{
    group_check(GROUP_LOCAL, 2, refuse_parts, NULL);
}
