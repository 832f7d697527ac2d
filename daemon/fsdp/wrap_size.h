/* The size policy; see wrap_size.c. Internal to this room. */
#ifndef FSDPD_FSDP_WRAP_SIZE_H
#define FSDPD_FSDP_WRAP_SIZE_H

#include "model/model.h"

/* Elements of all distinct parameters in each module's subtree (tied ones once per subtree), by
 * module; the caller frees it. */
int64_t *wrap_count_subtrees(const struct model *model);

/* Marks in `wrapped` (by module) the modules, the root excepted, that become units of their own.
 * `subtree` comes from wrap_count_subtrees. */
void wrap_by_size(const struct model *model, const int64_t *subtree, uint64_t min_num_params,
                  bool *wrapped);

#endif
