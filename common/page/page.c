/* A job's page; see page.h. It is the template page.html, of which this fills in the pieces,
 * {{name}}. */
#include "page/page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "digest/digest.h"
#include "page/chart.h"
#include "page/html.h"
#include "page/page_files.h"
#include "print/scores.h"
#include "proto/message.h"
#include "spec/spec.h"

/* ---- recorded metrics ---- */

enum { MARKS_MAX = 200 };

/* Times are drawn in milliseconds. */
static void take_metrics(struct page *page, const Fsdpd__V1__Metrics *metrics)
{
    if (metrics->tokens_per_second > 0) page->tokens = true;
    for (int c = 0; c < CURVES; c++) {
        const bool is_time = c == CURVE_STEP_TIME || c == CURVE_EXPOSED;
        double value;
        if (metric_curve(metrics, (enum metric_curve)c, &value))
            series_add(&page->curves[c], (double)metrics->step, is_time ? 1000 * value : value);
    }
}

/* Takes the name. */
static void add_mark(struct page *page, uint64_t step, char *name)
{
    if (page->mark_count == MARKS_MAX) {
        free(name);
        return;
    }
    MEM_GROW(page->marks, page->mark_count, page->mark_capacity);
    page->marks[page->mark_count++] = (struct chart_mark){(double)step, name};
}

static void take_wrap(struct page *page, const Fsdpd__V1__WrapChange *change)
{
    page->wrap_changes++;
    add_mark(page, change->step, mem_strdup("units changed"));
}

/* Another attempt, perhaps with another number of workers, which its reason says. */
static void take_state(struct page *page, const Fsdpd__V1__StateChange *change)
{
    if (change->state != FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING || change->attempt <= page->began)
        return;
    if (page->began > 0)
        add_mark(page, change->step,
                 mem_printf("attempt %u: %s", change->attempt,
                            change->reason != NULL ? change->reason->message : ""));
    page->began = change->attempt;
}

static void take_sampled(struct page *page, const Fsdpd__V1__Sampled *sampled)
{
    struct buf *text = &page->samples[page->sample_count++ % PAGE_SAMPLES];
    buf_clear(text);
    for (size_t i = 0; i < sampled->n_sequences; i++) {
        buf_printf(text, "step %llu: sample: ", (unsigned long long)sampled->step);
        spec_add_sample(text, page->job->spec, sampled, i);
        buf_add_char(text, '\n');
    }
}

static void take_validation(struct page *page, const Fsdpd__V1__Validation *validation)
{
    struct series *series = &page->validation;
    int at = 0;
    if (validation->set[0] != '\0') {
        while (at < page->set_count && strcmp(page->sets[at].name, validation->set) != 0) at++;
        if (at == (int)COUNT_OF(page->sets)) return;
        if (at == page->set_count)
            page->sets[page->set_count++] =
                (struct page_set){.name = mem_strdup(validation->set), .loss.limit = CHART_BUCKETS};
        series = &page->sets[at].loss;
    }
    series_add(series, (double)validation->step, validation->loss);
}

void page_take(struct page *page, const Fsdpd__V1__MetricsRow *row)
{
    for (int c = 0; c < CURVES; c++) page->curves[c].limit = CHART_BUCKETS;
    page->validation.limit = page->test.limit = CHART_BUCKETS;
    const Fsdpd__V1__JobEvent *event = row->event;
    if (event == NULL) return;
    switch (event->event_case) {
    case FSDPD__V1__JOB_EVENT__EVENT_WRAP: take_wrap(page, event->wrap); return;
    case FSDPD__V1__JOB_EVENT__EVENT_STATE: take_state(page, event->state); return;
    case FSDPD__V1__JOB_EVENT__EVENT_SAMPLED: take_sampled(page, event->sampled); return;
    case FSDPD__V1__JOB_EVENT__EVENT_METRICS:
    case FSDPD__V1__JOB_EVENT__EVENT_EPOCH:
    case FSDPD__V1__JOB_EVENT__EVENT_VALIDATION: break;
    default: return;
    }
    if (row->attempt > page->attempts) page->attempts = row->attempt;
    if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_METRICS)
        take_metrics(page, event->metrics);
    else if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_VALIDATION)
        take_validation(page, event->validation);
    else if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_EPOCH &&
             event->epoch->_test_loss_case != 0)
        series_add(&page->test, (double)event->epoch->step, event->epoch->test_loss);
}

void page_deinit(struct page *page)
{
    for (int c = 0; c < CURVES; c++) series_deinit(&page->curves[c]);
    series_deinit(&page->validation);
    series_deinit(&page->test);
    for (int i = 0; i < page->set_count; i++) {
        free(page->sets[i].name);
        series_deinit(&page->sets[i].loss);
    }
    for (int i = 0; i < PAGE_SAMPLES; i++) buf_deinit(&page->samples[i]);
    for (int i = 0; i < page->mark_count; i++) free(page->marks[i].name);
    free(page->marks);
}

/* ---- the sections ---- */

const char *page_state(Fsdpd__V1__JobState state)
{
    const char *word = spec_word(&fsdpd__v1__job_state__descriptor, (int)state);
    return word != NULL ? word : "UNKNOWN";
}

static void fact(struct buf *out, const char *name, const char *text)
{
    if (text == NULL || text[0] == '\0') return;
    buf_printf(out, "<dt>%s</dt><dd>", name);
    html_add(out, text);
    buf_add_text(out, "</dd>\n");
}

static void fact_time(struct buf *out, const char *name, int64_t time_ms)
{
    char text[32];
    if (time_ms > 0) fact(out, name, clock_format_wall(time_ms, text));
}

/* As scores_loss, with six digits. */
static const char *loss_text(double loss, char text[static 32])
{
    snprintf(text, 32, isnan(loss) ? "-" : "%.6g", loss);
    return text;
}

static void add_id(const struct page *page, struct buf *out)
{
    html_add(out, page->job->id);
}

static void add_state(const struct page *page, struct buf *out)
{
    buf_add_text(out, page_state(page->job->state));
}

static void add_reason(const struct page *page, struct buf *out)
{
    if (page->job->reason != NULL) html_add(out, page->job->reason->message);
}

static void add_summary(const struct page *page, struct buf *out)
{
    const Fsdpd__V1__Job *job = page->job;
    const Fsdpd__V1__Metrics *metrics = job->metrics;
    char text[160], a[32];
    text_format_count(job->step, text);
    if (job->steps > 0)
        snprintf(text + strlen(text), sizeof text - strlen(text), " of %s",
                 text_format_count(job->steps, a));
    fact(out, "Steps", text);
    if (metrics != NULL && metrics->step > 0) {
        fact(out, "Loss", loss_text(metrics->loss, a));
    }
    if (metrics != NULL && metrics->_test_loss_case != 0) {
        AUTO(buf_deinit) struct buf test = {0};
        buf_printf(&test, "loss %s, accuracy %s", loss_text(metrics->test_loss, text),
                   scores_share(metrics->accuracy, a));
        scores_add_f1(metrics->test_scores, &test);
        fact(out, "Test", buf_text(&test));
    }
    if (metrics != NULL && metrics->_val_loss_case != 0) {
        AUTO(buf_deinit) struct buf validation = {0};
        buf_printf(&validation, "loss %s", loss_text(metrics->val_loss, text));
        scores_add(metrics->val_scores, &validation);
        buf_printf(&validation, " after step %llu", (unsigned long long)metrics->val_step);
        fact(out, "Validation", buf_text(&validation));
    }
    if (metrics != NULL && metrics->train_seconds > 0)
        fact(out, "Training", text_format_seconds(metrics->train_seconds, a));
    if (metrics != NULL && metrics->seconds_left > 0 &&
        job->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING)
        fact(out, "Time left", text_format_seconds(metrics->seconds_left, a));
    snprintf(text, sizeof text, "%u", job->attempt);
    fact(out, "Attempt", text);
    AUTO(buf_deinit) struct buf workers = {0};
    for (size_t i = 0; i < job->n_workers; i++)
        buf_printf(&workers, "%s%s", i > 0 ? ", " : "", job->workers[i]);
    fact(out, "Workers by rank", buf_text(&workers));
    if (job->plan != NULL) {
        const char *strategy =
            spec_word(&fsdpd__v1__strategy__descriptor, (int)job->plan->strategy);
        snprintf(text, sizeof text, "%s, %s parameters", strategy != NULL ? strategy : "?",
                 text_format_count(job->plan->parameters, a));
        fact(out, "Strategy", text);
        fact(out, "Device", job->plan->device);
    }
    fact_time(out, "Submitted", message_time_ms(job->submit_time));
    fact_time(out, "Started", message_time_ms(job->start_time));
    fact_time(out, "Finished", message_time_ms(job->finish_time));
    for (size_t i = 0; i < job->n_slow_ranks; i++) {
        snprintf(text, sizeof text, "rank %u: %.1f times the median rank's time",
                 job->slow_ranks[i]->rank, job->slow_ranks[i]->slowdown);
        fact(out, "Slow", text);
    }
    if (!page->live) fact_time(out, "Created", page->made_ms);
}

static void add_notes(const struct page *page, struct buf *out)
{
    if (page->steps_thinned > 0)
        buf_printf(out,
                   "<p class=\"note\">%llu recorded steps are no longer kept and not shown.</p>\n",
                   (unsigned long long)page->steps_thinned);
    if (page->attempts > 1)
        buf_add_text(out, "<p class=\"note\">Steps that a later attempt trained again are shown "
                          "from the later attempt.</p>\n");
}

static void add_charts(const struct page *page, struct buf *out)
{
    struct chart charts[] = {
        {.title = "Loss",
         .unit = "",
         .lines = {{"training", &page->curves[CURVE_LOSS], false},
                   {"validation", &page->validation, true},
                   {"test", &page->test, true}},
         .line_count = 3},
        {.title = "Learning rate",
         .unit = "",
         .from_zero = true,
         .lines = {{"learning rate", &page->curves[CURVE_LEARNING_RATE], false}},
         .line_count = 1},
        {.title = "Throughput",
         .unit = page->tokens ? "tokens/s" : "samples/s",
         .from_zero = true,
         .lines = {{page->tokens ? "tokens per second, all ranks" : "samples per second, all ranks",
                    &page->curves[CURVE_RATE], false}},
         .line_count = 1},
        {.title = "Time of a step",
         .unit = "ms",
         .from_zero = true,
         .lines = {{"a step, in ms", &page->curves[CURVE_STEP_TIME], false},
                   {"of it exposed communication, in ms", &page->curves[CURVE_EXPOSED], false}},
         .line_count = 2},
        {.title = "Gradient norm",
         .unit = "",
         .from_zero = true,
         .lines = {{"before clipping", &page->curves[CURVE_GRADIENT_NORM], false}},
         .line_count = 1},
    };
    for (int i = 0; i < page->set_count; i++) {
        const struct chart chart = {.title = "Validation loss",
                                    .unit = "",
                                    .lines = {{page->sets[i].name, &page->sets[i].loss, false}},
                                    .line_count = 1};
        chart_add(&chart, out);
    }
    for (size_t i = 0; i < COUNT_OF(charts); i++) {
        charts[i].marks = page->marks;
        charts[i].mark_count = page->mark_count;
        charts[i].mark_name = "the units or the attempt changed";
        if (i < 4 || page->curves[CURVE_GRADIENT_NORM].points > 0) chart_add(&charts[i], out);
    }
}

static uint64_t measured_peak(const struct page *page)
{
    return page->job->metrics != NULL ? page->job->metrics->memory_peak_bytes : 0;
}

static void add_memory_bar(const struct page *page, struct buf *out)
{
    enum { WIDTH = 720, HEIGHT = 54 };
    const Fsdpd__V1__Plan *plan = page->job->plan;
    const uint64_t measured = measured_peak(page);
    uint64_t most = plan->peak_bytes > measured ? plan->peak_bytes : measured;
    double at = 0, scale = most > 0 ? WIDTH / (double)most : 0;
    buf_printf(out,
               "<svg class=\"memory\" role=\"img\" viewBox=\"0 0 %d %d\"><title>Memory per rank by "
               "class</title>\n",
               WIDTH, HEIGHT);
    for (size_t i = 0; i < plan->n_memory; i++) {
        double width = (double)plan->memory[i]->bytes * scale;
        char bytes[32];
        buf_printf(out,
                   "<rect class=\"m%zu\" x=\"%.2f\" y=\"4\" width=\"%.2f\" height=\"26\"><title>",
                   i % 10, at, width);
        html_add(out, plan->memory[i]->name);
        buf_printf(out, ": %s</title></rect>\n", text_format_bytes(plan->memory[i]->bytes, bytes));
        at += width;
    }
    if (measured > 0) {
        double x = (double)measured * scale - 1;
        buf_printf(out,
                   "<line class=\"measured\" x1=\"%.2f\" x2=\"%.2f\" y1=\"0\" y2=\"36\"/>"
                   "<text class=\"%s\" x=\"%.2f\" y=\"49\">measured peak</text>\n",
                   x, x, x > WIDTH / 2.0 ? "y" : "from", x); /* to the side that has room */
    }
    buf_add_text(out, "</svg>\n");
}

static void memory_row(struct buf *out, const char *name, uint64_t bytes, uint64_t of, int colour)
{
    char text[32];
    buf_add_text(out, "<tr><td>");
    if (colour >= 0) buf_printf(out, "<span class=\"key m%d\"></span>", colour);
    html_add(out, name);
    buf_add_text(out, "</td>");
    html_cell(out, text_format_bytes(bytes, text), true);
    html_cell(out, text_format_count(bytes, text), true);
    snprintf(text, sizeof text, "%.1f%%", of > 0 ? 100.0 * (double)bytes / (double)of : 0);
    html_cell(out, text, true);
    buf_add_text(out, "</tr>\n");
}

static void add_memory(const struct page *page, struct buf *out)
{
    const Fsdpd__V1__Plan *plan = page->job->plan;
    for (size_t i = 0; i < plan->n_memory; i++)
        memory_row(out, plan->memory[i]->name, plan->memory[i]->bytes, plan->peak_bytes,
                   (int)(i % 10));
}

static void add_memory_totals(const struct page *page, struct buf *out)
{
    const Fsdpd__V1__Plan *plan = page->job->plan;
    const uint64_t measured = measured_peak(page);
    memory_row(out, "planned peak", plan->peak_bytes, plan->peak_bytes, -1);
    if (measured > 0) memory_row(out, "measured peak", measured, plan->peak_bytes, -1);
    for (size_t i = 0; i < plan->n_outside; i++)
        memory_row(out, plan->outside[i]->name, plan->outside[i]->bytes, plan->peak_bytes, -1);
    if (plan->n_outside > 0)
        memory_row(out, "planned for the process", plan->resident_bytes, plan->peak_bytes, -1);
    uint64_t resident = page->job->metrics != NULL ? page->job->metrics->resident_peak_bytes : 0;
    if (resident > 0) memory_row(out, "measured of the process", resident, plan->peak_bytes, -1);
}

static void add_peak_at(const struct page *page, struct buf *out)
{
    html_add(out, page->job->plan->peak_at);
}

static void add_memory_note(const struct page *page, struct buf *out)
{
    if (page->wrap_changes > 0)
        buf_printf(out,
                   "<p>The wrap policy was changed %u time%s while the job ran. The plan is that "
                   "of the policy now; what was measured is the largest of all policies, and "
                   "of the changes, in which old and new units are there together: it may be "
                   "more than the plan.</p>\n",
                   page->wrap_changes, page->wrap_changes == 1 ? "" : "s");
}

static void add_units(const struct page *page, struct buf *out)
{
    char text[32];
    const Fsdpd__V1__Job *job = page->job;
    for (size_t i = 0; i < job->n_units; i++) {
        const Fsdpd__V1__Unit *unit = job->units[i];
        AUTO(buf_deinit) struct buf modules = {0};
        for (size_t m = 0; m < unit->n_modules; m++)
            buf_printf(&modules, "%s%s", m > 0 ? ", " : "", unit->modules[m]);
        buf_add_text(out, "<tr>");
        html_cell(out, unit->name, false);
        html_cell(out, buf_text(&modules), false);
        html_cell(out, text_format_count(unit->parameters, text), true);
        html_cell(out, text_format_count(unit->padded, text), true);
        html_cell(out, text_format_bytes(unit->shard_bytes, text), true);
        buf_add_text(out, "</tr>\n");
    }
}

static void add_history(const struct page *page, struct buf *out)
{
    char text[32];
    const Fsdpd__V1__GetHistoryResponse *history = page->history;
    for (size_t i = 0; i < history->n_entries; i++) {
        const Fsdpd__V1__HistoryEntry *entry = history->entries[i];
        buf_add_text(out, "<tr>");
        html_cell(out, clock_format_wall(message_time_ms(entry->time), text), false);
        buf_printf(out, "<td><span class=\"state s-%s\">%s</span></td>", page_state(entry->state),
                   page_state(entry->state));
        snprintf(text, sizeof text, "%u", entry->attempt);
        html_cell(out, text, true);
        html_cell(out, text_format_count(entry->step, text), true);
        html_cell(out, entry->by, false);
        AUTO(buf_deinit) struct buf reason = {0};
        if (entry->reason != NULL) buf_add_text(&reason, entry->reason->message);
        if (entry->diagnosis != NULL) buf_printf(&reason, ". %s", entry->diagnosis->verdict);
        html_cell(out, buf_text(&reason), false);
        buf_add_text(out, "</tr>\n");
    }
}

static void add_checkpoints(const struct page *page, struct buf *out)
{
    char text[32];
    for (size_t i = 0; i < page->checkpoints->n_checkpoints; i++) {
        const Fsdpd__V1__Checkpoint *checkpoint = page->checkpoints->checkpoints[i];
        buf_add_text(out, "<tr>");
        html_cell(out, text_format_count(checkpoint->step, text), true);
        html_cell(out, clock_format_wall(message_time_ms(checkpoint->time), text), false);
        html_cell(out, text_format_bytes(checkpoint->bytes, text), true);
        html_cell(out, checkpoint->path, false);
        buf_add_text(out, "</tr>\n");
    }
}

static void add_why(const struct page *page, struct buf *out)
{
    html_add(out, page->why);
}

static void add_verdict(const struct page *page, struct buf *out)
{
    html_add(out, page->verdict);
}

static void add_samples(const struct page *page, struct buf *out)
{
    int first = page->sample_count > PAGE_SAMPLES ? page->sample_count - PAGE_SAMPLES : 0;
    for (int i = first; i < page->sample_count; i++)
        html_add(out, buf_text(&page->samples[i % PAGE_SAMPLES]));
}

static void add_settings(const struct page *page, struct buf *out)
{
    AUTO(buf_deinit) struct buf yaml = {0};
    struct spec_settings with;
    spec_to_yaml(spec_settings(page->job->spec, page->job->chosen, &with), &yaml);
    html_add(out, buf_text(&yaml));
}

/* ---- the template, page.html ---- */

const char *page_style(void)
{
    return page_css;
}

const char *page_script(void)
{
    return page_js;
}

static void add_style(const struct page *page, struct buf *out)
{
    (void)page;
    buf_add_text(out, page_css);
}

static void add_script(const struct page *page, struct buf *out)
{
    (void)page;
    buf_add_text(out, page_js);
}

/* What the report's policy allows: these texts and no other. */
static void add_digest(const char *text, struct buf *out)
{
    struct digest digest;
    digest_of(text, strlen(text), &digest);
    AUTO_FREE char *base64 = base64_encode(digest.bytes, DIGEST_BYTES);
    buf_printf(out, "'sha256-%s'", base64);
}

static void add_style_digest(const struct page *page, struct buf *out)
{
    (void)page;
    add_digest(page_css, out);
}

static void add_script_digest(const struct page *page, struct buf *out)
{
    (void)page;
    add_digest(page_js, out);
}

/* For the script. */
static void add_place(const struct page *page, struct buf *out)
{
    buf_printf(out, "data-sequence=\"%llu\" data-more=\"%d\"", (unsigned long long)page->sequence,
               page->more);
}

static const struct {
    const char *name; /* {{name}} */
    void (*add)(const struct page *page, struct buf *out);
} pieces[] = {
    {"id", add_id},
    {"state", add_state},
    {"reason", add_reason},
    {"summary", add_summary},
    {"notes", add_notes},
    {"charts", add_charts},
    {"memory_bar", add_memory_bar},
    {"memory", add_memory},
    {"memory_totals", add_memory_totals},
    {"peak_at", add_peak_at},
    {"memory_note", add_memory_note},
    {"step", page_add_step},
    {"units", add_units},
    {"history", add_history},
    {"checkpoints", add_checkpoints},
    {"why", add_why},
    {"verdict", add_verdict},
    {"css", add_style},
    {"js", add_script},
    {"css_digest", add_style_digest},
    {"js_digest", add_script_digest},
    {"place", add_place},
    {"samples", add_samples},
    {"settings", add_settings},
};

/* The report, the page of http.listen without a job (`page` NULL), the part of it about a job. */
static bool has_shape(const struct page *page, const char *name)
{
    const bool live = page == NULL, report = page != NULL && !page->live;
    return (strcmp(name, "live") == 0 && live) || (strcmp(name, "report") == 0 && report) ||
           (strcmp(name, "document") == 0 && (live || report)) ||
           (strcmp(name, "part") == 0 && page != NULL && page->live) ||
           (strcmp(name, "job") == 0 && !live);
}

/* Whether the page has what is between {{?name}} and {{/name}}. */
static bool has_part(const struct page *page, const char *name)
{
    if (page == NULL || has_shape(page, name)) return has_shape(page, name);
    const bool planned = page->job->plan != NULL && page->job->plan->peak_bytes > 0;
    const struct {
        const char *name;
        bool there;
    } parts[] = {
        {"plan", planned},
        {"no_plan", !planned},
        {"units", page->job->n_units > 0},
        {"history", page->history != NULL},
        {"no_history", page->history == NULL},
        {"timed", !page->live},
        {"checkpoints", page->checkpoints != NULL && page->checkpoints->n_checkpoints > 0},
        {"verdict", page->verdict != NULL},
        {"why", page->why != NULL && page->why[0] != '\0'},
        {"samples", page->sample_count > 0},
        {"settings", page->job->spec != NULL},
    };
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (strcmp(parts[i].name, name) == 0) return parts[i].there;
    return false;
}

static void add_piece(const struct page *page, const char *name, struct buf *out)
{
    for (size_t i = 0; i < COUNT_OF(pieces); i++)
        if (strcmp(pieces[i].name, name) == 0) pieces[i].add(page, out);
}

void page_write(const struct page *page, struct buf *out)
{
    const char *at = page_html;
    for (const char *open; (open = strstr(at, "{{")) != NULL;) {
        const char *end = strstr(open, "}}");
        buf_add(out, at, (size_t)(open - at));
        AUTO_FREE char *name = mem_strndup(open + 2, (size_t)(end - open - 2));
        at = end + 2;
        if (name[0] == '?' && !has_part(page, name + 1)) {
            AUTO_FREE char *close = mem_printf("{{/%s}}", name + 1);
            at = strstr(at, close);
        } else if (name[0] != '?' && name[0] != '/') {
            add_piece(page, name, out);
        }
    }
    buf_add_text(out, at);
}

void page_write_live(struct buf *out)
{
    page_write(NULL, out);
}
