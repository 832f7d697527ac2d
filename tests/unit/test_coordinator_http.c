/*
 * http.listen: who may do what with which token, headers and sizes that are refused, requests that
 * do not arrive, and completions from the request to the answer, with workers that only pretend.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

enum { PORT = 9465, BODY_MAX = 1 << 20 };

static struct world world;
static struct fake fakes[2];
static char *id;
static char address[32], listen_at[40]; /* this process' own address of the loopback */
static char own_name[64];               /* of the user who submits the jobs */

static void set_up(void)
{
    const unsigned pid = (unsigned)getpid();
    const struct passwd *user = getpwuid(geteuid());
    snprintf(own_name, sizeof own_name, "%s", user != NULL ? user->pw_name : "?");
    snprintf(address, sizeof address, "127.%u.%u.%u", 1 + (pid >> 16 & 63), pid >> 8 & 255,
             pid & 255);
    snprintf(listen_at, sizeof listen_at, "%s:%d", address, PORT);
    world_init(&world);
    world.options.http_listen = listen_at;
    world.options.limits.samples_waiting = 0;
    world.options.limits.heartbeat_ms = 50;
    world_start(&world);
    id = world_start_running(&world, fakes);
}

static void tear_down(void)
{
    world_deinit_running(&world, fakes, 2, id);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

/* ---- clients ---- */

struct client {
    pthread_t thread;
    struct buf text;
    bool leaves; /* after what it sends */
    char answer[1 << 19];
    _Atomic size_t length; /* of it, so far */
    int fd;
    _Atomic bool done;
};

static void *talk(void *argument)
{
    struct client *client = argument;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    ck_assert_int_eq(inet_pton(AF_INET, address, &to.sin_addr), 1);
    client->fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(client->fd, (struct sockaddr *)&to, sizeof to), 0);
    for (size_t at = 0; at < client->text.length;) {
        ssize_t sent =
            send(client->fd, client->text.data + at, client->text.length - at, MSG_NOSIGNAL);
        if (sent <= 0) break; /* refused already */
        at += (size_t)sent;
    }
    size_t length = 0;
    for (ssize_t more; !client->leaves && length < sizeof client->answer - 1 &&
                       (more = read(client->fd, client->answer + length,
                                    sizeof client->answer - 1 - length)) > 0;)
        client->length = length += (size_t)more;
    client->answer[length] = '\0';
    if (!client->leaves) close(client->fd);
    client->done = true;
    return NULL;
}

static struct client *client_start(const char *head, const char *body, size_t size, bool leaves)
{
    struct client *client = mem_alloc(sizeof *client);
    client->leaves = leaves;
    buf_add_text(&client->text, head);
    buf_add(&client->text, body, size);
    ck_assert_int_eq(pthread_create(&client->thread, NULL, talk, client), 0);
    return client;
}

/* Waits for its answer, and checks the status line and words of it. */
static void client_expect(struct client *client, const char *code, const char *words)
{
    WAIT(&world, client->done);
    pthread_join(client->thread, NULL);
    const char *answer = client->answer;
    if (code == NULL) ck_assert_str_eq(answer, "");
    else
        ck_assert_msg(strncmp(answer, "HTTP/1.", 7) == 0 && strncmp(answer + 9, code, 3) == 0 &&
                          strstr(answer, words) != NULL,
                      "expected %s, %s: %s\n-> %s", code, words, buf_text(&client->text), answer);
    buf_deinit(&client->text);
    free(client);
}

/* Whether the answer has these words already. */
static bool client_has(const struct client *client, const char *words)
{
    AUTO_FREE char *answer = mem_strndup(client->answer, client->length);
    return strstr(answer, words) != NULL;
}

/* The head of a request. `headers`: lines of it, with one for Host, each with its end. */
static char *head_of(const char *line, const char *headers, const char *secret, size_t size)
{
    AUTO_FREE char *token =
        secret != NULL ? mem_printf("Authorization: Bearer %s\r\n", secret) : mem_strdup("");
    return mem_printf("%s HTTP/1.1\r\n%s%sContent-Type: application/json\r\n"
                      "Content-Length: %zu\r\n\r\n",
                      line, headers, token, size);
}

static const char *host(void)
{
    static char text[64];
    snprintf(text, sizeof text, "Host: %s\r\n", listen_at);
    return text;
}

static struct client *post(const char *secret, const char *body)
{
    AUTO_FREE char *head = head_of("POST /v1/completions", host(), secret, strlen(body));
    return client_start(head, body, strlen(body), false);
}

static void get(const char *path, const char *secret, const char *code, const char *words)
{
    AUTO_FREE char *line = mem_printf("GET %s", path);
    AUTO_FREE char *head = head_of(line, host(), secret, 0);
    client_expect(client_start(head, "", 0, false), code, words);
}

/* ---- tokens ---- */

static char *issue_for(const char *job, const char *name, int role, double seconds)
{
    Fsdpd__V1__IssueTokenRequest request = FSDPD__V1__ISSUE_TOKEN_REQUEST__INIT;
    Fsdpd__V1__IssueTokenResponse *response = NULL;
    request.job = (char *)job;
    request.name = (char *)name;
    request.role = (Fsdpd__V1__TokenRole)role;
    request.seconds = seconds;
    expect_ok(world_call(&world, &control_issue_token, &request, (void **)&response));
    char *secret = mem_strdup(response->secret);
    ck_assert_str_eq(response->token->name, name[0] != '\0' ? name : job);
    ck_assert_str_eq(response->token->job, job);
    message_free(response);
    return secret;
}

static char *issue(const char *name, int role, double seconds)
{
    return issue_for("", name, role, seconds);
}

static status_t revoke_of(const char *name)
{
    Fsdpd__V1__RevokeTokensRequest request = FSDPD__V1__REVOKE_TOKENS_REQUEST__INIT;
    void *response = NULL;
    request.name = (char *)name;
    status_t status = world_call(&world, &control_revoke_tokens, &request, &response);
    message_free(response);
    return status;
}

static char *completion_of(const char *job)
{
    return mem_printf("{\"model\": \"%s\", \"prompt\": [5, 1], \"max_tokens\": 2, \"echo\": true, "
                      "\"logprobs\": 1, \"temperature\": 0}",
                      job);
}

TEST(tokens_are_listed_by_pages_and_revoked)
{
    AUTO_FREE char *ann = issue("ann", FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER, 0);
    AUTO_FREE char *olga = issue("olga", FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OPERATOR, 60);
    ck_assert_str_ne(ann, olga);
    Fsdpd__V1__ListTokensRequest request = FSDPD__V1__LIST_TOKENS_REQUEST__INIT;
    Fsdpd__V1__ListTokensResponse *page = NULL;
    request.page_size = 1;
    expect_ok(world_call(&world, &control_list_tokens, &request, (void **)&page));
    ck_assert_uint_eq(page->n_tokens, 1);
    ck_assert_str_eq(page->tokens[0]->name, "ann");
    request.page_token = page->next_page_token;
    Fsdpd__V1__ListTokensResponse *next = NULL;
    expect_ok(world_call(&world, &control_list_tokens, &request, (void **)&next));
    ck_assert_uint_eq(next->n_tokens, 1);
    ck_assert_str_eq(next->tokens[0]->name, "olga");
    ck_assert_int_eq(next->tokens[0]->role, FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OPERATOR);
    ck_assert_int_eq(message_time_ms(next->tokens[0]->expiry_time) -
                         message_time_ms(next->tokens[0]->issue_time),
                     60000);
    ck_assert_str_eq(next->next_page_token, "");
    message_free(page);
    message_free(next);
    get("/v1/models", ann, "200", "\"data\": []");
    expect_ok(revoke_of("ann"));
    get("/v1/models", ann, "401", "WWW-Authenticate: Bearer");
    expect_status(revoke_of("ann"), STATUS_NOT_FOUND, "there is no token of ann");
    expect_status(revoke_of("a b"), STATUS_INVALID_ARGUMENT, "name: expected 1 to 64");
    AUTO_FREE char *past = issue("ann", 0, 0.001);
    world_run(&world, 20);
    get("/v1/models", past, "401", "has expired");
}

/* Requests against roles and owners. */
TEST(who_may_sample_which_job)
{
    AUTO_FREE char *own = issue(own_name, FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER, 0);
    AUTO_FREE char *ann = issue("ann", FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER, 0);
    AUTO_FREE char *olga = issue("olga", FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OPERATOR, 0);
    AUTO_FREE char *body = completion_of(id);
    AUTO_FREE char *shown = mem_printf("{\"id\": \"%s\", \"object\": \"model\"", id);
    static const char *const right[] = {"own", "olga"};
    const char *const secrets[] = {own, olga};
    for (size_t i = 0; i < COUNT_OF(right); i++) {
        get("/v1/models", secrets[i], "200", shown);
        struct client *client = post(secrets[i], body);
        WAIT(&world, fakes[0].evaluations == (int)i + 1);
        fake_sampled(&fakes[0], NULL, STATUS_INVALID_ARGUMENT, right[i]);
        client_expect(client, "400", right[i]);
    }
    get("/v1/models", ann, "200", "\"data\": []}");
    client_expect(post(ann, body), "403", "only its owner or an operator may sample it");
    client_expect(post(NULL, body), "401", "expected the header Authorization: Bearer TOKEN");
    client_expect(post("fsdpd_0123", body), "401", "unknown, revoked or has expired");
    client_expect(post("", body), "401", "\"code\": \"UNAUTHENTICATED\"");
    AUTO_FREE char *none = completion_of("none-1");
    client_expect(post(own, none), "404", "there is no job none-1");
    ck_assert_int_eq(fakes[0].evaluations, 2);
}

TEST(what_a_browser_or_a_stranger_sends_is_refused)
{
    AUTO_FREE char *own = issue(own_name, FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER, 0);
    static const struct {
        const char *line, *headers; /* %s: the address, and the port */
        const char *code, *words;
    } cases[] = {
        {"GET /v1/models", "Host: %s:9465\r\n", "200", "\"object\": \"list\""},
        {"GET /v1/models", "Host: LOCALHOST:9465\r\n", "200", "\"object\": \"list\""},
        {"GET /v1/models", "Host: [::1]:9465\r\n", "200", "\"object\": \"list\""},
        {"GET /v1/models", "Host: %s:9465\r\nOrigin: http://%s:9465\r\n", "200", "list"},
        {"GET /", "Host: %s:9465\r\n", "200", "<form id=\"login\""},
        {"GET /", "Host: evil.example:9465\r\n", "421", "WRONG_HOST"},
        {"GET /page.js", "Host: %s:9465\r\nOrigin: http://evil.example\r\n", "403", "WRONG_ORIGIN"},
        {"HEAD /v1/models", "Host: %s:9465\r\n", "200", "\r\n\r\n"},
        {"GET /v1/models", "", "4", ""},
        {"GET /v1/models", "Host: evil.example\r\n", "421", "WRONG_HOST"},
        {"GET /v1/models", "Host: evil.example:9465\r\n", "421", "WRONG_HOST"},
        {"GET /v1/models", "Host: 127.0.0.1.evil.example:9465\r\n", "421", "WRONG_HOST"},
        {"GET /v1/models", "Host: 10.0.0.1:9465\r\n", "421", "WRONG_HOST"},
        {"GET /v1/models", "Host: %s\r\n", "421", "WRONG_HOST"},
        {"GET /v1/models", "Host: %s:9466\r\n", "421", "WRONG_HOST"},
        {"GET /v1/models", "Host: user@%s:9465\r\n", "421", "WRONG_HOST"},
        {"GET /v1/models", "Host: %s:9465\r\nHost: %s:9465\r\n", "4", ""},
        {"GET /v1/models", "Host: %s:9465\r\nOrigin: http://evil.example\r\n", "403",
         "WRONG_ORIGIN"},
        {"GET /v1/models", "Host: %s:9465\r\nOrigin: null\r\n", "403", "WRONG_ORIGIN"},
        {"GET /v1/models", "Host: %s:9465\r\nOrigin: https://%s:9465\r\n", "403", "WRONG_ORIGIN"},
        {"GET /v1/models", "Host: %s:9465\r\nAuthorization: Bearer x\r\n", "401", "Bearer TOKEN"},
        {"OPTIONS /v1/completions", "Host: %s:9465\r\n", "405", "only POST"},
        {"POST /v1/models", "Host: %s:9465\r\n", "405", "only GET and HEAD"},
        {"GET /v1/completions", "Host: %s:9465\r\n", "405", "Allow: POST"},
        {"GET /metrics", "Host: %s:9465\r\n", "404", "\"code\": \"NOT_FOUND\""},
        {"GET /v1/../metrics", "Host: %s:9465\r\n", "404", "NOT_FOUND"},
        {"GET //v1/models", "Host: %s:9465\r\n", "404", "NOT_FOUND"},
        {"POST /v1/completions", "Host: %s:9465\r\nContent-Type: text/plain\r\n", "415",
         "NOT_JSON"},
        {"POST /v1/completions", "Host: %s:9465\r\nCookie: a=b\r\n", "400", "the body is not JSON"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf headers = {0};
        for (const char *at = cases[i].headers; *at != '\0'; at++)
            if (at[0] == '%' && at[1] == 's') buf_add_text(&headers, address), at++;
            else buf_add_char(&headers, *at);
        AUTO_FREE char *head = head_of(cases[i].line, buf_text(&headers), own, 0);
        struct client *client = client_start(head, "", 0, false);
        if (strcmp(cases[i].code, "4") == 0) { /* libmicrohttpd's refusal, or ours */
            WAIT(&world, client->done);
            ck_assert_msg(strncmp(client->answer + 9, "4", 1) == 0, "%s", client->answer);
            client->answer[9] = '4', client->answer[10] = client->answer[11] = '0';
            client_expect(client, "400", "");
        } else client_expect(client, cases[i].code, cases[i].words);
        buf_deinit(&headers);
    }
}

TEST(what_is_too_large_or_too_slow_is_refused)
{
    AUTO_FREE char *own = issue(own_name, FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER, 0);
    AUTO_FREE char *large = mem_alloc(BODY_MAX + 2);
    memset(large, ' ', BODY_MAX + 1);
    AUTO_FREE char *over = head_of("POST /v1/completions", host(), own, BODY_MAX + 1);
    client_expect(client_start(over, large, BODY_MAX + 1, false), "413", "more than 1 MiB");
    AUTO_FREE char *at = head_of("POST /v1/completions", host(), own, BODY_MAX);
    client_expect(client_start(at, large, BODY_MAX, false), "400", "the body is not JSON");
    memset(large, 'x', 20000);
    large[20000] = '\0';
    AUTO_FREE char *wide = mem_printf("%sX-Wide: %s\r\n", host(), large);
    AUTO_FREE char *head = head_of("GET /v1/models", wide, own, 0);
    client_expect(client_start(head, "", 0, false), "431", "");
    for (int r = 0; r < 2; r++) fake_detach(&fakes[r]);
    world_stop(&world);
    world.options.limits.silence_ms = 500;
    world_start(&world);
    /* Neither a request that stops in its headers nor one that stops in its body stays, while
     * others are served. */
    AUTO_FREE char *some = head_of("POST /v1/completions", host(), own, 100);
    struct client *body = client_start(some, "{", 1, false);
    some[strlen(some) - 2] = '\0';
    struct client *headers = client_start(some, "", 0, false);
    get("/v1/models", own, "200", "list");
    client_expect(headers, NULL, NULL);
    client_expect(body, NULL, NULL);
}

/* ---- what the API reads ---- */

static void allow_watchers(int count)
{
    struct coordinator_options options = world.options;
    options.limits.watchers = count;
    world_reload(&world, &options);
}

static struct client *follow(const char *path, const char *secret)
{
    AUTO_FREE char *line = mem_printf("GET /v1/jobs/%s/%s", id, path);
    AUTO_FREE char *head = head_of(line, host(), secret, 0);
    return client_start(head, "", 0, false);
}

/* Paths of the job, "%s" in them its id. */
static void get_of(const char *path, const char *secret, const char *code, const char *words)
{
    const char *at = strstr(path, "%s");
    AUTO_FREE char *whole =
        at != NULL ? mem_printf("%.*s%s%s", (int)(at - path), path, id, at + 2) : mem_strdup(path);
    get(whole, secret, code, words);
}

TEST(what_the_api_reads_is_json)
{
    AUTO_FREE char *ann = issue("ann", FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER, 0);
    static const struct {
        const char *path, *code, *words;
    } cases[] = {
        {"/v1/version", "200", "\"api\":\"fsdpd.v1\""},
        {"/v1/workers", "200", "\"state\":\"busy\""},
        {"/v1/jobs", "200", "\"state\":\"RUNNING\""},
        {"/v1/jobs?name=none*", "200", "{\"jobs\":[],"},
        {"/v1/jobs?page_size=1&fold=true", "200", "\"left_out\":0"},
        {"/v1/jobs/%s", "200", "\"workers\":[\""},
        {"/v1/jobs/%s/why", "200", "{\"text\":\""},
        {"/v1/jobs/%s/history", "200", "{\"entries\":[{\"time\":\""},
        {"/v1/jobs/%s/checkpoints", "200", "{\"checkpoints\":[],"},
        {"/v1/jobs/%s/metrics?changes=true", "200", "event: end\ndata: {}\n\n"},
        {"/v1/jobs/%s/logs?tail=10", "200", "event: end\ndata: {}\n\n"},
        {"/v1/jobs/none-1", "404", "there is no job none-1"},
        {"/v1/jobs/none-1/events", "404", "there is no job none-1"},
        {"/v1/jobs/%s/", "404", "NOT_FOUND"},
        {"/v1/jobs/", "404", "NOT_FOUND"},
        {"/v1/jobs//why", "404", "NOT_FOUND"},
        {"/v1/jobs/a%2Fwhy", "404", "NOT_FOUND"},
        {"/v1/jobs/%s/cancel", "404", "NOT_FOUND"},
        {"/v1/jobs?page_size=-1", "400", "page_size: expected a whole number, found -1"},
        {"/v1/jobs?page_size=%ff", "400", "page_size: expected a whole number, found \\ufffd"},
        {"/v1/jobs?page_size=4294967296", "400", "page_size: expected a whole number"},
        {"/v1/jobs?page_token=x", "400", "page_token: expected the next_page_token"},
        {"/v1/jobs?fold=yes", "400", "fold: expected true or false, found yes"},
        {"/v1/jobs?labels=a", "400", "labels: expected one of the parameters page_size, "},
        {"/v1/jobs/%s?id=other", "400", "id: expected one of the parameters (none)"},
        {"/v1/jobs/%s/events?cancel_if_left=true", "400", "cancel_if_left: expected one of"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        get_of(cases[i].path, ann, cases[i].code, cases[i].words);
    get_of("/v1/jobs/%s", NULL, "401", "UNAUTHENTICATED");
}

static status_t issue_wrongly(const char *job, int role)
{
    Fsdpd__V1__IssueTokenRequest request = FSDPD__V1__ISSUE_TOKEN_REQUEST__INIT;
    void *response = NULL;
    request.job = (char *)job;
    if (job[0] == '\0') request.name = (char *)"ann";
    request.role = (Fsdpd__V1__TokenRole)role;
    status_t status = world_call(&world, &control_issue_token, &request, &response);
    message_free(response);
    return status;
}

TEST(a_token_of_one_job_sees_no_other)
{
    AUTO_FREE char *other = world_submit(&world, 1);
    AUTO_FREE char *secret = issue_for(id, "", 0, 3600), *past = issue_for(id, "", 0, 0.001);
    AUTO_FREE char *others = mem_printf("/v1/jobs/%s", other);
    AUTO_FREE char *body = completion_of(id);
    get_of("/v1/jobs/%s", secret, "200", "{");
    get(others, secret, "403", "the token is for one job");
    get("/v1/jobs/none-1", secret, "403", "the token is for one job");
    get("/v1/models", secret, "403", "the token's role may not do that");
    client_expect(post(secret, body), "403", "the token's role may not do that");
    world_run(&world, 20);
    get_of("/v1/jobs/%s", past, "401", "has expired");
    expect_status(issue_wrongly("none-1", 0), STATUS_NOT_FOUND, "job: there is no job none-1");
    expect_status(issue_wrongly(id, FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER),
                  STATUS_INVALID_ARGUMENT, "role: expected observer for a token of one job");
    expect_status(issue_wrongly("", 4), STATUS_INVALID_ARGUMENT, "role: expected user, operator");
    expect_ok(revoke_of(id));
    get_of("/v1/jobs/%s", secret, "401", "revoked");
    expect_ok(world_cancel(&world, other));
}

/* ---- roles ---- */

enum bearer {
    NONE,
    WRONG,
    EXPIRED,
    REVOKED,
    OBSERVER,
    STRANGER,
    OWNER,
    OPERATOR,
    OF_JOB,
    OF_OTHER,
    BEARERS
};

/* Every route, and what is none, against every token: the codes' last digits, 200, 401, 403, 404,
 * 405 and 409 (the job of `id` has ended: it cannot be sampled). */
static const struct {
    const char *line, *body; /* "*": the job */
    const char *codes;       /* in the order of enum bearer */
} requests[] = {
    {"GET /", "", "0000000000"},
    {"GET /page.css", "", "0000000000"},
    {"GET /page.js", "", "0000000000"},
    {"GET /v1/page", "", "1111000033"},
    {"GET /v1/jobs/*/page", "", "1111000003"},
    {"POST /v1/completions", "{\"model\": \"*\", \"prompt\": [1]}", "1111339933"},
    {"GET /v1/models", "", "1111300033"},
    {"GET /v1/version", "", "1111000033"},
    {"GET /v1/workers", "", "1111000033"},
    {"GET /v1/jobs", "", "1111000033"},
    {"GET /v1/jobs/*", "", "1111000003"},
    {"GET /v1/jobs/*/why", "", "1111000003"},
    {"GET /v1/jobs/*/history", "", "1111000003"},
    {"GET /v1/jobs/*/checkpoints", "", "1111000003"},
    {"GET /v1/jobs/*/events", "", "1111000003"},
    {"GET /v1/jobs/*/metrics", "", "1111000003"},
    {"GET /v1/jobs/*/logs", "", "1111000003"},
    {"POST /v1/jobs", "{}", "1111555555"},
    {"DELETE /v1/jobs/*", "", "1111555555"},
    {"POST /", "{}", "5555555555"},
    {"GET /v1/jobs/*/cancel", "", "1111444444"},
    {"GET /v1/tokens", "", "1111444444"},
    {"GET /metrics", "", "1111444444"},
};

static char *with_job(const char *text)
{
    const char *at = strchr(text, '*');
    return at != NULL ? mem_printf("%.*s%s%s", (int)(at - text), text, id, at + 1)
                      : mem_strdup(text);
}

/* The path of a row of routes.c's table; NULL: of none. */
static bool is_requested(const char *path, size_t length)
{
    for (size_t i = 0; i < COUNT_OF(requests); i++) {
        const char *own = strchr(requests[i].line, ' ') + 1;
        if (strlen(own) == length && strncmp(own, path, length) == 0) return true;
    }
    return false;
}

TEST(every_route_has_its_roles)
{
    enum {
        USER = FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER,
        OVERSEER = FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OPERATOR
    };
    AUTO_FREE char *other = world_submit(&world, 1);
    expect_ok(world_cancel(&world, other));
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_INTERNAL, "broken");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    char *secrets[BEARERS] = {
        [WRONG] = mem_strdup("fsdpd_0123"),
        [EXPIRED] = issue(own_name, USER, 0.001),
        [REVOKED] = issue("ron", OVERSEER, 0),
        [OBSERVER] = issue("eve", FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OBSERVER, 0),
        [STRANGER] = issue("ann", USER, 0),
        [OWNER] = issue(own_name, USER, 0),
        [OPERATOR] = issue("olga", OVERSEER, 0),
        [OF_JOB] = issue_for(id, "", 0, 3600),
        [OF_OTHER] = issue_for(other, "", 0, 3600),
    };
    expect_ok(revoke_of("ron"));
    world_run(&world, 20);
    for (size_t i = 0; i < COUNT_OF(requests); i++) {
        AUTO_FREE char *line = with_job(requests[i].line), *body = with_job(requests[i].body);
        for (int who = 0; who < BEARERS; who++) {
            char code[4] = "400";
            code[2] = requests[i].codes[who];
            if (code[2] == '0') code[0] = '2';
            AUTO_FREE char *head = head_of(line, host(), secrets[who], strlen(body));
            client_expect(client_start(head, body, strlen(body), false), code, "");
        }
    }
    for (int who = 0; who < BEARERS; who++) free(secrets[who]);
}

/* A new route needs its row above. */
TEST(every_route_is_requested)
{
    AUTO_FREE char *path = file_path_join(getenv("srcdir"), "daemon/coordinator/http/routes.c");
    AUTO(buf_deinit) struct buf text = {0};
    expect_ok(file_read(path, 1 << 20, &text));
    int routes = 0;
    const char *at = strstr(buf_text(&text), "served[] = {"), *end = strstr(at, "\n};");
    for (; (at = strstr(at, "\"/")) != NULL && at < end; routes++) {
        size_t length = strcspn(++at, "\"");
        ck_assert_msg(is_requested(at, length), "%.*s", (int)length, at);
        at += length;
    }
    ck_assert_int_gt(routes, 0);
}

/* ---- the page ---- */

TEST(the_page_asks_for_a_token_and_runs_its_own_files_alone)
{
    get("/", NULL, "200",
        "Content-Security-Policy: default-src 'none'; style-src 'self'; script-src"
        " 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; ");
    get("/", NULL, "200", "<form id=\"login\"");
    get("/page.css", NULL, "200", "Content-Type: text/css; charset=utf-8\r\n");
    get("/page.js", NULL, "200", "Content-Type: text/javascript; charset=utf-8\r\n");
    get("/v1/page", NULL, "401", "UNAUTHENTICATED");
    get("/page.html", NULL, "401", "UNAUTHENTICATED");
    get_of("/v1/jobs/%s/page", NULL, "401", "UNAUTHENTICATED");
}

TEST(a_page_has_jobs_and_workers)
{
    AUTO_FREE char *eve = issue("eve", FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OBSERVER, 0);
    AUTO_FREE char *one = issue_for(id, "", 0, 60);
    AUTO_FREE char *link = mem_printf("<a href=\"#job=%s\">%s</a>", id, id);
    get("/v1/page", eve, "200", link);
    get("/v1/page", eve, "200", "<span class=\"state s-busy\">");
    get_of("/v1/jobs/%s/page", one, "200", "<span class=\"state s-RUNNING\">RUNNING</span>");
    get("/v1/jobs/none-1/page", eve, "404", "there is no job none-1");
    get("/v1/jobs/none-1/page", one, "403", "the token is for one job");
    fake_checkpoint(&fakes[0], 0, 5, STATUS_OK, "", NULL);
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_INTERNAL, "broken");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    get_of("/v1/jobs/%s/page", one, "200", "<span class=\"state s-FAILED\">FAILED</span>");
    get_of("/v1/jobs/%s/page", one, "200", "<h2>Checkpoints</h2>");
    /* A forgotten job's tokens are of no later job with its id. */
    Fsdpd__V1__ForgetJobRequest forget = FSDPD__V1__FORGET_JOB_REQUEST__INIT;
    void *response = NULL;
    forget.id = id;
    expect_ok(world_call(&world, &control_forget_job, &forget, &response));
    message_free(response);
    get_of("/v1/jobs/%s/page", eve, "404", "there is no job");
    get_of("/v1/jobs/%s/page", one, "401", "UNAUTHENTICATED");
}

TEST(the_page_of_a_job_that_hangs_has_the_verdict)
{
    AUTO_FREE char *eve = issue("eve", FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OBSERVER, 0);
    AUTO_FREE char *line = mem_printf("GET /v1/jobs/%s/page", id);
    AUTO_FREE char *head = head_of(line, host(), eve, 0);
    for (uint64_t step = 1; step < 30; step++) {
        for (int r = 0; r < 2; r++) fake_heartbeat_at(&fakes[r], step, 10 * step, r == 0);
        world_run(&world, 5);
    }
    for (bool shown = false; !shown;) {
        fake_heartbeat_at(&fakes[0], 29, 300, true);
        fake_heartbeat_at(&fakes[1], 29, 299, false);
        world_run(&world, 20);
        if (fakes[0].diagnoses == 0 || fakes[1].diagnoses == 0) continue;
        for (int r = 0; r < 2; r++) fake_diagnosis(&fakes[r], r == 0 ? 300 : 299, r == 0);
        world_run(&world, 20);
        struct client *page = client_start(head, "", 0, false);
        WAIT(&world, page->done);
        shown = strstr(page->answer, "<p class=\"verdict\">rank 1 ") != NULL;
        client_expect(page, "200", "data-sequence");
    }
}

/* The curve of more steps than a chart has points keeps its largest value. */
TEST(a_curve_is_thinned_and_keeps_its_extremes)
{
    enum { STEPS = 1050, HIGHEST = 333 };
    AUTO_FREE char *eve = issue("eve", FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OBSERVER, 0);
    for (uint64_t step = 1; step <= STEPS; step++)
        fake_metrics(&fakes[0], step, step == HIGHEST ? 77.5 : 0.5);
    WAIT(&world, fakes[0].acknowledged == fakes[0].report);
    get_of("/v1/jobs/%s/page", eve, "200", "data-more=\"1\"");
    get_of("/v1/jobs/%s/page", eve, "200", "data-more=\"0\"");
    get_of("/v1/jobs/%s/page", eve, "200", "a point stands for up to 2 recorded steps; the band");
    AUTO_FREE char *line = mem_printf("GET /v1/jobs/%s/page", id);
    AUTO_FREE char *head = head_of(line, host(), eve, 0);
    struct client *page = client_start(head, "", 0, false);
    WAIT(&world, page->done);
    const char *band = strstr(page->answer, "<polygon class=\"band c0\" points=\"");
    ck_assert_ptr_nonnull(band);
    const char *end = strstr(band, "\"/>"), *top = strstr(band, ",10.0 ");
    ck_assert(top != NULL && top < end);
    int points = 0;
    for (const char *at = band; (at = strchr(at, ',')) != NULL && at < end; at++) points++;
    ck_assert_int_eq(points, 2 * (STEPS / 2));
    client_expect(page, "200", "data-sequence");
}

/* Whether the system probes a client of the listener that is silent. */
static bool is_probed(void)
{
    char line[256];
    bool found = false;
    FILE *table = fopen("/proc/self/net/tcp", "r");
    ck_assert_ptr_nonnull(table);
    while (fgets(line, sizeof line, table) != NULL) {
        unsigned host = 0, port = 0, state = 0, timer = 0;
        if (sscanf(line, " %*d: %x:%x %*s %x %*s %x:", &host, &port, &state, &timer) == 4)
            found |= host == inet_addr(address) && port == PORT && state == 1 && timer == 2;
    }
    fclose(table);
    return found;
}

TEST(events_are_streamed_until_the_job_is_over)
{
    AUTO_FREE char *ann = issue("ann", FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER, 0);
    allow_watchers(1);
    struct client *events = follow("events", ann);
    WAIT(&world, client_has(events, "\"state\":\"RUNNING\""));
    client_expect(follow("events", ann), "429", "1 watchers are connected already");
    WAIT(&world, is_probed());
    fake_metrics(&fakes[0], 5, 0.25);
    WAIT(&world, client_has(events, "\"loss\":0.25,"));
    fake_metrics(&fakes[0], 6, 0.125);
    WAIT(&world, client_has(events, "\"loss\":0.125,"));
    ck_assert(!events->done);
    ck_assert(client_has(events, "Content-Type: text/event-stream\r\n"));
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_INTERNAL, "broken");
    client_expect(events, "200", "event: end\ndata: {}\n\n");
    client_expect(follow("events?after_sequence=1000", ann), "200", "event: end\ndata: {}\n\n");
}

TEST(a_stream_ends_with_its_token)
{
    AUTO_FREE char *ann = issue("ann", FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER, 0);
    AUTO_FREE char *olga = issue("olga", FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OPERATOR, 0);
    AUTO_FREE char *past = issue_for(id, "", 0, 0.5);
    struct client *streams[] = {follow("events", ann), follow("events", past),
                                follow("events", olga)};
    for (int i = 0; i < 3; i++) WAIT(&world, client_has(streams[i], "RUNNING"));
    expect_ok(revoke_of("ann"));
    for (int i = 0; i < 2; i++) client_expect(streams[i], "200", "RUNNING");
    ck_assert(!streams[2]->done);
    shutdown(streams[2]->fd, SHUT_RDWR);
    client_expect(streams[2], "200", "RUNNING");
}

TEST(streams_leave_connections_to_others)
{
    enum { STREAMS = 128 };
    AUTO_FREE char *ann = issue("ann", FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER, 0);
    struct client *streams[STREAMS];
    for (int i = 0; i < STREAMS; i++) streams[i] = follow("events", ann);
    for (int i = 0; i < STREAMS; i++) WAIT(&world, client_has(streams[i], "RUNNING"));
    client_expect(follow("logs?follow=true", ann), "429", "128 streams are open already");
    get("/v1/jobs", ann, "200", "RUNNING");
    for (int i = 0; i < STREAMS; i++) {
        shutdown(streams[i]->fd, SHUT_RDWR);
        client_expect(streams[i], "200", "RUNNING");
    }
}

TEST(a_watcher_that_leaves_makes_room)
{
    allow_watchers(1);
    AUTO_FREE char *ann = issue("ann", FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER, 0);
    struct client *events = follow("events", ann);
    WAIT(&world, client_has(events, "\"state\":\"RUNNING\""));
    shutdown(events->fd, SHUT_RDWR);
    client_expect(events, "200", "\"state\":\"RUNNING\"");
    struct client *next = NULL;
    for (bool refused = true; refused;) { /* the hang-up may arrive after the next request */
        next = follow("events", ann);
        WAIT(&world, client_has(next, "RESOURCE_EXHAUSTED") || client_has(next, "RUNNING"));
        refused = client_has(next, "RESOURCE_EXHAUSTED");
        if (refused) client_expect(next, "429", "");
    }
    for (int r = 0; r < 2; r++) fake_detach(&fakes[r]);
    world_stop(&world);
    client_expect(next, "200", "\"state\":\"RUNNING\"");
    world_start(&world);
}

/* ---- completions ---- */

TEST(a_completion_has_tokens_and_scores)
{
    AUTO_FREE char *own = issue(own_name, FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER, 0);
    AUTO_FREE char *body = completion_of(id);
    uint32_t tokens[] = {9, 4}, tops[] = {1, 9, 7};
    float logprobs[] = {-0.5f, -0.25f, -2}, best[] = {-0.5f, -0.25f, -0.125f};
    Fsdpd__V1__Tokens made = FSDPD__V1__TOKENS__INIT, *sequences[] = {&made};
    Fsdpd__V1__Scored scores = FSDPD__V1__SCORED__INIT, *scored[] = {&scores};
    Fsdpd__V1__Sampled sampled = FSDPD__V1__SAMPLED__INIT;
    made.tokens = tokens, made.n_tokens = 2;
    scores.logprobs = logprobs, scores.n_logprobs = 3;
    scores.top_tokens = tops, scores.n_top_tokens = 3;
    scores.top_logprobs = best, scores.n_top_logprobs = 3;
    sampled.step = 7;
    sampled.sequences = sequences, sampled.n_sequences = 1;
    sampled.scored = scored, sampled.n_scored = 1;
    struct client *client = post(own, body);
    WAIT(&world, fakes[0].evaluations == 1);
    client_expect(post(own, body), "429", "Retry-After: 1");
    fake_sampled(&fakes[0], &sampled, STATUS_OK, "");
    client_expect(
        client, "200",
        "\"step\": 7, \"choices\": [{\"index\": 0, \"text\": \"\", \"token_ids\": [5, 1, 9, 4], "
        "\"logprobs\": {\"tokens\": [\"token_id:5\", \"token_id:1\", \"token_id:9\", "
        "\"token_id:4\"], \"token_logprobs\": [null, -0.5, -0.25, -2], \"top_logprobs\": [null, "
        "{\"token_id:1\": -0.5}, {\"token_id:9\": -0.25}, {\"token_id:7\": -0.125, "
        "\"token_id:4\": -2}], \"text_offset\": [0, 0, 0, 0]}, \"finish_reason\": \"length\"}], "
        "\"usage\": {\"prompt_tokens\": 2, \"completion_tokens\": 2, \"total_tokens\": 4}}\n");
    client = post(own, body);
    WAIT(&world, fakes[0].evaluations == 2);
    scores.n_logprobs = 2; /* a worker's answer that does not fit */
    fake_sampled(&fakes[0], &sampled, STATUS_OK, "");
    client_expect(client, "500", "other scores than tokens");
}

TEST(a_client_that_leaves_ends_its_request)
{
    AUTO_FREE char *own = issue(own_name, FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER, 0);
    AUTO_FREE char *body = completion_of(id);
    AUTO_FREE char *head = head_of("POST /v1/completions", host(), own, strlen(body));
    struct client *leaving = client_start(head, body, strlen(body), true);
    WAIT(&world, fakes[0].evaluations == 1 && leaving->done);
    close(leaving->fd);
    WAIT(&world, fakes[0].evaluation_stops == 1 && fakes[1].evaluation_stops == 1);
    client_expect(leaving, NULL, NULL);
    struct client *waiting = post(own, body);
    WAIT(&world, fakes[0].evaluations == 2);
    fake_finished(&fakes[0], STATUS_INTERNAL, "broken");
    fake_finished(&fakes[1], STATUS_INTERNAL, "broken");
    client_expect(waiting, "503", "before it was evaluated");
}

TEST(a_shutdown_ends_requests)
{
    AUTO_FREE char *own = issue(own_name, FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER, 0);
    AUTO_FREE char *body = completion_of(id);
    struct client *waiting = post(own, body);
    WAIT(&world, fakes[0].evaluations == 1);
    for (int r = 0; r < 2; r++) fake_detach(&fakes[r]);
    world_stop(&world);
    WAIT(&world, waiting->done);
    pthread_join(waiting->thread, NULL);
    buf_deinit(&waiting->text);
    free(waiting);
    world_start(&world); /* the same port, and the same token */
    get("/v1/models", own, "200", "\"object\": \"list\"");
}

TEST(beyond_the_loopback_interface_it_needs_tls)
{
    world_stop(&world);
    world.options.http_listen = "0.0.0.0:0";
    status_t status = coordinator_new(&world.loop, &world.options, &world.coordinator);
    expect_status(status, STATUS_PERMISSION_DENIED,
                  "http.listen: 0.0.0.0:0: beyond the loopback interface it needs TLS");
}
