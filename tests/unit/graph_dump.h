/* Graphs as text, for golden files. */
#ifndef FSDPD_TESTS_GRAPH_DUMP_H
#define FSDPD_TESTS_GRAPH_DUMP_H

#include "model/graph.h"

/*
 * One line per op: outputs, kind, inputs, attributes that differ from
 * the defaults, the outputs' shapes, and after "#" the op's name. Values are numbers; parameters
 * and their gradients have names. A "+" precedes a gradient that the op adds to. "backward:"
 * separates forward and backward ops. Caller frees.
 *
 *     %10 = conv2d(%0, conv1.weight, conv1.bias) relu (64, 32, 26, 26)  # conv1
 *     d(fc2.weight), +d(fc2.bias) = linear_backward_weights(%16, %20) (10, 128), (10,)  # fc2.b...
 */
char *graph_dump(const struct graph *graph);

#endif
