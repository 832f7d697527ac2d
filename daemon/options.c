/* Builds the options from the command line, the environment and the configuration file; see
 * options.h. */
#include "options.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/switches.h"
#include "base/text.h"
#include "option_table.h"
#include "yaml/yaml.h"

static const char *const role_commands[] = {"fsdpd",          "fsdpd coordinator", "fsdpd worker",
                                            "fsdpd plan",     "fsdpd config",      "fsdpd backup",
                                            "fsdpd restore",  "fsdpd scrub",       "fsdpd cert",
                                            "fsdpd devices",  "fsdpd calibrate",   "fsdpd token"};

enum { ROLE_COUNT = COUNT_OF(role_commands) };

/* The default of worker.away_seconds, for workers that do not read the table. */
enum { WORKER_AWAY_MS = 3600 * 1000 };

static status_t unknown(const char *what, const char *word, const char *const *candidates,
                        size_t count, enum role role)
{
    const char *near = text_nearest(word, candidates, count);
    if (near != NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "unknown %s %s; did you mean %s?", what, word,
                          near);
    return status_new(STATUS_INVALID_ARGUMENT, "unknown %s %s; see %s --help", what, word,
                      role_commands[role]);
}

static status_t unknown_flag(const char *word, enum role role)
{
    const char *names[OPTION_ROWS_MAX];
    size_t count = 0;
    for (int i = 0; i < option_row_count; i++)
        if (option_rows[i].help != NULL && option_rows[i].flag != NULL &&
            option_belongs(&option_rows[i], role))
            names[count++] = option_rows[i].flag;
    return unknown("flag", word, names, count, role);
}

/* ---- sources of values ---- */

/* Parses the flag at argv[*at]; leaves *at at the last word that it used. */
static status_t parse_flag(struct options *options, int argc, char **argv, int *at)
{
    const char *word = argv[*at];
    size_t length = strcspn(word, "=");
    const struct option_row *row = option_find_flag(word, length, options->role);
    if (row == NULL) return unknown_flag(word, options->role);
    if (!option_belongs(row, options->role))
        return status_new(STATUS_INVALID_ARGUMENT, "%s does not belong to %s", row->flag,
                          role_commands[options->role]);
    bool attached = word[length] == '=';
    if (row->argument == NULL && attached)
        return status_new(STATUS_INVALID_ARGUMENT, "%s takes no value", row->flag);
    if (row->argument != NULL && !attached && *at + 1 >= argc)
        return status_new(STATUS_INVALID_ARGUMENT, "%s needs a value: %s", row->flag,
                          row->argument);
    const char *text = row->argument == NULL ? "true" : attached ? word + length + 1 : argv[++*at];
    status_t status = option_check(row, text);
    /* Only --config may be empty: --config= reads no file. */
    if (status != NULL && text[0] == '\0' &&
        row->offset == offsetof(struct options, given_config)) {
        status_free(status);
        status = NULL;
    }
    if (status != NULL) return status_wrap(status, "%s", row->flag);
    struct option_value *value = &options->values[row - option_rows];
    option_value_add(value, SOURCE_FLAG, row->flag, row->flag, text);
    if (!row->list && value->count > 1) { /* the last one wins */
        free(value->texts[0]);
        value->texts[0] = value->texts[--value->count];
    }
    if (row->kind == OPTION_SWITCH || row->offset == offsetof(struct options, given_config))
        return option_apply(options, row, text);
    return NULL;
}

/* A list in the environment is a single text, or several in YAML's notation: [a, b]. */
static status_t read_list(struct option_value *value, const struct option_row *row,
                          const char *variable, const char *text)
{
    struct yamldoc *document = NULL;
    TRY(yamldoc_parse(text, strlen(text), variable, &document));
    const struct yamldoc_node *root = document->root;
    status_t status = yamldoc_expect_sequence(root, "a list of texts");
    if (status == NULL && root->item_count == 0)
        option_value_add(value, SOURCE_ENVIRONMENT, variable, variable, NULL);
    for (int i = 0; status == NULL && i < root->item_count; i++) {
        const char *item = NULL;
        status = yamldoc_read_text(root->items[i], NULL, &item);
        if (status == NULL) status = status_wrap(option_check(row, item), "%s", variable);
        if (status == NULL) option_value_add(value, SOURCE_ENVIRONMENT, variable, variable, item);
    }
    yamldoc_free(document);
    return status;
}

static status_t read_environment(struct options *options)
{
    for (int i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        struct option_value *value = &options->values[i];
        if (row->key == NULL || !option_belongs(row, options->role)) continue;
        if (options->role == ROLE_CONFIG && option_is_repeated(row)) continue;
        if (value->source != SOURCE_DEFAULT) continue;
        AUTO_FREE char *variable = option_variable(row);
        const char *text = getenv(variable);
        status_t status = NULL;
        if (text != NULL && text[0] != '\0') {
            if (row->list && text[0] == '[') {
                status = read_list(value, row, variable, text);
            } else {
                status = status_wrap(option_check(row, text), "%s", variable);
                if (status == NULL)
                    option_value_add(value, SOURCE_ENVIRONMENT, variable, variable, text);
            }
        }
        TRY(status);
    }
    return NULL;
}

/* Reads the configuration file: the one that the user named, the default one if it exists, or
 * none. */
static status_t read_file(struct options *options)
{
    const char *given = options->given_config;
    const char *variable = switch_get("FSDPD_CONFIG");
    if (given == NULL) given = variable;
    if (given != NULL) {
        if (given[0] == '\0') return NULL;
        options->config_file = option_keep(options, file_path_expand_home(given));
        return config_file_read(options, options->config_file);
    }
    const char *home = getenv("XDG_CONFIG_HOME");
    char *path = NULL;
    if (geteuid() == 0) path = mem_strdup("/etc/fsdpd/fsdpd.yaml");
    else if (home != NULL && home[0] == '/') path = file_path_join(home, "fsdpd/fsdpd.yaml");
    else path = file_path_expand_home("~/.config/fsdpd/fsdpd.yaml");
    option_keep(options, path);
    if (path[0] != '/' || access(path, F_OK) != 0) return NULL;
    options->config_file = path;
    return config_file_read(options, path);
}

/* Applies all values. */
static status_t apply_all(struct options *options)
{
    for (int i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        const struct option_value *value = &options->values[i];
        if (!option_belongs(row, options->role)) continue;
        for (int k = 0; k < value->count; k++)
            TRY(status_wrap(option_apply(options, row, value->texts[k]), "%s", value->where));
    }
    return NULL;
}

/* ---- defaults ---- */

static status_t default_directories(struct options *options)
{
    struct coordinator_options *coordinator = &options->coordinator;
    bool root = geteuid() == 0;
    const char *runtime = getenv("XDG_RUNTIME_DIR"), *state = getenv("XDG_STATE_HOME");
    bool serves = options->role != ROLE_WORKER && options->role != ROLE_TOKEN;
    bool works = !serves || options->role == ROLE_CONFIG;
    bool stores = options->role >= ROLE_BACKUP && options->role <= ROLE_SCRUB;
    bool needs_runtime = serves && !stores && coordinator->runtime_dir == NULL;
    bool needs_coordinator = works && !stores && options->worker.coordinator == NULL;
    const char *runtime_dir = coordinator->runtime_dir;
    if ((needs_runtime || needs_coordinator) && runtime_dir == NULL) {
        if (root) {
            runtime_dir = "/run/fsdpd";
        } else if (runtime != NULL && runtime[0] == '/') {
            runtime_dir = option_keep(options, file_path_join(runtime, "fsdpd"));
        } else if (options->role != ROLE_CONFIG) {
            return status_new(STATUS_INVALID_ARGUMENT, "%s is needed: XDG_RUNTIME_DIR is not set",
                              serves ? "--runtime-dir" : "--coordinator");
        }
    }
    if (needs_coordinator && runtime_dir != NULL)
        options->worker.coordinator =
            option_keep(options, mem_printf("unix:%s/fsdpd.sock", runtime_dir));
    if (!serves) return NULL;
    coordinator->runtime_dir = runtime_dir;
    if (coordinator->state_dir == NULL) {
        if (root) coordinator->state_dir = "/var/lib/fsdpd";
        else if (state != NULL && state[0] == '/')
            coordinator->state_dir = option_keep(options, file_path_join(state, "fsdpd"));
        else
            coordinator->state_dir =
                option_keep(options, file_path_expand_home("~/.local/state/fsdpd"));
    }
    return NULL;
}

static void share_data_roots(struct options *options)
{
    options->worker.data_root_count = options->coordinator.data_root_count;
    for (int i = 0; i < options->worker.data_root_count; i++)
        options->worker.data_roots[i] = options->coordinator.data_roots[i];
}

static void share_families(struct options *options)
{
    int count = options->coordinator.family_count;
    options->worker.family_count = options->plan.family_count = count;
    for (int i = 0; i < count; i++)
        options->worker.families[i] = options->plan.families[i] = options->coordinator.families[i];
}

/* Without a data root, uses a directory in the state directory, so that there is a place for
 * data. */
status_t options_prepare(struct options *options)
{
    struct coordinator_options *coordinator = &options->coordinator;
    bool serves = options->role == ROLE_BOTH || options->role == ROLE_COORDINATOR;
    if (coordinator->data_root_count > 0 || !serves) return NULL;
    AUTO_FREE char *path = file_path_join(coordinator->state_dir, "data");
    status_t status = file_make_directory(coordinator->state_dir, 0750);
    if (status == NULL) status = file_make_directory(path, 0750);
    char *real = status == NULL ? realpath(path, NULL) : NULL;
    if (status == NULL && real == NULL)
        status = status_new(STATUS_NOT_FOUND, "cannot resolve %s", path);
    if (status == NULL)
        coordinator->data_roots[coordinator->data_root_count++] = option_keep(options, real);
    else free(real);
    share_data_roots(options);
    return status;
}

/* ---- all steps in order ---- */

static status_t finish_plan(struct options *options)
{
    struct plan_role_options *plan = &options->plan;
    if (plan->job_file == NULL && !plan->order)
        return status_new(STATUS_INVALID_ARGUMENT, "plan: expected a job file; see %s --help",
                          role_commands[ROLE_PLAN]);
    for (; plan->data_root_count < options->coordinator.data_root_count; plan->data_root_count++)
        plan->data_roots[plan->data_root_count] =
            options->coordinator.data_roots[plan->data_root_count];
    return NULL;
}

static const char *shown_place(const struct options *options, const void *member)
{
    for (int i = 0; i < option_row_count; i++)
        if (option_rows[i].offset != 0 && (const char *)options + option_rows[i].offset == member)
            return options->values[i].where != NULL ? options->values[i].where : option_rows[i].key;
    return "";
}

/* Checks conditions that involve several keys. */
static status_t check_together(const struct options *options)
{
    const struct coordinator_limits *limits = &options->coordinator.limits;
    const struct rpc_tls_files *tls = &options->tls;
    if (rpc_tls_is_given(tls) && (!tls->ca || !tls->certificate || !tls->key))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: TLS needs tls.ca, tls.certificate and tls.key, all of them",
                          tls->ca ? shown_place(options, &tls->ca)
                                  : shown_place(options,
                                                tls->certificate ? &tls->certificate : &tls->key));
    if (rpc_tls_is_given(tls) && options->insecure_tcp)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: TLS is configured (%s); use only one of them",
                          shown_place(options, &options->insecure_tcp),
                          shown_place(options, tls->ca ? &tls->ca : &tls->key));
    if (limits->silence_ms < 2 * limits->heartbeat_ms)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: expected at least two heartbeats (2 * %g s), found %g",
                          shown_place(options, &limits->silence_ms), limits->heartbeat_ms / 1000.0,
                          limits->silence_ms / 1000.0);
    return NULL;
}

static status_t parse_argument(struct options *options, const char *word, int number)
{
    static const char *const actions[] = {"check", "dump"};
    if (options->role == ROLE_PLAN && number == 0) {
        options->plan.job_file = word;
    } else if (options->role == ROLE_CONFIG && number == 0) {
        options->dump = strcmp(word, "dump") == 0;
        if (!options->dump && strcmp(word, "check") != 0)
            return unknown("action", word, actions, 2, ROLE_CONFIG);
    } else if (options->role == ROLE_CONFIG && number == 1) {
        options->given_config = word;
    } else if ((options->role == ROLE_BACKUP || options->role == ROLE_RESTORE) && number == 0) {
        options->store_file = word;
    } else if (options->role == ROLE_CERT && number < CERT_WORDS_MAX) {
        options->cert.words[options->cert.word_count++] = word;
    } else if (options->role == ROLE_TOKEN && number < TOKEN_WORDS_MAX) {
        options->token.words[options->token.word_count++] = word;
    } else {
        return status_new(STATUS_INVALID_ARGUMENT, "unexpected argument: %s", word);
    }
    return NULL;
}

status_t options_parse(struct options *options, int argc, char **argv)
{
    *options = (struct options){
        .log_level = LOG_INFO,
        .coordinator = {.local_device = "cpu",
                        .program = "/proc/self/exe",
                        .worker_away_ms = WORKER_AWAY_MS,
                        .operator_group = COORDINATOR_OPERATOR_GROUP,
                        .operator_group_is_default = true,
                        .limits = coordinator_limits_default()},
        .worker = {.device = "cpu", .away_ms = WORKER_AWAY_MS},
    };
    int at = 1, arguments = 0;
    if (at < argc && argv[at][0] != '-') {
        static const char *const roles[] = {"coordinator", "worker",  "plan",
                                            "config",      "backup",  "restore",
                                            "scrub",       "cert",    "devices",
                                            "calibrate",   "token"};
        const int count = COUNT_OF(roles);
        int role = 0;
        while (role < count && strcmp(argv[at], roles[role]) != 0) role++;
        if (role == count) return unknown("role", argv[at], roles, (size_t)count, ROLE_BOTH);
        options->role = (enum role)(ROLE_COORDINATOR + role);
        at++;
    }
    if (options->role == ROLE_BOTH) options->coordinator.local_workers = 2;
    for (; at < argc; at++) {
        if (argv[at][0] != '-') TRY(parse_argument(options, argv[at], arguments++));
        else TRY(parse_flag(options, argc, argv, &at));
        if (options->help || options->version) return NULL;
    }
    if (options->role == ROLE_CERT) {
        TRY(apply_all(options));
        return cert_role_check(&options->cert);
    }
    if (options->role == ROLE_CONFIG && arguments == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "config: expected check or dump; see %s --help",
                          role_commands[ROLE_CONFIG]);
    if ((options->role == ROLE_BACKUP || options->role == ROLE_RESTORE) && arguments == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "expected a file; see %s --help",
                          role_commands[options->role]);
    if (options->role == ROLE_DEVICES || options->role == ROLE_CALIBRATE) return apply_all(options);
    /* A supervised worker gets all its options on the command line. */
    if (options->role != ROLE_PLAN && !options->worker.supervised) {
        TRY(read_environment(options));
        TRY(read_file(options));
    }
    TRY(apply_all(options));
    if (options->role == ROLE_TOKEN) TRY(token_role_check(&options->token));
    share_families(options);
    if (options->role == ROLE_PLAN) return finish_plan(options);
    options->coordinator.log_level = options->log_level_name;
    TRY(default_directories(options));
    share_data_roots(options);
    options->coordinator.tls = options->worker.security.tls = options->tls;
    options->coordinator.insecure_tcp = options->worker.security.insecure_tcp =
        options->insecure_tcp;
    return check_together(options);
}

void options_deinit(struct options *options)
{
    for (int i = 0; i < options->text_count; i++) free(options->texts[i]);
    free(options->texts);
    for (int i = 0; i < OPTION_ROWS_MAX; i++) {
        struct option_value *value = &options->values[i];
        for (int k = 0; k < value->count; k++) free(value->texts[k]);
        free(value->texts);
        free(value->where);
        free(value->place);
    }
    free(options->plan.overrides);
    *options = (struct options){0};
}

void options_differences(const struct options *before, const struct options *after, bool reload,
                         struct buf *out)
{
    size_t start = out->length;
    for (int i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        if (row->key == NULL || row->reload != reload || !option_belongs(row, after->role))
            continue;
        AUTO(buf_deinit) struct buf old = {0}, new = {0};
        option_describe_value(before, row, &old);
        option_describe_value(after, row, &new);
        if (strcmp(buf_text(&old), buf_text(&new)) != 0)
            buf_printf(out, "%s%s", out->length > start ? ", " : "", row->key);
    }
}

/* ---- help ---- */

static void describe_row(const struct option_row *row, struct buf *out)
{
    AUTO_FREE char *left = mem_printf("%s%s%s", row->flag, row->argument ? " " : "",
                                      row->argument ? row->argument : "");
    buf_printf(out, "  %-24s", left);
    if (strlen(left) >= 24) buf_printf(out, "\n%*s", 26, ""); /* keep the columns apart */
    for (const char *line = row->help; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        buf_printf(out, "%*s%.*s\n", line == row->help ? 0 : 26, "", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

static void describe_rest(struct buf *out)
{
    buf_add_text(out,
                 "\nThe first SIGTERM or SIGINT ends running jobs at their next step and then "
                 "fsdpd;\nthe second ends fsdpd at once. SIGHUP reads the configuration again.\n"
                 "Flags can also be set in fsdpd.yaml or in the environment: see "
                 "fsdpd.yaml(5).\nSubmit jobs with fsdpctl.\n\n"
                 "\"fsdpd ROLE --help\" lists the flags of another role:\n");
    for (int role = ROLE_COORDINATOR; role < ROLE_COUNT; role++)
        buf_printf(out, "%s%s",
                   role == ROLE_COORDINATOR ? "" : role == ROLE_CERT ? ",\n" : ", ",
                   role_commands[role] + strlen("fsdpd "));
    buf_add_char(out, '\n');
}

void options_describe(enum role role, struct buf *out)
{
    static const char *const purposes[] = {
        "Trains neural networks with Fully Sharded Data Parallel: a coordinator that takes jobs\n"
        "from fsdpctl, and local workers that run them.",
        "The coordinator alone: takes jobs and places them on the workers that attach to it.",
        "One worker: attaches to a coordinator and runs the jobs that it assigns.",
        "Estimates the memory, communication and time of a job on the devices of a profile,\n"
        "without a daemon and without the data. Exit code 10: the job does not fit.",
        "check reads the configuration file and reports mistakes (exit code 2). dump prints every\n"
        "key with its value and the source of the value, as a valid configuration file; flags of\n"
        "fsdpd apply.",
        "Copies the store, with all jobs and their events, to a file: a consistent, verified\n"
        "snapshot, even while fsdpd runs.",
        "Replaces the store with a backup and keeps the old store under another name. fsdpd must\n"
        "not run.",
        "Reads all that is kept, and compares it with its sums: the store's rows, final weights,\n"
        "checkpoints and logs. It changes nothing, and works while fsdpd runs. Exit code 1:\n"
        "damage was found.",
        "A small private certificate authority, for TLS between hosts:\n"
        "  fsdpd cert init DIR                    makes DIR/ca.crt and DIR/ca.key\n"
        "  fsdpd cert issue DIR server NAME       for the coordinator; --host: its names\n"
        "  fsdpd cert issue DIR worker NAME       for the workers of the host NAME\n"
        "  fsdpd cert issue DIR user NAME         for a user who submits jobs; or operator\n"
        "  fsdpd cert show FILE                   prints the contents of a certificate\n"
        "Keep the authority's key, ca.key, on this host; no other host needs it.",
        "Lists the devices that workers can use on this host: memory, drivers and libraries, and\n"
        "what is missing.",
        "Measures a device, and the links between workers on this host, and writes a profile for\n"
        "fsdpd plan --profile FILE. Nothing else should run meanwhile.",
        "Tokens of clients over HTTP (http.listen), which act as the user NAME:\n"
        "  fsdpd token issue NAME                 prints a new one, once\n"
        "  fsdpd token issue --job ID --hours 8   the same, which shows only this job\n"
        "  fsdpd token list                       prints whose there are, and until when\n"
        "  fsdpd token revoke NAME                ends all tokens of the user\n"
        "The coordinator must run; operators only.",
    };
    static const char *const arguments[] = {
        "", "", "", " JOB", " check|dump [FILE]", " FILE", " FILE", "", " init|issue|show ...", "", "",
        " issue|list|revoke [NAME]"};
    buf_printf(out, "Usage: %s%s [FLAGS]\n", role_commands[role], arguments[role]);
    if (role == ROLE_BOTH)
        buf_printf(out, "       fsdpd coordinator [FLAGS]\n       fsdpd worker [FLAGS]\n"
                        "       fsdpd plan JOB [FLAGS]\n       fsdpd config check|dump [FILE]\n"
                        "       fsdpd backup|restore FILE\n"
                        "       fsdpd scrub [FLAGS]\n"
                        "       fsdpd cert init|issue|show ...\n"
                        "       fsdpd devices [-o json]\n"
                        "       fsdpd calibrate [-o FILE]\n"
                        "       fsdpd token issue|list|revoke [NAME]\n");
    buf_printf(out, "\n%s\n\nFlags (with their defaults):\n", purposes[role]);
    for (int i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        if (row->help == NULL || row->flag == NULL || (row->roles & (1u << role)) == 0) continue;
        describe_row(row, out);
    }
    if (role == ROLE_BOTH) describe_rest(out);
}
