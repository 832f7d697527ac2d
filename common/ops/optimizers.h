/*
 * The optimizers, one row each. All code that depends on the kind, and the words of job files, are
 * generated from the rows; anything missing for a new row (a value of the proto's OptimizerType, a
 * struct of arguments, step_NAME_args, a CPU loop, cuda_NAME) fails to compile. The keys of each
 * are in common/spec/keys.c. CONTRIBUTING.md lists the files to change for a new one.
 */
#ifndef FSDPD_OPS_OPTIMIZERS_H
#define FSDPD_OPS_OPTIMIZERS_H

#include <stdbool.h>

/*
 * ROW(KIND, name, kernel, count, slots...): the name in job files; its kernels' name; how many f32
 * values it keeps per parameter, given a `step` (struct optimizer_step); and which of `slots` the
 * kernels take.
 */
#define OPTIMIZERS(ROW)                                                                            \
    ROW(ADADELTA, adadelta, adadelta, 2, slots[0], slots[1])                                       \
    ROW(SGD, sgd, sgd, step->momentum != 0, slots[0])                                              \
    ROW(ADAM, adam, adam, 2, slots[0], slots[1])                                                   \
    ROW(ADAMW, adamw, adam, 2, slots[0], slots[1])                                                 \
    ROW(LION, lion, lion, 1, slots[0])                                                             \
    ROW(ADAGRAD, adagrad, adagrad, 1, slots[0])                                                    \
    ROW(MUON, muon, muon, 1, slots[0])                                                             \
    ROW(ADAFACTOR, adafactor, muon, 1, slots[0])                                                   \
    ROW(RADAM, radam, radam, 2, slots[0], slots[1])

/*
 * ROW(kernel, ARRAYS): the kernels that move each element by itself, with the arrays that they
 * take besides the parameter and its gradient. Their declarations and the code that splits their
 * CPU loops over threads are generated.
 */
#define OPTIMIZER_KERNELS(ROW)                                                                     \
    ROW(adadelta, TWO)                                                                             \
    ROW(sgd, ONE)                                                                                  \
    ROW(adam, TWO)                                                                                 \
    ROW(lion, ONE)                                                                                 \
    ROW(adagrad, ONE)                                                                              \
    ROW(radam, TWO)
#define OPTIMIZER_ARRAYS_ONE float *first
#define OPTIMIZER_ARRAYS_TWO float *first, float *second

/* With the average of the parameters, which is the last slot of any optimizer that keeps one. */
enum { OPTIMIZER_MAX_SLOTS = 3 };

/* What a matrix's update is multiplied by, as torch.optim.Muon's adjust_lr_fn: the square root of
 * max(1, rows / columns), or a fifth of that of max(rows, columns). */
enum adjust_lr { ADJUST_LR_ORIGINAL, ADJUST_LR_MATCH_RMS_ADAMW };

/* How slots are stored; fsdp/slots.h says where. */
enum state_dtype { STATE_F32, STATE_INT8, STATE_BF16 };

/* With another type than f32: the two averages of Adam and AdamW; a slot behind them is f32. */
static inline bool optimizer_slot_packs(int slot)
{
    return slot == 0 || slot == 1;
}

static inline const char *state_dtype_name(enum state_dtype dtype)
{
    return dtype == STATE_INT8 ? "int8" : dtype == STATE_BF16 ? "bf16" : "f32";
}

#define OPTIMIZER_ENUMERATOR(KIND, ...) OPTIMIZER_##KIND,
enum optimizer_kind { OPTIMIZERS(OPTIMIZER_ENUMERATOR) OPTIMIZER_COUNT };
#undef OPTIMIZER_ENUMERATOR

/* Whether it updates whole matrices only, so that other parameters need another optimizer. */
static inline bool optimizer_takes_matrices(enum optimizer_kind kind)
{
    return kind == OPTIMIZER_MUON;
}

/* Whether it keeps sums over a matrix's rows and columns (fsdp/factors.h). */
static inline bool optimizer_factors(enum optimizer_kind kind)
{
    return kind == OPTIMIZER_ADAFACTOR;
}

/* Whether it updates each element by itself, from nothing but that element's values. */
static inline bool optimizer_is_elementwise(enum optimizer_kind kind)
{
    return !optimizer_takes_matrices(kind) && !optimizer_factors(kind);
}

#endif
