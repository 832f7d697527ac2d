/* The size policy; see wrap_size.c. Internal to this room. */
#ifndef FSDPD_FSDP_WRAP_SIZE_H
#define FSDPD_FSDP_WRAP_SIZE_H

#include "fsdp/units.h"

/* Elements of all distinct parameters in each module's subtree (tied ones once per subtree), by
 * module; the caller frees it. */
int64_t *wrap_count_subtrees(const struct model *model);

/* Marks in `wrapped` (by module) the modules, except the root, that become units of their own.
 * `subtree` comes from wrap_count_subtrees. */
void wrap_by_size(const struct model *model, const int64_t *subtree,
                  const struct wrap_policy *policy, bool *wrapped);

/* PyTorch's module types for policy->force_leaf and policy->exclude. */
extern const struct wrap_names wrap_size_force_leaf, wrap_size_exclude;

#endif
