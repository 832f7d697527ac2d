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
#include "kernels/cpu/loops_norm.h"
#include "kernels/cpu/loops_product.h"

static const struct cpu_loops table = {
    .name = LOOPS_NAME,
    .relu = loop_relu,
    .relu_backward = loop_relu_backward,
    .add = loop_add,
    .copy_add = loop_copy_add,
    .transpose = loop_transpose,
    .sum_rows = loop_sum_rows,
    .sum_columns = loop_sum_columns,
    .max_of = loop_max_of,
    .max_of_backward = loop_max_of_backward,
    .keep_bits = loop_keep_bits,
    .apply_bits = loop_apply_bits,
    .apply_bits_transposed = loop_apply_bits_transposed,
    .log_softmax = loop_log_softmax,
    .log_softmax_backward = loop_log_softmax_backward,
    .softmax_scaled = loop_softmax_scaled,
    .exp_scaled = loop_exp_scaled,
    .rotate = loop_rotate,
    .product = loop_product,
    .pack_lanes = loop_pack_lanes,
    .dot_rows = loop_dot_rows,
    .scale_rows = loop_scale_rows,
    .attention_softmax = loop_attention_softmax,
    .attention_probabilities = loop_attention_probabilities,
    .attention_gradients = loop_attention_gradients,
    .attention_cap = loop_attention_cap,
    .attention_uncap = loop_attention_uncap,
    .attention_bias = loop_attention_bias,
    .attention_bias_sums = loop_attention_bias_sums,
    .attention_hide = loop_attention_hide,
    .gelu = loop_gelu,
    .gelu_backward = loop_gelu_backward,
    .tanh = loop_tanh,
    .tanh_backward = loop_tanh_backward,
    .silu = loop_silu,
    .silu_backward = loop_silu_backward,
    .silu_mul = loop_silu_mul,
    .silu_mul_backward = loop_silu_mul_backward,
    .gelu_mul = loop_gelu_mul,
    .gelu_mul_backward = loop_gelu_mul_backward,
    .mul = loop_mul,
    .div = loop_div,
    .div_backward = loop_div_backward,
    .affine = loop_affine,
    .reciprocal = loop_reciprocal,
    .sigmoid = loop_sigmoids,
    .sigmoid_backward = loop_sigmoid_backward,
    .squared_relu = loop_squared_relu,
    .squared_relu_backward = loop_squared_relu_backward,
    .norm = loop_norm,
    .norm_backward = loop_norm_backward,
    .norm_backward_weights = loop_norm_backward_weights,
    .softmax = loop_softmax,
    .softmax_backward = loop_softmax_backward,
    .winograd_input = loop_winograd_input,
    .winograd_input_backward = loop_winograd_input_backward,
    .winograd_weights = loop_winograd_weights,
    .winograd_weights_backward = loop_winograd_weights_backward,
    .winograd_output = loop_winograd_output,
    .winograd_output_backward = loop_winograd_output_backward,
    .scale = loop_scale,
    .sum_ordered = loop_sum_ordered,
    .fused = loop_fused,
    .box_muller = loop_box_muller,
    .bf16_to_f32 = loop_bf16_to_f32,
    .f32_to_bf16 = loop_f32_to_bf16,
    .relu_bf16 = loop_relu_bf16,
    .sum_rows_bf16 = loop_sum_rows_bf16,
    .sum_columns_bf16 = loop_sum_columns_bf16,
    .copy_add_bf16 = loop_copy_add_bf16,
    .sum_ordered_bf16 = loop_sum_ordered_bf16,
    .adadelta = loop_adadelta,
    .sgd = loop_sgd,
    .adam = loop_adam,
    .lion = loop_lion,
    .adagrad = loop_adagrad,
    .sum_squares = loop_sum_squares,
    .max_abs = loop_max_abs,
};

const struct cpu_loops *const LOOPS_TABLE = &table;
