/* The layout of a unit's parameters, end to end; see flat_parameter.c. Internal to this room. */
#ifndef FSDPD_FSDP_FLAT_PARAMETER_H
#define FSDPD_FSDP_FLAT_PARAMETER_H

#include "fsdp/units.h"

/* The parameter whose memory `parameter` uses: itself, or the end of its chain of ties. */
int flat_parameter_owner(const struct model *model, int parameter);

/*
 * Lays out `parameters` (distinct owners in registration order; the flat parameter takes the array)
 * for shards on `world` ranks, and the optimizer's state of that type and shape; or a frozen unit's
 * parameters of the type `base`.
 */
struct flat_storage {
    enum state_dtype state;
    enum base_dtype base;
    bool rounded;
    enum slot_shape shape;
    const bool *matrices, *halved; /* as in the wrap policy */
};
void flat_parameter_init(struct flat_parameter *flat, const struct model *model, int *parameters,
                         int count, int world, const struct flat_storage *storage);
void flat_parameter_deinit(struct flat_parameter *flat);

#endif
