/* Rendezvous stores; see rendezvous.h. The maps are small: a list per store is enough. */
#include "coordinator/workers/rendezvous.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct rendezvous_entry {
    char *key;
    void *value;
    size_t size;
    bool failed; /* the key names a group, the value says why it failed (a string) */
};

struct wait {
    char *key;
    int64_t timeout_ms, deadline;
    rendezvous_done *done;
    void *user;
};

struct rendezvous_store {
    char *name;
    struct rendezvous_entry *entries;
    int entry_count, entry_capacity;
    struct wait *waits;
    int wait_count, wait_capacity;
    size_t bytes;
};

static struct rendezvous_store *find(struct coordinator *c, const char *name)
{
    for (int i = 0; i < c->store_count; i++)
        if (strcmp(c->stores[i]->name, name) == 0) return c->stores[i];
    return NULL;
}

static struct rendezvous_entry *find_entry(struct rendezvous_store *store, const char *key)
{
    for (int i = 0; i < store->entry_count; i++)
        if (strcmp(store->entries[i].key, key) == 0) return &store->entries[i];
    return NULL;
}

void rendezvous_begin(struct coordinator *c, const char *name)
{
    struct rendezvous_store *store = mem_alloc(sizeof *store);
    store->name = mem_strdup(name);
    MEM_GROW(c->stores, c->store_count, c->store_capacity);
    c->stores[c->store_count++] = store;
}

static bool is_in_group(const char *key, const char *group)
{
    size_t length = strlen(group);
    return strncmp(key, group, length) == 0 && key[length] == '/';
}

/* Why the key's group failed; NULL if it has not. */
static status_t failure_of(const struct rendezvous_store *store, const char *key)
{
    for (int i = 0; i < store->entry_count; i++) {
        const struct rendezvous_entry *entry = &store->entries[i];
        if (entry->failed && is_in_group(key, entry->key))
            return status_new(STATUS_ABORTED, "%s", (const char *)entry->value);
    }
    return NULL;
}

/* Removes the wait from the list before calling `done`, which may start another wait. */
static void answer(struct rendezvous_store *store, int index, status_t status,
                   const struct rendezvous_entry *entry)
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

/* Ends the store and its waits: with ABORTED if the attempt is over, otherwise with UNAVAILABLE
 * because the coordinator closes; the ranks then wait at the next one. */
static void end(struct coordinator *c, const char *name, bool over)
{
    struct rendezvous_store *store = find(c, name);
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
    return status_new(STATUS_INVALID_ARGUMENT, "key: expected 1 to %d bytes, found %zu",
                      RENDEZVOUS_KEY_MAX, length);
}

static status_t set(struct coordinator *c, const char *name, const char *key, const void *value,
                    size_t size, struct rendezvous_store **out, struct rendezvous_entry **set)
{
    TRY(check_key(key));
    if (size > RENDEZVOUS_VALUE_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "value: expected at most %d bytes, found %zu",
                          RENDEZVOUS_VALUE_MAX, size);
    struct rendezvous_store *store = find(c, name);
    if (store == NULL) return gone(name);
    TRY(failure_of(store, key));
    if (store->bytes + size + strlen(key) > RENDEZVOUS_TOTAL_MAX)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "the store %s would hold more than %d bytes",
                          name, RENDEZVOUS_TOTAL_MAX);
    struct rendezvous_entry *entry = find_entry(store, key);
    if (entry == NULL) {
        MEM_GROW(store->entries, store->entry_count, store->entry_capacity);
        entry = &store->entries[store->entry_count++];
        *entry = (struct rendezvous_entry){.key = mem_strdup(key)};
        store->bytes += strlen(key);
    }
    store->bytes += size - entry->size;
    free(entry->value);
    entry->value = mem_dup(value, size);
    entry->size = size;
    *out = store;
    *set = entry;
    return NULL;
}

status_t rendezvous_set(struct coordinator *c, const char *name, const char *key, const void *value,
                        size_t size)
{
    struct rendezvous_store *store;
    struct rendezvous_entry *entry;
    TRY(set(c, name, key, value, size, &store, &entry));
    for (int i = store->wait_count - 1; i >= 0; i--)
        if (i < store->wait_count && strcmp(store->waits[i].key, key) == 0)
            answer(store, i, NULL, entry);
    return NULL;
}

static void forget_group(struct rendezvous_store *store, const char *group)
{
    for (int i = store->entry_count - 1; i >= 0; i--) {
        struct rendezvous_entry *entry = &store->entries[i];
        if (!is_in_group(entry->key, group)) continue;
        store->bytes -= entry->size + strlen(entry->key);
        free(entry->key);
        free(entry->value);
        LIST_REMOVE(store->entries, store->entry_count, i);
    }
}

status_t rendezvous_fail(struct coordinator *c, const char *name, const char *group,
                         const char *why)
{
    struct rendezvous_store *store = find(c, name);
    struct rendezvous_entry *entry = store != NULL ? find_entry(store, group) : NULL;
    if (entry != NULL && entry->failed) return NULL; /* most likely reported by its peers */
    TRY(set(c, name, group, why, strlen(why) + 1, &store, &entry));
    entry->failed = true;
    forget_group(store, group);
    for (int i = store->wait_count - 1; i >= 0; i--)
        if (i < store->wait_count && is_in_group(store->waits[i].key, group))
            answer(store, i, failure_of(store, store->waits[i].key), NULL);
    return NULL;
}

void rendezvous_get(struct coordinator *c, const char *name, const char *key, int64_t timeout_ms,
                    rendezvous_done *done, void *user)
{
    status_t status = check_key(key);
    struct rendezvous_store *store = find(c, name);
    if (status == NULL && store == NULL) status = gone(name);
    if (status == NULL) status = failure_of(store, key);
    struct rendezvous_entry *entry = status == NULL ? find_entry(store, key) : NULL;
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
    coordinator_tick_soon(c);
}

void rendezvous_forget(struct coordinator *c, const void *user)
{
    for (int i = 0; i < c->store_count; i++) {
        struct rendezvous_store *store = c->stores[i];
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
        struct rendezvous_store *store = c->stores[i];
        for (int j = store->wait_count - 1; j >= 0; j--) {
            if (j >= store->wait_count || now < store->waits[j].deadline) continue;
            answer(store, j,
                   status_new(STATUS_DEADLINE_EXCEEDED, "%s was not set in %s within %lld ms",
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
