/*
 * A coordinator that the test controls, for tests of the worker: common/rpc's server on the test's
 * own loop, the whole worker (worker_main) on a separate thread. Every wait has a deadline. The
 * model is a large linear layer over generated digits, so that a state_dict is larger than the
 * transport accepts without a reader.
 */
#ifndef FSDPD_TEST_WORKER_WORLD_H
#define FSDPD_TEST_WORKER_WORLD_H

#include <check.h>
#include <pthread.h>
#include <uv.h>

#include "base/mem.h"
#include "fsdpd/v1/worker.pb-c.h"
#include "rpc/server.h"
#include "spec/spec.h"
#include "worker/settings.h"

typedef Fsdpd__V1__WorkerMessage worker_message;
typedef Fsdpd__V1__CoordinatorMessage coordinator_message;
typedef Fsdpd__V1__AttemptEvent attempt_event;
#define WORKER(name) FSDPD__V1__WORKER_MESSAGE__MESSAGE_##name
#define COORDINATOR(name) FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_##name
#define EVENT(name) FSDPD__V1__ATTEMPT_EVENT__EVENT_##name

enum { STATE_BYTES = 4 * (784 * 2600 + 2600 + 2600 * 10 + 10) };

struct upload {
    struct rpc_call *call;
    uint64_t pull, total, step, bytes;
    struct buf start; /* at least the safetensors header */
    bool paused, ended, closed;
};

struct world {
    uv_loop_t loop;
    uv_timer_t waker; /* so that waits check their condition often */
    struct rpc_runtime *runtime;
    struct rpc_server *server;
    char *address;
    bool server_closed, runtime_closed;
    pthread_t thread;
    struct worker_options options;
    int exit_code;
    _Atomic bool exited;

    /* records */
    struct rpc_call *attached;
    int hellos;
    worker_message *hello, *plan, *calibration, *heartbeat, *diagnosis; /* the latest */
    int calibrations, diagnoses;
    int heartbeats, plans, started, metrics, epochs, finishes, pulls_failed, store_sets, store_gets;
    int leaves, finishes_before_leave;
    int timed;     /* metrics with times of ops */
    uint64_t step; /* of the latest metrics or heartbeat */
    worker_message *finished, *pull_failed;
    int uploads;
    bool odd_line;
    bool log_end;             /* the attempt's last line came */
    struct upload upload;     /* the latest */
    struct rpc_call *waiting; /* the latest StoreGet; never answered */
    uint32_t sharers; /* of assignments */
    bool pause_uploads;
    uint64_t first_report, last_report; /* of this stream; 0: none yet */
    int gaps;                           /* number of reports out of order */
    bool refuse;                        /* hellos */
};

#define WAIT(world, condition)                                                                     \
    do {                                                                                           \
        uint64_t until_ = uv_hrtime() + UINT64_C(60000000000);                                     \
        while (!(condition)) {                                                                     \
            ck_assert_msg(uv_hrtime() < until_, "waited for: %s", #condition);                     \
            uv_run(&(world)->loop, UV_RUN_ONCE);                                                   \
        }                                                                                          \
    } while (0)

/* The data, the model and the socket's directory, for a whole test case: an unchecked fixture. */
void draw_digits(void);
void remove_digits(void);

/* A server, without and with a worker that has sent hello. `world_end`: the worker has left, or
 * gets the order to; its exit code must be this one. */
void world_prepare(struct world *world, bool supervised);
void world_serve(struct world *world);
void world_run(struct world *world);
void world_init(struct world *world, bool supervised);
void world_end(struct world *world, int exit_code);
/* For anything that closes with a callback: sets a bool. */
void on_done(void *user);

/* The coordinator's messages. `world_train`: a long run of one rank, in its first steps. */
void welcome(struct rpc_call *call, uint32_t heartbeat_ms);
void world_send(struct world *world, const coordinator_message *message);
void world_drain(struct world *world);
Fsdpd__V1__JobSpec *make_spec(const char *steps, const char *save_model);
void world_order_plan(struct world *world, Fsdpd__V1__JobSpec *spec, uint64_t request);
void world_assign(struct world *world, Fsdpd__V1__JobSpec *spec, uint32_t rank, uint32_t ranks);
void world_order(struct world *world, const char *job, uint64_t sequence,
                 Fsdpd__V1__CancelOrder *cancel, Fsdpd__V1__PullOrder *pull);
void world_cancel(struct world *world, uint64_t sequence, bool at_once);
void world_pull(struct world *world, uint64_t sequence, uint64_t pull);
void world_acknowledge(struct world *world, uint64_t report);
void world_release(struct world *world);
void world_train(struct world *world);

/* Cuts the link and waits for the next hello, which must name the running attempt. */
const Fsdpd__V1__HeldAttempt *world_cut(struct world *world);

void expect_finished(struct world *world, enum status_code code, const char *words);
void expect_upload(struct world *world, uint64_t pull);

#endif
