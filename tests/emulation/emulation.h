/*
 * CUDA's blocks, threads, shared memory, barriers and warp shuffles on one thread of the CPU, for
 * tests of the kernels in kernels/cuda. Every thread of a block is a coroutine that runs up to its
 * next barrier; the seed determines the order of the threads, and the order of the blocks. A
 * block's shared memory starts as bytes 0xff: NaN. If threads wait at a barrier that others never
 * reach, the process ends with a message.
 *
 * With EMULATION_RACES, and the kernels compiled for ThreadSanitizer (but not emulation.cc), every
 * thread is a fiber of it: a barrier orders what its block's threads did before and after it, the
 * begin and the end of a launch order everything, and nothing else does, no shuffle and no end of a
 * block. It then reports races within a block and between blocks. Otherwise races are seen only if
 * another order of threads gives another result.
 */
#ifndef FSDPD_TESTS_EMULATION_H
#define FSDPD_TESTS_EMULATION_H

#include <functional>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned width = 1, unsigned height = 1, unsigned depth = 1)
        : x(width), y(height), z(depth)
    {
    }
};

/*
 * Where the running thread is. Its address is the same for all CUDA threads of a thread of the CPU.
 * A function, because kernels under -fsanitize=null must not take the address of an extern
 * thread_local: GCC 12 tests it by the flags of the ADD of its offset (`add x@gottpoff(%rip), %rax;
 * je`), which GNU ld replaces by a LEA, and that sets no flags. The test then reports a null
 * pointer if the instruction before happened to give 0.
 */
struct emulation_place {
    dim3 thread, block, grid;
};
__attribute__((const)) struct emulation_place *emulation_here();
#define threadIdx (emulation_here()->thread)
#define blockIdx (emulation_here()->block)
#define gridDim (emulation_here()->grid)

/* Runs the kernel that `body` calls, or gives it to emulation_enqueue. `call` begins with its name.
 * Returns 0. */
int emulation_run(void *stream, const char *call, dim3 grid, int threads,
                  const std::function<void()> &body);

/* Set by a stub that emulates streams: accepts the work instead. Returns an error of CUDA. */
extern int (*emulation_enqueue)(void *stream, const char *call, std::function<void()> work);

/* Sets the seed of the order of threads and blocks from now on. */
extern "C" void emulation_set_seed(uint64_t seed);

/* From now on only a grid's last block runs: for launches over more elements than all of them could
 * be run for. */
extern "C" void emulation_only_last(bool on);

void *emulation_shared(const void *key, size_t bytes);
void emulation_sync_block();

/* Waits for the warp; replaces the value by that which lane `from` passed. */
void emulation_exchange(void *value, size_t bytes, int from);

static inline void __syncthreads()
{
    emulation_sync_block();
}

/* The threads of the emulation are one of the CPU. */
static inline void __threadfence_system()
{
}

static inline float __fdividef(float a, float b)
{
    return a / b;
}

template <typename T> static inline T __shfl_xor_sync(unsigned mask, T value, int distance)
{
    (void)mask;
    emulation_exchange(&value, sizeof value, (int)(threadIdx.x % 32) ^ distance);
    return value;
}

#endif
