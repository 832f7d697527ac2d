/*
 * Initial parameters: the values that PyTorch's constructors would draw after
 * torch.manual_seed(seed), bit for bit, in construction order. Each rank draws only its own part:
 * the generator jumps over all other values (data/generator.h), so that neither time nor memory
 * grows with the model, apart from at most some milliseconds per parameter. What cannot be jumped
 * over is drawn: normal values of a parameter with fewer than 16 elements.
 */
#ifndef FSDPD_SETUP_INIT_H
#define FSDPD_SETUP_INIT_H

#include "model/model.h"
#include "runtime/executor.h"

struct init_target {
    /* The part of a parameter that is wanted; count 0: none. NULL: all of each. */
    struct parameter_part (*find_part)(void *user, int parameter);
    /* Called for pieces of the wanted parts of parameters that are not tied to others, in
     * ascending order; `values` are those of the piece, valid during the call. An error ends the
     * drawing, and init_draw returns it. */
    status_t (*set)(void *user, int parameter, struct parameter_part piece, const float *values);
    void *user;
};

/* Uses 1 MiB beside what the target does. */
status_t init_draw(const struct model *model, uint64_t seed,
                   const struct init_target *target) FSDPD_MUST_USE;

#endif
