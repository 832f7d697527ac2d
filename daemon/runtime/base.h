/*
 * Frozen parameters that are kept in another type than f32 (fsdp/slots.h says where): made of
 * values as they arrive, in memory of the host, and made into values again where they are.
 */
#ifndef FSDPD_RUNTIME_BASE_H
#define FSDPD_RUNTIME_BASE_H

#include "base/status.h"
#include "fsdp/plan.h"
#include "runtime/device.h"

/* How a rank keeps its part of a unit's parameters, also those that are trained in bf16, without
 * the unit, which may be gone when they are read. `layout` is theirs (slot_layout_of -1). */
struct base_part {
    enum base_dtype base;
    struct slot_run *runs; /* owned */
    int run_count;
};
void base_part_init(struct base_part *part, const struct slot_layout *layout, int number);
void base_part_deinit(struct base_part *part);

/* The values of `count` of its elements from element `from` on; any thread. */
void base_part_read(const struct base_part *part, const float *kept, int64_t from, int64_t count,
                    float *values);

/* What an instruction needs to make what ops read of a unit's parts, which lie end to end. All is
 * constant, and in memory of the lane's device. Gaps between parameters get something. */
struct base_work {
    const float *kept;     /* every part has layout->words */
    char *target;          /* layout->shard elements of each; NULL: ops read what is kept */
    bool low;              /* they are bf16; else f32 */
    struct base_part unit; /* by base_work_init: all parts */
};
void base_work_init(struct base_work *work, const struct slot_layout *layout);
void base_work_deinit(struct base_work *work);
/* `work` must stay valid until it has run. */
status_t base_unpack_enqueue(struct lane_queue *lane, struct base_work *work) FSDPD_MUST_USE;

/* A parameter whose values arrive, one parameter after the other. */
struct base_packer {
    int parameter;    /* of the model */
    int64_t next;     /* the element that comes next */
    float block[256]; /* values of a block that is not complete */
    int filled;
    double sum;  /* nf4: of all blocks' magnitudes so far */
    float *most; /* nf4: those of the blocks that this rank keeps; owned */
};

struct base_target {
    const struct slot_layout *layout;
    int part;                 /* that is kept here, in `kept` */
    float *kept;              /* perhaps not in memory of the host: `store` writes there */
    int64_t offset, elements; /* of the parameter in the unit's flat parameter, and its number */
    status_t (*store)(void *user, void *to, const void *from, size_t bytes);
    void *user;
};

/* The range of a parameter's elements that base_pack must get: those that are kept here, but of
 * nf4, whose blocks depend on the mean of all, either all or none. */
void base_wanted(const struct base_target *target, int64_t *offset, int64_t *count);

/* `count` values from element `from` on. Those that are wanted MUST come in their order, all of a
 * parameter before another's. INTERNAL: they do not. */
status_t base_pack(struct base_packer *packer, const struct base_target *target, int parameter,
                   int64_t from, int64_t count, const float *values) FSDPD_MUST_USE;
void base_packer_deinit(struct base_packer *packer);

#endif
