/* The loops for AVX-512. */
#include "kernels/cpu/loops.h"
#if defined(__x86_64__)
#define LOOPS_AVX2
#define LOOPS_AVX512
#define LOOPS_NAME "avx512"
#define LOOPS_TABLE cpu_loops_avx512
#define LOOPS_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#include "kernels/cpu/loops_body.h"
#else
const struct cpu_loops *const cpu_loops_avx512 = NULL;
#endif
