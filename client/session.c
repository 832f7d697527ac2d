/*
 * Synchronous calls over common/rpc; see session.h. The session owns the loop, the runtime, the
 * channel and the handles. A unary call cannot be cancelled: when a signal interrupts one, it is
 * abandoned, and its state is freed when the channel closes.
 */
#include "session.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/switches.h"
#include "output.h"
#include "proto/message.h"

enum { SIGNAL_COUNT = 3, SLEEP_AGAIN_MS = 100 };
static const int caught_signals[SIGNAL_COUNT] = {SIGINT, SIGTERM, SIGHUP};

struct session {
    uv_loop_t loop;
    struct rpc_runtime *runtime;
    struct rpc_channel *channel;
    char *address;
    int64_t timeout_ms;
    uv_timer_t timer;
    bool timer_fired;
    uv_signal_t signals[SIGNAL_COUNT];
    bool catches;
    int signal;
    uv_signal_t winch;
    void (*resized)(void *user); /* NULL: no callback */
    void *resized_user;
    struct rpc_stream *stream; /* the open one, which a signal cancels */
};

char *session_address(const char *address)
{
    if (address == NULL || address[0] == '\0') address = switch_get("FSDPD_ADDRESS");
    if (address != NULL && address[0] != '\0') return mem_strdup(address);
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (geteuid() != 0 && runtime != NULL && runtime[0] == '/') {
        AUTO_FREE char *path = mem_printf("%s/fsdpd/fsdpd.sock", runtime);
        char *own = access(path, F_OK) == 0 ? mem_printf("unix:%s", path) : NULL;
        if (own != NULL) return own;
    }
    return mem_strdup("unix:/run/fsdpd/fsdpd.sock");
}

/* The file that the variable names, or the file `name` in the user's configuration directory if it
 * exists. */
static char *tls_file(const char *variable, const char *name)
{
    const char *given = switch_get(variable), *home = getenv("XDG_CONFIG_HOME");
    if (given != NULL && given[0] != '\0') return file_path_expand_home(given);
    AUTO_FREE char *path = home != NULL && home[0] == '/'
                               ? mem_printf("%s/fsdpd/tls/%s", home, name)
                               : mem_printf("~/.config/fsdpd/tls/%s", name);
    char *full = file_path_expand_home(path);
    if (access(full, F_OK) == 0) return full;
    free(full);
    return NULL;
}

/* Refuses --insecure-tcp together with TLS settings, so that requested TLS is never dropped
 * silently. */
static status_t check_one_is_meant(void)
{
    static const char *const variables[] = {"FSDPD_TLS_CA", "FSDPD_TLS_CERTIFICATE",
                                            "FSDPD_TLS_KEY"};
    for (int i = 0; i < 3; i++) {
        const char *given = switch_get(variables[i]);
        if (given != NULL && given[0] != '\0')
            return status_new(STATUS_INVALID_ARGUMENT,
                              "there is TLS (%s or its flag) and --insecure-tcp (or "
                              "FSDPD_INSECURE_TCP=true); use only one of them",
                              variables[i]);
    }
    AUTO_FREE char *lying = tls_file(variables[0], "ca.crt");
    if (lying != NULL)
        output_note(
            "fsdpctl: without TLS, as FSDPD_INSECURE_TCP or --insecure-tcp says; %s is ignored",
            lying);
    return NULL;
}

/* Accepts the same values as fsdpd; anything else is an error rather than a guess. */
static status_t read_insecure(bool *insecure)
{
    const char *text = switch_get("FSDPD_INSECURE_TCP");
    *insecure = text != NULL && strcmp(text, "true") == 0;
    if (*insecure || text == NULL || text[0] == '\0' || strcmp(text, "false") == 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "FSDPD_INSECURE_TCP: expected true or false, found '%s'", text);
}

static status_t open_channel(struct session *session)
{
    static const char *const names[] = {"--tls-ca (or FSDPD_TLS_CA)",
                                        "--tls-certificate (or FSDPD_TLS_CERTIFICATE)",
                                        "--tls-key (or FSDPD_TLS_KEY)"};
    bool tcp = strncmp(session->address, "unix:", 5) != 0;
    struct rpc_channel_security security = {0};
    TRY(read_insecure(&security.insecure_tcp));
    AUTO_FREE char *ca = NULL, *certificate = NULL, *key = NULL;
    if (tcp && security.insecure_tcp) {
        TRY(check_one_is_meant());
    } else if (tcp) {
        ca = tls_file("FSDPD_TLS_CA", "ca.crt");
        certificate = tls_file("FSDPD_TLS_CERTIFICATE", "client.crt");
        key = tls_file("FSDPD_TLS_KEY", "client.key");
        security.tls = (struct rpc_tls_files){ca, certificate, key, names};
    }
    return rpc_channel_new(session->runtime, session->address, &security, &session->channel);
}

const char *session_peer(const struct session *session)
{
    return session->address;
}

static void set_flag(void *user)
{
    *(bool *)user = true;
}

static void close_runtime(struct session *session)
{
    bool closed = false;
    rpc_runtime_close(session->runtime, set_flag, &closed);
    while (!closed) uv_run(&session->loop, UV_RUN_ONCE);
}

static void close_loop(struct session *session)
{
    uv_close((uv_handle_t *)&session->timer, NULL);
    for (int i = 0; session->catches && i < SIGNAL_COUNT; i++)
        uv_close((uv_handle_t *)&session->signals[i], NULL);
    if (session->resized != NULL) uv_close((uv_handle_t *)&session->winch, NULL);
    while (uv_run(&session->loop, UV_RUN_DEFAULT) != 0) {}
    uv_loop_close(&session->loop);
    free(session->address);
    free(session);
}

status_t session_new(const char *address, int64_t timeout_ms, struct session **out)
{
    AUTO_FREE char *given = session_address(address);
    char *normal = NULL;
    status_t status = rpc_address_parse(given, &normal);
    if (status != NULL) return status;
    struct session *session = mem_alloc(sizeof *session);
    int error = uv_loop_init(&session->loop);
    if (error != 0) {
        free(session);
        free(normal);
        return status_new(STATUS_INTERNAL, "cannot make an event loop: %s", uv_strerror(error));
    }
    session->address = normal;
    session->timeout_ms = timeout_ms;
    uv_timer_init(&session->loop, &session->timer);
    status = rpc_runtime_new(&session->loop, &session->runtime);
    if (status == NULL) {
        status = open_channel(session);
        if (status != NULL) close_runtime(session);
    }
    if (status != NULL) close_loop(session);
    else *out = session;
    return status;
}

void session_free(struct session *session)
{
    if (session == NULL) return;
    bool closed = false;
    rpc_channel_close(session->channel, set_flag, &closed);
    while (!closed) uv_run(&session->loop, UV_RUN_ONCE);
    close_runtime(session);
    close_loop(session);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct session *session = handle->data;
    session->signal = number;
    if (session->stream != NULL) rpc_stream_cancel(session->stream);
}

void session_catch_signals(struct session *session)
{
    if (session->catches) return;
    session->catches = true;
    for (int i = 0; i < SIGNAL_COUNT; i++) {
        uv_signal_init(&session->loop, &session->signals[i]);
        session->signals[i].data = session;
        uv_signal_start(&session->signals[i], on_signal, caught_signals[i]);
        uv_unref((uv_handle_t *)&session->signals[i]);
    }
}

static void on_winch(uv_signal_t *handle, int number)
{
    (void)number;
    struct session *session = handle->data;
    session->resized(session->resized_user);
}

void session_on_resize(struct session *session, void (*resized)(void *user), void *user)
{
    if (session->resized == NULL) {
        uv_signal_init(&session->loop, &session->winch);
        session->winch.data = session;
        uv_signal_start(&session->winch, on_winch, SIGWINCH);
        uv_unref((uv_handle_t *)&session->winch);
    }
    session->resized = resized;
    session->resized_user = user;
}

int session_signal(const struct session *session)
{
    return session->signal;
}

static status_t interrupted(const struct session *session)
{
    return status_new(STATUS_CANCELLED, "interrupted by %s", strsignal(session->signal));
}

/*
 * Explains why gRPC could not reach a Unix socket; NULL if the socket is fine and the error is the
 * daemon's own.
 */
static status_t diagnose_socket(const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof name.sun_path) return NULL;
    strcpy(name.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return NULL;
    int error = connect(fd, (struct sockaddr *)&name, sizeof name) == 0 ? 0 : errno;
    close(fd);
    switch (error) {
    case ENOENT:
        return status_new(STATUS_UNAVAILABLE,
                          "no fsdpd at unix:%s: there is no such socket; is fsdpd running? "
                          "--address or FSDPD_ADDRESS names another one",
                          path);
    case ECONNREFUSED:
        return status_new(STATUS_UNAVAILABLE,
                          "no fsdpd at unix:%s: the socket exists, but no process listens", path);
    case EACCES:
    case EPERM:
        return status_new(STATUS_PERMISSION_DENIED,
                          "not permitted to use the socket %s; be root or a member of its group",
                          path);
    default: return NULL;
    }
}

static status_t explain(const struct session *session, status_t status)
{
    if (status_code(status) != STATUS_UNAVAILABLE || status_is_answer(status)) return status;
    status_t diagnosis =
        strncmp(session->address, "unix:", 5) == 0 ? diagnose_socket(session->address + 5) : NULL;
    if (diagnosis == NULL) return status_wrap(status, "fsdpd at %s", session->address);
    status_free(status);
    return diagnosis;
}

struct call {
    bool done, abandoned;
    status_t status;
    ProtobufCMessage *response;
};

static void on_unary_done(status_t status, const ProtobufCMessage *response, void *user)
{
    struct call *call = user;
    if (call->abandoned) {
        status_free(status);
        free(call);
        return;
    }
    call->done = true;
    call->status = status;
    if (status == NULL) call->response = message_copy(response);
}

status_t session_call(struct session *session, const struct rpc_method *method,
                      const ProtobufCMessage *request, bool wait_for_ready,
                      ProtobufCMessage **response)
{
    if (session->signal != 0) return interrupted(session);
    struct call *call = mem_alloc(sizeof *call);
    rpc_channel_call(session->channel, method, request, session->timeout_ms, wait_for_ready,
                     on_unary_done, call);
    while (!call->done && session->signal == 0) uv_run(&session->loop, UV_RUN_ONCE);
    if (!call->done) {
        call->abandoned = true;
        return interrupted(session);
    }
    status_t status = call->status;
    if (status == NULL && call->response == NULL)
        status = status_new(STATUS_INTERNAL, "the daemon's response cannot be read");
    if (status == NULL) *response = call->response;
    free(call);
    return explain(session, status);
}

struct session_reading {
    struct session *session;
    session_take *take;
    void *user;
    int64_t idle_ms;
    bool closed;
    status_t taken;  /* the error that `take` returned */
    status_t status; /* the stream's own */
    bool idle;
};

static void on_idle(uv_timer_t *timer)
{
    struct session_reading *reading = timer->data;
    if (reading->closed) return;
    reading->idle = true;
    rpc_stream_cancel(reading->session->stream);
}

static void await_message(struct session_reading *reading)
{
    if (reading->idle_ms <= 0) return;
    uv_update_time(&reading->session->loop); /* `take` may have been slow */
    uv_timer_start(&reading->session->timer, on_idle, (uint64_t)reading->idle_ms, 0);
}

static void on_stream_message(struct rpc_stream *stream, const ProtobufCMessage *message,
                              void *user)
{
    struct session_reading *reading = user;
    if (reading->taken != NULL || reading->session->signal != 0) return;
    reading->taken = reading->take(message, reading->user);
    if (reading->taken != NULL) {
        rpc_stream_cancel(stream);
        return;
    }
    await_message(reading);
    rpc_stream_read(stream);
}

static void on_stream_closed(struct rpc_stream *stream, status_t status, void *user)
{
    (void)stream;
    struct session_reading *reading = user;
    reading->session->stream = NULL;
    reading->status = status;
    reading->closed = true;
}

status_t session_stream(struct session *session, const struct rpc_method *method,
                        const ProtobufCMessage *request, int64_t idle_ms, session_take *take,
                        void *user)
{
    static const struct rpc_stream_callbacks callbacks = {
        .on_message = on_stream_message,
        .on_closed = on_stream_closed,
    };
    if (session->signal != 0) return interrupted(session);
    struct session_reading reading = {.session = session,
                                      .take = take,
                                      .user = user,
                                      .idle_ms = idle_ms};
    session->timer.data = &reading;
    session->stream =
        rpc_stream_open(session->channel, method, request, 0, false, &callbacks, &reading);
    await_message(&reading);
    rpc_stream_read(session->stream);
    while (!reading.closed) uv_run(&session->loop, UV_RUN_ONCE);
    uv_timer_stop(&session->timer);
    if (reading.taken != NULL) return status_first(reading.taken, reading.status);
    if (reading.status == NULL) return NULL;
    if (session->signal != 0) return status_first(interrupted(session), reading.status);
    if (reading.idle) {
        status_free(reading.status);
        return status_new(STATUS_DEADLINE_EXCEEDED, "no message from fsdpd for %g s",
                          (double)idle_ms / 1000);
    }
    return explain(session, reading.status);
}

static void on_slept(uv_timer_t *timer)
{
    struct session *session = timer->data;
    session->timer_fired = true;
}

void session_sleep(struct session *session, int64_t milliseconds)
{
    session->timer.data = session;
    session->timer_fired = false;
    /* The timer repeats because uv_run first runs timers that are already due (for example after
     * the process was stopped) and then waits for an event; without a timer it would wait without
     * limit. */
    uv_update_time(&session->loop);
    uv_timer_start(&session->timer, on_slept, (uint64_t)milliseconds, SLEEP_AGAIN_MS);
    while (!session->timer_fired && session->signal == 0) uv_run(&session->loop, UV_RUN_ONCE);
    uv_timer_stop(&session->timer);
}
