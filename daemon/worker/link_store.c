/*
 * The rendezvous store for the link's other threads; see link.h. A call that finds no coordinator
 * is repeated until there is one. Keys set by this worker are set again at a coordinator that may
 * have lost them: it keeps them in memory.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fsdpd/v1/methods.h"
#include "worker/link_internal.h"

enum { STORE_SET_MS = 10000, RETRY_MS = 200, KEYS_MAX = 1024 };

struct kept_key {
    char *store, *key;
    void *value;
    size_t size;
    bool failed;
};

/* One call to the rendezvous store. The waiter makes it; the last to leave frees it. */
struct store_call {
    struct store_call *next; /* while it is stalled */
    struct link *link;
    bool is_get;
    Fsdpd__V1__StoreSetRequest set;
    Fsdpd__V1__StoreGetRequest get;
    bool unattended;      /* there is no waiter */
    bool done, abandoned; /* guarded by link->lock */
    status_t status;
    uint8_t *value;
    size_t size;
};

static void store_call_free(struct store_call *call)
{
    free(call->set.store);
    free(call->set.key);
    free(call->set.value.data);
    free(call->get.store);
    free(call->get.key);
    free(call->value);
    free(call);
}

static void start_store_call(void *argument);

static void on_retry(uv_timer_t *timer)
{
    struct link *link = timer->data;
    struct store_call *call = link->stalled;
    link->stalled = NULL;
    while (call != NULL) {
        struct store_call *next = call->next;
        start_store_call(call);
        call = next;
    }
}

static void stall(struct store_call *call)
{
    struct link *link = call->link;
    call->next = link->stalled;
    link->stalled = call;
    if (!uv_is_active((uv_handle_t *)&link->retry))
        uv_timer_start(&link->retry, on_retry, RETRY_MS, 0);
}

/* The coordinator was unreachable: not an answer of the store. */
static bool is_for_another_time(const struct store_call *call, status_t status)
{
    return status_code(status) == STATUS_UNAVAILABLE ||
           (!call->is_get && status_code(status) == STATUS_DEADLINE_EXCEEDED);
}

static void on_store_answer(status_t status, const ProtobufCMessage *response, void *user)
{
    struct store_call *call = user;
    struct link *link = call->link;
    const bool unattended = call->unattended;
    pthread_mutex_lock(&link->lock);
    bool abandoned = call->abandoned;
    bool again = !abandoned && !link->closing && is_for_another_time(call, status);
    bool answered = !abandoned && !again && !unattended;
    if (answered) { /* from then on the call is the waiter's */
        call->done = true;
        call->status = status;
        if (status == NULL && call->is_get) {
            const Fsdpd__V1__StoreGetResponse *answer =
                (const Fsdpd__V1__StoreGetResponse *)response;
            call->size = answer->value.len;
            call->value = mem_dup(answer->value.data, answer->value.len);
        }
        pthread_cond_broadcast(&link->changed);
    }
    pthread_mutex_unlock(&link->lock);
    if (answered) return;
    status_free(status);
    if (again) stall(call);
    else store_call_free(call);
}

static void keep_key(struct link *link, const Fsdpd__V1__StoreSetRequest *set)
{
    if (link->key_count == KEYS_MAX) { /* the oldest group has long been made */
        free(link->keys[0].store);
        free(link->keys[0].key);
        free(link->keys[0].value);
        memmove(link->keys, link->keys + 1, (size_t)--link->key_count * sizeof *link->keys);
    }
    MEM_GROW(link->keys, link->key_count, link->key_capacity);
    link->keys[link->key_count++] =
        (struct kept_key){.store = mem_strdup(set->store),
                          .key = mem_strdup(set->key),
                          .value = mem_dup(set->value.data, set->value.len),
                          .size = set->value.len,
                          .failed = set->failed};
}

static void make_call(struct store_call *call)
{
    if (call->is_get) /* the server answers at its own timeout; a margin lets that answer arrive */
        rpc_channel_call(call->link->channel, &worker_link_store_get, &call->get.base,
                         (int64_t)call->get.timeout_ms + STORE_SET_MS, false, on_store_answer,
                         call);
    else
        rpc_channel_call(call->link->channel, &worker_link_store_set, &call->set.base, STORE_SET_MS,
                         false, on_store_answer, call);
}

static void start_store_call(void *argument)
{
    struct store_call *call = argument;
    pthread_mutex_lock(&call->link->lock);
    bool abandoned = call->abandoned;
    pthread_mutex_unlock(&call->link->lock);
    if (abandoned) store_call_free(call);
    else make_call(call);
}

static void first_store_call(void *argument)
{
    struct store_call *call = argument;
    if (!call->is_get) keep_key(call->link, &call->set);
    start_store_call(call);
}

static void on_key_set_again(status_t status, const ProtobufCMessage *response, void *user)
{
    (void)response;
    (void)user;
    status_free(status); /* the attempt is over, or there is another time */
}

void link_store_repeat(struct link *link)
{
    for (int i = 0; i < link->key_count; i++) {
        const struct kept_key *key = &link->keys[i];
        Fsdpd__V1__StoreSetRequest set = FSDPD__V1__STORE_SET_REQUEST__INIT;
        set.store = key->store;
        set.key = key->key;
        set.value.data = key->value;
        set.value.len = key->size;
        set.failed = key->failed;
        rpc_channel_call(link->channel, &worker_link_store_set, &set.base, STORE_SET_MS, false,
                         on_key_set_again, link);
    }
    if (link->stalled != NULL) uv_timer_start(&link->retry, on_retry, 0, 0);
}

void link_forget_keys(struct link *link)
{
    for (int i = 0; i < link->key_count; i++) {
        free(link->keys[i].store);
        free(link->keys[i].key);
        free(link->keys[i].value);
    }
    link->key_count = 0;
}

void link_store_deinit(struct link *link)
{
    link_forget_keys(link);
    free(link->keys);
    while (link->stalled != NULL) { /* abandoned: no attempt is left when the link closes */
        struct store_call *call = link->stalled;
        link->stalled = call->next;
        store_call_free(call);
    }
}

/* On true the call is the caller's again; on false it was left to the loop's thread. */
static bool store_call_run(struct store_call *call, struct gate *gate, status_t *status)
{
    struct link *link = call->link;
    mailbox_post(link->mailbox, first_store_call, call);
    pthread_mutex_lock(&link->lock);
    bool done = link_wait(link, gate, &call->done);
    *status = done ? call->status : status_new(STATUS_ABORTED, "%s", gate->closed);
    if (!done) call->abandoned = true;
    pthread_mutex_unlock(&link->lock);
    return done;
}

static struct store_call *call_new(struct link *link)
{
    struct store_call *call = mem_alloc(sizeof *call);
    call->link = link;
    fsdpd__v1__store_set_request__init(&call->set);
    fsdpd__v1__store_get_request__init(&call->get);
    call->set.store = call->set.key = call->get.store = call->get.key = NULL;
    return call;
}

static struct store_call *set_new(struct link *link, const char *store, const char *key,
                                  const void *value, size_t size)
{
    struct store_call *call = call_new(link);
    call->set.store = mem_strdup(store);
    call->set.key = mem_strdup(key);
    call->set.value.data = mem_dup(value, size);
    call->set.value.len = size;
    return call;
}

static status_t access_set(void *user, const char *key, const void *value, size_t size)
{
    const struct store_access *access = user;
    struct store_call *call = set_new(access->link, access->store, key, value, size);
    status_t status;
    if (store_call_run(call, access->gate, &status)) store_call_free(call);
    return status_wrap(status, "rendezvous: setting %s", key);
}

static status_t access_get(void *user, const char *key, int64_t timeout_ms, void **value,
                           size_t *size)
{
    const struct store_access *access = user;
    struct store_call *call = call_new(access->link);
    call->is_get = true;
    call->get.store = mem_strdup(access->store);
    call->get.key = mem_strdup(key);
    call->get.timeout_ms = (uint32_t)timeout_ms;
    status_t status;
    bool done = store_call_run(call, access->gate, &status);
    if (status == NULL) {
        *value = call->value;
        *size = call->size;
        call->value = NULL;
    }
    if (done) store_call_free(call);
    return status_wrap(status, "rendezvous: waiting for %s", key);
}

static void access_fail(void *user, const char *group, const char *why)
{
    const struct store_access *access = user;
    link_store_fail(access->link, access->store, group, why);
}

static status_t access_check(void *user)
{
    const struct store_access *access = user;
    pthread_mutex_lock(&access->link->lock);
    const char *closed = access->gate->closed;
    status_t status = closed != NULL ? status_new(STATUS_ABORTED, "%s", closed) : NULL;
    pthread_mutex_unlock(&access->link->lock);
    return status;
}

struct rendezvous link_store_rendezvous(struct store_access *access)
{
    return (struct rendezvous){.set = access_set,
                               .get = access_get,
                               .fail = access_fail,
                               .check = access_check,
                               .user = access};
}

void link_store_fail(struct link *link, const char *store, const char *group, const char *why)
{
    struct store_call *call = set_new(link, store, group, why, strlen(why));
    call->set.failed = true;
    call->unattended = true;
    mailbox_post(link->mailbox, first_store_call, call);
}
