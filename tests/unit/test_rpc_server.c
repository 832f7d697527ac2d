/*
 * Functions of every server of common/rpc: health, reflection, listening on Unix sockets and TCP
 * ports, and closing in any state.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "proto/descriptors.h"
#include "test_rpc_notes.h"
#include "tests/testing.h"

/* ---- health ---- */

typedef Grpc__Health__V1__HealthCheckRequest HealthRequest;
typedef Grpc__Health__V1__HealthCheckResponse HealthResponse;
#define STATE(name) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##name

static const struct rpc_method check_method = {
    .path = "/grpc.health.v1.Health/Check",
    .kind = RPC_UNARY,
    .request = &grpc__health__v1__health_check_request__descriptor,
    .response = &grpc__health__v1__health_check_response__descriptor,
};
static const struct rpc_method watch_method = {
    .path = "/grpc.health.v1.Health/Watch",
    .kind = RPC_SERVER_STREAM,
    .request = &grpc__health__v1__health_check_request__descriptor,
    .response = &grpc__health__v1__health_check_response__descriptor,
};

struct checked {
    bool done;
    enum status_code code;
    int state;
};

static void on_checked(status_t status, const ProtobufCMessage *response, void *user)
{
    struct checked *checked = user;
    checked->done = true;
    checked->code = status_code(status);
    checked->state = response ? (int)((const HealthResponse *)response)->status : -1;
    status_free(status);
}

static int check_health(const char *service)
{
    struct checked checked = {0};
    HealthRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)service;
    rpc_channel_call(world.channel, &check_method, &request.base, WORLD_NEVER_MS, false, on_checked,
                     &checked);
    world_wait(&world, &checked.done);
    return checked.code == STATUS_OK ? checked.state : -(int)checked.code;
}

/* The modes of sockets depend on the umask. */
static void set_umask(void)
{
    umask(022);
}

TESTS_BELOW(.timeout = 60, .set_up = notes_set_up, .tear_down = notes_tear_down,
            .set_up_once = set_umask);

TEST(health_check)
{
    ck_assert_int_eq(check_health(""), STATE(SERVING));
    ck_assert_int_eq(check_health("test.Notes"), STATE(SERVING));
    ck_assert_int_eq(check_health("test.Nothing"), -(int)STATUS_NOT_FOUND);
    rpc_server_set_serving(world.server, "test.Notes", false);
    ck_assert_int_eq(check_health("test.Notes"), STATE(NOT_SERVING));
    ck_assert_int_eq(check_health(""), STATE(SERVING));
    rpc_server_set_serving(world.server, NULL, false);
    ck_assert_int_eq(check_health(""), STATE(NOT_SERVING));
    rpc_server_set_serving(world.server, NULL, true);
    ck_assert_int_eq(check_health("test.Notes"), STATE(SERVING));
}

struct watched {
    bool closed;
    int count;
    int states[64];
    enum status_code code;
};

static void on_state(struct rpc_stream *stream, const ProtobufCMessage *message, void *user)
{
    struct watched *watched = user;
    ck_assert_int_lt(watched->count, 64);
    watched->states[watched->count++] = (int)((const HealthResponse *)message)->status;
    rpc_stream_read(stream);
}

static void on_watch_closed(struct rpc_stream *stream, status_t status, void *user)
{
    (void)stream;
    struct watched *watched = user;
    watched->closed = true;
    watched->code = status_code(status);
    status_free(status);
}

static struct rpc_stream *watch(struct watched *watched, const char *service)
{
    static const struct rpc_stream_callbacks callbacks = {.on_message = on_state,
                                                          .on_closed = on_watch_closed};
    HealthRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)service;
    struct rpc_stream *stream =
        rpc_stream_open(world.channel, &watch_method, &request.base, 0, false, &callbacks, watched);
    rpc_stream_read(stream);
    return stream;
}

TEST(health_watch)
{
    struct watched all = {0}, one = {0}, none = {0};
    watch(&all, "");
    struct rpc_stream *cancelled = watch(&one, "test.Notes");
    watch(&none, "test.Nothing");
    world_wait_count(&world, &all.count, 1);
    world_wait_count(&world, &one.count, 1);
    world_wait_count(&world, &none.count, 1);
    ck_assert_int_eq(all.states[0], STATE(SERVING));
    ck_assert_int_eq(one.states[0], STATE(SERVING));
    ck_assert_int_eq(none.states[0], STATE(SERVICE_UNKNOWN));
    rpc_server_set_serving(world.server, "test.Notes", false);
    rpc_server_set_serving(world.server, "test.Notes", false);
    world_wait_count(&world, &one.count, 2);
    ck_assert_int_eq(one.states[1], STATE(NOT_SERVING));
    world_idle(&world, 50);
    ck_assert_int_eq(one.count, 2);
    ck_assert_int_eq(all.count, 1);
    ck_assert_int_eq(none.count, 1);
    rpc_stream_cancel(cancelled);
    world_wait(&world, &one.closed);

    /* Many changes at once: the last one counts. */
    for (int i = 0; i < 1000; i++) rpc_server_set_serving(world.server, "", i % 2 == 1);
    rpc_server_set_serving(world.server, "", false);
    while (all.states[all.count - 1] != STATE(NOT_SERVING))
        world_wait_count(&world, &all.count, all.count + 1);
    ck_assert_int_le(all.count, 4);

    /* A closing server does not wait for its own streams. */
    rpc_server_set_serving(world.server, "", true);
    while (all.states[all.count - 1] != STATE(SERVING))
        world_wait_count(&world, &all.count, all.count + 1);
    world_close_server(&world, WORLD_NEVER_MS);
    world_wait(&world, &all.closed);
    world_wait(&world, &none.closed);
    ck_assert_int_eq(all.states[all.count - 1], STATE(NOT_SERVING));
    ck_assert_int_eq(all.code, STATUS_UNAVAILABLE);
}

/* ---- reflection ---- */

typedef Grpc__Reflection__V1alpha__ServerReflectionRequest Question;
typedef Grpc__Reflection__V1alpha__ServerReflectionResponse Answer;
#define QUERY(name) GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##name
#define GOT(name) GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##name

static struct rpc_method info_method = {
    .path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    .kind = RPC_BIDIRECTIONAL,
    .request = &grpc__reflection__v1alpha__server_reflection_request__descriptor,
    .response = &grpc__reflection__v1alpha__server_reflection_response__descriptor,
};

/* The last answer, as text: "services a b", "files 3 name-of-first", "error 5 message". */
struct reflected {
    struct rpc_stream *stream;
    bool closed;
    int count;
    enum status_code code;
    char text[1024];
};

static void on_answer(struct rpc_stream *stream, const ProtobufCMessage *message, void *user)
{
    (void)stream;
    struct reflected *reflected = user;
    const Answer *answer = (const Answer *)message;
    ck_assert_str_eq(answer->valid_host, "some.host");
    ck_assert_ptr_nonnull(answer->original_request);
    char *text = NULL;
    switch (answer->message_response_case) {
    case GOT(LIST_SERVICES_RESPONSE):
        text = mem_strdup("services");
        for (size_t i = 0; i < answer->list_services_response->n_service; i++) {
            char *more =
                mem_printf("%s %s", text, answer->list_services_response->service[i]->name);
            free(text);
            text = more;
        }
        break;
    case GOT(FILE_DESCRIPTOR_RESPONSE): {
        /* A FileDescriptorProto starts with its name: tag 10, length, bytes. */
        const ProtobufCBinaryData *first =
            &answer->file_descriptor_response->file_descriptor_proto[0];
        ck_assert_uint_eq(first->data[0], 10);
        text =
            mem_printf("files %zu %.*s", answer->file_descriptor_response->n_file_descriptor_proto,
                       first->data[1], (const char *)first->data + 2);
        break;
    }
    case GOT(ALL_EXTENSION_NUMBERS_RESPONSE):
        text = mem_printf("extensions %zu of %s",
                          answer->all_extension_numbers_response->n_extension_number,
                          answer->all_extension_numbers_response->base_type_name);
        break;
    case GOT(ERROR_RESPONSE):
        text = mem_printf("error %d %s", answer->error_response->error_code,
                          answer->error_response->error_message);
        break;
    default: text = mem_strdup("nothing");
    }
    snprintf(reflected->text, sizeof reflected->text, "%s", text);
    free(text);
    reflected->count++;
    rpc_stream_read(reflected->stream);
}

static void on_reflected(struct rpc_stream *stream, status_t status, void *user)
{
    (void)stream;
    struct reflected *reflected = user;
    reflected->closed = true;
    reflected->code = status_code(status);
    status_free(status);
}

static const char *query(struct reflected *reflected, int what, const char *value)
{
    Question question = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__INIT;
    Grpc__Reflection__V1alpha__ExtensionRequest extension =
        GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    question.host = (char *)"some.host";
    question.message_request_case = what;
    /* The strings of the union share their place. */
    if (what == QUERY(FILE_CONTAINING_EXTENSION)) question.file_containing_extension = &extension;
    else question.list_services = (char *)value;
    rpc_stream_send(reflected->stream, &question.base);
    world_wait_count(&world, &reflected->count, reflected->count + 1);
    return reflected->text;
}

LOOP_TEST(reflection, 0, 2)
{
    static const struct rpc_stream_callbacks callbacks = {.on_message = on_answer,
                                                          .on_closed = on_reflected};
    if (_i == 1) info_method.path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    struct reflected reflected = {0};
    reflected.stream =
        rpc_stream_open(world.channel, &info_method, NULL, 0, false, &callbacks, &reflected);
    rpc_stream_read(reflected.stream);
    /* The descriptors do not have the service test.Notes. */
    const char *listed = query(&reflected, QUERY(LIST_SERVICES), "*");
    ck_assert_int_eq(strncmp(listed, "services ", 9), 0);
    ck_assert_ptr_nonnull(strstr(listed, " grpc.health.v1.Health"));
    ck_assert_ptr_nonnull(strstr(listed, " grpc.reflection.v1alpha.ServerReflection"));
    ck_assert_ptr_null(strstr(listed, "test.Notes"));
    static const char health[] = "files 1 grpc/health/v1/health.proto";
    ck_assert_str_eq(query(&reflected, QUERY(FILE_CONTAINING_SYMBOL), "grpc.health.v1.Health"),
                     health);
    ck_assert_str_eq(query(&reflected, QUERY(FILE_CONTAINING_SYMBOL),
                           "grpc.health.v1.Health.Check"),
                     health);
    ck_assert_str_eq(query(&reflected, QUERY(FILE_CONTAINING_SYMBOL),
                           "grpc.health.v1.HealthCheckResponse.SERVICE_UNKNOWN"),
                     health);
    ck_assert_str_eq(query(&reflected, QUERY(FILE_BY_FILENAME), "grpc/health/v1/health.proto"),
                     health);
    ck_assert_str_eq(query(&reflected, QUERY(FILE_CONTAINING_SYMBOL), "fsdpd.v1.NoSuchThing"),
                     "error 5 there is no symbol \"fsdpd.v1.NoSuchThing\"");
    ck_assert_str_eq(query(&reflected, QUERY(FILE_BY_FILENAME), "no.proto"),
                     "error 5 there is no file \"no.proto\"");
    /* worker.proto imports files of the API. */
    const char *worker = query(&reflected, QUERY(FILE_CONTAINING_SYMBOL), "fsdpd.v1.WorkerLink");
    ck_assert_int_eq(strncmp(worker, "files ", 6), 0);
    ck_assert_int_ge(atoi(worker + 6), 2);
    ck_assert_ptr_nonnull(strstr(worker, " fsdpd/v1/worker.proto"));
    ck_assert_str_eq(query(&reflected, QUERY(ALL_EXTENSION_NUMBERS_OF_TYPE),
                           "grpc.health.v1.HealthCheckRequest"),
                     "extensions 0 of grpc.health.v1.HealthCheckRequest");
    ck_assert_str_eq(query(&reflected, QUERY(ALL_EXTENSION_NUMBERS_OF_TYPE),
                           "grpc.health.v1.Health"),
                     "error 5 there is no message \"grpc.health.v1.Health\"");
    ck_assert_int_eq(strncmp(query(&reflected, QUERY(FILE_CONTAINING_EXTENSION), NULL), "error 5 ",
                             8),
                     0);
    ck_assert_int_eq(strncmp(query(&reflected, QUERY(_NOT_SET), NULL), "error 3 ", 8), 0);
    rpc_stream_finish_sending(reflected.stream);
    world_wait(&world, &reflected.closed);
    ck_assert_int_eq(reflected.code, STATUS_OK);
}

TEST(reflection_with_impatient_client)
{
    static const struct rpc_stream_callbacks callbacks = {.on_message = on_answer,
                                                          .on_closed = on_reflected};
    struct reflected reflected = {0};
    reflected.stream =
        rpc_stream_open(world.channel, &info_method, NULL, 0, false, &callbacks, &reflected);
    Question question = GRPC__REFLECTION__V1ALPHA__SERVER_REFLECTION_REQUEST__INIT;
    question.host = (char *)"some.host";
    question.message_request_case = QUERY(FILE_CONTAINING_SYMBOL);
    question.file_containing_symbol = (char *)"fsdpd.v1.WorkerLink";
    for (int i = 0; i < 200; i++) rpc_stream_send(reflected.stream, &question.base);
    rpc_stream_finish_sending(reflected.stream);
    world_idle(&world, 200);
    ck_assert_int_eq(reflected.count, 0);
    rpc_stream_read(reflected.stream);
    world_wait(&world, &reflected.closed);
    ck_assert_int_eq(reflected.count, 200);
    ck_assert_int_eq(reflected.code, STATUS_OK);
}

/* ---- listening ---- */

static const struct rpc_channel_security insecure = {.insecure_tcp = true};

static struct rpc_server *another_server(void)
{
    struct rpc_server *server;
    ck_assert_ptr_null(rpc_server_new(world.runtime, &notes, 1, proto_descriptors,
                                      proto_descriptors_size, &server));
    return server;
}

static void close_another(struct rpc_server *server)
{
    bool closed = false;
    rpc_server_close(server, 0, world_set, &closed);
    ck_assert(!closed);
    world_wait(&world, &closed);
}

static void expect_code(status_t status, enum status_code code, const char *part)
{
    ck_assert_int_eq(status_code(status), code);
    ck_assert_msg(strstr(status_message(status), part) != NULL, "\"%s\" is not in \"%s\"", part,
                  status_message(status));
    status_free(status);
}

TEST(unix_socket_has_its_mode_and_goes)
{
    struct stat info;
    const char *path = world.address + 5;
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert(S_ISSOCK(info.st_mode));
    ck_assert_uint_eq(info.st_mode & 07777, 0660);
    char *other = mem_printf("%s/other", world.directory);
    char *address = mem_printf("unix:%s", other);
    struct rpc_server *server = another_server();
    ck_assert_ptr_null(rpc_server_listen(server, address, 0600, NULL));
    ck_assert_int_eq(stat(other, &info), 0);
    ck_assert_uint_eq(info.st_mode & 07777, 0600);
    ck_assert_uint_eq(umask(022), 022);
    ck_assert_ptr_null(rpc_server_start(server));
    expect_code(rpc_server_start(server), STATUS_FAILED_PRECONDITION, "started");
    close_another(server);
    ck_assert_int_eq(stat(other, &info), -1);
    ck_assert_int_eq(errno, ENOENT);
    /* Also of a server that never started. */
    server = another_server();
    ck_assert_ptr_null(rpc_server_listen(server, address, 0, NULL));
    ck_assert_int_eq(stat(other, &info), 0);
    close_another(server);
    ck_assert_int_eq(stat(other, &info), -1);
    free(address);
    free(other);
}

TEST(stale_unix_socket_is_replaced)
{
    char *other = mem_printf("%s/with space %%41?#", world.directory);
    char *address = mem_printf("unix:%s", other);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct rpc_server *server = another_server();
    /* Left over by a killed process. */
    struct rpc_server *first = another_server();
    ck_assert_ptr_null(rpc_server_listen(first, address, 0, NULL));
    char *kept = mem_printf("%s/kept", world.directory);
    ck_assert_int_eq(rename(other, kept), 0);
    close_another(first);
    ck_assert_int_eq(rename(kept, other), 0);
    ck_assert_ptr_null(rpc_server_listen(server, address, 0, NULL));
    ck_assert_ptr_null(rpc_server_start(server));
    /* A path with characters that are special in a URI still works. */
    struct rpc_channel *channel = world.channel;
    ck_assert_ptr_null(rpc_channel_new(world.runtime, address, &insecure, &world.channel));
    struct outcome outcome;
    world_call(&world, &echo, "x", 0, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_OK);
    world_close_channel(&world);
    world.channel = channel;
    close_another(server);
    world.channel_closed = false;
    close(fd);
    free(kept);
    free(address);
    free(other);
}

TEST(unix_socket_that_cannot_be_created)
{
    struct rpc_server *server = another_server();
    char *file = mem_printf("%s/file", world.directory);
    ck_assert_ptr_null(file_write_atomic(file, "precious", 8, 0600));
    char *address = mem_printf("unix:%s", file);
    expect_code(rpc_server_listen(server, address, 0, NULL), STATUS_UNAVAILABLE, address);
    struct stat info;
    ck_assert_int_eq(stat(file, &info), 0);
    ck_assert_int_eq(info.st_size, 8);
    unlink(file);
    free(address);
    address = mem_printf("unix:%s/no/such/place", world.directory);
    char *expected = mem_printf("cannot listen on %s: No such file or directory", address);
    expect_code(rpc_server_listen(server, address, 0, NULL), STATUS_UNAVAILABLE, expected);
    free(expected);
    free(address);
    free(file);
    close_another(server);
}

LOOP_TEST(tcp_port_is_picked_and_exclusive, 0, 3)
{
    static const char *const hosts[] = {"127.0.0.1", "localhost", "[::1]"};
    struct rpc_server *server = another_server(), *second = another_server();
    int port = 0, unused;
    char *any = mem_printf("%s:0", hosts[_i]);
    status_t status = rpc_server_listen(server, any, 0, &port);
    free(any);
    if (status && _i == 2) { /* no IPv6 here */
        status_free(status);
        close_another(server);
        close_another(second);
        return;
    }
    ck_assert_ptr_null(status);
    ck_assert_int_gt(port, 0);
    char *address = mem_printf("%s:%d", hosts[_i], port);
    ck_assert_ptr_null(rpc_server_start(server));
    char *expected = mem_printf("cannot listen on %s: Address already in use", address);
    expect_code(rpc_server_listen(second, address, 0, &unused), STATUS_UNAVAILABLE, expected);
    close_another(second); /* never started */
    struct rpc_channel *channel = world.channel;
    /* A proxy in the environment must not intervene. */
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    setenv("grpc_proxy", "http://127.0.0.1:1", 1);
    ck_assert_ptr_null(rpc_channel_new(world.runtime, address, &insecure, &world.channel));
    struct outcome outcome;
    world_call(&world, &echo, "x", 3, WORLD_NEVER_MS, false, &outcome);
    ck_assert_msg(outcome.code == STATUS_OK, "%s", outcome.message);
    ck_assert_int_eq(outcome.number, 3);
    close_another(server);
    world_call(&world, &echo, "x", 3, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_UNAVAILABLE);
    world_close_channel(&world);
    world.channel = channel;
    world.channel_closed = false;
    free(expected);
    free(address);
}

TEST(silent_connection_does_not_hold_the_server)
{
    struct rpc_server *server = another_server();
    int port = 0;
    ck_assert_ptr_null(rpc_server_listen(server, "127.0.0.1:0", 0, &port));
    ck_assert_ptr_null(rpc_server_start(server));
    int silent = socket(AF_INET, SOCK_STREAM, 0), rude = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_eq(connect(silent, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(connect(rude, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(send(rude, "GET / HTTP/1.1\r\n\r\n\xff\0\xff", 21, MSG_NOSIGNAL), 21);
    world_idle(&world, 100);
    close_another(server);
    close(silent);
    close(rude);
}

static int bound_socket(const char *path, bool listens)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    if (listens) ck_assert_int_eq(listen(fd, 16), 0);
    return fd;
}

/* A service manager's socket: served, finally closed, and its file preserved. */
TEST(descriptor_that_listens_already)
{
    char *path = file_path_join(world.directory, "given");
    int fd = bound_socket(path, true), silent = socket(AF_UNIX, SOCK_STREAM, 0);
    struct rpc_server *server = another_server();
    ck_assert_ptr_null(rpc_server_listen_fd(server, fd));
    ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    ck_assert_ptr_null(rpc_server_start(server));

    char *address = mem_printf("unix:%s", path);
    struct rpc_channel *before = world.channel;
    ck_assert_ptr_null(rpc_channel_new(world.runtime, address, &insecure, &world.channel));
    ck_assert_int_eq(check_health(""), STATE(SERVING));
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s", path);
    ck_assert_int_eq(connect(silent, (struct sockaddr *)&name, sizeof name), 0);
    world_idle(&world, 50);
    ck_assert_int_eq(check_health(""), STATE(SERVING));
    world_close_channel(&world);
    world.channel = before;
    world.channel_closed = false;

    close_another(server);
    close(silent);
    struct stat info;
    ck_assert_int_eq(lstat(path, &info), 0);
    ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
    unlink(path);
    free(address);
    free(path);
}

TEST(descriptors_that_cannot_be)
{
    char *path = file_path_join(world.directory, "given");
    struct rpc_server *server = another_server();
    int deaf = bound_socket(path, false), file = open("/dev/null", O_RDONLY);
    int datagrams = socket(AF_UNIX, SOCK_DGRAM, 0);
    expect_code(rpc_server_listen_fd(server, deaf), STATUS_INVALID_ARGUMENT, "listening");
    expect_code(rpc_server_listen_fd(server, datagrams), STATUS_INVALID_ARGUMENT, "stream");
    status_t status = rpc_server_listen_fd(server, file);
    ck_assert_ptr_nonnull(status);
    status_free(status);
    ck_assert_int_eq(close(deaf), 0); /* still ours */
    ck_assert_int_eq(close(file), 0);
    ck_assert_int_eq(close(datagrams), 0);
    close_another(server);
    unlink(path);
    free(path);
}

/* A probe counts only after it has passed through gRPC's queue and the loop. */
TEST(runtime_that_makes_progress)
{
    ck_assert(rpc_runtime_is_alive(world.runtime));
    ck_assert(!rpc_runtime_is_alive(world.runtime)); /* the loop has not run */
    usleep(100000);
    ck_assert(!rpc_runtime_is_alive(world.runtime));
    for (int i = 0; i < 5; i++) /* each time until the probe before has passed */
        while (!rpc_runtime_is_alive(world.runtime)) world_idle(&world, 5);
}

TEST(descriptors_are_not_inherited)
{
    /* A child that fsdpd starts must not hold sockets open. */
    struct outcome outcome;
    world_call(&world, &echo, "x", 0, WORLD_NEVER_MS, false, &outcome);
    for (int fd = 3; fd < 256; fd++) {
        struct stat info;
        if (fstat(fd, &info) < 0 || !S_ISSOCK(info.st_mode)) continue;
        ck_assert_msg(fcntl(fd, F_GETFD) & FD_CLOEXEC, "socket %d would be inherited", fd);
    }
}

TEST(new_server_checks_what_it_is_given)
{
    struct rpc_server *server = NULL;
    static const uint8_t broken[] = {0x0a, 0xff, 0x01, 'x'};
    expect_code(rpc_server_new(world.runtime, &notes, 1, broken, sizeof broken, &server),
                STATUS_INVALID_ARGUMENT, "FileDescriptorSet");
    struct rpc_service twice[] = {notes, notes};
    expect_code(rpc_server_new(world.runtime, twice, 2, proto_descriptors, proto_descriptors_size,
                               &server),
                STATUS_ALREADY_EXISTS, "/test.Notes/");
    ck_assert_ptr_null(server);
    ck_assert_ptr_null(rpc_server_new(world.runtime, NULL, 0, NULL, 0, &server));
    expect_code(rpc_server_listen(server, "nonsense", 0, NULL), STATUS_INVALID_ARGUMENT,
                "nonsense");
    ck_assert_ptr_null(rpc_server_start(server));
    close_another(server);
}
