/* Contracts: base/must.h, and that the modules that have one keep others out. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "base/must.h"
#include "tests/testing.h"

struct thing {
    struct must_owner owner;
    struct must_user user;
    atomic_int phase; /* 1: the other thread uses it; 2: it may end */
};

static void use_alone(struct thing *thing)
{
    MUST_ALONE(&thing->user);
}

static void *use_longer(void *argument)
{
    struct thing *thing = argument;
    MUST_ALONE(&thing->user);
    atomic_store(&thing->phase, 1);
    while (atomic_load(&thing->phase) != 2) {}
    return NULL;
}

static void *own(void *argument)
{
    struct thing *thing = argument;
    MUST_OWN(&thing->owner);
    return NULL;
}

static pthread_t start(void *(*function)(void *), struct thing *thing)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, function, thing), 0);
    return thread;
}

TEST(what_holds_costs_nothing)
{
    int one = 1;
    MUST(one == 1);
}

TEST(what_does_not_hold_ends_the_process, .signal = SIGABRT)
{
    int one = 1;
    MUST(one == 2);
}

TEST(one_thread_after_the_other_may_use_an_object)
{
    struct thing thing = {0};
    {
        MUST_ALONE(&thing.user);
        use_alone(&thing); /* within each other, too */
    }
    pthread_t thread = start(use_longer, &thing);
    while (atomic_load(&thing.phase) != 1) {}
    atomic_store(&thing.phase, 2);
    pthread_join(thread, NULL);
    use_alone(&thing);
}

TEST(two_threads_may_not_use_an_object_at_a_time, .signal = SIGABRT)
{
    struct thing thing = {0};
    start(use_longer, &thing);
    while (atomic_load(&thing.phase) != 1) {}
    use_alone(&thing);
}

TEST(the_thread_of_an_object_uses_it_again)
{
    struct thing thing = {0};
    own(&thing);
    own(&thing);
}

TEST(an_object_of_one_thread_is_not_anothers, .signal = SIGABRT)
{
    struct thing thing = {0};
    own(&thing);
    pthread_join(start(own, &thing), NULL);
}
