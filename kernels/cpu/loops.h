/*
 * The vectorised loops of the CPU library: the same source compiled for several instruction sets,
 * chosen at run time by what the processor has. All levels give the same bits. Plain functions over
 * memory of the caller: no threads, no allocation, any alignment. Outputs may be the first input
 * where it says so; otherwise nothing overlaps.
 */
#ifndef FSDPD_KERNELS_CPU_LOOPS_H
#define FSDPD_KERNELS_CPU_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

enum cpu_level { CPU_LEVEL_BASE, CPU_LEVEL_AVX2, CPU_LEVEL_AVX512, CPU_LEVEL_COUNT };

/* Which elements a dropout keeps: those whose random word is at least the threshold. */
struct dropout_mask {
    uint64_t seed;
    uint32_t stream, step, rank;
    uint64_t threshold; /* at most 2^32: none is kept */
};

/*
 * c = a b, or added to c: c[row][column], a[row][k] and b[k][column] at these distances; those that
 * are not named are 1. A part of the product may be all that is wanted, or not 0.
 */
enum product_part {
    PRODUCT_WHOLE,
    PRODUCT_COLUMNS_FROM_ROW, /* columns from the row's number on, rounded down to 16 */
    PRODUCT_DEPTH_FROM_ROW,   /* a[row][k] is 0 where k < row */
    PRODUCT_DEPTH_TO_ROW,     /* a[row][k] is 0 where k > row */
};
struct cpu_product {
    size_t rows, columns, depth;
    const float *a, *b;
    float *c;
    size_t a_row, a_depth, b_depth, c_row;
    enum product_part part;
    bool add;
    const float *factors; /* what c is multiplied with first, by row; or NULL */
};

/* A block of scores of attention: scores[key * ATTENTION_BLOCK + query]. Queries are rounded up to
 * a multiple of 16. */
enum { ATTENTION_BLOCK = 64 };
struct attention_block {
    size_t queries, keys;
    bool diagonal;       /* a query sees the keys up to its own number */
    const uint8_t *seen; /* by key; NULL: all */
    float scale;         /* of scores */
};

struct cpu_loops {
    const char *name;

    /* y may be x (or dy, or a). `add` adds to what is there. */
    void (*relu)(size_t n, float *y, const float *x, bool add);
    void (*relu_backward)(size_t n, float *dx, const float *dy, const float *y, bool add);
    void (*add)(size_t n, float *y, const float *a, const float *b, bool add);
    void (*copy_add)(size_t n, float *y, const float *x); /* y += x */

    /* y (columns, rows) from x (rows, columns) */
    void (*transpose)(size_t rows, size_t columns, float *y, const float *x, bool add);

    /* sums[column] of x (rows, columns): of every 64 rows in their order, then of those sums */
    void (*sum_rows)(size_t rows, size_t columns, float *sums, const float *x, bool add);
    /* The same of some columns; rows are `stride` apart. */
    void (*sum_columns)(size_t rows, size_t columns, size_t stride, float *sums, const float *x,
                        bool add);

    /* The largest of `count` candidates at each of n places, and its number: candidates[k][i *
     * step] with number numbers[k], which ascend. `indices` may be NULL. */
    void (*max_of)(size_t n, size_t step, int count, const float *const *candidates,
                   const uint8_t *numbers, float *y, uint8_t *indices, bool add);

    /* The way back: outputs[k][i * step] gets dy[i] where indices[i] is numbers[k], else 0. */
    void (*max_of_backward)(size_t n, size_t step, int count, float *const *outputs,
                            const uint8_t *numbers, const float *dy, const uint8_t *indices,
                            bool add);

    /* Bits of 64 elements per word, from Philox counter `block` on (four elements each). */
    void (*keep_bits)(size_t word_count, uint64_t *words, uint64_t block,
                      const struct dropout_mask *mask);
    /* y[i] = bit i ? x[i] * scale : 0; y may be x. */
    void (*apply_bits)(size_t n, float *y, const float *x, const uint64_t *words, float scale,
                       bool add);
    /* The same for pixels * channels (up to 64) elements, pixels `stride` apart; channel c's bits
     * start at bit_offsets[c]. A word beyond the last bit is read. */
    void (*apply_bits_transposed)(size_t channels, size_t pixels, size_t stride, float *y,
                                  const float *x, const uint64_t *words,
                                  const uint32_t *bit_offsets, float scale, bool add);

    /* Rows of n scores: y = log(softmax(x)) (y may be x), and its gradient from y. */
    void (*log_softmax)(size_t n, float *y, const float *x, bool add);
    void (*log_softmax_backward)(size_t n, float *dx, const float *dy, const float *y, bool add);
    /* x = softmax(x) * scale, or stays as it is; returns the log of the sum of exponentials. */
    double (*softmax_scaled)(size_t n, float *x, float scale, bool write);
    /* dx = exp(y) * scale */
    void (*exp_scaled)(size_t n, float *dx, const float *y, float scale, bool add);

    /* Heads of 2 * half columns: y = (a cos - b sin, b cos + a sin) of their halves a and b, or
     * back with the sines' signs changed. y may be x. */
    void (*rotate)(size_t heads, size_t half, float *y, const float *x, const float *cosines,
                   const float *sines, bool back, bool add);

    void (*product)(const struct cpu_product *product);

    /* Rows of x become columns of y, which has ATTENTION_BLOCK of them; the others are 0. */
    void (*pack_lanes)(size_t rows, size_t columns, float *y, const float *x, size_t x_row);
    /* sums[row] = a[row] . b[row] */
    void (*dot_rows)(size_t rows, size_t columns, float *sums, const float *a, size_t a_row,
                     const float *b, size_t b_row);
    /* y[row] = x[row] * factors[row] */
    void (*scale_rows)(size_t rows, size_t columns, float *y, size_t y_row, const float *x,
                       size_t x_row, const float *factors, bool add);
    /* Scores become exp(scale * score - max), with the largest of all blocks so far; what was
     * summed up before must be multiplied with `shrink`, as `sum` is. By query. */
    void (*attention_softmax)(const struct attention_block *block, float *scores, float *max,
                              float *sum, float *shrink);
    /* Scores become exp(scale * score - lse). */
    void (*attention_probabilities)(const struct attention_block *block, float *scores,
                                    const float *lse);
    /* Gradients of probabilities after dropout become those of scores: (kept * gradient -
     * probability * total) * scale. */
    void (*attention_gradients)(const struct attention_block *block, float *gradients,
                                const float *probabilities, const float *kept, const float *totals);

    /* y may be x, gate or a, and dx the first gradient; not those of silu_mul_backward. */
    void (*gelu)(size_t n, float *y, const float *x, bool tanh, bool add);
    void (*gelu_backward)(size_t n, float *dx, const float *dy, const float *x, bool tanh,
                          bool add);
    void (*silu)(size_t n, float *y, const float *x, bool add);
    void (*silu_backward)(size_t n, float *dx, const float *dy, const float *x, bool add);
    void (*silu_mul)(size_t n, float *y, const float *gate, const float *x, bool add);
    void (*silu_mul_backward)(size_t n, float *dgate, float *dx, const float *dy, const float *gate,
                              const float *x, bool add_gate, bool add_x);
    void (*mul)(size_t n, float *y, const float *a, const float *b, bool add);

    /* One row of a norm of x, and what it was made with; weight and bias may be NULL. */
    void (*norm)(size_t n, float *y, const float *x, const float *weight, const float *bias,
                 bool centered, double eps, float *mean, float *rstd, bool add);
    /* Its gradient, with `other`, unless NULL, added; dx may be other. */
    void (*norm_backward)(size_t n, float *dx, const float *dy, const float *x, const float *weight,
                          const float *other, bool centered, float mean, float rstd, bool add);
    /* The row's part of the parameters' gradients is added; one of them may be NULL. */
    void (*norm_backward_weights)(size_t n, float *dweight, float *dbias, const float *dy,
                                  const float *x, float mean, float rstd);

    void (*softmax)(size_t n, float *y, const float *x, bool add);
    void (*softmax_backward)(size_t n, float *dx, const float *dy, const float *y, bool add);

    /*
     * Winograd's transforms (loops_winograd.h) of one tile and n channels, a multiple of 16:
     * between an image's or a kernel's elements, in row-major order, and 16 transformed ones
     * `stride` apart. x and dx have 16 pixels, y and dy 4, g and dg 9 elements `g_stride` apart.
     * `bias` may be NULL.
     */
    void (*winograd_input)(size_t n, float *v, size_t stride, float *const *x);
    void (*winograd_input_backward)(size_t n, float *const *dx, const float *v, size_t stride);
    void (*winograd_weights)(size_t n, float *u, size_t stride, const float *g, size_t g_stride);
    void (*winograd_weights_backward)(size_t n, float *dg, size_t g_stride, const float *du,
                                      size_t stride);
    void (*winograd_output)(size_t n, float *const *y, const float *m, size_t stride,
                            const float *bias, bool relu, bool add);
    void (*winograd_output_backward)(size_t n, float *dm, size_t stride, float *const *dy);

    void (*scale)(size_t n, float *values, float scale);
    void (*sum_ordered)(size_t n, float *out, const float *const *parts, int part_count,
                        float scale);

    /* bf16: to nearest, ties to even. */
    void (*bf16_to_f32)(size_t n, float *y, const uint16_t *x);
    void (*f32_to_bf16)(size_t n, uint16_t *y, const float *x);
    void (*relu_bf16)(size_t n, uint16_t *y, const uint16_t *x); /* y may be x */
    void (*sum_rows_bf16)(size_t rows, size_t columns, float *sums, const uint16_t *x, bool add);
    void (*sum_columns_bf16)(size_t rows, size_t columns, size_t stride, float *sums,
                             const uint16_t *x, bool add);
    void (*copy_add_bf16)(size_t n, float *y, const uint16_t *x); /* y += x */
    void (*sum_ordered_bf16)(size_t n, float *out, const uint16_t *const *parts, int part_count,
                             float scale);

    void (*adadelta)(size_t n, float *param, const float *grad, float *square_avg, float *acc_delta,
                     const struct adadelta_args *args);
    void (*sgd)(size_t n, float *param, const float *grad, float *momentum_buffer,
                const struct sgd_args *args);
    void (*adam)(size_t n, float *param, const float *grad, float *average, float *square_average,
                 const struct adam_args *args);
    void (*sum_squares)(size_t n, const float *values, double *result);
    void (*max_abs)(size_t n, const float *values, double *result);
};

/* The best that this processor can run. */
const struct cpu_loops *cpu_loops_get(void);

/* One level; NULL if this processor cannot run it. */
const struct cpu_loops *cpu_loops_at(enum cpu_level level);

/* Defined by the files that compile the loops; NULL where the compiler cannot make them. */
extern const struct cpu_loops *const cpu_loops_base, *const cpu_loops_avx2, *const cpu_loops_avx512;

#endif
