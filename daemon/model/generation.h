/*
 * Graphs that continue sequences (graph_options.cache): an attention keeps keys and values, and the
 * head sees one row of each sequence. Parts of graph_build. Private to libmodel.
 */
#ifndef FSDPD_MODEL_GENERATION_H
#define FSDPD_MODEL_GENERATION_H

#include "model/graph_builder.h"
#include "model/program.h"

/* Whether the model makes the next token from earlier ones alone, as far as its calls say. */
status_t generation_check(const struct model *model,
                          const struct graph_options *options) FSDPD_MUST_USE;

/* The call that makes the logits of what the last block has made; -1: none is known. */
int generation_head(const struct model_program *program);

/* Makes `value`, of all rows, that of each sequence's last row whose target is not -1. */
void generation_select(struct graph_builder *builder, int *value);

/* If the last op is an attention: gives it a cache. */
void generation_add_cache(struct graph_builder *builder, const struct graph_options *options);

/* `logits` is what the loss would read. */
status_t generation_set_logits(struct graph *graph, const struct graph_options *options,
                               int logits) FSDPD_MUST_USE;

/* Whether every op treats a row by itself. */
status_t generation_check_ops(const struct graph *graph,
                              const struct graph_options *options) FSDPD_MUST_USE;

#endif
