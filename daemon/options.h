/*
 * The options of fsdpd. One table (option_table.c) defines the command line, the environment,
 * fsdpd.yaml, `fsdpd config`, --help and the check of the documentation.
 *
 * The sources of a value, in order of precedence: the command line, the environment
 * (FSDPD_LOG_LEVEL for log_level), the configuration file, the default. A list comes from one
 * source as a whole. A file may contain keys of any role; those of other roles are checked, but not
 * used.
 */
#ifndef FSDPD_OPTIONS_H
#define FSDPD_OPTIONS_H

#include "base/buf.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/coordinator.h"
#include "roles.h"
#include "worker/settings.h"

enum role {
    ROLE_BOTH,        /* fsdpd: a coordinator with local workers */
    ROLE_COORDINATOR, /* fsdpd coordinator */
    ROLE_WORKER,      /* fsdpd worker */
    ROLE_PLAN,        /* fsdpd plan */
    ROLE_CONFIG,      /* fsdpd config check|dump */
    ROLE_BACKUP,      /* fsdpd backup FILE */
    ROLE_RESTORE,     /* fsdpd restore FILE */
    ROLE_SCRUB,       /* fsdpd scrub */
    ROLE_CERT,        /* fsdpd cert init|issue|show */
    ROLE_DEVICES,     /* fsdpd devices */
    ROLE_CALIBRATE,   /* fsdpd calibrate */
    ROLE_TOKEN,       /* fsdpd token issue|list|revoke */
};

enum option_source {
    SOURCE_DEFAULT,
    SOURCE_FILE,
    SOURCE_ENVIRONMENT,
    SOURCE_FLAG,
};

/* The value as written, unchecked: one text, or one per item of a list. */
struct option_value {
    enum option_source source;
    char *where; /* "/etc/fsdpd/fsdpd.yaml:7: log_level", "FSDPD_LOG_LEVEL", "--log-level" */
    char *place; /* the same, without the key */
    char **texts;
    int count, capacity;
};

enum { OPTION_ROWS_MAX = 112 };

struct options {
    enum role role;
    bool help, version;
    const char *config_file; /* the file that was read; NULL: none */
    bool dump, json;         /* for the roles config, devices and token */
    const char *store_file;  /* for the roles backup and restore */
    enum log_level log_level;
    const char *log_level_name; /* NULL: not given */
    struct coordinator_options coordinator;
    struct worker_options worker;
    struct plan_role_options plan;
    struct cert_role_options cert;
    struct calibrate_role_options calibrate;
    struct token_role_options token;
    struct rpc_tls_files tls;                    /* for the coordinator and the worker */
    bool insecure_tcp;                           /* for both */
    struct option_value values[OPTION_ROWS_MAX]; /* by row of the option table */
    const char *given_config;                    /* --config */
    char **texts; /* storage of strings above that point neither to argv nor to a value */
    int text_count, text_capacity;
};

/*
 * Reads the arguments, the environment and the configuration file and fills in the defaults.
 * INVALID_ARGUMENT names the flag, the variable, or file, line and key; for a file it lists all
 * mistakes, one per line. With help or version set, nothing else has been filled in. argv must
 * outlive the options. Free with options_deinit in every case.
 */
status_t options_parse(struct options *options, int argc, char **argv) FSDPD_MUST_USE;
void options_deinit(struct options *options);

/* For a role that serves: creates the default directories that must exist. */
status_t options_prepare(struct options *options) FSDPD_MUST_USE;

/* Appends the text of --help for the role. */
void options_describe(enum role role, struct buf *out);

/*
 * Appends the names of keys whose value differs between the two, separated by ", "; `reload`
 * selects the keys that can change while fsdpd runs, or the others.
 */
void options_differences(const struct options *before, const struct options *after, bool reload,
                         struct buf *out);

#endif
