/* The page's lists of jobs and workers; see page.h. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "page/html.h"
#include "page/page.h"
#include "print/scores.h"
#include "proto/message.h"
#include "spec/spec.h"

static void add_counts(const Fsdpd__V1__ListJobsResponse *jobs, struct buf *out)
{
    bool any = false;
    buf_add_text(out, "<p class=\"note\">");
    for (size_t i = 0; i < jobs->n_counts; i++) {
        const Fsdpd__V1__StateCount *count = jobs->counts[i];
        if (count->jobs == 0) continue;
        buf_printf(out, "%s%llu %s", any ? ", " : "", (unsigned long long)count->jobs,
                   page_state(count->state));
        any = true;
    }
    buf_add_text(out, any ? "</p>\n" : "There are no jobs.</p>\n");
}

static void add_state_cell(const char *state, struct buf *out)
{
    buf_printf(out, "<td><span class=\"state s-%s\">%s</span></td>", state, state);
}

/* Ids have no characters that an address escapes. */
static void add_link(const char *id, struct buf *out)
{
    buf_add_text(out, "<a href=\"#job=");
    html_add(out, id);
    buf_add_text(out, "\">");
    html_add(out, id);
    buf_add_text(out, "</a>");
}

static void add_reason_cell(const Fsdpd__V1__Job *job, struct buf *out)
{
    AUTO(buf_deinit) struct buf text = {0};
    if (job->queue_position > 0) buf_printf(&text, "place %u: ", job->queue_position);
    if (job->reason != NULL)
        buf_add_text(&text,
                     job->reason->message[0] != '\0' ? job->reason->message : job->reason->code);
    html_cell(out, buf_text(&text), false);
}

static void add_job(const Fsdpd__V1__Job *job, struct buf *out)
{
    char text[64] = "", steps[32], loss[32];
    struct spec_settings with;
    buf_add_text(out, "<tr><td>");
    add_link(job->id, out);
    buf_add_text(out, "</td>");
    add_state_cell(page_state(job->state), out);
    if (job->steps > 0)
        snprintf(text, sizeof text, "%s of %s", text_format_count(job->step, steps),
                 text_format_count(job->steps, loss));
    html_cell(out, text, true);
    bool trained = job->metrics != NULL && job->metrics->step > 0;
    html_cell(out, trained ? scores_loss(job->metrics->loss, loss) : "", true);
    snprintf(text, sizeof text, "%u",
             job->spec != NULL ? spec_settings(job->spec, job->chosen, &with)->workers
                               : (unsigned)job->n_workers);
    html_cell(out, text, true);
    html_cell(out, job->owner, false);
    add_reason_cell(job, out);
    buf_add_text(out, "</tr>\n");
}

static void add_worker(const Fsdpd__V1__Worker *worker, struct buf *out)
{
    char text[32] = "";
    const char *state = spec_word(&fsdpd__v1__worker_state__descriptor, (int)worker->state);
    buf_add_text(out, "<tr>");
    html_cell(out, worker->id, false);
    add_state_cell(state != NULL ? state : "UNKNOWN", out);
    buf_add_text(out, "<td>");
    if (worker->job[0] != '\0') add_link(worker->job, out);
    buf_add_text(out, "</td>");
    if (worker->job[0] != '\0' && worker->rank >= 0)
        snprintf(text, sizeof text, "%d", worker->rank);
    html_cell(out, text, true);
    html_cell(out, text_format_bytes(worker->memory_bytes, text), true);
    html_cell(out, worker->device, false);
    buf_add_text(out, "</tr>\n");
}

void page_write_lists(const Fsdpd__V1__ListJobsResponse *jobs,
                      const Fsdpd__V1__ListWorkersResponse *workers, struct buf *out)
{
    buf_add_text(out, "<div data-sequence=\"0\" data-more=\"0\">\n<h1>Jobs</h1>\n");
    add_counts(jobs, out);
    buf_add_text(
        out, "<div class=\"wide\"><table class=\"cards jobs\"><thead><tr><th>Job</th><th>State</th>"
             "<th class=\"n\">Step</th><th class=\"n\">Loss</th><th class=\"n\">Workers"
             "</th><th>User</th><th>Reason</th></tr></thead><tbody>\n");
    for (size_t i = jobs->n_jobs; i-- > 0;) add_job(jobs->jobs[i], out); /* newest first */
    buf_add_text(out, "</tbody></table></div>\n");
    if (jobs->left_out > 0)
        buf_printf(out, "<p class=\"note\">%u older jobs are not listed.</p>\n", jobs->left_out);
    buf_add_text(
        out, "<section><h2>Workers</h2>\n<div class=\"wide\"><table class=\"cards workers\"><thead>"
             "<tr><th>Worker</th><th>State</th><th>Job</th><th class=\"n\">Rank</th>"
             "<th class=\"n\">Memory</th><th>Device</th></tr></thead><tbody>\n");
    for (size_t i = 0; i < workers->n_workers; i++) add_worker(workers->workers[i], out);
    buf_add_text(out, "</tbody></table></div></section>\n</div>\n");
}
