/*
 * Offline planning; see roles.h. One thread, one plan.
 *
 * The data's path is the job's, below the data roots or, without any, relative to the current
 * directory. If the data is missing, the plan states that the number of steps is unknown.
 */
#include "roles.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/text.h"
#include "planning/cluster.h"
#include "planning/message.h"
#include "planning/planning.h"
#include "print/json.h"
#include "print/plan_report.h"
#include "print/table.h"
#include "worker/job_message.h"

/* The exit codes of fsdpctl (docs/fsdpctl.md). */
enum { ORDER_MAX = 64 << 20 };

enum { EXIT_OTHER = 1, EXIT_USAGE = 2, EXIT_NOT_PERMITTED = 4, EXIT_MISSING = 5, EXIT_FIT = 10 };

static int exit_code(enum status_code code, bool planning)
{
    switch (code) {
    case STATUS_OK: return 0;
    case STATUS_INVALID_ARGUMENT: return planning ? EXIT_OTHER : EXIT_USAGE;
    case STATUS_PERMISSION_DENIED: return EXIT_NOT_PERMITTED;
    case STATUS_NOT_FOUND: return EXIT_MISSING;
    case STATUS_RESOURCE_EXHAUSTED: return planning ? EXIT_FIT : EXIT_USAGE;
    default: return EXIT_OTHER;
    }
}

static int fail(status_t status, bool planning)
{
    int code = exit_code(status_code(status), planning);
    AUTO(buf_deinit) struct buf text = {0};
    output_clean(&text, status_message(status), true);
    fprintf(stderr, "fsdpd: %s\n", buf_text(&text));
    status_free(status);
    return code;
}

static void get_roots(const struct plan_role_options *options, struct worker_options *roots)
{
    *roots = (struct worker_options){.device = "cpu"};
    for (; roots->data_root_count < options->data_root_count; roots->data_root_count++)
        roots->data_roots[roots->data_root_count] = options->data_roots[roots->data_root_count];
    for (; roots->family_count < options->family_count; roots->family_count++)
        roots->families[roots->family_count] = options->families[roots->family_count];
}

/* Reads the job's settings; falls back to settings without data if the data is missing or
 * unreadable. */
static status_t find_job(const struct plan_role_options *options, const Fsdpd__V1__JobSpec *spec,
                         struct job_settings *settings)
{
    struct worker_options roots;
    AUTO_FREE char *here = getcwd(NULL, 0);
    get_roots(options, &roots);
    if (roots.data_root_count == 0 && !options->order) {
        roots.data_roots[roots.data_root_count++] = here != NULL ? here : "/";
        roots.data_roots[roots.data_root_count++] = "/";
    }
    status_t status = job_settings_init(settings, spec, "plan", &roots);
    if (status_code(status) == STATUS_NOT_FOUND ||
        status_code(status) == STATUS_PERMISSION_DENIED) {
        status_free(status);
        status = job_settings_init_without_data(settings, spec, "plan", &roots);
    }
    return status;
}

static status_t make_plan(const struct plan_role_options *options, const Fsdpd__V1__JobSpec *spec,
                          const struct planning_options *planning, Fsdpd__V1__Plan **plan)
{
    struct job_settings settings;
    TRY(find_job(options, spec, &settings));
    status_t status = planning_make(&settings.job, planning, plan);
    if (status_code(status) == STATUS_NOT_FOUND && train_job_has_data(&settings.job)) {
        /* the directory exists, its files do not */
        status_free(status);
        settings.job.data_dir = settings.job.data_path = NULL;
        settings.job.sources = NULL;
        status = planning_make(&settings.job, planning, plan);
    }
    job_settings_deinit(&settings);
    return status;
}

static void print_plan(const Fsdpd__V1__Plan *plan, bool json)
{
    AUTO(buf_deinit) struct buf text = {0};
    if (json) json_add_document(&text, &plan->base);
    else report_plan(plan, 0, &text);
    fwrite(buf_text(&text), 1, text.length, stdout);
}

/* Reads the job and sets its workers to `world`, unless that is 0, before anything is checked
 * against their number. */
static status_t read_job(const struct plan_role_options *options, int world,
                         Fsdpd__V1__JobSpec **spec)
{
    int count = options->override_count;
    AUTO_FREE struct spec_override *overrides =
        mem_alloc_array((size_t)count + 1, sizeof *overrides);
    for (int i = 0; i < count; i++) overrides[i] = options->overrides[i];
    AUTO_FREE char *workers = mem_printf("workers=%d", world);
    if (world > 0) overrides[count++].text = workers;
    return spec_read_file(options->job_file, overrides, count, spec);
}

/* Adds file and line to an error about a key of the job file. Takes `status`. */
static status_t place(const struct plan_role_options *options, status_t status)
{
    Fsdpd__V1__JobFile *sent = NULL;
    if (status == NULL) return NULL;
    status_t unread =
        spec_pack_file(options->job_file, options->overrides, options->override_count, &sent);
    status = spec_place(sent, status);
    if (sent != NULL) fsdpd__v1__job_file__free_unpacked(sent, NULL);
    status_free(unread);
    return status;
}

/* The job file with the best settings. */
static status_t print_chosen(const struct plan_role_options *options, int world,
                             const Fsdpd__V1__Plan *plan)
{
    Fsdpd__V1__JobSpec *spec = NULL;
    TRY(read_job(options, world, &spec));
    struct spec_settings with;
    AUTO(buf_deinit) struct buf text = {0};
    buf_add_text(&text, "\nThe job file with these settings:\n\n");
    spec_to_yaml(spec_settings(spec, plan->choices[0], &with), &text);
    fwrite(buf_text(&text), 1, text.length, stdout);
    spec_free(spec);
    return NULL;
}

/* ---- --simulate ---- */

static bool read_count(const char *text, size_t length, int64_t *count)
{
    AUTO_FREE char *word = mem_strndup(text, length);
    return text_parse_i64(word, count);
}

/* "1024x8": hosts and devices of each. INVALID_ARGUMENT says what was expected. */
static status_t simulate_read_cluster(const char *text, struct cluster *cluster)
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

/* "17=0.8": a rank or a host, and the fraction of its speed. Adds it to `rank` or to the links. */
static status_t simulate_read_slow(const char *text, bool link, struct cluster *cluster)
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

static void simulate_report(const struct cluster *cluster, const struct simulated *simulated,
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

static status_t read_cluster(const struct plan_role_options *options, struct cluster *cluster)
{
    TRY(status_wrap(simulate_read_cluster(options->simulate, cluster), "--simulate"));
    for (int i = 0; i < options->slow_rank_count; i++)
        TRY(status_wrap(simulate_read_slow(options->slow_ranks[i], false, cluster), "--slow-rank"));
    for (int i = 0; i < options->slow_link_count; i++)
        TRY(status_wrap(simulate_read_slow(options->slow_links[i], true, cluster), "--slow-link"));
    return NULL;
}

/* The job file's own limit of workers is lower than the simulation's. */
static int simulate(const struct plan_role_options *options, const struct profile *profile)
{
    struct cluster cluster = {0};
    struct simulated simulated;
    struct job_settings settings;
    Fsdpd__V1__JobSpec *spec = NULL;
    status_t status = read_cluster(options, &cluster);
    int world = cluster.hosts * cluster.devices;
    if (status == NULL)
        status = read_job(options, world < SPEC_WORKERS_MAX ? world : SPEC_WORKERS_MAX, &spec);
    if (status != NULL) return fail(status, false);
    status = find_job(options, spec, &settings);
    if (status == NULL) {
        status = planning_simulate(&settings.job, profile, &cluster, &simulated);
        job_settings_deinit(&settings);
    }
    spec_free(spec);
    if (status != NULL) return fail(place(options, status), true);
    AUTO(buf_deinit) struct buf text = {0};
    simulate_report(&cluster, &simulated, profile->name, options->json, &text);
    fwrite(buf_text(&text), 1, text.length, stdout);
    return fflush(stdout) == 0 ? 0 : EXIT_OTHER;
}

struct planned {
    const struct plan_role_options *options;
    const struct profile *profile;
    bool planning; /* the job file was read */
};

static status_t plan_world(void *user, uint32_t world, Fsdpd__V1__Plan **plan)
{
    struct planned *planned = user;
    const struct plan_role_options *options = planned->options;
    Fsdpd__V1__JobSpec *spec = NULL;
    planned->planning = false;
    TRY(read_job(options, (int)world, &spec));
    planned->planning = true;
    const struct planning_options planning = {.profile = planned->profile,
                                              .threads = options->threads,
                                              .details = true,
                                              .choose = options->choose || spec->fsdp->choose,
                                              .tune = spec->fsdp->tune,
                                              .dump = options->dump};
    status_t status = place(options, make_plan(options, spec, &planning, plan));
    spec_free(spec);
    return status;
}

static int run(const struct plan_role_options *options, struct profile *profile)
{
    if (options->memory_bytes > 0) profile->memory_bytes = options->memory_bytes;
    int world = options->world > 0 ? options->world : profile->world;
    Fsdpd__V1__Plan *plan = NULL;
    struct planned planned = {.options = options, .profile = profile};
    status_t status = options->worlds.count > 0
                          ? worlds_plan(&options->worlds, plan_world, &planned, &plan)
                          : plan_world(&planned, (uint32_t)world, &plan);
    if (status != NULL) return fail(status, planned.planning);
    if (options->worlds.count > 0) world = (int)plan->world;
    print_plan(plan, options->json);
    if (plan->n_choices > 0 && !options->json) status = print_chosen(options, world, plan);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    if (status != NULL) return fail(status, true);
    return fflush(stdout) == 0 ? 0 : EXIT_OTHER;
}

/* ---- an order of the coordinator ---- */

/* Without known devices, those that could run it, with more memory than any. */
static status_t find_devices(const struct plan_role_options *options,
                             const Fsdpd__V1__JobSpec *spec, struct profile *profile)
{
    if (options->profile != NULL) return profile_find(options->profile, profile);
    TRY(profile_find(strcmp(spec->device, "cpu") == 0 ? "cpu" : "a100", profile));
    profile->memory_bytes = UINT64_C(1) << 60;
    return NULL;
}

static status_t make_ordered(const struct plan_role_options *options,
                             const Fsdpd__V1__PlanOrder *order, Fsdpd__V1__PlanResult *result)
{
    AUTO(profile_deinit) struct profile profile = {0};
    TRY(find_devices(options, order->spec, &profile));
    if (options->memory_bytes > 0) profile.memory_bytes = options->memory_bytes;
    if (order->memory_bytes > 0) profile.memory_bytes = order->memory_bytes;
    const bool known = options->profile != NULL;
    const struct planning_options planning = {.profile = &profile,
                                              .threads = options->threads,
                                              .details = order->details,
                                              .choose = known && (order->choose ||
                                                                  order->spec->fsdp->choose),
                                              .dump = order->dump};
    Fsdpd__V1__Plan *plan = NULL;
    status_t status = make_plan(options, order->spec, &planning, &plan);
    if (status == NULL && known) {
        plan->offline = true;
        plan_message_add_note(plan,
                              "planned for %s, no worker is attached; a job is planned again when "
                              "one comes",
                              profile.name);
        result->steps = plan->steps;
        result->plan = plan;
    } else if (status == NULL) {
        fsdpd__v1__plan__free_unpacked(plan, NULL);
    }
    return status;
}

static status_t read_order(Fsdpd__V1__PlanOrder **order)
{
    AUTO(buf_deinit) struct buf bytes = {0};
    status_t status = file_read_descriptor(STDIN_FILENO, "the order", ORDER_MAX, &bytes);
    if (status == NULL) {
        *order = fsdpd__v1__plan_order__unpack(NULL, bytes.length, (const uint8_t *)bytes.data);
        if (*order == NULL || (*order)->spec == NULL)
            status = status_new(STATUS_INVALID_ARGUMENT, "standard input: expected a PlanOrder");
    }
    return status;
}

int plan_order_main(const struct plan_role_options *options)
{
    Fsdpd__V1__PlanOrder *order = NULL;
    status_t status = read_order(&order);
    if (status != NULL) {
        fsdpd__v1__plan_order__free_unpacked(order, NULL);
        return fail(status, false);
    }
    Fsdpd__V1__PlanResult result = FSDPD__V1__PLAN_RESULT__INIT;
    result.request = order->request;
    struct worker_options roots;
    get_roots(options, &roots);
    status = order->file == NULL ? make_ordered(options, order, &result)
                                 : job_files_read(order, &roots, &result.file);
    result.code = (uint32_t)status_code(status);
    if (status != NULL) result.message = (char *)status_message(status);
    size_t size = fsdpd__v1__plan_result__get_packed_size(&result);
    AUTO_FREE uint8_t *bytes = mem_alloc(size + 1);
    fsdpd__v1__plan_result__pack(&result, bytes);
    bool written = fwrite(bytes, 1, size, stdout) == size && fflush(stdout) == 0;
    if (result.plan != NULL) fsdpd__v1__plan__free_unpacked(result.plan, NULL);
    if (result.file != NULL) fsdpd__v1__get_model_file_response__free_unpacked(result.file, NULL);
    status_free(status);
    fsdpd__v1__plan_order__free_unpacked(order, NULL);
    return written ? 0 : EXIT_OTHER;
}

int plan_role_main(const struct plan_role_options *options)
{
    struct profile profile;
    status_t status = profile_find(options->profile != NULL ? options->profile : "cpu", &profile);
    if (status != NULL) return fail(status_wrap(status, "--profile"), false);
    int code = options->simulate != NULL ? simulate(options, &profile) : run(options, &profile);
    profile_deinit(&profile);
    return code;
}
