/*
 * Units with settings of their own among those of a wrap policy, as `fsdp.wrap.units` has them: a
 * strategy, gathered parameters that stay until backward, a place on the host. Pure functions; any
 * thread. Internal to this room.
 */
#ifndef FSDPD_PLANNING_OWN_H
#define FSDPD_PLANNING_OWN_H

#include "fsdp/plan.h"

/* How units are sharded. */
struct sharding {
    enum strategy strategy;
    int shard_size; /* STRATEGY_HYBRID_SHARD */
    enum reshard reshard;
    int reshard_ranks; /* RESHARD_GROUP */
    bool keep_frozen;  /* frozen units are whole on every rank */
};

enum own_kind {
    OWN_NOTHING,
    OWN_KEPT,     /* the last units stay gathered after forward: backward needs them first */
    OWN_HOST,     /* the first units are offloaded */
    OWN_STRATEGY, /* the first units are sharded in their own way */
    OWN_REST,     /* what no unit owns is whole on every rank, whatever the units' strategy */
};

struct own_option {
    enum own_kind kind;
    struct sharding sharding; /* OWN_STRATEGY */
};

/* A policy's units besides the root, in their order, without settings. */
struct unit_list {
    struct wrap_unit_spec *units; /* of `names` */
    const char **names;           /* the model's */
    int count;
};

/* An empty list if the policy is impossible, has no such units, or has units inside of others: a
 * job file cannot list these. */
struct unit_list unit_list_new(const struct model *model, const struct wrap_policy *policy);
void unit_list_deinit(struct unit_list *list);

/* The number of units that have the settings: a quarter of them, two, three or all, rounded up. */
int own_share_count(int units, int quarters);

/* A copy of the list with the settings; `all` is the job's sharding of units without any. The
 * caller frees it. */
struct wrap_unit_spec *own_apply(const struct own_option *own, const struct unit_list *list,
                                 int quarters, const struct sharding *all, int world);

#endif
