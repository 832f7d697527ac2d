/*
 * Channels and unary calls. A channel owns its gRPC channel and tracks its open calls; it is freed
 * once it is closed and its last call has ended. A unary call owns itself and is freed after
 * `done`. Everything runs on the loop's thread.
 */
#include <grpc/byte_buffer.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/mem.h"
#include "rpc/address.h"
#include "rpc/client_internal.h"
#include "rpc/message.h"
#include "rpc/tls_internal.h"

enum {
    LOOKAHEAD_BYTES = 64 << 10, /* bytes read ahead of the caller per stream: this makes
                                 * backpressure work */
    BACKOFF_FIRST_MS = 100,
    BACKOFF_MAX_MS = 1000, /* finds a restarted server again within about a second */
    CONNECT_TIMEOUT_MS = 5000,
    KEEPALIVE_MS = 30 * 1000, /* the server allows 10 s */
    KEEPALIVE_TIMEOUT_MS = 20 * 1000,
};

static grpc_arg integer(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

/* Releases the credentials. */
static grpc_channel *create_grpc_channel(const char *normal, grpc_channel_credentials *credentials)
{
    grpc_arg list[] = {
        integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RPC_MESSAGE_MAX),
        integer(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        integer(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, LOOKAHEAD_BYTES),
        integer(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, BACKOFF_FIRST_MS),
        integer(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, BACKOFF_MAX_MS),
        integer(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, CONNECT_TIMEOUT_MS),
        integer(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, BACKOFF_MAX_MS),
        integer(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        integer(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        integer(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        integer(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        integer(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        /* Retries are the caller's decision; gRPC's retries would also buffer what is sent. */
        integer(GRPC_ARG_ENABLE_RETRIES, 0),
        /* Do not share connections and backoff with other channels. */
        integer(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        integer(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE),
        integer(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
    };
    grpc_channel_args args = {COUNT_OF(list), list};
    AUTO_FREE char *target = rpc_address_target(normal);
    grpc_channel *channel = grpc_channel_create(target, credentials, &args);
    grpc_channel_credentials_release(credentials);
    return channel;
}

static struct rpc_tls_files tls_files(const struct rpc_channel *channel)
{
    return (struct rpc_tls_files){channel->tls_ca, channel->tls_certificate, channel->tls_key,
                                  channel->tls_names};
}

static void mark_files(const struct rpc_channel *channel, struct rpc_file_mark marks[3])
{
    const char *const paths[] = {channel->tls_ca, channel->tls_certificate, channel->tls_key};
    memset(marks, 0, 3 * sizeof *marks);
    for (int i = 0; i < 3; i++) {
        struct stat info;
        if (paths[i] == NULL || stat(paths[i], &info) != 0) continue;
        marks[i].device = info.st_dev;
        marks[i].inode = info.st_ino;
        marks[i].size = info.st_size;
        marks[i].changed = info.st_mtim;
    }
}

/* Reads the files as they are now; on error, nothing changes. */
static status_t take_tls(struct rpc_channel *channel)
{
    struct rpc_file_mark marks[3];
    struct rpc_tls_files files = tls_files(channel);
    struct rpc_pems pems;
    mark_files(channel, marks);
    TRY(rpc_pems_read(&files, false, &pems));
    grpc_channel *fresh = create_grpc_channel(channel->address, rpc_client_tls_credentials(&pems));
    rpc_pems_deinit(&pems);
    if (channel->channel) grpc_channel_destroy(channel->channel);
    channel->channel = fresh;
    memcpy(channel->tls_marks, marks, sizeof marks);
    return NULL;
}

/* A renewed certificate takes effect with the next connection. While calls are open the connection
 * stays, so there is nothing to reload. */
static void renew_tls(struct rpc_channel *channel)
{
    struct rpc_file_mark marks[3];
    if (!channel->uses_tls || channel->calls != NULL || channel->closing) return;
    mark_files(channel, marks);
    if (memcmp(marks, channel->tls_marks, sizeof marks) == 0) return;
    status_free(take_tls(channel)); /* a renewal in progress: the next call checks again */
}

/* Whether the address can be reached at all, and with which security. */
static status_t choose_security(const char *address, const char *normal,
                                const struct rpc_channel_security *security, bool *tls)
{
    *tls = false;
    if (rpc_address_unix_path(normal)) return NULL;
    AUTO_FREE char *host = NULL;
    int port;
    rpc_address_split(normal, &host, &port);
    if (port == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "address \"%s\": port 0 cannot be reached",
                          address);
    *tls = security && rpc_tls_is_given(&security->tls);
    if (*tls || (security && security->insecure_tcp)) return NULL;
    return status_new(STATUS_PERMISSION_DENIED,
                      "address \"%s\": TCP needs TLS (a CA, a certificate and its key); without "
                      "it the connection is neither encrypted nor authenticated: pass "
                      "--insecure-tcp to accept that",
                      address);
}

static void channel_free(struct rpc_channel *channel)
{
    if (channel->channel) grpc_channel_destroy(channel->channel);
    free(channel->address);
    free(channel->tls_ca);
    free(channel->tls_certificate);
    free(channel->tls_key);
    free(channel);
}

status_t rpc_channel_new(struct rpc_runtime *runtime, const char *address,
                         const struct rpc_channel_security *security,
                         struct rpc_channel **channel_out)
{
    char *normal;
    TRY(rpc_address_parse(address, &normal));
    bool tls;
    status_t status = choose_security(address, normal, security, &tls);
    if (status != NULL) {
        free(normal);
        return status;
    }
    struct rpc_channel *channel = mem_alloc(sizeof *channel);
    channel->runtime = runtime;
    channel->address = normal;
    if (tls) {
        const struct rpc_tls_files *files = &security->tls;
        channel->uses_tls = true;
        channel->tls_ca = files->ca ? mem_strdup(files->ca) : NULL;
        channel->tls_certificate = files->certificate ? mem_strdup(files->certificate) : NULL;
        channel->tls_key = files->key ? mem_strdup(files->key) : NULL;
        channel->tls_names = files->names;
        status = take_tls(channel);
    } else {
        channel->channel = create_grpc_channel(normal, grpc_insecure_credentials_create());
    }
    if (status == NULL) *channel_out = channel;
    else channel_free(channel);
    return status;
}

static void on_channel_closed(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct rpc_channel *channel = tag->owner;
    void (*closed)(void *) = channel->closed;
    void *user = channel->closed_user;
    channel_free(channel);
    if (closed) closed(user);
}

void rpc_channel_close(struct rpc_channel *channel, void (*closed)(void *user), void *user)
{
    if (channel->closing) return;
    channel->closing = true;
    channel->closed = closed;
    channel->closed_user = user;
    channel->closed_tag = (struct rpc_tag){.done = on_channel_closed, .owner = channel};
    for (struct rpc_client_call *call = channel->calls; call; call = call->next)
        grpc_call_cancel_with_status(call->call, GRPC_STATUS_CANCELLED, "the channel was closed",
                                     NULL);
    if (channel->calls == NULL) rpc_runtime_post(channel->runtime, &channel->closed_tag);
}

void rpc_client_call_init(struct rpc_client_call *call, struct rpc_channel *channel,
                          const struct rpc_method *method, int64_t deadline_ms)
{
    renew_tls(channel);
    call->channel = channel;
    call->method = method;
    call->deadline_ms = deadline_ms;
    gpr_timespec deadline = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (deadline_ms > 0)
        deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                gpr_time_from_millis(deadline_ms, GPR_TIMESPAN));
    grpc_slice path = grpc_slice_from_static_string(method->path);
    call->call =
        grpc_channel_create_call(channel->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                 rpc_runtime_queue(channel->runtime), path, NULL, deadline, NULL);
    grpc_metadata_array_init(&call->initial);
    grpc_metadata_array_init(&call->trailing);
    call->details = grpc_empty_slice();
    call->next = channel->calls;
    if (call->next) call->next->link = &call->next;
    call->link = &channel->calls;
    channel->calls = call;
    if (channel->closing)
        grpc_call_cancel_with_status(call->call, GRPC_STATUS_CANCELLED, "the channel was closed",
                                     NULL);
}

void rpc_client_call_deinit(struct rpc_client_call *call)
{
    struct rpc_channel *channel = call->channel;
    *call->link = call->next;
    if (call->next) call->next->link = call->link;
    grpc_metadata_array_destroy(&call->initial);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_slice_unref(call->details);
    if (call->error_string) gpr_free((void *)call->error_string);
    grpc_call_unref(call->call);
    if (channel->closing && channel->calls == NULL)
        rpc_runtime_post(channel->runtime, &channel->closed_tag);
}

grpc_op rpc_client_call_open(bool wait_for_ready)
{
    return (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA,
                     .flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET |
                              (wait_for_ready ? GRPC_INITIAL_METADATA_WAIT_FOR_READY : 0)};
}

grpc_op rpc_client_call_initial(struct rpc_client_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_INITIAL_METADATA};
    op.data.recv_initial_metadata.recv_initial_metadata = &call->initial;
    return op;
}

grpc_op rpc_client_call_trailing(struct rpc_client_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    op.data.recv_status_on_client.trailing_metadata = &call->trailing;
    op.data.recv_status_on_client.status = &call->code;
    op.data.recv_status_on_client.status_details = &call->details;
    op.data.recv_status_on_client.error_string = &call->error_string;
    return op;
}

/* gRPC's own texts for a connection that ended during a call. */
static bool means_lost_connection(const char *text)
{
    static const char *const beginnings[] = {
        "Socket closed", "GOAWAY received",  "Cancelling all calls",      "recvmsg:",
        "sendmsg",       "Connection reset", "keepalive watchdog timeout"};
    for (size_t i = 0; i < COUNT_OF(beginnings); i++)
        if (strncmp(text, beginnings[i], strlen(beginnings[i])) == 0) return true;
    return false;
}

/* Whether the server's handler ended the call, with a reason of its own. */
static bool is_answer(const struct rpc_client_call *call, const char *text)
{
    static const char going[] = "is shutting down";
    size_t length = strlen(text);
    bool goes =
        length >= sizeof going - 1 && strcmp(text + length - (sizeof going - 1), going) == 0;
    return !goes && call->error_string != NULL &&
           strstr(call->error_string, "Error received from peer") != NULL;
}

/*
 * gRPC's own messages name neither the server nor a clear reason; messages of a server's handler
 * stay as they are.
 */
status_t rpc_client_call_status(const struct rpc_client_call *call)
{
    static const char unreachable[] = "failed to connect to all addresses";
    if (call->code == GRPC_STATUS_OK) return NULL;
    enum status_code code = call->code > 0 && (int)call->code <= STATUS_UNAUTHENTICATED
                                ? (enum status_code)call->code
                                : STATUS_UNKNOWN;
    const char *address = call->channel->address;
    char *text = grpc_slice_to_c_string(call->details);
    status_t status;
    if (code == STATUS_UNAVAILABLE && strncmp(text, unreachable, sizeof unreachable - 1) == 0) {
        const char *reason = text;
        for (const char *colon = text; (colon = strstr(colon, ": ")) != NULL;) reason = colon += 2;
        status = status_new(code, "cannot connect to %s: %s", address, reason);
    } else if (code == STATUS_UNAVAILABLE && means_lost_connection(text)) {
        status = status_new(code, "the connection to %s was lost: %s%s", address, text,
                            call->channel->uses_tls
                                ? "; if that happened at once, the server may have rejected our "
                                  "certificate"
                                : "");
    } else if (code == STATUS_CANCELLED && strcmp(text, "CANCELLED") == 0) {
        /* The answer of a gRPC server to a call that arrives during its shutdown. "Cancelled" would
         * mislead: the caller did not cancel. */
        status = status_new(STATUS_UNAVAILABLE, "the server at %s is shutting down", address);
    } else if (code == STATUS_DEADLINE_EXCEEDED && strcmp(text, "Deadline Exceeded") == 0) {
        status = status_new(code, "no answer from %s within %lld ms", address,
                            (long long)call->deadline_ms);
    } else {
        status = status_new(code, "%s", text[0] ? text : status_code_name(code));
        status_set_answer(status, is_answer(call, text));
    }
    gpr_free(text);
    return status;
}

struct unary {
    struct rpc_client_call base;
    struct rpc_tag tag;
    grpc_byte_buffer *request, *response;
    rpc_unary_done *done;
    void *user;
};

static void on_unary_done(struct rpc_tag *tag, bool ok)
{
    (void)ok; /* a batch that receives the status always succeeds; the status has the result */
    struct unary *unary = tag->owner;
    const struct rpc_method *method = unary->base.method;
    status_t status = rpc_client_call_status(&unary->base);
    ProtobufCMessage *response = NULL;
    if (status == NULL && unary->response)
        response = rpc_response_unpack(method->response, unary->response);
    if (status == NULL && response == NULL)
        status = status_new(STATUS_INTERNAL, "%s: the answer of %s is not a valid %s message",
                            method->path, unary->base.channel->address, method->response->name);
    grpc_byte_buffer_destroy(unary->request);
    if (unary->response) grpc_byte_buffer_destroy(unary->response);
    unary->done(status, response, unary->user);
    if (response) protobuf_c_message_free_unpacked(response, NULL);
    rpc_client_call_deinit(&unary->base);
    free(unary);
}

void rpc_channel_call(struct rpc_channel *channel, const struct rpc_method *method,
                      const ProtobufCMessage *request, int64_t deadline_ms, bool wait_for_ready,
                      rpc_unary_done *done, void *user)
{
    struct unary *unary = mem_alloc(sizeof *unary);
    rpc_client_call_init(&unary->base, channel, method, deadline_ms);
    unary->done = done;
    unary->user = user;
    unary->tag = (struct rpc_tag){.done = on_unary_done, .owner = unary};
    unary->request = rpc_message_pack(request);
    grpc_op ops[6] = {
        rpc_client_call_open(wait_for_ready),
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = unary->request},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        rpc_client_call_initial(&unary->base),
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &unary->response},
        rpc_client_call_trailing(&unary->base),
    };
    rpc_batch_start(unary->base.call, ops, 6, &unary->tag);
}
