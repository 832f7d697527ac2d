/*
 * A device: memory, lanes, events, copies, and prepared ops. Each kind of device (cpu, null; cuda
 * as a loadable module) implements one table of functions, so that the executor knows none of them.
 *
 * A lane is an in-order queue of work: a thread on the cpu, a stream on cuda. Work is enqueued and
 * ordered with events; enqueueing does not wait for the work (only for space, if the lane's bounded
 * queue is full). An error on a lane is sticky: later work is skipped, later events still fire, and
 * lane_wait returns the first error. One thread at a time enqueues on a lane.
 */
#ifndef FSDPD_RUNTIME_DEVICE_H
#define FSDPD_RUNTIME_DEVICE_H

#include <stdint.h>

#include "fsdp/plan.h"

struct device;
struct lane_queue; /* an open lane */
struct event;
struct device_graph; /* a graph lowered by a device: layouts chosen, kernels prepared */

/* Parameters with their own settings. */
struct optimizer_group {
    const char *match; /* a pattern of their names, for code that groups parameters; NULL: those
                        * that weight decay leaves alone (setup/groups.h) */
    double weight_decay;
    double lr_scale; /* factor for the learning rate */
    bool own_decay;  /* the weight decay is the group's, not the optimizer's */
    enum optimizer_use { USE_DEFAULT, USE_MAIN, USE_OTHERS } use; /* with others */
    int ndim; /* it has only parameters of that many dimensions; 0: of any */
};

/* Arguments of an optimizer step that change every step. */
struct optimizer_step {
    enum optimizer_kind kind;
    enum state_dtype state; /* of the job; to lane_optimize: of these parameters */
    double lr, rho, eps, weight_decay, momentum, dampening, beta1, beta2, lr_decay;
    double ema_decay; /* of the parameters' average over steps; 0: there is none */
    bool nesterov;
    int ns_steps; /* muon: iterations */
    enum adjust_lr adjust_lr;
    /* adafactor, as torch's: the least root of a variance, the least root mean square of a
     * parameter, d */
    double eps1, eps2, clip, beta2_decay;
    /* Of the parameters that are no matrices of a plan; NULL: the same. Its lr is a factor of this
     * one's, and it takes steps, an average and groups from this one. */
    const struct optimizer_step *others;
    bool rounded;       /* to lane_optimize: the parameters are bf16, at `param` */
    uint64_t seed;      /* of the draws that round state to bf16; and to lane_optimize: */
    uint32_t parameter; /* the parameter's number, */
    uint64_t first;     /* its element that is the first of those given */
    uint64_t taken;                       /* steps before this one */
    const struct optimizer_group *groups; /* group g of a plan is groups[g - 1]; for executors */
    int group_count;
};

/* f32 values that are kept per parameter: the optimizer's, and as many as the others need, then the
 * average. */
int optimizer_step_slots(const struct optimizer_step *step);

/* The settings of a parameter's group (0: none), and of the other optimizer if it is `other`'s. */
struct optimizer_step optimizer_step_of(const struct optimizer_step *optimizer, int number,
                                        bool other);

/* In which shape it keeps them, for a wrap policy. */
enum slot_shape optimizer_step_shape(const struct optimizer_step *step);

/* Device `name`: "cpu", "null", or "cuda:0", which loads the backend's module (backend.h explains
 * failures). `threads` per cpu op; 0: 1. */
status_t device_open(const char *name, int threads, struct device **device) FSDPD_MUST_USE;
void device_close(struct device *device); /* accepts NULL */

const char *device_name(const struct device *device);

/* Its model as its vendor calls it: "NVIDIA H100 80GB HBM3"; otherwise its name. */
status_t device_model(const struct device *device, char *text, size_t size) FSDPD_MUST_USE;

/* Whether it multiplies bf16 itself; a processor that does not computes such products from f32
 * copies, slower than in f32. */
bool device_has_bf16(const struct device *device);

/* Its notes on ops prepared on it, such as the library that computes one; NULL after the last. The
 * text lives as long as the device. */
const char *device_note(const struct device *device, int index);

/* Memory that a worker on this device may plan with; on the cpu, the memory available on the host;
 * its share, if others use it. */
uint64_t device_memory_bytes(const struct device *device);

/* The number of processes, including this one, that will allocate memory of the device: ranks of a
 * job on the CPUs of a host, or on a GPU. Set before use. */
void device_share_memory(struct device *device, int sharers);

/* Before a run: ops that are prepared from now on may run on the device, to choose among the ways to
 * compute them by time. Plans do not depend on that. */
void device_allow_timing(struct device *device);
/* The number of ranks of a job on this host, including this one, on any device. Set before use. */
void device_share_host(struct device *device, int ranks);
int device_host_ranks(const struct device *device); /* at least 1 */

/* From now on the process may keep what is released, for its next device that allocates as much
 * (arena_pool.h). Only once nothing else can reach the memory, as after an abort. */
void device_reuse_memory(struct device *device);

/* From now on the device touches large memory that it allocates, if that may help (arena_pool.h):
 * for a run that will use all of it. */
void device_touch_ahead(struct device *device);

/* For tests: limits the device's memory; allocations count against it. Set before use. */
void device_limit_memory(struct device *device, uint64_t bytes);

/* Bytes allocated with device_allocate: now, and the maximum since the device was opened. */
uint64_t device_allocated_bytes(const struct device *device);
uint64_t device_peak_bytes(const struct device *device);

/* At a multiple of 256 bytes, zeroed. RESOURCE_EXHAUSTED if there is not enough. */
status_t device_allocate(struct device *device, uint64_t bytes, void **memory) FSDPD_MUST_USE;
void device_release(struct device *device, void *memory); /* accepts NULL */

/*
 * The same, of a kind that this device's communicators can register (comm_register). The device may
 * use more than `bytes` for it, which is not counted; device_note reports how much.
 */
status_t device_allocate_registrable(struct device *device, uint64_t bytes,
                                     void **memory) FSDPD_MUST_USE;
/* UNIMPLEMENTED, with the reason, if there is no such memory. */
status_t device_check_registrable(const struct device *device) FSDPD_MUST_USE;

/* After an error that ends all use of a device by this process; another process may use it. From any
 * thread. */
void device_lose(void);
bool device_is_lost(void);

/* Whether the device's memory is the host's, so that nothing can be offloaded. */
bool device_is_host(const struct device *device);

/*
 * Pinned host memory: a device with separate memory can copy it asynchronously. Zeroed, aligned,
 * and not counted by device_memory_bytes and the figures above. device_release frees it.
 * RESOURCE_EXHAUSTED if there is not enough.
 */
status_t device_allocate_host(struct device *device, uint64_t bytes, void **memory) FSDPD_MUST_USE;
uint64_t device_host_allocated_bytes(const struct device *device);
/* Memory of that kind available on the host, for all of the device_host_ranks together. */
uint64_t device_host_memory_bytes(const struct device *device);

/* The bytes of an allocation in pages that were touched; 0 if the device cannot tell. */
uint64_t device_touched_bytes(struct device *device, void *memory);

/*
 * Chooses layouts (changing the types in `graph`) and prepares every op. The lowering for
 * plan_build is part of the device_graph and lives as long. Errors name the op.
 */
status_t device_lower(struct device *device, struct graph *graph,
                      struct device_graph **lowered) FSDPD_MUST_USE;
void device_graph_free(struct device_graph *lowered); /* accepts NULL */
const struct lowering *device_graph_lowering(const struct device_graph *lowered);

/* Lanes. LANE_HOST is always a lane of the host: it can wait for the other lanes' events; they
 * cannot wait for its events. */
status_t lane_open(struct device *device, enum lane kind, struct lane_queue **lane) FSDPD_MUST_USE;
/* Waits for running work; drops queued work. Accepts NULL. */
void lane_close(struct lane_queue *lane);

/* Fires when everything enqueued on `lane` so far is done (or skipped after an error). Events are
 * made once and recorded every step. */
status_t event_new(struct device *device, struct event **event) FSDPD_MUST_USE;
void event_free(struct event *event); /* accepts NULL */
void lane_record(struct lane_queue *lane, struct event *event);
/* Work that is enqueued on `lane` from now on waits for the event's last recording. */
void lane_wait_event(struct lane_queue *lane, struct event *event);

/* Work enqueued from now on is called `label` in errors; the text must live until the work has
 * run. */
void lane_label(struct lane_queue *lane, const char *label);

/* What a lane does now. */
struct lane_now {
    bool busy;          /* false: it has nothing to do, or that is unknown */
    const char *label;  /* of the work, as lane_label gave it; NULL: none */
    const void *awaits; /* an event: it has not begun, and waits for that one; else NULL */
    int64_t since_ns;   /* CLOCK_MONOTONIC */
};
/* From any thread, as long as the lane is open. Waits for no work. */
struct lane_now lane_look(struct lane_queue *lane);

/* Enqueues a call on the lane; only lanes that are threads (the cpu's) support it, others return
 * UNIMPLEMENTED. Host communicators run this way. `argument` must stay valid until it has run. */
status_t lane_call(struct lane_queue *lane, status_t (*function)(void *argument),
                   void *argument) FSDPD_MUST_USE;
status_t lane_copy(struct lane_queue *lane, void *to, const void *from,
                   uint64_t bytes) FSDPD_MUST_USE;
/* Copies between device memory and memory of device_allocate_host: the lane does it, in order with
 * its other work. (lane_copy has copied the host's bytes when it returns, and delivers to the host
 * when the lane is waited for.) */
status_t lane_transfer(struct lane_queue *lane, void *to, const void *from,
                       uint64_t bytes) FSDPD_MUST_USE;
/* Like lane_copy, from the device to the host. A replay delivers these bytes before it has ended
 * (recording_wait), if the device can. Once in a pass, by the last copy to the host and the only
 * lane that makes any; copies from the host come before it, by lanes and events. */
status_t lane_deliver(struct lane_queue *lane, void *to, const void *from,
                      uint64_t bytes) FSDPD_MUST_USE;
struct kernel_call; /* kernels/kernels.h */
/* `call` is copied. */
status_t lane_launch(struct lane_queue *lane, struct device_graph *graph, int op,
                     const struct kernel_call *call) FSDPD_MUST_USE;
/*
 * `stats`, the step's statistics over all ranks, hold the gradient's scale: the one written by
 * lane_gate if `gated`, otherwise PLAN_STAT_TARGETS / PLAN_STAT_COUNTED. No update if the gate
 * skips or no target counts. `rounded`: a copy of the parameters in bf16 that is written too; NULL:
 * none.
 */
status_t lane_optimize(struct lane_queue *lane, const struct optimizer_step *step, size_t n,
                       float *param, uint16_t *rounded, const float *grad, float *const *slots,
                       const float *stats, bool gated) FSDPD_MUST_USE;
/* As bf16, to nearest, ties to even. */
status_t lane_round(struct lane_queue *lane, size_t n, uint16_t *to,
                    const float *from) FSDPD_MUST_USE;
status_t lane_zero(struct lane_queue *lane, void *memory, uint64_t bytes) FSDPD_MUST_USE;
/* to += from */
status_t lane_add(struct lane_queue *lane, size_t n, float *to, const float *from) FSDPD_MUST_USE;

/* Adds squares to *partial, or raises it to the largest magnitude. */
status_t lane_norm(struct lane_queue *lane, enum norm_kind kind, size_t n, const float *values,
                   double *partial) FSDPD_MUST_USE;

struct gate_args {
    enum norm_kind kind;
    double max_norm; /* gradients of a larger norm are clipped to it; 0: no clipping */
    bool skip;       /* whatever the norm is */
};
/* From all ranks' partials, and the loss and the targets in `stats`: computes the norm, the
 * gradients' scale, and whether to skip the step, into `stats`. */
status_t lane_gate(struct lane_queue *lane, const struct gate_args *args, const double *partials,
                   int count, float *stats) FSDPD_MUST_USE;

/* Stores the time (CLOCK_MONOTONIC) in *ns when all previously enqueued work has finished, also
 * after an error. Leaves *ns unchanged on a device without a clock. */
status_t lane_stamp(struct lane_queue *lane, int64_t *ns) FSDPD_MUST_USE;

/* Waits until the lane is empty. DEADLINE_EXCEEDED after `timeout_ms`; otherwise returns and clears
 * the lane's first error since the last wait. */
status_t lane_wait(struct lane_queue *lane, int64_t timeout_ms) FSDPD_MUST_USE;
/* Whether the last lane_wait timed out: the work was still running. */
bool lane_is_running(const struct lane_queue *lane);

/*
 * A recording: a step's enqueued calls, kept by the device and launched by one call. It is made in
 * passes, in each of which the caller enqueues the same calls on its lanes: MEASURE and CAPTURE
 * only inspect the calls; afterwards every REPLAY runs all of them, in the order given by lanes and
 * events. A replay uses the values passed by its own calls, which may differ in every pass: bytes
 * copied from host memory, the step of an op, the arguments of optimizers and gates. Addresses and
 * everything else are those of the capture.
 */
struct recording;
bool device_records(const struct device *device);
enum recording_pass { RECORDING_MEASURE, RECORDING_CAPTURE, RECORDING_REPLAY };

/* For lanes that are idle whenever a pass begins, except that a replay may begin when those that
 * run have delivered (recording_wait); it is launched on the first of the lanes. UNIMPLEMENTED,
 * with the reason, if the device has no recordings. */
status_t recording_new(struct device *device, struct lane_queue *const *lanes, int count,
                       struct recording **recording) FSDPD_MUST_USE;
/* Accepts NULL. Call it after the lanes were closed or waited for, before freeing a communicator
 * that it uses. */
void recording_free(struct recording *recording);
status_t recording_begin(struct recording *recording, enum recording_pass pass) FSDPD_MUST_USE;
/* `walked`: the result of the calls; an error is returned, and then nothing was recorded or run. */
status_t recording_end(struct recording *recording, status_t walked) FSDPD_MUST_USE;

/* Whether the last CAPTURE failed because of something outside of it: another may succeed. */
bool recording_is_disturbed(const struct recording *recording);
/* Whether its replays deliver (lane_deliver) before they have ended. */
bool recording_delivers(const struct recording *recording);
/*
 * After a replay of a recording that delivers: waits until it has; what follows in the replay may
 * still run. Then another replay of a recording of the same lanes may begin, which runs when this
 * one has ended; any other work on the lanes must wait for them first. NULL with *delivered false
 * after `timeout_ms`. An error is that of any of the lanes; they must still be waited for.
 */
status_t recording_wait(struct recording *recording, int64_t timeout_ms,
                        bool *delivered) FSDPD_MUST_USE;

/* Whether work enqueued on the lane now is only inspected (MEASURE, CAPTURE). */
bool lane_is_dry_run(const struct lane_queue *lane);

/* Pinned memory of the host that every open lane of the device holds, for copies; 0 if none does.
 */
uint64_t device_lane_host_bytes(const struct device *device);

/* For plan_options.matrix_workspace_bytes. */
uint64_t device_matrix_workspace_bytes(const struct device *device);

/* Nanoseconds of work on the lane since it was opened (for overlap figures). What was enqueued
 * since the last lane_wait is not in it; of replays those before the last that delivered are. */
int64_t lane_busy_ns(const struct lane_queue *lane);

#endif
