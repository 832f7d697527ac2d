/* See emulation.h. */
#include "emulation.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <vector>

/* swapcontext makes a system call for the signal mask every time. */
#if defined(__x86_64__) && !defined(__CET__)
#define OWN_SWITCH 1
#else
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef EMULATION_RACES
#include <sanitizer/tsan_interface.h>
#endif

static thread_local struct emulation_place place;

struct emulation_place *emulation_here()
{
    return &place;
}

int (*emulation_enqueue)(void *stream, const char *call, std::function<void()> work);

#ifdef OWN_SWITCH
/* Saves the callee-saved registers on the stack, and the stack pointer in *from; continues at
 * `to`. */
extern "C" void emulation_switch(void **from, void *to);
asm(R"(
    .text
    .globl emulation_switch
    .type emulation_switch, @function
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulation_switch, . - emulation_switch
)");
using context_t = void *; /* the stack's end */
#else
using context_t = ucontext_t;
#endif

namespace
{

enum { WARP_SIZE = 32, THREADS_MAX = 1024, SLOT_BYTES = 8, STACK_BYTES = 64 * 1024 };
enum { PARTS_MAX = 64 };
enum { SHARED_BYTES = 48 * 1024 }; /* what every device has by default */

enum state { READY, AT_BLOCK_BARRIER, AT_WARP_BARRIER, ENDED };

struct fiber {
    context_t context;
    state where;
    bool resumed; /* it runs already, so it is switched to, not started */
    unsigned char slots[2][SLOT_BYTES];
    int turn; /* which slot the next exchange uses */
#ifdef EMULATION_RACES
    void *sanitizer = nullptr; /* its fiber, kept from block to block as the stack is */
#endif
};

struct shared_part {
    const void *key;
    size_t offset;
};

struct block_memory {
    alignas(64) char shared[SHARED_BYTES];
    char barriers[2]; /* their tags, in turns */
};

/* One per thread of the CPU: ranks may be threads. */
struct machine {
    std::vector<fiber> fibers;
    char *stacks = nullptr;
    context_t scheduler;
    int threads = 0, current = 0, at_block = 0, at_warp[THREADS_MAX / WARP_SIZE] = {};
    const std::function<void()> *body = nullptr;
    struct block_memory *block = nullptr;
    std::vector<shared_part> parts;
    size_t shared_used = 0;
    uint64_t random = 1;
#if defined(__SANITIZE_ADDRESS__)
    const void *scheduler_stack = nullptr;
    size_t scheduler_bytes = 0;
#endif
#ifdef EMULATION_RACES
    void *sanitizer = nullptr; /* the scheduler */
    int barriers = 0;          /* that the block has passed */
    char begun, ended;         /* tags of the launch */
#endif
    ~machine()
    {
        if (stacks != nullptr) munmap(stacks, (size_t)THREADS_MAX * STACK_BYTES);
        if (block != nullptr) munmap(block, sizeof *block);
    }
};

thread_local machine m;
uint64_t seed = 1;

[[noreturn]] void fail(const char *what)
{
    fprintf(stderr, "emulation: %s (block %u %u, thread %u)\n", what, place.block.x, place.block.y,
            place.thread.x);
    abort();
}

uint64_t next_random()
{
    uint64_t z = m.random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

void *map(size_t bytes)
{
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("no memory");
    return memory;
}

/* ---- reports to ThreadSanitizer ---- */

#ifdef EMULATION_RACES
/* Newly mapped memory has no history: a block's shared memory is not another block's. */
void block_begins()
{
    munmap(m.block, sizeof *m.block);
    m.block = (block_memory *)map(sizeof *m.block);
    m.barriers = 0;
    memset(m.block->shared, 0xff, sizeof m.block->shared);
    __tsan_release(&m.begun);
}

void races_thread_runs(fiber &f)
{
    if (f.sanitizer == nullptr) f.sanitizer = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(f.sanitizer, __tsan_switch_to_fiber_no_sync);
    if (!f.resumed) __tsan_acquire(&m.begun);
}

void races_thread_rests(const fiber &f)
{
    if (f.where == ENDED) __tsan_release(&m.ended);
    __tsan_switch_to_fiber(m.sanitizer, __tsan_switch_to_fiber_no_sync);
}

void races_launch_begins()
{
    m.sanitizer = __tsan_get_current_fiber();
}

void races_launch_ends()
{
    __tsan_acquire(&m.ended);
}

char *races_barrier()
{
    return &m.block->barriers[m.barriers % 2];
}

void races_arrive()
{
    __tsan_release(races_barrier());
}

void races_next_barrier()
{
    m.barriers++;
}

void races_pass(char *barrier)
{
    __tsan_acquire(barrier);
}
#else
void block_begins()
{
    memset(m.block->shared, 0xff, sizeof m.block->shared);
}
void races_thread_runs(const fiber &)
{
}
void races_thread_rests(const fiber &)
{
}
void races_launch_begins()
{
}
void races_launch_ends()
{
}
char *races_barrier()
{
    return nullptr;
}
void races_arrive()
{
}
void races_next_barrier()
{
}
void races_pass(char *)
{
}
#endif

/* ---- threads ---- */

void fiber_main();

void switch_context(context_t *from, context_t *to)
{
#ifdef OWN_SWITCH
    emulation_switch(from, *to);
#else
    swapcontext(from, to);
#endif
}

/* Makes the first switch to it call fiber_main. */
void prepare_context(context_t *context, char *stack)
{
#ifdef OWN_SWITCH
    void **top = (void **)(stack + STACK_BYTES) - 2; /* aligned as at a function's start */
    top[0] = (void *)fiber_main;
    top[1] = nullptr;
    *context = top - 6; /* six registers, of any contents */
#else
    getcontext(context);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = STACK_BYTES;
    context->uc_link = nullptr;
    makecontext(context, fiber_main, 0);
#endif
}

void to_scheduler(bool for_good)
{
    fiber &f = m.fibers[(size_t)m.current];
#if defined(__SANITIZE_ADDRESS__)
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, m.scheduler_stack,
                                   m.scheduler_bytes);
#endif
    (void)for_good;
    races_thread_rests(f);
    switch_context(&f.context, &m.scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, &m.scheduler_stack, &m.scheduler_bytes);
#endif
}

void fiber_main()
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &m.scheduler_stack, &m.scheduler_bytes);
#endif
    (*m.body)();
    m.fibers[(size_t)m.current].where = ENDED;
    to_scheduler(true);
}

/* Runs the thread until it waits or ends. */
void resume(int thread)
{
    fiber &f = m.fibers[(size_t)thread];
    m.current = thread;
    place.thread = dim3((unsigned)thread, 0, 0);
    if (!f.resumed) {
        prepare_context(&f.context, m.stacks + (size_t)thread * STACK_BYTES);
    }
#if defined(__SANITIZE_ADDRESS__)
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, m.stacks + (size_t)thread * STACK_BYTES, STACK_BYTES);
#endif
    races_thread_runs(f);
    f.resumed = true;
    switch_context(&m.scheduler, &f.context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
    /* It never left its last frames. */
    if (f.where == ENDED)
        __asan_unpoison_memory_region(m.stacks + (size_t)thread * STACK_BYTES, STACK_BYTES);
#endif
}

void wait_here()
{
    int thread = m.current;
    to_scheduler(false);
    m.current = thread;
    place.thread = dim3((unsigned)thread, 0, 0);
}

/* An order of 0 to count - 1: a random start, then a step that reaches all. */
struct order {
    uint64_t start, step, count;
    explicit order(uint64_t n) : start(next_random() % n), step(1), count(n)
    {
        static const uint64_t steps[] = {1, 7, 11, 13, 29, 97};
        uint64_t wanted = steps[next_random() % 6];
        while (n % wanted == 0 && wanted > 1) wanted--;
        for (uint64_t a = n, b = wanted; b != 0;) { /* the greatest common divisor */
            uint64_t rest = a % b;
            a = b, b = rest;
            if (b == 0 && a != 1) wanted = 1;
        }
        step = wanted;
        if (next_random() % 2) step = n - step % n;
    }
    uint64_t at(uint64_t i) const
    {
        return (start + i * step) % count;
    }
};

void run_block(int threads)
{
    m.threads = threads;
    m.at_block = 0;
    block_begins();
    memset(m.at_warp, 0, sizeof m.at_warp);
    m.parts.clear();
    m.shared_used = 0;
    for (int i = 0; i < threads; i++) {
        fiber &f = m.fibers[(size_t)i];
        f.where = READY, f.resumed = false, f.turn = 0;
    }
    order threads_in((uint64_t)threads);
    for (int left = threads; left > 0;) {
        bool moved = false;
        for (int i = 0; i < threads; i++) {
            int thread = (int)threads_in.at((uint64_t)i);
            if (m.fibers[(size_t)thread].where != READY) continue;
            resume(thread);
            moved = true;
            if (m.fibers[(size_t)thread].where == ENDED) left--;
        }
        if (!moved) fail("some threads wait at a barrier that others do not reach");
    }
}

void run_grid(dim3 grid, int threads, const std::function<void()> &body)
{
    if (threads % WARP_SIZE != 0 || threads > THREADS_MAX) fail("a block is whole warps");
    if (grid.x == 0 || grid.y == 0 || grid.y > 65535) fail("a grid that no device takes");
    if (m.stacks == nullptr) {
        m.stacks = (char *)map((size_t)THREADS_MAX * STACK_BYTES);
        m.block = (block_memory *)map(sizeof *m.block);
        m.parts.reserve(PARTS_MAX);
        m.fibers.resize(THREADS_MAX);
    }
    m.random = seed;
    m.body = &body;
    place.grid = grid;
    races_launch_begins();
    uint64_t count = (uint64_t)grid.x * grid.y;
    order blocks(count);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t block = blocks.at(i);
        place.block = dim3((unsigned)(block % grid.x), (unsigned)(block / grid.x), 0);
        run_block(threads);
    }
    races_launch_ends();
}

} // namespace

void emulation_set_seed(uint64_t value)
{
    seed = value;
}

int emulation_run(void *stream, const char *call, dim3 grid, int threads,
                  const std::function<void()> &body)
{
    if (emulation_enqueue != nullptr)
        return emulation_enqueue(stream, call, [=] { run_grid(grid, threads, body); });
    run_grid(grid, threads, body);
    return 0;
}

void *emulation_shared(const void *key, size_t bytes)
{
    for (const shared_part &part : m.parts)
        if (part.key == key) return m.block->shared + part.offset;
    size_t offset = (m.shared_used + 15) / 16 * 16;
    if (offset + bytes > SHARED_BYTES || m.parts.size() == PARTS_MAX)
        fail("more shared memory than a block has");
    m.parts.push_back({key, offset});
    m.shared_used = offset + bytes;
    return m.block->shared + offset;
}

void emulation_sync_block()
{
    char *barrier = races_barrier();
    races_arrive();
    if (++m.at_block == m.threads) {
        m.at_block = 0;
        for (int i = 0; i < m.threads; i++)
            if (m.fibers[(size_t)i].where == AT_BLOCK_BARRIER) m.fibers[(size_t)i].where = READY;
        races_next_barrier();
    } else {
        m.fibers[(size_t)m.current].where = AT_BLOCK_BARRIER;
        wait_here();
    }
    races_pass(barrier);
}

/* memcpy would be seen by ThreadSanitizer. */
static void copy(void *to, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) ((volatile char *)to)[i] = ((const char *)from)[i];
}

/* Two slots alternate: a thread one exchange ahead does not overwrite the value of those behind. */
void emulation_exchange(void *value, size_t bytes, int from)
{
    fiber &f = m.fibers[(size_t)m.current];
    int warp = m.current / WARP_SIZE, turn = f.turn;
    f.turn ^= 1;
    copy(f.slots[turn], value, bytes);
    if (++m.at_warp[warp] == WARP_SIZE) {
        m.at_warp[warp] = 0;
        for (int i = warp * WARP_SIZE; i < (warp + 1) * WARP_SIZE; i++)
            if (m.fibers[(size_t)i].where == AT_WARP_BARRIER) m.fibers[(size_t)i].where = READY;
    } else {
        f.where = AT_WARP_BARRIER;
        wait_here();
    }
    copy(value, m.fibers[(size_t)(warp * WARP_SIZE + from)].slots[turn], bytes);
}
