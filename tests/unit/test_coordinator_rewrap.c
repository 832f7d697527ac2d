/* SetWrapPolicy: refusals, the record after a change, and clients, workers and jobs that
 * disappear. */
#include <stdlib.h>
#include <string.h>

#include "spec/spec.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

static struct world world;
static struct fake fakes[2];
static struct listener call;
static char *id;

static void set_up(void)
{
    world_init(&world);
    world_start(&world);
    id = world_start_running(&world, fakes);
}

static void tear_down(void)
{
    world_deinit_running(&world, fakes, 2, id);
}

static void open_call(struct listener *stream, const char *job, uint64_t min_num_params)
{
    Fsdpd__V1__SetWrapPolicyRequest request = FSDPD__V1__SET_WRAP_POLICY_REQUEST__INIT;
    Fsdpd__V1__WrapSpec wrap = FSDPD__V1__WRAP_SPEC__INIT;
    wrap.policy = FSDPD__V1__WRAP_POLICY__WRAP_POLICY_SIZE;
    wrap.min_num_params = min_num_params;
    wrap._min_num_params_case = FSDPD__V1__WRAP_SPEC___MIN_NUM_PARAMS_MIN_NUM_PARAMS;
    request.id = (char *)job;
    request.wrap = &wrap;
    listener_open(&world, stream, &control_set_wrap_policy, &request, false);
}

/* Expects this end of a call. */
static void expect_end(struct listener *stream, enum status_code code, const char *words)
{
    WAIT(&world, stream->closed);
    ck_assert_int_eq(stream->count, code == STATUS_OK ? 1 : 0);
    if (code == STATUS_OK) expect_ok(stream->status);
    else expect_status(stream->status, code, words);
    stream->status = NULL;
    listener_deinit(stream);
}

static void expect_refused(const char *job, uint64_t min_num_params, enum status_code code,
                           const char *words)
{
    struct listener refused = {0};
    open_call(&refused, job, min_num_params);
    expect_end(&refused, code, words);
}

static void start_change(void)
{
    open_call(&call, id, 20000);
    WAIT(&world, fakes[0].wraps == 1 && fakes[1].wraps == 1);
    ck_assert_uint_eq(fakes[0].wrap, fakes[1].wrap);
}

static Fsdpd__V1__WrapPolicy policy_of(const job_message *job)
{
    struct spec_settings with;
    return spec_settings(job->spec, job->chosen, &with)->fsdp->wrap->policy;
}

static void expect_policy(Fsdpd__V1__WrapPolicy policy)
{
    job_message *job = world_job(&world, id);
    ck_assert_int_eq(policy_of(job), policy);
    ck_assert_int_eq(job->spec->fsdp->wrap->policy, FSDPD__V1__WRAP_POLICY__WRAP_POLICY_NONE);
    ck_assert_int_eq(job->state, JOB_RUNNING);
    message_free(job);
}

/* What was submitted first is submitted again with the job's id. */
static void expect_same_job(void)
{
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    void *response = NULL;
    request.spec = world_spec(2);
    request.id = id;
    expect_ok(world_call(&world, &control_submit_job, &request, &response));
    ck_assert_str_eq(((job_message *)response)->id, id);
    message_free(response);
    request.spec->fsdp->wrap->policy = FSDPD__V1__WRAP_POLICY__WRAP_POLICY_AUTO;
    expect_status(world_call(&world, &control_submit_job, &request, NULL), STATUS_ALREADY_EXISTS,
                  "different spec");
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(refusals)
{
    expect_refused("other-1", 1, STATUS_NOT_FOUND, "other-1");
    expect_refused(id, 0, STATUS_INVALID_ARGUMENT, "fsdp.wrap.min_num_params: expected");
    char *queued = world_submit(&world, 2);
    expect_refused(queued, 1, STATUS_FAILED_PRECONDITION, "is QUEUED: only a running job's");
    expect_ok(world_cancel(&world, queued));
    expect_refused(queued, 1, STATUS_FAILED_PRECONDITION, "is over already: it is CANCELLED");
    free(queued);
    for (int r = 0; r < 2; r++) fakes[r].plan_code = STATUS_RESOURCE_EXHAUSTED;
    expect_refused(id, 1, STATUS_RESOURCE_EXHAUSTED, "fc1: 9216 expected");
    for (int r = 0; r < 2; r++) fakes[r].plan_code = STATUS_OK;
    ck_assert_int_eq(fakes[0].wraps, 0);
    expect_policy(FSDPD__V1__WRAP_POLICY__WRAP_POLICY_NONE);
    start_change();
    expect_refused(id, 1, STATUS_FAILED_PRECONDITION, "another change");
    fake_wrap(&fakes[0], 7, STATUS_RESOURCE_EXHAUSTED, "no room");
    expect_end(&call, STATUS_RESOURCE_EXHAUSTED, "no room");
    expect_policy(FSDPD__V1__WRAP_POLICY__WRAP_POLICY_NONE);
    ck_assert_int_eq(fakes[0].wraps, 1);
}

TEST(change)
{
    start_change();
    fake_wrap(&fakes[1], 7, STATUS_OK, ""); /* only rank 0 counts */
    world_run(&world, 50);
    ck_assert(!call.closed);
    expect_policy(FSDPD__V1__WRAP_POLICY__WRAP_POLICY_NONE);
    fake_wrap(&fakes[0], 7, STATUS_OK, "");
    WAIT(&world, call.closed);
    const job_message *answer = call.messages[0];
    ck_assert_int_eq(policy_of(answer), FSDPD__V1__WRAP_POLICY__WRAP_POLICY_SIZE);
    ck_assert_uint_eq(answer->n_units, 1);
    ck_assert_int_eq(answer->chosen->by, FSDPD__V1__CHOOSER__CHOOSER_USER);
    ck_assert_str_eq(answer->chosen->profile, "cpu");
    ck_assert_ptr_null(answer->chosen->settings);
    expect_end(&call, STATUS_OK, NULL);
    expect_policy(FSDPD__V1__WRAP_POLICY__WRAP_POLICY_SIZE);
    expect_same_job();
    fake_wrap(&fakes[0], 8, STATUS_OK, ""); /* no call waits for it: ignored */
    struct listener again = {0};
    open_call(&again, id, 20000); /* that is the current policy */
    expect_end(&again, STATUS_OK, NULL);
    ck_assert_int_eq(fakes[0].wraps, 1);

    struct listener watch = {0};
    Fsdpd__V1__WatchJobRequest request = FSDPD__V1__WATCH_JOB_REQUEST__INIT;
    request.id = id;
    fake_finished(&fakes[0], STATUS_INTERNAL, "enough");
    fake_finished(&fakes[1], STATUS_INTERNAL, "enough");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    listener_open(&world, &watch, &control_watch_job, &request, false);
    WAIT(&world, watch.closed);
    int changes = 0;
    for (int i = 0; i < watch.count; i++) {
        const job_event *event = watch.messages[i];
        if (event->event_case != FSDPD__V1__JOB_EVENT__EVENT_WRAP) continue;
        changes++;
        ck_assert_uint_eq(event->wrap->step, 7);
        ck_assert_uint_eq(event->wrap->peak_bytes, 4096);
        ck_assert_int_eq(event->wrap->wrap->policy, FSDPD__V1__WRAP_POLICY__WRAP_POLICY_SIZE);
        ck_assert_uint_eq(event->wrap->n_units, 1);
    }
    ck_assert_int_eq(changes, 1);
    listener_deinit(&watch);
    job_message *stored = world_job(&world, id); /* over, so from the store */
    ck_assert_int_eq(policy_of(stored), FSDPD__V1__WRAP_POLICY__WRAP_POLICY_SIZE);
    message_free(stored);
    expect_same_job();
}

/* While it is planned, and after it was ordered. */
LOOP_TEST(job_that_ends, 0, 2)
{
    for (int r = 0; r < 2; r++) fakes[r].silent_plans = _i == 0;
    if (_i == 0) {
        int plans = fakes[0].plans + fakes[1].plans;
        open_call(&call, id, 20000);
        WAIT(&world, fakes[0].plans + fakes[1].plans == plans + 1);
    } else {
        start_change();
    }
    fake_finished(&fakes[0], STATUS_INTERNAL, "enough");
    fake_finished(&fakes[1], STATUS_INTERNAL, "enough");
    expect_end(&call, STATUS_ABORTED, "ended (FAILED) before its wrap policy was changed");
    ck_assert_int_eq(fakes[0].wraps, _i);
}

TEST(client_that_leaves)
{
    for (int r = 0; r < 2; r++) fakes[r].silent_plans = true;
    int plans = fakes[0].plans + fakes[1].plans;
    open_call(&call, id, 20000);
    WAIT(&world, fakes[0].plans + fakes[1].plans == plans + 1);
    rpc_stream_cancel(call.stream);
    WAIT(&world, call.closed);
    listener_deinit(&call);
    call = (struct listener){0};
    world_run(&world, 50);
    for (int r = 0; r < 2; r++) fakes[r].silent_plans = false;

    start_change(); /* the first one is forgotten, so this is not another */
    rpc_stream_cancel(call.stream);
    WAIT(&world, call.closed);
    listener_deinit(&call);
    world_run(&world, 50);
    fake_wrap(&fakes[0], 9, STATUS_OK, ""); /* an order in flight takes effect */
    int64_t until = (int64_t)(uv_hrtime() / 1000000) + 10000;
    for (bool changed = false; !changed;) {
        ck_assert_int_lt((int64_t)(uv_hrtime() / 1000000), until);
        job_message *job = world_job(&world, id);
        changed = policy_of(job) == FSDPD__V1__WRAP_POLICY__WRAP_POLICY_SIZE;
        message_free(job);
    }
}
