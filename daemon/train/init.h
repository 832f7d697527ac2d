/*
 * Initial parameters: the values that PyTorch's constructors would draw after
 * torch.manual_seed(seed), bit for bit. Parameters are drawn in construction order, one at a time,
 * so memory for the largest one suffices; every rank draws all of them and keeps its part.
 */
#ifndef FSDPD_TRAIN_INIT_H
#define FSDPD_TRAIN_INIT_H

#include "model/model.h"

/* Called once for each parameter that is not tied to another; `values` are full, in plain order,
 * and valid during the call. An error ends the drawing, and init_draw returns it. */
typedef status_t (*init_sink)(void *user, int parameter, const float *values);

status_t init_draw(const struct model *model, uint64_t seed, init_sink sink,
                   void *user) FSDPD_MUST_USE;

#endif
