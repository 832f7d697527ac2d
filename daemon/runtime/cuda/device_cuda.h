/*
 * A CUDA device inside: what the files of this module share. Lanes are streams, events are events,
 * an arena is one allocation. Nothing here waits for the device but lane_wait, and staging memory
 * that is full.
 *
 * Threads: one enqueues on a device's lanes and waits for them; memory may be taken and given back
 * from any.
 */
#ifndef FSDPD_RUNTIME_CUDA_DEVICE_CUDA_H
#define FSDPD_RUNTIME_CUDA_DEVICE_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda.h"
#include "runtime/device_table.h"

struct cuda_matmul_choice;
struct cuda_attention_plan;
struct cuda_progress;
struct cuda_recording;

/* Of what a device says of the ops that it prepared. */
enum { CUDA_NOTES_MAX = 16, CUDA_NOTE_BYTES = 256 };

struct cuda_device {
    struct device base;
    int number, processors;
    uint64_t memory;      /* all that it has, in bytes */
    bool tf32;            /* products of f32 may be rounded to tf32 */
    bool wait_after_each; /* FSDPD_CUDA_SYNC: errors are found where they are made */
    bool graphs;          /* unless FSDPD_CUDA_GRAPHS is off: steps are recorded */
    cublasLtHandle_t blas;
    struct cuda_matmul_choice *choices; /* algorithms chosen so far */
    void *dnn;                          /* cudnnHandle_t; NULL before it is wanted */
    struct cuda_attention_plan *attention_plans;
    char notes[CUDA_NOTES_MAX][CUDA_NOTE_BYTES];
    int note_count;
    struct cuda_recording *recordings; /* all there are; guarded by base.lock */
};

static inline struct cuda_device *cuda_device(const struct device *device)
{
    return (struct cuda_device *)device;
}

/* A part of pinned memory that a copy uses until its event has fired. */
enum { STAGING_PARTS = 2, STAGING_BYTES = 4 << 20 };
/* All pinned memory of a lane: those, one for copies to the host, and where it tells its progress. */
enum { PROGRESS_BYTES = 64, LANE_HOST_BYTES = (STAGING_PARTS + 1) * STAGING_BYTES + PROGRESS_BYTES };

/* A copy to host memory that waits in pinned memory for the lane to be waited for. */
struct cuda_arrival {
    void *to;
    const char *from;
    size_t bytes;
};

enum { ARRIVALS_MAX = 16 };

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
    double *norm_parts; /* CUDA_NORM_PARTS, of the device */
    cudaEvent_t began, ended;
    bool busy; /* `began` was recorded since the last wait */
    int64_t busy_ns;
    status_t (*poll)(void *user); /* of a communicator on this lane: asked while it is waited for */
    void *poll_user;
    struct cuda_progress *progress;   /* of its collectives */
    struct cuda_recording *recording; /* whose pass is on; NULL: what is enqueued is done */
    bool replayed;    /* a recording was, which notes itself when the lane began and ended */
    status_t failure; /* the first of what returns nothing (record, wait_event); all that follows
                       * fails with it, as the order of the lane's work is lost */
    pthread_mutex_t host_lock; /* guards the next one */
    status_t host_failure; /* the first since the last wait, of functions of the host that are part
                            * of the lane's work */
};

static inline struct cuda_lane *cuda_lane(const struct lane_queue *lane)
{
    return (struct cuda_lane *)lane;
}

struct cuda_event {
    struct event base;
    cudaEvent_t event;
    cudaError_t error; /* of its last record: nobody can wait for that */
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

/* Says something of the device's ops to whoever plans or trains with it; once for the same text. */
void cuda_note(struct cuda_device *device, const char *format, ...) FSDPD_PRINTF(2, 3);

/* This thread's calls are for this device. */
status_t cuda_use(const struct cuda_device *device) FSDPD_MUST_USE;
/* Makes memory of the device zeros, now. */
status_t cuda_clear(void *memory, uint64_t bytes) FSDPD_MUST_USE;
/* registration_nccl.c; see device_table.h */
status_t cuda_map_registrable(struct device *device, uint64_t bytes, void **memory) FSDPD_MUST_USE;
void cuda_unmap_registrable(struct device *device, void *memory, uint64_t bytes);
status_t cuda_check_registrable(const struct device *device) FSDPD_MUST_USE;

struct cuda_launch cuda_launch_of(const struct cuda_lane *lane);
enum { SYNC_TIMEOUT_MS = 600000 };
/* After something was enqueued: the lane is busy, and its errors found now if so asked (the wait
 * has the communicator's deadline, or that of SYNC_TIMEOUT_MS). `error` is that of the launch.
 * Names the lane's label. */
status_t cuda_enqueued(struct cuda_lane *lane, int error, const char *what) FSDPD_MUST_USE;
/* Before something is enqueued. */
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
status_t cuda_event_fired(struct event *event, bool *fired) FSDPD_MUST_USE;
/* Between the device and pinned memory of device_allocate_host. */
status_t cuda_lane_transfer(struct lane_queue *lane, void *to, const void *from,
                            uint64_t bytes) FSDPD_MUST_USE;
/* Whether the address lies in memory of the device that was handed out. */
bool cuda_is_of_device(struct device *device, const void *address);
/* Of a lane that is busy (cuda_enqueue). The first has taken the caller's bytes when it returns;
 * the second's arrive when the lane is waited for. */
status_t cuda_copy_in(struct cuda_lane *lane, char *to, const char *from,
                      uint64_t bytes) FSDPD_MUST_USE;
status_t cuda_copy_out(struct cuda_lane *lane, char *to, const char *from,
                       uint64_t bytes) FSDPD_MUST_USE;
/* From a function of the host that the lane runs, on the driver's thread: the next wait reports it
 * under `label` (NULL: none), and takes `failure` in any case. */
void cuda_lane_fail(struct cuda_lane *lane, const char *label, status_t failure);
status_t cuda_lane_zero(struct lane_queue *lane, void *memory, uint64_t bytes) FSDPD_MUST_USE;
status_t cuda_lane_stamp(struct lane_queue *lane, int64_t *ns) FSDPD_MUST_USE;
status_t cuda_lane_wait(struct lane_queue *lane, int64_t timeout_ms) FSDPD_MUST_USE;
int64_t cuda_lane_busy_ns(const struct lane_queue *lane);

/*
 * recording.c. In a pass of a recording, whoever enqueues on a lane checks its arguments and hands
 * over what the recording is to take from the call; then, unless cuda_does_enqueue, it is done.
 */
status_t cuda_recording_new(struct device *device, struct lane_queue *const *lanes, int count,
                            struct recording **recording) FSDPD_MUST_USE;
void cuda_recording_free(struct recording *recording);
status_t cuda_recording_begin(struct recording *recording, enum recording_pass pass) FSDPD_MUST_USE;
status_t cuda_recording_end(struct recording *recording, status_t walked) FSDPD_MUST_USE;
/* Outside of passes, and while a graph is captured. */
bool cuda_does_enqueue(const struct cuda_lane *lane);
/* Where a kernel that is captured will find the value: for cuda_launch.live. NULL outside of
 * passes. */
status_t cuda_take_value(struct cuda_lane *lane, const void *value, size_t bytes,
                         const void **live) FSDPD_MUST_USE;
/* The same of the step, which all ops have in common. */
const void *cuda_take_step(struct cuda_lane *lane, uint64_t step);
/* In a pass: a copy from host memory. */
status_t cuda_take_copy(struct cuda_lane *lane, char *to, const char *from,
                        uint64_t bytes) FSDPD_MUST_USE;
/* The recording has collectives of that group... */
void cuda_record_group(struct cuda_lane *lane, const void *group);
/* ...whose recordings are not to be replayed any more, and refer to it no longer than what was set
 * off already takes. */
void cuda_drop_recordings(struct cuda_device *device, const void *group);

/* step_cuda.c */
status_t cuda_lane_optimize(struct lane_queue *lane, const struct optimizer_step *step, size_t n,
                            float *param, const float *grad, float *const *slots,
                            const float *gate) FSDPD_MUST_USE;
status_t cuda_lane_add(struct lane_queue *lane, size_t n, float *to,
                       const float *from) FSDPD_MUST_USE;
status_t cuda_lane_norm(struct lane_queue *lane, enum norm_kind kind, size_t n, const float *values,
                        double *partial) FSDPD_MUST_USE;
status_t cuda_lane_gate(struct lane_queue *lane, const struct gate_args *args,
                        const double *partials, int count, float *stats) FSDPD_MUST_USE;

/* ops_cuda.c */
status_t cuda_prepare(struct device *device, const struct op_desc *desc, void **prepared,
                      uint64_t *workspace_bytes) FSDPD_MUST_USE;
void cuda_unprepare(void *prepared);
status_t cuda_lane_launch(struct lane_queue *lane, struct device_graph *graph, int op,
                          const struct kernel_call *call) FSDPD_MUST_USE;

/* linear_cuda.c, head_cuda.c, conv_cudnn.c: ops that a library has a part in. */
status_t cuda_linear_prepare(struct cuda_device *device, const struct op_desc *desc,
                             struct cuda_prepared **prepared) FSDPD_MUST_USE;
status_t cuda_head_prepare(struct cuda_device *device, const struct op_desc *desc,
                           struct cuda_prepared **prepared) FSDPD_MUST_USE;
/* UNIMPLEMENTED for what cuDNN does not take. */
status_t cuda_conv_prepare(struct cuda_device *device, const struct op_desc *desc,
                           struct cuda_prepared **prepared) FSDPD_MUST_USE;
status_t cuda_dnn_open(struct cuda_device *device) FSDPD_MUST_USE; /* its `dnn`, once */
void cuda_dnn_close(void *dnn);                                    /* accepts NULL */

/* attention_cudnn.c. UNIMPLEMENTED, with the reason, for what cuDNN does not take. */
status_t cuda_attention_prepare(struct cuda_device *device, const struct op_desc *desc,
                                struct cuda_prepared **prepared) FSDPD_MUST_USE;
void cuda_attention_forget(struct cuda_device *device);

/*
 * progress.c: where the lane is with its collectives. Each is enqueued between a begin and an end,
 * and named, also where a graph that has it is replayed.
 */
status_t cuda_progress_open(struct cuda_lane *lane) FSDPD_MUST_USE;
void cuda_progress_close(struct cuda_lane *lane);
status_t cuda_progress_begin(struct cuda_lane *lane) FSDPD_MUST_USE;
status_t cuda_progress_end(struct cuda_lane *lane) FSDPD_MUST_USE;
/* `kind` and the lane's label must live as long as the work. */
void cuda_progress_name(struct cuda_lane *lane, const char *kind, uint64_t sequence);
/* For how long a collective has been seen at it that is at work or waits for its peers; 0 if the
 * lane is at something else. */
int64_t cuda_progress_waits_ns(struct cuda_lane *lane);
/* What the last look found it at. Caller frees. */
char *cuda_progress_describe(const struct cuda_lane *lane);

/* comm_nccl.c */
struct comm;
struct rendezvous;
status_t comm_nccl_new(struct device *device, int rank, int world, const char *prefix,
                       const struct rendezvous *store, int64_t timeout_ms,
                       struct comm **comm) FSDPD_MUST_USE;

/*
 * comm_staged.c: a group of devices that talk through host memory, for those that NCCL refuses.
 * `host` is a group of the same ranks that moves host memory; it becomes the new one's, also after
 * an error.
 */
status_t comm_staged_new(struct device *device, struct comm *host,
                         struct comm **comm) FSDPD_MUST_USE;

/* Kernels are built for compute capability 8.0 and later. */
enum { CUDA_LEAST_MAJOR = 8 };
#define CUDA_LEAST_TEXT "compute capability 8.0 or later is needed"

/* device_cuda.c; wraps no name. UNIMPLEMENTED for a device that is too old. */
status_t device_cuda_open(int number, struct device **device) FSDPD_MUST_USE;

#endif
