/* What is told to TensorBoard and Prometheus: the bytes of event files, totals, escapes. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "coordinator/jobs.h"
#include "coordinator/metrics.h"
#include "coordinator/tensorboard.h"
#include "test_coordinator_world.h"

/* Made with TensorFlow's layout by hand: the checksums are of an independent implementation. */
START_TEST(test_event_bytes)
{
    struct buf out = {0};
    tensorboard_add_version(&out, 1.5);
    static const uint8_t version[] = {
        0x18, 0,   0,   0,   0,   0,   0,   0,    0xa3, 0x7f, 0x4b, 0x22,
        0x09, 0,   0,   0,   0,   0,   0,   0xf8, 0x3f, 0x1a, 0x0d, 'b',
        'r',  'a', 'i', 'n', '.', 'E', 'v', 'e',  'n',  't',  ':',  '2',
    };
    ck_assert_uint_eq(out.length, sizeof version + 4);
    ck_assert_mem_eq(out.data, version, sizeof version);
    buf_clear(&out);
    struct tensorboard_scalar scalars[] = {{"a/b", 0.5}, {"c", -2}};
    tensorboard_add_scalars(&out, 2, 300, scalars, 2);
    static const uint8_t event[] = {
        0x09, 0,    0,    0,    0,   0,    0,   0,    0x40,                /* wall time */
        0x10, 0xac, 0x02,                                                  /* step */
        0x2a, 0x16,                                                        /* summary */
        0x0a, 0x0a, 0x0a, 0x03, 'a', '/',  'b', 0x15, 0,    0,    0, 0x3f, /* values */
        0x0a, 0x08, 0x0a, 0x01, 'c', 0x15, 0,   0,    0,    0xc0,
    };
    ck_assert_uint_eq(out.length, 12 + sizeof event + 4);
    ck_assert_mem_eq(out.data + 12, event, sizeof event);
    buf_deinit(&out);
}
END_TEST

START_TEST(test_totals)
{
    Fsdpd__V1__Collective gather = FSDPD__V1__COLLECTIVE__INIT;
    gather.kind = (char *)"all_gather";
    gather.bytes = 10;
    Fsdpd__V1__Collective *collectives[] = {&gather};
    Fsdpd__V1__Plan plan = FSDPD__V1__PLAN__INIT;
    plan.n_collectives = 1;
    plan.collectives = collectives;
    job_spec spec = FSDPD__V1__JOB_SPEC__INIT;
    spec.workers = 3;
    job_message job = FSDPD__V1__JOB__INIT;
    job.plan = &plan;
    job.spec = &spec;
    struct job_totals totals = {0};
    Fsdpd__V1__Metrics report = FSDPD__V1__METRICS__INIT;
    report.step = 10;
    report.step_seconds = 0.5;
    report.samples_per_second = 64;
    report.exposed_communication_seconds = 0.1;
    metrics_add(&totals, &job, &report);
    metrics_add(&totals, &job, &report); /* the same again adds nothing */
    ck_assert_uint_eq(totals.steps, 10);
    ck_assert_double_eq(totals.samples, 320);
    ck_assert_double_eq_tol(totals.seconds, 5, 1e-9);
    ck_assert_double_eq_tol(totals.exposed_seconds, 1, 1e-9);
    ck_assert_double_eq(totals.ops[0].bytes, 300);
    /* Another plan: what was sent stays sent. */
    gather.bytes = 1;
    report.step = 12;
    metrics_add(&totals, &job, &report);
    ck_assert_double_eq(totals.ops[0].bytes, 306);
    ck_assert_int_eq(totals.op_count, 1);
    report.step = 11; /* a rank that was set back: counters never fall */
    metrics_add(&totals, &job, &report);
    ck_assert_uint_eq(totals.steps, 12);
    report.step = 13;
    report.step_seconds = 0; /* unknown */
    metrics_add(&totals, &job, &report);
    ck_assert_uint_eq(totals.steps, 12);
    ck_assert_uint_eq(totals.step, 13);
}
END_TEST

static struct world world;

static void set_up(void)
{
    world_init(&world);
}

static void tear_down(void)
{
    world_deinit(&world);
}

START_TEST(test_exposition)
{
    world_start(&world);
    struct fake fakes[2];
    char *id = world_start_running(&world, fakes);
    struct buf text = {0};
    metrics_write(world.coordinator, &text);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "\nfsdpd_workers{state=\"busy\"} 2\n"));
    char *line = mem_printf("\nfsdpd_job_state{job_id=\"%s\",state=\"RUNNING\"} 1\n", id);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), line));
    free(line);
    ck_assert_ptr_null(strstr(buf_text(&text), "fsdpd_loss")); /* nothing is known yet */
    fake_metrics(&fakes[0], 5, 0.25);
    line = mem_printf("\nfsdpd_loss{job_id=\"%s\"} 0.25\n", id);
    do {
        world_run(&world, 20);
        buf_clear(&text);
        metrics_write(world.coordinator, &text);
    } while (strstr(buf_text(&text), line) == NULL);
    const char *why = "";
    ck_assert(metrics_is_ready(world.coordinator, &why));
    ck_assert_ptr_null(why);
    free(line);
    buf_deinit(&text);
    expect_ok(world_cancel(&world, id));
    for (int i = 0; i < 2; i++) fake_finished(&fakes[i], STATUS_CANCELLED, "cancelled");
    WAIT(&world, world_job_is(&world, id, JOB_CANCELLED));
    free(id);
    for (int i = 0; i < 2; i++) {
        fake_detach(&fakes[i]);
        fake_deinit(&fakes[i]);
    }
    world_stop(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("monitoring");
    TCase *pure = tcase_create("pure");
    tcase_add_test(pure, test_event_bytes);
    tcase_add_test(pure, test_totals);
    suite_add_tcase(suite, pure);
    TCase *served = tcase_create("served");
    tcase_set_timeout(served, 30);
    tcase_add_checked_fixture(served, set_up, tear_down);
    tcase_add_test(served, test_exposition);
    suite_add_tcase(suite, served);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
