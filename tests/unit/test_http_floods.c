/*
 * http.listen under clients that mean harm or are broken: requests that arrive byte by byte,
 * connections that send nothing, more connections than there are, and more requests than a user
 * has. Other clients are served.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/mem.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

enum { PORT = 9466, OF_AN_ADDRESS = 160, OF_ALL = 256, SILENT = 128 };

static struct world world;
static char *id, *secret;
static struct in_addr own, other; /* of the loopback: the listener and floods, and other clients */
static char listen_at[40];

static void set_up(void)
{
    const unsigned pid = (unsigned)getpid();
    const struct rlimit files = {4096, 4096};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    own.s_addr = htonl(127u << 24 | (65 + (pid >> 16 & 31)) << 16 | (pid & 0xffff));
    other.s_addr = own.s_addr ^ htonl(32u << 16);
    snprintf(listen_at, sizeof listen_at, "%s:%d", inet_ntoa(own), PORT);
    world_init(&world);
    world.options.http_listen = listen_at;
    world.options.limits.silence_ms = 60000;
    world_start(&world);
    id = world_submit(&world, 1);
    Fsdpd__V1__IssueTokenRequest request = FSDPD__V1__ISSUE_TOKEN_REQUEST__INIT;
    Fsdpd__V1__IssueTokenResponse *response = NULL;
    request.name = (char *)"ann";
    expect_ok(world_call(&world, &control_issue_token, &request, (void **)&response));
    secret = mem_strdup(response->secret);
    message_free(response);
}

static void tear_down(void)
{
    free(id);
    free(secret);
    world_stop(&world);
    world_deinit(&world);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

static int connect_from(struct in_addr from)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = from};
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    at = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr = own};
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

/* False: the listener has closed it. */
static bool send_text(int fd, const char *text)
{
    return send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text);
}

/* Its head; `more` are lines, each with its end. */
static char *request_of(const char *line, const char *more)
{
    return mem_printf("%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n%s\r\n", line,
                      listen_at, secret, more);
}

static bool is_closed(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

/* Whether its answer is that there is no place for it. A client that asks now still reads it. */
static bool is_refused(int fd, bool asks)
{
    char text[1024] = "";
    if (recv(fd, text, sizeof text - 1, MSG_DONTWAIT | MSG_PEEK) <= 0) return false;
    if (asks) send_text(fd, "GET / HTTP/1.1\r\n\r\n");
    ssize_t length = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
    ck_assert_int_gt(length, 0);
    text[length] = '\0';
    ck_assert_int_eq(strncmp(text, "HTTP/1.1 503 ", 13), 0);
    ck_assert_ptr_nonnull(strstr(text, "\r\nRetry-After: 1\r\n"));
    const char *body = strstr(text, "\r\n\r\n{\"error\": {\"message\": \"all connections are in use");
    ck_assert_ptr_nonnull(body);
    AUTO_FREE char *size = mem_printf("\r\nContent-Length: %zu\r\n", strlen(body + 4));
    ck_assert_ptr_nonnull(strstr(text, size));
    return true;
}

/* Whether an answer with this code has begun. */
static bool has_answer(int fd, const char *code)
{
    char text[16] = "";
    ssize_t length = recv(fd, text, sizeof text - 1, MSG_DONTWAIT | MSG_PEEK);
    if (length < 12) return false;
    ck_assert_msg(strncmp(text + 9, code, 3) == 0, "expected %s, found %s", code, text);
    return true;
}

static int ask_from(struct in_addr from, const char *line, const char *more)
{
    AUTO_FREE char *text = request_of(line, more);
    int fd = connect_from(from);
    ck_assert(send_text(fd, text));
    return fd;
}

static void expect_served(struct in_addr from)
{
    int fd = ask_from(from, "GET /v1/jobs", "");
    WAIT(&world, has_answer(fd, "200"));
    close(fd);
}

static int count_refused(const int *fds, int count)
{
    char byte;
    int refused = 0;
    for (int i = 0; i < count; i++)
        refused += recv(fds[i], &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
    return refused;
}

static int count_closed(const int *fds, int count)
{
    int closed = 0;
    for (int i = 0; i < count; i++) closed += is_closed(fds[i]);
    return closed;
}

static void close_all(const int *fds, int count)
{
    for (int i = 0; i < count; i++) close(fds[i]);
}

/* A client is closed that sends a byte with every turn of the loop, and is never silent. */
static void drip(const char *begin)
{
    AUTO_FREE char *head = request_of("POST /v1/completions", begin);
    const bool in_body = strstr(begin, "Content-Length") != NULL;
    if (!in_body) head[strlen(head) - 2] = '\0';
    int fd = connect_from(own), bytes = 0;
    ck_assert(send_text(fd, head));
    while (!is_closed(fd) && send_text(fd, in_body ? " " : "X")) {
        world_run(&world, 5);
        if (bytes++ == 10) expect_served(own);
    }
    ck_assert_int_gt(bytes, 10);
    close(fd);
}

TEST(requests_that_drip_are_closed)
{
    world_stop(&world);
    world.options.limits.silence_ms = 300;
    world_start(&world);
    drip("X-Slow: ");
    drip("Content-Type: application/json\r\nContent-Length: 1000000\r\n");
}

/* Connections that send nothing make room for others, the oldest of the address with most first. */
TEST(a_flood_of_silent_connections_leaves_room_for_others)
{
    enum { FLOOD = 2 * SILENT };
    static int flood[FLOOD];
    int quiet = connect_from(other);
    for (int i = 0; i < FLOOD; i++) {
        flood[i] = connect_from(own);
        if (i % 16 == 15) world_run(&world, 1);
    }
    WAIT(&world, count_refused(flood, FLOOD) >= FLOOD - SILENT);
    ck_assert_int_eq(count_closed(flood, FLOOD), 0);
    expect_served(own);
    expect_served(other);
    ck_assert_int_eq(count_refused(&flood[FLOOD - 1], 1), 0);
    ck_assert(is_refused(flood[0], false));
    ck_assert(is_closed(flood[0]));
    ck_assert(is_refused(flood[1], true));
    ck_assert_int_eq(count_refused(&quiet, 1), 0); /* older than all of them, of another address */
    AUTO_FREE char *text = request_of("GET /v1/version", "");
    ck_assert(send_text(quiet, text));
    WAIT(&world, has_answer(quiet, "200"));
    close(quiet);
    close_all(flood, FLOOD);
}

/* Even if the loop sees those that come before it sees the bytes. */
TEST(a_request_that_is_there_makes_room_by_its_answer)
{
    static int flood[SILENT];
    for (int i = 0; i < SILENT; i++) {
        flood[i] = connect_from(own);
        if (i % 16 == 15) world_run(&world, 1);
    }
    world_run(&world, 100); /* each has waited long enough to be replaced */
    AUTO_FREE char *text = request_of("GET /v1/version", "");
    int next = connect_from(other);
    ck_assert(send_text(flood[0], text));
    WAIT(&world, has_answer(flood[0], "200"));
    ck_assert_int_eq(count_closed(flood + 1, SILENT - 1), 0);
    ck_assert_int_eq(count_refused(flood + 1, SILENT - 1), 0);
    close(next);
    close_all(flood, SILENT);
}

static const char unfinished[] = "Content-Type: application/json\r\nContent-Length: 9\r\n";

static void ask_all(struct in_addr from, int *fds, int count)
{
    for (int i = 0; i < count; i++) {
        fds[i] = ask_from(from, "POST /v1/completions", unfinished);
        world_run(&world, 1);
    }
}

/* An address has its part of the connections; beyond it, and beyond all of them, a request waits.
 */
TEST(connections_are_bounded_for_an_address_and_in_all)
{
    static int first[OF_AN_ADDRESS], second[OF_ALL - OF_AN_ADDRESS];
    ask_all(own, first, OF_AN_ADDRESS);
    int too_many = ask_from(own, "GET /v1/version", "");
    world_run(&world, 200);
    ck_assert(!has_answer(too_many, "") && !is_closed(too_many));
    expect_served(other);
    close(first[1]);
    WAIT(&world, has_answer(too_many, "200"));
    close(too_many);
    first[1] = ask_from(own, "POST /v1/completions", unfinished);
    ask_all(other, second, OF_ALL - OF_AN_ADDRESS);
    int waiting = ask_from(other, "GET /v1/version", "");
    world_run(&world, 100);
    ck_assert(!has_answer(waiting, "") && !is_closed(waiting));
    ck_assert_int_eq(count_closed(second, OF_ALL - OF_AN_ADDRESS), 0);
    close(first[0]);
    WAIT(&world, has_answer(waiting, "200"));
    close(waiting);
    close_all(first + 1, OF_AN_ADDRESS - 1);
    close_all(second, OF_ALL - OF_AN_ADDRESS);
}

/* Requests that begin later than it waits keep their places. */
TEST(a_request_that_finds_no_room_in_time_is_refused)
{
    static int first[OF_AN_ADDRESS];
    world_stop(&world);
    world.options.limits.silence_ms = 500;
    world_start(&world);
    struct coordinator_options options = world.options;
    options.limits.silence_ms = 60000; /* from then on, until a request is whole */
    world_reload(&world, &options);
    ask_all(own, first, OF_AN_ADDRESS);
    int waiting = ask_from(own, "GET /v1/version", "");
    WAIT(&world, is_refused(waiting, false));
    ck_assert(is_closed(waiting));
    ck_assert_int_eq(count_closed(first, OF_AN_ADDRESS), 0);
    close(waiting);
    close_all(first, OF_AN_ADDRESS);
}

/* More browsers than places come at once, each from an address of its own, and ask a little late. */
TEST(one_that_is_replaced_before_it_asks_has_an_answer)
{
    static int slow[SILENT + 1];
    for (int i = 0; i <= SILENT; i++) {
        struct in_addr from = {.s_addr = htonl(ntohl(own.s_addr) ^ (1u << 16 | (unsigned)i << 8))};
        slow[i] = connect_from(from);
        if (i % 16 == 15) world_run(&world, 1);
    }
    WAIT(&world, count_refused(slow, SILENT + 1) == 1);
    ck_assert(is_refused(slow[0], true));
    AUTO_FREE char *text = request_of("GET /v1/version", "");
    for (int i = 1; i <= SILENT; i++) ck_assert(send_text(slow[i], text));
    for (int i = 1; i <= SILENT; i++) WAIT(&world, has_answer(slow[i], "200"));
    close_all(slow, SILENT + 1);
}

TEST(a_user_has_their_number_of_requests)
{
    struct coordinator_options options = world.options;
    options.limits.calls_per_user = 2;
    world_reload(&world, &options);
    AUTO_FREE char *line = mem_printf("GET /v1/jobs/%s/events", id);
    int streams[] = {ask_from(own, line, ""), ask_from(other, line, "")};
    for (size_t i = 0; i < COUNT_OF(streams); i++) WAIT(&world, has_answer(streams[i], "200"));
    int refused = ask_from(other, "GET /v1/version", "");
    WAIT(&world, has_answer(refused, "429"));
    static char answer[2048];
    ck_assert_int_gt(recv(refused, answer, sizeof answer - 1, MSG_DONTWAIT), 0);
    ck_assert_ptr_nonnull(strstr(answer, "Retry-After: 1\r\n"));
    ck_assert_ptr_nonnull(strstr(answer, "limits.calls_per_user"));
    close(refused);
    /* Another user has as many, and this one again when a stream has ended. */
    AUTO_FREE char *ann = secret;
    Fsdpd__V1__IssueTokenRequest request = FSDPD__V1__ISSUE_TOKEN_REQUEST__INIT;
    Fsdpd__V1__IssueTokenResponse *response = NULL;
    request.name = (char *)"bob";
    expect_ok(world_call(&world, &control_issue_token, &request, (void **)&response));
    secret = mem_strdup(response->secret);
    message_free(response);
    expect_served(own);
    free(secret);
    secret = mem_strdup(ann);
    close(streams[0]);
    for (bool served = false; !served;) { /* the hang-up may arrive after the next request */
        int next = ask_from(own, "GET /v1/version", "");
        char text[16] = "";
        WAIT(&world, recv(next, text, sizeof text - 1, MSG_DONTWAIT | MSG_PEEK) >= 12);
        served = strncmp(text + 9, "200", 3) == 0;
        close(next);
    }
    close(streams[1]);
}
