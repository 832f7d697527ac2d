/* Calls that wait for something of a job while its attempt ends, and the job starts again: an
 * elastic one that lost a worker, and one that gives workers away. The workers are fakes. */
#include <stdlib.h>

#include "coordinator/calls/job_call.h"
#include "coordinator/jobs/elastic.h"
#include "test_queue_world.h"
#include "tests/testing.h"

enum { WORKERS = 3, CALLS = 5 };

static struct world world;
static struct fake fakes[WORKERS];
static struct listener calls[CALLS];
static char *id;

/* An elastic job trains on all workers. */
static void set_up(void)
{
    static const char *const ids[WORKERS] = {"host/cpu:0", "host/cpu:1", "host/cpu:2"};
    world_init(&world);
    world_start(&world);
    for (int i = 0; i < WORKERS; i++) fake_attach(&world, &fakes[i], ids[i], 1000 + i);
    job_spec spec = *world_spec(WORKERS);
    Fsdpd__V1__TrainSpec train = *spec.train;
    Fsdpd__V1__ElasticSpec elastic = FSDPD__V1__ELASTIC_SPEC__INIT;
    train._global_batch_case = FSDPD__V1__TRAIN_SPEC___GLOBAL_BATCH_GLOBAL_BATCH;
    train.global_batch = 24;
    elastic._min_workers_case = FSDPD__V1__ELASTIC_SPEC___MIN_WORKERS_MIN_WORKERS;
    elastic.min_workers = 1;
    elastic._max_workers_case = FSDPD__V1__ELASTIC_SPEC___MAX_WORKERS_MAX_WORKERS;
    elastic.max_workers = WORKERS;
    spec.train = &train;
    spec.elastic = &elastic;
    id = queue_submit(&world, &spec, NULL);
    for (int i = 0; i < WORKERS; i++) {
        WAIT(&world, fakes[i].assignments == 1);
        fake_started(&fakes[i], 42);
    }
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
}

static void tear_down(void)
{
    world_deinit_running(&world, fakes, WORKERS, id);
}

/* Opens a call of each kind, and waits until the ranks have their orders. */
static void open_calls(void)
{
    Fsdpd__V1__CreateCheckpointRequest checkpoint = FSDPD__V1__CREATE_CHECKPOINT_REQUEST__INIT;
    Fsdpd__V1__PullStateDictRequest pull = FSDPD__V1__PULL_STATE_DICT_REQUEST__INIT;
    Fsdpd__V1__TraceJobRequest trace = FSDPD__V1__TRACE_JOB_REQUEST__INIT;
    Fsdpd__V1__DiagnoseJobRequest diagnose = FSDPD__V1__DIAGNOSE_JOB_REQUEST__INIT;
    Fsdpd__V1__SetWrapPolicyRequest change = FSDPD__V1__SET_WRAP_POLICY_REQUEST__INIT;
    Fsdpd__V1__WrapSpec wrap = FSDPD__V1__WRAP_SPEC__INIT;
    wrap.policy = FSDPD__V1__WRAP_POLICY__WRAP_POLICY_SIZE;
    wrap.min_num_params = 20000;
    wrap._min_num_params_case = FSDPD__V1__WRAP_SPEC___MIN_NUM_PARAMS_MIN_NUM_PARAMS;
    change.wrap = &wrap;
    trace.steps = 2;
    checkpoint.id = pull.id = trace.id = diagnose.id = change.id = id;
    const struct {
        const struct rpc_method *method;
        const void *request;
    } kinds[CALLS] = {{&control_create_checkpoint, &checkpoint},
                      {&control_pull_state_dict, &pull},
                      {&control_trace_job, &trace},
                      {&control_diagnose_job, &diagnose},
                      {&control_set_wrap_policy, &change}};
    for (int i = 0; i < CALLS; i++) {
        calls[i] = (struct listener){0};
        listener_open(&world, &calls[i], kinds[i].method, kinds[i].request, false);
    }
    for (int i = 0; i < WORKERS; i++)
        WAIT(&world, fakes[i].checkpoints > 0 && fakes[i].pulls > 0 && fakes[i].trace != 0 &&
                         fakes[i].diagnoses > 0 && fakes[i].wraps > 0);
}

static void expect_ends(enum status_code code, const char *words)
{
    for (int i = 0; i < CALLS; i++) {
        WAIT(&world, calls[i].closed);
        expect_status(calls[i].status, code, words);
        calls[i].status = NULL;
        listener_deinit(&calls[i]);
    }
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(calls_end_when_an_elastic_job_loses_a_worker)
{
    open_calls();
    for (int i = 0; i < WORKERS; i++) fake_finished(&fakes[i], STATUS_UNAVAILABLE, "lost rank 1");
    expect_ends(STATUS_UNAVAILABLE, " lost a worker and starts again before ");
    for (int i = 0; i < WORKERS; i++) {
        WAIT(&world, fakes[i].assignments == 2);
        fake_started(&fakes[i], 42);
    }
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
}

/* The job does not run again by itself. */
TEST(calls_end_with_a_job)
{
    open_calls();
    for (int i = 0; i < WORKERS; i++) fake_finished(&fakes[i], STATUS_INTERNAL, "a mistake");
    expect_ends(STATUS_ABORTED, " ended (FAILED) before ");
}

TEST(programs_know_why_a_call_ended)
{
    job_message message = FSDPD__V1__JOB__INIT;
    struct job job = {.message = &message};
    message.id = (char *)"mnist-1";
    message.step = 12;
    message.state = FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED;
    job.elastic.lost_before = true;
    job.elastic.lost_step = 12;
    status_t lost = job_call_error_of_end(&job, "it was traced");
    ck_assert_str_eq(status_about(lost).reason, "JOB_STARTS_AGAIN");
    ck_assert_str_eq(status_about(lost).subject, "mnist-1");
    expect_status(lost, STATUS_UNAVAILABLE,
                  "job mnist-1 lost a worker and starts again before it was traced; ask again when "
                  "it trains");
    message.step = 13; /* the step that was lost is done again, and it gives a worker away */
    expect_status(job_call_error_of_end(&job, "it was traced"), STATUS_UNAVAILABLE,
                  "job mnist-1 starts again before it was traced; ask again when it trains");
    message.state = FSDPD__V1__JOB_STATE__JOB_STATE_PAUSED;
    status_t paused = job_call_error_of_end(&job, "it was traced");
    ck_assert_ptr_null(status_about(paused).reason);
    expect_status(paused, STATUS_ABORTED,
                  "the attempt of job mnist-1 ended (PAUSED) before it was");
}
