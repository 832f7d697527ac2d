/* Changes by order in memory; see attempt_run.h. */
#include "coordinator/jobs/attempt_run.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/elastic.h"
#include "coordinator/workers/rendezvous.h"
#include "coordinator/workers/workers.h"

static void forget(struct job *job)
{
    free(job->elastic.leaves);
    job->elastic.leaves = NULL;
    job->elastic.staying = 0;
}

/* The number of the next attempt's ranks that are of this one, of which `stay` are not drained; 0:
 * the job has to wait for others. */
static int choose_staying(const struct job *job, int stay)
{
    int keep = job->elastic.keep;
    if (keep > 0 && keep <= stay) return keep;
    return elastic_fits(job->message, stay) ? stay : elastic_choose(job->message, stay);
}

/* Drained workers leave, and of the others the last ones. */
static void choose(struct job *job)
{
    const struct attempt *attempt = job->attempt;
    forget(job);
    bool *leaves = mem_alloc_array((size_t)attempt->world, sizeof *leaves);
    int stay = 0;
    for (int r = 0; r < attempt->world; r++) {
        const struct worker *worker = workers_find(job->c, attempt->ranks[r].worker_id);
        leaves[r] = worker == NULL || worker->drained;
        stay += !leaves[r];
    }
    int staying = choose_staying(job, stay);
    if (staying == 0) {
        free(leaves);
        return;
    }
    for (int r = attempt->world - 1; stay > staying; r--) {
        stay -= !leaves[r];
        leaves[r] = true;
    }
    job->elastic.leaves = leaves;
    job->elastic.staying = staying;
}

static char *key_of(uint64_t number)
{
    return mem_printf("memory/%llu", (unsigned long long)number);
}

static status_t allow(struct job *job, const char *key, bool allowed)
{
    AUTO_FREE char *store = attempt_store_name(job->message);
    return rendezvous_set(job->c, store, key, allowed ? "1" : "0", 1);
}

void handover_begin(struct job *job, Fsdpd__V1__CheckpointOrder *order)
{
    if (!elastic_is_redundant(job->message) || job->c->draining) return;
    choose(job);
    if (job->elastic.staying == 0) return;
    char *key = key_of(order->number);
    status_t status = allow(job, key, true);
    if (status != NULL) {
        log_status(LOG_WARNING, "no_change_in_memory", status);
        free(key);
        return;
    }
    order->memory = key;
    order->leaving = mem_alloc_array((size_t)job->attempt->world, sizeof *order->leaving);
    for (int r = 0; r < job->attempt->world; r++)
        if (job->elastic.leaves[r]) order->leaving[order->n_leaving++] = (uint32_t)r;
}

void handover_withdraw(struct job *job)
{
    const struct attempt *attempt = job->attempt;
    if (attempt == NULL || attempt->vacate_order == 0) return;
    AUTO_FREE char *key = key_of(attempt->vacate_order);
    log_status(LOG_WARNING, "no_change_in_memory", allow(job, key, false));
}

void handover_end(struct job *job, bool by_change)
{
    if (!by_change) forget(job);
    /* A restarted coordinator has not decided who leaves: then all stay that can. */
    else if (job->elastic.leaves == NULL && elastic_is_redundant(job->message)) choose(job);
    job->elastic.saved = by_change && job->elastic.staying == 0;
}

int handover_staying(const struct job *job)
{
    return job->elastic.staying;
}

bool handover_has_left(const struct job *job, int rank)
{
    return job->elastic.leaves != NULL && job->elastic.leaves[rank];
}
