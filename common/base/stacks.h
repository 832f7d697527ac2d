/*
 * The stacks of this process's threads, while they run or hang. A signal makes a thread walk its
 * own stack with glibc's backtrace(). libunwind would do the same; glibc's is always there and,
 * since version 2.35, finds unwind tables without a lock (_dl_find_object), so it may run in a
 * handler whatever the thread was doing. libunwind calls dl_iterate_phdr, which locks. The handler
 * does nothing else; names are looked up afterwards, by the thread that asked.
 */
#ifndef FSDPD_BASE_STACKS_H
#define FSDPD_BASE_STACKS_H

#include <stdint.h>

enum { STACK_FRAMES_MAX = 48 };

/* Once, before threads start: installs the handler, and loads what backtrace() loads on first use.
 */
void stacks_open(void);

/*
 * Gives the calling thread a stack of its own for signals, until it ends. A thread MUST have one
 * before it runs code that keeps anything else in the stack pointer, as the products of oneDNN's
 * "gemm:jit" do: a handler would write over what it points to. Without memory for it the thread
 * blocks the signal, and has no stack to show.
 */
void stack_for_signals(void);

/*
 * The return addresses of a thread of this process, innermost first, and their number: 0 if the
 * thread did not answer in time (it sleeps in the kernel, or has ended). From one thread at a time.
 * The thread's system call is restarted, or fails with EINTR where signal(7) says so.
 */
int stack_capture(int thread, void *frames[STACK_FRAMES_MAX], int64_t timeout_ns);

/* "fill_batches+0x45", "libgrpc.so.29+0x1234": the function that contains frame `index`'s address.
 * The caller frees it. */
char *stack_frame_name(void *const *frames, int index);

#endif
