/* A stream through restarts of the daemon; see follow.h. */
#include "follow.h"

#include "base/clock.h"
#include "fsdpd/v1/methods.h"
#include "output.h"

enum { PAUSE_FIRST_MS = 100, PAUSE_MAX_MS = 2000 };

/* A stream that stayed open for this long was established: its loss is a new one. */
static const int64_t HELD_NS = 1000000000;

/* Whether the daemon went away, rather than refused the call. `good`: the stream was
 * established. */
static bool is_loss(status_t status, bool good)
{
    switch (status_code(status)) {
    case STATUS_UNAVAILABLE:
    case STATUS_CANCELLED: return true; /* a daemon that shuts down ends its streams with this */
    case STATUS_INTERNAL:
    case STATUS_UNKNOWN: return good; /* the stream was cut off */
    default: return false;
    }
}

static status_t ask(struct session *session)
{
    Fsdpd__V1__GetVersionRequest request = FSDPD__V1__GET_VERSION_REQUEST__INIT;
    ProtobufCMessage *response;
    TRY(session_call(session, &control_get_version, &request.base, false, &response));
    protobuf_c_message_free_unpacked(response, NULL);
    return NULL;
}

/* Waits until the daemon answers again. Returns NULL, or the error to end with. Takes `loss`. */
static status_t await_daemon(struct session *session, status_t loss, int64_t give_up_ns)
{
    int64_t pause = PAUSE_FIRST_MS;
    for (;;) {
        if (session_signal(session) != 0) return loss;
        if (give_up_ns > 0 && clock_monotonic_ns() >= give_up_ns) {
            status_set_answer(loss, false);
            return status_wrap(loss, "fsdpd did not come back within --timeout");
        }
        session_sleep(session, pause);
        pause = pause * 2 < PAUSE_MAX_MS ? pause * 2 : PAUSE_MAX_MS;
        status_t status = ask(session);
        if (status_code(status) != STATUS_DEADLINE_EXCEEDED && !is_loss(status, false)) {
            status_free(loss);
            return status;
        }
        status_free(status);
    }
}

status_t reconnect_follow(struct session *session, int64_t timeout_ms, reconnect_read *read,
                          void *user)
{
    int64_t give_up_ns = 0;
    bool lost = false;
    for (;;) {
        int64_t opened_ns = clock_monotonic_ns();
        bool fresh = false;
        status_t status = read(user, &fresh);
        if (status == NULL || session_signal(session) != 0) return status;
        bool good = fresh || clock_monotonic_ns() - opened_ns > HELD_NS;
        if (!is_loss(status, good)) return status;
        if (!lost || good) {
            give_up_ns = timeout_ms > 0 ? clock_monotonic_ns() + timeout_ms * 1000000 : 0;
            output_note("fsdpctl: lost fsdpd (%s); waiting for it", status_message(status));
        }
        lost = true;
        TRY(await_daemon(session, status, give_up_ns));
    }
}
