/* The worker and its coordinator while both run: plans, training, pulls, orders, refusals. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "fsdp/plan.h"
#include "spec/spec.h"
#include "test_worker_world.h"
#include "tests/testing.h"
#include "worker/job_internal.h"
#include "worker/logs.h"
#include "worker/spare.h"

TESTS_BELOW(.timeout = 90, .set_up_once = draw_digits, .tear_down_once = remove_digits);

TEST(attaches)
{
    struct world world;
    world_init(&world, false);
    const Fsdpd__V1__Hello *hello = world.hello->hello;
    ck_assert_str_eq(hello->id, "here/cpu");
    ck_assert_str_eq(hello->device, "cpu");
    ck_assert_str_ne(hello->version, "");
    ck_assert_str_eq(hello->address, "127.0.0.1");
    ck_assert_int_eq(hello->pid, getpid());
    ck_assert_uint_gt(hello->memory_bytes, 1 << 20);
    welcome(world.attached, 10);
    WAIT(&world, world.heartbeats > 2);
    ck_assert_uint_eq(world.step, 0);
    /* Of another attempt, or of none: an idle worker ignores it. */
    world_cancel(&world, 1, true);
    world_pull(&world, 1, 7);
    world_end(&world, 0);
    ck_assert_int_eq(world.finishes, 0);
}

TEST(plans)
{
    struct world world;
    world_init(&world, false);
    Fsdpd__V1__JobSpec *spec = make_spec("5", "true");
    world_order_plan(&world, spec, 11);
    WAIT(&world, world.plans == 1);
    ck_assert_uint_eq(world.plan->plan->request, 11);
    ck_assert_msg(world.plan->plan->code == 0, "%s", world.plan->plan->message);
    ck_assert_uint_eq(world.plan->plan->steps, 5);
    ck_assert_uint_gt(world.plan->plan->plan->peak_bytes, STATE_BYTES);
    ck_assert_ptr_nonnull(strstr(world.plan->plan->plan->dump, "hidden"));

    free(spec->data->dir);
    spec->data->dir = mem_strdup("/etc");
    world_order_plan(&world, spec, 12);
    WAIT(&world, world.plans == 2);
    ck_assert_uint_eq(world.plan->plan->code, STATUS_PERMISSION_DENIED);

    world_order_plan(&world, NULL, 13);
    WAIT(&world, world.plans == 3);
    ck_assert_uint_eq(world.plan->plan->request, 13);
    ck_assert_uint_eq(world.plan->plan->code, STATUS_INVALID_ARGUMENT);

    /* Plans in progress when the worker leaves. */
    for (uint64_t i = 0; i < 8; i++) world_order_plan(&world, spec, 20 + i);
    world_drain(&world);
    for (uint64_t i = 0; i < 8; i++) world_order_plan(&world, spec, 30 + i);
    world_end(&world, 0);
    spec_free(spec);
}

/* A script that stands for `fsdpd calibrate`. */
static void write_script(const char *path, const char *text)
{
    char *whole = mem_printf("#!/bin/sh\n%s\n", text);
    status_t status = file_write_atomic(path, whole, strlen(whole), 0700);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    free(whole);
}

static void order_calibration(struct world *world, bool stop)
{
    coordinator_message message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    Fsdpd__V1__CalibrationOrder order = FSDPD__V1__CALIBRATION_ORDER__INIT;
    order.device = (char *)"cpu";
    order.workers = 2;
    order.seconds = 5;
    order.stop = stop;
    message.message_case = COORDINATOR(CALIBRATION);
    message.calibration = &order;
    world_send(world, &message);
}

static const Fsdpd__V1__Calibration *wait_calibration(struct world *world)
{
    int before = world->calibrations;
    WAIT(world, world->calibrations > before);
    return world->calibration->calibration;
}

TEST(calibrates_in_a_process)
{
    struct world world;
    char path[] = "/tmp/fsdpd-test-script-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    world_prepare(&world, false);
    world.options.program = path;
    world_run(&world);
    ck_assert_ptr_nonnull(strstr(world.hello->hello->make, "oneDNN"));

    write_script(path, "echo \"like: cpu # $*\"");
    order_calibration(&world, false);
    const Fsdpd__V1__Calibration *report = wait_calibration(&world);
    ck_assert_msg(report->code == STATUS_OK, "%s", report->message);
    char *expected = mem_printf("like: cpu # calibrate --for-worker %d --device cpu --workers 2 "
                                "--threads 1 --seconds 5\n",
                                (int)getpid());
    ck_assert_str_eq(report->profile, expected);
    free(expected);

    write_script(path, "echo 'like: abacus'");
    order_calibration(&world, false);
    report = wait_calibration(&world);
    ck_assert_uint_eq(report->code, STATUS_INVALID_ARGUMENT);
    ck_assert_str_eq(report->profile, "");

    write_script(path, "exit 3");
    order_calibration(&world, false);
    report = wait_calibration(&world);
    ck_assert_uint_eq(report->code, STATUS_INTERNAL);
    ck_assert_ptr_nonnull(strstr(report->message, "exited with status 3"));

    /* Stopped at once, even by a process that leaves another one behind; a second stop does
     * nothing. */
    write_script(path, "sleep 20 & exec sleep 3600");
    order_calibration(&world, false);
    order_calibration(&world, true);
    order_calibration(&world, true);
    report = wait_calibration(&world);
    ck_assert_uint_eq(report->code, STATUS_CANCELLED);

    /* Nor does it keep the worker. */
    order_calibration(&world, false);
    world_end(&world, 0);
    unlink(path);
}

TEST(trains_and_uploads)
{
    struct world world;
    world_init(&world, false);
    Fsdpd__V1__JobSpec *spec = make_spec("6", "true");
    spec->train->trace_interval = 2;
    for (int run = 1; run <= 2; run++) { /* and is free again afterwards */
        world_assign(&world, spec, 0, 1);
        WAIT(&world, world.finishes == run);
        expect_finished(&world, STATUS_OK, "trained");
        const Fsdpd__V1__Finished *finished = world.finished->event->finished;
        ck_assert_uint_eq(finished->step, 6);
        ck_assert_uint_gt(finished->memory_peak_bytes, 0);
        ck_assert_uint_le(finished->memory_peak_bytes, finished->memory_planned_bytes);
        ck_assert_int_eq(world.started, run);
        ck_assert_int_eq(world.uploads, run);
        ck_assert_int_ge(world.metrics, 6 * run);
        ck_assert_int_eq(world.timed, 3 * run);
        expect_upload(&world, 0);
        ck_assert_uint_eq(world.upload.step, 6);
    }
    spec_free(spec);
    world_end(&world, 0);
}

TEST(pulls_while_training)
{
    struct world world;
    world_init(&world, false);
    world_train(&world);
    world_order(&world, "another-1", 1, NULL, &(Fsdpd__V1__PullOrder)FSDPD__V1__PULL_ORDER__INIT);
    for (uint64_t pull = 1; pull <= 3; pull++) {
        world_pull(&world, pull, 100 + pull);
        world_pull(&world, pull, 100 + pull); /* a repetition changes nothing */
        WAIT(&world, world.uploads == (int)pull);
        expect_upload(&world, 100 + pull);
        uint64_t step = world.upload.step;
        WAIT(&world, world.step > step);
    }
    world_cancel(&world, 4, false);
    expect_finished(&world, STATUS_CANCELLED, "not wanted");
    ck_assert_int_eq(world.uploads, 3);
    ck_assert_int_eq(world.pulls_failed, 0);
    world_end(&world, 0);
}

/* The linker (--wrap) replaces malloc by this. */
static atomic_bool no_memory;
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
    return atomic_load(&no_memory) && size > STATE_BYTES / 2 ? NULL : __real_malloc(size);
}

/* No room for a copy of the weights: the pull gets an error; training continues, and so do later
 * pulls. */
TEST(pull_without_memory)
{
    struct world world;
    world_init(&world, false);
    world_train(&world);
    atomic_store(&no_memory, true);
    world_pull(&world, 1, 101);
    WAIT(&world, world.pulls_failed == 1);
    const Fsdpd__V1__PullFailed *failed = world.pull_failed->event->pull_failed;
    ck_assert_uint_eq(failed->pull, 101);
    ck_assert_uint_eq(failed->code, STATUS_RESOURCE_EXHAUSTED);
    ck_assert_msg(strstr(failed->message, "rank 0: no memory to copy the") != NULL, "%s",
                  failed->message);
    uint64_t step = world.step;
    WAIT(&world, world.step > step + 3);
    atomic_store(&no_memory, false);
    world_pull(&world, 2, 102);
    WAIT(&world, world.uploads == 1);
    expect_upload(&world, 102);
    world_cancel(&world, 3, false);
    expect_finished(&world, STATUS_CANCELLED, "not wanted");
    world_end(&world, 0);
}

/* 0: by agreement, 1: at once. The state_dict in flight has no reader. */
LOOP_TEST(ends_in_the_middle_of_a_pull, 0, 2)
{
    struct world world;
    world_init(&world, false);
    world.pause_uploads = true;
    world_train(&world);
    world_pull(&world, 1, 5);
    world_pull(&world, 2, 6);
    WAIT(&world, world.uploads == 1);
    uint64_t step = world.step;
    WAIT(&world, world.step > step + 3);
    world_cancel(&world, 3, _i == 1);
    WAIT(&world, world.pulls_failed == 2);
    expect_finished(&world, _i == 1 ? STATUS_ABORTED : STATUS_CANCELLED, "not wanted");
    WAIT(&world, world.upload.closed);
    ck_assert_uint_eq(world.pull_failed->event->pull_failed->pull, 6);
    world_end(&world, 0);
}

/* The coordinator refuses the upload: that pull fails, training does not. */
TEST(upload_refused)
{
    struct world world;
    world_init(&world, false);
    world.pause_uploads = true;
    world_train(&world);
    world_pull(&world, 1, 5);
    WAIT(&world, world.uploads == 1);
    rpc_call_finish(world.upload.call, status_new(STATUS_NOT_FOUND, "no client waits for it"));
    WAIT(&world, world.pulls_failed == 1);
    const Fsdpd__V1__PullFailed *failed = world.pull_failed->event->pull_failed;
    ck_assert_uint_eq(failed->pull, 5);
    ck_assert_uint_eq(failed->code, STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(failed->message, "no client waits"));
    uint64_t step = world.step;
    WAIT(&world, world.step > step + 1);
    world.pause_uploads = false;
    world_pull(&world, 2, 6);
    WAIT(&world, world.uploads == 2);
    expect_upload(&world, 6);
    world_cancel(&world, 3, false);
    expect_finished(&world, STATUS_CANCELLED, "not wanted");
    world_end(&world, 0);
}

/* The other rank never comes. */
TEST(cancelled_while_it_waits_for_the_others)
{
    struct world world;
    world_init(&world, false);
    Fsdpd__V1__JobSpec *spec = make_spec("0", "false");
    spec->workers = 2;
    world_assign(&world, spec, 0, 2);
    spec_free(spec);
    WAIT(&world, world.store_gets > 0);
    ck_assert_int_gt(world.store_sets, 0);
    world_cancel(&world, 1, true);
    expect_finished(&world, STATUS_ABORTED, "not wanted");
    world_end(&world, 0);
}

TEST(refuses_invalid_assignments)
{
    struct world world;
    world_init(&world, false);
    Fsdpd__V1__JobSpec *spec = make_spec("3", "false");
    static const uint32_t ranks[][2] = {{1, 1}, {0, 2}, {0, 0}};
    for (int i = 0; i < 4; i++) {
        world_assign(&world, i < 3 ? spec : NULL, i < 3 ? ranks[i][0] : 0, i < 3 ? ranks[i][1] : 1);
        WAIT(&world, world.finishes == i + 1);
        expect_finished(&world, STATUS_INVALID_ARGUMENT, "invalid assignment");
    }
    spec_free(spec);
    world_end(&world, 0);
}

/* There would be enough without the others. */
TEST(shares_the_hosts_memory)
{
    struct world world;
    world_init(&world, false);
    world.sharers = 1u << 30;
    Fsdpd__V1__JobSpec *spec = make_spec("3", "false");
    world_assign(&world, spec, 0, 1);
    expect_finished(&world, STATUS_RESOURCE_EXHAUSTED, "are available");
    spec_free(spec);
    world_end(&world, 0);
}

/* Invalid UTF-8 does not cost the link, which would reject it. */
TEST(odd_lines)
{
    struct world world;
    world_init(&world, false);
    world_train(&world);
    log_event(LOG_INFO, "odd", "path=a\xff\xc3\xa9\xc3");
    WAIT(&world, world.odd_line);
    world_cancel(&world, 1, false);
    expect_finished(&world, STATUS_CANCELLED, "not wanted");
    world_end(&world, 0);
}

TEST(assigned_while_busy)
{
    struct world world;
    world_init(&world, false);
    world_train(&world);
    Fsdpd__V1__JobSpec *spec = make_spec("3", "false");
    world_assign(&world, spec, 0, 1);
    spec_free(spec);
    expect_finished(&world, STATUS_ABORTED, "assigned while busy");
    world_end(&world, 1);
}

/* Asks until the rank is within a kernel. */
static const Fsdpd__V1__RankDiagnosis *diagnose(struct world *world)
{
    const Fsdpd__V1__RankDiagnosis *rank = NULL;
    coordinator_message message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    Fsdpd__V1__DiagnosisOrder order = FSDPD__V1__DIAGNOSIS_ORDER__INIT;
    order.job = (char *)"digits-1";
    order.attempt = 1;
    message.message_case = COORDINATOR(DIAGNOSIS);
    message.diagnosis = &order;
    const uint64_t until = uv_hrtime() + UINT64_C(60000000000);
    while (rank == NULL || rank->n_lanes == 0) {
        ck_assert(uv_hrtime() < until);
        order.number++;
        world_send(world, &message);
        WAIT(world, world->diagnoses == (int)order.number);
        ck_assert_uint_eq(world->diagnosis->diagnosis->number, order.number);
        rank = world->diagnosis->diagnosis->rank;
        ck_assert(rank->answered);
        ck_assert_uint_gt(rank->step, 0);
        ck_assert_str_ne(rank->place, "");
    }
    return rank;
}

TEST(answers_a_diagnosis_while_it_trains)
{
    const uint64_t begun = uv_hrtime();
    struct world world;
    world_init(&world, false);
    world_train(&world);
    const Fsdpd__V1__RankDiagnosis *rank = diagnose(&world);
    ck_assert_str_ne(rank->program, "");
    ck_assert_uint_eq(rank->n_errors, 0);
    for (size_t i = 0; i < rank->n_lanes; i++) {
        const Fsdpd__V1__LaneDiagnosis *lane = rank->lanes[i];
        ck_assert_str_ne(lane->kind, "");
        ck_assert_double_lt(lane->seconds, (double)(uv_hrtime() - begun) * 1e-9);
        for (size_t j = 0; j < i; j++) ck_assert_str_ne(lane->lane, rank->lanes[j]->lane);
    }
    ck_assert_double_lt(rank->place_seconds, (double)(uv_hrtime() - begun) * 1e-9);
    /* Heartbeats have the attempt's step, and the time that its steps took. */
    welcome(world.attached, 10);
    WAIT(&world, world.heartbeats > 0 && world.heartbeat->heartbeat->step > 2);
    ck_assert_uint_gt(world.heartbeat->heartbeat->own_us, 0);
    ck_assert_double_lt((double)world.heartbeat->heartbeat->own_us * 1e3,
                        (double)(uv_hrtime() - begun));
    ck_assert(!world.heartbeat->heartbeat->waits);
    world_cancel(&world, 1, true);
    expect_finished(&world, STATUS_ABORTED, "not wanted");
    world_end(&world, 0);
}

TEST(drained_while_training)
{
    struct world world;
    world_init(&world, false);
    world_train(&world);
    world_pull(&world, 1, 5);
    world_drain(&world);
    expect_finished(&world, STATUS_ABORTED, "the daemon is stopping");
    ck_assert_int_eq(world.leaves, 1);
    ck_assert_int_eq(world.finishes_before_leave, 0); /* after one it would get work */
    world_end(&world, 0);
}

/* A worker must have whatever a job file may name; it once trained with AdamW for any unknown
 * optimizer. */
TEST(has_every_optimizer_of_the_job_file)
{
    const struct spec_key *key = spec_keys;
    while (strcmp(key->key, "optimizer.type") != 0) key++;
    int count = 0;
    for (; count < SPEC_CHOICES_MAX && key->choices[count] != NULL; count++) {
        enum optimizer_kind kind;
        ck_assert_msg(plan_optimizer_find(key->choices[count], &kind), "%s", key->choices[count]);
        ck_assert_str_eq(plan_optimizer_name(kind), key->choices[count]);
    }
    ck_assert_int_eq(count, OPTIMIZER_COUNT);
    enum optimizer_kind kind;
    ck_assert(!plan_optimizer_find("adma", &kind));
}

/* Neither table may have a value of a type that the other one lacks. */
TEST(has_every_value_of_the_job_files_choices)
{
    for (const struct spec_key *key = spec_keys; key < spec_keys + spec_key_count; key++) {
        int rows = 0, values = 0;
        for (const struct job_choice *row = job_choices; row->type != NULL; row++)
            rows += key->values == row->type;
        if (rows == 0) continue;
        for (; values < SPEC_CHOICES_MAX && key->choices[values] != NULL; values++) {
            int found = 0;
            for (const struct job_choice *row = job_choices; row->type != NULL; row++)
                found += row->type == key->values && row->given == values + 1;
            ck_assert_msg(found == 1, "%s: %s", key->key, key->choices[values]);
        }
        ck_assert_int_eq(values, rows);
    }
}

/* A burst passes, then a steady rate; drops are counted. */
TEST(log_rate)
{
    struct log_rate rate = {0};
    int64_t now = INT64_C(1000000000000);
    int taken = 0;
    for (int i = 0; i < 2 * LOG_RATE_BURST; i++) taken += log_rate_take(&rate, now);
    ck_assert_int_eq(taken, LOG_RATE_BURST);
    ck_assert_uint_eq(rate.dropped, LOG_RATE_BURST);
    taken = 0;
    for (int i = 0; i < 10000; i++) { /* ten seconds */
        now += 1000000;
        taken += log_rate_take(&rate, now);
    }
    ck_assert_int_eq(taken, 10 * LOG_RATE_PER_SECOND);
    now += INT64_C(1000000000000); /* long idle: one burst, not more */
    taken = 0;
    for (int i = 0; i < 2 * LOG_RATE_BURST; i++) taken += log_rate_take(&rate, now);
    ck_assert_int_eq(taken, LOG_RATE_BURST);
}

/* ---- metrics between attempts ---- */

TESTS_BELOW(.timeout = 30);

static void expect_spared(const struct spare *spare, uint64_t until, uint64_t from, uint64_t to)
{
    struct buf bytes = {0};
    spare_pack_metrics(spare, until, &bytes);
    Fsdpd__V1__UnrecordedReports *reports = fsdpd__v1__unrecorded_reports__unpack(
        NULL, bytes.length, (const uint8_t *)buf_text(&bytes));
    ck_assert_ptr_nonnull(reports);
    ck_assert_uint_eq(reports->n_metrics, to - from);
    for (size_t i = 0; i < reports->n_metrics; i++)
        ck_assert_uint_eq(reports->metrics[i]->metrics->step, from + i);
    fsdpd__v1__unrecorded_reports__free_unpacked(reports, NULL);
    buf_deinit(&bytes);
}

/* The last ones are kept; steps that a later attempt did again count once. */
TEST(metrics_are_spared)
{
    struct spare spare = {.job = mem_strdup("a-1")};
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    expect_spared(&spare, 9, 0, 0);
    for (metrics.step = 1; metrics.step <= SPARE_METRICS + 6; metrics.step++)
        spare_add_metrics(&spare, &metrics);
    expect_spared(&spare, 6, 0, 0);
    expect_spared(&spare, 60, 7, 61);
    expect_spared(&spare, 1000, 7, SPARE_METRICS + 7);
    metrics.step = 50;
    spare_add_metrics(&spare, &metrics);
    expect_spared(&spare, 1000, 8, 51);
    spare_clear(&spare);
}
