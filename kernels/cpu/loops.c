/* Chooses the compiled loops for this processor; see loops.h. */
#include "kernels/cpu/loops.h"

static bool can_run(enum cpu_level level)
{
#if defined(__x86_64__)
    switch (level) {
    case CPU_LEVEL_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               can_run(CPU_LEVEL_AVX2);
    case CPU_LEVEL_AVX2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    default: return true;
    }
#else
    return level == CPU_LEVEL_BASE;
#endif
}

const struct cpu_loops *cpu_loops_at(enum cpu_level level)
{
    if (!can_run(level)) return NULL;
    switch (level) {
    case CPU_LEVEL_AVX512: return cpu_loops_avx512;
    case CPU_LEVEL_AVX2: return cpu_loops_avx2;
    default: return cpu_loops_base;
    }
}

const struct cpu_loops *cpu_loops_get(void)
{
    for (int level = CPU_LEVEL_COUNT - 1; level > CPU_LEVEL_BASE; level--) {
        const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)level);
        if (loops != NULL) return loops;
    }
    return cpu_loops_base;
}
