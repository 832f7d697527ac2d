/*
 * Shared by tests of graphs: building them, their invariants, and their dumps against golden files
 * (tests/golden/graph-*.txt; FSDPD_UPDATE_GOLDEN=1 in the environment rewrites them). $srcdir is
 * the place of these. Needs Check.
 */
#ifndef FSDPD_TESTS_GRAPH_CHECKS_H
#define FSDPD_TESTS_GRAPH_CHECKS_H

#include "model/graph.h"

/* The file `name` below the source directory; the caller frees. */
char *read_source(const char *name);

void check_graph(const struct graph *graph);

/* Builds a graph and checks it. */
struct graph *build(const struct model *model, const struct graph_options *options);

void assert_dump(const struct graph *graph, const char *expected);
void assert_golden(const struct graph *graph, const char *name);

/* Expects that the graph cannot be built, for this reason. */
void assert_build_fails(const struct model *model, const struct graph_options *options,
                        const char *message);

#endif
