/*
 * The loops themselves, included once per instruction set with LOOPS_TARGET set to the function
 * attribute that asks for it. Everything is static but the table.
 */
#include <math.h>
#include <stddef.h>

#include "kernels/cpu/loops.h"

#define LOOP LOOPS_TARGET static void
#define LOOP_INLINE LOOPS_TARGET static inline __attribute__((always_inline))
#define SIMD _Pragma("omp simd")

#include "kernels/cpu/loops_element.h"
#include "kernels/cpu/loops_optimizer.h"

static const struct cpu_loops table = {
    .name = LOOPS_NAME,
    .relu = loop_relu,
    .relu_backward = loop_relu_backward,
    .add = loop_add,
    .copy_add = loop_copy_add,
    .scale = loop_scale,
    .sum_ordered = loop_sum_ordered,
    .adadelta = loop_adadelta,
    .sgd = loop_sgd,
};

const struct cpu_loops *const LOOPS_TABLE = &table;
