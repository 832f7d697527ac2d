/* The command line of fsdpd: its roles and their flags, in one table, from which --help is made. */
#ifndef FSDPD_OPTIONS_H
#define FSDPD_OPTIONS_H

#include "base/buf.h"
#include "base/log.h"
#include "base/status.h"
#include "coordinator/coordinator.h"
#include "plan_role.h"
#include "worker/worker.h"

enum role {
    ROLE_BOTH,        /* fsdpd: a coordinator with local workers */
    ROLE_COORDINATOR, /* fsdpd coordinator */
    ROLE_WORKER,      /* fsdpd worker */
    ROLE_PLAN,        /* fsdpd plan */
};

struct options {
    enum role role;
    bool help, version;
    enum log_level log_level;
    const char *log_level_name; /* NULL if not given */
    struct coordinator_options coordinator;
    struct worker_options worker;
    struct plan_role_options plan;
    char **texts; /* what the strings above point to, where it is not argv */
    int text_count, text_capacity;
};

/*
 * Reads the arguments and fills in the defaults. INVALID_ARGUMENT names the flag. With help or
 * version set, nothing else has been filled in. Free with options_deinit in every case.
 */
status_t options_parse(struct options *options, int argc, char **argv) FSDPD_MUST_USE;
void options_deinit(struct options *options);

/* What --help prints for the role. */
void options_describe(enum role role, struct buf *out);

#endif
