/* Threads and their stacks: those that hang, those that run, and one that does not answer. */
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/signals.h"
#include "base/stacks.h"
#include "base/threads.h"
#include "tests/testing.h"

static int ends[2];
static atomic_int started;
static atomic_bool stop;

static void set_up(void)
{
    stacks_open();
    ck_assert_int_eq(pipe(ends), 0);
}

TESTS_BELOW(.set_up = set_up);

__attribute__((noinline)) static void hang_in_read(void)
{
    char byte;
    atomic_store(&started, 1);
    ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    ck_assert_int_eq(byte, 'x');
}

static void *read_pipe(void *argument)
{
    hang_in_read();
    return argument;
}

static volatile unsigned counted;

__attribute__((noinline)) static void count_until_stopped(void)
{
    atomic_store(&started, 1);
    while (!atomic_load(&stop)) counted++;
}

static void *count(void *argument)
{
    count_until_stopped();
    return argument;
}

static void *be_deaf(void *argument)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    return read_pipe(argument);
}

static pthread_t start(void *(*function)(void *), const char *name)
{
    sigset_t before;
    pthread_t thread;
    atomic_store(&started, 0);
    signals_block(&before);
    ck_assert_int_eq(pthread_create(&thread, NULL, function, NULL), 0);
    signals_restore(&before);
    pthread_setname_np(thread, name);
    while (!atomic_load(&started)) usleep(1000);
    return thread;
}

static void end(pthread_t thread)
{
    atomic_store(&stop, true);
    ck_assert_int_eq(write(ends[1], "x", 1), 1);
    pthread_join(thread, NULL);
}

static struct thread_state *find(struct thread_list *list, const char *name)
{
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->threads[i].name, name) == 0) return &list->threads[i];
    ck_abort_msg("no thread %s", name);
}

static bool has_frame(const struct thread_state *thread, const char *function)
{
    for (int f = 0; f < thread->stack_count; f++)
        if (strncmp(thread->stack[f], function, strlen(function)) == 0 &&
            thread->stack[f][strlen(function)] == '+')
            return true;
    return false;
}

TEST(a_thread_in_a_read_is_shown_with_its_file_and_stack_and_reads_on)
{
    pthread_t thread = start(read_pipe, "reader");
    struct thread_list list;
    for (;;) { /* until it sleeps there */
        threads_look_at(&list, getpid());
        const char *call = find(&list, "reader")->call;
        if (call != NULL && strcmp(call, "read") == 0) break;
        threads_free(&list);
    }
    ck_assert_int_eq(find(&list, "reader")->stack_count, 0);
    threads_free(&list);
    threads_look(&list);
    const struct thread_state *reader = find(&list, "reader");
    ck_assert_str_eq(reader->call, "read");
    ck_assert_msg(strncmp(reader->file, "pipe:[", 6) == 0, "%s", reader->file);
    ck_assert_int_eq(reader->state, 'S');
    ck_assert(has_frame(reader, "hang_in_read"));
    ck_assert(has_frame(reader, "read_pipe"));
    threads_free(&list);
    end(thread);
}

TEST(a_thread_that_computes_is_shown_where_it_is)
{
    pthread_t thread = start(count, "counter");
    struct thread_list list;
    threads_look(&list);
    const struct thread_state *counter = find(&list, "counter");
    ck_assert_msg(has_frame(counter, "count_until_stopped"), "%d frames", counter->stack_count);
    ck_assert_msg(strncmp(counter->stack[0], "count_until_stopped", 19) == 0, "%s",
                  counter->stack[0]);
    threads_free(&list);
    end(thread);
}

TEST(a_thread_that_does_not_answer_is_shown_without_a_stack)
{
    pthread_t deaf = start(be_deaf, "deaf"), counter = start(count, "counter");
    struct thread_list list;
    threads_look(&list);
    ck_assert_int_eq(find(&list, "deaf")->stack_count, 0);
    ck_assert(has_frame(find(&list, "counter"), "count_until_stopped"));
    threads_free(&list);
    end(deaf);
    end(counter);
}

#if defined(__x86_64__)

static unsigned char borrowed[1 << 16];

__attribute__((noinline)) static void *borrow_stack_pointer(void *argument)
{
    void *pointer = borrowed + sizeof borrowed / 2;
    stack_for_signals();
    __asm__ volatile("xchg %%rsp, %0\n"
                     "movl $1, %1\n"
                     "1: cmpb $0, %2\n"
                     "je 1b\n"
                     "xchg %%rsp, %0\n"
                     : "+r"(pointer), "=m"(started)
                     : "m"(stop)
                     : "cc");
    return argument;
}

TEST(a_thread_may_keep_anything_in_its_stack_pointer)
{
    static const unsigned char untouched[sizeof borrowed];
    pthread_t thread = start(borrow_stack_pointer, "borrower");
    struct thread_list list;
    threads_look(&list);
    ck_assert_int_gt(find(&list, "borrower")->stack_count, 0);
    threads_free(&list);
    end(thread);
    ck_assert_mem_eq(borrowed, untouched, sizeof borrowed);
}

#endif

TEST(a_thread_that_has_ended_does_not_answer)
{
    void *frames[STACK_FRAMES_MAX];
    ck_assert_int_eq(stack_capture(1 << 30, frames, 1000000), 0);
}

TEST(a_process_has_a_state)
{
    ck_assert_int_eq(process_state(getpid()), 'R');
    ck_assert_int_eq(process_state(1LL << 40), '\0');
}
