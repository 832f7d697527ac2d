/*
 * A coordinator in a temporary directory, a client of it, and workers that exist only as links: all
 * on one libuv loop in the test's process. Everything waits with a deadline and fails the test at
 * it.
 */
#ifndef FSDPD_TEST_COORDINATOR_WORLD_H
#define FSDPD_TEST_COORDINATOR_WORLD_H

#include <check.h>
#include <stdbool.h>
#include <uv.h>

#include "base/status.h"
#include "coordinator/coordinator.h"
#include "coordinator/message.h"
#include "rpc/client.h"

extern const struct rpc_method test_submit, test_get, test_list, test_cancel, test_watch, test_plan,
    test_pull, test_trace, test_workers, test_version, test_attach, test_store_set, test_store_get,
    test_upload, test_set_wrap, test_checkpoint, test_checkpoints, test_pause, test_resume,
    test_history, test_hold, test_release, test_priority, test_drain, test_undrain, test_forget;

struct world {
    uv_loop_t loop;
    uv_timer_t waker; /* so that waits look at their condition often */
    char directory[64];
    struct coordinator_options options;
    struct coordinator *coordinator; /* NULL while none runs */
    struct rpc_runtime *runtime;
    struct rpc_channel *channel;
};

/* Limits are shortened; change options before world_start. */
void world_init(struct world *world);
void world_start(struct world *world);
/* Drains the coordinator and waits until it is gone. world_start may follow. */
void world_stop(struct world *world);
void world_deinit(struct world *world);
char *world_path(const struct world *world, const char *name);

/* Runs the loop until the condition holds; fails the test after ten seconds. */
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

/* A unary call, waited for; the response is the caller's for message_free. */
status_t world_call(struct world *world, const struct rpc_method *method, const void *request,
                    void **response);

/* A complete spec; static strings, the same storage at every call. */
job_spec *world_spec(uint32_t workers);

/* Submits and fails the test if that is refused; the id is the caller's. */
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
    bool paused; /* asks for no more messages */
    void **messages;
    int count, capacity;
    bool closed;
    status_t status;
};
void listener_open(struct world *world, struct listener *listener, const struct rpc_method *method,
                   const void *request, bool paused);
void listener_resume(struct listener *listener);
void listener_deinit(struct listener *listener);

/* A worker that does what the test says. Plans are answered by themselves. */
struct fake {
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
    enum status_code plan_code;
    int plans;
    Fsdpd__V1__Assignment *assignment; /* the latest */
    int assignments;
    int cancels, cancels_at_once;
    uint64_t pull; /* of the latest pull order */
    int pulls;
    uint64_t trace; /* of the latest trace order */
    uint32_t trace_steps;
    uint64_t wrap; /* of the latest order of another policy */
    int wraps;
    uint64_t checkpoint; /* of the latest order of a checkpoint */
    int checkpoints, pauses;
    uint64_t order_sequence;
    uint64_t report;       /* number of the latest report */
    uint64_t acknowledged; /* as the coordinator said */
    int heartbeats_answered, releases;
    const char *version; /* another one than this fsdpd's; NULL: the same */
};
void fake_attach(struct world *world, struct fake *fake, const char *id, int64_t pid);
/* With a device of this name on the host "host". */
void fake_attach_device(struct world *world, struct fake *fake, const char *id, int64_t pid,
                        const char *device, bool shares_device);
/* The same worker on a new link: with its attempt, or the end of it (`running` false), and the
 * orders that it has had, of which it still knows `tail`. */
void fake_attach_again(struct fake *fake, int64_t pid, bool running, uint64_t orders,
                       Fsdpd__V1__Order **tail, size_t tail_count);
void fake_detach(struct fake *fake);
void fake_deinit(struct fake *fake);
void fake_heartbeat(struct fake *fake, uint64_t step);
void fake_started(struct fake *fake, uint64_t hash);
void fake_resumed(struct fake *fake, uint64_t hash, uint64_t step);
void fake_metrics(struct fake *fake, uint64_t step, double loss);
/* The same at loss 0.5, with the time of an op in that step. */
void fake_op_times(struct fake *fake, uint64_t step);
/* The same, after `thinned` ones that were dropped. */
void fake_thinned(struct fake *fake, uint64_t step, uint64_t thinned);
void fake_validation(struct fake *fake, uint64_t step, double loss);
void fake_epoch(struct fake *fake, uint32_t epoch); /* of a version that says no step */
void fake_epoch_at(struct fake *fake, uint32_t epoch, uint64_t step);
void fake_finished(struct fake *fake, enum status_code code, const char *message);
/* With a reason other than the code's name. */
void fake_ended(struct fake *fake, enum status_code code, const char *reason, const char *message);
/* A report of rank 0; `removed`: one step, or NULL. */
void fake_checkpoint(struct fake *fake, uint64_t number, uint64_t step, enum status_code code,
                     const char *message, const uint64_t *removed);
void fake_pull_failed(struct fake *fake, uint64_t pull, const char *message);
void fake_trace(struct fake *fake, uint64_t trace, Fsdpd__V1__TraceChunk *chunk,
                enum status_code code, const char *message);

/* The answer to the latest order of another policy. */
void fake_wrap(struct fake *fake, uint64_t step, enum status_code code, const char *message);

/* Two workers, attached, and a job of both that is RUNNING; its id is the caller's. The coordinator
 * runs already. */
char *world_start_running(struct world *world, struct fake fakes[2]);
/* The end of such a world: of the workers that are attached, of the id, and of the world. */
void world_deinit_running(struct world *world, struct fake *fakes, int count, char *id);
void world_check_reason(struct world *world, const char *id, enum job_state state, const char *code,
                        const char *words);
/* That the job's last entry of history with this reason is by the user who submitted it; by nobody
 * without `user`. */
void world_check_by(struct world *world, const char *id, const char *code, bool user);
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
