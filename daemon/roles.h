/* What the program does besides serving and working: a role is a word of its command line, and a
 * file. */
#ifndef FSDPD_ROLES_H
#define FSDPD_ROLES_H

#include <stdbool.h>

#include "base/status.h"
#include "print/worlds.h"
#include "rpc/client.h"
#include "spec/spec.h"
#include "x509/x509.h"

struct options;

/* ---- calibrate_role.c ---- */

/* The calibrate role: `fsdpd calibrate -o FILE` measures this machine and writes a profile of it,
 * for `fsdpd plan --profile FILE`. */

struct calibrate_role_options {
    const char *out; /* NULL: standard output */
    int workers;     /* 0: as many as there are processors */
    int seconds;     /* 0: the default */
    int worker; /* the process id of the worker that it measures for, at the lowest priority and
                 * not longer than that lives; 0: none */
};

struct worker_options;

/* INVALID_ARGUMENT, and the device's errors. */
status_t calibrate_role_run(const struct calibrate_role_options *options, const char *device,
                            int threads) FSDPD_MUST_USE;

/* ---- cert_role.c ---- */

/*
 * The role cert: a small private certificate authority for users who have none.
 *
 *     fsdpd cert init DIR                            makes DIR/ca.crt and DIR/ca.key
 *     fsdpd cert issue DIR user|operator|worker NAME makes DIR/KIND-NAME.crt and .key
 *     fsdpd cert issue DIR server NAME [--host HOST]...
 *     fsdpd cert show FILE
 *
 * Keys have mode 0600. init never replaces files; issue does, because issuing again is how a
 * certificate is renewed.
 */

enum { CERT_WORDS_MAX = 4 };

struct cert_role_options {
    const char *words[CERT_WORDS_MAX]; /* the action and its arguments */
    int word_count;
    const char *hosts[X509_NAMES_MAX];
    int host_count;
    int days;        /* 0: the action's default */
    const char *out; /* directory; NULL: the authority's */
};

/* Checks that the words are an action with its arguments. */
status_t cert_role_check(const struct cert_role_options *options) FSDPD_MUST_USE;

/* Runs the action and prints the result on stdout. */
status_t cert_role_run(const struct cert_role_options *options) FSDPD_MUST_USE;

/* ---- config_role.c ---- */

/* The role config: `fsdpd config check` and `fsdpd config dump`. */

/* Appends the text of `fsdpd config dump`: YAML that fsdpd can read again, or JSON. */
void config_describe(const struct options *options, bool json, struct buf *out);

/* Prints the requested output; returns the exit code. The options have been parsed, so they are
 * valid. */
int config_role_main(const struct options *options);

/* ---- devices_role.c ---- */

/* The role devices: `fsdpd devices` lists the devices that workers can use, and explains it if
 * there are none. */

/* Prints the list; returns the exit code. */
int devices_role_main(const struct options *options);

/* ---- plan_role.c ---- */

/*
 * The plan role: `fsdpd plan job.yaml` prints the job's plan for a profile, without a daemon. The
 * output is that of `fsdpctl plan`, which asks a worker, as text and as JSON.
 */

enum { PLAN_ROLE_DATA_ROOTS_MAX = 16, PLAN_ROLE_FAMILIES_MAX = 16, PLAN_ROLE_SLOW_MAX = 64 };

struct plan_role_options {
    const char *job_file;
    const char *profile;  /* NULL: the cpu's */
    int world;            /* 0: from the profile or the job */
    struct worlds worlds; /* to compare; none: `world` alone */
    const char *simulate; /* hosts and devices: "1024x8"; NULL: none */
    const char *slow_ranks[PLAN_ROLE_SLOW_MAX], *slow_links[PLAN_ROLE_SLOW_MAX];
    int slow_rank_count, slow_link_count;
    int threads; /* for the cpu, per rank; 0: 1 */
    bool dump, json, choose;
    bool order;            /* see plan_order_main */
    uint64_t memory_bytes; /* of a device; 0: the profile's */
    const char *data_roots[PLAN_ROLE_DATA_ROOTS_MAX];
    int data_root_count;
    const char *families[PLAN_ROLE_FAMILIES_MAX]; /* directories of family files */
    int family_count;
    struct spec_override *overrides; /* owned by the caller that fills this in */
    int override_count, override_capacity;
};

/*
 * `fsdpd plan --order`: reads a PlanOrder from standard input and writes its PlanResult to standard
 * output, both packed. The coordinator asks so while no worker is attached
 * (coordinator/workers/offline.h). Without a profile the job is only checked, and the result has no
 * plan.
 */
int plan_order_main(const struct plan_role_options *options);

/* Prints the plan, or one sentence that explains the error; returns the exit code. */
int plan_role_main(const struct plan_role_options *options);

/* ---- store_role.c ---- */

/* The roles of what is kept: `fsdpd backup FILE`, `fsdpd restore FILE` and `fsdpd scrub`. */

/* Copies the store of the state directory to options->store_file, whether fsdpd runs or not. */
status_t backup_role_run(const struct options *options) FSDPD_MUST_USE;

/* Copies options->store_file back to the state directory and keeps the old store.
 * FAILED_PRECONDITION while fsdpd runs. */
status_t restore_role_run(const struct options *options) FSDPD_MUST_USE;

/* Reads all that is kept, whether fsdpd runs or not, and prints what is damaged; then DATA_LOSS. */
status_t scrub_role_run(const struct options *options) FSDPD_MUST_USE;

/* ---- token_role.c ---- */

/*
 * The role token: tokens of clients over HTTP, by the coordinator's API.
 *
 *     fsdpd token issue NAME [--role user|operator|observer] [--days N]    prints its secret, once
 *     fsdpd token issue [NAME] --job ID [--hours N]                        which sees only this job
 *     fsdpd token list
 *     fsdpd token revoke NAME                                              all tokens of the user
 */

enum { TOKEN_WORDS_MAX = 2, TOKEN_DAYS_MAX = 3650 };

struct token_role_options {
    const char *words[TOKEN_WORDS_MAX]; /* the action and its argument */
    int word_count;
    const char *role; /* "user", "operator" or "observer"; NULL: user, or observer with a job */
    const char *job;  /* NULL: not of one job */
    int days, hours;  /* both 0: the coordinator's default */
};

/* Checks that the words are an action with its argument. */
status_t token_role_check(const struct token_role_options *options) FSDPD_MUST_USE;

/* Runs the action at the coordinator of this address and prints the result on stdout. */
status_t token_role_run(const struct token_role_options *options, const char *address,
                        const struct rpc_channel_security *security, bool json) FSDPD_MUST_USE;

#endif
