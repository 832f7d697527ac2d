/*
 * A client's call that waits for something from a job: the part common to all kinds of such calls.
 * A call belongs to its client until it is closed, but may be answered earlier; its kind defines
 * what happens in between. The coordinator keeps all of them in one list, from job_call_begin to
 * job_call_free. A kind's functions never free any other call than their own.
 */
#ifndef FSDPD_COORDINATOR_JOB_CALL_H
#define FSDPD_COORDINATOR_JOB_CALL_H

#include "coordinator/jobs/jobs.h"

/* Who gets the answer of a call that is not gRPC's: `done` is called at most once, with an error
 * that it owns, or with the reply, valid during the call. */
struct job_caller {
    void (*done)(void *user, status_t status, const ProtobufCMessage *reply);
    void *user;
};

/* The first member of a kind's own struct. */
struct job_call {
    struct list_node node;
    const struct job_call_type *type;
    struct coordinator *c;
    struct rpc_call *call; /* NULL once it is closed, and if it has a caller */
    struct job_caller caller;
    char *id;              /* the job's */
    struct job *job;       /* NULL once it is over */
    int64_t deadline;      /* monotonic ms; 0: none */
    bool over;             /* the call was answered */
};

/* A kind of calls. A function that is NULL does nothing, or what its comment states. All but
 * `closed` and `end` are called only for calls that are not over. */
struct job_call_type {
    size_t size; /* of its struct */
    /* gRPC accepted a message to the client. */
    void (*writable)(struct job_call *own);
    /* Called periodically; `late`: the deadline has passed. */
    void (*tick)(struct job_call *own, bool late);
    /* The job's attempt has ended; own->job is NULL if the job has ended, too. */
    void (*attempt_over)(struct job_call *own, struct job *job);
    /* End the call with this error; NULL: job_call_finish. */
    void (*end)(struct job_call *own, status_t status);
    /* own->call is NULL now: free `own`, at once or later. NULL: job_call_free. */
    void (*closed)(struct job_call *own);
};

/* NOT_FOUND unless the job exists, running or over. */
status_t job_call_check_id(struct coordinator *c, const char *id) FSDPD_MUST_USE;

/* Allocates the struct that belongs to `call`, which owns it; all but its job_call is zeroed. NULL:
 * the call gets a caller, who ends it with job_call_leave. */
void *job_call_begin(const struct job_call_type *type, struct rpc_call *call, struct coordinator *c,
                     const char *id);

/* The caller has left, or got its answer: it gets none any more, and the call is closed, as
 * job_call_closed does with one of gRPC's. Not from `done`. */
void job_call_leave(struct job_call *own);

/* Sets the job of a call that was begun without one (""). */
void job_call_set_job(struct job_call *own, const char *id);

/* Sets the deadline to `ms` from now; the kind's tick gets `late` after that. */
void job_call_expect(struct job_call *own, int ms);

/* The first of these functions to run answers the client, if it is still connected, and drops the
 * call's request for a plan. */
void job_call_finish(struct job_call *own, status_t status);
void job_call_reply(struct job_call *own, const ProtobufCMessage *message);
void job_call_reply_job(struct job_call *own, const job_message *message);

/* The error of a call whose job's attempt has ended `before` something ("it was traced"): UNAVAILABLE
 * with the reason JOB_STARTS_AGAIN if the job will have another attempt by itself, else ABORTED. */
status_t job_call_error_of_end(const struct job *job, const char *before) FSDPD_MUST_USE;

/* Removes the call from the list and frees it. */
void job_call_free(struct job_call *own);

/* The next call of this kind after `after` (NULL: the first) that is not over. `job` NULL: of any
 * job. */
void *job_calls_next(const struct coordinator *c, const struct job_call_type *type,
                     const struct job *job, const void *after);

/* Counts all calls of this kind, including answered ones. */
int job_calls_count(const struct coordinator *c, const struct job_call_type *type);

/* Handlers for all methods that begin such calls. */
void job_call_writable(struct rpc_call *call, void *service);
void job_call_closed(struct rpc_call *call, bool cancelled, void *service);

/* The job's attempt has ended, and perhaps the job (job->over). Called at the end of a turn. */
void job_calls_attempt_over(struct job *job);

/* Whether any call has a deadline. */
bool job_calls_are_waiting(const struct coordinator *c);

void job_calls_tick(struct coordinator *c);

/* Ends all calls with UNAVAILABLE: the coordinator is shutting down. */
void job_calls_close(struct coordinator *c);

#endif
