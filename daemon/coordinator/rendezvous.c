/* Rendezvous stores; see rendezvous.h. Small maps: a list per store is all that a world needs. */
#include "coordinator/rendezvous.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct entry {
    char *key;
    void *value;
    size_t size;
};

struct wait {
    char *key;
    int64_t timeout_ms, deadline;
    rendezvous_done *done;
    void *user;
};

struct rendezvous {
    char *name;
    struct entry *entries;
    int entry_count, entry_capacity;
    struct wait *waits;
    int wait_count, wait_capacity;
    size_t bytes;
};

static struct rendezvous *find(struct coordinator *c, const char *name)
{
    for (int i = 0; i < c->store_count; i++)
        if (strcmp(c->stores[i]->name, name) == 0) return c->stores[i];
    return NULL;
}

static struct entry *find_entry(struct rendezvous *store, const char *key)
{
    for (int i = 0; i < store->entry_count; i++)
        if (strcmp(store->entries[i].key, key) == 0) return &store->entries[i];
    return NULL;
}

void rendezvous_begin(struct coordinator *c, const char *name)
{
    struct rendezvous *store = mem_alloc(sizeof *store);
    store->name = mem_strdup(name);
    MEM_GROW(c->stores, c->store_count, c->store_capacity);
    c->stores[c->store_count++] = store;
}

/* Takes the wait off the list before its owner hears of it, who may come back for more. */
static void answer(struct rendezvous *store, int index, status_t status, const struct entry *entry)
{
    struct wait wait = store->waits[index];
    store->waits[index] = store->waits[--store->wait_count];
    free(wait.key);
    wait.done(wait.user, status, entry != NULL ? entry->value : NULL,
              entry != NULL ? entry->size : 0);
}

static status_t gone(const char *name)
{
    return status_new(STATUS_ABORTED, "the attempt %s is over", name);
}

/* Whoever waits is told that the attempt is over, or else that the coordinator goes: then the wait
 * goes on at the next one. */
static void end(struct coordinator *c, const char *name, bool over)
{
    struct rendezvous *store = find(c, name);
    if (store == NULL) return;
    for (int i = 0; i < c->store_count; i++)
        if (c->stores[i] == store) LIST_REMOVE(c->stores, c->store_count, i);
    while (store->wait_count > 0)
        answer(store, store->wait_count - 1,
               over ? gone(name) : status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down"), NULL);
    for (int i = 0; i < store->entry_count; i++) {
        free(store->entries[i].key);
        free(store->entries[i].value);
    }
    free(store->entries);
    free(store->waits);
    free(store->name);
    free(store);
}

void rendezvous_end(struct coordinator *c, const char *name)
{
    end(c, name, true);
}

static status_t check_key(const char *key)
{
    size_t length = strlen(key);
    if (length >= 1 && length <= RENDEZVOUS_KEY_MAX) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "key: 1 to %d bytes expected, found %zu",
                      RENDEZVOUS_KEY_MAX, length);
}

status_t rendezvous_set(struct coordinator *c, const char *name, const char *key, const void *value,
                        size_t size)
{
    TRY(check_key(key));
    if (size > RENDEZVOUS_VALUE_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "value: at most %d bytes expected, found %zu",
                          RENDEZVOUS_VALUE_MAX, size);
    struct rendezvous *store = find(c, name);
    if (store == NULL) return gone(name);
    if (store->bytes + size + strlen(key) > RENDEZVOUS_TOTAL_MAX)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "the store %s would hold more than %d bytes",
                          name, RENDEZVOUS_TOTAL_MAX);
    struct entry *entry = find_entry(store, key);
    if (entry == NULL) {
        MEM_GROW(store->entries, store->entry_count, store->entry_capacity);
        entry = &store->entries[store->entry_count++];
        *entry = (struct entry){.key = mem_strdup(key)};
        store->bytes += strlen(key);
    }
    store->bytes += size - entry->size;
    free(entry->value);
    entry->value = mem_dup(value, size);
    entry->size = size;
    for (int i = store->wait_count - 1; i >= 0; i--)
        if (i < store->wait_count && strcmp(store->waits[i].key, key) == 0)
            answer(store, i, NULL, entry);
    return NULL;
}

void rendezvous_get(struct coordinator *c, const char *name, const char *key, int64_t timeout_ms,
                    rendezvous_done *done, void *user)
{
    status_t status = check_key(key);
    struct rendezvous *store = find(c, name);
    if (status == NULL && store == NULL) status = gone(name);
    struct entry *entry = status == NULL ? find_entry(store, key) : NULL;
    if (status != NULL || entry != NULL) {
        done(user, status, entry != NULL ? entry->value : NULL, entry != NULL ? entry->size : 0);
        return;
    }
    if (timeout_ms > RENDEZVOUS_WAIT_MAX_MS) timeout_ms = RENDEZVOUS_WAIT_MAX_MS;
    MEM_GROW(store->waits, store->wait_count, store->wait_capacity);
    store->waits[store->wait_count++] = (struct wait){.key = mem_strdup(key),
                                                      .timeout_ms = timeout_ms,
                                                      .deadline = coordinator_now() + timeout_ms,
                                                      .done = done,
                                                      .user = user};
    coordinator_hurry(c);
}

void rendezvous_forget(struct coordinator *c, const void *user)
{
    for (int i = 0; i < c->store_count; i++) {
        struct rendezvous *store = c->stores[i];
        for (int j = store->wait_count - 1; j >= 0; j--) {
            if (store->waits[j].user != user) continue;
            free(store->waits[j].key);
            store->waits[j] = store->waits[--store->wait_count];
        }
    }
}

void rendezvous_tick(struct coordinator *c)
{
    int64_t now = coordinator_now();
    for (int i = 0; i < c->store_count; i++) {
        struct rendezvous *store = c->stores[i];
        for (int j = store->wait_count - 1; j >= 0; j--) {
            if (j >= store->wait_count || now < store->waits[j].deadline) continue;
            answer(store, j,
                   status_new(STATUS_NOT_FOUND, "%s was not set in %s within %lld ms",
                              store->waits[j].key, store->name,
                              (long long)store->waits[j].timeout_ms),
                   NULL);
        }
    }
}

void rendezvous_close(struct coordinator *c)
{
    while (c->store_count > 0) end(c, c->stores[c->store_count - 1]->name, false);
    free(c->stores);
    c->stores = NULL;
    c->store_capacity = 0;
}
