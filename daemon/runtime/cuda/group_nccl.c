/*
 * How ranks become an NCCL group: rank 0 makes an id and distributes it through the rendezvous
 * store; parts are split from the whole.
 *
 * An error in a capture stays in the communicator, and its next collective fails (pie#499). So the
 * ranks agree in the store after every capture, before their next collective; if one has failed
 * with collectives in it, all abort the group, which ends the graphs that refer to it, and connect
 * a new one.
 */
#include "runtime/cuda/comm_nccl.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#ifdef FSDPD_HAVE_NCCL

static ncclConfig_t configuration(void)
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

static status_t fetch_id(struct nccl_comm *whole, const char *key, ncclUniqueId *id)
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
    if (whole->base.rank != 0) return fetch_id(whole, key, id);
    TRY(make_id(id));
    return whole->store.set(whole->store.user, key, id, sizeof *id);
}

status_t nccl_connect(struct nccl_comm *whole)
{
    ncclUniqueId id;
    ncclConfig_t config = configuration();
    const int rank = whole->base.rank, world = whole->base.world;
    TRY(status_wrap(share_id(whole, &id), "the NCCL group's id"));
    return nccl_await(whole,
                      ncclCommInitRankConfig(&whole->handle, world, id, rank, &config),
                      "ncclCommInitRankConfig");
}

/* Parts made at the same time have no rank in common, so a part's first rank is its color. */
status_t nccl_connect_part(struct nccl_comm *whole, struct nccl_comm *part)
{
    ncclConfig_t config = configuration();
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

/* What a rank's recording is; the worst counts. */
enum { RECORDED, FAILED, BROKEN };

static status_t meet(struct nccl_comm *whole, char own, char *worst)
{
    const int world = whole->base.world;
    AUTO_FREE char *what = mem_printf("recording-%d", whole->recordings++);
    AUTO_FREE struct rendezvous_value *values = mem_resize_array(NULL, (size_t)world, sizeof *values);
    const int64_t deadline_ns = clock_monotonic_ns() + whole->base.timeout_ms * 1000000;
    TRY(rendezvous_meet(&whole->store, whole->prefix, what, whole->base.rank, world, &own, 1,
                        deadline_ns, values));
    *worst = own;
    for (int r = 0; r < world; r++) {
        const char its = values[r].size == 1 ? *(const char *)values[r].data : FAILED;
        if (its > *worst) *worst = its;
        free(values[r].data);
    }
    return NULL;
}

status_t nccl_end_recording(struct comm *base, bool recorded, bool *all, bool *renewed)
{
    struct nccl_comm *whole = nccl_comm(base);
    const char own = recorded ? RECORDED : whole->captured ? BROKEN : FAILED;
    char worst = own;
    whole->captured = false;
    if (whole->handle == NULL || nccl_has_quit(whole))
        return status_new(STATUS_ABORTED, "the group was aborted");
    TRY(status_wrap(meet(whole, own, &worst), "agreeing on a recording"));
    *all = worst == RECORDED;
    *renewed = worst == BROKEN;
    if (!*renewed) return NULL;
    return status_wrap(renew(whole), "a new group after a recording that failed");
}

#endif
