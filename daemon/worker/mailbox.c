/* Posted calls; see mailbox.h. The list is guarded by a lock; uv_async_send coalesces, so one
 * wake-up runs everything that is there. */
#include "worker/mailbox.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"

struct task {
    struct task *next;
    void (*function)(void *argument);
    void *argument;
};

struct mailbox {
    uv_async_t wake;
    pthread_mutex_t lock;
    struct task *first, **last;
};

static void deliver(struct mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->lock);
    struct task *task = mailbox->first;
    mailbox->first = NULL;
    mailbox->last = &mailbox->first;
    pthread_mutex_unlock(&mailbox->lock);
    while (task != NULL) {
        struct task *next = task->next;
        task->function(task->argument);
        free(task);
        task = next;
    }
}

static void on_wake(uv_async_t *wake)
{
    deliver(wake->data);
}

status_t mailbox_new(uv_loop_t *loop, struct mailbox **out)
{
    struct mailbox *mailbox = mem_alloc(sizeof *mailbox);
    int error = uv_async_init(loop, &mailbox->wake, on_wake);
    if (error != 0) {
        free(mailbox);
        return status_new(STATUS_INTERNAL, "cannot make a wake-up handle: %s", uv_strerror(error));
    }
    mailbox->wake.data = mailbox;
    mailbox->last = &mailbox->first;
    pthread_mutex_init(&mailbox->lock, NULL);
    *out = mailbox;
    return NULL;
}

void mailbox_post(struct mailbox *mailbox, void (*function)(void *argument), void *argument)
{
    struct task *task = mem_alloc(sizeof *task);
    *task = (struct task){.function = function, .argument = argument};
    pthread_mutex_lock(&mailbox->lock);
    *mailbox->last = task;
    mailbox->last = &task->next;
    uv_async_send(&mailbox->wake); /* under the lock: the handle cannot be closing meanwhile */
    pthread_mutex_unlock(&mailbox->lock);
}

static void on_closed(uv_handle_t *handle)
{
    struct mailbox *mailbox = handle->data;
    pthread_mutex_destroy(&mailbox->lock);
    free(mailbox);
}

void mailbox_close(struct mailbox *mailbox)
{
    deliver(mailbox);
    uv_close((uv_handle_t *)&mailbox->wake, on_closed);
}
