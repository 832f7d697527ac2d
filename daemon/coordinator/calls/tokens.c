/* Tokens of clients over HTTP; see calls.h. */
#include "coordinator/calls/calls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/calls/access.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/core/list_page.h"
#include "digest/digest.h"

enum { TOKENS_MAX = 4096, SECRET_BYTES = 32, DAYS = 90, DAYS_MAX = 3650 };

static const char prefix[] = "fsdpd_"; /* so that programs that look for secrets find it */

/* The caller frees it. */
static status_t make_secret(char **secret)
{
    struct digest random;
    char digits[DIGEST_DIGITS + 1];
    _Static_assert(sizeof random.bytes == SECRET_BYTES, "the digits of a digest");
    if (getrandom(random.bytes, sizeof random.bytes, 0) != (ssize_t)sizeof random.bytes)
        return status_from_errno(errno, "cannot get random bytes");
    *secret = mem_printf("%s%s", prefix, digest_format(&random, digits));
    return NULL;
}

/* A name that a certificate may have, too. */
static status_t check_name(const char *name)
{
    const char *rest = NULL;
    AUTO_FREE char *uri = mem_printf("fsdpd://user/%s", name);
    if (rpc_peer_parse_uri(uri, &rest) != 0) return NULL;
    return status_new(
        STATUS_INVALID_ARGUMENT,
        "name: expected 1 to 64 of letters, digits and ._-@, beginning with a letter, "
        "a digit or _");
}

static void count_token(void *user, const struct store_token *token)
{
    int *count = user;
    *count += token->expires_ms > clock_wall_ms();
}

static status_t check_room(struct coordinator *c)
{
    int count = 0;
    TRY(store_each_token(c->store, NULL, count_token, &count));
    if (count < TOKENS_MAX) return NULL;
    return status_new(STATUS_RESOURCE_EXHAUSTED, "there are %d tokens: revoke some first", count);
}

/* Whose it is. */
static const char *name_of(const Fsdpd__V1__IssueTokenRequest *request)
{
    return request->name[0] != '\0' ? request->name : request->job;
}

static Fsdpd__V1__TokenRole role_of(const Fsdpd__V1__IssueTokenRequest *request)
{
    if (request->role != FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_UNSPECIFIED) return request->role;
    return request->job[0] != '\0' ? FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OBSERVER
                                   : FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER;
}

static const char *role_word(Fsdpd__V1__TokenRole role)
{
    return role == FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OPERATOR   ? "operator"
           : role == FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OBSERVER ? "observer"
                                                                : "user";
}

static status_t check_request(struct coordinator *c, const Fsdpd__V1__IssueTokenRequest *request)
{
    if (request->job[0] != '\0') TRY(status_wrap(job_call_check_id(c, request->job), "job"));
    TRY(check_name(name_of(request)));
    double most = DAYS_MAX * 86400.0;
    if (!(request->seconds >= 0 && request->seconds <= most))
        return status_new(STATUS_INVALID_ARGUMENT, "seconds: expected 0 to %.0f, found %g", most,
                          request->seconds);
    if (request->role > FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OBSERVER)
        return status_new(STATUS_INVALID_ARGUMENT, "role: expected user, operator or observer");
    if (request->job[0] != '\0' && role_of(request) != FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OBSERVER)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "role: expected observer for a token of one job, found %s",
                          role_word(request->role));
    return NULL;
}

/* A token as clients see it; `times` are its two. */
static void describe(const struct store_token *token, Google__Protobuf__Timestamp times[2],
                     Fsdpd__V1__Token *message)
{
    fsdpd__v1__token__init(message);
    message->name = (char *)token->name;
    message->role = token->role;
    message->job = (char *)token->job;
    message->by = (char *)token->by;
    message->issue_time = message_time(&times[0], token->issued_ms);
    message->expiry_time = message_time(&times[1], token->expires_ms);
}

static status_t issue(struct coordinator *c, const char *secret, const struct store_token *token)
{
    struct digest hash;
    _Static_assert(sizeof hash.bytes == STORE_TOKEN_HASH, "the store keeps SHA-256");
    digest_of(secret, strlen(secret), &hash);
    TRY(check_room(c));
    TRY(store_add_token(c->store, hash.bytes, token));
    log_event(LOG_INFO, "token_issued", "name=%s role=%s by=%s%s%s", token->name,
              role_word(token->role), token->by, token->job[0] != '\0' ? " job=" : "", token->job);
    return NULL;
}

void tokens_issue(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__IssueTokenRequest *request = (const void *)message;
    AUTO_FREE char *secret = NULL;
    int64_t now = clock_wall_ms();
    status_t status = check_request(service, request);
    if (status == NULL) status = make_secret(&secret);
    double seconds = request->seconds > 0 ? request->seconds : DAYS * 86400.0;
    const struct store_token token = {
        .name = name_of(request),
        .role = role_of(request),
        .job = request->job,
        .by = access_user(call),
        .issued_ms = now,
        .expires_ms = status == NULL ? now + (int64_t)(seconds * 1000) : now,
    };
    if (status == NULL) status = issue(service, secret, &token);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    Google__Protobuf__Timestamp times[2];
    Fsdpd__V1__Token issued;
    Fsdpd__V1__IssueTokenResponse response = FSDPD__V1__ISSUE_TOKEN_RESPONSE__INIT;
    describe(&token, times, &issued);
    response.token = &issued;
    response.secret = secret;
    rpc_call_reply(call, &response.base);
    explicit_bzero(secret, strlen(secret));
}

/* ---- the list ---- */

struct token_row {
    Fsdpd__V1__Token message;
    Google__Protobuf__Timestamp times[2];
    int64_t issued_ms;
};

struct token_list {
    const struct list_page *page;
    int64_t now;
    struct token_row *rows;
    int count, capacity;
};

static void add_row(void *user, const struct store_token *token)
{
    struct token_list *list = user;
    const char *after = list->page->after;
    int order = after != NULL ? strcmp(token->name, after) : 1;
    if (order < 0 || (order == 0 && token->issued_ms <= list->page->after_number)) return;
    if (token->expires_ms <= list->now) return;
    MEM_GROW(list->rows, list->count, list->capacity);
    struct token_row *row = &list->rows[list->count++];
    struct store_token own = *token;
    own.name = mem_strdup(token->name);
    own.by = mem_strdup(token->by);
    own.job = mem_strdup(token->job);
    row->issued_ms = token->issued_ms;
    describe(&own, row->times, &row->message);
}

static void reply_rows(struct rpc_call *call, struct list_page *page, const struct token_list *list)
{
    Fsdpd__V1__ListTokensResponse response = FSDPD__V1__LIST_TOKENS_RESPONSE__INIT;
    AUTO_FREE Fsdpd__V1__Token **pointers =
        mem_alloc_array((size_t)list->count + 1, sizeof(Fsdpd__V1__Token *));
    for (int i = 0; i < list->count; i++) {
        struct token_row *row = &list->rows[i];
        row->message.issue_time = &row->times[0]; /* the rows have moved */
        row->message.expiry_time = &row->times[1];
        pointers[i] = &row->message;
        list_page_take(page, &row->message.base);
    }
    const struct token_row *last = page->count > 0 ? &list->rows[page->count - 1] : NULL;
    response.tokens = pointers;
    response.n_tokens = page->count;
    response.next_page_token = list_page_next(page, last != NULL ? last->issued_ms : 0,
                                              last != NULL ? last->message.name : "");
    rpc_call_reply(call, &response.base);
    free(response.next_page_token);
}

void tokens_list(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__ListTokensRequest *request = (const void *)message;
    struct coordinator *c = service;
    struct list_page page;
    struct token_list list = {.page = &page, .now = clock_wall_ms()};
    status_t status = list_page_begin(&page, request->page_size, request->page_token, true);
    if (status == NULL) status = store_each_token(c->store, NULL, add_row, &list);
    if (status != NULL) rpc_call_finish(call, status);
    else reply_rows(call, &page, &list);
    for (int i = 0; i < list.count; i++) {
        free(list.rows[i].message.name);
        free(list.rows[i].message.by);
        free(list.rows[i].message.job);
    }
    free(list.rows);
}

void tokens_revoke(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__RevokeTokensRequest *request = (const void *)message;
    struct coordinator *c = service;
    int removed = 0;
    status_t status = check_name(request->name);
    if (status == NULL) status = store_remove_tokens(c->store, request->name, &removed);
    if (status == NULL && removed == 0)
        status = status_with(status_new(STATUS_NOT_FOUND, "there is no token of %s", request->name),
                             (struct status_details){.reason = "TOKEN_NOT_FOUND",
                                                     .subject = request->name});
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    log_event(LOG_INFO, "tokens_revoked", "name=%s count=%d by=%s", request->name, removed,
              access_user(call));
    Fsdpd__V1__RevokeTokensResponse response = FSDPD__V1__REVOKE_TOKENS_RESPONSE__INIT;
    response.count = (uint32_t)removed;
    rpc_call_reply(call, &response.base);
}

/* ---- identities ---- */

static void keep_peer(void *user, const struct store_token *token)
{
    struct rpc_peer *peer = user;
    if (token->expires_ms <= clock_wall_ms() || peer->name != NULL) return;
    peer->name = mem_strdup(token->name);
    peer->job = token->job[0] != '\0' ? mem_strdup(token->job) : NULL;
    peer->roles =
        token->role == FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OBSERVER ? RPC_OBSERVER : RPC_USER;
    if (token->role == FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OPERATOR) peer->roles |= RPC_OPERATOR;
}

status_t tokens_identify(struct coordinator *c, const char *secret, struct rpc_peer *peer)
{
    struct digest hash;
    *peer = (struct rpc_peer){.kind = RPC_PEER_TOKEN, .uid = (uid_t)-1};
    digest_of(secret, strlen(secret), &hash);
    TRY(store_each_token(c->store, hash.bytes, keep_peer, peer));
    if (peer->name != NULL) return NULL;
    return status_new(STATUS_UNAUTHENTICATED,
                      "the token is unknown, revoked or has expired; fsdpd token issue makes one");
}
