/* What a verb works with. One per process; main owns it. */
#ifndef FSDPD_CLIENT_CLIENT_H
#define FSDPD_CLIENT_CLIENT_H

#include "methods.h"
#include "options.h"
#include "output.h"
#include "session.h"

struct client {
    const struct verb *verb;
    struct options options;
    struct terminal terminal;
};

/*
 * The whole program without `main`: reads the words after its name, runs the verb, returns the exit
 * code.
 */
int client_main(int count, char **words);

/*
 * A call of a verb that makes only one: opens a session, calls, closes. On failure the error has
 * been told and *exit_code is set.
 */
bool client_call(struct client *client, const struct rpc_method *method,
                 const ProtobufCMessage *request, ProtobufCMessage **response, int *exit_code);

int verb_cancel(struct client *client);
int verb_checkpoint(struct client *client);
int verb_checkpoints(struct client *client);
int verb_completion(struct client *client);
int verb_drain(struct client *client);
int verb_forget(struct client *client);
int verb_help(struct client *client);
int verb_history(struct client *client);
int verb_hold(struct client *client);
int verb_list(struct client *client);
int verb_logs(struct client *client);
int verb_metrics(struct client *client);
int verb_plan(struct client *client);
int verb_pause(struct client *client);
int verb_priority(struct client *client);
int verb_pull(struct client *client);
int verb_release(struct client *client);
int verb_resume(struct client *client);
int verb_report(struct client *client);
int verb_show(struct client *client);
int verb_status(struct client *client);
int verb_submit(struct client *client);
int verb_top(struct client *client);
int verb_trace(struct client *client);
int verb_undrain(struct client *client);
int verb_version(struct client *client);
int verb_watch(struct client *client);
int verb_workers(struct client *client);
int verb_wrap(struct client *client);
int verb_wrap_set(struct client *client);

extern const struct option_row submit_options[];
extern const struct option_row drain_options[];
extern const struct option_row list_options[];
extern const struct option_row plan_options[];
extern const struct option_row logs_options[];
extern const struct option_row metrics_options[];
extern const struct option_row pull_options[];
extern const struct option_row report_options[];
extern const struct option_row top_options[];
extern const struct option_row trace_options[];
extern const struct option_row wrap_options[];

/* The job as the daemon now knows it; fsdpd__v1__job__free_unpacked frees it. */
status_t client_get_job(struct session *session, const char *id,
                        Fsdpd__V1__Job **job) FSDPD_MUST_USE;

/*
 * A call whose answer is a job as it now is: prints it, as a line or as JSON. A table's reader is
 * told `unless_over` (may be NULL) of a job that is not over. The exit code.
 */
int client_change_job(struct client *client, const struct rpc_method *method,
                      const ProtobufCMessage *request, const char *unless_over);

/* "--set KEY=VALUE", for the verbs that read a job file. */
status_t option_set(struct options *options, const char *value);

/* What an option that stands for a key of the job file does: "--priority 5" is
 * "--set priority=5". Messages name the option with what was typed. */
status_t option_set_key(struct options *options, const char *key, const char *value,
                        const char *option, const char *typed);

/* "--attempt N", for the verbs that read what attempts have left. */
status_t option_attempt(struct options *options, const char *value);

/*
 * For verbs that found nothing: NOT_FOUND if that is because the job has no such attempt (0: not
 * asked for) or rank (-1: likewise).
 */
status_t client_check_part(struct session *session, const char *id, uint32_t attempt,
                           int32_t rank) FSDPD_MUST_USE;

/* A number from `low` to `high`; INVALID_ARGUMENT says so. */
status_t option_integer(const char *value, int64_t low, int64_t high,
                        int64_t *integer) FSDPD_MUST_USE;
status_t option_number(const char *value, uint32_t low, uint32_t high,
                       uint32_t *number) FSDPD_MUST_USE;

/* Reads the job file that the first argument names. On failure the error has been told and
 * *exit_code is set. */
bool client_read_spec(struct client *client, Fsdpd__V1__JobSpec **spec, int *exit_code);

#endif
