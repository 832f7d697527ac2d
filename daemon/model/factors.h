/* The lists of numbers that rope() may have. Pure. */
#ifndef FSDPD_MODEL_FACTORS_H
#define FSDPD_MODEL_FACTORS_H

#include "model/program.h"

/* Gives the layer the call's lists, which the program keeps, equal ones once. */
status_t factors_set(const struct bound *bound, const struct environment *environment,
                     struct model_program *program, struct layer *layer) FSDPD_MUST_USE;

#endif
