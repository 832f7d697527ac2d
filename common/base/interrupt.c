/* See interrupt.h. */
#include "base/interrupt.h"

#include <stddef.h>

static _Thread_local const atomic_bool *watched;

void interrupt_watch(const atomic_bool *flag)
{
    watched = flag;
}

bool interrupted(void)
{
    return watched != NULL && atomic_load_explicit(watched, memory_order_relaxed);
}

status_t interrupt_check(void)
{
    return interrupted() ? status_new(STATUS_CANCELLED, "it was cancelled") : NULL;
}
