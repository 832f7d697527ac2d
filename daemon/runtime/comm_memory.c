/*
 * Memory registered with communicators: each one's list, so that parts share the whole's
 * registrations and everything is deregistered in time. The communicator defines what registering
 * does (comm_table.h).
 */
#include <stdlib.h>

#include "base/mem.h"
#include "base/text.h"
#include "runtime/comm_table.h"

struct comm_memory {
    void *memory;
    uint64_t bytes;
    void *handle;
    struct comm_memory *next;
};

bool comm_registers(const struct comm *comm)
{
    return comm->table->register_memory != NULL && !comm->unregistered;
}

bool comm_enqueue_needs_peers(const struct comm *comm)
{
    return comm->memory != NULL;
}

static status_t add(struct comm *comm, void *memory, uint64_t bytes)
{
    char text[32];
    void *handle = NULL;
    TRY(status_wrap(comm->table->register_memory(comm, memory, bytes, &handle),
                    "registering %s with a group of %d", text_format_bytes(bytes, text),
                    comm->world));
    struct comm_memory *made = mem_alloc(sizeof *made);
    *made = (struct comm_memory){memory, bytes, handle, comm->memory};
    comm->memory = made;
    return NULL;
}

/* Removes the first entry of the list. */
static void drop(struct comm *comm, struct comm_memory **at)
{
    struct comm_memory *dropped = *at;
    *at = dropped->next;
    status_t status = comm->table->deregister_memory(comm, dropped->handle);
    free(dropped);
    if (status == NULL) return;
    status = status_wrap(status, "deregistering memory");
    if (comm->whole != NULL) comm_fail(comm->whole, status_copy(status));
    comm_fail(comm, status);
}

static void find_and_drop(struct comm *comm, const void *memory)
{
    struct comm_memory **at = &comm->memory;
    while (*at != NULL && (*at)->memory != memory) at = &(*at)->next;
    if (*at != NULL) drop(comm, at);
}

void comm_memory_forget(struct comm *comm)
{
    while (comm->memory != NULL) drop(comm, &comm->memory);
}

static void abandon(struct comm *comm)
{
    for (struct comm_memory *next; comm->memory != NULL; comm->memory = next) {
        next = comm->memory->next;
        free(comm->memory);
    }
}

void comm_memory_abandon(struct comm *comm)
{
    for (struct comm *part = comm->parts; part != NULL; part = part->next_part) abandon(part);
    abandon(comm);
    comm->unregistered = true;
}

/* By all ranks, each with its part, before they register anything else: of symmetric memory that
 * needs the peers. */
static status_t add_and_agree(struct comm *whole, struct comm *comm, void *memory, uint64_t bytes)
{
    bool all = false, renewed = false;
    if (whole->unregistered) return NULL;
    status_t status = add(comm, memory, bytes);
    if (whole->table->agree == NULL) return status;
    status_t agreed = whole->table->agree(whole, COMM_REGISTRATION, status != NULL, &all, &renewed);
    if (agreed != NULL) return status_first(status, agreed);
    status_free(status); /* which the device has noted */
    return NULL;
}

/* Only the owner's thread, which this is, changes the list of parts: read it without the lock,
 * which must not be held while waiting. */
void comm_deregister(struct comm *comm, void *memory)
{
    for (struct comm *part = comm->parts; part != NULL; part = part->next_part)
        find_and_drop(part, memory);
    find_and_drop(comm, memory);
}

status_t comm_register(struct comm *comm, void *memory, uint64_t bytes)
{
    pthread_mutex_lock(&comm->lock);
    status_t status = status_copy(comm->failure);
    pthread_mutex_unlock(&comm->lock);
    if (status == NULL) status = add_and_agree(comm, comm, memory, bytes);
    for (struct comm *part = comm->parts; part != NULL && status == NULL;
         part = part->next_part)
        status = add_and_agree(comm, part, memory, bytes);
    if (status != NULL) comm_deregister(comm, memory);
    return status;
}

/* In the order in which the whole registered it: its list is newest first. */
static status_t share_from(const struct comm_memory *memory, struct comm *part)
{
    if (memory == NULL) return NULL;
    TRY(share_from(memory->next, part));
    return add(part, memory->memory, memory->bytes);
}

static status_t register_again(const struct comm *comm, struct comm_memory *memory)
{
    if (memory == NULL) return NULL;
    TRY(register_again(comm, memory->next));
    return comm->table->register_memory((struct comm *)comm, memory->memory, memory->bytes,
                                        &memory->handle);
}

status_t comm_memory_renew(struct comm *comm)
{
    return register_again(comm, comm->memory);
}

status_t comm_memory_share(struct comm *whole, struct comm *part)
{
    return share_from(whole->memory, part);
}
