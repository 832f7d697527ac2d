/*
 * The loss that a config.json has with weights, inputs and targets that are made of names and
 * numbers alone, so that tests/parity/make_config_numbers.py can make the same for transformers.
 */
#ifndef FSDPD_TESTS_CONFIG_LOSS_H
#define FSDPD_TESTS_CONFIG_LOSS_H

#include "base/buf.h"
#include "base/status.h"

/* `notes` gets what the family notes about the configuration, a line each. */
status_t config_loss(const char *json, struct buf *notes, double *loss) FSDPD_MUST_USE;

#endif
