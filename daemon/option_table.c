/* The table of options, and the type-specific code for their values; see option_table.h. Pure. */
#include "option_table.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "notify_option.h"
#include "planning/calibrate.h"
#include "rpc/rpc.h"
#include "spec/queue.h"
#include "yaml/yaml.h"

enum { WORKERS_MAX = 256, THREADS_MAX = 1024, DEVICE_MAX = 1023 };

const char *option_keep(struct options *options, char *text)
{
    MEM_GROW(options->texts, options->text_count, options->text_capacity);
    return options->texts[options->text_count++] = text;
}

static status_t apply_workers(struct options *options, const struct option_row *row,
                              const char *text)
{
    (void)row;
    int64_t count = 0;
    if (strcmp(text, "none") == 0 || text_parse_i64(strchr(text, ':') + 1, &count))
        options->coordinator.local_workers = (int)count;
    options->coordinator.local_device = "cpu";
    return NULL;
}

static status_t apply_data_root(struct options *options, const struct option_row *row,
                                const char *text)
{
    struct coordinator_options *coordinator = &options->coordinator;
    (void)row;
    if (coordinator->data_root_count == COORDINATOR_DATA_ROOTS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "at most %d", COORDINATOR_DATA_ROOTS_MAX);
    AUTO_FREE char *path = file_path_expand_home(text);
    AUTO_FREE char *here = getcwd(NULL, 0);
    AUTO_FREE char *absolute = file_path_join(here != NULL ? here : "/", path);
    char *real = NULL;
    status_t status = file_resolve_under("/", absolute, &real);
    if (status == NULL)
        coordinator->data_roots[coordinator->data_root_count++] = option_keep(options, real);
    return status;
}

static status_t apply_families(struct options *options, const struct option_row *row,
                               const char *text)
{
    struct coordinator_options *coordinator = &options->coordinator;
    (void)row;
    if (coordinator->family_count == COORDINATOR_FAMILIES_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "at most %d", COORDINATOR_FAMILIES_MAX);
    AUTO_FREE char *path = file_path_expand_home(text);
    AUTO_FREE char *here = getcwd(NULL, 0);
    coordinator->families[coordinator->family_count++] =
        option_keep(options, file_path_join(here != NULL ? here : "/", path));
    return NULL;
}

static status_t apply_listen(struct options *options, const struct option_row *row,
                             const char *text)
{
    struct coordinator_options *coordinator = &options->coordinator;
    (void)row;
    if (coordinator->listen_count == COORDINATOR_ADDRESSES_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "at most %d", COORDINATOR_ADDRESSES_MAX);
    coordinator->listen[coordinator->listen_count++] = text;
    return NULL;
}

static status_t apply_threads(struct options *options, const struct option_row *row,
                              const char *text)
{
    int64_t count = 0;
    (void)row;
    if (!text_parse_i64(text, &count)) return NULL; /* cannot fail: checked before */
    options->coordinator.worker_threads = options->worker.threads = (int)count;
    options->plan.threads = (int)count;
    return NULL;
}

static status_t apply_away(struct options *options, const struct option_row *row, const char *text)
{
    double seconds = 0;
    (void)row;
    if (!text_parse_f64(text, &seconds)) return NULL; /* cannot fail: checked before */
    options->coordinator.worker_away_ms = options->worker.away_ms = (int)lround(seconds * 1000);
    return NULL;
}

static status_t apply_log_level(struct options *options, const struct option_row *row,
                                const char *text)
{
    for (int i = 0; row->choices[i] != NULL; i++) {
        if (strcmp(text, row->choices[i]) != 0) continue;
        options->log_level = (enum log_level)i;
        options->log_level_name = row->choices[i];
    }
    return NULL;
}

static status_t apply_operator_group(struct options *options, const struct option_row *row,
                                     const char *text)
{
    (void)row;
    options->coordinator.operator_group = text;
    options->coordinator.operator_group_is_default = false;
    return NULL;
}

static status_t apply_host(struct options *options, const struct option_row *row, const char *text)
{
    struct cert_role_options *cert = &options->cert;
    (void)row;
    if (cert->host_count == X509_NAMES_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "at most %d", X509_NAMES_MAX);
    cert->hosts[cert->host_count++] = text;
    return NULL;
}

static status_t apply_set(struct options *options, const struct option_row *row, const char *text)
{
    struct plan_role_options *plan = &options->plan;
    (void)row;
    MEM_GROW(plan->overrides, plan->override_count, plan->override_capacity);
    plan->overrides[plan->override_count++] = (struct spec_override){.text = text};
    return NULL;
}

static status_t apply_slow_rank(struct options *options, const struct option_row *row,
                                const char *text)
{
    struct plan_role_options *plan = &options->plan;
    (void)row;
    if (plan->slow_rank_count == PLAN_ROLE_SLOW_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "at most %d", PLAN_ROLE_SLOW_MAX);
    plan->slow_ranks[plan->slow_rank_count++] = text;
    return NULL;
}

static status_t apply_slow_link(struct options *options, const struct option_row *row,
                                const char *text)
{
    struct plan_role_options *plan = &options->plan;
    (void)row;
    if (plan->slow_link_count == PLAN_ROLE_SLOW_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "at most %d", PLAN_ROLE_SLOW_MAX);
    plan->slow_links[plan->slow_link_count++] = text;
    return NULL;
}

static status_t apply_memory(struct options *options, const struct option_row *row,
                             const char *text)
{
    (void)row;
    uint64_t *bytes = &options->plan.memory_bytes;
    if (text_parse_bytes(text, bytes) && *bytes > 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "expected bytes above 0, such as 80GB or 512MiB, found '%s'", text);
}

static status_t apply_kept_bytes(struct options *options, const struct option_row *row,
                                 const char *text)
{
    (void)row;
    uint64_t bytes = 0;
    if (!text_parse_bytes(text, &bytes) || bytes == 0 || bytes > INT64_MAX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected bytes above 0, such as 500GB or 2TiB, found '%s'", text);
    options->coordinator.limits.quota_kept_bytes = (int64_t)bytes;
    return NULL;
}

static status_t apply_half_life(struct options *options, const struct option_row *row,
                                const char *text)
{
    (void)row;
    bool is_duration = false;
    int64_t *half_life = &options->coordinator.limits.fair_share_ms;
    status_t status = spec_parse_time(text, &is_duration, half_life);
    if (status == NULL && is_duration) return NULL;
    status_free(status);
    return status_new(STATUS_INVALID_ARGUMENT,
                      "expected a duration such as 12h or 7d, found '%.80s'", text);
}

static status_t apply_worlds(struct options *options, const struct option_row *row,
                             const char *text)
{
    (void)row;
    return worlds_read(text, SPEC_WORKERS_MAX, &options->plan.worlds);
}

static status_t apply_output(struct options *options, const struct option_row *row,
                             const char *text)
{
    (void)row;
    options->plan.json = options->json = strcmp(text, "json") == 0;
    return NULL;
}

static status_t apply_notify(struct options *options, const struct option_row *row,
                             const char *text)
{
    (void)row;
    return notify_option_apply(options, text);
}

#define SETS(member) .offset = offsetof(struct options, member)
#define LIMIT(member) SETS(coordinator.limits.member), .reload = true
#define RANGE(low, high) .min = (low), .max = (high)

/* The keys, in the order of the documentation. */
/* clang-format off */
const struct option_row option_rows[] = {
    {NULL, "--profile", "NAME|FILE", FOR_PLAN, OPTION_TEXT, SETS(plan.profile),
     .help = "the devices to plan for: cpu, t4, a100, h100,\nh200, one of them with a number of "
             "ranks\n(h200x8), or a file (cpu)"},
    {NULL, "--world", "N", FOR_PLAN, OPTION_INTEGER, RANGE(1, SPEC_WORKERS_MAX), SETS(plan.world),
     .help = "number of ranks (from the profile, or the job)"},
    {NULL, "--workers", "RANGE", FOR_PLAN, OPTION_TEXT, .apply = apply_worlds,
     .help = "8..64: compare 8, 16, 32 and 64 ranks; or a number"},
    {NULL, "--simulate", "HOSTSxDEVICES", FOR_PLAN, OPTION_TEXT, SETS(plan.simulate),
     .help = "time a step on a cluster of up to 65,536 ranks"},
    {NULL, "--slow-rank", "RANK=SPEED", FOR_PLAN, OPTION_TEXT, .list = true,
     .apply = apply_slow_rank,
     .help = "with --simulate: a rank's fraction of its speed,\n17=0.8; may be repeated"},
    {NULL, "--slow-link", "HOST=SPEED", FOR_PLAN, OPTION_TEXT, .list = true,
     .apply = apply_slow_link,
     .help = "with --simulate: the fraction of their speed that a\nhost's links to others have, 3=0.5; may be repeated"},
    {NULL, "--auto", NULL, FOR_PLAN, OPTION_SWITCH, SETS(plan.choose),
     .help = "choose units, strategy, recomputation, offload\nand batches: the fastest settings that fit"},
    {NULL, "--memory", "BYTES", FOR_PLAN, OPTION_TEXT, .apply = apply_memory,
     .help = "a device's memory, such as 80GB (as the profile\nsays)"},
    {NULL, "--set", "KEY=VALUE", FOR_PLAN, OPTION_TEXT, .list = true, .apply = apply_set,
     .help = "override a key of the job file; may be repeated"},
    {NULL, "--dump", NULL, FOR_PLAN, OPTION_SWITCH, SETS(plan.dump),
     .help = "also print every instruction and buffer"},
    {NULL, "--data-root", "DIR", FOR_PLAN, OPTION_PATH, .list = true, .apply = apply_data_root,
     .help = "where to find the job's data, to count its\nsteps (.)"},
    {NULL, "--threads", "N", FOR_PLAN, OPTION_INTEGER, RANGE(1, THREADS_MAX),
     .apply = apply_threads, .help = "threads of each rank, on a cpu (1)"},
    {NULL, "--output", "FORMAT", FOR_PLAN | FOR_CONFIG | FOR_DEVICES | FOR_TOKEN, OPTION_CHOICE,
     .choices = {"table", "json"}, .apply = apply_output, .help = "also -o: table or json (table)"},

    {NULL, "--device", "DEVICE", FOR_CALIBRATE, OPTION_DEVICE, RANGE(0, DEVICE_MAX),
     SETS(worker.device), .help = "what to measure: cpu, or cuda:N, the first of as\nmany as there are workers (cpu)"},
    {NULL, "--workers", "N", FOR_CALIBRATE, OPTION_INTEGER, RANGE(1, CALIBRATE_WORKERS_MAX),
     SETS(calibrate.workers), .help = "at most; 1, 2, 4, ... are measured (cpu: as many as\nthere are processors, at most 8; cuda: 1)"},
    {NULL, "--threads", "N", FOR_CALIBRATE, OPTION_INTEGER, RANGE(1, THREADS_MAX),
     .apply = apply_threads, .help = "threads of each worker, on a cpu (1)"},
    {NULL, "--seconds", "N", FOR_CALIBRATE, OPTION_INTEGER, RANGE(1, 3600),
     SETS(calibrate.seconds), .help = "how long it may take, about (50)"},
    {NULL, "--output", "FILE", FOR_CALIBRATE, OPTION_PATH, SETS(calibrate.out),
     .help = "also -o: where to write the profile (standard output)"},

    {NULL, "--days", "N", FOR_CERT, OPTION_INTEGER, RANGE(1, X509_DAYS_MAX), SETS(cert.days),
     .help = "validity in days (init: 3650, issue: 365)"},
    {NULL, "--host", "HOST", FOR_CERT, OPTION_TEXT, .list = true, .apply = apply_host,
     .help = "issue server: a DNS name or an address that\n"
             "clients connect to; may be repeated (NAME)"},
    {NULL, "--out", "DIR", FOR_CERT, OPTION_PATH, SETS(cert.out),
     .help = "issue: the directory to write to (the\nauthority's DIR)"},

    {NULL, "--role", "ROLE", FOR_TOKEN, OPTION_CHOICE, .choices = {"user", "operator", "observer"},
     SETS(token.role), .help = "issue: what the token allows: user, operator or observer\n(user)"},
    {NULL, "--job", "ID", FOR_TOKEN, OPTION_TEXT, SETS(token.job),
     .help = "issue: the only job that the token shows"},
    {NULL, "--days", "N", FOR_TOKEN, OPTION_INTEGER, RANGE(1, TOKEN_DAYS_MAX), SETS(token.days),
     .help = "issue: validity in days (90)"},
    {NULL, "--hours", "N", FOR_TOKEN, OPTION_INTEGER, RANGE(1, TOKEN_DAYS_MAX), SETS(token.hours),
     .help = "issue: validity in hours"},

    {"workers", "--workers", "cpu:N", FOR_BOTH, OPTION_WORKERS, RANGE(1, WORKERS_MAX),
     .fallback = "cpu:2", .apply = apply_workers, .help = "number of local workers (cpu:2)"},
    {"threads", "--threads", "N", FOR_DAEMONS, OPTION_INTEGER, RANGE(1, THREADS_MAX),
     .apply = apply_threads,
     .help = "threads of each worker (its share of the processors)"},
    {"runtime_dir", "--runtime-dir", "DIR", FOR_SERVERS | FOR_TOKEN, OPTION_PATH,
     SETS(coordinator.runtime_dir),
     .help = "for the socket fsdpd.sock (root: /run/fsdpd,\nothers: $XDG_RUNTIME_DIR/fsdpd)"},
    {"state_dir", "--state-dir", "DIR", FOR_SERVERS | FOR_STORE, OPTION_PATH,
     SETS(coordinator.state_dir),
     .help = "for jobs and weights (root: /var/lib/fsdpd,\nothers: $XDG_STATE_HOME/fsdpd or\n"
             "~/.local/state/fsdpd)"},
    {"data_roots", "--data-root", "DIR", FOR_SERVERS | FOR_SCRUB, OPTION_PATH, .list = true,
     .apply = apply_data_root,
     .help = "where jobs may read data; may be repeated\n(STATE-DIR/data, which fsdpd creates)"},
    {"data_roots", "--data-root", "DIR", FOR_WORKER, OPTION_PATH, .list = true,
     .apply = apply_data_root, .help = "where jobs may read data; may be repeated (none)"},
    {"families", "--families", "DIR", FOR_DAEMONS | FOR_PLAN, OPTION_PATH, .list = true,
     .fallback = "[]", .apply = apply_families,
     .help = "where to find Hugging Face model families,\nbefore those that come with fsdpd; may be\n"
             "repeated"},
    {"profile", "--profile", "NAME|FILE", FOR_SERVERS, OPTION_TEXT, SETS(coordinator.profile),
     .help = "the devices to plan jobs for while no worker is\nattached"},
    {"listen", "--listen", "ADDRESS", FOR_SERVERS, OPTION_ADDRESS, .list = true,
     .fallback = "[]", .apply = apply_listen,
     .help = "also listen on unix:PATH or HOST:PORT; may be\nrepeated"},
    {"insecure_tcp", "--insecure-tcp", NULL, FOR_DAEMONS | FOR_TOKEN, OPTION_SWITCH, SETS(insecure_tcp),
     .help = "allow TCP without TLS, which is neither\nencrypted nor authenticated"},
    {"operator_group", "--operator-group", "GROUP", FOR_SERVERS, OPTION_TEXT, .reload = true,
     .fallback = COORDINATOR_OPERATOR_GROUP, .apply = apply_operator_group,
     .help = "the Unix group whose members may change\n"
             "the jobs of all users (" COORDINATOR_OPERATOR_GROUP ")"},
    {"log_level", "--log-level", "LEVEL", FOR_DAEMONS, OPTION_CHOICE, .reload = true,
     .choices = {"debug", "info", "warning", "error"}, .fallback = "info",
     .apply = apply_log_level, .help = "debug, info, warning or error (info)"},

    {"tls.ca", "--tls-ca", "FILE", FOR_DAEMONS | FOR_TOKEN, OPTION_PATH, .reload = true, SETS(tls.ca),
     .help = "for TCP: the authorities' certificates"},
    {"tls.certificate", "--tls-certificate", "FILE", FOR_DAEMONS | FOR_TOKEN, OPTION_PATH, .reload = true,
     SETS(tls.certificate), .help = "fsdpd's certificate"},
    {"tls.key", "--tls-key", "FILE", FOR_DAEMONS | FOR_TOKEN, OPTION_PATH, .reload = true, SETS(tls.key),
     .help = "its private key"},

    {"metrics.listen", "--metrics-listen", "HOST:PORT", FOR_SERVERS, OPTION_ADDRESS,
     SETS(coordinator.metrics_listen),
     .help = "serve /metrics, /livez and /readyz on this\naddress (none)"},

    {"http.listen", "--http-listen", "HOST:PORT", FOR_SERVERS, OPTION_ADDRESS,
     SETS(coordinator.http_listen),
     .help = "serve a page of jobs, and /v1/completions, on this\naddress, for clients with a token (none)"},

    {"worker.device", "--device", "DEVICE", FOR_WORKER, OPTION_DEVICE,
     RANGE(0, DEVICE_MAX), .fallback = "cpu", SETS(worker.device),
     .help = "the worker's device: cpu or cuda:N (cpu)"},
    {"worker.share_device", "--share-device", NULL, FOR_WORKER, OPTION_SWITCH,
     SETS(worker.share_device),
     .help = "allow other workers on the same cuda device, for\ntests: their jobs' collectives go "
             "through host\nmemory"},
    {"worker.coordinator", "--coordinator", "ADDRESS", FOR_WORKER | FOR_TOKEN, OPTION_ADDRESS,
     SETS(worker.coordinator), .help = "the coordinator to attach to (the local socket)"},
    {"worker.address", "--address", "ADDRESS", FOR_WORKER, OPTION_TEXT, SETS(worker.address),
     .help = "where other workers reach this host (detected)"},
    {"worker.id", "--id", "ID", FOR_WORKER, OPTION_TEXT, SETS(worker.id),
     .help = "the worker's name, NODE/NAME or NAME (the device)"},
    {"worker.away_seconds", "--away", "SECONDS", FOR_DAEMONS, OPTION_SECONDS, RANGE(0.1, 604800),
     .fallback = "3600", .apply = apply_away,
     .help = "how long a worker continues its job without\n"
             "reaching its coordinator (3600)"},

    {"queue.shrink_elastic", "--shrink-elastic", NULL, FOR_SERVERS, OPTION_SWITCH, .reload = true,
     SETS(coordinator.shrink_elastic),
     .help = "take workers from running elastic jobs for waiting\njobs of higher priority"},
    {"queue.preempt", "--preempt", NULL, FOR_SERVERS, OPTION_SWITCH, .reload = true,
     SETS(coordinator.preempt),
     .help = "preempt running jobs for waiting ones of higher\npriority"},
    {"queue.preempt_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0, 604800),
     .fallback = "600", LIMIT(preempt_ms)},
    {"queue.fair_share.half_life", NULL, NULL, FOR_SERVERS, OPTION_TEXT, .reload = true,
     .apply = apply_half_life},
    {"queue.quota.workers", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(0, 1e6),
     .fallback = "0", LIMIT(quota_workers)},
    {"queue.quota.kept_bytes", NULL, NULL, FOR_SERVERS, OPTION_TEXT, .reload = true,
     .apply = apply_kept_bytes},

    {"notify", NULL, NULL, FOR_SERVERS, OPTION_NOTIFY, .reload = true, .fallback = "{}",
     .apply = apply_notify},

    {"calibrate.after_seconds", "--calibrate-after", "SECONDS", FOR_SERVERS, OPTION_SECONDS,
     RANGE(0, 604800), .fallback = "120", LIMIT(calibrate_after_ms),
     .help = "how long workers are idle before a profile of their\ndevices is measured; 0: never (120)"},
    {"calibrate.seconds", "--calibrate-seconds", "SECONDS", FOR_SERVERS, OPTION_SECONDS, RANGE(1, 600),
     .fallback = "30", LIMIT(calibrate_ms),
     .help = "how long measuring it takes, about (30)"},

    {"retention.days", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(0, 36500),
     .fallback = "0", LIMIT(retention_days)},
    {"retention.jobs", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(0, 1e9),
     .fallback = "0", LIMIT(retention_jobs)},

    {"scrub.days", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(0, 3650), .fallback = "0",
     LIMIT(scrub_days)},
    {"scrub.rate", "--rate", "MB", FOR_SERVERS | FOR_SCRUB, OPTION_INTEGER, RANGE(1, 1e6),
     .fallback = "20", LIMIT(scrub_rate),
     .help = "megabytes per second that a scrub reads (20)"},

    {"limits.jobs_active", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(1, 1e6),
     LIMIT(jobs_active)},
    {"limits.jobs_per_user", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(1, 1e6),
     LIMIT(jobs_per_user)},
    {"limits.spec_bytes", NULL, NULL, FOR_SERVERS, OPTION_INTEGER,
     RANGE(4096, COORDINATOR_SPEC_MAX), LIMIT(spec_bytes)},
    {"limits.user_priority", NULL, NULL, FOR_SERVERS, OPTION_INTEGER,
     RANGE(-SPEC_PRIORITY_MAX, SPEC_PRIORITY_MAX), LIMIT(user_priority)},
    {"limits.pulls_per_job", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(1, 1024),
     LIMIT(pulls_per_job)},
    {"limits.samples_waiting", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(0, 1024),
     LIMIT(samples_waiting)},
    {"limits.sample_share", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(1, 100),
     LIMIT(sample_share)},
    {"limits.watchers", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(1, 1e6), LIMIT(watchers)},
    {"limits.connections_per_user", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(1, 65536),
     LIMIT(connections_per_user)},
    {"limits.connections_per_address", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(1, 65536),
     LIMIT(connections_per_address)},
    {"limits.calls_per_user", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(1, 65536),
     LIMIT(calls_per_user)},
    {"limits.users", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(1, 65536), LIMIT(users)},
    {"limits.watch_lag", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(1, 1e6), LIMIT(watch_lag)},
    {"limits.metrics_kept", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(16, 1e8),
     LIMIT(metrics_kept)},
    {"limits.log_bytes", NULL, NULL, FOR_SERVERS, OPTION_INTEGER, RANGE(1 << 16, 1 << 30),
     LIMIT(log_bytes)},
    {"limits.heartbeat_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.01, 3600),
     LIMIT(heartbeat_ms)},
    {"limits.silence_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 86400),
     LIMIT(silence_ms)},
    {"limits.peer_timeout_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 86400),
     LIMIT(peer_timeout_ms)},
    {"limits.plan_wait_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 86400),
     LIMIT(plan_wait_ms)},
    {"limits.plan_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 86400),
     LIMIT(plan_ms)},
    {"limits.pull_start_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 86400),
     LIMIT(pull_start_ms)},
    {"limits.pull_idle_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 86400),
     LIMIT(pull_idle_ms)},
    {"limits.cancel_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 86400),
     LIMIT(cancel_ms)},
    {"limits.save_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 86400),
     LIMIT(save_ms)},
    {"limits.kill_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 86400),
     LIMIT(kill_ms)},
    {"limits.stop_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 86400),
     LIMIT(stop_ms)},
    {"limits.settle_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 3600),
     LIMIT(settle_ms)},
    {"limits.reattach_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 86400),
     LIMIT(reattach_ms)},
    {"limits.exit_wait_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.01, 3600),
     LIMIT(exit_wait_ms)},
    {"limits.retry_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 86400),
     LIMIT(retry_ms)},
    {"limits.retry_max_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 86400),
     LIMIT(retry_max_ms)},
    {"limits.notice_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.1, 3600),
     LIMIT(notice_ms)},
    {"limits.notice_retry_seconds", NULL, NULL, FOR_SERVERS, OPTION_SECONDS, RANGE(0.01, 3600),
     LIMIT(notice_retry_ms)},

    {NULL, "--config", "FILE", FOR_DAEMONS | FOR_CONFIG | FOR_STORE | FOR_TOKEN, OPTION_PATH,
     SETS(given_config),
     .help = "the configuration file (root:\n/etc/fsdpd/fsdpd.yaml, others:\n"
             "$XDG_CONFIG_HOME/fsdpd/fsdpd.yaml or\n~/.config/fsdpd/fsdpd.yaml, if it exists)"},
    {NULL, "--order", NULL, FOR_PLAN, OPTION_SWITCH, SETS(plan.order)},
    {NULL, "--for-worker", "PID", FOR_CALIBRATE, OPTION_INTEGER, RANGE(1, INT_MAX),
     SETS(calibrate.worker)},
    {NULL, "--supervised", NULL, FOR_WORKER, OPTION_SWITCH, SETS(worker.supervised)},
    {NULL, "--version", NULL, FOR_ALL, OPTION_SWITCH, SETS(version),
     .help = "print the version and exit"},
    {NULL, "--help", NULL, FOR_ALL, OPTION_SWITCH, SETS(help), .help = "print this and exit"},
};
/* clang-format on */
const int option_row_count = COUNT_OF(option_rows);
_Static_assert(COUNT_OF(option_rows) <= OPTION_ROWS_MAX, "too many rows");

bool option_belongs(const struct option_row *row, enum role role)
{
    return (row->roles & (1u << role)) != 0 || (role == ROLE_CONFIG && row->key != NULL);
}

bool option_is_repeated(const struct option_row *row)
{
    for (const struct option_row *other = option_rows; other < row; other++)
        if (row->key != NULL && other->key != NULL && strcmp(other->key, row->key) == 0)
            return true;
    return false;
}

const struct option_row *option_find_flag(const char *name, size_t length, enum role role)
{
    if (length == 2 && strncmp(name, "-h", 2) == 0) return option_find_flag("--help", 6, role);
    if (length == 2 && strncmp(name, "-o", 2) == 0) return option_find_flag("--output", 8, role);
    const struct option_row *found = NULL;
    for (int i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        if (row->flag == NULL || strlen(row->flag) != length ||
            strncmp(row->flag, name, length) != 0)
            continue;
        if (found == NULL) found = row;
        if (option_belongs(row, role)) return row;
    }
    return found;
}

const struct option_row *option_find_key(const char *key, enum role role)
{
    const struct option_row *found = NULL;
    for (int i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        if (row->key == NULL || strcmp(row->key, key) != 0) continue;
        if (found == NULL) found = row;
        if (option_belongs(row, role)) return row;
    }
    return found;
}

/* ---- values ---- */

static void expected(const struct option_row *row, struct buf *out)
{
    switch (row->kind) {
    case OPTION_SWITCH: buf_add_text(out, "true or false"); break;
    case OPTION_TEXT: buf_add_text(out, "a text"); break;
    case OPTION_PATH: buf_add_text(out, "a path"); break;
    case OPTION_ADDRESS: buf_add_text(out, "unix:PATH or HOST:PORT"); break;
    case OPTION_INTEGER: buf_printf(out, "an integer from %.0f to %.0f", row->min, row->max); break;
    case OPTION_SECONDS: buf_printf(out, "seconds from %g to %g", row->min, row->max); break;
    case OPTION_DEVICE: buf_add_text(out, "cpu or cuda:N, as fsdpd devices lists them"); break;
    case OPTION_WORKERS:
        buf_printf(out, "cpu:N with N from %.0f to %.0f, or none", row->min, row->max);
        break;
    case OPTION_NOTIFY: buf_add_text(out, "a mapping of names"); break;
    case OPTION_CHOICE:
        for (int i = 0; i < OPTION_CHOICES_MAX && row->choices[i] != NULL; i++) {
            bool last = i + 1 == OPTION_CHOICES_MAX || row->choices[i + 1] == NULL;
            buf_printf(out, "%s%s", i == 0 ? "" : last ? " or " : ", ", row->choices[i]);
        }
        break;
    }
}

static bool is_integer(const struct option_row *row, const char *text)
{
    int64_t number;
    return text_parse_i64(text, &number) && (double)number >= row->min &&
           (double)number <= row->max;
}

static bool is_choice(const struct option_row *row, const char *text)
{
    for (int i = 0; i < OPTION_CHOICES_MAX && row->choices[i] != NULL; i++)
        if (strcmp(row->choices[i], text) == 0) return true;
    return false;
}

static bool is_value(const struct option_row *row, const char *text)
{
    double number;
    switch (row->kind) {
    case OPTION_SWITCH: return strcmp(text, "true") == 0 || strcmp(text, "false") == 0;
    case OPTION_INTEGER: return is_integer(row, text);
    case OPTION_SECONDS:
        return text_parse_f64(text, &number) && number >= row->min && number <= row->max;
    case OPTION_CHOICE: return is_choice(row, text);
    case OPTION_DEVICE:
        if (strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0) return true;
        return strncmp(text, "cuda:", 5) == 0 && is_integer(row, text + 5);
    case OPTION_WORKERS:
        if (strcmp(text, "none") == 0) return true;
        return strncmp(text, "cpu:", 4) == 0 && is_integer(row, text + 4);
    default: return text[0] != '\0';
    }
}

status_t option_check(const struct option_row *row, const char *text)
{
    if (row->kind == OPTION_ADDRESS && text[0] != '\0') {
        AUTO_FREE char *normal = NULL;
        TRY(rpc_address_parse(text, &normal));
        return NULL;
    }
    if (row->kind == OPTION_NOTIFY) return notify_option_check(text);
    if (is_value(row, text)) return NULL;
    AUTO(buf_deinit) struct buf what = {0};
    expected(row, &what);
    const char *near = NULL;
    int count = 0;
    while (count < OPTION_CHOICES_MAX && row->choices[count] != NULL) count++;
    if (count > 0) near = text_nearest(text, row->choices, (size_t)count);
    return status_new(STATUS_INVALID_ARGUMENT, "expected %s, found '%.80s'%s%s%s", buf_text(&what),
                      text, near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                      near != NULL ? "?" : "");
}

status_t option_apply(struct options *options, const struct option_row *row, const char *text)
{
    if (row->apply != NULL) return row->apply(options, row, text);
    void *member = (char *)options + row->offset;
    int64_t integer = 0;
    double seconds = 0;
    switch (row->kind) {
    case OPTION_SWITCH: *(bool *)member = strcmp(text, "true") == 0; break;
    case OPTION_INTEGER:
        if (text_parse_i64(text, &integer)) *(int *)member = (int)integer;
        break;
    case OPTION_SECONDS:
        if (text_parse_f64(text, &seconds)) *(int *)member = (int)lround(seconds * 1000);
        break;
    case OPTION_PATH:
        *(const char **)member = option_keep(options, file_path_expand_home(text));
        break;
    default: *(const char **)member = text; break;
    }
    return NULL;
}

void option_value_add(struct option_value *value, enum option_source source, const char *where,
                      const char *place, const char *text)
{
    if (value->source == SOURCE_DEFAULT) {
        value->source = source;
        value->where = mem_strdup(where);
        value->place = mem_strdup(place);
    }
    if (text == NULL) return;
    MEM_GROW(value->texts, value->count, value->capacity);
    value->texts[value->count++] = mem_strdup(text);
}

/* ---- descriptions ---- */

void option_describe_type(const struct option_row *row, struct buf *out)
{
    static const char *const names[] = {
        [OPTION_SWITCH] = "boolean",
        [OPTION_TEXT] = "text",
        [OPTION_PATH] = "path",
        [OPTION_ADDRESS] = "address",
        [OPTION_INTEGER] = "integer",
        [OPTION_SECONDS] = "seconds",
        [OPTION_DEVICE] = "`cpu` or `cuda:`N",
        [OPTION_WORKERS] = "`cpu:`N",
        [OPTION_NOTIFY] = "mapping",
    };
    if (row->list) {
        buf_printf(out, "list of %s%s", names[row->kind], row->kind == OPTION_ADDRESS ? "es" : "s");
        return;
    }
    if (row->kind == OPTION_CHOICE) {
        for (int i = 0; i < OPTION_CHOICES_MAX && row->choices[i] != NULL; i++)
            buf_printf(out, "%s`%s`", i ? ", " : "", row->choices[i]);
        return;
    }
    buf_add_text(out, names[row->kind]);
    if (row->kind == OPTION_INTEGER || row->kind == OPTION_WORKERS)
        buf_printf(out, ", %.0f to %.0f", row->min, row->max);
    if (row->kind == OPTION_SECONDS) buf_printf(out, ", %g to %g", row->min, row->max);
    if (row->kind == OPTION_WORKERS) buf_add_text(out, ", or `none`");
}

bool option_is_number(const struct option_row *row)
{
    return row->kind == OPTION_INTEGER || row->kind == OPTION_SECONDS || row->kind == OPTION_SWITCH;
}

static void add_scalar(const struct option_row *row, const char *text, struct buf *out)
{
    if (option_is_number(row)) buf_add_text(out, text);
    else yamldoc_print_text(out, text);
}

void option_describe_value(const struct options *options, const struct option_row *row,
                           struct buf *out)
{
    const struct option_value *value = &options->values[row - option_rows];
    const void *member = (const char *)options + row->offset;
    if (row->list && value->source != SOURCE_DEFAULT) {
        buf_add_char(out, '[');
        for (int i = 0; i < value->count; i++) {
            if (i > 0) buf_add_text(out, ", ");
            add_scalar(row, value->texts[i], out);
        }
        buf_add_char(out, ']');
    } else if (value->count > 0 && row->kind == OPTION_NOTIFY) {
        buf_add_text(out, value->texts[value->count - 1]);
    } else if (value->count > 0) {
        add_scalar(row, value->texts[value->count - 1], out);
    } else if (row->fallback != NULL) {
        buf_add_text(out, row->fallback);
    } else if (row->list) { /* data_roots: created in the state directory */
        const struct coordinator_options *coordinator = &options->coordinator;
        AUTO_FREE char *data =
            file_path_join(coordinator->state_dir != NULL ? coordinator->state_dir : "STATE_DIR",
                           "data");
        buf_add_char(out, '[');
        add_scalar(row, data, out);
        buf_add_char(out, ']');
    } else if (row->offset != 0 && row->kind == OPTION_SWITCH) {
        buf_add_text(out, *(const bool *)member ? "true" : "false");
    } else if (row->offset != 0 && row->kind == OPTION_INTEGER) {
        buf_printf(out, "%d", *(const int *)member);
    } else if (row->offset != 0 && row->kind == OPTION_SECONDS) {
        buf_printf(out, "%g", *(const int *)member / 1000.0);
    } else if (row->offset != 0 && *(const char *const *)member != NULL) {
        add_scalar(row, *(const char *const *)member, out);
    } else {
        buf_add_text(out, "null");
    }
}

char *option_variable(const struct option_row *row)
{
    char *name = mem_printf("FSDPD_%s", row->key);
    for (char *c = name; *c; c++) *c = *c == '.' ? '_' : (char)toupper((unsigned char)*c);
    return name;
}
