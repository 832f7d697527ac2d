/* Reports that wait for the coordinator: numbers, acknowledgements, and which ones are dropped when
 * they are too many. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/testing.h"
#include "worker/outbox.h"

static struct outbox outbox;

static void tear_down(void)
{
    outbox_deinit(&outbox);
}

static bool add(const char *job, uint32_t attempt, int kind, uint64_t step)
{
    Fsdpd__V1__AttemptEvent *event = mem_alloc(sizeof *event);
    fsdpd__v1__attempt_event__init(event);
    event->job = mem_strdup(job);
    event->attempt = attempt;
    event->event_case = (Fsdpd__V1__AttemptEvent__EventCase)kind;
    if (kind == FSDPD__V1__ATTEMPT_EVENT__EVENT_METRICS) {
        event->metrics = mem_alloc(sizeof *event->metrics);
        fsdpd__v1__metrics__init(event->metrics);
        event->metrics->step = step;
    } else if (kind == FSDPD__V1__ATTEMPT_EVENT__EVENT_EPOCH) {
        event->epoch = mem_alloc(sizeof *event->epoch);
        fsdpd__v1__epoch_end__init(event->epoch);
    } else if (kind == FSDPD__V1__ATTEMPT_EVENT__EVENT_PULL_FAILED) {
        event->pull_failed = mem_alloc(sizeof *event->pull_failed);
        fsdpd__v1__pull_failed__init(event->pull_failed);
    } else {
        event->logs = mem_alloc(sizeof *event->logs);
        fsdpd__v1__log_report__init(event->logs);
        event->logs->lines = mem_alloc_array(1, sizeof *event->logs->lines);
        event->logs->lines[0] = mem_alloc(sizeof **event->logs->lines);
        fsdpd__v1__log_line__init(event->logs->lines[0]);
        event->logs->n_lines = 1;
    }
    Fsdpd__V1__WorkerMessage *message = mem_alloc(sizeof *message);
    fsdpd__v1__worker_message__init(message);
    message->message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_EVENT;
    message->event = event;
    bool kept = false;
    outbox_add(&outbox, message, &kept);
    if (!kept) fsdpd__v1__worker_message__free_unpacked(message, NULL);
    return kept;
}

#define METRICS FSDPD__V1__ATTEMPT_EVENT__EVENT_METRICS
#define EPOCH FSDPD__V1__ATTEMPT_EVENT__EVENT_EPOCH
#define LOGS FSDPD__V1__ATTEMPT_EVENT__EVENT_LOGS

TESTS_BELOW(.set_up = NULL, .tear_down = tear_down);

TEST(numbers_and_acknowledgements)
{
    for (uint64_t i = 1; i <= 5; i++) ck_assert(add("a-1", 1, METRICS, i));
    ck_assert(!add("a-1", 1, FSDPD__V1__ATTEMPT_EVENT__EVENT_PULL_FAILED, 0));
    ck_assert(add("a-1", 2, EPOCH, 0)); /* another attempt counts from 1 again */
    ck_assert(add("a-1", 2, METRICS, 7));
    ck_assert_int_eq(outbox.count, 7);
    ck_assert_uint_eq(outbox.messages[4]->event->report, 5);
    ck_assert_uint_eq(outbox.messages[5]->event->report, 1);
    int position = 0;
    ck_assert_uint_eq(outbox_next_attempt(&outbox, &position)->attempt, 1);
    ck_assert_uint_eq(outbox_next_attempt(&outbox, &position)->attempt, 2);
    ck_assert_ptr_null(outbox_next_attempt(&outbox, &position));
    outbox_acknowledge(&outbox, "b-1", 1, 100);
    ck_assert_int_eq(outbox.count, 7);
    outbox_acknowledge(&outbox, "a-1", 1, 3);
    ck_assert_int_eq(outbox.count, 4);
    ck_assert_uint_eq(outbox.messages[0]->event->report, 4);
    outbox_acknowledge(&outbox, "a-1", 1, UINT64_MAX);
    ck_assert_int_eq(outbox.count, 2);
    outbox_acknowledge(&outbox, "a-1", 2, 2);
    ck_assert_int_eq(outbox.count, 0);
    ck_assert_int_eq(outbox.metrics, 0);
}

/* For any number of them: the bound holds, only metrics are dropped, and every drop is counted. The
 * extremes of curves stay. */
TEST(thinned_metrics)
{
    enum { STEPS = 5000, PEAK = 777, SLOWEST = 2345 };
    bool peak = false, slowest = false;
    outbox.keep = 64;
    for (uint64_t i = 1; i <= STEPS; i++) {
        add("a-1", 1, METRICS, i);
        Fsdpd__V1__Metrics *report = outbox.messages[outbox.count - 1]->event->metrics;
        report->loss = i == PEAK ? 50 : sin((double)i);
        report->step_seconds = i == SLOWEST ? 50 : cos(1.7 * (double)i);
        if (i % 100 == 0) add("a-1", 1, EPOCH, 0);
        ck_assert_int_le(outbox.metrics, 64);
    }
    uint64_t metrics = 0, thinned = 0, epochs = 0, last = 0, step = 0;
    for (int i = 0; i < outbox.count; i++) {
        const Fsdpd__V1__AttemptEvent *event = outbox.messages[i]->event;
        ck_assert_uint_gt(event->report, last);
        last = event->report;
        thinned += event->thinned;
        if (event->event_case == EPOCH) epochs++;
        else metrics++, step = event->metrics->step;
        if (event->event_case != METRICS) continue;
        peak |= event->metrics->loss == 50;
        slowest |= event->metrics->step_seconds == 50;
    }
    ck_assert(peak && slowest);
    ck_assert_uint_eq(epochs, STEPS / 100);
    ck_assert_uint_eq(metrics + thinned, STEPS);
    ck_assert_uint_eq(step, STEPS); /* the latest figures are there */
}

/* "2 3 " of the reports that a checkpoint of that step would keep. */
static void expect_packed(uint64_t step, const char *expected)
{
    struct buf bytes = {0};
    char found[64] = "";
    outbox_pack_metrics(&outbox, "a-1", 2, step, &bytes);
    Fsdpd__V1__UnrecordedReports *reports = fsdpd__v1__unrecorded_reports__unpack(
        NULL, bytes.length, (const uint8_t *)buf_text(&bytes));
    ck_assert_ptr_nonnull(reports);
    for (size_t i = 0; i < reports->n_metrics; i++)
        snprintf(found + strlen(found), sizeof found - strlen(found), "%llu ",
                 (unsigned long long)reports->metrics[i]->metrics->step);
    ck_assert_str_eq(found, expected);
    fsdpd__v1__unrecorded_reports__free_unpacked(reports, NULL);
    buf_deinit(&bytes);
}

TEST(metrics_for_a_checkpoint)
{
    expect_packed(9, "");
    add("a-1", 1, METRICS, 1); /* another attempt's */
    for (uint64_t i = 2; i <= 5; i++) add("a-1", 2, METRICS, i);
    add("a-1", 2, EPOCH, 0);
    expect_packed(4, "2 3 4 ");
    outbox_acknowledge(&outbox, "a-1", 2, 2);
    expect_packed(4, "4 ");
    outbox_acknowledge(&outbox, "a-1", 2, 5);
    expect_packed(9, "");
}

TEST(thinned_logs)
{
    for (int i = 0; i < 3 * OUTBOX_LOGS; i++) {
        add("a-1", 1, LOGS, 0);
        ck_assert_int_le(outbox.logs, OUTBOX_LOGS);
    }
    uint64_t lines = 0;
    for (int i = 0; i < outbox.count; i++)
        lines +=
            outbox.messages[i]->event->logs->n_lines + outbox.messages[i]->event->logs->dropped;
    ck_assert_uint_eq(lines, 3 * OUTBOX_LOGS);
    ck_assert_int_ge(outbox.count, OUTBOX_LOGS / 2);
}
