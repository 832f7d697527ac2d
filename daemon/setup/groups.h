/* Parameters' settings of their own, and those that have no weight decay; see groups.c. */
#ifndef FSDPD_SETUP_GROUPS_H
#define FSDPD_SETUP_GROUPS_H

#include "model/model.h"
#include "runtime/device.h"

/* Whether norms, biases and embeddings have no weight decay unless their group has a value. */
bool optimizer_excludes(const struct optimizer_step *optimizer);

/* For plan_options: each parameter's group, an array that the caller frees; NULL if the optimizer
 * has none. INVALID_ARGUMENT names a group without parameters. */
status_t optimizer_sort_parameters(const struct optimizer_step *optimizer,
                                   const struct model *model, int **groups) FSDPD_MUST_USE;

/* For plan_options, of an optimizer of matrices: which parameters these are, an array that the
 * caller frees; NULL with another optimizer. By default those of two dimensions are, but for
 * embeddings and the model's head, the weight of its last Linear. `groups` are the parameters'.
 * INVALID_ARGUMENT names a parameter that is no matrix. */
status_t optimizer_find_matrices(const struct optimizer_step *optimizer, const struct model *model,
                                 const int *groups, bool **matrices) FSDPD_MUST_USE;

/* The trained parameters, and their elements, that weight decay leaves alone. */
void optimizer_count_excluded(const struct optimizer_step *optimizer, const struct model *model,
                              const int *groups, int *parameters, int64_t *elements);

#endif
