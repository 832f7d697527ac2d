/* Views of a job: curves, bars, figures. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "client/progress.h"
#include "client/report.h"
#include "page/page.h"
#include "page/series.h"
#include "print/json.h"
#include "print/plan_report.h"
#include "tests/testing.h"

/* Any number of points: bounded, and every extreme survives. */
TEST(series_thin)
{
    struct series series = {.limit = 16};
    for (int i = 0; i < 100000; i++) {
        double y = i == 77777 ? 50 : i == 11111 ? -50 : i % 7;
        series_add(&series, i, y);
        ck_assert_int_le(series.count, 16);
    }
    double min, max;
    ck_assert(series_range(&series, &min, &max));
    ck_assert_double_eq(min, -50);
    ck_assert_double_eq(max, 50);
    ck_assert_double_eq(series.buckets[0].first_x, 0);
    ck_assert_double_eq(series.buckets[series.count - 1].x, 99999);
    uint64_t points = 0;
    for (int i = 0; i < series.count; i++) {
        points += series.buckets[i].count;
        if (i > 0) ck_assert_double_lt(series.buckets[i - 1].x, series.buckets[i].first_x);
        bool peak = series.buckets[i].first_x <= 77777 && 77777 <= series.buckets[i].x;
        ck_assert_int_eq(series.buckets[i].max == 50, peak);
    }
    ck_assert_uint_eq(points, 100000);
    series_deinit(&series);
}

TEST(series_odd)
{
    struct series series = {0};
    double min, max;
    ck_assert(!series_range(&series, &min, &max));
    series_add(&series, 1, NAN);
    series_add(&series, 2, INFINITY);
    ck_assert_uint_eq(series.not_finite, 2);
    ck_assert_int_eq(series.count, 0);
    for (int i = 1; i <= 10; i++) series_add(&series, i, i);
    series_add(&series, 5, 100); /* went back: drops everything after 4 */
    ck_assert_int_eq(series.count, 5);
    ck_assert(series_range(&series, &min, &max));
    ck_assert_double_eq(max, 100);
    ck_assert_double_eq(series.buckets[3].last, 4);
    series_deinit(&series);
}

static void expect_curve(const struct series *series, int width, int height, bool unicode,
                         const char *const *expected)
{
    struct buf lines[CURVE_MAX_HEIGHT] = {{0}};
    curve_draw(series, width, height, unicode, lines);
    for (int i = 0; i < height; i++) {
        ck_assert_str_eq(buf_text(&lines[i]), expected[i]);
        buf_deinit(&lines[i]);
    }
}

TEST(curves)
{
    struct series series = {0};
    for (int i = 0; i < 16; i++) series_add(&series, i, 15 - i);
    expect_curve(&series, 27, 4, false,
                 (const char *const[]){"       15 |***", "          |   *****",
                                       "          |        *****", "        0 |             ***"});
    expect_curve(&series, 24, 1, true,
                 (const char *const[]){"       15 \u2502"
                                       "\u2809\u2809\u2811\u2812\u2812\u2812\u2822\u2824\u2824"
                                       "\u2824\u2824\u28c0\u28c0"});
    /* One value has no height, and no points give no curve. */
    struct series flat = {0};
    series_add(&flat, 3, 2.5);
    expect_curve(&flat, 24, 2, false, (const char *const[]){"      2.5 |*", "      2.5 |"});
    series_deinit(&flat);
    expect_curve(&flat, 24, 2, false, (const char *const[]){"", ""});
    /* A column with a peak and a valley shows both and everything between. */
    struct series spike = {.limit = 2};
    double values[] = {1, 9, 0, 1};
    for (int i = 0; i < 4; i++) series_add(&spike, i, values[i]);
    struct buf lines[3] = {{0}};
    curve_draw(&spike, 24, 3, false, lines);
    for (int i = 0; i < 3; i++) {
        ck_assert_ptr_nonnull(strchr(buf_text(&lines[i]), '*'));
        buf_deinit(&lines[i]);
    }
    series_deinit(&spike);
    series_deinit(&series);
}

static void expect_bar(double part, int width, bool unicode, const char *expected)
{
    struct buf bar = {0};
    curve_bar(part, width, unicode, false, &bar);
    ck_assert_str_eq(buf_text(&bar), expected);
    buf_deinit(&bar);
}

TEST(bars)
{
    expect_bar(0, 6, false, "[>   ]");
    expect_bar(0.5, 6, false, "[==> ]");
    expect_bar(1, 6, false, "[====]");
    expect_bar(7, 6, false, "[====]");
    expect_bar(NAN, 6, false, "[>   ]");
    expect_bar(0, 6, true, "\u2595    \u258f");
    expect_bar(0.5, 6, true, "\u2595\u2588\u2588  \u258f");
    expect_bar(0.625, 6, true, "\u2595\u2588\u2588\u258c \u258f");
    expect_bar(1, 6, true, "\u2595\u2588\u2588\u2588\u2588\u258f");
}

TEST(figures)
{
    struct progress progress = {.has_loss = true,
                                .epochs = 10,
                                .epoch = 2.5,
                                .learning_rate = 0.7,
                                .gradient_norm_known = true,
                                .gradient_norm = 1.25,
                                .step_seconds = 0.011,
                                .exposed_seconds = 0.0021,
                                .memory_bytes = 36700000,
                                .memory_peak_bytes = 36700000};
    struct buf text = {0};
    progress_figures(&progress, 200, false, &text);
    ck_assert_str_eq(buf_text(&text), "epoch 3/10 [=====>    ]  lr 0.7  grad norm 1.25  "
                                      "11.0 ms/step  2.10 ms exposed  36.7 MB, peak 36.7 MB");
    for (int width = 1; width < 120; width++) {
        buf_clear(&text);
        progress_figures(&progress, width, false, &text);
        ck_assert_int_lt(output_width(buf_text(&text)), width);
    }
    progress.epoch = 10;
    buf_clear(&text);
    progress_figures(&progress, 30, false, &text);
    ck_assert_str_eq(buf_text(&text), "epoch 10/10 [==========]");
    buf_deinit(&text);
}

/* Any name and any message of a job is text on the page: never markup or script. */
static void expect_harmless(const char *text)
{
    ck_assert_ptr_null(strstr(text, "<script"));
    ck_assert_ptr_null(strstr(text, "<img"));
    ck_assert_ptr_null(strchr(text, '\x1b'));
    ck_assert_ptr_null(strchr(text, '\xff'));
    ck_assert_ptr_nonnull(strstr(text, "&lt;script&gt;alert(1)&lt;/script&gt;"));
}

TEST(hostile_page)
{
#define EVIL                                                                                       \
    "</title></style></script><script>alert(1)</script><img src=x onerror='alert(2)'>\"\xff\x1b&"
    char *evil = (char *)EVIL;
    Fsdpd__V1__Reason reason = FSDPD__V1__REASON__INIT;
    reason.code = reason.message = evil;
    Fsdpd__V1__MemoryClass class = FSDPD__V1__MEMORY_CLASS__INIT, *classes[] = {&class};
    class.name = evil;
    class.bytes = 10;
    Fsdpd__V1__Unit unit = FSDPD__V1__UNIT__INIT, *units[] = {&unit};
    unit.name = evil;
    unit.n_modules = 1;
    unit.modules = &evil;
    Fsdpd__V1__ScheduleLine line = FSDPD__V1__SCHEDULE_LINE__INIT, *schedule[] = {&line};
    line.kind = line.subject = line.lane = evil;
    line.seconds = 1;
    Fsdpd__V1__PlanProgram program = FSDPD__V1__PLAN_PROGRAM__INIT, *programs[] = {&program};
    program.name = (char *)"train";
    program.n_schedule = 1;
    program.schedule = schedule;
    Fsdpd__V1__Plan plan = FSDPD__V1__PLAN__INIT;
    plan.strategy = (Fsdpd__V1__Strategy)99;
    plan.device = plan.peak_at = evil;
    plan.peak_bytes = 10;
    plan.n_memory = 1;
    plan.memory = classes;
    plan.n_programs = 1;
    plan.programs = programs;
    Fsdpd__V1__HistoryEntry entry = FSDPD__V1__HISTORY_ENTRY__INIT, *entries[] = {&entry};
    entry.by = evil;
    entry.reason = &reason;
    Fsdpd__V1__GetHistoryResponse history = FSDPD__V1__GET_HISTORY_RESPONSE__INIT;
    history.n_entries = 1;
    history.entries = entries;
    Fsdpd__V1__Job job = FSDPD__V1__JOB__INIT;
    job.id = job.name = evil;
    job.state = (Fsdpd__V1__JobState)77;
    job.reason = &reason;
    job.plan = &plan;
    job.n_units = 1;
    job.units = units;
    job.n_workers = 1;
    job.workers = &evil;
    struct page page = {
        .job = &job, .history = &history, .schedule = &plan, .no_timeline = EVIL, .tokens = true};
    series_add(&page.curves[CURVE_LOSS], 1, 2);
    struct buf text = {0};
    page_write(&page, &text);
    ck_assert_ptr_null(strstr(buf_text(&text), "The wrap policy was changed"));
    buf_clear(&text);
    Fsdpd__V1__JobEvent change = FSDPD__V1__JOB_EVENT__INIT;
    Fsdpd__V1__WrapChange wrap = FSDPD__V1__WRAP_CHANGE__INIT;
    Fsdpd__V1__MetricsRow row = FSDPD__V1__METRICS_ROW__INIT;
    change.event_case = FSDPD__V1__JOB_EVENT__EVENT_WRAP;
    change.wrap = &wrap;
    row.event = &change;
    page_take(&page, &row);
    page_write(&page, &text);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "The wrap policy was changed 1 time while"));
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "Workers by rank"));
    /* The one class of memory takes the whole width. */
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "x=\"0.00\" y=\"4\" width=\"720.00\""));
    int scripts = 0;
    for (const char *at = buf_text(&text); (at = strstr(at, "<script")) != NULL; at++) scripts++;
    ck_assert_int_eq(scripts, 1);
    ck_assert_ptr_null(strstr(buf_text(&text), "<img"));
    ck_assert_ptr_null(strchr(buf_text(&text), '\x1b'));
    ck_assert_ptr_null(strchr(buf_text(&text), '\xff'));
    ck_assert_ptr_nonnull(strstr(buf_text(&text),
                                 "&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x "
                                 "onerror=&#39;alert(2)&#39;&gt;&quot;\ufffd\ufffd&amp;"));

    /* The same as a part of the page of http.listen. */
    Fsdpd__V1__Checkpoint checkpoint = FSDPD__V1__CHECKPOINT__INIT, *taken[] = {&checkpoint};
    Fsdpd__V1__ListCheckpointsResponse checkpoints = FSDPD__V1__LIST_CHECKPOINTS_RESPONSE__INIT;
    checkpoint.path = evil;
    checkpoints.checkpoints = taken;
    checkpoints.n_checkpoints = 1;
    page.live = true;
    page.checkpoints = &checkpoints;
    page.why = EVIL;
    page.sequence = 7;
    buf_clear(&text);
    page_write(&page, &text);
    ck_assert_ptr_eq(strstr(buf_text(&text), "<div data-sequence=\"7\" data-more=\"0\">\n"),
                     buf_text(&text));
    expect_harmless(buf_text(&text));
    page_deinit(&page);

    Fsdpd__V1__Worker worker = FSDPD__V1__WORKER__INIT, *attached[] = {&worker};
    Fsdpd__V1__ListJobsResponse jobs = FSDPD__V1__LIST_JOBS_RESPONSE__INIT;
    Fsdpd__V1__ListWorkersResponse workers = FSDPD__V1__LIST_WORKERS_RESPONSE__INIT;
    Fsdpd__V1__Job *listed[] = {&job};
    worker.id = worker.device = worker.job = evil;
    job.owner = evil;
    jobs.jobs = listed;
    workers.workers = attached;
    jobs.n_jobs = workers.n_workers = 1;
    buf_clear(&text);
    page_write_lists(&jobs, &workers, &text);
    expect_harmless(buf_text(&text));
    buf_deinit(&text);
}

/* Of more validations than a chart has points none is lost that was the worst. */
TEST(validations_keep_their_extremes)
{
    enum { COUNT = 700, WORST = 333 };
    Fsdpd__V1__JobEvent event = FSDPD__V1__JOB_EVENT__INIT;
    Fsdpd__V1__Validation validation = FSDPD__V1__VALIDATION__INIT;
    Fsdpd__V1__MetricsRow row = FSDPD__V1__METRICS_ROW__INIT;
    Fsdpd__V1__Job job = FSDPD__V1__JOB__INIT;
    struct page page = {.job = &job, .live = true};
    struct buf text = {0};
    row.event = &event;
    event.event_case = FSDPD__V1__JOB_EVENT__EVENT_VALIDATION;
    event.validation = &validation;
    for (validation.step = 1; validation.step <= COUNT; validation.step++) {
        validation.loss = validation.step == WORST ? 77.5 : 0.5;
        page_take(&page, &row);
    }
    page_write(&page, &text);
    const char *band = strstr(buf_text(&text), "<polygon class=\"band c1\" points=\"");
    ck_assert_ptr_nonnull(band);
    const char *end = strstr(band, "\"/>"), *top = strstr(band, ",10.0 ");
    ck_assert(top != NULL && top < end);
    ck_assert_ptr_nonnull(
        strstr(buf_text(&text), "validation (a point stands for up to 2 recorded"));
    buf_deinit(&text);
    page_deinit(&page);
}

/* Another attempt is marked with its reason, which says its number of workers. */
TEST(changes_of_units_and_attempts_are_marked)
{
    Fsdpd__V1__JobEvent event = FSDPD__V1__JOB_EVENT__INIT;
    Fsdpd__V1__StateChange change = FSDPD__V1__STATE_CHANGE__INIT;
    Fsdpd__V1__Reason reason = FSDPD__V1__REASON__INIT;
    Fsdpd__V1__MetricsRow row = FSDPD__V1__METRICS_ROW__INIT;
    Fsdpd__V1__Job job = FSDPD__V1__JOB__INIT;
    struct page page = {.job = &job, .live = true};
    struct buf text = {0};
    row.event = &event;
    event.event_case = FSDPD__V1__JOB_EVENT__EVENT_STATE;
    event.state = &change;
    change.reason = &reason;
    change.state = FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING;
    for (uint32_t attempt = 1; attempt <= 3; attempt++) {
        reason.message = (char *)(attempt == 3 ? "training on 1 worker" : "training on 2 workers");
        change.attempt = attempt / 2 + 1; /* twice the second */
        change.step = 10 * attempt;
        page_take(&page, &row);
    }
    for (int step = 1; step <= 40; step++) series_add(&page.curves[CURVE_LOSS], step, 1);
    page_write(&page, &text);
    ck_assert_int_eq(page.mark_count, 1);
    ck_assert_ptr_nonnull(
        strstr(buf_text(&text), "<title>attempt 2: training on 2 workers at step 20</title>"));
    buf_deinit(&text);
    page_deinit(&page);
}

/* Of several values the first line has the title. */
TEST(labels_and_dependencies_of_a_job)
{
    Fsdpd__V1__Reason reason = FSDPD__V1__REASON__INIT;
    Fsdpd__V1__Job job = FSDPD__V1__JOB__INIT;
    Fsdpd__V1__JobSpec spec = FSDPD__V1__JOB_SPEC__INIT;
    Fsdpd__V1__JobSpec__LabelsEntry team = FSDPD__V1__JOB_SPEC__LABELS_ENTRY__INIT, sweep = team;
    Fsdpd__V1__JobSpec__LabelsEntry *labels[] = {&team, &sweep};
    char *waits_for[] = {(char *)"mnist-8", (char *)"mnist-9"};
    struct view view = {.now_ms = 61000, .width = 80};
    struct buf text = {0};
    job.id = (char *)"mnist-10";
    job.reason = &reason;
    job.spec = &spec;
    report_job(&job, &view, &text);
    ck_assert_ptr_null(strstr(buf_text(&text), "\nlabels "));
    ck_assert_ptr_null(strstr(buf_text(&text), "\nwaits for "));
    team.key = (char *)"team", team.value = (char *)"vision";
    sweep.key = (char *)"sweep", sweep.value = (char *)"7";
    spec.labels = labels, spec.n_labels = 2;
    job.waits_for = waits_for, job.n_waits_for = 2;
    buf_clear(&text);
    report_job(&job, &view, &text);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "\nwaits for   mnist-8\n            mnist-9\n"
                                                  "labels      team=vision\n"
                                                  "            sweep=7\n"));
    buf_deinit(&text);
}

/* Their tokens where a mask leaves some out, and waits for them from 1 % on. */
TEST(data_of_a_job)
{
    static const struct {
        double counted, waits;
        const char *line; /* NULL: none */
    } cases[] = {
        {1000, 0.009, NULL},
        {0, 0, NULL},
        {500, 0.009, "\ndata        500 counted tokens/s (50.0%)\n"},
        {500, 0.25,
         "\ndata        500 counted tokens/s (50.0%), 25% of the time waiting for data\n"},
        {1000, 0.25, "\ndata        25% of the time waiting for data\n"},
    };
    Fsdpd__V1__Reason reason = FSDPD__V1__REASON__INIT;
    Fsdpd__V1__JobSpec spec = FSDPD__V1__JOB_SPEC__INIT;
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    Fsdpd__V1__Job job = FSDPD__V1__JOB__INIT;
    struct view view = {.width = 80};
    struct buf text = {0};
    job.id = (char *)"gpt-1";
    job.reason = &reason;
    job.spec = &spec;
    job.metrics = &metrics;
    metrics.step = 5;
    metrics.tokens_per_second = 1000;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        metrics.counted_tokens_per_second = cases[i].counted;
        metrics.data_wait_share = cases[i].waits;
        report_job(&job, &view, &text);
        bool has = strstr(buf_text(&text), "\ndata ") != NULL;
        ck_assert_msg(has == (cases[i].line != NULL), "%s", buf_text(&text));
        if (has) ck_assert_ptr_nonnull(strstr(buf_text(&text), cases[i].line));
        buf_clear(&text);
    }
    buf_deinit(&text);
}

/* Who chose settings, unless this client does not know them. */
TEST(settings_that_are_chosen)
{
    Fsdpd__V1__Reason reason = FSDPD__V1__REASON__INIT;
    Fsdpd__V1__JobSpec spec = FSDPD__V1__JOB_SPEC__INIT;
    Fsdpd__V1__Chosen chosen = FSDPD__V1__CHOSEN__INIT;
    Fsdpd__V1__Job job = FSDPD__V1__JOB__INIT;
    struct view view = {.width = 80};
    struct buf text = {0};
    job.id = (char *)"gpt-1";
    job.reason = &reason;
    job.spec = &spec;
    job.chosen = &chosen;
    report_job(&job, &view, &text);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "\nchosen instead:\n"));
    buf_clear(&text);
    chosen.by = FSDPD__V1__CHOOSER__CHOOSER_USER;
    chosen.profile = (char *)"cpu";
    chosen.step_seconds = 1.5;
    report_job(&job, &view, &text);
    ck_assert_ptr_nonnull(strstr(
        buf_text(&text), "\nchosen instead, last by a user, for cpu, 1.50 s a step expected:\n"));
    buf_deinit(&text);
}

/* From the first one on. */
TEST(choices_of_a_plan)
{
    Fsdpd__V1__Chosen rows[2], *choices[] = {&rows[0], &rows[1]};
    for (int i = 0; i < 2; i++) {
        fsdpd__v1__chosen__init(&rows[i]);
        rows[i].step_seconds = 0.5 + i;
        rows[i].peak_bytes = 1000000;
    }
    rows[0].description = (char *)"train.batch_size=8";
    rows[1].description = (char *)"train.batch_size=4";
    Fsdpd__V1__Plan plan = FSDPD__V1__PLAN__INIT;
    plan.choices = choices;
    plan.n_choices = 2;
    struct buf text = {0};
    report_plan(&plan, 80, &text);
    ck_assert_ptr_nonnull(
        strstr(buf_text(&text),
               "\nCHOICE    STEP   MEMORY  ON THE HOST  SETTINGS\n"
               "     1  500 ms  1.00 MB          0 B  train.batch_size=8\n"
               "     2  1.50 s  1.00 MB          0 B  train.batch_size=4\n"));
    buf_deinit(&text);
}

/* A report without a number of steps leaves the last one. */
TEST(progress_of_one_step)
{
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    metrics.step = 1;
    metrics.loss = 0.5;
    struct progress one = {0};
    struct buf text = {0};
    for (int i = 0; i < 2; i++) {
        buf_clear(&text);
        progress_take(&one, &metrics, i == 0 ? 1 : 0);
        progress_bar(&one, 40, false, &text);
        ck_assert_str_eq(buf_text(&text), "[===================]  1/1  loss 0.5000");
    }
    buf_deinit(&text);
}

TEST(lists_as_json)
{
    Fsdpd__V1__Reason reason = FSDPD__V1__REASON__INIT;
    const ProtobufCMessage *both[] = {&reason.base, &reason.base};
    struct buf text = {0};
    json_add_messages(&text, both, 2, -1);
    ck_assert_str_eq(buf_text(&text), "[{\"code\":\"\",\"message\":\"\"},"
                                      "{\"code\":\"\",\"message\":\"\"}]");
    buf_deinit(&text);
}
