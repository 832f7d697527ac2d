/* Input of the parity programs: a directory of Hugging Face's transformers. */
#ifndef FSDPD_TESTS_PARITY_DIRECTORY_H
#define FSDPD_TESTS_PARITY_DIRECTORY_H

#include "model/model.h"

/* Reads it like a worker: the model file's text, the model, and values by parameter, NULL for tied
 * ones (parameters_free). The caller frees all, also after an error. With `names`, those of the
 * parameters in the files go to stderr. */
status_t directory_read(const char *path, bool names, char **text, struct model **model,
                        float ***parameters) FSDPD_MUST_USE;

#endif
