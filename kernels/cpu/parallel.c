/* Ranges over OpenMP threads; see parallel.h. */
#include "kernels/cpu/parallel.h"

#include <omp.h>

void cpu_parallel(int threads, size_t count, size_t grain,
                  void (*function)(const void *argument, size_t begin, size_t end),
                  const void *argument)
{
    size_t grains = (count + grain - 1) / grain;
    size_t parts = grains < (size_t)threads ? grains : (size_t)threads;
    if (parts <= 1) {
        if (count > 0) function(argument, 0, count);
        return;
    }
#pragma omp parallel for num_threads((int)parts) schedule(static, 1)
    for (size_t part = 0; part < parts; part++) {
        size_t begin = grains * part / parts * grain;
        size_t end = grains * (part + 1) / parts * grain;
        function(argument, begin, end < count ? end : count);
    }
}

int cpu_parallel_thread(void)
{
    return omp_get_thread_num();
}
