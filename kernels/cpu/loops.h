/*
 * The vectorised loops of the CPU library: the same source compiled for several instruction sets
 * and chosen at run time by the processor's features. All levels give the same bits. Plain
 * functions over the caller's memory: no threads, no allocation, any alignment. Outputs may be the
 * first input where the comment says so; otherwise operands must not overlap.
 */
#ifndef FSDPD_KERNELS_CPU_LOOPS_H
#define FSDPD_KERNELS_CPU_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

enum cpu_level { CPU_LEVEL_BASE, CPU_LEVEL_AVX2, CPU_LEVEL_AVX512, CPU_LEVEL_COUNT };

/* A dropout keeps the elements whose random word is at least the threshold. */
struct dropout_mask {
    uint64_t seed;
    uint32_t stream, step, rank;
    uint64_t threshold; /* at most 2^32, which keeps none */
};

/*
 * c = a b, or c += a b. The fields give the distances between elements of c[row][column], a[row][k]
 * and b[k][column]; those without a field are 1. The product may be restricted to a part that is
 * needed or not 0.
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
    const uint16_t *halves; /* not NULL: b's elements, in bf16 */
    float *c;
    size_t a_row, a_depth, b_depth, c_row;
    enum product_part part;
    bool continued; /* the sums begin with what c has: a block of the depth after another's */
    bool add;
    const float *factors; /* factors of c's rows, applied before adding; or NULL */
};

/* A block of Adam's averages in 8 bits (kernels/packed.c): a value is map[code] * scale. */
struct adam_codes {
    const uint8_t *codes, *square_codes;
    const float *map, *square_map; /* 256 values */
    float scale, square_scale;
};

/* Of each channel of a batch norm, the line that it is moved along. */
enum { CHANNELS_MAX = 64 };
struct channel_line {
    float middle[CHANNELS_MAX], scale[CHANNELS_MAX], shift[CHANNELS_MAX], bend[CHANNELS_MAX];
};

/* A block of attention's scores: scores[key * ATTENTION_BLOCK + query]. The number of queries is
 * rounded up to a multiple of 16. */
enum { ATTENTION_BLOCK = 64 };
struct attention_block {
    size_t queries, keys;
    bool diagonal;       /* a query sees the keys up to its own index */
    const uint8_t *seen; /* by key; NULL: all are seen */
    float scale;         /* of scores */
};

struct cpu_loops {
    const char *name;

#define CPU_LOOP(type, name, ...) type (*name)(__VA_ARGS__);
#include "kernels/cpu/loops_list.h"
#undef CPU_LOOP
};

/* The best level that this processor can run. */
const struct cpu_loops *cpu_loops_get(void);

/* The loops of one level; NULL if this processor cannot run it. */
const struct cpu_loops *cpu_loops_at(enum cpu_level level);

/* Defined by the files that compile the loops; NULL if the compiler cannot build them. */
extern const struct cpu_loops *const cpu_loops_base, *const cpu_loops_avx2, *const cpu_loops_avx512;

#endif
