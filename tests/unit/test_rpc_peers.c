/*
 * The identity of callers, and its rights: users of a Unix socket as the kernel knows them,
 * identities of certificates, and the bounds on one user's resources. Another user is this program
 * again, as a process of that user.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "proto/descriptors.h"
#include "rpc/peer_internal.h"
#include "rpc/server_internal.h"
#include "rpc/tls_internal.h"
#include "test_rpc_notes.h"
#include "tests/testing.h"
#include "x509/x509.h"

enum { OTHER_USER = 65534, GROUP = 54321, NOT_STARTED = 99, WORDY = 6000, LATE = 6001 };

static struct rpc_peer last; /* of the last call that a handler got */
static char last_name[256];

static void on_note(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    (void)service;
    last = *rpc_call_peer(call);
    snprintf(last_name, sizeof last_name, "%s", last.name);
    if (((const Note *)request)->extension_number != 7) rpc_call_reply(call, request);
    /* 7: it stays open until its client disconnects */
}

#define NOTES_METHOD(variable, its_path)                                                           \
    static const struct rpc_method variable = {                                                    \
        .path = its_path,                                                                          \
        .kind = RPC_UNARY,                                                                         \
        .request = &grpc__reflection__v1alpha__extension_request__descriptor,                      \
        .response = &grpc__reflection__v1alpha__extension_request__descriptor}

NOTES_METHOD(for_users, "/test.Guarded/ForUsers");
NOTES_METHOD(for_operators, "/test.Guarded/ForOperators");
NOTES_METHOD(for_workers, "/test.Guarded/ForWorkers");
NOTES_METHOD(small, "/test.Guarded/Small");
static const struct rpc_method *const methods[] = {&for_users, &for_operators, &for_workers,
                                                   &small};

static const struct rpc_handler guarded_handlers[] = {
    {.method = &for_users, .on_start = on_note},
    {.method = &for_operators, .on_start = on_note, .roles = RPC_OPERATOR},
    {.method = &for_workers, .on_start = on_note, .roles = RPC_WORKER},
    {.method = &small, .on_start = on_note, .message_max = 100},
};
static const struct rpc_service guarded = {
    .name = "test.Guarded",
    .handlers = guarded_handlers,
    .handler_count = COUNT_OF(guarded_handlers),
    .roles = RPC_USER | RPC_OPERATOR,
};

/* The system's database of users, with two more: WORDY has a long entry, and lookups of LATE fail
 * while the database is broken. */
static bool database_is_broken;

int getpwuid_r(uid_t uid, struct passwd *restrict entry, char *restrict space, size_t size,
               struct passwd **restrict found)
{
    typedef int look_up(uid_t, struct passwd *, char *, size_t, struct passwd **);
    if (uid != WORDY && uid != LATE)
        return ((look_up *)dlsym(RTLD_NEXT, "getpwuid_r"))(uid, entry, space, size, found);
    *found = NULL;
    if (uid == WORDY && size < 30000) return ERANGE;
    if (uid == LATE && database_is_broken) return EIO;
    *entry = (struct passwd){.pw_name = strcpy(space, uid == WORDY ? "wordy" : "late")};
    *found = entry;
    return 0;
}

static void set_up(void)
{
    database_is_broken = false;
    last = (struct rpc_peer){0};
    last_name[0] = '\0';
    world_init(&world, &guarded, 1);
    ck_assert_int_eq(chmod(world.directory, 0755), 0);
    ck_assert_int_eq(chmod(world.address + strlen("unix:"), 0666), 0);
}

static void tear_down(void)
{
    world_deinit(&world);
}

/* ---- the other user ---- */

static void on_answer(status_t status, const ProtobufCMessage *response, void *user)
{
    (void)response;
    *(int *)user = (int)status_code(status);
    status_free(status);
}

/* Leaves `number` calls of methods[which] open and makes one more; exits with its code. No function
 * of Check's may run here: this is a separate process, not a test. */
static int child_main(int argc, char **argv)
{
    if (argc != 5) return NOT_STARTED;
    char *address = argv[2];
    int which = atoi(argv[3]), number = atoi(argv[4]);
    struct world child = {.address = address};
    uv_loop_init(&child.loop);
    if (rpc_runtime_new(&child.loop, &child.runtime)) return NOT_STARTED;
    if (rpc_channel_new(child.runtime, address, NULL, &child.channel)) return NOT_STARTED;
    alarm(30);
    int code = -1, open = -1;
    Note request = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    request.extension_number = 7;
    for (int i = 0; i < number; i++) /* they end with the process */
        rpc_channel_call(child.channel, methods[which], &request.base, 0, false, on_answer, &open);
    request.extension_number = 1;
    rpc_channel_call(child.channel, methods[which], &request.base, 20000, false, on_answer, &code);
    while (code < 0) uv_run(&child.loop, UV_RUN_ONCE);
    /* They may arrive in another order than they were sent. */
    for (int i = 0; number > 0 && open < 0 && i < 100; i++) {
        uv_run(&child.loop, UV_RUN_NOWAIT);
        usleep(10000);
    }
    _exit(open >= 0 ? open : code);
}

TEST_PROGRAM("--call", child_main);

struct spawned {
    uv_process_t process;
    bool exited;
    int code;
};

static void on_exit_of(uv_process_t *process, int64_t code, int signal)
{
    struct spawned *spawned = process->data;
    spawned->exited = true;
    spawned->code = signal ? 128 + signal : (int)code;
}

/* The code of another user's call; NOT_STARTED if that is impossible. */
static int call_as(uid_t uid, gid_t gid, int which, int open)
{
    char self[4096], which_text[16], open_text[16];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    ck_assert_int_gt(length, 0);
    self[length] = '\0';
    snprintf(which_text, sizeof which_text, "%d", which);
    snprintf(open_text, sizeof open_text, "%d", open);
    char *argv[] = {self, (char *)"--call", world.address, which_text, open_text, NULL};
    struct spawned spawned = {0};
    uv_process_options_t options = {.file = self,
                                    .args = argv,
                                    .exit_cb = on_exit_of,
                                    .uid = uid,
                                    .gid = gid,
                                    .flags = UV_PROCESS_SETUID | UV_PROCESS_SETGID};
    spawned.process.data = &spawned;
    if (uv_spawn(&world.loop, &spawned.process, &options) != 0) spawned.code = NOT_STARTED;
    else world_wait(&world, &spawned.exited);
    uv_close((uv_handle_t *)&spawned.process, NULL);
    world_idle(&world, 20);
    return spawned.code;
}

/* ---- tests ---- */

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(own_user_has_all_roles)
{
    struct outcome outcome;
    for (int i = 0; i < 3; i++) {
        world_call(&world, methods[i], "x", 1, WORLD_NEVER_MS, false, &outcome);
        ck_assert_int_eq(outcome.code, STATUS_OK);
        ck_assert_int_eq(last.kind, RPC_PEER_UNIX);
        ck_assert_uint_eq(last.uid, geteuid());
        ck_assert_uint_eq(last.roles, RPC_ANY_ROLE);
        if (geteuid() == 0) ck_assert_str_eq(last_name, "root");
    }
}

/* Without room for any user, root and fsdpd's own user are still served. */
TEST(our_own_user_is_not_counted)
{
    struct rpc_limits limits = {.connections = 100,
                                .connections_waiting = 100,
                                .connections_per_user = 10,
                                .calls_per_user = 5,
                                .users = 0};
    rpc_server_set_limits(world.server, &limits);
    struct outcome outcome;
    world_call(&world, &for_workers, "x", 1, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_OK);
    ck_assert_int_eq(world.server->counted_servers, 0);
}

TEST(users_are_looked_up)
{
    char *name = rpc_peer_unix_name(WORDY);
    ck_assert_str_eq(name, "wordy");
    free(name);
    name = rpc_peer_unix_name(4242);
    ck_assert_str_eq(name, "uid:4242");
    free(name);
    database_is_broken = true;
    ck_assert_ptr_null(rpc_peer_unix_name(LATE));
}

TEST(messages_of_a_method_are_bounded)
{
    char text[200];
    struct outcome outcome;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    world_call(&world, &small, text, 1, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(outcome.message, "at most 100 are accepted"));
    ck_assert_ptr_null(last.name);
    world_call(&world, &small, "x", 1, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_OK);
}

TEST(services_declare_their_roles)
{
    struct rpc_service open = guarded;
    open.roles = 0;
    struct rpc_server *server = NULL;
    status_t status = rpc_server_new(world.runtime, &open, 1, NULL, 0, &server);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_null(server);
    status_free(status);
}

static void write_pem(const char *path, const char *text)
{
    ck_assert_ptr_null(file_write_atomic(path, text, strlen(text), 0600));
}

/* Of the files of a channel only that of the authorities changes: its next call trusts them. */
TEST(changed_authorities_count_from_the_next_call)
{
    static const struct x509_request of_server = {
        .name = "server", .server = true, .hosts = {"127.0.0.1"}, .host_count = 1, .days = 10};
    static const struct x509_request of_client = {.name = "client",
                                                  .uri = "fsdpd://user/ann",
                                                  .days = 10};
    struct x509_pair authority, other, own, client;
    ck_assert_ptr_null(x509_make_authority("one", 10, &authority));
    ck_assert_ptr_null(x509_make_authority("another", 10, &other));
    ck_assert_ptr_null(x509_issue(&authority, &of_server, &own));
    ck_assert_ptr_null(x509_issue(&authority, &of_client, &client));
    struct rpc_pems pems = {.ca = mem_strdup(authority.certificate),
                            .certificate = mem_strdup(own.certificate),
                            .key = mem_strdup(own.key)};
    struct rpc_server *server = NULL;
    int port = 0;
    ck_assert_ptr_null(rpc_server_new(world.runtime, &guarded, 1, proto_descriptors,
                                      proto_descriptors_size, &server));
    rpc_server_set_tls(server, &pems);
    ck_assert_ptr_null(rpc_server_listen_tls(server, "127.0.0.1:0", &port));
    ck_assert_ptr_null(rpc_server_start(server));

    AUTO_FREE char *address = mem_printf("127.0.0.1:%d", port);
    AUTO_FREE char *ca = file_path_join(world.directory, "ca.pem");
    AUTO_FREE char *certificate = file_path_join(world.directory, "certificate.pem");
    AUTO_FREE char *key = file_path_join(world.directory, "key.pem");
    const struct rpc_channel_security security = {.tls = {ca, certificate, key, NULL}};
    write_pem(ca, other.certificate);
    write_pem(certificate, client.certificate);
    write_pem(key, client.key);
    struct rpc_channel *plain = world.channel;
    struct outcome outcome;
    ck_assert_ptr_null(rpc_channel_new(world.runtime, address, &security, &world.channel));
    world_call(&world, &for_users, "x", 1, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_UNAVAILABLE);
    write_pem(ca, authority.certificate);
    world_call(&world, &for_users, "x", 1, WORLD_NEVER_MS, false, &outcome);
    ck_assert_msg(outcome.code == STATUS_OK, "%s", outcome.message);
    ck_assert_int_eq(last.kind, RPC_PEER_TLS);
    ck_assert_uint_eq(last.roles, RPC_USER);
    ck_assert_str_eq(last_name, "ann");

    bool closed = false;
    world_close_channel(&world);
    world.channel = plain;
    world.channel_closed = false;
    rpc_server_close(server, 0, world_set, &closed);
    world_wait(&world, &closed);
    ck_assert(unlink(ca) == 0 && unlink(certificate) == 0 && unlink(key) == 0);
    struct x509_pair *const pairs[] = {&authority, &other, &own, &client};
    for (size_t i = 0; i < COUNT_OF(pairs); i++) x509_pair_deinit(pairs[i]);
}

/* Tries to become another user in a process that may execute this program. */
static const char *reason(void)
{
    static const char only_root[] =
        "tests of other users: only root can be one, if they may execute this program";
    if (geteuid() != 0) return only_root;
    pid_t child = fork();
    if (child == 0) {
        bool is_another = setgid(OTHER_USER) == 0 && setuid(OTHER_USER) == 0;
        _exit(is_another && access("/proc/self/exe", X_OK) == 0 ? 0 : 1);
    }
    int state = 1;
    return child > 0 && waitpid(child, &state, 0) == child && state == 0 ? NULL : only_root;
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down, .skip = reason);

TEST(another_user_is_a_user)
{
    ck_assert_int_eq(call_as(OTHER_USER, OTHER_USER, 0, 0), STATUS_OK);
    ck_assert_uint_eq(last.uid, OTHER_USER);
    ck_assert_uint_eq(last.roles, RPC_USER);
    ck_assert_str_eq(last_name, "nobody");
    last.uid = 1;
    ck_assert_int_eq(call_as(OTHER_USER, OTHER_USER, 1, 0), STATUS_PERMISSION_DENIED);
    ck_assert_int_eq(call_as(OTHER_USER, OTHER_USER, 2, 0), STATUS_PERMISSION_DENIED);
    ck_assert_uint_eq(last.uid, 1); /* the call reached no handler */
    /* Our own user keeps its identity meanwhile: peer_servers are not mixed up. */
    struct outcome outcome;
    world_call(&world, &for_workers, "x", 1, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_OK);
    ck_assert_uint_eq(last.uid, 0);
    ck_assert_int_eq(call_as(4242, 4243, 0, 0), STATUS_OK);
    ck_assert_str_eq(last_name, "uid:4242");
}

TEST(group_of_operators)
{
    ck_assert_int_eq(call_as(OTHER_USER, GROUP, 1, 0), STATUS_PERMISSION_DENIED);
    struct rpc_operators operators = {.group = GROUP, .known = true};
    rpc_server_set_operators(world.server, &operators);
    ck_assert_int_eq(call_as(OTHER_USER, GROUP, 1, 0), STATUS_OK);
    ck_assert_uint_eq(last.roles, RPC_USER | RPC_OPERATOR);
    ck_assert_int_eq(call_as(OTHER_USER, GROUP, 2, 0), STATUS_PERMISSION_DENIED);
    ck_assert_int_eq(call_as(OTHER_USER, OTHER_USER, 1, 0), STATUS_PERMISSION_DENIED);
    operators.known = false;
    rpc_server_set_operators(world.server, &operators);
    ck_assert_int_eq(call_as(OTHER_USER, GROUP, 1, 0), STATUS_PERMISSION_DENIED);
}

TEST(calls_of_a_user_are_bounded)
{
    struct rpc_limits limits = {.connections = 100,
                                .connections_waiting = 100,
                                .connections_per_user = 10,
                                .calls_per_user = 5,
                                .users = 10};
    rpc_server_set_limits(world.server, &limits);
    ck_assert_int_eq(call_as(OTHER_USER, OTHER_USER, 0, 4), STATUS_OK);
    ck_assert_int_eq(call_as(OTHER_USER, OTHER_USER, 0, 6), STATUS_RESOURCE_EXHAUSTED);
    ck_assert_int_eq(call_as(OTHER_USER, OTHER_USER, 0, 0), STATUS_OK); /* theirs ended with them */
}

TEST(connections_of_a_user_are_bounded)
{
    struct rpc_limits limits = {.connections = 100,
                                .connections_waiting = 100,
                                .connections_per_user = 1,
                                .calls_per_user = 5,
                                .users = 10};
    rpc_server_set_limits(world.server, &limits);
    for (int i = 0; i < 3; i++) {
        world_idle(&world, 150); /* one after another counts as one at a time */
        ck_assert_int_eq(call_as(OTHER_USER, OTHER_USER, 0, 0), STATUS_OK);
    }
    limits.connections_per_user = 0;
    rpc_server_set_limits(world.server, &limits);
    ck_assert_int_eq(call_as(OTHER_USER, OTHER_USER, 0, 0), STATUS_UNAVAILABLE);
    struct outcome outcome; /* a user with the worker role is not counted */
    world_call(&world, &for_users, "x", 1, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_OK);
}

/* More users than peer_servers, one after another: those that disconnected make room. */
TEST(users_come_and_go)
{
    struct rpc_limits limits = {.connections = 100,
                                .connections_waiting = 100,
                                .connections_per_user = 10,
                                .calls_per_user = 5,
                                .users = 2};
    rpc_server_set_limits(world.server, &limits);
    for (uid_t uid = 5000; uid < 5008; uid++) {
        world_idle(&world, 150); /* until gRPC has closed the previous one */
        ck_assert_int_eq(call_as(uid, OTHER_USER, 0, 0), STATUS_OK);
        ck_assert_uint_eq(last.uid, uid);
    }
    struct outcome outcome; /* and our own user is connected all the time */
    world_call(&world, &for_workers, "x", 1, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_OK);
    limits.users = 0;
    rpc_server_set_limits(world.server, &limits);
    ck_assert_int_eq(call_as(5009, OTHER_USER, 0, 0), STATUS_OK); /* in the last one's place */
    world_call(&world, &for_users, "x", 1, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_OK);
}

TEST(the_first_user_has_room)
{
    struct rpc_limits limits = {.connections = 100,
                                .connections_waiting = 100,
                                .connections_per_user = 10,
                                .calls_per_user = 5,
                                .users = 0};
    rpc_server_set_limits(world.server, &limits);
    ck_assert_int_eq(call_as(OTHER_USER, OTHER_USER, 0, 0), STATUS_UNAVAILABLE);
    limits.users = 1; /* our own user is connected, and does not use it */
    rpc_server_set_limits(world.server, &limits);
    ck_assert_int_eq(call_as(OTHER_USER, OTHER_USER, 0, 0), STATUS_OK);
    ck_assert_int_eq(world.server->counted_servers, 1);
}

/* Whatever the group of its process: bounds and buffers belong to a user. */
TEST(a_user_has_one_server)
{
    ck_assert_int_eq(call_as(OTHER_USER, GROUP, 0, 0), STATUS_OK);
    ck_assert_int_eq(call_as(OTHER_USER, GROUP + 1, 0, 0), STATUS_OK);
    ck_assert_int_eq(world.server->counted_servers, 1);
}

TEST(unknown_user_gets_unavailable)
{
    database_is_broken = true;
    /* No user is mistaken for another meanwhile, nor afterwards. */
    ck_assert_int_eq(call_as(LATE, OTHER_USER, 0, 0), STATUS_UNAVAILABLE);
    database_is_broken = false;
    ck_assert_int_eq(call_as(LATE, OTHER_USER, 0, 0), STATUS_OK);
    ck_assert_str_eq(last_name, "late");
}

static const struct {
    const char *uri;
    unsigned roles;
    const char *name;
} uris[] = {
    {"fsdpd://user/ann", RPC_USER, "ann"},
    {"fsdpd://operator/b.c-d_e@f", RPC_USER | RPC_OPERATOR, "b.c-d_e@f"},
    {"fsdpd://worker/node1.example.org", RPC_WORKER, "node1.example.org"},
    {"fsdpd://worker/", 0, NULL},
    {"fsdpd://worker/a/b", 0, NULL},
    {"fsdpd://user/uid:0", 0, NULL},
    {"fsdpd://user/-x", 0, NULL},
    {"fsdpd://user/a b", 0, NULL},
    {"fsdpd://user/%61", 0, NULL},
    {"fsdpd://admin/ann", 0, NULL},
    {"FSDPD://user/ann", 0, NULL},
    {"spiffe://user/ann", 0, NULL},
    {"", 0, NULL},
    {"fsdpd://user/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 0, NULL},
};

TESTS_BELOW();

LOOP_TEST(identities_of_certificates, 0, COUNT_OF(uris))
{
    const char *name = NULL;
    ck_assert_uint_eq(rpc_peer_parse_uri(uris[_i].uri, &name), uris[_i].roles);
    if (uris[_i].name == NULL) ck_assert_ptr_null(name);
    else ck_assert_str_eq(name, uris[_i].name);
}
