/* The exchange that every kind of group makes at a rendezvous; see rendezvous.h. */
#include "runtime/rendezvous.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

status_t rendezvous_meet(const struct rendezvous *store, const char *group, const char *what,
                         int rank, int world, const void *own, size_t size, int64_t deadline_ns,
                         struct rendezvous_value *values)
{
    char *key = mem_printf("%s/%s/%d", group, what, rank);
    status_t status = store->set(store->user, key, own, size);
    free(key);
    if (status != NULL) return status;
    for (int r = 0; r < world; r++) values[r] = (struct rendezvous_value){NULL, 0};
    values[rank] = (struct rendezvous_value){mem_dup(own, size), size};
    for (int r = 0; r < world && status == NULL; r++) {
        if (r == rank) continue;
        int64_t left_ms = (deadline_ns - clock_monotonic_ns() + 999999) / 1000000;
        key = mem_printf("%s/%s/%d", group, what, r);
        status = store->get(store->user, key, left_ms > 0 ? left_ms : 0, &values[r].data,
                            &values[r].size);
        free(key);
    }
    for (int r = 0; r < world && status != NULL; r++) free(values[r].data);
    return status;
}

status_t rendezvous_still_open(const struct rendezvous *store)
{
    return store->check != NULL ? store->check(store->user) : NULL;
}

void rendezvous_give_up(const struct rendezvous *store, const char *group, const char *why)
{
    if (store->fail != NULL) store->fail(store->user, group, why);
}
