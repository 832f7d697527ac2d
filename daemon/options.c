/* The command line; see options.h. */
#include "options.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

enum {
    FOR_BOTH = 1 << ROLE_BOTH,
    FOR_COORDINATOR = 1 << ROLE_COORDINATOR,
    FOR_WORKER = 1 << ROLE_WORKER,
    FOR_PLAN = 1 << ROLE_PLAN,
    FOR_SERVERS = FOR_BOTH | FOR_COORDINATOR,
    FOR_DAEMONS = FOR_SERVERS | FOR_WORKER,
    FOR_ALL = FOR_DAEMONS | FOR_PLAN,
};

enum { WORKERS_MAX = 256, THREADS_MAX = 1024 };

struct flag {
    const char *name;     /* "--workers" */
    const char *argument; /* its name in the help; NULL for a switch */
    unsigned roles;
    const char *help; /* NULL: not shown; lines are separated by \n */
    status_t (*apply)(struct options *options, const struct flag *flag, const char *value);
};

static const char *keep(struct options *options, char *text)
{
    MEM_GROW(options->texts, options->text_count, options->text_capacity);
    return options->texts[options->text_count++] = text;
}

static status_t apply_help(struct options *options, const struct flag *flag, const char *value)
{
    (void)flag, (void)value;
    options->help = true;
    return NULL;
}

static status_t apply_version(struct options *options, const struct flag *flag, const char *value)
{
    (void)flag, (void)value;
    options->version = true;
    return NULL;
}

/* "cpu:2": so many workers with that device. */
static status_t apply_workers(struct options *options, const struct flag *flag, const char *value)
{
    const char *colon = strchr(value, ':');
    int64_t count = 0;
    if (strncmp(value, "cpu:", 4) != 0 || !text_parse_i64(colon + 1, &count) || count < 1 ||
        count > WORKERS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: cpu:N with N from 1 to %d expected, found %s", flag->name,
                          WORKERS_MAX, value);
    options->coordinator.local_device = "cpu";
    options->coordinator.local_workers = (int)count;
    return NULL;
}

static status_t apply_directory(struct options *options, const struct flag *flag, const char *value)
{
    if (value[0] == '\0')
        return status_new(STATUS_INVALID_ARGUMENT, "%s: a directory expected", flag->name);
    const char *path = keep(options, file_path_expand_home(value));
    if (strcmp(flag->name, "--runtime-dir") == 0) options->coordinator.runtime_dir = path;
    else options->coordinator.state_dir = path;
    return NULL;
}

static status_t add_data_root(struct options *options, const char *name, const char *path)
{
    if (options->coordinator.data_root_count == COORDINATOR_DATA_ROOTS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: at most %d", name,
                          COORDINATOR_DATA_ROOTS_MAX);
    char *real = NULL;
    status_t status = file_resolve_under("/", path, &real);
    if (status != NULL) return status_wrap(status, "%s", name);
    options->coordinator.data_roots[options->coordinator.data_root_count++] = keep(options, real);
    return NULL;
}

static status_t apply_data_root(struct options *options, const struct flag *flag, const char *value)
{
    char *path = file_path_expand_home(value);
    char *here = getcwd(NULL, 0);
    char *absolute = file_path_join(here != NULL ? here : "/", path);
    status_t status = add_data_root(options, flag->name, absolute);
    free(absolute);
    free(here);
    free(path);
    return status;
}

static status_t apply_listen(struct options *options, const struct flag *flag, const char *value)
{
    struct coordinator_options *coordinator = &options->coordinator;
    if (coordinator->listen_count == COORDINATOR_ADDRESSES_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: at most %d", flag->name,
                          COORDINATOR_ADDRESSES_MAX);
    coordinator->listen[coordinator->listen_count++] = value;
    return NULL;
}

static status_t apply_insecure(struct options *options, const struct flag *flag, const char *value)
{
    (void)flag, (void)value;
    options->coordinator.insecure_tcp = true;
    return NULL;
}

static status_t apply_threads(struct options *options, const struct flag *flag, const char *value)
{
    int64_t count = 0;
    if (!text_parse_i64(value, &count) || count < 1 || count > THREADS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: 1 to %d expected, found %s", flag->name,
                          THREADS_MAX, value);
    options->coordinator.worker_threads = options->worker.threads = (int)count;
    options->plan.threads = (int)count;
    return NULL;
}

static status_t apply_log_level(struct options *options, const struct flag *flag, const char *value)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(value, names[i]) != 0) continue;
        options->log_level = (enum log_level)i;
        options->log_level_name = names[i];
        return NULL;
    }
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: debug, info, warning or error expected, found %s", flag->name, value);
}

static status_t apply_device(struct options *options, const struct flag *flag, const char *value)
{
    if (strcmp(value, "cpu") != 0)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: cpu expected, found %s", flag->name, value);
    options->worker.device = value;
    return NULL;
}

static status_t apply_worker_text(struct options *options, const struct flag *flag,
                                  const char *value)
{
    if (value[0] == '\0')
        return status_new(STATUS_INVALID_ARGUMENT, "%s: must not be empty", flag->name);
    if (strcmp(flag->name, "--coordinator") == 0) options->worker.coordinator = value;
    else if (strcmp(flag->name, "--address") == 0) options->worker.address = value;
    else options->worker.id = value;
    return NULL;
}

static status_t apply_supervised(struct options *options, const struct flag *flag,
                                 const char *value)
{
    (void)flag, (void)value;
    options->worker.supervised = true;
    return NULL;
}

static status_t apply_plan_text(struct options *options, const struct flag *flag, const char *value)
{
    struct plan_role_options *plan = &options->plan;
    if (strcmp(flag->name, "--profile") == 0) {
        plan->profile = value;
        return NULL;
    }
    MEM_GROW(plan->overrides, plan->override_count, plan->override_capacity);
    plan->overrides[plan->override_count++] = (struct spec_override){.text = value};
    return NULL;
}

static status_t apply_world(struct options *options, const struct flag *flag, const char *value)
{
    int64_t world = 0;
    if (!text_parse_i64(value, &world) || world < 1 || world > SPEC_WORKERS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: 1 to %d expected, found %s", flag->name,
                          SPEC_WORKERS_MAX, value);
    options->plan.world = (int)world;
    return NULL;
}

static status_t apply_dump(struct options *options, const struct flag *flag, const char *value)
{
    (void)flag, (void)value;
    options->plan.dump = true;
    return NULL;
}

static status_t apply_output(struct options *options, const struct flag *flag, const char *value)
{
    options->plan.json = strcmp(value, "json") == 0;
    if (options->plan.json || strcmp(value, "table") == 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: table or json expected, found %s", flag->name,
                      value);
}

static const struct flag flags[] = {
    {"--profile", "NAME|FILE", FOR_PLAN,
     "the devices to plan for: cpu, t4, a100, h100,\nh200, one of them with a number of ranks\n"
     "(h200x8), or a file (cpu)",
     apply_plan_text},
    {"--world", "N", FOR_PLAN, "ranks (as the profile says, or the job)", apply_world},
    {"--set", "KEY=VALUE", FOR_PLAN, "override a key of the job file; may be repeated",
     apply_plan_text},
    {"--dump", NULL, FOR_PLAN, "every instruction and buffer of the plan, too", apply_dump},
    {"--output", "FORMAT", FOR_PLAN, "also -o: table or json (table)", apply_output},
    {"--workers", "cpu:N", FOR_BOTH, "how many local workers to run (cpu:2)", apply_workers},
    {"--device", "DEVICE", FOR_WORKER, "the worker's device (cpu)", apply_device},
    {"--coordinator", "ADDRESS", FOR_WORKER, "the coordinator to attach to (the local socket)",
     apply_worker_text},
    {"--runtime-dir", "DIR", FOR_SERVERS,
     "for the socket fsdpd.sock (root: /run/fsdpd,\nothers: $XDG_RUNTIME_DIR/fsdpd)",
     apply_directory},
    {"--state-dir", "DIR", FOR_SERVERS,
     "for jobs and weights (root: /var/lib/fsdpd,\nothers: $XDG_STATE_HOME/fsdpd or\n"
     "~/.local/state/fsdpd)",
     apply_directory},
    {"--data-root", "DIR", FOR_SERVERS,
     "where jobs may read data; may be repeated\n(STATE-DIR/data, which is made)", apply_data_root},
    {"--data-root", "DIR", FOR_WORKER, "where jobs may read data; may be repeated (none)",
     apply_data_root},
    {"--data-root", "DIR", FOR_PLAN, "where to look for the job's data, to count its\nsteps (.)",
     apply_data_root},
    {"--listen", "ADDRESS", FOR_SERVERS,
     "also listen there: unix:PATH or HOST:PORT;\nmay be repeated", apply_listen},
    {"--insecure-tcp", NULL, FOR_SERVERS,
     "allow --listen HOST:PORT, which is neither\nencrypted nor authenticated", apply_insecure},
    {"--threads", "N", FOR_DAEMONS, "threads of each worker (its share of the processors)",
     apply_threads},
    {"--threads", "N", FOR_PLAN, "threads of each rank, on a cpu (1)", apply_threads},
    {"--address", "ADDRESS", FOR_WORKER, "where other workers reach this host (found out)",
     apply_worker_text},
    {"--id", "ID", FOR_WORKER, "the worker's name (HOST/DEVICE)", apply_worker_text},
    {"--supervised", NULL, FOR_WORKER, NULL, apply_supervised},
    {"--log-level", "LEVEL", FOR_DAEMONS, "debug, info, warning or error (info)", apply_log_level},
    {"--version", NULL, FOR_ALL, "print the version and exit", apply_version},
    {"--help", NULL, FOR_ALL, "print this and exit", apply_help},
};
enum { FLAG_COUNT = sizeof flags / sizeof flags[0] };

static const char *const role_commands[] = {"fsdpd", "fsdpd coordinator", "fsdpd worker",
                                            "fsdpd plan"};

static status_t unknown(const char *what, const char *word, const char *const *candidates,
                        size_t count, enum role role)
{
    const char *near = text_nearest(word, candidates, count);
    if (near != NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "%s %s is not known; did you mean %s?", what,
                          word, near);
    return status_new(STATUS_INVALID_ARGUMENT, "%s %s is not known; see %s --help", what, word,
                      role_commands[role]);
}

/* The role's row if it has one, else another role's. */
static const struct flag *find_flag(const char *name, size_t length, enum role role)
{
    if (length == 2 && strncmp(name, "-h", 2) == 0) return find_flag("--help", 6, role);
    if (length == 2 && strncmp(name, "-o", 2) == 0) return find_flag("--output", 8, role);
    const struct flag *found = NULL;
    for (int i = 0; i < FLAG_COUNT; i++) {
        if (strlen(flags[i].name) != length || strncmp(flags[i].name, name, length) != 0) continue;
        found = &flags[i];
        if (found->roles & (1u << role)) return found;
    }
    return found;
}

/* One flag at argv[*at]; *at ends up at its last argument. */
static status_t parse_flag(struct options *options, int argc, char **argv, int *at)
{
    const char *word = argv[*at];
    size_t length = strcspn(word, "=");
    const struct flag *flag = find_flag(word, length, options->role);
    if (flag == NULL || (flag->roles & (1u << options->role)) == 0) {
        if (flag != NULL)
            return status_new(STATUS_INVALID_ARGUMENT, "%s does not belong to %s", flag->name,
                              role_commands[options->role]);
        const char *names[FLAG_COUNT];
        size_t count = 0;
        for (int i = 0; i < FLAG_COUNT; i++)
            if (flags[i].help != NULL && (flags[i].roles & (1u << options->role)))
                names[count++] = flags[i].name;
        return unknown("the flag", word, names, count, options->role);
    }
    bool attached = word[length] == '=';
    if (flag->argument == NULL) {
        if (attached) return status_new(STATUS_INVALID_ARGUMENT, "%s takes no value", flag->name);
        return flag->apply(options, flag, NULL);
    }
    if (!attached && *at + 1 >= argc)
        return status_new(STATUS_INVALID_ARGUMENT, "%s needs a value: %s", flag->name,
                          flag->argument);
    return flag->apply(options, flag, attached ? word + length + 1 : argv[++*at]);
}

static status_t default_directories(struct options *options)
{
    struct coordinator_options *coordinator = &options->coordinator;
    bool root = geteuid() == 0;
    const char *runtime = getenv("XDG_RUNTIME_DIR"), *state = getenv("XDG_STATE_HOME");
    bool serves = options->role != ROLE_WORKER;
    bool needs_runtime =
        serves ? coordinator->runtime_dir == NULL : options->worker.coordinator == NULL;
    const char *runtime_dir = "/run/fsdpd";
    if (needs_runtime && !root) {
        if (runtime == NULL || runtime[0] != '/')
            return status_new(STATUS_INVALID_ARGUMENT, "%s is needed: XDG_RUNTIME_DIR is not set",
                              serves ? "--runtime-dir" : "--coordinator");
        runtime_dir = keep(options, file_path_join(runtime, "fsdpd"));
    }
    if (!serves) {
        if (needs_runtime)
            options->worker.coordinator =
                keep(options, mem_printf("unix:%s/fsdpd.sock", runtime_dir));
        return NULL;
    }
    if (needs_runtime) coordinator->runtime_dir = runtime_dir;
    if (coordinator->state_dir == NULL) {
        if (root) coordinator->state_dir = "/var/lib/fsdpd";
        else if (state != NULL && state[0] == '/')
            coordinator->state_dir = keep(options, file_path_join(state, "fsdpd"));
        else coordinator->state_dir = keep(options, file_path_expand_home("~/.local/state/fsdpd"));
    }
    return NULL;
}

/* Without a data root: a directory of the state directory, so that there is a place for data. */
static status_t default_data_root(struct options *options)
{
    if (options->coordinator.data_root_count > 0 || options->role == ROLE_WORKER) return NULL;
    char *path = file_path_join(options->coordinator.state_dir, "data");
    status_t status = file_make_directory(options->coordinator.state_dir, 0750);
    if (status == NULL) status = file_make_directory(path, 0755);
    char *real = status == NULL ? realpath(path, NULL) : NULL;
    if (status == NULL && real == NULL)
        status = status_new(STATUS_NOT_FOUND, "cannot resolve %s", path);
    if (status == NULL) status = add_data_root(options, "--state-dir", real);
    free(real);
    free(path);
    return status;
}

static status_t finish_plan(struct options *options)
{
    struct plan_role_options *plan = &options->plan;
    if (plan->job_file == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "plan: a job file expected; see %s --help",
                          role_commands[ROLE_PLAN]);
    for (; plan->data_root_count < options->coordinator.data_root_count; plan->data_root_count++)
        plan->data_roots[plan->data_root_count] =
            options->coordinator.data_roots[plan->data_root_count];
    return NULL;
}

status_t options_parse(struct options *options, int argc, char **argv)
{
    *options = (struct options){
        .log_level = LOG_INFO,
        .coordinator = {.local_device = "cpu",
                        .program = "/proc/self/exe",
                        .limits = coordinator_limits_default()},
        .worker = {.device = "cpu"},
    };
    int at = 1;
    if (at < argc && argv[at][0] != '-') {
        static const char *const roles[] = {"coordinator", "worker", "plan"};
        if (strcmp(argv[at], roles[0]) == 0) options->role = ROLE_COORDINATOR;
        else if (strcmp(argv[at], roles[1]) == 0) options->role = ROLE_WORKER;
        else if (strcmp(argv[at], roles[2]) == 0) options->role = ROLE_PLAN;
        else return unknown("the role", argv[at], roles, 3, ROLE_BOTH);
        at++;
    }
    if (options->role == ROLE_BOTH) options->coordinator.local_workers = 2;
    for (; at < argc; at++) {
        if (argv[at][0] != '-' && options->role == ROLE_PLAN && options->plan.job_file == NULL) {
            options->plan.job_file = argv[at];
            continue;
        }
        if (argv[at][0] != '-')
            return status_new(STATUS_INVALID_ARGUMENT, "an argument too many: %s", argv[at]);
        TRY(parse_flag(options, argc, argv, &at));
        if (options->help || options->version) return NULL;
    }
    if (options->role == ROLE_PLAN) return finish_plan(options);
    options->coordinator.log_level = options->log_level_name;
    TRY(default_directories(options));
    TRY(default_data_root(options));
    options->worker.data_root_count = options->coordinator.data_root_count;
    for (int i = 0; i < options->worker.data_root_count; i++)
        options->worker.data_roots[i] = options->coordinator.data_roots[i];
    return NULL;
}

void options_deinit(struct options *options)
{
    for (int i = 0; i < options->text_count; i++) free(options->texts[i]);
    free(options->texts);
    free(options->plan.overrides);
    *options = (struct options){0};
}

void options_describe(enum role role, struct buf *out)
{
    static const char *const purposes[] = {
        "Trains neural networks with Fully Sharded Data Parallel: a coordinator that takes jobs\n"
        "from fsdpctl, and local workers that run them.",
        "The coordinator alone: takes jobs and places them on the workers that attach to it.",
        "One worker: attaches to a coordinator and runs what it is given.",
        "What a job would need, send and take on the devices of a profile, without a daemon and\n"
        "without the data. Exit code 10: it does not fit.",
    };
    buf_printf(out, "Usage: %s%s [FLAGS]\n", role_commands[role], role == ROLE_PLAN ? " JOB" : "");
    if (role == ROLE_BOTH)
        buf_printf(out, "       fsdpd coordinator [FLAGS]\n       fsdpd worker [FLAGS]\n"
                        "       fsdpd plan JOB [FLAGS]\n");
    buf_printf(out, "\n%s\n\nFlags (with their defaults):\n", purposes[role]);
    for (int i = 0; i < FLAG_COUNT; i++) {
        const struct flag *flag = &flags[i];
        if (flag->help == NULL || (flag->roles & (1u << role)) == 0) continue;
        char *left = mem_printf("%s%s%s", flag->name, flag->argument ? " " : "",
                                flag->argument ? flag->argument : "");
        buf_printf(out, "  %-24s", left);
        free(left);
        for (const char *line = flag->help; *line != '\0';) {
            size_t length = strcspn(line, "\n");
            buf_printf(out, "%*s%.*s\n", line == flag->help ? 0 : 26, "", (int)length, line);
            line += length + (line[length] == '\n');
        }
    }
    if (role == ROLE_BOTH)
        buf_printf(out,
                   "\nThe first SIGTERM or SIGINT ends running jobs at their next step and then "
                   "fsdpd;\nthe second ends it at once. \"fsdpd coordinator --help\",\n"
                   "\"fsdpd worker --help\" and \"fsdpd plan --help\" list the flags of these "
                   "roles. Jobs\nare submitted with fsdpctl.\n");
}
