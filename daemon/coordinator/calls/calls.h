/*
 * What other rooms, and other calls, use of calls that have no more to offer; each part is a file.
 * The service of a handler is the coordinator. On the loop's thread.
 */
#ifndef FSDPD_COORDINATOR_CALLS_H
#define FSDPD_COORDINATOR_CALLS_H

#include "coordinator/core/internal.h"
#include "coordinator/jobs/jobs.h"

/* ---- diagnose.c ---- */

/* DiagnoseJob: what every rank does now, and who is to blame. jobs/diagnoses.h takes the diagnosis;
 * calls that come while it does share it. */

void diagnose_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* The job's attempt has a new diagnosis. */
void diagnose_done(struct job *job);

/* ---- logs.c ---- */

/*
 * GetLogs: reads and follows the logs of jobs. A reader is a position in the log on the disk, so a
 * slow reader costs nothing. All on the loop's thread.
 */

/* Lines were added to the log of this job. */
void logs_wake(struct coordinator *c, const char *job);

/* The handler of GetLogs; the service is the coordinator. */
void logs_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* ---- rewrap.c ---- */

/*
 * SetWrapPolicy: changes the FSDP units of a running job. The coordinator checks the new spec, a
 * worker plans it, and then an order goes to all ranks, which rank 0 answers. Only then does the
 * job's record change, and the client gets its answer. One change per job at a time. After a
 * refusal, the job continues unchanged.
 */

/* The handler of SetWrapPolicy; the service is the coordinator. */
void rewrap_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* Handles rank 0's report on the change. */
void rewrap_report(struct job *job, const Fsdpd__V1__WrapReport *report);

/* ---- saving.c ---- */

/*
 * Jobs that are SAVING: their ranks have completed every step, but the coordinator's or a worker's
 * host had no room (or no descriptor) for the final files. This is not a failure of the job. The
 * ranks keep their data and retry the write, with pauses of up to some seconds, until it is on the
 * disk or a user cancels the job. The job stays RUNNING, with the reason SAVING.
 */

/* The data that could not be written; bits of the attempt's `saving`. */
enum saving {
    SAVING_STATE_DICT = 1, /* the final state_dict; waiting pulls take rank 0's uploads */
    SAVING_CHECKPOINT = 2, /* the last step's checkpoint */
};

/* The write failed, and the ranks will retry it. `why` is for people. */
void saving_failed(struct job *job, enum saving what, const char *why);

/* The write succeeded. */
void saving_done(struct job *job, enum saving what);

/* FAILED_PRECONDITION if the job is SAVING: its ranks take no more steps, so they take no
 * orders. */
status_t saving_refuse(const struct job *job) FSDPD_MUST_USE;

/* ---- shares.c ---- */

/*
 * Limits how much of a running job users other than its owner may use: their pulls and traces keep
 * its ranks busy for at most a tenth of the time, one at a time. Operators and the owner are not
 * limited, except in their samples.
 */

/* Whether the caller is neither the job's owner nor an operator. */
bool share_is_others(const struct rpc_call *call, const job_message *job);

/* RESOURCE_EXHAUSTED while other users have used up their share; the message states the time
 * left. */
status_t share_check(const struct job *job) FSDPD_MUST_USE;

/* Marks the share as in use, until share_give_back reports how long the ranks were busy with it. */
void share_take(struct job *job);
void share_give_back(struct job *job, int64_t busy_ms);

/* Samples and evaluations of any user take limits.sample_share of a job's time, as a mean: a short
 * burst is free.
 * The ranks were busy with one; how long the next one has to wait, 0: it may begin. */
void share_add_sample(struct job *job, int64_t busy_ms);
int64_t share_sample_left_ms(const struct job *job);

/* ---- sources.c ---- */

/*
 * The jobs whose weights a submission means (model.job, model.weights.job, model.adapter.job): who
 * may use them, and which they are. And the files that a job's own model has beside its weights.
 */

/*
 * Fills in what the daemon fills in of them, so that every attempt gets the same weights and they
 * can be compared with the model; a job that is not over is added to `after`. NOT_FOUND: there is
 * no such job; PERMISSION_DENIED: it is another user's; FAILED_PRECONDITION: it has no such
 * weights. Does nothing without such a job.
 */
status_t sources_settle(struct coordinator *c, const struct rpc_call *call,
                        job_spec *spec) FSDPD_MUST_USE;

/* The handler of GetModelFile; the service is the coordinator. */
void sources_get_file(struct rpc_call *call, const ProtobufCMessage *message, void *service);

/* WorkerLink.PullSource: for a worker that runs a job which names these weights. */
void sources_pull(struct rpc_call *call, const ProtobufCMessage *message, void *service);

/* ---- tokens.c ---- */

/*
 * Tokens, with which clients over HTTP act as a user: issued, listed and revoked by operators. The
 * store has the SHA-256 of each; its secret is shown once, in the answer to IssueToken. What a
 * token's owner may do is what the user of its name may do over gRPC (access.h).
 */

/* Handlers; the service is the coordinator. */
void tokens_issue(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void tokens_list(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void tokens_revoke(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/*
 * Finds whose secret this is: *peer gets the roles, and a name and a job that the caller frees.
 * UNAUTHENTICATED without saying why: it is unknown, revoked or expired. DATA_LOSS if its record is
 * damaged.
 */
status_t tokens_identify(struct coordinator *c, const char *secret,
                         struct rpc_peer *peer) FSDPD_MUST_USE;

/* ---- traces.c ---- */

/*
 * TraceJob: an order to all ranks of a running job; their reports are forwarded to the client as
 * they arrive. One trace per job at a time. The size of a trace bounds what a client that does not
 * read can leave queued here.
 */

enum {
    TRACE_STEPS_MAX = 1000,
    TRACE_INSTRUCTIONS_MAX = 4000000, /* of all steps and ranks together */
};

/* The handler of TraceJob; the service is the coordinator. */
void traces_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* Handles a rank's report. */
void traces_report(struct job *job, int rank, const Fsdpd__V1__TraceReport *report);

/* The link to the rank broke: the rest of its trace is lost. */
void traces_rank_away(struct job *job, int rank);

/* ---- uploads.c ---- */

/*
 * UploadState: a state_dict that rank 0 sends. It is either the answer to a pull order, which is
 * relayed (pulls.h), or a job's final state_dict, which is kept in the state directory: temporary
 * file, fsync, rename.
 */

struct upload;

/* The handlers of UploadState; the service is the coordinator. */
void uploads_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void uploads_message(struct rpc_call *call, const ProtobufCMessage *message, void *service);

/* Whether a final state_dict of this job is arriving. */
bool uploads_has(const struct job *job);

/* At a start: ends replacements of kept files that a crash left unfinished. */
void uploads_recover(struct coordinator *c);

/* For a relayed upload: requests its next chunk; ends it because no client waits for it any
 * more. */
void upload_read(struct upload *upload);
void upload_reject(struct upload *upload, status_t status);

/* ---- watch.c ---- */

/* WatchJob: a job's events from the store, then live, each watcher at its own pace. */

/* The handler of WatchJob; the service is the coordinator. */
void watch_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* Number of watching clients. */
int watch_count(const struct coordinator *c);

/* An event was recorded. */
void watch_send_event(struct job *job, const job_event *event);

/* Events that could not be sent to watchers are in the store now. */
void watch_wake(struct job *job);

#endif
