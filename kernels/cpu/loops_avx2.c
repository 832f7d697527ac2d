/* The loops for AVX2 with fused multiply-add. */
#include "kernels/cpu/loops.h"
#if defined(__x86_64__)
#define LOOPS_AVX2
#define LOOPS_NAME "avx2"
#define LOOPS_TABLE cpu_loops_avx2
#define LOOPS_TARGET __attribute__((target("avx2,fma")))
#include "kernels/cpu/loops_body.h"
#else
const struct cpu_loops *const cpu_loops_avx2 = NULL;
#endif
