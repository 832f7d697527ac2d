/*
 * Offline planning; see plan_role.h. One thread, one plan.
 *
 * The data is looked for where the job says, below the data roots or, without any, from the current
 * directory; if it is not there, the plan says that the number of steps is not known.
 */
#include "plan_role.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "planning/planning.h"
#include "print/json.h"
#include "print/plan_report.h"
#include "worker/job_message.h"

/* As fsdpctl's (docs/fsdpctl.md). */
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
    fprintf(stderr, "fsdpd: %s\n", status_message(status));
    status_free(status);
    return code;
}

/* Without data if there is none, or nothing that can be read. */
static status_t find_job(const struct plan_role_options *options, const Fsdpd__V1__JobSpec *spec,
                         struct job_settings *settings)
{
    struct worker_options roots = {.device = "cpu"};
    char *here = getcwd(NULL, 0);
    for (; roots.data_root_count < options->data_root_count; roots.data_root_count++)
        roots.data_roots[roots.data_root_count] = options->data_roots[roots.data_root_count];
    if (roots.data_root_count == 0) {
        roots.data_roots[roots.data_root_count++] = here != NULL ? here : "/";
        roots.data_roots[roots.data_root_count++] = "/";
    }
    status_t status = job_settings_init(settings, spec, "plan", &roots);
    if (status_code(status) == STATUS_NOT_FOUND ||
        status_code(status) == STATUS_PERMISSION_DENIED) {
        status_free(status);
        status = job_settings_init_without_data(settings, spec, "plan", &roots);
    }
    free(here);
    return status;
}

static status_t make_plan(const struct plan_role_options *options, const Fsdpd__V1__JobSpec *spec,
                          const struct profile *profile, Fsdpd__V1__Plan **plan)
{
    struct job_settings settings;
    TRY(find_job(options, spec, &settings));
    const struct planning_options planning = {.profile = profile,
                                              .threads = options->threads,
                                              .details = true,
                                              .dump = options->dump};
    status_t status = planning_make(&settings.job, &planning, plan);
    if (status_code(status) == STATUS_NOT_FOUND && train_job_has_data(&settings.job)) {
        /* the directory is there, its files are not */
        status_free(status);
        settings.job.data_dir = settings.job.data_path = NULL;
        status = planning_make(&settings.job, &planning, plan);
    }
    job_settings_deinit(&settings);
    return status;
}

static void print_plan(const Fsdpd__V1__Plan *plan, bool json)
{
    struct buf text = {0};
    if (json) {
        json_add_message(&text, &plan->base, 0);
        buf_add_char(&text, '\n');
    } else {
        report_plan(plan, 0, &text);
    }
    fwrite(buf_text(&text), 1, text.length, stdout);
    buf_deinit(&text);
}

/* The job over `world` workers, if that is not 0, before anything is checked against their number.
 */
static status_t read_job(const struct plan_role_options *options, int world,
                         Fsdpd__V1__JobSpec **spec)
{
    int count = options->override_count;
    struct spec_override *overrides = mem_alloc_array((size_t)count + 1, sizeof *overrides);
    for (int i = 0; i < count; i++) overrides[i] = options->overrides[i];
    char *workers = mem_printf("workers=%d", world);
    if (world > 0) overrides[count++].text = workers;
    status_t status = spec_read_file(options->job_file, overrides, count, spec);
    free(workers);
    free(overrides);
    return status;
}

int plan_role_main(const struct plan_role_options *options)
{
    struct profile profile;
    status_t status = profile_find(options->profile != NULL ? options->profile : "cpu", &profile);
    if (status != NULL) return fail(status_wrap(status, "--profile"), false);
    Fsdpd__V1__JobSpec *spec = NULL;
    status = read_job(options, options->world > 0 ? options->world : profile.world, &spec);
    if (status != NULL) return fail(status, false);
    Fsdpd__V1__Plan *plan = NULL;
    status = make_plan(options, spec, &profile, &plan);
    spec_free(spec);
    if (status != NULL) return fail(status, true);
    print_plan(plan, options->json);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    return fflush(stdout) == 0 ? 0 : EXIT_OTHER;
}
