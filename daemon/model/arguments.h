/*
 * Binding of calls to signatures: which argument goes where, and its value if it is a constant.
 * Constants are the model's arguments and, inside a block, the block's own. Messages begin with the
 * call ("Conv2d(): ..."), without a place in the file.
 */
#ifndef FSDPD_MODEL_ARGUMENTS_H
#define FSDPD_MODEL_ARGUMENTS_H

#include "expression/constant.h"

enum argument_kind {
    ARGUMENT_TENSOR,          /* left as an expression */
    ARGUMENT_OPTIONAL_TENSOR, /* the same, or None */
    ARGUMENT_SIZE,            /* a positive integer below 2^31 */
    ARGUMENT_INTEGER,         /* any integer of 32 bits */
    ARGUMENT_WINDOW,          /* a positive integer or a pair of them */
    ARGUMENT_STRIDE,          /* the same, or None */
    ARGUMENT_PADDING,         /* an integer from 0, or a pair of them */
    ARGUMENT_PROBABILITY,     /* from 0 to below 1 */
    ARGUMENT_BOOLEAN,
    ARGUMENT_REDUCTION,      /* "sum" or "mean" */
    ARGUMENT_DIVIDED,        /* the same, or "batchmean" */
    ARGUMENT_APPROXIMATE,    /* "none" or "tanh" */
    ARGUMENT_SCALING,        /* of positions: "linear", "llama3", "yarn", "longrope" or None */
    ARGUMENT_POSITIVE,       /* a number above 0 */
    ARGUMENT_MAYBE_POSITIVE, /* the same, or None */
    ARGUMENT_REAL,           /* any number */
    ARGUMENT_EPSILON,        /* a number from 0 */
    ARGUMENT_MAYBE_EPSILON,  /* the same, or None */
    ARGUMENT_MAYBE_SIZE,     /* as ARGUMENT_SIZE, or None */
    ARGUMENT_MAYBE_INDEX,    /* an integer of 32 bits, or None */
    ARGUMENT_NUMBERS,        /* a list of numbers or None, left as an expression */
    ARGUMENT_SHAPE,          /* a tuple or a list of sizes, in `shape` of struct bound */
};

enum { ARGUMENTS_MAX = 16, BOUND_SHAPE_MAX = 6 };

/* Of a shape's sizes: one that follows from the others, and the batch's, as x.shape[0]. */
enum { BOUND_INFERRED = -1, BOUND_BATCH = 0 };

struct argument {
    const char *name;
    enum argument_kind kind;
    bool required;
    struct constant standard; /* unless required */
};

struct signature {
    const char *name; /* "Conv2d" */
    int count;
    struct argument arguments[ARGUMENTS_MAX];
};

/* A call's arguments in the signature's order. */
struct bound {
    const struct signature *signature;
    struct constant values[ARGUMENTS_MAX];
    const struct expression *tensors[ARGUMENTS_MAX]; /* borrowed; NULL unless a tensor is given */
    int64_t shape[BOUND_SHAPE_MAX]; /* positive, or one of the two above; INFERRED once at most */
    int shape_count;
};

/* Sorts a call's arguments into `slots`, by argument; NULL where the call gives none. */
status_t arguments_place(const struct expression *call, const char *name, const char *const *names,
                         int count, const struct expression **slots) FSDPD_MUST_USE;

status_t arguments_bind(const struct expression *call, const struct signature *signature,
                        const struct environment *environment, struct bound *bound) FSDPD_MUST_USE;

bool argument_is_tensor(const struct argument *argument);

/* The value of an argument; the signature must have it. */
const struct constant *bound_get(const struct bound *bound, const char *name);
int64_t bound_integer(const struct bound *bound, const char *name);
double bound_real(const struct bound *bound, const char *name); /* accepts an integer, too */
bool bound_none(const struct bound *bound, const char *name);
bool bound_boolean(const struct bound *bound, const char *name);

/* Reads a pair; a single integer stands for two equal ones. */
void bound_pair(const struct bound *bound, const char *name, int64_t pair[2]);

#endif
