/* A snapshot of the daemon; see overview.h. */
#include "overview.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fsdpd/v1/methods.h"
#include "lists.h"
#include "report.h"

enum { STATES_MAX = 16 };

static status_t ask_jobs(struct session *session, Fsdpd__V1__JobState *states, size_t count,
                         uint32_t limit, bool fold, Fsdpd__V1__ListJobsResponse **jobs)
{
    Fsdpd__V1__ListJobsRequest request = FSDPD__V1__LIST_JOBS_REQUEST__INIT;
    request.n_states = count;
    request.states = states;
    request.page_size = limit;
    request.fold = fold;
    ProtobufCMessage *response;
    TRY(session_call(session, &control_list_jobs, &request.base, false, &response));
    *jobs = (Fsdpd__V1__ListJobsResponse *)(void *)response;
    return NULL;
}

static size_t started_states(Fsdpd__V1__JobState states[static STATES_MAX])
{
    const ProtobufCEnumDescriptor *all = &fsdpd__v1__job_state__descriptor;
    size_t count = 0;
    for (unsigned i = 0; i < all->n_values && count < STATES_MAX; i++) {
        Fsdpd__V1__JobState state = (Fsdpd__V1__JobState)all->values[i].value;
        if (state != FSDPD__V1__JOB_STATE__JOB_STATE_UNSPECIFIED &&
            state != FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED && !report_is_over(state))
            states[count++] = state;
    }
    return count;
}

/* A job that starts between the two calls is in both lists. */
static bool has_started(const struct overview *overview, const char *id)
{
    for (size_t i = 0; i < overview->started->n_jobs; i++)
        if (strcmp(overview->started->jobs[i]->id, id) == 0) return true;
    return false;
}

static void gather_jobs(struct overview *overview)
{
    const Fsdpd__V1__ListJobsResponse *started = overview->started, *queued = overview->queued;
    overview->jobs = mem_alloc_array(started->n_jobs + queued->n_jobs + 1, sizeof *overview->jobs);
    for (size_t i = 0; i < started->n_jobs; i++)
        overview->jobs[overview->job_count++] = started->jobs[i];
    for (size_t i = 0; i < queued->n_jobs; i++)
        if (!has_started(overview, queued->jobs[i]->id))
            overview->jobs[overview->job_count++] = queued->jobs[i];
}

static status_t ask(struct session *session, uint32_t started, uint32_t queued, bool fold,
                    struct overview *overview)
{
    Fsdpd__V1__JobState states[STATES_MAX], waiting = FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED;
    Fsdpd__V1__GetVersionRequest version = FSDPD__V1__GET_VERSION_REQUEST__INIT;
    Fsdpd__V1__ListWorkersRequest workers = FSDPD__V1__LIST_WORKERS_REQUEST__INIT;
    ProtobufCMessage *response;
    TRY(session_call(session, &control_get_version, &version.base, false, &response));
    overview->version = (Fsdpd__V1__GetVersionResponse *)(void *)response;
    TRY(lists_read(session, &control_list_workers, &workers.base, LIST_FROM_FIRST, &response));
    overview->workers = (Fsdpd__V1__ListWorkersResponse *)(void *)response;
    /* In this order a job that starts between the two calls is not missed. */
    TRY(ask_jobs(session, &waiting, 1, queued, fold, &overview->queued));
    TRY(ask_jobs(session, states, started_states(states), started, false, &overview->started));
    gather_jobs(overview);
    return NULL;
}

status_t overview_read(struct session *session, uint32_t started, uint32_t queued, bool fold,
                       struct overview *overview)
{
    struct overview read = {0};
    status_t status = ask(session, started, queued, fold, &read);
    if (status == NULL) *overview = read;
    else overview_deinit(&read);
    return status;
}

void overview_deinit(struct overview *overview)
{
    if (overview->version) fsdpd__v1__get_version_response__free_unpacked(overview->version, NULL);
    if (overview->workers) fsdpd__v1__list_workers_response__free_unpacked(overview->workers, NULL);
    if (overview->queued) fsdpd__v1__list_jobs_response__free_unpacked(overview->queued, NULL);
    if (overview->started) fsdpd__v1__list_jobs_response__free_unpacked(overview->started, NULL);
    free(overview->jobs);
    *overview = (struct overview){0};
}

uint64_t overview_count(const struct overview *overview, Fsdpd__V1__JobState state)
{
    const Fsdpd__V1__ListJobsResponse *list = overview->started;
    for (size_t i = 0; i < list->n_counts; i++)
        if (list->counts[i]->state == state) return list->counts[i]->jobs;
    return 0;
}

size_t overview_busy_workers(const struct overview *overview)
{
    size_t busy = 0;
    for (size_t i = 0; i < overview->workers->n_workers; i++)
        busy += overview->workers->workers[i]->job[0] != '\0';
    return busy;
}
