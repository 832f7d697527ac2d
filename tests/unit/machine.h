/*
 * Runs a whole graph op by op, with all values in separate memory: no plan, no ranks. For tests
 * that check values.
 */
#ifndef FSDPD_TESTS_MACHINE_H
#define FSDPD_TESTS_MACHINE_H

#include "kernels/kernels.h"
#include "model/graph.h"

struct machine {
    struct graph *graph; /* borrowed */
    struct kernel **kernels;
    void **memory; /* by value; zeros at first */
    void *workspace;
};

status_t machine_init(struct machine *machine, enum kernel_library library,
                      struct graph *graph) FSDPD_MUST_USE;
void machine_deinit(struct machine *machine); /* a zeroed one, too */

status_t machine_run(struct machine *machine) FSDPD_MUST_USE;

/* The value of that kind of a parameter, or -1. */
int machine_value_of(const struct graph *graph, enum value_kind kind, int parameter);

#endif
