/*
 * Initial parameters: those that PyTorch's constructors would draw after torch.manual_seed(seed),
 * bit for bit. Parameters are drawn in the order in which construction draws them, one at a time,
 * so memory for the largest one is enough; every rank draws all of them and keeps its part.
 */
#ifndef FSDPD_TRAIN_INIT_H
#define FSDPD_TRAIN_INIT_H

#include "model/model.h"

/* Gets each parameter that is not tied to another, once; `values` are full, plain, and valid during
 * the call. An error ends the drawing and comes back from init_draw. */
typedef status_t (*init_sink)(void *user, int parameter, const float *values);

status_t init_draw(const struct model *model, uint64_t seed, init_sink sink,
                   void *user) FSDPD_MUST_USE;

#endif
