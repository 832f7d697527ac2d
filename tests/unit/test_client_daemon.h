/*
 * A scripted daemon: a thread of the test with common/rpc's server on its own loop. The script
 * determines its behaviour; a test sets it before a client runs, and only the thread reads it,
 * except for the records, which the test reads when the client's call is over.
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
    PULL_CUT,   /* ends normally, too early */
    PULL_BREAK, /* ends with UNAVAILABLE in the middle */
    PULL_MORE,  /* one chunk too many */
    PULL_NO_TOTAL,
    PULL_STALL,     /* nothing after the first chunk */
    PULL_INTERRUPT, /* the user presses Ctrl-C after the first chunk */
};

struct script {
    enum pull_mode pull;
    bool tensors;            /* a pull's bytes are a state_dict: one tensor, a, of 1,200 elements */
    const char *hf_config;   /* of the job that GetJob returns; NULL: none */
    const char *beside;      /* what its model.hf has in `beside_name`; NULL: nothing */
    const char *beside_name; /* NULL: tokenizer.json */
    bool beside_changes;     /* after it was listed */
    enum status_code refuse; /* the code of every unary call; 0: none */
    int break_watch_after;   /* events of the first stream; 0: never */
    bool restart;            /* the server disappears when it breaks, and returns */
    bool interrupt_watch;    /* Ctrl-C after the second event */
    bool break_logs;         /* twice: after a line; and after the next stream, quiet, held */
    bool more_workers;       /* two after the only one, each on a page of its own */
    bool more_jobs;          /* mnist-2, on the page before that of mnist-1 */
    bool no_jobs;            /* ListJobs finds none */
    uint32_t queued;         /* number of queued jobs; only the last one is listed */
    bool trains;             /* a step of it can be traced */
    Fsdpd__V1__JobState end;
    /* records */
    int watches;
    uint64_t asked_after; /* after_sequence of the last WatchJob */
    int logs;             /* number of their streams */
    char id[64];
    uint32_t epochs;
    char data_dir[256];
    char label[64]; /* of the last ListJobs: the first label's value, and the other filters */
    size_t states;
    uint32_t limit;
    uint32_t traced; /* steps of the last TraceJob */
};
extern struct script script;

/* Serves at `address` until daemon_stop. Aborts if it cannot. */
void daemon_start(const char *address);
void daemon_stop(void);

#endif
