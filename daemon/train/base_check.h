/*
 * The base that checkpoints lack (model.base_dtype): frozen parameters that are made of files at
 * every attempt. A checkpoint has a hash of their values in the files, which does not depend on how
 * they are cut or rounded. On the training thread.
 */
#ifndef FSDPD_TRAIN_BASE_CHECK_H
#define FSDPD_TRAIN_BASE_CHECK_H

#include "train/run_state.h"

/* Computes run->base, each rank for a share of the parameters. FAILED_PRECONDITION on all ranks if
 * a run continues from a checkpoint of another one. Does nothing for a run without such a base. */
status_t run_check_base(struct run *run) FSDPD_MUST_USE;

#endif
