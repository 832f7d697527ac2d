/* Contracts; see must.h. Atomics are the compiler's builtins: C++ includes the structs, too. */
#include "base/must.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static _Thread_local char here; /* its address tells threads apart */

void must_fail(const char *what, const char *file, int line, const char *function)
{
    fprintf(stderr, "fsdpd: a bug: %s:%d: %s: expected %s\n", file, line, function, what);
    abort();
}

/* Whether `*thread` is the calling thread, which it becomes if it was none. */
static bool take(const void **thread)
{
    const void *seen = NULL;
    return __atomic_compare_exchange_n(thread, &seen, &here, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_ACQUIRE) ||
           seen == &here;
}

void must_own(struct must_owner *owner, const char *file, int line, const char *function)
{
    if (!take(&owner->thread)) must_fail("the thread that owns it", file, line, function);
}

struct must_user *must_enter(struct must_user *user, const char *file, int line,
                             const char *function)
{
    if (!take(&user->thread)) must_fail("that no other thread uses it now", file, line, function);
    user->depth++;
    return user;
}

void must_leave(struct must_user *const *user)
{
    if (--(*user)->depth == 0) __atomic_store_n(&(*user)->thread, NULL, __ATOMIC_RELEASE);
}
