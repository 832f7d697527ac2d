/*
 * Makes an NCCL group from an earlier one of other ranks, without a new bootstrap: a process keeps
 * its communicator (comm_keep) until its next group.
 *
 *   a rank was lost  ncclCommRevoke ends what is in flight, then ncclCommShrink with its abort flag
 *   fewer ranks      ncclCommShrink
 *   more ranks       ncclCommGrow: the old ones keep their numbers, so the new ones come after them
 *
 * The ranks first exchange what each has, so that all decide alike, and then whether they
 * succeeded; if one has not, all connect a new group. What was kept ends after that, as a peer may
 * use it until then, and by an abort, as ncclCommDestroy waits for ranks that have left.
 *
 * Not kept, but aborted as without this: a group of an older library; one that failed while it had
 * parts, which share its abort flag (splitShare), registered memory or a capture; and one whose
 * NCCL thread did not return: a revocation while NCCL connects is an internal error.
 */
#include "runtime/cuda/comm_nccl.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#ifdef FSDPD_HAVE_NCCL

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)
enum { NCCL_SHRINK_DEFAULT, NCCL_SHRINK_ABORT };
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *made,
                            ncclConfig_t *config, int flags);
#endif
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0)
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id);
ncclResult_t ncclCommGrow(ncclComm_t comm, int world, const ncclUniqueId *id, int rank,
                          ncclComm_t *made, ncclConfig_t *config);
#endif
#pragma weak ncclCommShrink
#pragma weak ncclCommRevoke
#pragma weak ncclCommGetUniqueId
#pragma weak ncclCommGrow

static bool can_regroup(void)
{
    return nccl_is_recent() && ncclCommShrink != NULL && ncclCommRevoke != NULL &&
           ncclCommGetUniqueId != NULL && ncclCommGrow != NULL;
}

/* ---- keeping ---- */

bool nccl_revoke(struct nccl_comm *whole)
{
    enum { MOST_MS = 5000 };
    const int64_t deadline_ns = clock_monotonic_ns() + INT64_C(1000000) * MOST_MS;
    if (whole->revoked) return true;
    if (!whole->keeps || whole->handle == NULL || whole->base.parts != NULL ||
        whole->base.memory != NULL || whole->captured || device_is_lost() || !can_regroup())
        return false;
    nccl_quit(whole);
    cuda_drop_recordings(whole->device, whole);
    ncclResult_t result = ncclCommRevoke(whole->handle, 0);
    for (int polls = 0; result == ncclInProgress && clock_monotonic_ns() < deadline_ns; polls++) {
        cuda_pause(polls);
        if (ncclCommGetAsyncError(whole->handle, &result) != ncclSuccess) return false;
    }
    whole->revoked = result == ncclSuccess;
    return whole->revoked;
}

bool nccl_keep(struct comm *base)
{
    struct nccl_comm *comm = nccl_comm(base);
    status_t status = cuda_use(comm->device);
    const bool usable = status == NULL && comm->keeps && comm->handle != NULL && comm->token != 0 &&
                        !comm->captured && !device_is_lost() && can_regroup();
    status_free(status);
    if (!usable || (nccl_has_quit(comm) && !nccl_revoke(comm))) return false;
    cuda_drop_recordings(comm->device, comm);
    cuda_release(comm->staged);
    free(comm->prefix);
    comm->staged = comm->prefix = NULL;
    comm->device = NULL;
    nccl_quit(comm); /* so that it ends by an abort */
    return true;
}

/* ---- what the ranks decide ---- */

/* What a rank has of an earlier group; token 0: nothing. */
struct nccl_place {
    uint64_t token;
    int32_t rank, world;
    bool revoked;
};

enum way { CONNECT, SHRINK, GROW };

/* `revoked`: one of the earlier group was. */
static enum way find_way(const struct nccl_place *places, int world, bool *revoked)
{
    const uint64_t token = places[0].token;
    const int before = places[0].world;
    int members = 0, last = -1;
    *revoked = false;
    if (token == 0) return CONNECT;
    for (int r = 0; r < world; r++) {
        const struct nccl_place *place = &places[r];
        if (place->token != token) continue;
        /* A member behind a newcomer, or out of order, would get another number. */
        if (members != r || place->rank <= last || place->world != before) return CONNECT;
        last = place->rank;
        members++;
        *revoked = *revoked || place->revoked;
    }
    if (members == world && world < before) return SHRINK;
    return members == before && world > before && !*revoked ? GROW : CONNECT;
}

/* ---- doing it ---- */

/* Both take part: the communicator that is kept, and then the new one, which is set by then. */
static status_t await_both(struct nccl_comm *whole, struct nccl_comm *kept, ncclResult_t result,
                           const char *call)
{
    TRY(nccl_await(kept, result, call));
    ncclResult_t asked = ncclCommGetAsyncError(whole->handle, &result);
    return nccl_await(whole, asked != ncclSuccess ? asked : result, call);
}

static status_t shrink(struct nccl_comm *whole, struct nccl_comm *kept,
                       const struct nccl_place *places, bool revoked)
{
    ncclConfig_t config = nccl_configuration();
    const int before = kept->base.world;
    AUTO_FREE int *gone = mem_alloc_array((size_t)before, sizeof *gone);
    int count = 0, next = 0;
    for (int r = 0; r < before; r++)
        if (next < whole->base.world && places[next].rank == r) next++;
        else gone[count++] = r;
    return await_both(whole, kept,
                      ncclCommShrink(kept->handle, gone, count, &whole->handle, &config,
                                     revoked ? NCCL_SHRINK_ABORT : NCCL_SHRINK_DEFAULT),
                      "ncclCommShrink");
}

/* Rank 0 has begun before a new rank may, which gets the id then. */
static status_t grow(struct nccl_comm *whole, struct nccl_comm *kept)
{
    ncclConfig_t config = nccl_configuration();
    ncclUniqueId id;
    const int world = whole->base.world, rank = whole->base.rank;
    AUTO_FREE char *key = mem_printf("%s/grow-id", whole->prefix);
    if (kept == NULL) {
        TRY(nccl_fetch_id(whole, key, &id));
        return nccl_await(whole, ncclCommGrow(NULL, world, &id, rank, &whole->handle, &config),
                          "ncclCommGrow");
    }
    if (rank == 0)
        TRY(nccl_await(kept, ncclCommGetUniqueId(kept->handle, &id), "ncclCommGetUniqueId"));
    ncclResult_t result =
        ncclCommGrow(kept->handle, world, rank == 0 ? &id : NULL, -1, &whole->handle, &config);
    if (rank == 0 && (result == ncclSuccess || result == ncclInProgress))
        TRY(whole->store.set(whole->store.user, key, &id, sizeof id));
    return await_both(whole, kept, result, "ncclCommGrow");
}

static status_t carry_out(struct nccl_comm *whole, struct nccl_comm *kept, enum way way,
                          const struct nccl_place *places, bool revoked)
{
    if (kept != NULL) {
        kept->base.timeout_ms = whole->base.timeout_ms;
        atomic_store(&kept->quit, false);
    }
    status_t status = way == SHRINK ? shrink(whole, kept, places, revoked) : grow(whole, kept);
    if (kept != NULL) nccl_quit(kept);
    return status;
}

/* All ranks the same: the new group is there, or each has aborted what it has of it. */
static status_t regroup(struct nccl_comm *whole, struct nccl_comm *kept, bool *done)
{
    const int world = whole->base.world;
    AUTO_FREE struct nccl_place *places = mem_alloc_array((size_t)world, sizeof *places);
    AUTO_FREE char *failed = mem_alloc_array((size_t)world, 1);
    struct nccl_place own = {0};
    bool revoked;
    if (kept != NULL)
        own = (struct nccl_place){kept->token, kept->base.rank, kept->base.world, kept->revoked};
    TRY(nccl_meet(whole, "kept", &own, sizeof own, places));
    const enum way way = find_way(places, world, &revoked);
    if (way == CONNECT) return NULL;
    if (own.token != places[0].token) kept = NULL; /* of a group before that one */
    status_t status = carry_out(whole, kept, way, places, revoked);
    failed[whole->base.rank] = status != NULL;
    const char mine = failed[whole->base.rank];
    status_t met = nccl_meet(whole, "regrouped", &mine, 1, failed);
    *done = met == NULL && memchr(failed, 1, (size_t)world) == NULL;
    whole->token = places[0].token + 1;
    if (*done)
        cuda_note(whole->device, "the NCCL group of %d ranks was made from one of %d", world,
                  (int)places[0].world);
    else
        cuda_note(whole->device, "a new NCCL group: %s failed on %s rank%s%s",
                  way == SHRINK ? "ncclCommShrink" : "ncclCommGrow",
                  status != NULL ? "this" : "another", status != NULL ? ": " : "",
                  status != NULL ? status_message(status) : "");
    status_free(status);
    if (!*done) nccl_abort(whole);
    return met;
}

status_t nccl_join(struct nccl_comm *whole, struct comm **kept)
{
    bool done = false;
    whole->keeps = kept != NULL;
    if (kept == NULL) return nccl_connect(whole);
    status_t status = regroup(whole, *kept != NULL ? nccl_comm(*kept) : NULL, &done);
    comm_free(*kept);
    *kept = NULL;
    TRY(status_wrap(status, "what the ranks have of an earlier group"));
    return done ? NULL : nccl_connect(whole);
}

#endif
