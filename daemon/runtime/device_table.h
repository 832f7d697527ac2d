/*
 * The interface of a kind of device. device.c does the accounting (allocated memory, lowered
 * graphs) and dispatches; a device module (cpu, null; cuda, loaded on demand) fills in this table
 * and embeds the structs below as the first member of its own. Internal to daemon/runtime.
 */
#ifndef FSDPD_RUNTIME_DEVICE_TABLE_H
#define FSDPD_RUNTIME_DEVICE_TABLE_H

#include <pthread.h>

#include "base/must.h"
#include "runtime/device.h"

struct matrix_work; /* matrix_step.h */
struct factor_work; /* factor_step.h */
struct base_work;   /* base.h */

struct device_table {
    /* Everything opened on the device has been closed. Frees `device`. */
    void (*close)(struct device *device);
    uint64_t (*memory_bytes)(const struct device *device);

    /* `bytes` is positive. Zeroed, at a multiple of 256 bytes. */
    status_t (*map)(struct device *device, uint64_t bytes, void **memory);
    void (*unmap)(struct device *device, void *memory, uint64_t bytes);
    /* The bytes among these in touched pages; 0 if unknown. */
    uint64_t (*touched)(struct device *device, void *memory, uint64_t bytes);
    /* Host memory that the device can copy asynchronously. NULL: any memory is (map, unmap). */
    status_t (*map_host)(struct device *device, uint64_t bytes, void **memory);
    void (*unmap_host)(struct device *device, void *memory, uint64_t bytes);

    /* See device_allocate_registrable; NULL: map and unmap. */
    status_t (*map_registrable)(struct device *device, uint64_t bytes, void **memory);
    void (*unmap_registrable)(struct device *device, void *memory, uint64_t bytes);
    status_t (*check_registrable)(const struct device *device); /* NULL: no notes */

    /* The model, "NVIDIA H100 80GB HBM3"; NULL: use its name. */
    status_t (*model)(const struct device *device, char *text, size_t size);
    /* See device_note; NULL: it has none. */
    const char *(*note)(const struct device *device, int index);

    void (*choose_layouts)(struct graph *graph);
    /* *prepared may stay NULL. */
    status_t (*prepare)(struct device *device, const struct op_desc *desc, void **prepared,
                        uint64_t *workspace_bytes);
    void (*unprepare)(void *prepared); /* accepts NULL */

    status_t (*lane_open)(struct device *device, enum lane kind, struct lane_queue **lane);
    void (*lane_close)(struct lane_queue *lane);
    status_t (*event_new)(struct device *device, struct event **event);
    void (*event_free)(struct event *event);
    void (*record)(struct lane_queue *lane, struct event *event);
    void (*wait_event)(struct lane_queue *lane, struct event *event);
    /* Whether the work enqueued before the event's last record has finished; an error if that will
     * never be known. From any thread. NULL: the device's own lanes can be LANE_HOST, and wait for
     * events. */
    status_t (*event_fired)(struct event *event, bool *fired);
    status_t (*call)(struct lane_queue *lane, status_t (*function)(void *argument), void *argument);
    status_t (*copy)(struct lane_queue *lane, void *to, const void *from, uint64_t bytes);
    status_t (*transfer)(struct lane_queue *lane, void *to, const void *from,
                         uint64_t bytes); /* NULL: copy */
    status_t (*deliver)(struct lane_queue *lane, void *to, const void *from,
                        uint64_t bytes); /* NULL: copy */
    status_t (*launch)(struct lane_queue *lane, struct device_graph *graph, int op,
                       const struct kernel_call *call);
    status_t (*optimize)(struct lane_queue *lane, const struct optimizer_step *step, size_t n,
                         float *param, uint16_t *rounded, const float *grad, float *const *slots,
                         const float *stats, bool gated);
    status_t (*round)(struct lane_queue *lane, size_t n, uint16_t *to, const float *from);
    status_t (*zero)(struct lane_queue *lane, void *memory, uint64_t bytes);
    status_t (*add)(struct lane_queue *lane, size_t n, float *to, const float *from);
    status_t (*norm)(struct lane_queue *lane, enum norm_kind kind, size_t n, const float *values,
                     double *partial);
    status_t (*gate)(struct lane_queue *lane, const struct gate_args *args, const double *partials,
                     int count, float *stats);
    /* See matrix_step_enqueue; NULL: its lanes are threads, which call the CPU's kernels. The
     * second is called before, for every matrix that is made orthogonal; NULL: nothing is prepared.
     */
    status_t (*matrices)(struct lane_queue *lane, const struct matrix_work *work);
    status_t (*prepare_matrix)(struct device *device, int64_t rows, int64_t columns);
    /* See factor_step_enqueue; NULL: as above. */
    status_t (*factors)(struct lane_queue *lane, const struct factor_work *work);
    /* See base_unpack_enqueue; NULL: as above. */
    status_t (*unpack)(struct lane_queue *lane, const struct base_work *work);
    uint64_t matrix_workspace_bytes;                         /* see device_matrix_workspace_bytes */
    status_t (*stamp)(struct lane_queue *lane, int64_t *ns); /* NULL: has no clock */
    status_t (*wait)(struct lane_queue *lane, int64_t timeout_ms);
    struct lane_now (*look)(struct lane_queue *lane); /* NULL: what a lane does is unknown */
    int64_t (*busy_ns)(const struct lane_queue *lane);
    uint64_t lane_host_bytes; /* see device_lane_host_bytes */
    /* Whether an op may run at the same time as the next one, if they write different memory. NULL:
     * none does. */
    bool (*runs_beside)(const struct device *device, const struct op_desc *desc,
                        const struct op_desc *next);

    /* NULL: has no recordings. A device sets lane_queue.is_dry_run during a pass. */
    status_t (*recording_new)(struct device *device, struct lane_queue *const *lanes, int count,
                              struct recording **recording);
    void (*recording_free)(struct recording *recording);
    status_t (*recording_begin)(struct recording *recording, enum recording_pass pass);
    status_t (*recording_end)(struct recording *recording, status_t walked);
    /* NULL: none delivers */
    status_t (*recording_wait)(struct recording *recording, int64_t timeout_ms, bool *delivered);
};

struct device_allocation {
    void *memory;
    uint64_t bytes;
    bool host;        /* of device_allocate_host */
    bool registrable; /* of device_allocate_registrable */
};

struct device {
    const struct device_table *table;
    char *name;
    uint64_t limit; /* of memory, for tests; 0: none */
    int threads;
    bool may_time;        /* ops, while they are prepared */
    bool reuses;          /* memory: see device_reuse_memory */
    bool touches;         /* memory: see device_touch_ahead */
    int sharers;          /* processes sharing its memory; 0: 1 */
    int host_ranks;       /* processes sharing the host's memory; 0: 1 */
    uint64_t host_limit;  /* of the host's memory, for all of them; 0: none */
    struct device *host;  /* whose lane is LANE_HOST; NULL before one was opened */
    pthread_mutex_t lock; /* guards the members below */
    struct device_allocation *allocations;
    int allocation_count, allocation_capacity;
    uint64_t allocated, peak, host_allocated;
};

struct lane_queue {
    struct device *device;
    enum lane kind;
    const char *label; /* of the next work; NULL: none */
    bool unfinished;   /* the last wait found it running, and gave up */
    bool is_dry_run;   /* see lane_is_dry_run */
    struct must_user user;
};

struct recording {
    struct device *device;
    bool delivers;  /* see recording_delivers */
    bool disturbed; /* see recording_is_disturbed */
    bool in_pass;   /* begun and not ended */
};

struct event {
    struct device *device;
};

struct device_graph {
    struct device *device;
    struct graph *graph;
    int op_count;
    struct lowering lowering; /* points at the arrays below */
    uint64_t *workspace_bytes;
    bool *view, *in_place, *beside;
    void **prepared; /* by op; NULL for views and for devices that prepare nothing */
};

/* Fills in the common part of a device module's own struct. */
void device_init(struct device *device, const struct device_table *table, const char *name,
                 int threads);
void device_deinit(struct device *device);

status_t device_cpu_open(int threads, struct device **device) FSDPD_MUST_USE;
status_t device_null_open(struct device **device) FSDPD_MUST_USE;

/* The arithmetic of optimizer, norm and gate, in host memory (step_cpu.c). */
void step_cpu_optimize(const struct optimizer_step *step, size_t n, float *param, uint16_t *rounded,
                       const float *grad, float *const *slots, const float *stats, bool gated);
void step_cpu_norm(enum norm_kind kind, size_t n, const float *values, double *partial);
void step_cpu_gate(const struct gate_args *args, const double *partials, int count, float *stats);

/* The cpu's lanes and events (lane_cpu.c). */
status_t lane_cpu_open(struct device *device, enum lane kind,
                       struct lane_queue **lane) FSDPD_MUST_USE;
void lane_cpu_close(struct lane_queue *lane);
status_t lane_cpu_event_new(struct device *device, struct event **event) FSDPD_MUST_USE;
void lane_cpu_event_free(struct event *event);
void lane_cpu_record(struct lane_queue *lane, struct event *event);
void lane_cpu_wait_event(struct lane_queue *lane, struct event *event);
status_t lane_cpu_call(struct lane_queue *lane, status_t (*function)(void *argument),
                       void *argument) FSDPD_MUST_USE;
status_t lane_cpu_copy(struct lane_queue *lane, void *to, const void *from,
                       uint64_t bytes) FSDPD_MUST_USE;
status_t lane_cpu_launch(struct lane_queue *lane, struct device_graph *graph, int op,
                         const struct kernel_call *call) FSDPD_MUST_USE;
status_t lane_cpu_optimize(struct lane_queue *lane, const struct optimizer_step *step, size_t n,
                           float *param, uint16_t *rounded, const float *grad, float *const *slots,
                           const float *stats, bool gated) FSDPD_MUST_USE;
status_t lane_cpu_round(struct lane_queue *lane, size_t n, uint16_t *to,
                        const float *from) FSDPD_MUST_USE;
status_t lane_cpu_zero(struct lane_queue *lane, void *memory, uint64_t bytes) FSDPD_MUST_USE;
status_t lane_cpu_add(struct lane_queue *lane, size_t n, float *to,
                      const float *from) FSDPD_MUST_USE;
status_t lane_cpu_norm(struct lane_queue *lane, enum norm_kind kind, size_t n, const float *values,
                       double *partial) FSDPD_MUST_USE;
status_t lane_cpu_gate(struct lane_queue *lane, const struct gate_args *args,
                       const double *partials, int count, float *stats) FSDPD_MUST_USE;
status_t lane_cpu_stamp(struct lane_queue *lane, int64_t *ns) FSDPD_MUST_USE;
status_t lane_cpu_wait(struct lane_queue *lane, int64_t timeout_ms) FSDPD_MUST_USE;
struct lane_now lane_cpu_look(struct lane_queue *lane);
int64_t lane_cpu_busy_ns(const struct lane_queue *lane);

#endif
