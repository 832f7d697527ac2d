/* The context of a verb. One per process; main owns it. */
#ifndef FSDPD_CLIENT_CLIENT_H
#define FSDPD_CLIENT_CLIENT_H

#include "fsdpd/v1/methods.h"
#include "options.h"
#include "output.h"
#include "report.h"
#include "session.h"

struct client {
    const struct verb *verb;
    struct verb_options options;
    struct terminal terminal;
};

/*
 * The whole program without `main`: parses the words after the program's name, runs the verb and
 * returns the exit code.
 */
int client_main(int count, char **words);

/* How reports on stdout are made, now. */
struct view client_view(const struct client *client);

/* Opens a session. On failure it has printed the error and set *exit_code. */
bool client_open(const struct client *client, struct session **session, int *exit_code);

/*
 * For verbs that make a single call: opens a session, calls, closes. On failure it has printed the
 * error and set *exit_code.
 */
bool client_call(struct client *client, const struct rpc_method *method,
                 const ProtobufCMessage *request, ProtobufCMessage **response, int *exit_code);

int verb_cancel(struct client *client);
int verb_checkpoint(struct client *client);
int verb_checkpoints(struct client *client);
int verb_compare(struct client *client);
int verb_completion(struct client *client);
int verb_diagnose(struct client *client);
int verb_drain(struct client *client);
int verb_eval(struct client *client);
int verb_families(struct client *client);
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
int verb_resize(struct client *client);
int verb_pull(struct client *client);
int verb_release(struct client *client);
int verb_resume(struct client *client);
int verb_report(struct client *client);
int verb_sample(struct client *client);
int verb_show(struct client *client);
int verb_status(struct client *client);
int verb_submit(struct client *client);
int verb_sweep(struct client *client);
int verb_top(struct client *client);
int verb_trace(struct client *client);
int verb_undrain(struct client *client);
int verb_verify(struct client *client);
int verb_version(struct client *client);
int verb_why(struct client *client);
int verb_watch(struct client *client);
int verb_workers(struct client *client);
int verb_wrap(struct client *client);
int verb_wrap_set(struct client *client);

extern const struct verb_option jobs_options[];
extern const struct verb_option submit_options[];
extern const struct verb_option diagnose_options[];
extern const struct verb_option drain_options[];
extern const struct verb_option eval_options[];
extern const struct verb_option sample_options[];
extern const struct verb_option list_options[];
extern const struct verb_option plan_options[];
extern const struct verb_option logs_options[];
extern const struct verb_option metrics_options[];
extern const struct verb_option pull_options[];
extern const struct verb_option report_options[];
extern const struct verb_option resume_options[];
extern const struct verb_option top_options[];
extern const struct verb_option trace_options[];
extern const struct verb_option verify_options[];
extern const struct verb_option wrap_options[];

/* The job's current state; free it with fsdpd__v1__job__free_unpacked. */
status_t client_get_job(struct session *session, const char *id,
                        Fsdpd__V1__Job **job) FSDPD_MUST_USE;

/*
 * Makes a call whose response is a job in its current state, and prints the job as a line or as
 * JSON. In table format it also prints `unless_over` (may be NULL) if the job is not over. Returns
 * the exit code.
 */
int client_change_job(struct client *client, const struct rpc_method *method,
                      const ProtobufCMessage *request, const char *unless_over);

/* Prints workers them as a table or as JSON. */
void client_print_workers(const struct client *client, Fsdpd__V1__Worker **workers, size_t count);

/* A job's settings with the options' overrides in their places; those of its model cannot change,
 * which an error says with the words "when a job WHEN". The caller frees *spec with spec_free. */
status_t client_read_settings(const struct client *client, const char *id, const char *when,
                              const Fsdpd__V1__JobSpec *old,
                              Fsdpd__V1__JobSpec **spec) FSDPD_MUST_USE;

/* "--set KEY=VALUE", for the verbs that read a job file. */
status_t option_set(struct verb_options *options, const char *value);

/* Applies an option that stands for a key of the job file: "--priority 5" is "--set priority=5".
 * Messages quote the option and the typed value. */
status_t option_set_key(struct verb_options *options, const char *key, const char *value,
                        const char *option, const char *typed);

/* "--label KEY=VALUE", for the verbs that select jobs. */
status_t option_filter_label(struct verb_options *options, const char *value);

/* Lists the jobs that match the options; without `all` or --limit, as many as a person reads. On
 * failure it has printed the error and set *code. */
bool client_list_jobs(struct client *client, bool all, ProtobufCMessage **response, int *code);

/* "--attempt N", for the verbs that read the records of attempts. */
status_t option_attempt(struct verb_options *options, const char *value);

/*
 * For verbs that found nothing: NOT_FOUND if the reason is that the job does not have this attempt
 * (0: any) or rank (-1: any).
 */
status_t client_check_part(struct session *session, const char *id, uint32_t attempt,
                           int32_t rank) FSDPD_MUST_USE;

/* Parses a number from `low` to `high`; INVALID_ARGUMENT if it is none. */
status_t option_integer(const char *value, int64_t low, int64_t high,
                        int64_t *integer) FSDPD_MUST_USE;
status_t option_number(const char *value, uint32_t low, uint32_t high,
                       uint32_t *number) FSDPD_MUST_USE;

/* Reads the job file named by the first argument, or standard input if that is "-". On failure it
 * has printed the error and set *exit_code. */
bool client_read_spec(struct client *client, Fsdpd__V1__JobFile **file, int *exit_code);

#endif
