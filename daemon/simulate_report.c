/* A simulated cluster on the command line; see simulate_report.h. */
#include "simulate_report.h"

#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "planning/simulate.h"

static bool read_count(const char *text, size_t length, int64_t *count)
{
    AUTO_FREE char *word = mem_strndup(text, length);
    return text_parse_i64(word, count);
}

status_t simulate_read_cluster(const char *text, struct cluster *cluster)
{
    int64_t hosts = 0, devices = 0;
    size_t at = strcspn(text, "x");
    if (text[at] == 'x' && read_count(text, at, &hosts) &&
        text_parse_i64(text + at + 1, &devices) && hosts >= 1 && devices >= 1 &&
        hosts <= CLUSTER_RANKS_MAX && devices <= CLUSTER_RANKS_MAX / hosts) {
        cluster->hosts = (int)hosts;
        cluster->devices = (int)devices;
        return NULL;
    }
    return status_new(STATUS_INVALID_ARGUMENT,
                      "expected hosts and devices of each, such as 1024x8, at most %d ranks, "
                      "found '%.80s'",
                      CLUSTER_RANKS_MAX, text);
}

status_t simulate_read_slow(const char *text, bool link, struct cluster *cluster)
{
    int *count = link ? &cluster->link_count : &cluster->rank_count;
    struct cluster_slow *slow = link ? cluster->links : cluster->ranks;
    int64_t index = 0;
    double speed = 0;
    size_t at = strcspn(text, "=");
    if (*count == CLUSTER_SLOW_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "at most %d", CLUSTER_SLOW_MAX);
    if (text[at] != '=' || !read_count(text, at, &index) ||
        !text_parse_f64(text + at + 1, &speed) || index < 0 || index >= CLUSTER_RANKS_MAX ||
        !(speed >= 0 && speed <= 1))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected a %s and its fraction of the speed, such as 17=0.8, found "
                          "'%.80s'",
                          link ? "host" : "rank", text);
    if (speed < 0.001)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s %d has stopped: no step ends without it; expected at least 0.001 of "
                          "the speed, found '%.80s'",
                          link ? "the link of host" : "rank", (int)index, text);
    slow[(*count)++] = (struct cluster_slow){(int)index, speed};
    return NULL;
}

static void add_json(const struct cluster *cluster, const struct simulated *simulated,
                     const char *profile, struct buf *out)
{
    const struct plan_estimate *step = &simulated->step;
    json_t *all =
        json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:i}", "profile",
                  profile, "hosts", cluster->hosts, "devices", cluster->devices, "step_seconds",
                  step->step_seconds, "undisturbed_seconds", simulated->undisturbed,
                  "compute_seconds", step->compute_seconds, "communication_seconds",
                  step->communication_seconds, "exposed_seconds", step->exposed_seconds, "mfu",
                  simulated->mfu,
                  simulated->has_tokens ? "tokens_per_second" : "samples_per_second",
                  simulated->tokens / step->step_seconds, "micro_steps",
                  (int)simulated->micro_steps, "kinds", simulated->kinds);
    AUTO_FREE char *text = json_dumps(all, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    buf_printf(out, "%s\n", text != NULL ? text : "{}");
    json_decref(all);
}

static void add_line(const char *name, double seconds, struct buf *out)
{
    char text[32];
    buf_printf(out, "%-20s %12s\n", name, text_format_duration(seconds, text));
}

void simulate_report(const struct cluster *cluster, const struct simulated *simulated,
                     const char *profile, bool json, struct buf *out)
{
    const struct plan_estimate *step = &simulated->step;
    char count[32];
    if (json) {
        add_json(cluster, simulated, profile, out);
        return;
    }
    int world = cluster->hosts * cluster->devices;
    buf_printf(out, "%d rank%s of %s: %d host%s with %d device%s each, %u batch%s a step\n\n",
               world, world > 1 ? "s" : "", profile, cluster->hosts, cluster->hosts > 1 ? "s" : "",
               cluster->devices, cluster->devices > 1 ? "s" : "", simulated->micro_steps,
               simulated->micro_steps > 1 ? "es" : "");
    add_line("step", step->step_seconds, out);
    if (cluster->rank_count + cluster->link_count > 0)
        add_line("without slow parts", simulated->undisturbed, out);
    add_line("compute", step->compute_seconds, out);
    add_line("communication", step->communication_seconds, out);
    add_line("of that exposed", step->exposed_seconds, out);
    buf_printf(out, "%-20s %11.1f%%\n", "MFU", 100 * simulated->mfu);
    buf_printf(out, "%-20s %12s\n", simulated->has_tokens ? "tokens/s" : "samples/s",
               text_format_count((uint64_t)(simulated->tokens / step->step_seconds), count));
    if (simulated->kinds > 1)
        buf_printf(out,
                   "\nThe times are those of most ranks; communication includes waiting for slower "
                   "ones.\n");
}
