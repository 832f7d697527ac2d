/*
 * How ranks become an NCCL group: rank 0 makes an id and distributes it through the rendezvous
 * store; parts are split from the whole.
 *
 * An error in a capture stays in the communicator, and its next collective fails (pie#499); what
 * one of a registration does to it is not documented. So the ranks agree in the store after each of
 * them, before their next collective; if one has failed, a capture with collectives in it, all
 * abort the group, which ends the graphs that refer to it, and connect a new one.
 */
#include "runtime/cuda/comm_nccl.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#ifdef FSDPD_HAVE_NCCL

ncclConfig_t nccl_configuration(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 1; /* of the whole: its parts use its buffers, threads and connections */
    return config;
}

static status_t make_id(ncclUniqueId *id)
{
    ncclResult_t result = ncclGetUniqueId(id);
    if (result == ncclSuccess) return NULL;
    return status_new(STATUS_INTERNAL, "ncclGetUniqueId: %s", ncclGetErrorString(result));
}

status_t nccl_fetch_id(struct nccl_comm *whole, const char *key, ncclUniqueId *id)
{
    AUTO_FREE void *value = NULL;
    size_t size = 0;
    TRY(whole->store.get(whole->store.user, key, whole->base.timeout_ms, &value, &size));
    if (size != sizeof *id)
        return status_new(STATUS_INTERNAL, "an id of %zu bytes, expected %zu", size, sizeof *id);
    memcpy(id, value, sizeof *id);
    return NULL;
}

static status_t share_id(struct nccl_comm *whole, ncclUniqueId *id)
{
    AUTO_FREE char *key = whole->groups == 0
                              ? mem_printf("%s/nccl-id", whole->prefix)
                              : mem_printf("%s/nccl-id-%d", whole->prefix, whole->groups);
    whole->groups++;
    if (whole->base.rank != 0) return nccl_fetch_id(whole, key, id);
    TRY(make_id(id));
    return whole->store.set(whole->store.user, key, id, sizeof *id);
}

status_t nccl_connect(struct nccl_comm *whole)
{
    ncclUniqueId id;
    ncclConfig_t config = nccl_configuration();
    const int rank = whole->base.rank, world = whole->base.world;
    TRY(status_wrap(share_id(whole, &id), "the NCCL group's id"));
    memcpy(&whole->token, &id, sizeof whole->token); /* NCCL begins it with a random number */
    return nccl_await(whole,
                      ncclCommInitRankConfig(&whole->handle, world, id, rank, &config),
                      "ncclCommInitRankConfig");
}

/* Parts made at the same time have no rank in common, so a part's first rank is its color. */
status_t nccl_connect_part(struct nccl_comm *whole, struct nccl_comm *part)
{
    ncclConfig_t config = nccl_configuration();
    TRY(cuda_use(whole->device));
    TRY(nccl_await(whole,
                   ncclCommSplit(whole->handle, part->color, part->base.rank, &part->handle,
                                 &config),
                   "ncclCommSplit"));
    ncclResult_t result = ncclInProgress;
    ncclResult_t asked = ncclCommGetAsyncError(part->handle, &result);
    return nccl_await(part, asked != ncclSuccess ? asked : result, "ncclCommSplit");
}

/* The list is newest first; all ranks connect theirs in the order in which they were made. */
static status_t renew_parts(struct nccl_comm *whole, struct comm *part)
{
    if (part == NULL) return NULL;
    TRY(renew_parts(whole, part->next_part));
    TRY(nccl_connect_part(whole, nccl_comm(part)));
    return comm_memory_renew(part);
}

static status_t renew(struct nccl_comm *whole)
{
    TRY(cuda_use(whole->device));
    nccl_abort(whole);
    TRY(nccl_connect(whole));
    TRY(comm_memory_renew(&whole->base));
    return renew_parts(whole, whole->base.parts);
}

/* What a rank's trial is; the worst counts. */
enum { DONE, FAILED, BROKEN };

/* A peer may first wait for one of NCCL's calls, until its own deadline. */
status_t nccl_meet(struct nccl_comm *whole, const char *what, const void *own, size_t size,
                   void *all)
{
    const int world = whole->base.world;
    AUTO_FREE struct rendezvous_value *values = mem_resize_array(NULL, (size_t)world, sizeof *values);
    const int64_t deadline_ns = clock_monotonic_ns() + 2 * whole->base.timeout_ms * 1000000;
    bool agree = true;
    TRY(rendezvous_meet(&whole->store, whole->prefix, what, whole->base.rank, world, own, size,
                        deadline_ns, values));
    for (int r = 0; r < world; r++) {
        if (values[r].size == size) memcpy((char *)all + (size_t)r * size, values[r].data, size);
        else agree = false;
        free(values[r].data);
    }
    if (agree) return NULL;
    return status_new(STATUS_INTERNAL, "%s: a value that is not of %zu bytes", what, size);
}

status_t nccl_agree(struct comm *base, enum comm_trial trial, bool failed, bool *all,
                    bool *renewed)
{
    struct nccl_comm *whole = nccl_comm(base);
    const bool recording = trial == COMM_RECORDING;
    const char *name = recording ? "recording" : "registration";
    const char own = !failed ? DONE : whole->captured || !recording ? BROKEN : FAILED;
    const size_t world = (size_t)whole->base.world;
    AUTO_FREE char *each = mem_alloc_array(world, 1);
    AUTO_FREE char *what = mem_printf("%s-%d", name, whole->trials++);
    if (recording) whole->captured = false;
    if (whole->handle == NULL || nccl_has_quit(whole))
        return status_new(STATUS_ABORTED, "the group was aborted");
    TRY(status_wrap(nccl_meet(whole, what, &own, 1, each), "agreeing on a %s", name));
    *renewed = memchr(each, BROKEN, world) != NULL;
    *all = !*renewed && memchr(each, FAILED, world) == NULL;
    if (!*renewed) return NULL;
    if (!recording) {
        comm_memory_abandon(base);
        cuda_note(whole->device, "registered buffers: none, as %s rank could not register memory",
                  failed ? "this" : "another");
    }
    return status_wrap(renew(whole), "a new group after a %s that failed", name);
}

#endif
