/*
 * Changes a run's wrap policy between two steps, on the training thread. First every rank makes the
 * new plan and checks whether the change fits. The ranks share the results, and if one of them
 * cannot change, none does. Then the state moves (runtime/relayout.h) and the new plan takes over.
 * A failure from then on ends the run: no result is better than a wrong one.
 */
#include "train/run_state.h"

#include <inttypes.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "runtime/relayout.h"

struct next { /* the replacement */
    struct unit_set *units;
    struct plan *plan;
};

static void next_deinit(struct next *next)
{
    plan_free(next->plan);
    units_free(next->units);
}

/* Checks the memory of both plans together, except the old work arena, which is released first. The
 * host memory that is available already excludes the old plan's. */
static status_t check_fits(struct train_session *session, const struct plan *new)
{
    const struct plan *old = session->plan;
    uint64_t peak = relayout_peak_bytes(old, new);
    uint64_t given = device_memory_bytes(session->device) + old->work_bytes + old->state_bytes;
    /* Rather than to refuse the change, memory to hold units for samples is kept no longer. */
    if (session->samples.held > 0 && peak + session->samples.all > given)
        TRY(session_measure_samples(session, 0));
    given = given > session->samples.all ? given - session->samples.all : 0;
    if (peak <= given) return session_check_host(session, new);
    char needed[32], available[32], kept[32], state[32], work[32];
    return status_new(STATUS_RESOURCE_EXHAUSTED,
                      "changing the units needs %s of memory per rank, but %s are available: %s of "
                      "parameters and optimizer state before, %s after, and %s of scratch memory",
                      text_format_bytes(peak, needed), text_format_bytes(given, available),
                      text_format_bytes(old->state_bytes, kept),
                      text_format_bytes(new->state_bytes, state),
                      text_format_bytes(new->work_bytes, work));
}

static status_t make_next(struct train_session *session, const struct wrap_policy *policy,
                          struct next *next)
{
    TRY(session_build_plan(session, policy, &next->units, &next->plan));
    return check_fits(session, next->plan);
}

/* Compares this rank's plan with rank 0's. `mine` is this rank's outcome so far, and is updated. */
static status_t compare_plans(struct rewrap *rewrap, const struct next *next, status_t *mine)
{
    uint64_t hash = *mine == NULL ? next->plan->hash : 0, first = hash;
    TRY(agreement_share(rewrap->ranks, &first, sizeof first, 0));
    if (*mine == NULL && first != 0 && first != hash)
        *mine = status_new(STATUS_FAILED_PRECONDITION,
                           "the plan of rank %d differs from that of rank 0: %016" PRIx64
                           ", not %016" PRIx64,
                           rewrap->session->rank, hash, first);
    return NULL;
}

/* If one rank cannot change, *mine becomes an error on every rank. */
static status_t agree(struct rewrap *rewrap, const struct next *next, status_t *mine)
{
    int rank = rewrap->session->rank;
    TRY(compare_plans(rewrap, next, mine));
    if (*mine != NULL && rank != 0)
        *mine = status_wrap(*mine, "rank %d cannot change its units", rank);
    return agreement_reach(rewrap->ranks, mine);
}

/* Moves the state; the new executor is the caller's on success. */
static status_t take_over(struct rewrap *rewrap, const struct next *next, uint64_t *peak,
                          struct executor **executor)
{
    struct train_session *session = rewrap->session;
    const struct agreement *ranks = rewrap->ranks;
    TRY(executor_release_work(rewrap->executor));
    TRY(executor_new(session->device, ranks->comm, next->plan, session->train_lowered,
                     session->evaluate_lowered, session->job->seed, executor));
    struct lane_queue *own = NULL; /* one rank has no lane for collectives, so this opens one */
    status_t status = NULL;
    if (*ranks->lane == NULL) status = lane_open(session->device, LANE_COPY, &own);
    struct lane_queue *lane = own != NULL ? own : *ranks->lane;
    if (status == NULL)
        status = relayout(session->device, rewrap->executor, *executor, ranks->comm, lane,
                          ranks->timeout_ms, peak);
    lane_close(own);
    /* No rank continues training before all ranks have finished. */
    if (status == NULL && ranks->comm != NULL)
        status = agreement_wait(ranks, comm_barrier(ranks->comm, *ranks->lane));
    if (status != NULL) executor_free(*executor);
    return status;
}

status_t rewrap(struct rewrap *rewrap, const struct wrap_policy *policy,
                struct train_wrap_change *change)
{
    struct train_session *session = rewrap->session;
    int64_t began = clock_monotonic_ns();
    *change = (struct train_wrap_change){0};
    struct next next = {0};
    status_t mine = make_next(session, policy, &next);
    status_t status = agree(rewrap, &next, &mine);
    if (status != NULL || mine != NULL) {
        next_deinit(&next);
        if (status != NULL) status_free(mine);
        else change->refused = mine;
        return status;
    }
    struct executor *executor = NULL;
    uint64_t peak = 0;
    change->planned_bytes = relayout_peak_bytes(session->plan, next.plan);
    status = take_over(rewrap, &next, &peak, &executor);
    if (status != NULL) {
        next_deinit(&next);
        return status_wrap(status, "the change of the wrap policy failed");
    }
    struct next old = {session->units, session->plan};
    session_set_executor(session, executor);
    uint64_t both = device_allocated_bytes(session->device);
    executor_free(rewrap->executor);
    executor_replaced(executor, both - device_allocated_bytes(session->device));
    rewrap->executor = executor;
    session->units = next.units;
    session->plan = next.plan;
    next_deinit(&old);
    change->peak_bytes = peak - rewrap->baseline;
    change->seconds = (double)(clock_monotonic_ns() - began) * 1e-9;
    return NULL;
}
