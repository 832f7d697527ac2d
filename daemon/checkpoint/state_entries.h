/* The entries of a model's state_dict, in the model's order, and where a plan's units have their
 * values. Pure. */
#ifndef FSDPD_CHECKPOINT_STATE_ENTRIES_H
#define FSDPD_CHECKPOINT_STATE_ENTRIES_H

#include "checkpoint/state_header.h"
#include "fsdp/plan.h"

/* `*count` entries, for state_entries_free. A tied parameter has the place of its owner's values;
 * the copies of a reference have none. The order is PyTorch's, whatever the units (model/model.h).
 */
struct state_entry *state_entries_list(const struct plan *plan, int *count);

#endif
