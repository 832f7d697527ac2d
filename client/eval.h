/* Inside the verb eval: what eval.c and eval_job.c share. */
#ifndef FSDPD_CLIENT_EVAL_H
#define FSDPD_CLIENT_EVAL_H

#include "client.h"

/* Prints the result in the format of the options. */
void eval_print(const struct client *client, const Fsdpd__V1__Validation *validation);

/* --data as the workers are to find it: absolute if it exists here. NULL: not given. Caller frees.
 */
char *eval_data(const struct verb_options *options);

/* Evaluates by a job of its own: the weights of `job`, or, if that is NULL, of the directory that
 * the verb's argument names. Returns the exit code. */
int eval_by_job(struct client *client, struct session *session, const Fsdpd__V1__Job *job);

enum { SAMPLE_TOKENS = 64 }; /* of fsdpctl sample, without --max-tokens */

/* sample.c: prints what a job was continued with. With options of `sample`, eval_by_job does that.
 */
void sample_print(const struct client *client, const Fsdpd__V1__Sampled *sampled);

#endif
