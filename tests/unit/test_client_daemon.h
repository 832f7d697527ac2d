/*
 * A daemon that is played by a thread of the test, with common/rpc's server on a loop of its own.
 * The script says how it behaves; it is set before a client runs and read by the thread alone,
 * except for what was seen, which is read when the client's call is over.
 */
#ifndef FSDPD_TESTS_CLIENT_DAEMON_H
#define FSDPD_TESTS_CLIENT_DAEMON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "fsdpd/v1/control.pb-c.h"

enum { CHUNK = 1000, CHUNKS = 5, EVENTS = 6 };

enum pull_mode {
    PULL_WHOLE,
    PULL_CUT,   /* ends well, too early */
    PULL_BREAK, /* ends with UNAVAILABLE in the middle */
    PULL_MORE,  /* one chunk too many */
    PULL_NO_TOTAL,
    PULL_STALL,     /* nothing after the first chunk */
    PULL_INTERRUPT, /* the user presses Ctrl-C after the first chunk */
};

struct script {
    enum pull_mode pull;
    bool tensors;            /* a pull's bytes are a state_dict: one tensor, a, of 1,200 elements */
    const char *hf_config;   /* of the job that GetJob tells of; NULL: none */
    enum status_code refuse; /* every unary call; 0: none */
    int break_watch_after;   /* events of the first stream; 0: never */
    bool restart;            /* the server goes away when it breaks, and comes back */
    bool interrupt_watch;    /* Ctrl-C after the second event */
    bool break_logs;         /* twice: after a line; and after the next stream, quiet, held */
    bool more_workers;       /* two, in no order, after the only one */
    uint32_t queued;         /* jobs in the queue, of which the last one is told */
    Fsdpd__V1__JobState end;
    /* what was seen */
    int watches;
    uint64_t asked_after; /* after_sequence of the last WatchJob */
    int logs;             /* streams of them */
    char id[64];
    uint32_t epochs;
    char data_dir[256];
};
extern struct script script;

/* Serves at `address` until daemon_stop. Aborts if it cannot. */
void daemon_start(const char *address);
void daemon_stop(void);

#endif
