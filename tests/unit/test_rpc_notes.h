/*
 * The service for the tests of common/rpc, the record of its handlers, and the client's side of a
 * stream.
 */
#ifndef FSDPD_TESTS_RPC_NOTES_H
#define FSDPD_TESTS_RPC_NOTES_H

#include "test_rpc_world.h"

extern const struct rpc_method echo;  /* echoes the message; number < 0 is an error */
extern const struct rpc_method later; /* answers on the test's command */
extern const struct rpc_method count; /* `number` messages as long as `text`, at most two queued */
extern const struct rpc_method hold;  /* one message, then nothing until the test's command */
extern const struct rpc_method collect; /* reads on the test's command; answers the sum */
extern const struct rpc_method chat;    /* answers every message with its double */
extern const struct rpc_method missing; /* has no handler */

extern const struct rpc_service notes;

/* The record of the handlers, and the call that waits for the test. */
struct seen {
    int started, closed, cancelled, messages, ends, sum, writable, most_queued;
    bool reads_itself; /* Collect and Chat request messages by themselves */
    struct rpc_call *held;
    struct rpc_peer peer;
};
extern struct seen seen;

/* The environment of one test. */
extern struct world world;

/* Start the service in `world`; stop it and check that no call is left. */
void notes_set_up(void);
void notes_tear_down(void);

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
