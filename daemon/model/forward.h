/*
 * The forward ops of a graph while graph_build adds them, call by call of the program. An error
 * names the call's line and module.
 */
#ifndef FSDPD_MODEL_FORWARD_H
#define FSDPD_MODEL_FORWARD_H

#include "model/graph_builder.h"
#include "model/program.h"

struct forward {
    struct graph_builder builder;
    const struct model *model;
    const struct graph_options *options;
    int *value_of;           /* by program value */
    int *value_of_parameter; /* by parameter; -1 before its first use */
};

/* Whether a program's value is a parameter or made of such. */
bool forward_is_constant(const struct forward *forward, int value);
/* "net.yaml:12: module conv2: ..."; takes ownership of the status. */
status_t forward_wrap(const struct forward *forward, const struct program_call *call,
                      status_t status) FSDPD_MUST_USE;

/* Checks the op that was added last, for `call`. */
status_t forward_check_op(const struct forward *forward,
                          const struct program_call *call) FSDPD_MUST_USE;

/* graph_losses.c */

/* A loss, or a term of one; its value is *result. */
status_t forward_add_loss(struct forward *forward, const struct program_call *call,
                          int *result) FSDPD_MUST_USE;

/* The program's last call, a loss, and the sum with its other terms: the graph's loss. */
status_t forward_add_losses(struct forward *forward,
                            const struct program_call *last) FSDPD_MUST_USE;

/* Counts correct rows from the log-probabilities, or from the loss's other input. Of pairs those
 * whose positive has the largest score: of the two scores that the loss makes, the first. */
void forward_add_count(struct forward *forward);

/* The sums of scores against the targets; of a loss against the input there are none. Of a loss of
 * pairs, the log-probabilities. */
void forward_add_tally(struct forward *forward);

#endif
