/*
 * Internals of a CUDA device, shared by the files of this module. Lanes are streams, events are
 * events, an arena is one allocation. Only lane_wait waits for the device, and a copy when the
 * staging memory is full.
 *
 * Threads: one enqueues on a device's lanes and waits for them; any may allocate and release
 * memory.
 */
#ifndef FSDPD_RUNTIME_CUDA_DEVICE_CUDA_H
#define FSDPD_RUNTIME_CUDA_DEVICE_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda.h"
#include "runtime/device_table.h"

struct cuda_matmul_choice;
struct cuda_matrix;
struct cuda_planned;
struct cuda_progress;
struct cuda_recording;

/* Of a host, of which it is known how much was ever free. */
enum { CUDA_DEVICES_MAX = 64 };

/* For the device's notes about the ops that it prepared. */
enum { CUDA_NOTES_MAX = 32, CUDA_NOTE_BYTES = 256 };

struct cuda_device {
    struct device base;
    int number, processors;
    uint64_t memory;      /* all that it has, in bytes */
    bool tf32;            /* products of f32 may be rounded to tf32 */
    bool wait_after_each; /* FSDPD_CUDA_SYNC: report errors at the call that caused them */
    bool graphs;          /* unless FSDPD_CUDA_GRAPHS is off: steps are recorded */
    bool ahead;           /* unless FSDPD_CUDA_AHEAD is off: replays deliver before they end */
    bool branches;        /* FSDPD_CUDA_BRANCHES: ops run beside each other */
    cublasLtHandle_t blas;
    struct cuda_matmul_choice *choices; /* algorithms chosen so far */
    struct cuda_matrix *matrices;       /* sizes that are prepared to be made orthogonal */
    void *dnn;                          /* cudnnHandle_t; NULL before it is wanted */
    struct cuda_planned *planned;       /* by cuDNN */
    char notes[CUDA_NOTES_MAX][CUDA_NOTE_BYTES];
    int note_count;
    struct cuda_recording *recordings; /* all there are; guarded by base.lock */
    cudaEvent_t epoch;                 /* of the stamps on all lanes; NULL: there were none */
    int64_t epoch_ns;
    int stamps_pending;
};

static inline struct cuda_device *cuda_device(const struct device *device)
{
    return (struct cuda_device *)device;
}

/* A part of pinned memory, used by a copy until its event has fired. */
enum { STAGING_PARTS = 2, STAGING_BYTES = 4 << 20 };
/* All pinned memory of a lane: those, one for copies to the host, and one for its progress. */
enum {
    PROGRESS_BYTES = 64,
    LANE_HOST_BYTES = (STAGING_PARTS + 1) * STAGING_BYTES + PROGRESS_BYTES
};

/* A copy to host memory, held in pinned memory until the lane is waited for. */
struct cuda_arrival {
    void *to;
    const char *from;
    size_t bytes;
};

enum { ARRIVALS_MAX = 16 };

/* When the lane's work began and ended. A graph records the events that its nodes had when it was
 * launched. */
struct cuda_clock {
    cudaEvent_t began, ended;
};

/* Where the time at which the event fires is to be stored, when the lane is waited for. */
struct cuda_stamp {
    cudaEvent_t event;
    int64_t *ns;
};

struct cuda_lane {
    struct lane_queue base;
    cudaStream_t stream;
    char *staging; /* LANE_HOST_BYTES, pinned: STAGING_PARTS for copies to the device, then one for
                    * those from it */
    cudaEvent_t staging_free[STAGING_PARTS];
    int staging_next;
    struct cuda_arrival arrivals[ARRIVALS_MAX];
    int arrival_count;
    size_t arrival_bytes;
    double *norm_parts; /* CUDA_NORM_PARTS, and a matrix's sum of squares; of the device */
    cudaStream_t side;  /* for ops that run beside the next one; NULL: none does */
    cudaEvent_t forked, joined;
    int beside; /* the op there that the lane has not waited for; -1: none */
    struct cuda_clock clocks[2]; /* of the replay that runs, and of the one behind it */
    int clock;                   /* of what was enqueued last */
    bool earlier; /* the other one has the times of a replay that are not in busy_ns yet */
    bool busy;    /* the clock's `began` was recorded since the last wait */
    int64_t busy_ns;
    struct cuda_stamp *stamps; /* `stamp_events` have an event, `stamp_count` are pending */
    int stamp_count, stamp_events, stamp_capacity;
    status_t (*poll)(void *user); /* of a communicator on this lane: polled while waiting for it */
    void *poll_user;
    struct cuda_progress *progress;   /* of its collectives */
    struct cuda_recording *recording; /* whose pass is active; NULL: enqueued work runs */
    bool replayed;    /* a replay was launched since the last wait; it notes itself when the lane
                       * began and ended */
    bool delivered;   /* what was replayed has delivered: another replay may follow it */
    status_t failure; /* the first error of a function without a result (record, wait_event); all
                       * later work fails with it, because the lane's order is lost */
    pthread_mutex_t host_lock; /* guards the next one */
    status_t host_failure;     /* the first since the last wait, from host functions in the lane's
                                * work */
};

static inline struct cuda_lane *cuda_lane(const struct lane_queue *lane)
{
    return (struct cuda_lane *)lane;
}

struct cuda_event {
    struct event base;
    cudaEvent_t event;
    cudaError_t error; /* of its last record: waiting for it is impossible */
};

/* An op, prepared. Larger structs begin with it. */
struct cuda_prepared {
    status_t (*run)(struct cuda_prepared *prepared, struct cuda_lane *lane,
                    const struct kernel_call *call);
    void (*release)(struct cuda_prepared *prepared); /* of what it holds, not of itself */
    uint64_t workspace_bytes;
    struct cuda_op op; /* its description, and our kernel if that runs it */
};

/* An error of the CUDA runtime as a status that names the call; NULL for success. */
status_t cuda_status(cudaError_t error, const char *call) FSDPD_MUST_USE;
#define TRY_CUDA(call) TRY(cuda_status(call, #call))

/* Adds a note about the device's ops for its user; the same text only once. */
void cuda_note(struct cuda_device *device, const char *format, ...) FSDPD_PRINTF(2, 3);

/* Whether the environment's variable has that value: its choices are for comparisons
 * (docs/fsdpd.md). */
bool cuda_is_switched(const char *variable, const char *value);

/* Of the process: shared while a capture is open, exclusive for what may synchronize the device
 * (opening its libraries), which would invalidate the capture. */
extern pthread_rwlock_t cuda_captures;

/* Makes this the current device of the calling thread. */
status_t cuda_use(const struct cuda_device *device) FSDPD_MUST_USE;
/* Memory of the device, or NULL. After a loss of the device the memory stays: the driver might wait
 * without end for work that uses it. */
void cuda_release(void *memory);
/* Bytes that are free now. */
uint64_t cuda_available(const struct device *device);
/* Zeroes device memory, synchronously. */
status_t cuda_clear(void *memory, uint64_t bytes) FSDPD_MUST_USE;
/* registration_nccl.c; see device_table.h */
status_t cuda_map_registrable(struct device *device, uint64_t bytes, void **memory) FSDPD_MUST_USE;
void cuda_unmap_registrable(struct device *device, void *memory, uint64_t bytes);
status_t cuda_check_registrable(const struct device *device) FSDPD_MUST_USE;

struct cuda_launch cuda_launch_of(const struct cuda_lane *lane);
/* An error with the lane's label, if it has one; NULL for NULL. */
status_t cuda_named(const struct cuda_lane *lane, status_t status) FSDPD_MUST_USE;
/* Waits for what runs beside the lane. Everything that enqueues or waits begins with it, except for
 * the op that runs beside it. */
status_t cuda_lane_join(struct cuda_lane *lane) FSDPD_MUST_USE;
enum { SYNC_TIMEOUT_MS = 600000 };
/* Call after enqueueing work: marks the lane busy, and with FSDPD_CUDA_SYNC waits for errors (with
 * the communicator's deadline, or SYNC_TIMEOUT_MS). `error` is that of the launch. Errors name the
 * lane's label. */
status_t cuda_enqueued(struct cuda_lane *lane, int error, const char *what) FSDPD_MUST_USE;
/* Call before enqueueing work. */
status_t cuda_enqueue(struct cuda_lane *lane) FSDPD_MUST_USE;
/* The event fires, with the time, when what was enqueued so far is done. */
status_t cuda_record_clock(struct cuda_lane *lane, cudaEvent_t clock) FSDPD_MUST_USE;

/* lane_cuda.c */
status_t cuda_lane_open(struct device *device, enum lane kind,
                        struct lane_queue **lane) FSDPD_MUST_USE;
void cuda_lane_close(struct lane_queue *lane);
status_t cuda_event_new(struct device *device, struct event **event) FSDPD_MUST_USE;
void cuda_event_free(struct event *event);
void cuda_lane_record(struct lane_queue *lane, struct event *event);
void cuda_lane_wait_event(struct lane_queue *lane, struct event *event);
status_t cuda_lane_copy(struct lane_queue *lane, void *to, const void *from,
                        uint64_t bytes) FSDPD_MUST_USE;
/* See lane_deliver; without FSDPD_CUDA_AHEAD a copy like any other. */
status_t cuda_lane_deliver(struct lane_queue *lane, void *to, const void *from,
                           uint64_t bytes) FSDPD_MUST_USE;
status_t cuda_event_fired(struct event *event, bool *fired) FSDPD_MUST_USE;
/* Between the device and pinned memory of device_allocate_host. */
status_t cuda_lane_transfer(struct lane_queue *lane, void *to, const void *from,
                            uint64_t bytes) FSDPD_MUST_USE;
/* Whether the address lies in memory allocated from the device. */
bool cuda_is_of_device(struct device *device, const void *address);
/* For a busy lane (cuda_enqueue). The first has copied the caller's bytes when it returns; the
 * second's arrive when the lane is waited for. */
status_t cuda_copy_in(struct cuda_lane *lane, char *to, const char *from,
                      uint64_t bytes) FSDPD_MUST_USE;
status_t cuda_copy_out(struct cuda_lane *lane, char *to, const char *from,
                       uint64_t bytes) FSDPD_MUST_USE;
/* For host functions run by the lane, on the driver's thread: the next wait reports it under
 * `label` (NULL: none), and takes ownership of `failure` in any case. */
void cuda_lane_fail(struct cuda_lane *lane, const char *label, status_t failure);
status_t cuda_lane_zero(struct lane_queue *lane, void *memory, uint64_t bytes) FSDPD_MUST_USE;
status_t cuda_lane_stamp(struct lane_queue *lane, int64_t *ns) FSDPD_MUST_USE;
status_t cuda_lane_wait(struct lane_queue *lane, int64_t timeout_ms) FSDPD_MUST_USE;
/* Between two questions whether the device is done; `polls`: how many there were. */
void cuda_pause(int polls);
/* The lane's last replay has delivered, so those before it have ended. `sends`: it is the lane that
 * delivers, and has copied to the host. */
void cuda_lane_delivered(struct cuda_lane *lane, bool sends);
int64_t cuda_lane_busy_ns(const struct lane_queue *lane);

/*
 * recording.c. During a recording's pass, code that enqueues on a lane checks its arguments and
 * passes the values that the recording takes from the call; it enqueues nothing unless
 * cuda_does_enqueue.
 */
status_t cuda_recording_new(struct device *device, struct lane_queue *const *lanes, int count,
                            struct recording **recording) FSDPD_MUST_USE;
void cuda_recording_free(struct recording *recording);
status_t cuda_recording_begin(struct recording *recording, enum recording_pass pass) FSDPD_MUST_USE;
status_t cuda_recording_end(struct recording *recording, status_t walked) FSDPD_MUST_USE;
status_t cuda_recording_wait(struct recording *recording, int64_t timeout_ms,
                             bool *delivered) FSDPD_MUST_USE;
/* Outside of passes, and while a graph is captured. */
bool cuda_does_enqueue(const struct cuda_lane *lane);
/* Where a captured kernel will find the value: for cuda_launch.live. NULL outside of passes. */
status_t cuda_take_value(struct cuda_lane *lane, const void *value, size_t bytes,
                         const void **live) FSDPD_MUST_USE;
/* The same for struct cuda_live, which all ops share. */
const struct cuda_live *cuda_take_live(struct cuda_lane *lane, const struct kernel_call *call);
/* In a pass: a copy from host memory. */
status_t cuda_take_copy(struct cuda_lane *lane, char *to, const char *from,
                        uint64_t bytes) FSDPD_MUST_USE;
/* In a pass: a copy to host memory; none may follow what the recording delivers. */
status_t cuda_check_arrival(const struct cuda_lane *lane) FSDPD_MUST_USE;
/* In a pass: the recording delivers what the lane has copied to host memory so far. */
status_t cuda_take_delivery(struct cuda_lane *lane) FSDPD_MUST_USE;
/* Whether a replay with collectives of that group may still run. */
bool cuda_is_replaying(struct cuda_device *device, const void *group);
/* The recording contains collectives of that group... */
void cuda_record_group(struct cuda_lane *lane, const void *group);
/* ...whose recordings must not be replayed any more; they refer to the group only until work
 * already started has finished. */
void cuda_drop_recordings(struct cuda_device *device, const void *group);

/* step_cuda.c */
status_t cuda_lane_optimize(struct lane_queue *lane, const struct optimizer_step *step, size_t n,
                            float *param, uint16_t *rounded, const float *grad, float *const *slots,
                            const float *stats, bool gated) FSDPD_MUST_USE;
status_t cuda_lane_round(struct lane_queue *lane, size_t n, uint16_t *to,
                         const float *from) FSDPD_MUST_USE;
status_t cuda_lane_add(struct lane_queue *lane, size_t n, float *to,
                       const float *from) FSDPD_MUST_USE;
status_t cuda_lane_norm(struct lane_queue *lane, enum norm_kind kind, size_t n, const float *values,
                        double *partial) FSDPD_MUST_USE;
status_t cuda_lane_gate(struct lane_queue *lane, const struct gate_args *args,
                        const double *partials, int count, float *stats) FSDPD_MUST_USE;

/* A step's statistics as kernels take them; `gated` as for lane_optimize. */
struct cuda_gate_in cuda_gate_of(const float *stats, bool gated);

/* matrix_cuda.c */
enum { CUDA_MATRIX_ALIGNMENT = 256 /* of the parts of its scratch memory, of which it has four */ };
status_t cuda_lane_matrices(struct lane_queue *lane, const struct matrix_work *work) FSDPD_MUST_USE;
status_t cuda_prepare_matrix(struct device *device, int64_t rows, int64_t columns) FSDPD_MUST_USE;
void cuda_matrices_forget(struct cuda_device *device);

/* factor_cuda.c */
status_t cuda_lane_factors(struct lane_queue *lane, const struct factor_work *work) FSDPD_MUST_USE;

/* base_cuda.c */
status_t cuda_lane_unpack(struct lane_queue *lane, const struct base_work *work) FSDPD_MUST_USE;

/* ops_cuda.c */
status_t cuda_prepare(struct device *device, const struct op_desc *desc, void **prepared,
                      uint64_t *workspace_bytes) FSDPD_MUST_USE;
void cuda_unprepare(void *prepared);
status_t cuda_lane_launch(struct lane_queue *lane, struct device_graph *graph, int op,
                          const struct kernel_call *call) FSDPD_MUST_USE;
bool cuda_runs_beside(const struct device *device, const struct op_desc *desc,
                      const struct op_desc *next);
/* By our own kernel. */
status_t cuda_prepare_own(const struct op_desc *desc,
                          struct cuda_prepared **prepared) FSDPD_MUST_USE;

/* What cuDNN computes: a device's plan for all ops of the same description. */
struct cuda_planned {
    struct op_desc desc;
    char *refusal;            /* by cuDNN, or because its results differ; NULL: none */
    enum status_code refused; /* why */
    bool compared;
    struct cuda_planned *next;
};

/* first_use.c: compares what cuDNN has prepared with our own kernel, before a run, once per plan.
 * UNIMPLEMENTED, with the difference, if they differ. */
status_t cuda_first_use(struct cuda_device *device, struct cuda_planned *planned,
                        struct cuda_prepared *prepared) FSDPD_MUST_USE;

/* linear_cuda.c, head_cuda.c, dnn_ops.c: ops that use a library. What they have prepared, the
 * caller releases, even after an error; NULL: nothing. */
status_t cuda_linear_prepare(struct cuda_device *device, const struct op_desc *desc,
                             struct cuda_prepared **prepared) FSDPD_MUST_USE;
status_t cuda_head_prepare(struct cuda_device *device, const struct op_desc *desc,
                           struct cuda_prepared **prepared) FSDPD_MUST_USE;
/* Rows of a block of the head's logits, of which at most `most` may exist at once: as few blocks as
 * that allows, of equal sizes; unless others, of at least half as many rows, need fewer rounds of
 * all multiprocessors for dx, of `columns` columns (0: there is no dx). */
int64_t cuda_head_rows(int64_t rows, int64_t columns, int64_t most, int processors);
/* UNIMPLEMENTED, with the reason, for ops that cuDNN does not support. */
status_t cuda_dnn_prepare(struct cuda_device *device, const struct op_desc *desc,
                          struct cuda_prepared **prepared) FSDPD_MUST_USE;
void cuda_planned_forget(struct cuda_device *device);

/*
 * progress.c: a lane's progress through its collectives, and its deliveries. A collective is
 * enqueued between a begin and an end, and named, also when a graph that contains it is replayed.
 */
status_t cuda_progress_open(struct cuda_lane *lane) FSDPD_MUST_USE;
void cuda_progress_close(struct cuda_lane *lane);
/* Counts what begins, or what is enqueued in front of it: a delivery, in a graph... */
status_t cuda_progress_count(struct cuda_lane *lane, enum cuda_progress_kind kind) FSDPD_MUST_USE;
/* ...of which one more launch will count it... */
void cuda_progress_expect(struct cuda_lane *lane);
/* ...and whether the last one has. */
bool cuda_progress_has_delivered(const struct cuda_lane *lane);
/* `kind` and the lane's label must live as long as the work. */
void cuda_progress_name(struct cuda_lane *lane, const char *kind, uint64_t sequence);
/* How long the current collective has been running or waiting for its peers; 0 if the lane is doing
 * something else. */
int64_t cuda_progress_waits_ns(struct cuda_lane *lane);
/* The collective found by the last check. Caller frees. */
char *cuda_progress_describe(const struct cuda_lane *lane);
/* The collective that the lane is in, from any thread; of other work nothing is known. */
struct lane_now cuda_progress_look(struct lane_queue *lane);

/* comm_nccl.c */
struct comm;
struct rendezvous;
status_t comm_nccl_new(struct device *device, int rank, int world, const char *prefix,
                       const struct rendezvous *store, int64_t timeout_ms, struct comm **kept,
                       struct comm **comm) FSDPD_MUST_USE;

/*
 * comm_staged.c: a group of devices that communicate through host memory, where NCCL refuses.
 * `host` is a group of the same ranks that moves host memory; the new group takes ownership, even
 * after an error.
 */
status_t comm_staged_new(struct device *device, struct comm *host,
                         struct comm **comm) FSDPD_MUST_USE;

/* Kernels are built for compute capability 8.0 and later. */
enum { CUDA_LEAST_MAJOR = 8 };
#define CUDA_LEAST_TEXT "compute capability 8.0 or later is needed"

/* device_cuda.c; wraps no name. UNIMPLEMENTED for a device that is too old. */
status_t device_cuda_open(int number, struct device **device) FSDPD_MUST_USE;

#endif
