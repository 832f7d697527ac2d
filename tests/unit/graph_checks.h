/*
 * What tests of graphs share: building them, what holds for all of them, and their dumps against
 * golden files (tests/golden/graph-*.txt; UPDATE_GOLDEN=1 in the environment rewrites them).
 * $srcdir says where these are. Needs Check.
 */
#ifndef FSDPD_TESTS_GRAPH_CHECKS_H
#define FSDPD_TESTS_GRAPH_CHECKS_H

#include "model/graph.h"

/* The file `name` below the source directory; the caller frees. */
char *read_source(const char *name);

void check_graph(const struct graph *graph);

/* A checked one. */
struct graph *build(const struct model *model, const struct graph_options *options);

void assert_dump(const struct graph *graph, const char *expected);
void assert_golden(const struct graph *graph, const char *name);

/* The graph cannot be built, for this reason. */
void assert_build_fails(const struct model *model, const struct graph_options *options,
                        const char *message);

#endif
