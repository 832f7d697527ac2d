/*
 * A device: memory, lanes, events, copies, and prepared ops. One table of functions per kind of
 * device (cpu, null; cuda comes as a loadable module), so that the executor knows none of them.
 *
 * A lane is one in-order queue of work: a thread on the cpu, a stream on cuda. Work is enqueued and
 * ordered with events; enqueueing does not wait for the work (only for room, if the lane's bounded
 * queue is full). An error on a lane is sticky: what was queued after it is skipped, events after
 * it still fire, and lane_wait reports the first error. One thread at a time enqueues on a lane.
 */
#ifndef FSDPD_RUNTIME_DEVICE_H
#define FSDPD_RUNTIME_DEVICE_H

#include <stdint.h>

#include "fsdp/plan.h"

struct device;
struct lane_queue; /* an open lane */
struct event;
struct device_graph; /* a graph lowered by a device: layouts chosen, kernels prepared */

/* Parameters with settings of their own. */
struct optimizer_group {
    const char *match; /* a pattern of their names, for whoever sorts parameters */
    double weight_decay;
    double lr_scale; /* the rate is multiplied with it */
};

/* Arguments of an optimizer step that change from step to step. */
struct optimizer_step {
    enum optimizer_kind kind;
    double lr, rho, eps, weight_decay, momentum, dampening, beta1, beta2;
    bool nesterov;
    uint64_t taken;                       /* steps before this one */
    double gradient_scale;                /* gradients are multiplied with it first; 0: 1 */
    const struct optimizer_group *groups; /* group g of a plan is groups[g - 1]; for executors */
    int group_count;
};

/* f32 values that an optimizer keeps per parameter. */
int optimizer_step_slots(const struct optimizer_step *step);

/* Device `name`: "cpu", "null", or "cuda:0", for which the backend's module is loaded (backend.h
 * says what is wrong if that fails). `threads` per cpu op; 0: 1. */
status_t device_open(const char *name, int threads, struct device **device) FSDPD_MUST_USE;
void device_close(struct device *device); /* accepts NULL */

const char *device_name(const struct device *device);

/* What it is, as its maker calls it: "NVIDIA H100 80GB HBM3"; its name if there is no other. */
status_t device_model(const struct device *device, char *text, size_t size) FSDPD_MUST_USE;

/* What it says of the ops that were prepared on it, such as by which library one is computed; NULL
 * after the last. The text lives as long as the device. */
const char *device_note(const struct device *device, int index);

/* Memory that a worker on this device may plan with: for the cpu, what the host has available; its
 * part of it, if others share it. */
uint64_t device_memory_bytes(const struct device *device);

/* As many processes, with this one, are about to allocate of the device's memory: ranks of a job on
 * CPUs of a host, or on a GPU. Set before use. */
void device_share_memory(struct device *device, int sharers);
/* As many ranks of a job, with this one, are on this host, whatever their devices. Set before use.
 */
void device_share_host(struct device *device, int ranks);
int device_host_ranks(const struct device *device); /* at least 1 */

/* For tests: it has no more than this, of which what is allocated is taken. Set before use. */
void device_limit_memory(struct device *device, uint64_t bytes);

/* Bytes handed out by device_allocate: now, and at most since the device was opened. */
uint64_t device_allocated_bytes(const struct device *device);
uint64_t device_peak_bytes(const struct device *device);

/* 64-byte aligned, zeroed. RESOURCE_EXHAUSTED if there is not enough. */
status_t device_allocate(struct device *device, uint64_t bytes, void **memory) FSDPD_MUST_USE;
void device_release(struct device *device, void *memory); /* accepts NULL */

/*
 * The same, of a kind that a communicator of this device can register (comm_register). The device
 * may take more than `bytes` for it, which the books do not count; device_note says how much.
 */
status_t device_allocate_registrable(struct device *device, uint64_t bytes,
                                     void **memory) FSDPD_MUST_USE;
/* UNIMPLEMENTED, with why, if there is no such memory. */
status_t device_check_registrable(const struct device *device) FSDPD_MUST_USE;

/* Whether the device's memory is the host's, so that nothing can be offloaded. */
bool device_is_host(const struct device *device);

/*
 * The host's memory, such that a device apart from it can copy while the host goes on (pinned);
 * zeroed, aligned, and not of what device_memory_bytes and the books above count. device_release
 * gives it back. RESOURCE_EXHAUSTED if there is not enough.
 */
status_t device_allocate_host(struct device *device, uint64_t bytes, void **memory) FSDPD_MUST_USE;
uint64_t device_host_allocated_bytes(const struct device *device);
/* What the host has available of it, for all of the device_host_ranks together. */
uint64_t device_host_memory_bytes(const struct device *device);

/* Of an allocation, the bytes in pages that were really touched; 0 if the device cannot tell. */
uint64_t device_touched_bytes(struct device *device, void *memory);

/* For tests: what the null device was told, one line per call; NULL for others. Caller frees. */
char *device_log(const struct device *device);

/*
 * Chooses layouts (changing the types in `graph`) and prepares every op. The lowering that
 * plan_build wants comes with it and lives as long as the device_graph. Errors name the op.
 */
status_t device_lower(struct device *device, struct graph *graph,
                      struct device_graph **lowered) FSDPD_MUST_USE;
void device_graph_free(struct device_graph *lowered); /* accepts NULL */
const struct lowering *device_graph_lowering(const struct device_graph *lowered);

/* Lanes. That of LANE_HOST is one of the host's, whatever the device is: it can wait for the other
 * lanes' events, they cannot wait for its. */
status_t lane_open(struct device *device, enum lane kind, struct lane_queue **lane) FSDPD_MUST_USE;
/* Waits for the work that runs; drops what is queued. Accepts NULL. */
void lane_close(struct lane_queue *lane);

/* Fires when everything enqueued on `lane` so far is done (or skipped after an error). Events are
 * made once and recorded every step. */
status_t event_new(struct device *device, struct event **event) FSDPD_MUST_USE;
void event_free(struct event *event); /* accepts NULL */
void lane_record(struct lane_queue *lane, struct event *event);
/* What is enqueued on `lane` from now on waits for the event's last recording. */
void lane_wait_event(struct lane_queue *lane, struct event *event);

/* What is enqueued from now on is called `label` in errors; the text must live until the work ran.
 */
void lane_label(struct lane_queue *lane, const char *label);

/* Enqueues a call on the lane; only lanes that are threads (the cpu's) can: UNIMPLEMENTED
 * otherwise. This is how host communicators run. `argument` must stay valid until it ran. */
status_t lane_call(struct lane_queue *lane, status_t (*function)(void *argument),
                   void *argument) FSDPD_MUST_USE;
status_t lane_copy(struct lane_queue *lane, void *to, const void *from,
                   uint64_t bytes) FSDPD_MUST_USE;
/* Between the device's memory and that of device_allocate_host: the lane does it, and its time
 * comes like that of all work. (lane_copy has taken the host's bytes when it returns, and gives
 * them to the host when the lane is waited for.) */
status_t lane_transfer(struct lane_queue *lane, void *to, const void *from,
                       uint64_t bytes) FSDPD_MUST_USE;
struct kernel_call; /* kernels/kernels.h */
/* `call` is copied. */
status_t lane_launch(struct lane_queue *lane, struct device_graph *graph, int op,
                     const struct kernel_call *call) FSDPD_MUST_USE;
/* With `gate`, the statistics that lane_gate wrote, its scale is taken instead of the step's, and
 * nothing happens where it skips. */
status_t lane_optimize(struct lane_queue *lane, const struct optimizer_step *step, size_t n,
                       float *param, const float *grad, float *const *slots,
                       const float *gate) FSDPD_MUST_USE;
status_t lane_zero(struct lane_queue *lane, void *memory, uint64_t bytes) FSDPD_MUST_USE;
/* to += from */
status_t lane_add(struct lane_queue *lane, size_t n, float *to, const float *from) FSDPD_MUST_USE;

/* Adds squares to *partial, or raises it to the largest magnitude. */
status_t lane_norm(struct lane_queue *lane, enum norm_kind kind, size_t n, const float *values,
                   double *partial) FSDPD_MUST_USE;

struct gate_args {
    enum norm_kind kind;
    double max_norm;       /* gradients of a larger norm are clipped to it; 0: no clipping */
    double gradient_scale; /* of the step; 0: 1 */
    bool skip;             /* whatever the norm is */
};
/* From all ranks' partials and the loss in `stats`: the norm, what gradients are to be multiplied
 * with, and whether the step is to be skipped, into `stats`. */
status_t lane_gate(struct lane_queue *lane, const struct gate_args *args, const double *partials,
                   int count, float *stats) FSDPD_MUST_USE;

/* Notes in *ns (CLOCK_MONOTONIC) when everything enqueued before is done; also after an error.
 * Leaves *ns alone on a device that has no clock. */
status_t lane_stamp(struct lane_queue *lane, int64_t *ns) FSDPD_MUST_USE;

/* Waits until the lane is empty. DEADLINE_EXCEEDED after `timeout_ms`; otherwise the lane's first
 * error since the last wait, which is thereby cleared. */
status_t lane_wait(struct lane_queue *lane, int64_t timeout_ms) FSDPD_MUST_USE;
/* Whether the last lane_wait gave up because of its timeout: the work was still at it. */
bool lane_is_running(const struct lane_queue *lane);

/*
 * A recording: what a step enqueues, kept by the device as a whole that is set off by one call. It
 * is made in passes, and in each of them the caller enqueues the same on its lanes: MEASURE and
 * CAPTURE look at the calls and carry nothing out; after them, every REPLAY has all of it done, in
 * the order that lanes and events gave it. Then what the calls give by value counts, which may be
 * another in every pass: bytes copied from host memory, the step of an op, the arguments of
 * optimizers and gates. Addresses, and everything else, are those of the capture.
 */
struct recording;
bool device_records(const struct device *device);
enum recording_pass { RECORDING_MEASURE, RECORDING_CAPTURE, RECORDING_REPLAY };

/* Of lanes that are at rest whenever a pass begins, the first of which it is set off on.
 * UNIMPLEMENTED if the device has no such thing, with why. */
status_t recording_new(struct device *device, struct lane_queue *const *lanes, int count,
                       struct recording **recording) FSDPD_MUST_USE;
/* Accepts NULL. After the lanes were closed or waited for, before a communicator that was used. */
void recording_free(struct recording *recording);
status_t recording_begin(struct recording *recording, enum recording_pass pass) FSDPD_MUST_USE;
/* `walked`: how the calls went; an error is returned, and then nothing was recorded or done. */
status_t recording_end(struct recording *recording, status_t walked) FSDPD_MUST_USE;

/* Whether what is enqueued on the lane now is only looked at (MEASURE, CAPTURE). */
bool lane_rehearses(const struct lane_queue *lane);

/* Pinned memory of the host that every open lane of the device holds, for copies; 0 if none does.
 */
uint64_t device_lane_host_bytes(const struct device *device);

/* Nanoseconds that the lane has spent running work since it was opened (for overlap figures). */
int64_t lane_busy_ns(const struct lane_queue *lane);

#endif
