/* coordinator: profiles that idle workers measure. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

static struct world world;
static const char profile[] = "name: cpu\nlike: cpu\n";

static void set_up(void)
{
    world_init(&world);
    world.make = "Processor 3000, oneDNN 3.1";
    world.options.limits.calibrate_after_ms = 1;
    world_start(&world);
}

static void tear_down(void)
{
    world_deinit(&world);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

static void attach_two(struct fake fakes[2])
{
    fake_attach(&world, &fakes[0], "host/cpu:0", 1000);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
}

static void deinit_two(struct fake fakes[2])
{
    fake_deinit(&fakes[0]);
    fake_deinit(&fakes[1]);
}

/* Workers attach one after the other, so the first may be measured alone, before the second one
 * is there: the calibration of both follows. */
static struct fake *wait_calibration(struct fake fakes[2], uint32_t workers)
{
    for (;;) {
        WAIT(&world, fakes[0].calibrations > 0 || fakes[1].calibrations > 0);
        struct fake *fake = &fakes[fakes[0].calibrations > 0 ? 0 : 1];
        fake->calibrations = 0;
        if (fake->calibration_workers == workers) return fake;
        fake_calibrated(fake, STATUS_OK, profile);
    }
}

static bool is_used(struct fake *fakes, int count)
{
    Fsdpd__V1__PlanJobRequest request = FSDPD__V1__PLAN_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    expect_ok(world_call(&world, &control_plan_job, &request, NULL));
    for (int i = 0; i < count; i++)
        if (fakes[i].plan_profile != NULL && strstr(fakes[i].plan_profile, profile) != NULL)
            return true;
    return false;
}

/* The only file among the kept profiles; the caller frees it. */
static char *find_file(void)
{
    char *directory = world_path(&world, "state/profiles"), *found = NULL;
    DIR *list = opendir(directory);
    ck_assert_ptr_nonnull(list);
    for (const struct dirent *file; (file = readdir(list)) != NULL;) {
        if (strstr(file->d_name, ".yaml") == NULL) continue;
        ck_assert_ptr_null(found);
        found = file_path_join(directory, file->d_name);
    }
    closedir(list);
    free(directory);
    return found;
}

TEST(idle_workers_are_measured_once)
{
    struct fake fakes[2];
    attach_two(fakes);
    struct fake *fake = wait_calibration(fakes, 2);
    ck_assert_str_eq(fake->calibration_device, "cpu");
    ck_assert(!is_used(fakes, 2)); /* and the plan ends it */
    WAIT(&world, fake->calibration_stops == 1);
    fake_calibrated(fake, STATUS_CANCELLED, "stopped");
    fake = wait_calibration(fakes, 2);
    fake_calibrated(fake, STATUS_OK, profile);
    WAIT(&world, is_used(fakes, 2));
    deinit_two(fakes);

    /* It is there at the next start, and nothing is measured again: not for fewer workers either.
     */
    world_stop(&world);
    world_start(&world);
    attach_two(fakes);
    ck_assert(is_used(fakes, 2));
    fake_detach(&fakes[1]);
    world_run(&world, 2500); /* two ticks in which it would begin */
    ck_assert_int_eq(fakes[0].calibrations, 0);
    ck_assert(is_used(fakes, 1));
    deinit_two(fakes);

    /* Other libraries: another profile. */
    world.make = "Processor 3000, oneDNN 3.2";
    attach_two(fakes);
    ck_assert(!is_used(fakes, 2));
    wait_calibration(fakes, 2);
    deinit_two(fakes);
}

TEST(a_damaged_profile_is_measured_again)
{
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    WAIT(&world, fake.calibrations == 1);
    fake_calibrated(&fake, STATUS_OK, profile);
    WAIT(&world, is_used(&fake, 1));
    fake_deinit(&fake);
    world_stop(&world);
    char *path = find_file();
    struct buf text = {0};
    expect_ok(file_read(path, 4096, &text));
    char *place = strstr(text.data, "like: cpu");
    ck_assert_ptr_nonnull(place);
    memcpy(place, "like: t4 ", 9);
    expect_ok(file_write_atomic(path, text.data, text.length, 0640));
    buf_deinit(&text);
    free(path);

    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    ck_assert(!is_used(&fake, 1));
    WAIT(&world, fake.calibrations == 1);
    fake_calibrated(&fake, STATUS_OK, profile);
    WAIT(&world, is_used(&fake, 1));
    fake_deinit(&fake);
    free(find_file()); /* one */
}

TEST(a_job_starts_when_the_calibration_has_ended)
{
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    WAIT(&world, fake.calibrations == 1);
    char *id = world_submit(&world, 1);
    WAIT(&world, fake.calibration_stops == 1);
    world_run(&world, 300);
    ck_assert_int_eq(fake.assignments, 0);
    fake_calibrated(&fake, STATUS_CANCELLED, "stopped");
    WAIT(&world, fake.assignments == 1);
    fake_finished(&fake, STATUS_OK, "");
    WAIT(&world, fake.calibrations == 2); /* idle again */
    fake_deinit(&fake);
    free(id);
}

/* The job is not lost with a worker that never says that it has ended. */
TEST(a_job_does_not_wait_for_a_silent_calibration)
{
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    WAIT(&world, fake.calibrations == 1);
    char *id = world_submit(&world, 1);
    WAIT(&world, fake.assignments == 1);
    ck_assert_int_eq(fake.calibration_stops, 1);
    fake_deinit(&fake);
    free(id);
}

TEST(a_failure_is_not_repeated_at_once)
{
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    WAIT(&world, fake.calibrations == 1);
    fake_calibrated(&fake, STATUS_INTERNAL, "no memory");
    world_run(&world, 2500);
    ck_assert_int_eq(fake.calibrations, 1);
    ck_assert(!is_used(&fake, 1));
    fake_deinit(&fake);
}

/* Devices with consecutive numbers are measured together; others one by one. */
LOOP_TEST(devices_are_named_by_the_first, 0, 2)
{
    static const char *const second[] = {"cuda:2", "cuda:5"};
    struct fake fakes[2];
    fake_attach_device(&world, &fakes[1], "host/b", 1001, second[_i], false);
    fake_attach_device(&world, &fakes[0], "host/a", 1000, "cuda:3", false);
    for (int done = 0; done < 1;) {
        WAIT(&world, fakes[0].calibrations > 0 || fakes[1].calibrations > 0);
        struct fake *fake = &fakes[fakes[0].calibrations > 0 ? 0 : 1];
        if (fake == &fakes[1] && _i == 1) ck_assert_uint_eq(fake->calibration_workers, 1);
        fake->calibrations = 0;
        bool both = _i == 0 ? fake->calibration_workers == 2 : fake == &fakes[0];
        if (both && _i == 0) ck_assert_str_eq(fake->calibration_device, "cuda:2");
        if (both && _i == 1) ck_assert_str_eq(fake->calibration_device, "cuda:3");
        fake_calibrated(fake, STATUS_OK, profile);
        done += both;
    }
    deinit_two(fakes);
}
