/*
 * Puts a coordinator under load and reports the latencies that its clients see; see load.h.
 * bench/load.py starts the coordinator. The exit status is 1 unless every job runs exactly once, to
 * its end, and every watcher receives all of its events.
 */
#include "load.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "fsdpd/v1/methods.h"
#include "planning/planning.h"
#include "spec/spec.h"
#include "worker/job_message.h"

struct settings {
    const char *address, *file, *ctl;
    int64_t workers, jobs, watchers, ranks, submitters, seconds, pid, run_ms, interval_ms, history;
};

/* ---- samples ---- */

void samples_add(struct samples *samples, double value)
{
    MEM_GROW(samples->values, samples->count, samples->capacity);
    samples->values[samples->count++] = value;
}

static int compare(const void *a, const void *b)
{
    double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

double samples_quantile(struct samples *samples, double part)
{
    if (samples->count == 0) return 0;
    qsort(samples->values, samples->count, sizeof *samples->values, compare);
    size_t rank = (size_t)(part * (double)samples->count);
    return samples->values[rank < samples->count ? rank : samples->count - 1];
}

void samples_deinit(struct samples *samples)
{
    free(samples->values);
    *samples = (struct samples){0};
}

static void print_samples(const char *what, struct samples *samples)
{
    printf("%-28s %9.2f %9.2f %9.2f %9.2f ms  (%zu)\n", what, samples_quantile(samples, 0.5),
           samples_quantile(samples, 0.9), samples_quantile(samples, 0.99),
           samples_quantile(samples, 1), samples->count);
}

/* ---- the load ---- */

double load_now_ms(void)
{
    return (double)clock_monotonic_ns() / 1e6;
}

void load_fail(struct load *load, const char *format, ...)
{
    if (load->error != NULL) return;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&load->error, format, arguments) < 0) abort();
    va_end(arguments);
}

struct load_job *load_find(struct load *load, const char *id)
{
    int64_t number = 0;
    if (strncmp(id, "load-", 5) != 0 || !text_parse_i64(id + 5, &number)) return NULL;
    return number >= 1 && number <= load->job_count ? &load->jobs[number - 1] : NULL;
}

struct rpc_channel *load_connect(struct load *load)
{
    struct rpc_channel *channel = NULL;
    status_t status = rpc_channel_new(load->runtime, load->address, NULL, &channel);
    if (status != NULL) {
        fprintf(stderr, "load: %s\n", status_message(status));
        exit(2);
    }
    load->open++;
    return channel;
}

static void on_channel_closed(void *user)
{
    ((struct load *)user)->open--;
}

/* Runs the loop until `*reached` is `target`; false after a timeout or an error. */
static bool run_until(struct load *load, const int *reached, int target, double seconds,
                      const char *what)
{
    double until = load_now_ms() + seconds * 1000;
    while (*reached < target && load->error == NULL && load_now_ms() < until)
        uv_run(&load->loop, UV_RUN_ONCE);
    if (*reached < target)
        load_fail(load, "%d of %d %s after %g s", *reached, target, what, seconds);
    return load->error == NULL;
}

static void run_for(struct load *load, double seconds)
{
    double until = load_now_ms() + seconds * 1000;
    while (load->error == NULL && load_now_ms() < until) uv_run(&load->loop, UV_RUN_ONCE);
}

/* ---- submissions ---- */

struct submitter {
    struct load *load;
    struct rpc_channel *channel;
    struct load_job *job;
    double began_ms;
};

static void submit_next(struct submitter *submitter);

static void on_submitted(status_t status, const ProtobufCMessage *response, void *user)
{
    (void)response;
    struct submitter *submitter = user;
    struct load *load = submitter->load;
    if (status != NULL) {
        load_fail(load, "%s was refused: %s", submitter->job->id, status_message(status));
        status_free(status);
        return;
    }
    samples_add(&load->submit_ms, load_now_ms() - submitter->began_ms);
    load->submitted++;
    submit_next(submitter);
}

static void submit_next(struct submitter *submitter)
{
    struct load *load = submitter->load;
    if (load->next_job == load->job_count || load->error != NULL) return;
    submitter->job = &load->jobs[load->next_job++];
    submitter->began_ms = load_now_ms();
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.id = submitter->job->id;
    request.spec = load->spec;
    rpc_channel_call(submitter->channel, &control_submit_job, &request.base, 0, true, on_submitted,
                     submitter);
}

static bool submit_all(struct load *load, const struct settings *settings)
{
    struct submitter *submitters =
        mem_alloc_array((size_t)settings->submitters, sizeof *submitters);
    double began_ms = load_now_ms();
    for (int i = 0; i < settings->submitters; i++) {
        submitters[i] = (struct submitter){.load = load, .channel = load_connect(load)};
        submit_next(&submitters[i]);
    }
    bool done = run_until(load, &load->submitted, load->job_count, 600, "jobs were accepted");
    double seconds = (load_now_ms() - began_ms) / 1000;
    for (int i = 0; i < settings->submitters; i++)
        rpc_channel_close(submitters[i].channel, on_channel_closed, load);
    run_for(load, 0.05);
    if (load->error == NULL) free(submitters); /* otherwise open calls still point to them */
    printf("submitted %d jobs in %.1f s: %.0f a second, %d at a time\n", load->submitted, seconds,
           load->submitted / seconds, (int)settings->submitters);
    return done;
}

/* ---- calls under load ---- */

struct timed_call {
    struct load *load;
    struct samples *samples;
    double began_ms;
    size_t bytes;
    int done;
};

static void on_answer(status_t status, const ProtobufCMessage *response, void *user)
{
    struct timed_call *call = user;
    samples_add(call->samples, load_now_ms() - call->began_ms);
    if (status != NULL) load_fail(call->load, "a call failed: %s", status_message(status));
    else call->bytes = protobuf_c_message_get_packed_size(response);
    status_free(status);
    call->done++;
}

static void time_call(struct load *load, const char *what, const struct rpc_method *method,
                      const ProtobufCMessage *request)
{
    struct samples samples = {0};
    struct rpc_channel *channel = load_connect(load);
    size_t bytes = 0;
    for (int i = 0; i < 20 && load->error == NULL; i++) {
        struct timed_call call = {.load = load, .samples = &samples, .began_ms = load_now_ms()};
        rpc_channel_call(channel, method, request, 0, true, on_answer, &call);
        if (!run_until(load, &call.done, 1, 60, what)) return;
        bytes = call.bytes;
        run_for(load, 0.05);
    }
    rpc_channel_close(channel, on_channel_closed, load);
    char *title = mem_printf("%s, %zu KB", what, bytes / 1000);
    print_samples(title, &samples);
    free(title);
    samples_deinit(&samples);
}

struct program {
    uv_process_t process;
    int ended;
    int64_t code;
};

static void on_exit_of_program(uv_process_t *process, int64_t code, int signal_number)
{
    struct program *program = (struct program *)process;
    program->code = signal_number != 0 ? 128 + signal_number : code;
    uv_close((uv_handle_t *)process, NULL);
    program->ended = 1;
}

static double cpu_of(const struct rusage *usage)
{
    return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1e3 +
           (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1e3;
}

/* Times fsdpctl as a user runs it, from its start to its end. */
static void time_program(struct load *load, const char *ctl, const char *const *words)
{
    struct samples samples = {0};
    struct rusage before, after;
    getrusage(RUSAGE_CHILDREN, &before);
    const char *arguments[8] = {ctl, "--address", load->address};
    for (int i = 0; words[i] != NULL; i++) arguments[3 + i] = words[i];
    uv_stdio_container_t stdio[3] = {{.flags = UV_IGNORE},
                                     {.flags = UV_IGNORE},
                                     {.flags = UV_INHERIT_FD, .data.fd = 2}};
    uv_process_options_t options = {.file = ctl,
                                    .args = (char **)arguments,
                                    .stdio = stdio,
                                    .stdio_count = 3,
                                    .exit_cb = on_exit_of_program};
    for (int i = 0; i < 20 && load->error == NULL; i++) {
        struct program program = {.ended = 0};
        double began_ms = load_now_ms();
        int error = uv_spawn(&load->loop, &program.process, &options);
        if (error != 0) {
            load_fail(load, "cannot start %s: %s", ctl, uv_strerror(error));
            return;
        }
        if (!run_until(load, &program.ended, 1, 60, words[0])) return;
        samples_add(&samples, load_now_ms() - began_ms);
        if (program.code != 0) load_fail(load, "fsdpctl %s: %d", words[0], (int)program.code);
        run_for(load, 0.05);
    }
    getrusage(RUSAGE_CHILDREN, &after);
    double cpu_ms = cpu_of(&after) - cpu_of(&before);
    char *title = mem_printf("fsdpctl %s, %.0f ms of CPU", words[0],
                             cpu_ms / (double)(samples.count > 0 ? samples.count : 1));
    print_samples(title, &samples);
    free(title);
    samples_deinit(&samples);
}

static void time_everything(struct load *load, const struct settings *settings)
{
    Fsdpd__V1__ListJobsRequest list = FSDPD__V1__LIST_JOBS_REQUEST__INIT;
    Fsdpd__V1__ListWorkersRequest workers = FSDPD__V1__LIST_WORKERS_REQUEST__INIT;
    Fsdpd__V1__GetVersionRequest version = FSDPD__V1__GET_VERSION_REQUEST__INIT;
    Fsdpd__V1__GetJobRequest get = FSDPD__V1__GET_JOB_REQUEST__INIT;
    get.id = load->jobs[load->job_count - 1].id;
    time_call(load, "ListJobs, all", &control_list_jobs, &list.base);
    time_call(load, "ListWorkers", &control_list_workers, &workers.base);
    time_call(load, "GetVersion", &control_get_version, &version.base);
    time_call(load, "GetJob, the last", &control_get_job, &get.base);
    if (settings->ctl == NULL) return;
    static const char *const programs[][4] = {{"list"}, {"status"}, {"workers"}, {"version"}};
    for (size_t i = 0; i < COUNT_OF(programs); i++) time_program(load, settings->ctl, programs[i]);
}

/* ---- the coordinator's process ---- */

struct usage {
    double cpu_seconds, at_ms, memory_mb, peak_mb;
};

static struct usage usage_now(int64_t pid)
{
    struct usage usage = {.at_ms = load_now_ms()};
    char path[64], line[1024] = "";
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *file = pid > 0 ? fopen(path, "re") : NULL;
    if (file != NULL) {
        if (fgets(line, sizeof line, file) != NULL && strrchr(line, ')') != NULL) {
            unsigned long user = 0, system = 0;
            sscanf(strrchr(line, ')') + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                   &user, &system);
            usage.cpu_seconds = (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
        }
        fclose(file);
    }
    snprintf(path, sizeof path, "/proc/%lld/status", (long long)pid);
    file = pid > 0 ? fopen(path, "re") : NULL;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        double kilobytes = 0;
        if (sscanf(line, "VmRSS: %lf", &kilobytes) == 1) usage.memory_mb = kilobytes / 1024;
        if (sscanf(line, "VmHWM: %lf", &kilobytes) == 1) usage.peak_mb = kilobytes / 1024;
    }
    if (file != NULL) fclose(file);
    return usage;
}

static void print_usage(const struct settings *settings, const char *when, struct usage *before)
{
    struct usage now = usage_now(settings->pid);
    if (settings->pid > 0)
        printf("coordinator %s: %.0f MiB (at most %.0f), %.1f %% of a core over %.1f s\n", when,
               now.memory_mb, now.peak_mb,
               100 * (now.cpu_seconds - before->cpu_seconds) * 1000 / (now.at_ms - before->at_ms),
               (now.at_ms - before->at_ms) / 1000);
    *before = usage_now(settings->pid);
    fflush(stdout);
}

/* ---- main ---- */

static void run(struct load *load, const struct settings *settings)
{
    struct usage usage = usage_now(settings->pid);
    double began_ms = load_now_ms();
    load_workers_start(load, (int)settings->workers);
    if (!run_until(load, &load->attached, load->worker_count, 120, "workers have attached")) return;
    printf("attached %d workers in %.1f s\n", load->attached, (load_now_ms() - began_ms) / 1000);
    print_usage(settings, "with the workers", &usage);
    run_for(load, 1);
    usage = usage_now(settings->pid);
    run_for(load, (double)settings->seconds / 2);
    print_usage(settings, "hearing heartbeats", &usage);

    if (!submit_all(load, settings)) return;
    print_usage(settings, "taking jobs", &usage);
    int running = (int)(settings->workers / settings->ranks);
    if (running > load->job_count) running = load->job_count;
    if (!run_until(load, &load->running, running, 60, "jobs run")) return;
    printf("%-28s %9s %9s %9s %9s\n", "", "median", "90 %", "99 %", "most");
    print_samples("submit", &load->submit_ms);

    load_watchers_start(load, (int)settings->watchers);
    run_for(load, 1);
    samples_deinit(&load->watch_ms);
    usage = usage_now(settings->pid);
    /* With a long curve this continues beside the readers of load_pages.py, which ends it. */
    run_for(load, settings->history > 0 ? 86400 : (double)settings->seconds);
    print_samples("report to watcher", &load->watch_ms);
    print_usage(settings, "with jobs and watchers", &usage);
    time_everything(load, settings);
    if (load->error != NULL) return;
    print_usage(settings, "answering", &usage);

    samples_deinit(&load->watch_ms);
    load->release = true;
    began_ms = load_now_ms();
    if (!run_until(load, &load->finished, load->job_count, 1800, "jobs have ended")) return;
    double seconds = (load_now_ms() - began_ms) / 1000;
    printf("ran %d jobs of %d ranks, at least %d ms each, in %.1f s: %.0f a second\n",
           load->finished, (int)settings->ranks, load->run_ms, seconds, load->finished / seconds);
    print_samples("report to watcher meanwhile", &load->watch_ms);
    print_usage(settings, "running them", &usage);
    if (!run_until(load, &load->watchers_closed, load->watcher_count, 60, "watchers have ended"))
        return;
    run_for(load, 1);
    print_usage(settings, "afterwards", &usage);
}

static status_t make_plan(struct load *load, const struct settings *settings)
{
    char *ranks = mem_printf("workers=%d", (int)settings->ranks);
    const struct spec_override overrides[] = {{.text = "name=load"},
                                              {.text = ranks},
                                              {.text = "save_model=false"},
                                              {.text = "device=cpu"}};
    status_t status = spec_read_file(settings->file, overrides, COUNT_OF(overrides), &load->spec);
    free(ranks);
    TRY(status);
    struct job_settings job;
    TRY(job_settings_init_without_data(&job, load->spec, "load", NULL));
    struct profile profile;
    status = profile_find("cpu", &profile);
    const struct planning_options options = {.profile = &profile, .threads = 1};
    double began_ms = load_now_ms();
    if (status == NULL) status = planning_make(&job.job, &options, &load->plan);
    printf("made the jobs' plan in %.1f ms\n", load_now_ms() - began_ms);
    job_settings_deinit(&job);
    return status;
}

static int usage_error(const char *program)
{
    fprintf(stderr,
            "usage: %s --address ADDRESS --job FILE [--workers N] [--jobs N] [--watchers N]\n"
            "  [--ranks N] [--submitters N] [--seconds N] [--run-ms N] [--interval-ms N]\n"
            "  [--history STEPS] [--pid PID] [--ctl PROGRAM]\n",
            program);
    return 2;
}

static bool read_arguments(struct settings *settings, int argc, char **argv)
{
    const struct {
        const char *name;
        const char **text;
        int64_t *number;
    } rows[] = {
        {"address", &settings->address, NULL}, {"job", &settings->file, NULL},
        {"ctl", &settings->ctl, NULL},         {"workers", NULL, &settings->workers},
        {"jobs", NULL, &settings->jobs},       {"watchers", NULL, &settings->watchers},
        {"ranks", NULL, &settings->ranks},     {"submitters", NULL, &settings->submitters},
        {"seconds", NULL, &settings->seconds}, {"pid", NULL, &settings->pid},
        {"run-ms", NULL, &settings->run_ms},   {"interval-ms", NULL, &settings->interval_ms},
        {"history", NULL, &settings->history},
    };
    enum { ROWS = COUNT_OF(rows) };
    struct option options[ROWS + 1] = {0};
    for (int i = 0; i < ROWS; i++)
        options[i] = (struct option){rows[i].name, required_argument, NULL, i};
    for (int row; (row = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (row < 0 || row >= ROWS) return false;
        if (rows[row].text != NULL) *rows[row].text = optarg;
        else if (!text_parse_i64(optarg, rows[row].number) || *rows[row].number < 0) return false;
    }
    return settings->address != NULL && settings->file != NULL && optind == argc &&
           settings->ranks >= 1 && settings->workers >= settings->ranks && settings->jobs >= 1 &&
           settings->submitters >= 1 && settings->interval_ms >= 100 && settings->workers <= 4096;
}

static void close_all(struct load *load)
{
    load_watchers_close(load);
    load_workers_close(load);
    double until = load_now_ms() + 20000;
    while (load->open > 0 && load_now_ms() < until) uv_run(&load->loop, UV_RUN_ONCE);
}

int main(int argc, char **argv)
{
    struct settings settings = {.workers = 1000,
                                .jobs = 10000,
                                .watchers = 200,
                                .ranks = 8,
                                .submitters = 16,
                                .seconds = 10,
                                .run_ms = 1000,
                                .interval_ms = 1000};
    if (!read_arguments(&settings, argc, argv)) return usage_error(argv[0]);
    log_set_level(LOG_ERROR);
    struct rlimit files; /* a connection each */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    static struct load load; /* the end of the process frees what it holds */
    load = (struct load){.address = settings.address,
                         .job_count = (int)settings.jobs,
                         .run_ms = (int)settings.run_ms,
                         .interval_ms = (int)settings.interval_ms,
                         .history = (uint64_t)settings.history};
    status_t status = make_plan(&load, &settings);
    uv_loop_init(&load.loop);
    uv_timer_init(&load.loop, &load.beat);
    load.beat.data = &load;
    if (status == NULL) status = rpc_runtime_new(&load.loop, &load.runtime);
    if (status != NULL) {
        fprintf(stderr, "load: %s\n", status_message(status));
        return 2;
    }
    load.jobs = mem_alloc_array((size_t)load.job_count, sizeof *load.jobs);
    for (int i = 0; i < load.job_count; i++)
        snprintf(load.jobs[i].id, sizeof load.jobs[i].id, "load-%d", i + 1);
    run(&load, &settings);
    if (load.watch_missed > 0)
        load_fail(&load, "watchers missed %llu reports", (unsigned long long)load.watch_missed);
    /* Report errors now: closing ends every stream with an error of its own. */
    char *error = load.error != NULL ? strdup(load.error) : NULL;
    if (error != NULL) printf("FAILED: %s\n", error);
    else
        printf("all %d jobs ran once, watchers got %llu events and missed none\n", load.finished,
               (unsigned long long)load.watch_events);
    fflush(stdout);
    close_all(&load);
    return error != NULL;
}
