/*
 * The loops themselves, included once per instruction set. LOOPS_TARGET is the function attribute
 * that selects the set. Everything is static except the table.
 */
#include <math.h>
#include <stddef.h>

#ifdef LOOPS_AVX2
#include <immintrin.h>
#endif

#include "kernels/cpu/loops.h"
#include "kernels/philox.h"

#define LOOP LOOPS_TARGET static void
#define LOOP_INLINE LOOPS_TARGET static inline __attribute__((always_inline))
#define SIMD _Pragma("omp simd")

/* Sets to[i] to a value, or adds it. The value's expression uses i, an index below n. */
#define EACH(n, to, add, value)                                                                    \
    do {                                                                                           \
        if (add) {                                                                                 \
            SIMD for (size_t i = 0; i < (n); i++)(to)[i] += (value);                               \
        } else {                                                                                   \
            SIMD for (size_t i = 0; i < (n); i++)(to)[i] = (value);                                \
        }                                                                                          \
    } while (0)

/*
 * Sums over rows work in blocks of columns that stay in the cache, and in blocks of rows, whose
 * sums are then added. This keeps the error small for many rows.
 */
enum { SUM_COLUMNS = 256, SUM_ROWS = 64 };

#include "kernels/cpu/loops_batch.h"
#include "kernels/cpu/loops_bfloat16.h"
#include "kernels/cpu/loops_dropout.h"
#include "kernels/cpu/loops_element.h"
#include "kernels/cpu/loops_optimizer.h"
#include "kernels/cpu/loops_pool.h"
#include "kernels/cpu/loops_random.h"
#include "kernels/cpu/loops_softmax.h"
#include "kernels/cpu/loops_transpose.h"
#include "kernels/cpu/loops_winograd.h"

/* These files use functions of the files above. */
#include "kernels/cpu/loops_activation.h"
#include "kernels/cpu/loops_attention.h"
#include "kernels/cpu/loops_dots.h"
#include "kernels/cpu/loops_loss.h"
#include "kernels/cpu/loops_norm.h"
#include "kernels/cpu/loops_product.h"

static const struct cpu_loops table = {
    .name = LOOPS_NAME,
#define CPU_LOOP(type, name, ...) .name = loop_##name,
#include "kernels/cpu/loops_list.h"
#undef CPU_LOOP
};

const struct cpu_loops *const LOOPS_TABLE = &table;
