/* Internals shared by the files that call NCCL. */
#ifndef FSDPD_RUNTIME_CUDA_COMM_NCCL_H
#define FSDPD_RUNTIME_CUDA_COMM_NCCL_H

#include "runtime/comm_table.h"
#include "runtime/cuda/device_cuda.h"

#ifdef FSDPD_HAVE_NCCL

#include <nccl.h>

struct nccl_comm {
    struct comm base;
    struct cuda_device *device;
    ncclComm_t handle; /* NULL once it was aborted */
    atomic_bool quit;  /* the whole's: see nccl_quit */
    struct cuda_lane *lane;   /* the whole's: the lane that it and its parts last used */
    int color;                /* a part's; of the whole: */
    int number;               /* the device's, which is NULL while the group is kept */
    uint64_t token;           /* the same on all ranks, and no other group's; 0: unknown */
    bool keeps, revoked;      /* see regroup_nccl.c */
    struct rendezvous store;  /* where the ranks meet */
    char *prefix;             /* of their keys in it */
    int groups, trials;       /* connected, and agreed on, so far */
    bool captured;            /* collectives were, since the last recording's end */
    enum comm_kind last_kind; /* name of the last enqueued collective, for errors */
    char *staged; /* HOST_BYTES of device memory, to stage host memory; NULL before the first use */
};

static inline struct nccl_comm *nccl_comm(struct comm *comm)
{
    return (struct nccl_comm *)comm;
}

/* Waits until NCCL's threads have finished a non-blocking call that returned `result`; at most for
 * the group's timeout. Errors name `call`. */
status_t nccl_await(struct nccl_comm *comm, ncclResult_t result, const char *call) FSDPD_MUST_USE;

/* Something failed: `comm`, and the group that it is a part of, end by an abort. From any thread.
 */
void nccl_quit(struct nccl_comm *comm);
bool nccl_has_quit(struct nccl_comm *comm);

/* The group that `comm` is or is a part of, with all its parts, by the owner's thread. */
void nccl_abort(struct nccl_comm *comm);

/* group_nccl.c. Each waits for its peers, at most for the group's timeout. */
ncclConfig_t nccl_configuration(void);
status_t nccl_fetch_id(struct nccl_comm *whole, const char *key, ncclUniqueId *id) FSDPD_MUST_USE;
/* Every rank's `own` of `size` bytes, in their order, to `all`. `what` is used once in a group. */
status_t nccl_meet(struct nccl_comm *whole, const char *what, const void *own, size_t size,
                   void *all) FSDPD_MUST_USE;
status_t nccl_connect(struct nccl_comm *whole) FSDPD_MUST_USE;
status_t nccl_connect_part(struct nccl_comm *whole, struct nccl_comm *part) FSDPD_MUST_USE;
status_t nccl_agree(struct comm *whole, enum comm_trial trial, bool failed, bool *all,
                    bool *renewed) FSDPD_MUST_USE;

/* regroup_nccl.c. Connects, from what this process has `kept` if all ranks can; see backend_join.
 */
status_t nccl_join(struct nccl_comm *whole, struct comm **kept) FSDPD_MUST_USE;
/* For the table of the communicator. */
bool nccl_keep(struct comm *whole);
/* After a failure: ends what is in flight, and lets the group be kept; false: it is to be aborted.
 * By the owner's thread. */
bool nccl_revoke(struct nccl_comm *whole);

/* From 2.31.2 on we use windows, and groups made from others. */
static inline bool nccl_is_recent(void)
{
    int version = 0;
    return ncclGetVersion(&version) == ncclSuccess && version >= NCCL_VERSION(2, 31, 2);
}

/* registration_nccl.c, for the table of the communicator. */
status_t nccl_register_memory(struct comm *comm, void *memory, uint64_t bytes,
                              void **handle) FSDPD_MUST_USE;
status_t nccl_deregister_memory(struct comm *comm, void *handle) FSDPD_MUST_USE;

#endif
#endif
