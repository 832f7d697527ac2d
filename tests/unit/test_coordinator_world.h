/*
 * A coordinator in a temporary directory, a client of it, and workers that exist only as links: all
 * on one libuv loop in the test's process. Every wait has a deadline, which fails the test.
 */
#ifndef FSDPD_TEST_COORDINATOR_WORLD_H
#define FSDPD_TEST_COORDINATOR_WORLD_H

#include <check.h>
#include <stdbool.h>
#include <uv.h>

#include "base/status.h"
#include "coordinator/coordinator.h"
#include "coordinator/store/message.h"
#include "fsdpd/v1/methods.h"
#include "rpc/client.h"

struct world {
    uv_loop_t loop;
    uv_timer_t waker; /* so that waits check their condition often */
    char directory[64];
    struct coordinator_options options;
    struct coordinator *coordinator; /* NULL while none runs */
    struct rpc_runtime *runtime;
    struct rpc_channel *channel;
    enum status_code plan_code; /* of fakes that attach from now on */
    const char *make;           /* likewise; NULL: unknown */
};

/* Limits are shortened; change options before world_start. */
void world_init(struct world *world);
void world_start(struct world *world);
/* SIGHUP with these options. */
void world_reload(struct world *world, const struct coordinator_options *options);
/* Drains the coordinator and waits until it is gone. world_start may follow. */
void world_stop(struct world *world);
void world_deinit(struct world *world);
char *world_path(const struct world *world, const char *name);

/* Runs the loop until the condition holds; fails the test after a minute. */
#define WAIT(world, condition)                                                                     \
    do {                                                                                           \
        int64_t until_ = uv_hrtime() / 1000000 + 60000;                                            \
        while (!(condition)) {                                                                     \
            ck_assert_msg((int64_t)(uv_hrtime() / 1000000) < until_, "waited for: %s",             \
                          #condition);                                                             \
            uv_run(&(world)->loop, UV_RUN_ONCE);                                                   \
        }                                                                                          \
    } while (0)

void world_run(struct world *world, int milliseconds);

/* Makes a unary call and waits for it; the caller frees the response with message_free. */
status_t world_call(struct world *world, const struct rpc_method *method, const void *request,
                    void **response);

/* A complete spec; static strings, the same storage at every call. */
job_spec *world_spec(uint32_t workers);

/* Submits and fails the test if that is refused; the caller frees the id. */
char *world_submit(struct world *world, uint32_t workers);
/* The job as GetJob gives it; the caller frees it. */
job_message *world_job(struct world *world, const char *id);
bool world_job_is(struct world *world, const char *id, enum job_state state);

/* Fails the test unless the status has this code and its message these words; frees it. */
void expect_status(status_t status, enum status_code code, const char *words);
void expect_ok(status_t status);

/* A stream of messages from the server, collected. */
struct listener {
    struct rpc_stream *stream;
    bool paused; /* reads no more messages */
    void **messages;
    int count, capacity;
    bool closed;
    status_t status;
};
void listener_open(struct world *world, struct listener *listener, const struct rpc_method *method,
                   const void *request, bool paused);
void listener_resume(struct listener *listener);
void listener_deinit(struct listener *listener);

/* A worker controlled by the test. It answers plan orders by itself. */
enum { FAKE_STEPS = 100 };      /* the steps of a fake's job */
enum { FAKE_MEMORY = 1 << 30 }; /* of its device, in its plans */

struct fake {
    uint64_t finished_at; /* the step of a success; 0: FAKE_STEPS */
    struct world *world;
    struct rpc_stream *stream;
    const char *id;
    bool welcome, closed, drained;
    status_t status;
    const char *device; /* NULL: "cpu" */
    bool shares_device;
    bool plan_staged; /* of the latest plan order */
    uint32_t plan_sharers, plan_host_workers;
    bool silent_plans; /* leave plan orders unanswered */
    uint64_t plan_request; /* the number of the last one */
    int cancelled_plans;
    bool leaves_plans; /* detach when a plan order comes */
    bool sets_up;      /* reported when it reattaches: it does not train yet */
    enum status_code plan_code;
    int plans;
    Fsdpd__V1__Assignment *assignment; /* the latest */
    int assignments;
    int cancels, cancels_at_once;
    uint64_t pull; /* of the latest pull order */
    int pulls;
    uint64_t trace; /* of the latest trace order */
    uint32_t trace_steps;
    uint64_t evaluation; /* of the latest order to evaluate or to sample, but not to stop, */
    double evaluation_waited;
    int evaluations;
    uint64_t evaluation_stopped; /* of the latest order to stop one */
    int evaluation_stops;
    uint64_t wrap; /* of the latest order of another policy */
    int wraps;
    uint64_t checkpoint; /* of the latest order of a checkpoint */
    int checkpoints, pauses;
    uint64_t diagnosis; /* of the latest request for one, with its stacks or without */
    bool stacks;
    int diagnoses;
    int calibrations, calibration_stops; /* orders */
    uint32_t calibration_workers;        /* of the latest */
    char calibration_device[16];
    char *plan_profile; /* of the latest plan order */
    uint32_t unreached;  /* in its next report that it has ended: a rank, plus 1 */
    uint64_t probe;      /* of the latest order to listen or to connect, */
    uint32_t probe_port; /* and its port */
    int probes;
    uint64_t own_us; /* in its next heartbeats */
    uint64_t order_sequence;
    uint64_t report;       /* number of the latest report */
    uint64_t acknowledged; /* as the coordinator acknowledged */
    int heartbeats_answered, releases;
    const char *version; /* instead of this fsdpd's; NULL: the same */
};
void fake_attach(struct world *world, struct fake *fake, const char *id, int64_t pid);
/* Attaches it with a device of this name on the host "host". */
void fake_attach_device(struct world *world, struct fake *fake, const char *id, int64_t pid,
                        const char *device, bool shares_device);
/* The same worker on a new link: with its attempt, or the end of it (`running` false), and the
 * number of orders that it has received, of which it still knows `tail`. */
void fake_attach_again(struct fake *fake, int64_t pid, bool running, uint64_t orders,
                       Fsdpd__V1__Order **tail, size_t tail_count);
void fake_detach(struct fake *fake);
void fake_deinit(struct fake *fake);
void fake_heartbeat(struct fake *fake, uint64_t step);
void fake_leave(struct fake *fake); /* it says that it is ending */
/* It has begun this number of collectives, and waits in the last. */
void fake_heartbeat_at(struct fake *fake, uint64_t step, uint64_t collectives, bool waits);
/* It waits at this batch of an evaluation; 0: its version does not say at which. */
void fake_heartbeat_evaluating(struct fake *fake, uint64_t step, uint64_t batch);
void fake_started(struct fake *fake, uint64_t hash);
void fake_resumed(struct fake *fake, uint64_t hash, uint64_t step);
/* The same with metrics of that step that no coordinator has recorded. */
void fake_resumed_unrecorded(struct fake *fake, uint64_t hash, uint64_t step);
void fake_metrics(struct fake *fake, uint64_t step, double loss);
/* The same at loss 0.5, with the time of an op in that step. */
void fake_op_times(struct fake *fake, uint64_t step);
/* The same, after `thinned` dropped ones. */
void fake_thinned(struct fake *fake, uint64_t step, uint64_t thinned);
void fake_validation(struct fake *fake, uint64_t step, double loss);
void fake_held_out(struct fake *fake, const char *set, uint64_t step, double loss);
void fake_epoch(struct fake *fake, uint32_t epoch); /* of a version that reports no step */
void fake_epoch_at(struct fake *fake, uint32_t epoch, uint64_t step);
void fake_finished(struct fake *fake, enum status_code code, const char *message);
/* With a reason other than the code's name. */
void fake_ended(struct fake *fake, enum status_code code, const char *reason, const char *message);
/* A report of rank 0; `removed`: one step, or NULL. */
void fake_checkpoint(struct fake *fake, uint64_t number, uint64_t step, enum status_code code,
                     const char *message, const uint64_t *removed);
void fake_pull_failed(struct fake *fake, uint64_t pull, const char *message);
/* Of the latest order to sample: a token of one sequence; the answer. */
void fake_drawn(struct fake *fake, uint32_t token);
void fake_evaluated(struct fake *fake, Fsdpd__V1__Validation *validation);
void fake_sampled(struct fake *fake, Fsdpd__V1__Sampled *sampled, enum status_code code,
                  const char *message);
void fake_trace(struct fake *fake, uint64_t trace, Fsdpd__V1__TraceChunk *chunk,
                enum status_code code, const char *message);

/* The answer to the latest request for a diagnosis: it has begun this number of collectives, and
 * has waited 100 s in the last. */
void fake_diagnosis(struct fake *fake, uint64_t collectives, bool waits);

/* The report of a calibration. */
void fake_calibrated(struct fake *fake, enum status_code code, const char *profile);

/* The answer to the latest probe: it listens at this port, or (0) has connected. */
void fake_probed(struct fake *fake, enum status_code code, uint32_t port);

/* The answer to the latest order of another policy. */
void fake_wrap(struct fake *fake, uint64_t step, enum status_code code, const char *message);

/* Attaches two workers and starts a job on both; waits until it is RUNNING. The caller frees the
 * id. The coordinator must run already. */
char *world_start_running(struct world *world, struct fake fakes[2]);
/* Ends such a world: frees the attached workers, the id, and the world. */
void world_deinit_running(struct world *world, struct fake *fakes, int count, char *id);
void world_check_reason(struct world *world, const char *id, enum job_state state, const char *code,
                        const char *words);
/* Checks that the job's last entry of history with this reason is by the user who submitted it; by
 * no user without `user`. */
void world_check_by(struct world *world, const char *id, const char *code, bool user);
/* Checks that the job's history has an entry with this reason and these words. */
void world_check_reached(struct world *world, const char *id, const char *code, const char *words);
status_t world_cancel(struct world *world, const char *id);

/* An UploadState call. */
struct upload_call {
    struct rpc_stream *stream;
    bool answered, closed;
    status_t status;
};
void upload_open(struct fake *fake, struct upload_call *upload, uint64_t pull, uint64_t total,
                 uint64_t step);
void upload_send(struct upload_call *upload, const void *bytes, size_t size);
void upload_close(struct upload_call *upload); /* sends no more */
void upload_deinit(struct upload_call *upload);

#endif
