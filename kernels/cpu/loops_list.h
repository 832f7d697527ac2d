/*
 * The loops, for loops.h and loops_body.h: CPU_LOOP(returned type, name, parameters); loop_NAME of
 * a loops_ header is its code. Not a header of its own.
 */
/* y may be x (or dy, or a). `add` adds to y. */
CPU_LOOP(void, relu, size_t n, float *y, const float *x, bool add)
CPU_LOOP(void, relu_backward, size_t n, float *dx, const float *dy, const float *y, bool add)
CPU_LOOP(void, add, size_t n, float *y, const float *a, const float *b, bool add)
/* y = f(x), dx = dy * f'(x); `kind` is an enum op_function. */
CPU_LOOP(void, function, size_t n, float *y, const float *x, int kind, float parameter, bool add)
CPU_LOOP(void, function_backward, size_t n, float *dx, const float *dy, const float *x, int kind,
         float parameter, bool add)
/* Losses of elements against r, and slopes times scale: `kind` is SQUARED, ABSOLUTE, HUBER or
 * DIVERGENCE of enum op_difference. They are 0 where r is NaN, unless it is computed. Losses are
 * added to 16 lanes in turn. */
CPU_LOOP(void, add_differences, size_t n, float *lanes, const float *x, const float *r, int kind,
         float delta, bool computed)
CPU_LOOP(void, put_differences, size_t n, float *dx, const float *x, const float *r, int kind,
         float delta, float scale, bool computed, bool add)
CPU_LOOP(void, copy_add, size_t n, float *y, const float *x) /* y += x */

/* y (columns, rows) from x (rows, columns) */
CPU_LOOP(void, transpose, size_t rows, size_t columns, float *y, const float *x, bool add)

/* sums[column] of x (rows, columns): sums every 64 rows in order, then adds those sums */
CPU_LOOP(void, sum_rows, size_t rows, size_t columns, float *sums, const float *x, bool add)
/* The same for some columns; rows are `stride` apart. */
CPU_LOOP(void, sum_columns, size_t rows, size_t columns, size_t stride, float *sums, const float *x,
         bool add)

/* The largest of `count` candidates at each of n places, and its number: candidates[k][i *
 * step] has the number numbers[k]; numbers ascend. `indices` may be NULL. */
CPU_LOOP(void, max_of, size_t n, size_t step, int count, const float *const *candidates,
         const uint8_t *numbers, float *y, uint8_t *indices, bool add)

/* Its gradient: outputs[k][i * step] is dy[i] where indices[i] is numbers[k], else 0. */
CPU_LOOP(void, max_of_backward, size_t n, size_t step, int count, float *const *outputs,
         const uint8_t *numbers, const float *dy, const uint8_t *indices, bool add)

/* Batch norms of up to CHANNELS_MAX channels, which are side by side in pixels `stride` apart. To
 * `sums` add: x - mean, or its square; dy, and to `products` dy * (x - mean). */
CPU_LOOP(void, add_distances, size_t pixels, size_t stride, size_t n, const float *x,
         const double *mean, bool square, double *sums)
CPU_LOOP(void, add_slopes, size_t pixels, size_t stride, size_t n, const float *dy, const float *x,
         const float *mean, double *sums, double *products)
/* y = (x - middle) * scale + shift; dx = scale * (dy - shift - (x - middle) * bend) */
CPU_LOOP(void, scale_channels, size_t pixels, size_t stride, size_t n, float *y, const float *x,
         const struct channel_line *line, bool add)
CPU_LOOP(void, bend_channels, size_t pixels, size_t stride, size_t n, float *dx, const float *dy,
         const float *x, const struct channel_line *line, bool add)

/* Random bits, 64 elements per word, from Philox counter `block` on (four elements each). */
CPU_LOOP(void, keep_bits, size_t word_count, uint64_t *words, uint64_t block,
         const struct dropout_mask *mask)
/* y[i] = bit i ? x[i] * scale : 0; y may be x. */
CPU_LOOP(void, apply_bits, size_t n, float *y, const float *x, const uint64_t *words, float scale,
         bool add)
/* The same for pixels * channels (up to 64) elements, pixels `stride` apart; channel c's bits
 * start at bit_offsets[c]. Reads a word beyond the last bit. */
CPU_LOOP(void, apply_bits_transposed, size_t channels, size_t pixels, size_t stride, float *y,
         const float *x, const uint64_t *words, const uint32_t *bit_offsets, float scale, bool add)

/* Rows of n scores: y = log(softmax(x)) (y may be x), and its gradient from y. */
CPU_LOOP(void, log_softmax, size_t n, float *y, const float *x, bool add)
CPU_LOOP(void, log_softmax_backward, size_t n, float *dx, const float *dy, const float *y, bool add)
/* x = softmax(x) * scale if `write`; returns the log of the sum of exponentials. */
CPU_LOOP(double, softmax_scaled, size_t n, float *x, float scale, bool write)
/* Raises *max to the largest of x, then x = exp(x - *max); returns their sum. */
CPU_LOOP(double, exp_block, size_t n, float *x, float *max)
/* dx = exp(y) * scale */
CPU_LOOP(void, exp_scaled, size_t n, float *dx, const float *y, float scale, bool add)

/* Heads of `width` columns: y = (a cos - b sin, b cos + a sin) of the halves a and b of their
 * first 2 * half columns, or the inverse, with the signs of the sines changed; the others are
 * copied. y may be x. */
CPU_LOOP(void, rotate, size_t heads, size_t width, size_t half, bool interleaved, float *y,
         const float *x, const float *cosines, const float *sines, bool back, bool add)

CPU_LOOP(void, product, const struct cpu_product *product)
/* b has its columns along the depth, `b_depth` apart, and a_depth is 1; only PRODUCT_WHOLE, and
 * nothing is added. */
CPU_LOOP(void, dots, const struct cpu_product *product)

/* Makes rows of x columns of y, which has ATTENTION_BLOCK columns; the others are 0. */
CPU_LOOP(void, pack_lanes, size_t rows, size_t columns, float *y, const float *x, size_t x_row)
/* sums[row] = a[row] . b[row] */
CPU_LOOP(void, dot_rows, size_t rows, size_t columns, float *sums, const float *a, size_t a_row,
         const float *b, size_t b_row)
/* y[row] = x[row] * factors[row] */
CPU_LOOP(void, scale_rows, size_t rows, size_t columns, float *y, size_t y_row, const float *x,
         size_t x_row, const float *factors, bool add)
/* Scores become exp(scale * score - max), with the maximum over all blocks so far. Earlier sums
 * must be multiplied by `shrink`, as `sum` is here. By query. */
CPU_LOOP(void, attention_softmax, const struct attention_block *block, float *scores, float *max,
         float *sum, float *shrink)
/* Scores become exp(scale * score - lse). */
CPU_LOOP(void, attention_probabilities, const struct attention_block *block, float *scores,
         const float *lse)
/* A score s becomes cap * tanh(s * scale / cap), and its slope there goes to `slopes`, unless
 * NULL. The other function multiplies gradients by slopes. */
CPU_LOOP(void, attention_cap, size_t queries, size_t keys, float *scores, float *slopes,
         float scale, float cap)
CPU_LOOP(void, attention_uncap, size_t queries, size_t keys, float *gradients, const float *slopes)
/* Scores become scale * score + bias, where the bias of query q and key k is element
 * q - k + ATTENTION_BLOCK - 1, and `slopes` become the scale, unless NULL. The other function
 * adds gradients to sums at these elements. */
CPU_LOOP(void, attention_bias, size_t queries, size_t keys, float *scores, float *slopes,
         float scale, const float *bias)
CPU_LOOP(void, attention_bias_sums, size_t queries, size_t keys, const float *gradients,
         float *sums)
/* Scores and slopes likewise; what is added is of_keys[key] - of_queries[query]. */
CPU_LOOP(void, attention_alibi, size_t queries, size_t keys, float *scores, float *slopes,
         float scale, const float *of_keys, const float *of_queries)
/* Scores of keys become -infinity for a query that does not see them: the block's key k, except
 * for first[query] <= k < first[query] + count[query]. */
CPU_LOOP(void, attention_hide, size_t queries, size_t keys, float *scores, const int32_t *first,
         const int32_t *count)
/* Gradients of probabilities after dropout become those of scores: (kept * gradient -
 * probability * total) * scale. */
CPU_LOOP(void, attention_gradients, const struct attention_block *block, float *gradients,
         const float *probabilities, const float *kept, const float *totals)

/* y may be x, gate or a, and dx may be the first gradient, but not in the gates' backward
 * loops. */
CPU_LOOP(void, gelu, size_t n, float *y, const float *x, bool tanh, bool add)
CPU_LOOP(void, gelu_backward, size_t n, float *dx, const float *dy, const float *x, bool tanh,
         bool add)
CPU_LOOP(void, tanh, size_t n, float *y, const float *x, bool add)
CPU_LOOP(void, tanh_backward, size_t n, float *dx, const float *dy, const float *y, bool add)
CPU_LOOP(void, silu, size_t n, float *y, const float *x, bool add)
CPU_LOOP(void, silu_backward, size_t n, float *dx, const float *dy, const float *x, bool add)
CPU_LOOP(void, silu_mul, size_t n, float *y, const float *gate, const float *x, bool add)
CPU_LOOP(void, silu_mul_backward, size_t n, float *dgate, float *dx, const float *dy,
         const float *gate, const float *x, bool add_gate, bool add_x)
CPU_LOOP(void, gelu_mul, size_t n, float *y, const float *gate, const float *x, bool tanh, bool add)
CPU_LOOP(void, gelu_mul_backward, size_t n, float *dgate, float *dx, const float *dy,
         const float *gate, const float *x, bool tanh, bool add_gate, bool add_x)
CPU_LOOP(void, mul, size_t n, float *y, const float *a, const float *b, bool add)
CPU_LOOP(void, div, size_t n, float *y, const float *a, const float *b, bool add)
/* db = -dy * y / b */
CPU_LOOP(void, div_backward, size_t n, float *db, const float *dy, const float *y, const float *b,
         bool add)
CPU_LOOP(void, affine, size_t n, float *y, const float *x, float factor, float offset, bool add)
CPU_LOOP(void, reciprocal, size_t n, float *y, const float *x, float factor, bool add)
CPU_LOOP(void, sigmoid, size_t n, float *y, const float *x, bool add)
CPU_LOOP(void, sigmoid_backward, size_t n, float *dx, const float *dy, const float *y, bool add)
CPU_LOOP(void, squared_relu, size_t n, float *y, const float *x, bool add)
CPU_LOOP(void, squared_relu_backward, size_t n, float *dx, const float *dy, const float *x,
         bool add)

/* One row of a norm of x, with its mean and rstd; weight and bias may be NULL. */
CPU_LOOP(void, norm, size_t n, float *y, const float *x, const float *weight, const float *bias,
         bool centered, double eps, float *mean, float *rstd, bool add)
/* Its gradient, plus `other` unless NULL; dx may be other. */
CPU_LOOP(void, norm_backward, size_t n, float *dx, const float *dy, const float *x,
         const float *weight, const float *other, bool centered, float mean, float rstd, bool add)
/* Adds the row's part of the parameters' gradients; one of them may be NULL. */
CPU_LOOP(void, norm_backward_weights, size_t n, float *dweight, float *dbias, const float *dy,
         const float *x, float mean, float rstd)

CPU_LOOP(void, softmax, size_t n, float *y, const float *x, bool add)
CPU_LOOP(void, softmax_backward, size_t n, float *dx, const float *dy, const float *y, bool add)

/*
 * Winograd's transforms (loops_winograd.h) of one tile and n channels, a multiple of 16. They
 * convert between the elements of an image or a kernel, in row-major order, and 16 transformed
 * ones `stride` apart. x and dx have 16 pixels, y and dy 4; g and dg have 9 elements,
 * `g_stride` apart. `bias` may be NULL.
 */
CPU_LOOP(void, winograd_input, size_t n, float *v, size_t stride, float *const *x)
CPU_LOOP(void, winograd_input_backward, size_t n, float *const *dx, const float *v, size_t stride)
CPU_LOOP(void, winograd_weights, size_t n, float *u, size_t stride, const float *g, size_t g_stride)
CPU_LOOP(void, winograd_weights_backward, size_t n, float *dg, size_t g_stride, const float *du,
         size_t stride)
CPU_LOOP(void, winograd_output, size_t n, float *const *y, const float *m, size_t stride,
         const float *bias, bool relu, bool add)
CPU_LOOP(void, winograd_output_backward, size_t n, float *dm, size_t stride, float *const *dy)

CPU_LOOP(void, sum_ordered, size_t n, float *out, const float *const *parts, int part_count,
         float scale)

/* values = values * factor + offset, rounded once */
CPU_LOOP(void, fused, size_t n, float *values, float factor, float offset)
/* Words of the generator from a block of four on, 32 at a time, as fractions in [0, 1). */
CPU_LOOP(void, draw_fractions, size_t eights, float *values, uint64_t block,
         const struct dropout_mask *mask)
/* Turns uniform values in [0, 1) into normal ones, 16 at a time. */
CPU_LOOP(void, box_muller, size_t blocks, float *values, float mean, float std)

/* bf16: rounds to nearest, ties to even. */
CPU_LOOP(void, bf16_to_f32, size_t n, float *y, const uint16_t *x)
CPU_LOOP(void, f32_to_bf16, size_t n, uint16_t *y, const float *x)
CPU_LOOP(void, relu_bf16, size_t n, uint16_t *y, const uint16_t *x) /* y may be x */
CPU_LOOP(void, sum_rows_bf16, size_t rows, size_t columns, float *sums, const uint16_t *x, bool add)
CPU_LOOP(void, sum_columns_bf16, size_t rows, size_t columns, size_t stride, float *sums,
         const uint16_t *x, bool add)
CPU_LOOP(void, copy_add_bf16, size_t n, float *y, const uint16_t *x) /* y += x */
CPU_LOOP(void, sum_ordered_bf16, size_t n, float *out, const uint16_t *const *parts, int part_count,
         float scale)

#define OPTIMIZER_LOOP(kernel, ARRAYS)                                                             \
    CPU_LOOP(void, kernel, size_t n, float *param, const float *grad, OPTIMIZER_ARRAYS_##ARRAYS,   \
             const struct kernel##_args *args)
OPTIMIZER_KERNELS(OPTIMIZER_LOOP)
#undef OPTIMIZER_LOOP
/* The averages become those of the codes, moved. */
CPU_LOOP(void, adam_codes, size_t n, float *param, const float *grad,
         const struct adam_codes *codes, float *average, float *square_average,
         const struct adam_args *args)
CPU_LOOP(void, average, size_t n, float *average, const float *param,
         const struct average_args *args)
CPU_LOOP(void, muon_momentum, size_t n, float *grad, float *average, const struct muon_args *args)
CPU_LOOP(void, muon, size_t n, float *param, const float *update, const struct muon_args *args)
/* Adafactor's update in place of the gradient: of a matrix's row, and of a vector. */
CPU_LOOP(void, factor_row, size_t n, float *grad, float scale, float row, const float *columns,
         float least)
CPU_LOOP(void, variance, size_t n, float *grad, float scale, float *variance, float weight,
         float rest, float least)
CPU_LOOP(void, scale, size_t n, float *values, float factor)
/* Up to KERNEL_PACKED_BLOCK values from and to codes of a map; `nearest` has 65,536 codes, of equal
 * steps from -1 to 1. */
CPU_LOOP(void, unpack_codes, size_t n, const uint8_t *codes, const float *map, float scale,
         float *values)
CPU_LOOP(void, pack_codes, size_t n, const float *values, const uint8_t *nearest, uint8_t *codes,
         float *most)
CPU_LOOP(void, sum_squares, size_t n, const float *values, double *result)
CPU_LOOP(void, max_abs, size_t n, const float *values, double *result)
