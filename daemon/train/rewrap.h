/* Inside train/: changes a run's wrap policy between two steps; see rewrap.c. */
#ifndef FSDPD_TRAIN_REWRAP_H
#define FSDPD_TRAIN_REWRAP_H

#include "checkpoint/agreement.h"
#include "setup/session_state.h"

struct rewrap {
    struct train_session *session;
    const struct agreement *ranks;
    uint64_t baseline;         /* bytes allocated on the device before the run */
    struct executor *executor; /* the run's; replaced when the policy is */
};

/*
 * Every rank calls this at the same boundary with the same policy. Either all change, or none does
 * and change->refused has the reason. On an error some rank could not finish, and the run must end.
 */
status_t rewrap(struct rewrap *rewrap, const struct wrap_policy *policy,
                struct train_wrap_change *change) FSDPD_MUST_USE;

#endif
