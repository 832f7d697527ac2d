/*
 * Groups besides the training's own, made of all ranks for pulls and checkpoints. A group is named
 * after its order, so messages of one never reach another. A rank that cannot do its part fails the
 * group: its peers end this order, too, and continue with the next one.
 */
#ifndef FSDPD_WORKER_SIDE_GROUP_H
#define FSDPD_WORKER_SIDE_GROUP_H

#include "setup/job.h"
#include "worker/link.h"

/* The attempt's data that pulls and checkpoints need; must outlive both. */
struct side_context {
    struct link *link;
    const char *job;
    uint32_t attempt;
    int rank, world;
    const char *store; /* the attempt's name in the rendezvous store */
    const char *address;
    bool shared; /* ranks of one host share memory; see comm_host_new */
    int64_t timeout_ms;
};

/* Joins, of more than one rank. The ranks wait for each other for seconds; `patient`: for as long
 * as in a collective. An error is never UNAVAILABLE, which would mean the coordinator. */
status_t side_group_join(const struct side_context *context, const struct rendezvous *store,
                         const char *name, bool patient, struct comm **comm) FSDPD_MUST_USE;

/* Whatever gates are closed; returns at once. */
void side_group_fail(const struct side_context *context, const char *name, status_t why);

/* ---- unlisted_reports.c ---- */

/* Reports of checkpoints that earlier attempts completed, and did not report themselves
 * (checkpoint/unlisted.h). */

/* Rank 0, before its attempt writes a checkpoint. An error if the directory cannot be read. */
status_t unlisted_reports_post(const struct side_context *context,
                               const struct checkpoint_settings *settings,
                               const Fsdpd__V1__Assignment *assignment) FSDPD_MUST_USE;

#endif
