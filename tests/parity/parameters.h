/* Input of the parity programs: a model file, and weights from a safetensors file. */
#ifndef FSDPD_TESTS_PARITY_PARAMETERS_H
#define FSDPD_TESTS_PARITY_PARAMETERS_H

#include "model/model.h"

status_t parameters_read_model(const char *path, struct model **model) FSDPD_MUST_USE;

/* By parameter; NULL for tied ones. The file must have every other one, as F32, in its shape. */
status_t parameters_read(const char *path, const struct model *model,
                         float ***parameters) FSDPD_MUST_USE;
void parameters_free(float **parameters, const struct model *model); /* accepts NULL */

#endif
