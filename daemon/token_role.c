/* The role token; see roles.h. One call, on a loop of its own. */
#include "roles.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/array.h"
#include "base/mem.h"
#include "fsdpd/v1/methods.h"
#include "print/json.h"
#include "print/table.h"
#include "proto/message.h"

enum { TIMEOUT_MS = 30 * 1000, DAY_SECONDS = 86400, HOUR_SECONDS = 3600 };

static const struct {
    const char *name, *argument;
    int words;
} actions[] = {{"issue", "NAME", 2}, {"list", "no argument", 1}, {"revoke", "NAME", 2}};

status_t token_role_check(const struct token_role_options *options)
{
    const char *word = options->word_count > 0 ? options->words[0] : NULL;
    size_t action = 0;
    while (action < COUNT_OF(actions) && (word == NULL || strcmp(word, actions[action].name) != 0))
        action++;
    if (action == COUNT_OF(actions))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "token: expected issue, list or revoke%s%.80s; see fsdpd token --help",
                          word != NULL ? ", found " : "", word != NULL ? word : "");
    const bool unnamed = action == 0 && options->job != NULL && options->word_count == 1;
    if (options->word_count != actions[action].words && !unnamed)
        return status_new(STATUS_INVALID_ARGUMENT, "token %s: expected %s; see fsdpd token --help",
                          word, actions[action].argument);
    const bool lasts = options->days != 0 || options->hours != 0;
    if (action > 0 && (options->role != NULL || options->job != NULL || lasts))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "token %s: --role, --job, --days and --hours belong to issue", word);
    if (options->days != 0 && options->hours != 0)
        return status_new(STATUS_INVALID_ARGUMENT, "token issue: expected --days or --hours");
    return NULL;
}

/* ---- the call ---- */

struct token_call {
    uv_loop_t loop;
    struct rpc_runtime *runtime;
    struct rpc_channel *channel;
    bool done, closed;
    status_t status;
    ProtobufCMessage *response;
};

static void on_done(status_t status, const ProtobufCMessage *response, void *user)
{
    struct token_call *call = user;
    call->done = true;
    call->status = status;
    if (status == NULL) call->response = message_copy(response);
}

static void on_closed(void *user)
{
    ((struct token_call *)user)->closed = true;
}

/* The caller frees *response. */
static status_t call_coordinator(const char *address, const struct rpc_channel_security *security,
                                 const struct rpc_method *method, const ProtobufCMessage *request,
                                 ProtobufCMessage **response)
{
    struct token_call call = {0};
    if (uv_loop_init(&call.loop) != 0)
        return status_new(STATUS_UNAVAILABLE, "cannot make an event loop");
    status_t status = rpc_runtime_new(&call.loop, &call.runtime);
    if (status == NULL) status = rpc_channel_new(call.runtime, address, security, &call.channel);
    if (status == NULL) {
        rpc_channel_call(call.channel, method, request, TIMEOUT_MS, false, on_done, &call);
        while (!call.done) uv_run(&call.loop, UV_RUN_ONCE);
        status = call.status;
        rpc_channel_close(call.channel, on_closed, &call);
        while (!call.closed) uv_run(&call.loop, UV_RUN_ONCE);
    }
    if (call.runtime != NULL) rpc_runtime_close(call.runtime, NULL, NULL);
    uv_run(&call.loop, UV_RUN_DEFAULT);
    uv_loop_close(&call.loop);
    *response = call.response;
    return status;
}

/* By TokenRole. */
static const char *const role_words[] = {"?", "user", "operator", "observer"};

/* ---- what it prints ---- */

static void add_time(struct table *table, const Google__Protobuf__Timestamp *time)
{
    char text[32] = "-";
    time_t seconds = (time_t)(message_time_ms(time) / 1000);
    struct tm parts;
    if (time != NULL && gmtime_r(&seconds, &parts) != NULL)
        strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
    table_add(table, text);
}

static void add_token(struct table *table, const Fsdpd__V1__Token *token)
{
    table_add(table, token->name);
    table_add(table, role_words[token->role <= COUNT_OF(role_words) - 1 ? token->role : 0]);
    table_add(table, token->job[0] != '\0' ? token->job : "-");
    add_time(table, token->issue_time);
    add_time(table, token->expiry_time);
    table_add(table, token->by);
}

static void print_tokens(Fsdpd__V1__Token *const *tokens, size_t count, bool json)
{
    static const struct table_column columns[] = {
        {.title = "NAME"},   {.title = "ROLE"},    {.title = "JOB", .optional = true},
        {.title = "ISSUED"}, {.title = "EXPIRES"}, {.title = "BY"}};
    AUTO(buf_deinit) struct buf text = {0};
    struct table table = {.columns = columns, .column_count = COUNT_OF(columns)};
    for (size_t i = 0; i < count; i++) add_token(&table, tokens[i]);
    if (json) json_add_list(&text, tokens, count);
    else table_print(&table, 0, 0, &text);
    fputs(buf_text(&text), stdout);
    table_deinit(&table);
}

static void print_issued(const Fsdpd__V1__IssueTokenResponse *issued, bool json)
{
    AUTO(buf_deinit) struct buf text = {0};
    if (json) json_add_document(&text, &issued->base);
    else buf_printf(&text, "%s\n", issued->secret);
    fputs(buf_text(&text), stdout);
}

struct target {
    const char *address;
    const struct rpc_channel_security *security;
    bool json;
};

static status_t issue(const struct token_role_options *options, const struct target *target)
{
    Fsdpd__V1__IssueTokenRequest request = FSDPD__V1__ISSUE_TOKEN_REQUEST__INIT;
    if (options->word_count > 1) request.name = (char *)options->words[1];
    if (options->job != NULL) request.job = (char *)options->job;
    for (unsigned role = 1; options->role != NULL && role < COUNT_OF(role_words); role++)
        if (strcmp(options->role, role_words[role]) == 0) request.role = (Fsdpd__V1__TokenRole)role;
    request.seconds = (double)options->days * DAY_SECONDS + (double)options->hours * HOUR_SECONDS;
    ProtobufCMessage *response = NULL;
    TRY(call_coordinator(target->address, target->security, &control_issue_token, &request.base,
                         &response));
    print_issued((const void *)response, target->json);
    message_free(response);
    return NULL;
}

static status_t list(const struct target *target)
{
    Fsdpd__V1__ListTokensRequest request = FSDPD__V1__LIST_TOKENS_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    TRY(call_coordinator(target->address, target->security, &control_list_tokens, &request.base,
                         &response));
    const Fsdpd__V1__ListTokensResponse *found = (const void *)response;
    print_tokens(found->tokens, found->n_tokens, target->json);
    message_free(response);
    return NULL;
}

static status_t revoke_all(const struct token_role_options *options, const struct target *target)
{
    Fsdpd__V1__RevokeTokensRequest request = FSDPD__V1__REVOKE_TOKENS_REQUEST__INIT;
    request.name = (char *)options->words[1];
    ProtobufCMessage *response = NULL;
    TRY(call_coordinator(target->address, target->security, &control_revoke_tokens, &request.base,
                         &response));
    const Fsdpd__V1__RevokeTokensResponse *revoked = (const void *)response;
    printf("%u token%s of %s revoked\n", revoked->count, revoked->count == 1 ? "" : "s",
           request.name);
    message_free(response);
    return NULL;
}

status_t token_role_run(const struct token_role_options *options, const char *address,
                        const struct rpc_channel_security *security, bool json)
{
    const struct target target = {address, security, json};
    const char *action = options->words[0];
    if (strcmp(action, "issue") == 0) return issue(options, &target);
    return strcmp(action, "list") == 0 ? list(&target) : revoke_all(options, &target);
}
