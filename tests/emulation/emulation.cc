/* See emulation.h. */
#include "emulation.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

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
/* From stack to stack: at a power of two all threads' frames would share a few lines of the cache.
 */
enum { STACK_STRIDE = STACK_BYTES + 5 * 64 };
enum { PARTS_MAX = 64, NONE = -1 };
enum { SHARED_BYTES = 48 * 1024 }; /* what every device has by default */

enum state { READY, AT_BLOCK_BARRIER, AT_WARP_BARRIER, ENDED };

struct fiber {
    context_t context;
    state where;
    bool resumed; /* it runs already, so it is switched to, not started */
    alignas(SLOT_BYTES) unsigned char slots[2][SLOT_BYTES];
    int turn; /* which slot the next exchange uses */
#ifdef EMULATION_RACES
    void *sanitizer; /* its fiber, kept from block to block as the stack is */
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

struct machine {
    struct fiber fibers[THREADS_MAX];
    short order[THREADS_MAX]; /* of the block's threads; they run in turns */
    char *stacks;
    context_t launch;           /* what began the block, and continues after it */
    int threads, left, current; /* the block's, those that have not ended, the one that runs */
    int turn;                   /* the place of `current` in `order` */
    int at_block, at_warp[THREADS_MAX / WARP_SIZE];
    const std::function<void()> *body;
    struct block_memory *block;
    struct shared_part parts[PARTS_MAX];
    int part_count;
    size_t shared_used;
    uint64_t random;
#if defined(__SANITIZE_ADDRESS__)
    bool launching; /* the block's first thread has not begun */
    const void *launch_stack;
    size_t launch_bytes;
#endif
#ifdef EMULATION_RACES
    void *sanitizer;   /* the launch's */
    int barriers;      /* that the block has passed */
    char begun, ended; /* tags of the launch */
#endif
};

/* One per thread of the CPU, as ranks may be threads. Plain memory behind a plain pointer: C++
 * would check at each access whether a thread_local with a constructor exists yet. */
thread_local struct machine *m;
uint64_t seed = 1;

[[noreturn]] void fail(const char *what)
{
    fprintf(stderr, "emulation: %s (block %u %u, thread %u)\n", what, place.block.x, place.block.y,
            place.thread.x);
    abort();
}

uint64_t next_random()
{
    uint64_t z = m->random += 0x9e3779b97f4a7c15;
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

/* Ends with its thread. */
struct machine_owner {
    ~machine_owner()
    {
        if (m == nullptr) return;
        munmap(m->stacks, (size_t)THREADS_MAX * STACK_STRIDE);
        munmap(m->block, sizeof *m->block);
        munmap(m, sizeof *m);
        m = nullptr;
    }
};

void need_machine()
{
    static thread_local struct machine_owner owner;
    (void)&owner; /* its first use registers the destructor */
    if (m != nullptr) return;
    m = (struct machine *)map(sizeof *m);
    m->stacks = (char *)map((size_t)THREADS_MAX * STACK_STRIDE);
    m->block = (struct block_memory *)map(sizeof *m->block);
}

/* ---- reports to ThreadSanitizer ---- */

#ifdef EMULATION_RACES
/* Newly mapped memory has no history: a block's shared memory is not another block's. The launch
 * makes the fibers: what makes one comes before all that it does. */
void block_begins()
{
    munmap(m->block, sizeof *m->block);
    m->block = (struct block_memory *)map(sizeof *m->block);
    m->barriers = 0;
    memset(m->block->shared, 0xff, sizeof m->block->shared);
    for (int i = 0; i < m->threads; i++)
        if (m->fibers[i].sanitizer == nullptr) m->fibers[i].sanitizer = __tsan_create_fiber(0);
    __tsan_release(&m->begun);
}

void races_thread_runs(const fiber &f)
{
    __tsan_switch_to_fiber(f.sanitizer, __tsan_switch_to_fiber_no_sync);
    if (!f.resumed) __tsan_acquire(&m->begun);
}

void races_thread_ends()
{
    __tsan_release(&m->ended);
}

void races_launch_begins()
{
    m->sanitizer = __tsan_get_current_fiber();
}

void races_launch_continues()
{
    __tsan_switch_to_fiber(m->sanitizer, __tsan_switch_to_fiber_no_sync);
}

void races_launch_ends()
{
    __tsan_acquire(&m->ended);
}

char *races_barrier()
{
    return &m->block->barriers[m->barriers % 2];
}

void races_arrive()
{
    __tsan_release(races_barrier());
}

void races_next_barrier()
{
    m->barriers++;
}

void races_pass(char *barrier)
{
    __tsan_acquire(barrier);
}
#else
void block_begins()
{
    memset(m->block->shared, 0xff, sizeof m->block->shared);
}
void races_thread_runs(const fiber &)
{
}
void races_thread_ends()
{
}
void races_launch_begins()
{
}
void races_launch_continues()
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

char *stack_of(int thread)
{
    return m->stacks + (size_t)thread * STACK_STRIDE;
}

/* The block's next thread that can run, or NONE; each has its turn. */
int take_turn()
{
    for (int i = 0; i < m->threads; i++) {
        m->turn = m->turn + 1 < m->threads ? m->turn + 1 : 0;
        if (m->fibers[m->order[m->turn]].where == READY) return m->order[m->turn];
    }
    return NONE;
}

/* Leaves what runs, saved in *from, for a thread; if not `for_good`, returns when it is switched
 * to. */
void to_thread(context_t *from, int thread, bool for_good)
{
    fiber &f = m->fibers[thread];
    m->current = thread;
    place.thread = dim3((unsigned)thread, 0, 0);
    if (!f.resumed) prepare_context(&f.context, stack_of(thread));
#if defined(__SANITIZE_ADDRESS__)
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, stack_of(thread), STACK_BYTES);
#endif
    (void)for_good;
    races_thread_runs(f);
    f.resumed = true;
    switch_context(from, &f.context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

/* The block's last thread has ended. */
void to_launch(context_t *from)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(nullptr, m->launch_stack, m->launch_bytes);
#endif
    races_launch_continues();
    switch_context(from, &m->launch);
}

/* Lets others run until this thread can continue, or for good. */
void yield(bool for_good)
{
    fiber &f = m->fibers[m->current];
    if (m->left == 0) to_launch(&f.context);
    int next = take_turn();
    if (next == NONE) fail("some threads wait at a barrier that others do not reach");
    to_thread(&f.context, next, for_good);
}

void fiber_main()
{
#if defined(__SANITIZE_ADDRESS__)
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
    if (m->launching) m->launch_stack = stack, m->launch_bytes = bytes;
    m->launching = false;
#endif
    (*m->body)();
    m->fibers[m->current].where = ENDED;
    m->left--;
    races_thread_ends();
    yield(true);
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

/* A thread never leaves its last frames. */
void unpoison_stacks()
{
#if defined(__SANITIZE_ADDRESS__)
    for (int i = 0; i < m->threads; i++) {
        char *from = stack_of(i);
#ifdef OWN_SWITCH
        from = (char *)m->fibers[i].context;
#endif
        __asan_unpoison_memory_region(from, (size_t)(stack_of(i) + STACK_BYTES - from));
    }
#endif
}

void run_block(int threads)
{
    m->threads = m->left = threads;
    m->at_block = 0;
    block_begins();
    memset(m->at_warp, 0, sizeof m->at_warp);
    m->part_count = 0;
    m->shared_used = 0;
    order turns((uint64_t)threads);
    for (int i = 0; i < threads; i++) {
        fiber &f = m->fibers[i];
        f.where = READY, f.resumed = false, f.turn = 0;
        m->order[i] = (short)turns.at((uint64_t)i);
    }
#if defined(__SANITIZE_ADDRESS__)
    m->launching = true;
#endif
    m->turn = NONE;
    to_thread(&m->launch, take_turn(), false);
    unpoison_stacks();
}

bool only_last = false;

void run_grid(dim3 grid, int threads, const std::function<void()> &body)
{
    if (threads % WARP_SIZE != 0 || threads > THREADS_MAX) fail("a block is whole warps");
    if (grid.x == 0 || grid.y == 0 || grid.y > 65535) fail("a grid that no device takes");
    need_machine();
    m->random = seed;
    m->body = &body;
    place.grid = grid;
    races_launch_begins();
    uint64_t count = (uint64_t)grid.x * grid.y;
    order blocks(count);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t block = blocks.at(i);
        if (only_last && block != count - 1) continue;
        place.block = dim3((unsigned)(block % grid.x), (unsigned)(block / grid.x), 0);
        run_block(threads);
    }
    races_launch_ends();
}

} // namespace

void emulation_only_last(bool on)
{
    only_last = on;
}

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
    for (int i = 0; i < m->part_count; i++)
        if (m->parts[i].key == key) return m->block->shared + m->parts[i].offset;
    size_t offset = (m->shared_used + 15) / 16 * 16;
    if (offset + bytes > SHARED_BYTES || m->part_count == PARTS_MAX)
        fail("more shared memory than a block has");
    m->parts[m->part_count++] = {key, offset};
    m->shared_used = offset + bytes;
    return m->block->shared + offset;
}

void emulation_sync_block()
{
    char *barrier = races_barrier();
    races_arrive();
    if (++m->at_block == m->threads) {
        m->at_block = 0;
        for (int i = 0; i < m->threads; i++)
            if (m->fibers[i].where == AT_BLOCK_BARRIER) m->fibers[i].where = READY;
        races_next_barrier();
    } else {
        m->fibers[m->current].where = AT_BLOCK_BARRIER;
        yield(false);
    }
    races_pass(barrier);
}

/* memcpy would be seen by ThreadSanitizer. */
static void copy(void *to, const void *from, size_t bytes)
{
    typedef uint32_t __attribute__((may_alias)) word;
    typedef uint64_t __attribute__((may_alias)) two_words;
    if (bytes == sizeof(word)) *(volatile word *)to = *(const word *)from;
    else if (bytes == sizeof(two_words)) *(volatile two_words *)to = *(const two_words *)from;
    else fail("an exchange is of 4 or 8 bytes");
}

/* Two slots alternate: a thread one exchange ahead does not overwrite the value of those behind. */
void emulation_exchange(void *value, size_t bytes, int from)
{
    fiber &f = m->fibers[m->current];
    int warp = m->current / WARP_SIZE, turn = f.turn;
    f.turn ^= 1;
    copy(f.slots[turn], value, bytes);
    if (++m->at_warp[warp] == WARP_SIZE) {
        m->at_warp[warp] = 0;
        for (int i = warp * WARP_SIZE; i < (warp + 1) * WARP_SIZE; i++)
            if (m->fibers[i].where == AT_WARP_BARRIER) m->fibers[i].where = READY;
    } else {
        f.where = AT_WARP_BARRIER;
        yield(false);
    }
    copy(value, m->fibers[warp * WARP_SIZE + from].slots[turn], bytes);
}
