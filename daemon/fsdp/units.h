/*
 * FSDP units: which modules' parameters are gathered and freed together, and how a unit's
 * parameters lie in its flat parameter. The rules are exactly those of PyTorch's
 * size_based_auto_wrap_policy (torch/distributed/fsdp/wrap.py; Zhao et al., VLDB 2023), except that
 * tied parameters always stay in one unit: the one that covers all their users, in practice the
 * root.
 *
 * Frozen and trainable parameters never share a flat parameter: if a policy's unit holds both, the
 * frozen ones get a unit of their own, "NAME (frozen)", directly before the other.
 *
 * The model's buffers are in a unit of their own, "(buffers)", directly before the root's.
 *
 * Units are numbered in the order of their first module; the root unit, which owns all remaining
 * parameters, is last and always exists, if necessary without parameters.
 */
#ifndef FSDPD_FSDP_UNITS_H
#define FSDPD_FSDP_UNITS_H

#include "base/status.h"
#include "fsdp/slots.h"
#include "model/model.h"

enum wrap_kind {
    WRAP_NONE,
    WRAP_SIZE,
    WRAP_UNITS,
    WRAP_TYPE,
    WRAP_MATCH,
    /* WRAP_TYPE with the module types of the model's largest ModuleList, if it is a token model
     * that has one with parameters, and modules outside of it that are larger than the largest
     * block (wrap_larger); otherwise WRAP_NONE. The notes report the choice. */
    WRAP_AUTO,
};

/* Whether a unit's gathered parameters are freed between forward and backward; with RESHARD_GROUP
 * they are, except for a larger shard that limits backward's gather to fewer ranks. */
enum reshard { RESHARD_DEFAULT, RESHARD_YES, RESHARD_NO, RESHARD_GROUP };

/* A unit's own choice of a type. */
enum unit_dtype { UNIT_DTYPE_DEFAULT, UNIT_DTYPE_F32, UNIT_DTYPE_BF16 };

static inline enum dtype unit_dtype_or(enum unit_dtype own, enum dtype otherwise)
{
    if (own == UNIT_DTYPE_DEFAULT) return otherwise;
    return own == UNIT_DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32;
}

struct wrap_unit_spec {
    const char *const *modules; /* paths */
    int module_count;
    int shard_world;      /* the number of ranks that this unit is sharded over; 0: as for the
                           * others */
    enum reshard reshard; /* RESHARD_DEFAULT: use the plan's options */
    int reshard_ranks;    /* RESHARD_GROUP: neighbouring ranks that keep a copy together */
    enum unit_dtype param_dtype, reduce_dtype;
    bool cpu_offload;
};

/* A list of module types or of patterns. */
struct wrap_names {
    const char *const *items;
    int count;
};

struct wrap_policy {
    enum wrap_kind kind;
    uint64_t min_num_params;            /* WRAP_SIZE; at least 1 */
    struct wrap_names force_leaf;       /* WRAP_SIZE: types that are neither wrapped nor entered */
    struct wrap_names exclude;          /* WRAP_SIZE: types that are entered but never wrapped; in
                                         * both, NULL items select PyTorch's defaults */
    const struct wrap_unit_spec *units; /* WRAP_UNITS */
    int unit_count;
    struct wrap_names types;   /* WRAP_TYPE: every instance of these becomes a unit */
    struct wrap_names modules; /* WRAP_MATCH: patterns (text_glob_match) of paths; each selects the
                                * outermost modules with parameters that it matches */
    bool rounded; /* the parameters of units that compute in bf16 are kept in bf16 only; */
    enum dtype param_dtype; /* for which this is the type of those without one of their own */
    enum state_dtype state; /* of the optimizer; STATE_INT8: parameters whose state is packed begin
                             * and end at multiples of SLOT_BLOCK, as do shards */
    bool keep_frozen; /* units that are frozen, and have no shard_world of their own, are whole on
                       * every rank: nothing gathers them */
    enum base_dtype base;   /* of units that are frozen, except the model's buffers; BASE_FILE: */
    const bool *halved;     /* by parameter: whether its file has it in bf16; NULL: none */
    enum slot_shape shape;  /* of the optimizer's state; with SHAPE_OTHERS: */
    const bool *matrices;   /* by parameter: whether it is a matrix of two optimizers' first */
};

/* The distance between two parameters' starts in a flat parameter is a multiple of this, so that
 * every parameter starts at a 16-byte boundary, in bf16, too. */
enum { FLAT_ALIGN_ELEMENTS = 8 };

/* A unit's parameters end to end, in registration order. All counts are elements (f32). */
struct flat_parameter {
    int *parameters;  /* model parameter numbers, distinct ones only */
    int64_t *offsets; /* where each starts */
    int parameter_count;
    int64_t parameter_elements; /* sum of the parameters' own sizes */
    int64_t padded; /* the whole length: a multiple of the unit's shard world (and of 8 per
                     * shard) */
    int64_t shard;  /* padded / shard world: the part that one rank keeps */
    struct slot_layout slots; /* of what the optimizer keeps of it; of a frozen one itself */
};

struct unit {
    char *name;   /* path of its (first) module; "(root)" for the root */
    int *modules; /* wrapped modules; the root's is module 0 */
    int module_count;
    bool buffers;    /* it has the model's buffers, whole on every rank, which ops read and write in
                      * place; its parameters are frozen */
    bool frozen;     /* its parameters have no gradients: gathered, never reduced or optimized */
    bool unsaved;    /* frozen, and made of the same files, or drawn, at every attempt: checkpoints
                      * and other ranks' memory do not have it */
    int shard_world; /* ranks that hold one copy together; 1: every rank has the whole */
    enum reshard reshard;
    int reshard_ranks; /* as in the spec, as are these: */
    enum unit_dtype param_dtype, reduce_dtype;
    bool cpu_offload;
    struct flat_parameter flat;
};

struct unit_set {
    struct unit *units;
    int unit_count;         /* the root is units[unit_count - 1] */
    int shard_world;        /* for units without their own setting */
    int *unit_of_parameter; /* by model parameter number; a tied parameter has its owner's */
    int *unit_of_module;    /* the unit whose wrapped module is the module itself or its nearest
                             * ancestor; of two such units, the trainable one */
    char *notes;            /* notes on the choice for the user, a sentence per line; may be "" */
};

/*
 * INVALID_ARGUMENT for a policy that selects nothing (size: no module reaches min_num_params; use
 * "none"), names an unknown module or type (the message suggests the nearest), or, with WRAP_UNITS,
 * names one twice or inside another named one.
 */
status_t units_build(const struct model *model, const struct wrap_policy *policy, int shard_world,
                     struct unit_set **units) FSDPD_MUST_USE;
void units_free(struct unit_set *units); /* accepts NULL */

/*
 * For graph_options, for a job that computes in `param_dtype`: the type of each parameter as ops
 * read it (a model's buffers are f32), and the type in which each module computes.
 * `*modules` is NULL if it is the same for all. The caller frees both.
 */
void units_find_dtypes(const struct unit_set *units, const struct model *model,
                       enum dtype param_dtype, enum dtype **parameters, enum dtype **modules);

/* Elements from the flat parameter's start to the values of an untied parameter; -1 if it is not in
 * this one. */
int64_t flat_parameter_offset(const struct flat_parameter *flat, int parameter);

/* The module tree with its units as PyTorch prints a wrapped model, each line of a unit followed by
 * its parameter count. Ends in a newline; caller frees. */
char *units_print_tree(const struct unit_set *units, const struct model *model);

/* The layout of a unit's parameters, end to end. Internal to this room. */

/* The parameter whose memory `parameter` uses: itself, or the end of its chain of ties. */
int flat_parameter_owner(const struct model *model, int parameter);

/*
 * Lays out `parameters` (distinct owners in registration order; the flat parameter takes the array)
 * for shards on `world` ranks, and the optimizer's state of that type and shape; or a frozen unit's
 * parameters of the type `base`.
 */
struct flat_storage {
    enum state_dtype state;
    enum base_dtype base;
    bool rounded;
    enum slot_shape shape;
    const bool *matrices, *halved; /* as in the wrap policy */
};
void flat_parameter_init(struct flat_parameter *flat, const struct model *model, int *parameters,
                         int count, int world, const struct flat_storage *storage);
void flat_parameter_deinit(struct flat_parameter *flat);

/* ---- wrap_size.c ---- */

/* The size policy; see wrap_size.c. Internal to this room. */

/* Elements of all distinct parameters in each module's subtree (tied ones once per subtree), by
 * module; the caller frees it. */
int64_t *wrap_count_subtrees(const struct model *model);

/* Marks in `wrapped` (by module) the modules, except the root, that become units of their own.
 * `subtree` comes from wrap_count_subtrees. */
void wrap_by_size(const struct model *model, const int64_t *subtree,
                  const struct wrap_policy *policy, bool *wrapped);

/* PyTorch's module types for policy->force_leaf and policy->exclude. */
extern const struct wrap_names wrap_size_force_leaf, wrap_size_exclude;

#endif
