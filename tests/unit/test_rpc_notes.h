/*
 * The service that the tests of common/rpc talk to, what its handlers saw, and the client's side of
 * a stream. Each test of a notes_case has a world with the service, which must end clean.
 */
#ifndef FSDPD_TESTS_RPC_NOTES_H
#define FSDPD_TESTS_RPC_NOTES_H

#include "test_rpc_world.h"

extern const struct rpc_method echo;  /* answers with the same; number < 0 is an error */
extern const struct rpc_method later; /* is answered when the test says so */
extern const struct rpc_method count; /* `number` messages as long as `text`, at most two queued */
extern const struct rpc_method hold;  /* one message, then nothing until the test says so */
extern const struct rpc_method collect; /* reads as the test allows; answers the sum */
extern const struct rpc_method chat;    /* answers every message with its double */
extern const struct rpc_method missing; /* has no handler */

extern const struct rpc_service notes;

/* What the handlers saw, and the call that waits for the test. */
struct seen {
    int started, closed, cancelled, messages, ends, sum, writable, most_queued;
    bool reads_itself; /* Collect and Chat ask for messages by themselves */
    struct rpc_call *held;
    struct rpc_peer peer;
};
extern struct seen seen;

/* The ground of one test. */
extern struct world world;

/* A test case whose tests have a world with the service. */
TCase *notes_case(Suite *suite, const char *name);

struct listener {
    struct rpc_stream *stream;
    bool reads_itself, closed;
    int messages, sum, writable, closes;
    enum status_code code;
    char message[512];
};

/* Opens a stream of `method`; text and number are the request of a server stream. */
void listen_to(struct world *on, struct listener *listener, const struct rpc_method *method,
               const char *text, int number);

#endif
