/*
 * Numbers that a job derives from its data and its weights once, before its first step, and needs
 * again whenever it continues: a file in its directory of checkpoints, with a digest of what they
 * were derived from and one of its own bytes. Pure but for the files; any thread.
 */
#ifndef FSDPD_CHECKPOINT_DERIVED_H
#define FSDPD_CHECKPOINT_DERIVED_H

#include "checkpoint/folder.h"
#include "digest/digest.h"

/* Replaces the file `name`, durably. */
status_t derived_write(const struct folder *folder, const char *name, const struct digest *from,
                       const float *values, size_t count) FSDPD_MUST_USE;

/* NOT_FOUND: there is none; DATA_LOSS: it is damaged; FAILED_PRECONDITION: it was derived from
 * something else, or has another number of values. */
status_t derived_read(const struct folder *folder, const char *name, const struct digest *from,
                      float *values, size_t count) FSDPD_MUST_USE;

#endif
