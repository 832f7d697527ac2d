/* The policies that select modules by type or by name; see wrap_names.c. Internal to this room. */
#ifndef FSDPD_FSDP_WRAP_NAMES_H
#define FSDPD_FSDP_WRAP_NAMES_H

#include "base/status.h"
#include "model/model.h"

/*
 * Both mark in `wrapped` (by module, all false before) the modules that become units of their own.
 * INVALID_ARGUMENT names a type or pattern that selects none, and the nearest that would. `subtree`
 * comes from wrap_count_subtrees.
 */
status_t wrap_by_type(const struct model *model, const int64_t *subtree, const char *const *types,
                      int count, bool *wrapped) FSDPD_MUST_USE;
status_t wrap_by_pattern(const struct model *model, const int64_t *subtree,
                         const char *const *patterns, int count, bool *wrapped) FSDPD_MUST_USE;

/* For a token model, the modules with the types found in its largest ModuleList (the blocks of a
 * transformer), and in that of its teacher. Returns their number, and their type, owned by the model, if there is only one. */
int wrap_blocks(const struct model *model, const int64_t *subtree, bool *wrapped,
                const char **type);

/* Marks in `larger` (by module, all false before) the modules outside of the `blocks` whose own
 * parameters outnumber those of the largest block: an embedding or head with a large vocabulary.
 * One that shares a parameter is not marked, as it is needed from the first op to the last. */
void wrap_larger(const struct model *model, const int64_t *subtree, const bool *blocks,
                 bool *larger);

/* INVALID_ARGUMENT if one of `types` is neither a type of the model's modules nor among `known`,
 * which models need not have. `what` describes the list. */
status_t wrap_check_types(const struct model *model, const char *what, const char *const *types,
                          int count, const char *const *known, int known_count) FSDPD_MUST_USE;

#endif
