/* Workers that share a device: which of them may use it, and how their jobs' groups communicate. */
#include <stdlib.h>

#include "base/mem.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

static struct world world;

static void set_up(void)
{
    world_init(&world);
    world_start(&world);
}

static void tear_down(void)
{
    world_deinit(&world);
}

TESTS_BELOW(.timeout = 30, .set_up = set_up, .tear_down = tear_down);

/* A device belongs to one worker, or to all that share it; a cpu to every worker. */
LOOP_TEST(device_belongs_to_one_worker, 0, 3)
{
    struct fake first, second, other;
    fake_attach_device(&world, &first, "host/a", 1000, "cuda:0", _i == 1);
    ck_assert(first.welcome);
    fake_attach_device(&world, &second, "host/b", 1001, "cuda:0", _i == 0);
    ck_assert(second.closed);
    ck_assert_int_eq(status_code(second.status), STATUS_ALREADY_EXISTS);
    ck_assert_ptr_nonnull(
        strstr(status_message(second.status),
               "worker host/b requests cuda:0 of host host, which worker host/a uses"));
    ck_assert_ptr_nonnull(strstr(status_message(second.status), "--share-device"));
    fake_deinit(&second);
    static const struct {
        const char *id, *device;
    } others[] = {{"host/b", "cuda:1"}, {"elsewhere/b", "cuda:0"}, {"host/b", "cpu"}};
    for (int i = 0; i < 3; i++) {
        fake_attach_device(&world, &other, others[i].id, 1001, others[i].device, false);
        ck_assert_msg(other.welcome, "%s: %s", others[i].id, status_message(other.status));
        fake_deinit(&other);
    }
    /* When the worker is lost, the device is free; a worker that reattaches already has it. */
    fake_deinit(&first);
    fake_attach_device(&world, &second, "host/b", 1001, "cuda:0", false);
    ck_assert(second.welcome);
    fake_attach_device(&world, &first, "host/b", 1001, "cuda:0", false);
    ck_assert(first.welcome);
    fake_deinit(&first);
    fake_deinit(&second);
}

static const Fsdpd__V1__Worker *find_row(const Fsdpd__V1__ListWorkersResponse *list, const char *id)
{
    for (size_t i = 0; i < list->n_workers; i++)
        if (strcmp(list->workers[i]->id, id) == 0) return list->workers[i];
    return NULL;
}

/* Ranks on CPUs divide the memory of their host: among the attached workers that the job can
 * get. */
TEST(ranks_share_a_host)
{
    static const char *const ids[] = {"host/cpu:0", "host/cpu:1", "far/cpu:0", "host/cuda:0"};
    struct fake fakes[4];
    for (int i = 0; i < 4; i++)
        fake_attach_device(&world, &fakes[i], ids[i], 1000 + i, i == 3 ? "cuda:0" : "cpu", false);
    for (uint32_t workers = 1; workers <= 3; workers++) {
        for (int i = 0; i < 4; i++) fakes[i].plan_sharers = 0;
        Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
        request.spec = world_spec(workers);
        request.spec->device = (char *)"cpu"; /* a static spec, which is never freed */
        void *response = NULL;
        expect_ok(world_call(&world, &control_submit_job, &request, &response));
        char *id = mem_strdup(((job_message *)response)->id);
        message_free(response);
        uint32_t planned = fakes[0].plan_sharers + fakes[1].plan_sharers + fakes[2].plan_sharers;
        ck_assert_uint_eq(planned, fakes[2].plan_sharers != 0 || workers == 1 ? 1 : 2);
        uint32_t ranks = 0;
        while (ranks < workers) {
            ranks = 0;
            for (int i = 0; i < 3; i++)
                ranks += fakes[i].assignment != NULL && strcmp(fakes[i].assignment->job, id) == 0;
            world_run(&world, 10);
        }
        for (int i = 0; i < 3; i++) {
            if (fakes[i].assignment == NULL || strcmp(fakes[i].assignment->job, id) != 0) continue;
            ck_assert_uint_eq(fakes[i].assignment->sharers, i < 2 && workers > 1 ? 2 : 1);
            ck_assert_uint_eq(fakes[i].assignment->host_ranks, fakes[i].assignment->sharers);
            fake_finished(&fakes[i], STATUS_OK, "");
        }
        WAIT(&world, world_job_is(&world, id, JOB_SUCCEEDED));
        free(id);
    }
    for (int i = 0; i < 4; i++) fake_deinit(&fakes[i]);
}

/* Ranks on different devices of a host divide its memory, not the devices'. */
TEST(devices_share_a_host)
{
    static const struct {
        const char *id, *device;
        bool shares;
        uint32_t sharers, host_workers; /* of the attached workers; of a job, its ranks */
    } workers[] = {{"host/a", "cuda:0", false, 1, 4}, {"host/b", "cuda:1", true, 2, 4},
                   {"host/c", "cuda:1", true, 2, 4},  {"host/d", "cuda:2", false, 1, 4},
                   {"far/a", "cuda:0", false, 1, 1},  {"host/cpu:0", "cpu", false, 1, 1}};
    enum { COUNT = COUNT_OF(workers), RANKS = COUNT - 1 };
    struct fake fakes[COUNT];
    for (int i = 0; i < COUNT; i++)
        fake_attach_device(&world, &fakes[i], workers[i].id, 1000 + i, workers[i].device,
                           workers[i].shares);
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(RANKS);
    request.spec->device = (char *)"cuda"; /* a static spec, which is never freed */
    void *response = NULL;
    expect_ok(world_call(&world, &control_submit_job, &request, &response));
    message_free(response);
    int plans = 0;
    for (int i = 0; i < RANKS; i++) {
        WAIT(&world, fakes[i].assignments == 1);
        ck_assert_uint_eq(fakes[i].assignment->sharers, workers[i].sharers);
        ck_assert_uint_eq(fakes[i].assignment->host_ranks, workers[i].host_workers);
        plans += fakes[i].plans;
        if (fakes[i].plans == 0) continue;
        ck_assert_uint_eq(fakes[i].plan_sharers, workers[i].sharers);
        ck_assert_uint_eq(fakes[i].plan_host_workers, workers[i].host_workers);
    }
    ck_assert_int_eq(plans, 1);
    ck_assert_int_eq(fakes[RANKS].assignments, 0);
    for (int i = 0; i < COUNT; i++) fake_deinit(&fakes[i]);
}

/* All ranks of a job with a sharer use host memory; a sharer alone does not. */
TEST(groups_that_share)
{
    struct fake fakes[3];
    fake_attach_device(&world, &fakes[0], "host/a", 1000, "cuda:0", true);
    fake_attach_device(&world, &fakes[1], "host/b", 1001, "cuda:0", true);
    fake_attach_device(&world, &fakes[2], "host/c", 1002, "cuda:1", false);
    void *response = NULL;
    Fsdpd__V1__ListWorkersRequest list = FSDPD__V1__LIST_WORKERS_REQUEST__INIT;
    expect_ok(world_call(&world, &control_list_workers, &list, &response));
    ck_assert(find_row(response, "host/a")->shares_device);
    ck_assert(!find_row(response, "host/c")->shares_device);
    message_free(response);

    char *id = world_submit(&world, 3);
    for (int r = 0; r < 3; r++) {
        WAIT(&world, fakes[r].assignments == 1);
        ck_assert(fakes[r].assignment->staged);
        ck_assert_uint_eq(fakes[r].assignment->sharers, r < 2 ? 2 : 1);
    }
    int plans = 0;
    for (int r = 0; r < 3; r++) {
        plans += fakes[r].plans;
        if (fakes[r].plans == 0) continue;
        ck_assert(fakes[r].plan_staged);
        ck_assert_uint_eq(fakes[r].plan_sharers, r < 2 ? 2 : 1);
    }
    ck_assert_int_eq(plans, 1);
    for (int r = 2; r >= 0; r--) fake_started(&fakes[r], 42);
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
    world_check_reason(&world, id, JOB_RUNNING, "RUNNING",
                       "training on 3 workers that share devices, through host memory");
    expect_ok(world_cancel(&world, id));
    for (int r = 0; r < 3; r++) fake_finished(&fakes[r], STATUS_CANCELLED, "cancelled");
    WAIT(&world, world_job_is(&world, id, JOB_CANCELLED));
    free(id);

    /* A job that needs none of the sharers gets the other worker. */
    id = world_submit(&world, 1);
    WAIT(&world, fakes[2].assignments == 2);
    ck_assert(!fakes[2].assignment->staged);
    ck_assert_int_eq(fakes[0].assignments + fakes[1].assignments, 2);
    free(id);
    id = world_submit(&world, 1);
    WAIT(&world, fakes[0].assignments + fakes[1].assignments == 3);
    struct fake *alone = &fakes[fakes[0].assignments == 2 ? 0 : 1];
    ck_assert(!alone->assignment->staged); /* with one rank */
    free(id);
    for (int i = 0; i < 3; i++) fake_deinit(&fakes[i]);
}
