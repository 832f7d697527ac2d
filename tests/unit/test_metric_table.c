/* Every figure of training is a row of one table, and every view of figures has every row. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "proto/message.h"
#include "spec/metric_curves.h"
#include "spec/metric_table.h"
#include "tests/testing.h"

static struct buf manual;

static void read_manual(void)
{
    AUTO_FREE char *path = file_path_join(getenv("srcdir"), "docs/monitoring.md");
    status_t status = file_read(path, 1 << 20, &manual);
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

static void free_manual(void)
{
    buf_deinit(&manual);
}

TESTS_BELOW(.set_up = read_manual, .tear_down = free_manual);

static const ProtobufCMessageDescriptor *const messages[METRIC_EVENTS] = {
    &fsdpd__v1__metrics__descriptor, &fsdpd__v1__epoch_end__descriptor,
    &fsdpd__v1__validation__descriptor};

static bool has_field(const ProtobufCMessageDescriptor *message, const char *path)
{
    const char *dot = strchr(path, '.');
    AUTO_FREE char *name = mem_strndup(path, dot != NULL ? (size_t)(dot - path) : strlen(path));
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(message, name);
    if (field == NULL) return false;
    if (dot != NULL) return has_field(field->descriptor, dot + 1);
    return field->type == PROTOBUF_C_TYPE_DOUBLE || field->type == PROTOBUF_C_TYPE_UINT64;
}

TEST(every_row_names_fields_that_exist)
{
    for (size_t i = 0; i < metric_count(); i++) {
        const struct metric *metric = &metric_table[i];
        int places = 0;
        for (int k = 0; k < METRIC_EVENTS; k++) {
            if (metric->fields[k] == NULL) {
                ck_assert_ptr_null(metric->tags[k]);
                continue;
            }
            places++;
            ck_assert_msg(has_field(messages[k], metric->fields[k]), "%s: %s", metric->name,
                          metric->fields[k]);
        }
        ck_assert_int_gt(places, 0);
        for (int k = 0; k < 2 && metric->latest[k] != NULL; k++)
            ck_assert_msg(has_field(messages[METRIC_STEP], metric->latest[k]), "%s: %s",
                          metric->name, metric->latest[k]);
        for (size_t other = 0; other < i; other++)
            ck_assert_str_ne(metric->name, metric_table[other].name);
    }
}

/* Whether a number is a row, or a part of one: a step, a number of rows. */
static bool is_covered(enum metric_event kind, const char *name)
{
    static const char *const parts[] = {"step",          "val_step", "epoch_step",  "tokens",
                                        "op_times_step", "correct",  "epochs_done", "test_samples"};
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (strcmp(parts[i], name) == 0) return true;
    for (size_t i = 0; i < metric_count(); i++) {
        const struct metric *metric = &metric_table[i];
        if (metric->fields[kind] != NULL && strcmp(metric->fields[kind], name) == 0) return true;
        for (int k = 0; kind == METRIC_STEP && k < 2 && metric->latest[k] != NULL; k++)
            if (strcmp(metric->latest[k], name) == 0) return true;
    }
    return false;
}

TEST(every_number_of_a_report_is_a_row)
{
    for (int kind = 0; kind < METRIC_EVENTS; kind++)
        for (unsigned i = 0; i < messages[kind]->n_fields; i++) {
            const ProtobufCFieldDescriptor *field = &messages[kind]->fields[i];
            if (field->type != PROTOBUF_C_TYPE_DOUBLE && field->type != PROTOBUF_C_TYPE_UINT64)
                continue;
            ck_assert_msg(is_covered((enum metric_event)kind, field->name), "%s.%s is not shown",
                          messages[kind]->name, field->name);
        }
}

/* "| `mfu` | | `fsdpd_mfu` | `speed/mfu` | ... |" */
static void add_row(const struct metric *metric, struct buf *out)
{
    buf_printf(out, "\n| `%s` | %s%s| ", metric->name, metric->unit != NULL ? metric->unit : "",
               metric->unit != NULL ? " " : "");
    if (metric->gauge != NULL) buf_printf(out, "`fsdpd_%s` ", metric->gauge);
    if (metric->kind != NULL) buf_printf(out, "(`%s`) ", metric->kind);
    buf_add_text(out, "| ");
    bool any = false;
    for (int k = 0; k < METRIC_EVENTS; k++) {
        if (metric->tags[k] == NULL) continue;
        buf_printf(out, "%s`%s`", any ? ", " : "", metric->tags[k]);
        any = true;
    }
    buf_printf(out, "%s| %s |\n", any ? " " : "", metric->help);
}

/* The manual's table is that of the program: FSDPD_UPDATE_GOLDEN=1 prints it. */
TEST(manual_has_every_row)
{
    AUTO(buf_deinit) struct buf all = {0};
    for (size_t i = 0; i < metric_count(); i++) {
        AUTO(buf_deinit) struct buf row = {0};
        add_row(&metric_table[i], &row);
        buf_add_text(&all, buf_text(&row) + 1);
    }
    if (getenv("FSDPD_UPDATE_GOLDEN") != NULL) fputs(buf_text(&all), stdout);
    ck_assert_msg(strstr(buf_text(&manual), buf_text(&all)) != NULL,
                  "docs/monitoring.md lacks this table:\n%s", buf_text(&all));
}

TEST(what_is_absent_is_not_read)
{
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    double value = 7;
    ck_assert(!metric_read(&metrics.base, "mfu", &value) && value == 7);
    ck_assert(!metric_read(&metrics.base, "val_scores.f1", &value));
    ck_assert(!metric_read(&metrics.base, "no_such_field", &value));
    metric_set(&metrics.base, "mfu", 0);
    ck_assert(metric_read(&metrics.base, "mfu", &value) && value == 0);
    metric_set(&metrics.base, "mfu", NAN);
    ck_assert(!metric_read(&metrics.base, "mfu", &value));
    metric_set_mean(&metrics.base, "test_loss", NAN); /* of nothing, but there was a test */
    ck_assert(metric_read(&metrics.base, "test_loss", &value) && isnan(value));
    metric_set(&metrics.base, "loss", NAN); /* is always there */
    ck_assert(metric_read(&metrics.base, "loss", &value) && isnan(value));
    metric_set(&metrics.base, "memory_peak_bytes", 12);
    ck_assert(metric_read(&metrics.base, "memory_peak_bytes", &value) && value == 12);
}

static Fsdpd__V1__Metrics *report(uint64_t step)
{
    Fsdpd__V1__Metrics *metrics = MESSAGE_NEW(metrics, fsdpd__v1__metrics__init);
    metrics->step = step;
    return metrics;
}

/* A report of a step repeats neither an evaluation nor a validation, and its own figures are new.
 */
TEST(latest_figures_keep_what_steps_do_not_repeat)
{
    Fsdpd__V1__Metrics *old = report(5), *now = report(6);
    metric_set(&old->base, "test_loss", 0.5);
    metric_set(&old->base, "mfu", 0.25);
    old->test_scores = MESSAGE_NEW(old->test_scores, fsdpd__v1__scores__init);
    metric_set(&old->test_scores->base, "f1", 0.75);
    metric_set(&old->base, "memory_peak_bytes", 100);
    metric_set(&now->base, "memory_peak_bytes", 90);
    metric_set(&old->base, "memory_bytes", 80);
    metric_set(&now->base, "memory_bytes", 70);
    metric_merge(now, old);
    ck_assert(now->test_loss == 0.5 && now->test_scores->f1 == 0.75);
    ck_assert_uint_eq(now->memory_peak_bytes, 100);
    ck_assert_uint_eq(now->memory_bytes, 70);
    ck_assert_uint_eq(now->_mfu_case, 0);
    message_free(old);
    message_free(now);
}

/* Of another validation than the latest one, its scores are not those. */
LOOP_TEST(scores_are_of_the_loss_beside_them, 0, 2)
{
    Fsdpd__V1__Metrics *old = report(5), *now = report(6);
    metric_set(&old->base, "val_loss", 1);
    metric_set(&old->base, "val_step", 5);
    old->val_scores = MESSAGE_NEW(old->val_scores, fsdpd__v1__scores__init);
    metric_set(&now->base, "val_loss", 1);
    metric_set(&now->base, "val_step", _i == 0 ? 5 : 6);
    metric_merge(now, old);
    ck_assert_int_eq(now->val_scores != NULL, _i == 0);
    message_free(old);
    message_free(now);
}

/* ---- which reports stay ---- */

static void set_curve(Fsdpd__V1__Metrics *metrics, int curve, double value)
{
    static const char *const fields[CURVES] = {"loss",
                                               "gradient_norm",
                                               "tokens_per_second",
                                               "step_seconds",
                                               "exposed_communication_seconds",
                                               "learning_rate"};
    metric_set(&metrics->base, fields[curve], value);
}

/* Every curve wobbles in its own time, and has one peak and one dip. */
static void add_report(struct metric_reports *all, uint64_t number, uint64_t step)
{
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    metrics.step = step;
    for (int c = 0; c < CURVES; c++) {
        double value = 5 + sin((double)step * (1.1 + 0.3 * c));
        if (step == 500 + 37 * (uint64_t)c) value = 50;
        if (step == 1500 + 41 * (uint64_t)c) value = 1;
        set_curve(&metrics, c, value);
    }
    metric_reports_add(all, number, &metrics);
}

/* Chooses, expects that `keep` stay, and forgets the others. */
static void thin(struct metric_reports *all, size_t keep)
{
    size_t left = 0;
    ck_assert_uint_eq(metric_reports_thin(all, keep), keep);
    for (size_t i = 0; i < all->count; i++)
        if (all->points[i].stays) all->points[left++] = all->points[i];
    ck_assert_uint_eq(left, keep);
    all->count = left;
}

static bool has(const struct metric_reports *all, uint64_t number)
{
    for (size_t i = 0; i < all->count; i++)
        if (all->points[i].number == number) return true;
    return false;
}

/* However often they are thinned. */
TEST(extremes_of_every_curve_stay)
{
    enum { STEPS = 3000, KEPT = 128 };
    AUTO(metric_reports_deinit) struct metric_reports all = {0};
    for (uint64_t step = 1; step <= STEPS; step++) {
        add_report(&all, step, step);
        if (all.count > KEPT + KEPT / 8) thin(&all, KEPT);
    }
    for (int c = 0; c < CURVES; c++) {
        ck_assert_msg(has(&all, 500 + 37 * (uint64_t)c), "the peak of curve %d", c);
        ck_assert_msg(has(&all, 1500 + 41 * (uint64_t)c), "the dip of curve %d", c);
    }
    ck_assert(has(&all, 1));
    for (uint64_t step = STEPS; step >= STEPS - KEPT / 4; step--) ck_assert(has(&all, step));
    for (size_t i = 1; i < all.count; i++) /* no gap of more than two stretches of 512 */
        ck_assert_uint_le(all.points[i].number - all.points[i - 1].number, 1024);
}

/* Of the fewest that may stay, those of the loss. */
TEST(extremes_of_the_loss_stay_with_the_least_room)
{
    enum { STEPS = 2000, KEPT = 16 };
    AUTO(metric_reports_deinit) struct metric_reports all = {0};
    for (uint64_t number = 1; number <= STEPS; number++) {
        /* again and again a short attempt from the beginning, too */
        add_report(&all, number, number < 1600 ? number : number % 2);
        if (all.count > KEPT + 3) thin(&all, KEPT);
    }
    ck_assert(has(&all, 500 + 37 * CURVE_LOSS) && has(&all, 1500 + 41 * CURVE_LOSS));
}

/* The later of two attempts is shown: it has extremes of its own. */
TEST(steps_made_again_have_extremes_of_their_own)
{
    enum { STEPS = 2000, KEPT = 128, BACK = 700 };
    AUTO(metric_reports_deinit) struct metric_reports all = {0};
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    for (uint64_t number = 1; number <= STEPS; number++) {
        metrics.step = number < BACK ? number : number - 5;
        metrics.loss = number == BACK - 1 ? 100 : number == BACK + 5 ? 90 : sin((double)number);
        metric_reports_add(&all, number, &metrics);
        if (all.count > KEPT + KEPT / 8) thin(&all, KEPT);
    }
    ck_assert(has(&all, BACK - 1) && has(&all, BACK + 5));
}
